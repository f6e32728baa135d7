//! The header of the PROXY protocol, version 2: who a connection's client is, by the word of the proxy before gate.
//!
//! A signature of twelve bytes, a version and a command, a family, a length, then as many bytes: addresses, and extensions
//! that gate does not need. The proxy sends it before anything else, once.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The first bytes of every header. No request of a store does.
pub const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";

/// Bytes up to and with the length of the rest.
pub const PREAMBLE: usize = 16;

/// The longest rest that is read: addresses, and extensions as long as those of any proxy that is known.
pub const MAX_REST: usize = 4 << 10;

/// The first [`PREAMBLE`] bytes of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preamble {
    kind: Kind,
    /// Bytes that follow; at most [`MAX_REST`].
    pub rest: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The connection is the proxy's own, as for a health check; or it does not say whose it is.
    Own,
    V4,
    V6,
}

/// Why a header is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// There is none.
    #[error("no PROXY header of version 2")]
    Missing,
    /// A header of version 1, which is text.
    #[error("a PROXY header of version 1, where version 2 is wanted")]
    Version1,
    /// The signature is right, and the version is another.
    #[error("a PROXY header of an unknown version")]
    Version,
    /// Neither LOCAL nor PROXY.
    #[error("a PROXY header with an unknown command")]
    Command,
    /// Neither IPv4 nor IPv6, or not TCP.
    #[error("a PROXY header with an address that is not of TCP over IPv4 or IPv6")]
    Family,
    /// Longer than [`MAX_REST`], or too short for its addresses.
    #[error("a PROXY header of a wrong length")]
    Length,
}

impl Preamble {
    /// Reads a header's beginning.
    ///
    /// # Errors
    ///
    /// [`HeaderError`], whatever follows.
    pub fn read(bytes: &[u8; PREAMBLE]) -> Result<Self, HeaderError> {
        let [signature @ .., version, family, high, low] = bytes;
        if *signature != SIGNATURE {
            return Err(if bytes.starts_with(b"PROXY ") {
                HeaderError::Version1
            } else {
                HeaderError::Missing
            });
        }
        if version >> 4 != 2 {
            return Err(HeaderError::Version);
        }
        let kind = match (version & 0xf, family) {
            // A proxy may say LOCAL with any family.
            (0, _) | (1, 0x00) => Kind::Own,
            (1, 0x11) => Kind::V4,
            (1, 0x21) => Kind::V6,
            (1, _) => return Err(HeaderError::Family),
            _ => return Err(HeaderError::Command),
        };
        let rest = usize::from(u16::from_be_bytes([*high, *low]));
        let addresses = kind.addresses();
        if !(addresses..=MAX_REST).contains(&rest) {
            return Err(HeaderError::Length);
        }
        Ok(Self { kind, rest })
    }

    /// Where the client is; `None` if the connection is the proxy's own. `rest` is what follows, [`Preamble::rest`] bytes.
    #[must_use]
    pub fn source(&self, rest: &[u8]) -> Option<IpAddr> {
        match self.kind {
            Kind::Own => None,
            Kind::V4 => Some(Ipv4Addr::from(*rest.first_chunk::<4>()?).into()),
            Kind::V6 => Some(Ipv6Addr::from(*rest.first_chunk::<16>()?).to_canonical()),
        }
    }
}

impl Kind {
    /// Bytes of both addresses and ports.
    const fn addresses(self) -> usize {
        match self {
            Self::Own => 0,
            Self::V4 => 12,
            Self::V6 => 36,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(version: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        [&SIGNATURE[..], &[version, family], &(rest.len() as u16).to_be_bytes(), rest].concat()
    }

    fn read(bytes: &[u8]) -> Result<Option<IpAddr>, HeaderError> {
        let preamble = Preamble::read(bytes.first_chunk().expect("a preamble"))?;
        Ok(preamble.source(&bytes[PREAMBLE..][..preamble.rest]))
    }

    const V4: [u8; 12] = [198, 18, 0, 1, 127, 0, 0, 1, 0x12, 0x34, 0, 80];

    #[test]
    fn a_header_says_who_the_client_is() {
        let v6: Vec<u8> = [&[0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1][..], &[0; 20]].concat();
        let mapped: Vec<u8> =
            [&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 198, 18, 0, 1][..], &[0; 20]].concat();
        let with_extension = [&V4[..], &[4, 0, 2, 1, 1]].concat();
        let client = Some("198.18.0.1".parse().unwrap());
        assert_eq!(read(&header(0x21, 0x11, &V4)), Ok(client));
        assert_eq!(read(&header(0x21, 0x11, &with_extension)), Ok(client));
        assert_eq!(read(&header(0x21, 0x11, &[&V4[..], &vec![0; MAX_REST - 12]].concat())), Ok(client));
        assert_eq!(read(&header(0x21, 0x21, &v6)), Ok(Some("fd00::1".parse().unwrap())));
        assert_eq!(read(&header(0x21, 0x21, &mapped)), Ok(client));
    }

    #[test]
    fn a_connection_may_be_the_proxys_own() {
        for (version, family) in [(0x20, 0x00), (0x20, 0x11), (0x20, 0x31), (0x20, 0xff), (0x21, 0x00)] {
            assert_eq!(read(&header(version, family, &[])), Ok(None));
            assert_eq!(read(&header(version, family, &V4)), Ok(None));
        }
    }

    #[test]
    fn whatever_else_is_no_header_is_refused() {
        use HeaderError::*;
        let padded = |text: &[u8]| [text, &[b' '; PREAMBLE]].concat();
        for (bytes, expected) in [
            (padded(b"get a\r\n"), Missing),
            (padded(b"\r\n\r\n\0\r\nQUIT\r"), Missing),
            (padded(b"PROXY TCP4 198.18.0.1 127.0.0.1 1 2\r\n"), Version1),
            (header(0x11, 0x11, &V4), Version),
            (header(0x31, 0x11, &V4), Version),
            (header(0x22, 0x11, &V4), Command),
            (header(0x2f, 0x11, &V4), Command),
            (header(0x21, 0x12, &V4), Family),
            (header(0x21, 0x31, &[0; 216]), Family),
            (header(0x21, 0x41, &V4), Family),
            (header(0x21, 0x10, &V4), Family),
            (header(0x21, 0x11, &V4[..11]), Length),
            (header(0x21, 0x21, &[0; 35]), Length),
            (header(0x21, 0x11, &[0; MAX_REST + 1]), Length),
            (header(0x20, 0x00, &[0; MAX_REST + 1]), Length),
            (header(0x21, 0x11, &[0; 65_535]), Length),
        ] {
            assert_eq!(read(&bytes), Err(expected), "{}", bytes[..PREAMBLE].escape_ascii());
        }
    }
}
