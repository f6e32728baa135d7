//! Requests before a Redis Cluster: the nodes that can answer each, and the one node that gate shows to clients that know clusters.

use std::io::Write as _;
use std::net::SocketAddr;

use crate::dispatcher::wire::{ClusterView, Placed};
use crate::policy::placement;
use crate::protocol::resp::cluster::SLOTS;
use crate::protocol::resp::{Command, Request, State};

/// The nodes that can answer a request.
pub(super) fn placed(request: &Request, bytes: &[u8]) -> Placed {
    if request.meta.keys > 0 {
        return Placed::AtKeys(super::split::splits(request));
    }
    if let Some(join) = super::split::asks_all(request, bytes) {
        return Placed::Everywhere(join);
    }
    // Without a cursor it is none, as any node says.
    if request.command == SCAN && !request.streamed {
        return if request.args > 1 { Placed::InTurn } else { Placed::Anywhere };
    }
    match request.state {
        // Each is about the keys or the clients of one node, and would be taken for all of them.
        State::Monitor | State::Replication | State::Tracking | State::Pause => Placed::Nowhere,
        State::Shared
        | State::Select
        | State::Hello
        | State::Auth
        | State::Name
        | State::Transaction
        | State::Blocking
        | State::Pubsub
        | State::Reply
        | State::Cluster
        | State::Reset
        | State::Quit
        | State::Own => match NOWHERE.contains(&request.command) {
            true => Placed::Nowhere,
            false => Placed::Anywhere,
        },
    }
}

/// The slot that a request is about which names no key.
pub(super) fn slot(request: &Request, bytes: &[u8]) -> Option<usize> {
    let mut args = request.args(bytes).skip(1);
    match request.command {
        // Modules' commands have their key first, as nearly all have; their node says so if not.
        SSUBSCRIBE | SPUBLISH | Command::UNKNOWN => args.next().map(placement::slot),
        CLUSTER => {
            let is_counted = |word: &&[u8]| {
                word.eq_ignore_ascii_case(b"COUNTKEYSINSLOT") || word.eq_ignore_ascii_case(b"GETKEYSINSLOT")
            };
            args.next().filter(is_counted)?;
            let slot = std::str::from_utf8(args.next()?).ok()?.parse().ok()?;
            (slot < usize::from(SLOTS)).then_some(slot)
        }
        _ => None,
    }
}

/// True if gate answers a request as the one node that it shows.
pub(super) fn presents(request: &Request, bytes: &[u8]) -> bool {
    match request.command {
        CLUSTER => slot(request, bytes).is_none(),
        ASKING | READONLY | READWRITE => true,
        _ => false,
    }
}

/// True if it ends a transaction or a watch, which there may be none of.
pub(super) fn ends_nothing(request: &Request) -> bool {
    request.args == 1 && [DISCARD, EXEC, UNWATCH].contains(&request.command)
}

/// Appends gate's answer to such a request.
pub(super) fn present(request: &Request, bytes: &[u8], view: &ClusterView<'_>, out: &mut Vec<u8>) {
    let mut args = request.args(bytes).skip(1);
    let word = args.next().filter(|_| request.command == CLUSTER).map(<[u8]>::to_ascii_uppercase);
    let rest: Vec<&[u8]> = args.collect();
    let id = id(view.service);
    match (word.as_deref(), &rest[..]) {
        (None, _) if request.command == EXEC => out.extend_from_slice(b"-ERR EXEC without MULTI\r\n"),
        (None, _) if request.command == DISCARD => out.extend_from_slice(b"-ERR DISCARD without MULTI\r\n"),
        // `ASKING` and its like change nothing: gate knows where a key is.
        (None, _) if request.command != CLUSTER => out.extend_from_slice(b"+OK\r\n"),
        (Some(b"SLOTS"), []) => {
            out.extend_from_slice(b"*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n");
            bulk(out, &view.address.ip().to_string());
            let _ = write!(out, ":{}\r\n", view.address.port());
            bulk(out, &id);
        }
        (Some(b"SHARDS"), []) => shards(view, &id, out),
        (Some(b"NODES"), []) => text(out, view, &nodes(view.address, &id)),
        (Some(b"INFO"), []) => text(out, view, &info(view)),
        (Some(b"MYID"), []) => bulk(out, &id),
        (Some(b"KEYSLOT"), [key]) => {
            let _ = write!(out, ":{}\r\n", placement::slot(key));
        }
        (Some(b"COUNTKEYSINSLOT"), [_]) | (Some(b"GETKEYSINSLOT"), [_, _]) => {
            out.extend_from_slice(b"-ERR Invalid slot\r\n");
        }
        (Some(b"LINKS"), []) => out.extend_from_slice(b"*0\r\n"),
        (Some(b"REPLICAS" | b"SLAVES"), [node]) if *node == id.as_bytes() => out.extend_from_slice(b"*0\r\n"),
        (Some(b"REPLICAS" | b"SLAVES"), [node]) => {
            let node = String::from_utf8_lossy(node).replace(['\r', '\n'], " ");
            let _ = write!(out, "-ERR Unknown node {node}\r\n");
        }
        (None, _) => out.extend_from_slice(b"-ERR wrong number of arguments for 'cluster' command\r\n"),
        // Redis' words for what it does not know: the nodes are not the clients' to change.
        (Some(_), _) => {
            let named = request.args(bytes).nth(1).unwrap_or_default();
            let named = String::from_utf8_lossy(&named[..named.len().min(128)]).replace(['\r', '\n'], " ");
            let _ = write!(
                out,
                "-ERR unknown subcommand or wrong number of arguments for '{named}'. Try CLUSTER HELP.\r\n"
            );
        }
    }
}

