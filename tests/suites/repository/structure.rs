//! gate-userspace imports downwards: no two folders of a crate import each other, nor two files of a folder. In the dispatcher, rooms
//! know no pipeline, and the files have an order in which each imports later ones alone.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::source::{code, sources, workspace};

/// The folder that has the dispatcher.
const ROOT: &str = "gate-userspace/src";

/// The folders whose imports are read, each of a crate.
const ROOTS: [&str; 5] = [
    ROOT,
    "gate-userspace/config/src",
    "gate-userspace/fleet/src",
    "gate-userspace/lab/src",
    "gate-userspace/limits/src",
];

/// The dispatcher's files. Each imports those below it.
const ORDER: [&str; 214] = [
    "worker.rs",
    "intercepted.rs",
    "pipeline/mod.rs",
    "pipeline/accepted.rs",
    "pipeline/client_task.rs",
    "pipeline/login.rs",
    "pipeline/housekeeping.rs",
    "pipeline/complete.rs",
    "pipeline/flights.rs",
    "pipeline/decode.rs",
    "pipeline/dedicated.rs",
    "pipeline/dedicated_requests/admission.rs",
    "pipeline/dedicated_requests/login.rs",
    "pipeline/dedicated_requests/memory.rs",
    "pipeline/dedicated_requests/replies.rs",
    "pipeline/dedicated_requests/input.rs",
    "pipeline/dedicated_requests.rs",
    "pipeline/dedicated_input.rs",
    "pipeline/explain.rs",
    "pipeline/request.rs",
    "pipeline/charging.rs",
    "pipeline/key_sizes.rs",
    "pipeline/joined.rs",
    "pipeline/nodes.rs",
    "pipeline/presented.rs",
    "pipeline/redirections.rs",
    "pipeline/dispatch.rs",
    "pipeline/streaming.rs",
    "pipeline/store_access.rs",
    "pipeline/datagrams.rs",
    "pipeline/respond.rs",
    "pipeline/exchange.rs",
    "pipeline/redirect_guard.rs",
    "pipeline/pending_logins.rs",
    "pipeline/client_socket.rs",
    "pipeline/registry.rs",
    "pipeline/session.rs",
    "pipeline/service.rs",
    "pipeline/streamed_request.rs",
    "pipeline/senders.rs",
    "pipeline/queue_item.rs",
    "pipeline/redirected_request.rs",
    "http/upkeep.rs",
    "http/explain.rs",
    "http/front.rs",
    "http/blobs.rs",
    "http/exchange.rs",
    "http/websocket/mod.rs",
    "http/websocket/tunnel.rs",
    "http/websocket/payment.rs",
    "http/websocket/frames.rs",
    "http/websocket/key.rs",
    "http/pace.rs",
    "http/processed/mod.rs",
    "http/processed/making.rs",
    "http/processed/original.rs",
    "http/processed/processor.rs",
    "http/processed/download.rs",
    "http/processed/work.rs",
    "http/processed/upstream_body.rs",
    "http/cached/sharing.rs",
    "http/cached/mod.rs",
    "http/cached/fetch.rs",
    "http/cached/serve.rs",
    "http/cached/range.rs",
    "http/cached/asked.rs",
    "http/cached/codings.rs",
    "http/forward.rs",
    "http/admitted.rs",
    "http/identity.rs",
    "http/answer.rs",
    "http/reply_body.rs",
    "http/request_body.rs",
    "http/client_body.rs",
    "http/under_way.rs",
    "http/access_line.rs",
    "http/service.rs",
    "http/call.rs",
    "http/websocket_state.rs",
    "http/upstreams.rs",
    "http/store.rs",
    "http/sender.rs",
    "http/meter.rs",
    "http/connection.rs",
    "http/unread.rs",
    "http/claims.rs",
    "http/head.rs",
    "http/mod.rs",
    "admission/explain.rs",
    "admission/affordable.rs",
    "admission/reply_costs.rs",
    "admission/shares.rs",
    "admission/limit_charges.rs",
    "admission/queueing.rs",
    "admission/mod.rs",
    "admission/answered.rs",
    "admission/demand.rs",
    "admission/read_prices.rs",
    "stores/mod.rs",
    "stores/pool/start.rs",
    "stores/pool.rs",
    "stores/connection/silence.rs",
    "stores/connection.rs",
    "stores/outstanding.rs",
    "stores/idle_connections.rs",
    "stores/dedicated.rs",
    "stores/events.rs",
    "stores/pool_identity.rs",
    "stores/socket.rs",
    "stores/error.rs",
    "stores/health.rs",
    "draining.rs",
    "mod.rs",
    "accept.rs",
    "hot_restart.rs",
    "shared_service.rs",
    "learned_reads.rs",
    "size_question.rs",
    "clients/refused_behind.rs",
    "clients/mod.rs",
    "clients/timeouts.rs",
    "clients/client.rs",
    "clients/conversation.rs",
    "clients/proxy_header.rs",
    "clients/memory_budget.rs",
    "clients/slots.rs",
    "clients/sender.rs",
    "clients/stream.rs",
    "clients/handshake.rs",
    "clients/udp.rs",
    "clients/replies.rs",
    "clients/refusal_pace.rs",
    "clients/task_budget.rs",
    "hot_cache/dedicated_writes.rs",
    "hot_cache/anew.rs",
    "hot_cache/mod.rs",
    "hot_cache/followers.rs",
    "hot_cache/key_order.rs",
    "hot_cache/hot_set.rs",
    "hot_cache/cache_role.rs",
    "hot_cache/cache.rs",
    "hot_cache/flights.rs",
    "hot_cache/versions.rs",
    "questions.rs",
    "limit_refusals.rs",
    "member_counts.rs",
    "settings.rs",
    "in_force.rs",
    "query_types.rs",
    "local_addrs.rs",
    "tls/mod.rs",
    "tls/socket.rs",
    "tls/turns.rs",
    "split.rs",
    "joined.rs",
    "request.rs",
    "store_place.rs",
    "cluster.rs",
    "slot_map.rs",
    "listen.rs",
    "own_connections.rs",
    "resolver.rs",
    "metrics/mod.rs",
    "metrics/nodes.rs",
    "metrics/cost_samples.rs",
    "metrics/store_state.rs",
    "metrics/verdicts.rs",
    "metrics/read_prices.rs",
    "metrics/event.rs",
    "metrics/refusal_latency.rs",
    "metrics/by_type.rs",
    "metrics/latency.rs",
    "wire/memcached.rs",
    "wire/memcached/multiget.rs",
    "wire/resp/session.rs",
    "wire/resp/key_sizes.rs",
    "wire/resp.rs",
    "wire/resp/cluster.rs",
    "wire/resp/split.rs",
    "wire/resp/scan.rs",
    "wire/resp/occupancy.rs",
    "wire/mod.rs",
    "wire/key_sizes.rs",
    "wire/parts.rs",
    "scan.rs",
    "node_id.rs",
    "wire/buffer.rs",
    "store_silence.rs",
    "tenants/retired.rs",
    "tenants/mod.rs",
    "tenants/usage.rs",
    "tenants/by_name.rs",
    "tenants/membership.rs",
    "tenants/parts.rs",
    "tenants/request_limits.rs",
    "tenants/ledger/counting.rs",
    "tenants/ledger/debts.rs",
    "tenants/ledger/peek.rs",
    "tenants/ledger/quotas.rs",
    "tenants/ledger.rs",
    "tenants/members/mod.rs",
    "tenants/members/shard.rs",
    "tenants/members/member.rs",
    "tenants/bucket_word.rs",
    "queue/mod.rs",
    "queue/concurrency.rs",
    "queue/tier_queue.rs",
    "queue/permits.rs",
    "queue/policy.rs",
    "queue/shares.rs",
    "queue/delay.rs",
    "identity/scopes.rs",
    "identity/mod.rs",
    "identity/rights.rs",
];

