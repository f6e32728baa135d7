//! Redis Cluster's words: the slots that a node says its cluster has, and the errors that lead from node to node.

use super::length::{self, Length};

/// The slots of a cluster.
pub const SLOTS: u16 = 16_384;

/// The slots of one primary, and where it listens; or where one of its replicas does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// An address or a name; empty for that at which the node was asked.
    pub host: String,
    /// Not 0.
    pub port: u16,
    /// The first and the last of each range; none of a replica, or of a node that is to get its first slots.
    pub slots: Vec<(u16, u16)>,
    /// True for a replica, which may get its primary's slots.
    pub is_replica: bool,
}

/// An error that sends a request to another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Redirection<'b> {
    /// True for `ASK`: this request alone goes there, behind `ASKING`. False for `MOVED`: so do all of the slot's.
    pub asks: bool,
    /// The slot.
    pub slot: u16,
    /// An address or a name; empty for that of the node which says it.
    pub host: &'b str,
    /// Not 0.
    pub port: u16,
}

/// A reply that says no slots, or no slots that a cluster can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadSlots(pub String);

impl<'b> Redirection<'b> {
    /// The redirection that an error is: `-MOVED 3999 198.18.0.1:6381` or `-ASK ...`.
    #[must_use]
    pub fn read(error: &'b [u8]) -> Option<Self> {
        let text = std::str::from_utf8(error).ok()?.strip_suffix("\r\n")?;
        let mut words = text.strip_prefix('-')?.split(' ');
        let asks = match words.next()? {
            "MOVED" => false,
            "ASK" => true,
            _ => return None,
        };
        let slot = words.next()?.parse().ok().filter(|&slot| slot < SLOTS)?;
        let (host, port) = words.next()?.rsplit_once(':')?;
        let port = port.parse().ok().filter(|&port| port > 0)?;
        // `?` is said of a name that is not known.
        let host = if host == "?" { "" } else { host };
        Some(Self { asks, slot, host, port })
    }
}

/// The shards that a reply to `CLUSTER SHARDS` or `CLUSTER SLOTS` says.
///
/// # Errors
///
/// If it is neither, a slot is said twice or there is no such slot, or none has a node.
pub fn shards(reply: &[u8]) -> Result<Vec<Shard>, BadSlots> {
    let wrong = |why: &str| BadSlots(why.to_owned());
    let mut at = 0;
    let reply = value(reply, &mut at, 0).ok_or_else(|| wrong("its slots cannot be read"))?;
    let Value::List(entries) = reply else { return Err(wrong("its slots cannot be read")) };
    let mut shards: Vec<Shard> = Vec::new();
    let read = entries.iter().map(|entry| of_shards(entry).or_else(|| of_slots(entry)));
    let read: Option<Vec<_>> = read.collect();
    for found in read.ok_or_else(|| wrong("its slots cannot be read"))?.into_iter().flatten() {
        match shards.iter_mut().find(|known| (&known.host, known.port) == (&found.host, found.port)) {
            Some(known) => {
                known.slots.extend(found.slots);
                known.is_replica &= found.is_replica;
            }
            None => shards.push(found),
        }
    }
    let mut is_taken = vec![false; usize::from(SLOTS)];
    for &(first, last) in shards.iter().flat_map(|shard| &shard.slots) {
        if first > last || last >= SLOTS {
            return Err(BadSlots(format!("it says slots {first} to {last}, which there are not")));
        }
        for slot in first..=last {
            if std::mem::replace(&mut is_taken[usize::from(slot)], true) {
                return Err(BadSlots(format!("it says that two nodes have slot {slot}")));
            }
        }
    }
    if shards.iter().all(|shard| shard.slots.is_empty()) {
        return Err(wrong("it says that no node has any slot"));
    }
    Ok(shards)
}

/// A value of a reply, as far as slots are told by it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Value {
    Text(Vec<u8>),
    Number(i64),
    /// A list; a map as its keys and values in turn.
    List(Vec<Value>),
    Null,
}

impl Value {
    fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => std::str::from_utf8(text).ok(),
            Self::Number(_) | Self::List(_) | Self::Null => None,
        }
    }

    fn number(&self) -> Option<i64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Text(_) | Self::List(_) | Self::Null => None,
        }
    }

    fn list(&self) -> Option<&[Self]> {
        match self {
            Self::List(values) => Some(values),
            Self::Text(_) | Self::Number(_) | Self::Null => None,
        }
    }

    /// The value behind a key.
    fn get(&self, key: &str) -> Option<&Self> {
        self.list()?.chunks_exact(2).find(|pair| pair[0].text() == Some(key)).map(|pair| &pair[1])
    }

    /// A host; empty if it is not known.
    fn host(&self) -> Option<String> {
        match self {
            Self::Null => Some(String::new()),
            Self::Text(_) => {
                let host = self.text()?;
                Some(if host == "?" { String::new() } else { host.to_owned() })
            }
            Self::Number(_) | Self::List(_) => None,
        }
    }

    fn port(&self) -> Option<u16> {
        u16::try_from(self.number()?).ok().filter(|&port| port > 0)
    }

    fn slot(&self) -> Option<u16> {
        // One beyond the last is told from one that is there.
        u16::try_from(self.number()?).ok()
    }
}