fn shards(view: &ClusterView<'_>, id: &str, out: &mut Vec<u8>) {
    let map = |out: &mut Vec<u8>, pairs: u32| {
        let _ = match view.is_resp3 {
            true => write!(out, "%{pairs}\r\n"),
            false => write!(out, "*{}\r\n", 2 * pairs),
        };
    };
    out.extend_from_slice(b"*1\r\n");
    map(out, 2);
    bulk(out, "slots");
    out.extend_from_slice(b"*2\r\n:0\r\n:16383\r\n");
    bulk(out, "nodes");
    out.extend_from_slice(b"*1\r\n");
    map(out, 7);
    let ip = view.address.ip().to_string();
    for (key, value) in [("id", id), ("ip", &ip), ("endpoint", &ip), ("role", "master"), ("health", "online")]
    {
        bulk(out, key);
        bulk(out, value);
    }
    for (key, number) in [("port", view.address.port()), ("replication-offset", 0)] {
        bulk(out, key);
        let _ = write!(out, ":{number}\r\n");
    }
}

/// The line of the one node, as `CLUSTER NODES` has it.
fn nodes(address: SocketAddr, id: &str) -> String {
    let ip = address.ip();
    let port = address.port();
    // A bus port that nobody listens at has number 0.
    format!("{id} {ip}:{port}@0 myself,master - 0 0 1 connected 0-16383\n")
}

fn info(view: &ClusterView<'_>) -> String {
    let state = if view.served == usize::from(SLOTS) { "ok" } else { "fail" };
    let served = view.served;
    format!(
        "cluster_state:{state}\r\ncluster_slots_assigned:{served}\r\ncluster_slots_ok:{served}\r\n\
         cluster_slots_pfail:0\r\ncluster_slots_fail:0\r\ncluster_known_nodes:1\r\ncluster_size:1\r\n\
         cluster_current_epoch:1\r\ncluster_my_epoch:1\r\n"
    )
}