type Imports = BTreeSet<(String, String)>;

#[test]
fn rooms_import_no_pipeline() {
    let of_rooms = |(from, to): &(String, String)| {
        from.contains('/') && child("", from) != "pipeline" && child("", to) == "pipeline"
    };
    let found: Vec<_> = of_dispatcher().into_iter().filter(of_rooms).collect();
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn no_two_folders_or_files_import_each_other() {
    ROOTS.iter().for_each(|root| ensure_no_circle(root, &imports(root)));
}

fn ensure_no_circle(root: &str, imports: &Imports) {
    let folders = imports.iter().flat_map(|(from, to)| [from, to]).flat_map(|file| {
        let parents = file.match_indices('/').map(|(end, _)| &file[..end]);
        parents.chain([""])
    });
    for folder in folders.collect::<BTreeSet<_>>() {
        let circle = circle(folder, imports);
        assert!(circle.is_empty(), "in {root}/{folder} these import each other: {circle:#?}");
    }
}

#[test]
fn no_file_imports_an_earlier_one() {
    let position = |file: &str| {
        ORDER.iter().position(|&other| other == file).unwrap_or_else(|| panic!("{file}: add it to ORDER"))
    };
    let back: Vec<_> =
        of_dispatcher().into_iter().filter(|(from, to)| position(from) > position(to)).collect();
    assert!(back.is_empty(), "these import what is above them in ORDER: {back:#?}");
}

#[test]
fn the_dispatcher_connects_in_one_place() {
    // Another would not give its connections the source by which the kernel tells them from clients'.
    let connects: Vec<_> = sources(&workspace().join(ROOT).join("dispatcher"))
        .into_iter()
        .filter(|file| {
            let text = fs::read_to_string(file).unwrap();
            let own = text.find("#[cfg(test)]").map_or(&text[..], |end| &text[..end]);
            code(own).contains("TcpStream::connect(") || code(own).contains("TcpSocket::")
        })
        .filter_map(|file| Some(file.file_name()?.to_str()?.to_owned()))
        .collect();
    assert_eq!(connects, ["own_connections.rs"]);
}

#[test]
fn circles_are_found_at_every_level() {
    let imports = |pairs: &[(&str, &str)]| {
        pairs.iter().map(|&(from, to)| (from.to_owned(), to.to_owned())).collect::<Imports>()
    };
    let files = imports(&[("a/b.rs", "a/c.rs"), ("a/c.rs", "a/b.rs"), ("a/b.rs", "d.rs")]);
    assert_eq!(circle("", &files).len(), 0);
    assert_eq!(circle("a", &files).into_keys().collect::<Vec<_>>(), ["b.rs", "c.rs"]);
    let folders =
        imports(&[("a/b/c.rs", "d/e.rs"), ("d/f.rs", "g.rs"), ("g.rs", "a/h.rs"), ("i.rs", "g.rs")]);
    assert_eq!(circle("", &folders).into_keys().collect::<Vec<_>>(), ["a", "d", "g.rs", "i.rs"]);
}

#[test]
fn imports_are_read_from_uses_and_paths() {
    let text = "use super::{b, c::{D, e as f}};\nfn x() { crate::dispatcher::g::h(); }\n\
                // use super::no;\n#[cfg(test)]\nmod tests { use super::no; }";
    let found: Vec<_> = paths(text).collect();
    assert_eq!(found, ["super::b", "super::c::D", "super::c::e", "crate::dispatcher::g::h"]);
}

/// The files and subfolders directly in `folder` that are in a circle, or between two, with their imports there.
fn circle<'a>(folder: &str, imports: &'a Imports) -> BTreeMap<&'a str, BTreeSet<&'a str>> {
    let mut below: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for (from, to) in imports {
        if is_below(folder, from) && is_below(folder, to) && child(folder, from) != child(folder, to) {
            below.entry(child(folder, from)).or_default().insert(child(folder, to));
        }
    }
    // Remove what imports none of those left, until nothing can be removed.
    loop {
        let is_leaf = |to: &BTreeSet<&str>| to.iter().all(|to| !below.contains_key(to));
        let Some((&leaf, _)) = below.iter().find(|(_, to)| is_leaf(to)) else { return below };
        below.remove(leaf);
    }
}