/// The nodes of an entry of `CLUSTER SHARDS`: its primary first, and replicas that have not failed; none of one with neither slots nor a
/// primary. `None` if it is no such entry.
fn of_shards(entry: &Value) -> Option<Vec<Shard>> {
    let bounds = entry.get("slots")?.list()?;
    let slots: Vec<_> = bounds
        .chunks(2)
        .map(|pair| Some((pair.first()?.slot()?, pair.get(1)?.slot()?)))
        .collect::<Option<_>>()?;
    let nodes = entry.get("nodes")?.list()?;
    let is_primary = |node: &&Value| node.get("role").and_then(Value::text) == Some("master");
    let is_online = |node: &&Value| node.get("health").and_then(Value::text) == Some("online");
    let mut primaries = nodes.iter().filter(is_primary);
    let primary = primaries.clone().find(is_online).or_else(|| primaries.next());
    if slots.is_empty() && primary.is_none() {
        return Some(Vec::new());
    }
    let at = |node: &Value, slots, is_replica| {
        let host = node.get("endpoint").or_else(|| node.get("ip"))?.host()?;
        let port = node.get("port").or_else(|| node.get("tls-port"))?.port()?;
        Some(Shard { host, port, slots, is_replica })
    };
    // One that is loading its primary's data has it soon.
    let is_lost = |node: &Value| node.get("health").and_then(Value::text) == Some("fail");
    let replicas = nodes.iter().filter(|node| !is_primary(node) && !is_lost(node));
    let replicas = replicas.filter_map(|node| at(node, Vec::new(), true));
    Some(std::iter::once(at(primary?, slots, false)?).chain(replicas).collect())
}

/// The nodes of an entry of `CLUSTER SLOTS`: its primary first. `None` if it is no such entry.
fn of_slots(entry: &Value) -> Option<Vec<Shard>> {
    let [first, last, primary, replicas @ ..] = entry.list()? else { return None };
    let slots = vec![(first.slot()?, last.slot()?)];
    let at = |node: &Value, slots, is_replica| {
        let [host, port, ..] = node.list()? else { return None };
        Some(Shard { host: host.host()?, port: port.port()?, slots, is_replica })
    };
    let replicas = replicas.iter().filter_map(|node| at(node, Vec::new(), true));
    Some(std::iter::once(at(primary, slots, false)?).chain(replicas).collect())
}

/// The value that begins at `at`, which is moved behind it.
fn value(input: &[u8], at: &mut usize, depth: u32) -> Option<Value> {
    let kind = *input.get(*at)?;
    let line_end = *at + memchr::memchr(b'\n', &input[*at..])? + 1;
    let line = input[*at + 1..line_end].strip_suffix(b"\r\n")?;
    let Length::Is(number, start) = length::read(input, *at + 1) else {
        *at = line_end;
        return match kind {
            b'+' | b',' | b'#' => Some(Value::Text(line.to_vec())),
            b'_' => Some(Value::Null),
            _ => None,
        };
    };
    *at = start;
    match kind {
        b':' => Some(Value::Number(number)),
        b'+' => Some(Value::Text(line.to_vec())),
        b'$' | b'*' if number < 0 => Some(Value::Null),
        b'$' | b'=' => {
            let end = start.checked_add(usize::try_from(number).ok()?)?;
            let text = input.get(start..end)?.to_vec();
            *at = end + 2;
            (input.get(end..end + 2)? == b"\r\n").then_some(Value::Text(text))
        }
        b'*' | b'~' | b'%' if depth < DEEPEST => {
            let count = usize::try_from(number).ok()? * if kind == b'%' { 2 } else { 1 };
            (0..count).map(|_| value(input, at, depth + 1)).collect::<Option<_>>().map(Value::List)
        }
        _ => None,
    }
}