/// The number of the node that gate shows, the same for all gates of a service: 40 digits to base 16.
fn id(service: &str) -> String {
    let mut id = String::new();
    for part in 0..5_u32 {
        // FNV-1a, begun differently for each part.
        let begun = 0x811c_9dc5_u32.wrapping_add(part.wrapping_mul(0x9e37_79b9));
        let hash =
            service.bytes().fold(begun, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        id.push_str(&format!("{hash:08x}"));
    }
    id
}

fn bulk(out: &mut Vec<u8>, text: &str) {
    let _ = write!(out, "${}\r\n{text}\r\n", text.len());
}

fn text(out: &mut Vec<u8>, view: &ClusterView<'_>, text: &str) {
    if view.is_resp3 {
        let _ = write!(out, "={}\r\ntxt:{text}\r\n", text.len() + 4);
    } else {
        bulk(out, text);
    }
}

const ASKING: Command = Command::named("asking");
const DISCARD: Command = Command::named("discard");
const EXEC: Command = Command::named("exec");
const UNWATCH: Command = Command::named("unwatch");
const CLUSTER: Command = Command::named("cluster");
const READONLY: Command = Command::named("readonly");
const READWRITE: Command = Command::named("readwrite");
const SCAN: Command = Command::named("scan");
const SPUBLISH: Command = Command::named("spublish");
const SSUBSCRIBE: Command = Command::named("ssubscribe");

/// Commands that are about the keys, the scripts or the state of all nodes: what one of them answers would be taken for all. Those that
/// a node of a cluster refuses by itself are not among them.
const NOWHERE: [Command; 22] = [
    Command::named("acl|deluser"),
    Command::named("acl|load"),
    Command::named("acl|setuser"),
    Command::named("dbsize"),
    Command::named("debug"),
    Command::named("flushall"),
    Command::named("flushdb"),
    Command::named("function"),
    Command::named("function|kill"),
    Command::named("keys"),
    Command::named("migrate"),
    Command::named("module"),
    Command::named("randomkey"),
    Command::named("scan"),
    Command::named("script"),
    Command::named("script|debug"),
    Command::named("script|kill"),
    Command::named("shutdown"),
    Command::named("wait"),
    Command::named("waitaof"),
    Command::named("client|kill"),
    Command::named("client|unblock"),
];

#[cfg(test)]
mod tests {
    use super::super::tests::request;
    use super::*;
    use crate::dispatcher::wire::parts::{Join, Splits};

    fn presented(line: &str, is_resp3: bool) -> Option<String> {
        let (request, bytes) = request(line);
        let address = "127.0.0.1:6379".parse().unwrap();
        let view = ClusterView { service: "s", address, is_resp3, served: 16_384 };
        let mut out = Vec::new();
        presents(&request, &bytes).then(|| present(&request, &bytes, &view, &mut out))?;
        Some(String::from_utf8(out).unwrap())
    }

    #[test]
    fn a_request_goes_where_its_slot_is_or_nowhere() {
        let nowhere =
            ["client tracking on", "monitor", "wait 1 0", "function kill", "script kill", "function"];
        for line in nowhere {
            let (request, bytes) = request(line);
            assert_eq!(placed(&request, &bytes), Placed::Nowhere, "{line}");
        }
        for (line, about) in [
            ("ping", None),
            ("swapdb 0 1", None),
            ("scan", None),
            ("function dump", None),
            ("function list", None),
            ("publish c m", None),
            ("subscribe c", None),
            ("spublish foo m", Some(12_182)),
            ("ssubscribe foo", Some(12_182)),
            ("json.get foo $", Some(12_182)),
            ("cluster countkeysinslot 7", Some(7)),
            ("cluster countkeysinslot 16384", None),
        ] {
            let (request, bytes) = request(line);
            assert_eq!(
                (placed(&request, &bytes), slot(&request, &bytes)),
                (Placed::Anywhere, about),
                "{line}"
            );
        }
        for (line, at) in [
            ("mget a b", Placed::AtKeys(Splits::Always(Join::Values))),
            ("watch a", Placed::AtKeys(Splits::Never)),
            ("dbsize", Placed::Everywhere(Join::Total)),
            ("flushall async", Placed::Everywhere(Join::Same)),
            ("flushdb", Placed::Everywhere(Join::Same)),
            ("script load x", Placed::Everywhere(Join::Same)),
            ("SCRIPT FLUSH", Placed::Everywhere(Join::Same)),
            ("keys *", Placed::Everywhere(Join::Lists)),
            ("RANDOMKEY", Placed::Everywhere(Join::Any)),
            ("scan 0", Placed::InTurn),
            ("SCAN x MATCH y", Placed::InTurn),
            ("script exists x", Placed::Everywhere(Join::Least)),
            ("function load x", Placed::Everywhere(Join::Same)),
            ("FUNCTION DELETE x", Placed::Everywhere(Join::Same)),
            ("function flush", Placed::Everywhere(Join::Same)),
            ("bgsave", Placed::Everywhere(Join::Same)),
            ("function restore x", Placed::Everywhere(Join::Same)),
            ("script", Placed::Nowhere),
        ] {
            let (request, bytes) = request(line);
            assert_eq!(placed(&request, &bytes), at, "{line}");
        }
    }

    #[test]
    fn clients_that_know_clusters_see_one_node_with_all_slots() {
        for is_resp3 in [false, true] {
            let shards = presented("cluster shards", is_resp3).unwrap();
            let read = crate::protocol::resp::cluster::shards(shards.as_bytes()).unwrap();
            let slots = presented("cluster slots", is_resp3).unwrap();
            assert_eq!(read, crate::protocol::resp::cluster::shards(slots.as_bytes()).unwrap());
            assert_eq!((read[0].port, &read[0].slots[..], read.len()), (6379, &[(0, 16_383)][..], 1));
        }
        let id = presented("cluster myid", false).unwrap();
        let nodes = presented("CLUSTER NODES", false).unwrap();
        assert!(nodes.contains(&id[5..45]) && nodes.contains("127.0.0.1:6379@0 myself,master"), "{nodes}");
        assert_eq!(presented("cluster keyslot foo", false).unwrap(), ":12182\r\n");
        assert_eq!(presented("readonly", false).unwrap(), "+OK\r\n");
        assert!(ends_nothing(&request("exec").0) && !ends_nothing(&request("exec x").0));
        assert!(presented("exec", false).is_none(), "it may end a transaction");
        assert!(presented("cluster meet 127.0.0.1 1", false).unwrap().starts_with("-ERR unknown subcommand"));
        assert_eq!(presented("cluster countkeysinslot x", false).unwrap(), "-ERR Invalid slot\r\n");
        assert_eq!(presented("cluster countkeysinslot 1", false), None);
        assert!(presented("cluster info", true).unwrap().starts_with("="));
    }
}