fn is_below(folder: &str, file: &str) -> bool {
    folder.is_empty() || file.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
}

/// The entry of `folder` that holds `file`: a subfolder, or the file itself.
fn child<'a>(folder: &str, file: &'a str) -> &'a str {
    let rest = if folder.is_empty() { file } else { &file[folder.len() + 1..] };
    rest.split_once('/').map_or(rest, |(subfolder, _)| subfolder)
}

/// The imports between the dispatcher's files, named below its folder.
fn of_dispatcher() -> Imports {
    let below = |file: &str| file.strip_prefix("dispatcher/").map(str::to_owned);
    let found: Imports =
        imports(ROOT).iter().filter_map(|(from, to)| Some((below(from)?, below(to)?))).collect();
    assert!(found.len() > 100, "too few imports: has the dispatcher moved?");
    found
}

/// Each import of another file below a folder, as importing and imported file.
fn imports(root: &str) -> Imports {
    let mut files = BTreeMap::new();
    collect(&workspace().join(root), "", &mut files);
    let modules: BTreeMap<Vec<String>, &String> = files.keys().map(|file| (module(file), file)).collect();
    let mut found = Imports::new();
    for (file, text) in &files {
        let from = module(file);
        for path in paths(text) {
            let Some(path) = resolve(&from, &path) else { continue };
            // The longest beginning that is a file's module; the rest is an item in it. The crate's own items are in `lib.rs`.
            let to = (0..=path.len()).rev().find_map(|len| modules.get(&path[..len]));
            if let Some(&to) = to.filter(|&&to| to != file) {
                found.insert((file.clone(), to.clone()));
            }
        }
    }
    found
}

