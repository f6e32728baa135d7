//! The shape of traffic: connections, rate, pipelining, and the reading of answers.

/// Traffic over TCP.
#[derive(Clone, Debug)]
pub(super) struct Traffic {
    /// Connections at once. One that is closed is replaced.
    pub(super) connections: usize,
    /// Bytes that are sent first on each connection.
    pub(super) first: Vec<u8>,
    /// Batches a second, over all connections in turn. Without batches, connections opened a second.
    pub(super) per_sec: u64,
    /// Requests in a batch.
    pub(super) batch: usize,
    pub(super) reads: Reads,
    pub(super) ends: Ends,
}

/// The reading of answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reads {
    /// They are read as they come.
    All,
    /// They are never read.
    Nothing,
    /// 1 KiB of them is read every 10 ms.
    Slowly,
}

/// The end of a connection after a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ends {
    /// The connection stays.
    Never,
    /// The connection is closed when anything is answered.
    Answered,
    /// The connection is reset at once.
    Reset,
    /// The connection is closed for writing, and stays open.
    HalfClosed,
}

impl Traffic {
    /// So many connections with so many batches a second of one request each, whose answers are read.
    pub(super) fn new(connections: usize, per_sec: u64) -> Self {
        let reads = Reads::All;
        let ends = Ends::Never;
        Self { connections, first: Vec::new(), per_sec, batch: 1, reads, ends }
    }

    /// Connections that are opened, say `first`, and then nothing.
    pub(super) fn held(connections: usize, first: impl Into<Vec<u8>>) -> Self {
        Self { first: first.into(), batch: 0, ..Self::new(connections, 5_000) }
    }

    pub(super) fn batch(self, batch: usize) -> Self {
        Self { batch, ..self }
    }

    pub(super) fn first(self, first: impl Into<Vec<u8>>) -> Self {
        Self { first: first.into(), ..self }
    }

    pub(super) fn reads(self, reads: Reads) -> Self {
        Self { reads, ..self }
    }

    pub(super) fn ends(self, ends: Ends) -> Self {
        Self { ends, ..self }
    }
}

/// A request of Redis.
pub(super) fn resp<W: AsRef<[u8]>>(words: &[W]) -> Vec<u8> {
    let mut request = format!("*{}\r\n", words.len()).into_bytes();
    for word in words.iter().map(AsRef::as_ref) {
        request.extend(format!("${}\r\n", word.len()).into_bytes());
        request.extend_from_slice(word);
        request.extend_from_slice(b"\r\n");
    }
    request
}

#[cfg(test)]
mod tests {
    use super::resp;

    #[test]
    fn requests_are_arrays_of_bulk_strings() {
        assert_eq!(resp(&["GET", "a"]), b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n");
    }
}