/// Shards, nodes, a node, its metadata.
const DEEPEST: u32 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn text(of: &str) -> String {
        format!("${}\r\n{of}\r\n", of.len())
    }

    /// An entry of `CLUSTER SHARDS` with these nodes, each its port, role and health.
    fn shard(map: char, slots: &[u16], nodes: &[(u16, &str, &str)]) -> String {
        let by = if map == '%' { 1 } else { 2 };
        let mut said = format!("{map}{}\r\n{}*{}\r\n", 2 * by, text("slots"), slots.len());
        slots.iter().for_each(|slot| said.push_str(&format!(":{slot}\r\n")));
        said.push_str(&format!("{}*{}\r\n", text("nodes"), nodes.len()));
        for (port, role, health) in nodes {
            let words =
                [("id", "x"), ("ip", "198.18.0.1"), ("endpoint", "node"), ("role", role), ("health", health)];
            said.push_str(&format!("{map}{}\r\n", 6 * by));
            words.iter().for_each(|(key, of)| said.push_str(&(text(key) + &text(of))));
            said.push_str(&format!("{}:{port}\r\n", text("port")));
        }
        said
    }

    #[test]
    fn shards_are_the_nodes_that_are_online_in_both_protocols() {
        for map in ['*', '%'] {
            let reply = format!(
                "*4\r\n{}{}{}{}",
                shard(
                    map,
                    &[0, 5, 7, 16_383],
                    &[
                        (1, "replica", "loading"),
                        (2, "master", "fail"),
                        (3, "master", "online"),
                        (7, "replica", "fail")
                    ]
                ),
                shard(map, &[], &[(4, "master", "online")]),
                shard(map, &[], &[(6, "slave", "online")]),
                shard(map, &[6, 6], &[(5, "master", "fail")]),
            );
            let shard = |port, slots: &[_]| Shard {
                host: "node".to_owned(),
                port,
                slots: slots.to_vec(),
                is_replica: slots.is_empty() && port == 1,
            };
            assert_eq!(
                shards(reply.as_bytes()),
                Ok(vec![shard(3, &[(0, 5), (7, 16_383)]), shard(1, &[]), shard(4, &[]), shard(5, &[(6, 6)])])
            );
        }
    }

    #[test]
    fn slots_of_older_nodes_are_read_and_joined() {
        let node = |host: &str, port: u16| format!("*3\r\n{host}:{port}\r\n{}", text("id"));
        let range = |first: u16, last: u16, node: String| {
            format!("*4\r\n:{first}\r\n:{last}\r\n{node}{}", self::tests::text_node())
        };
        let host = text("198.18.0.1");
        let reply = format!(
            "*3\r\n{}{}{}",
            range(0, 1, node(&host, 1)),
            range(2, 3, node("$-1\r\n", 2)),
            range(4, 4, node(&host, 1))
        );
        let shard = |host: &str, port, slots: &[_]| Shard {
            host: host.to_owned(),
            port,
            slots: slots.to_vec(),
            is_replica: port == 9,
        };
        let first = shard("198.18.0.1", 1, &[(0, 1), (4, 4)]);
        let replica = shard("198.18.0.9", 9, &[]);
        assert_eq!(shards(reply.as_bytes()), Ok(vec![first, replica, shard("", 2, &[(2, 3)])]));
    }

    fn text_node() -> String {
        format!("*3\r\n{}:9\r\n{}", text("198.18.0.9"), text("replica"))
    }

    #[test]
    fn slots_that_cannot_be_are_refused_by_name() {
        let of = |ranges: &[(u16, u16, u16)]| {
            let entries: String = ranges
                .iter()
                .map(|(first, last, port)| {
                    format!("*3\r\n:{first}\r\n:{last}\r\n*3\r\n{}:{port}\r\n{}", text("a"), text("id"))
                })
                .collect();
            shards(format!("*{}\r\n{entries}", ranges.len()).as_bytes()).map_err(|error| error.0)
        };
        let refused = |why: &str| Err(why.to_owned());
        assert_eq!(of(&[(0, 9, 1), (9, 10, 2)]), refused("it says that two nodes have slot 9"));
        assert_eq!(of(&[(0, 16_384, 1)]), refused("it says slots 0 to 16384, which there are not"));
        assert_eq!(of(&[(5, 4, 1)]), refused("it says slots 5 to 4, which there are not"));
        assert_eq!(of(&[]), refused("it says that no node has any slot"));
        assert_eq!(of(&[(0, 1, 0)]), refused("its slots cannot be read"));
        for cut in
            ["", "*1\r\n", "*1\r\n*3\r\n:0\r\n", "$3\r\nabc\r\n", "*1\r\n*9999999999\r\n", "-ERR no\r\n"]
        {
            assert!(shards(cut.as_bytes()).is_err(), "{cut}");
        }
    }

    #[test]
    fn redirections_are_read_whole_or_not_at_all() {
        let of = |asks, slot, host, port| Some(Redirection { asks, slot, host, port });
        for (error, redirection) in [
            ("-MOVED 3999 198.18.0.1:6381\r\n", of(false, 3999, "198.18.0.1", 6381)),
            ("-ASK 0 2001:db8::1:6379\r\n", of(true, 0, "2001:db8::1", 6379)),
            ("-MOVED 16383 :6379\r\n", of(false, 16_383, "", 6379)),
            ("-MOVED 1 ?:6379\r\n", of(false, 1, "", 6379)),
            ("-MOVED 16384 a:6379\r\n", None),
            ("-MOVED 1 a:0\r\n", None),
            ("-MOVED 1 a\r\n", None),
            ("-MOVED 1 a:6379", None),
            ("-ERR MOVED 1 a:1\r\n", None),
        ] {
            assert_eq!(Redirection::read(error.as_bytes()), redirection, "{error}");
        }
    }
}