/// Reads the sources under `folder`, without tests.
fn collect(folder: &Path, prefix: &str, files: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        let file = format!("{prefix}{name}");
        if entry.file_type().unwrap().is_dir() {
            if name != "tests" {
                collect(&entry.path(), &format!("{file}/"), files);
            }
        } else if name != "tests.rs" && name != "main.rs" && name.ends_with(".rs") {
            // In generated code `super` is a module of its own file.
            let is_generated = file.ends_with("/generated.rs");
            let text = if is_generated { String::new() } else { fs::read_to_string(entry.path()).unwrap() };
            files.insert(file, text);
        }
    }
}

/// The path of a file's module in its crate.
fn module(file: &str) -> Vec<String> {
    let path = file.trim_end_matches(".rs");
    let path = path.strip_suffix("/mod").unwrap_or(if path == "lib" { "" } else { path });
    path.split('/').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// A path in the crate, as seen from a module; `None` for one that leads elsewhere.
fn resolve(from: &[String], path: &str) -> Option<Vec<String>> {
    let mut names = path.split("::").peekable();
    let mut at = match names.next()? {
        "crate" => Vec::new(),
        "super" => from.split_last()?.1.to_vec(),
        "self" => from.to_vec(),
        // A module declared in this file, which the compiler finds without `self`.
        name => [from, &[name.to_owned()]].concat(),
    };
    while names.next_if_eq(&"super").is_some() {
        at.pop()?;
    }
    at.extend(names.map(str::to_owned));
    Some(at)
}

/// The paths that a source names in `use` declarations, and by `crate::`, `super::` or `self::` elsewhere.
fn paths(text: &str) -> impl Iterator<Item = String> {
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let code: Vec<_> = text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
    let code = code.join("\n");
    let mut found = Vec::new();
    for item in code.split(';') {
        match item.rsplit_once("use ").filter(|(before, _)| is_declaration(before)) {
            Some((_, tree)) => expand("", tree, &mut found),
            None => {
                ["crate::", "super::", "self::"].into_iter().for_each(|root| inline(item, root, &mut found))
            }
        }
    }
    found.into_iter()
}

/// True if `use` after this begins a declaration.
fn is_declaration(before: &str) -> bool {
    let line = before.rsplit('\n').next().unwrap_or_default().trim();
    line.is_empty() || line.starts_with("pub")
}

/// Adds each path of a `use` tree.
fn expand(prefix: &str, tree: &str, found: &mut Vec<String>) {
    let tree = tree.trim();
    let Some((before, inner)) = tree.split_once('{') else {
        let name = tree.split(" as ").next().unwrap_or_default().trim();
        found.push(format!("{prefix}{name}"));
        return;
    };
    let inner = inner.trim_end();
    let inner = inner.strip_suffix('}').unwrap_or(inner);
    let prefix = format!("{prefix}{}", before.trim());
    let mut depth = 0;
    let mut start = 0;
    for (at, byte) in inner.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            b',' if depth == 0 => {
                expand(&prefix, &inner[start..at], found);
                start = at + 1;
            }
            _ => {}
        }
    }
    if !inner[start..].trim().is_empty() {
        expand(&prefix, &inner[start..], found);
    }
}

/// Adds each path in an expression or a type that begins with `root`.
fn inline(code: &str, root: &str, found: &mut Vec<String>) {
    for (at, _) in code.match_indices(root) {
        let begins = !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':');
        let path = code[at..].split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':')).next();
        found.extend(path.filter(|_| begins).map(|path| path.trim_end_matches(':').to_owned()));
    }
}
