//! `gate queues --by node`: the stores that share the keys of a service, each by itself.

use super::cells::{or_dash, time, times};
use crate::admin::nodes::Node;
use crate::admin::queues::{Queues, Service};
use crate::cli::listing::{Listing, NOTHING_LEFT};
use crate::cli::print;
use crate::cli::table::{Cell, Column, Table, number, text};

/// The parts of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum By {
    /// The stores that share its keys.
    Node,
}

/// The columns of a node.
pub(super) const NODES: [Column; 7] = [
    text("node"),
    text("state"),
    number("connections"),
    number("answered"),
    number("store"),
    number("peers"),
    number("slots"),
];

/// The nodes of each service that has several.
pub(super) fn shown(queues: &Queues, listing: &Listing) -> String {
    let several: Vec<_> = queues.services.iter().filter(|service| !service.nodes.is_empty()).collect();
    if several.is_empty() {
        return "no service has several stores: `backends` lists those of a pool, or seeds of a cluster"
            .to_owned();
    }
    let parts: Vec<_> = several.into_iter().filter_map(|service| of_service(service, listing)).collect();
    if parts.is_empty() { NOTHING_LEFT.to_owned() } else { parts.join("\n\n") }
}

fn of_service(service: &Service, listing: &Listing) -> Option<String> {
    let mut table = Table::new(&NODES);
    service.nodes.iter().for_each(|node| table.add_row(row(node)));
    let wanted = listing.wants(&service.name);
    let table = if wanted { listing.sorted(table) } else { listing.arrange(table) };
    (wanted || !table.is_empty()).then(|| format!("{}:\n{table}", service.name))
}

fn row(node: &Node) -> Vec<Cell> {
    vec![
        Cell::text(&node.address),
        Cell::text(print::reached(node.up, node.for_s)),
        Cell::count(node.connections),
        Cell::count(node.answered),
        times(node.store_ms),
        or_dash(node.times_peers, |times| format!("x{times:.1}")),
        Cell::number(node.slots.map(f64::from), |slots| print::count(slots as u64)),
    ]
}

/// The nodes that are slower than their peers, in a line for those who look at the whole service.
pub(super) fn slow(nodes: &[Node]) -> Option<String> {
    let slow = nodes.iter().filter(|node| node.is_slow).map(|node| {
        let p90 = node.store_ms.map_or_else(String::new, |times| format!("p90 {} ms", time(times.p90)));
        let over =
            node.times_peers.map_or_else(String::new, |times| format!(", {times:.1} times its peers'"));
        format!("{} ({p90}{over})", node.address)
    });
    line(nodes, "slow", &slow.collect::<Vec<_>>())
}

/// The nodes that are down, likewise.
pub(super) fn down(nodes: &[Node]) -> Option<String> {
    let down = nodes.iter().filter(|node| node.up == Some(false)).map(|node| node.address.clone());
    line(nodes, "down", &down.collect::<Vec<_>>())
}

/// A line that names the nodes that are so, if any are.
fn line(nodes: &[Node], so: &str, names: &[String]) -> Option<String> {
    let are = if names.len() == 1 { "is" } else { "are" };
    let count = format!("{} of {}", names.len(), nodes.len());
    (!names.is_empty()).then(|| format!("{count} nodes {are} {so}: {}", names.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::percentiles::Percentiles;

    fn node(address: &str, up: Option<bool>) -> Node {
        Node {
            address: address.to_owned(),
            up,
            for_s: 5.0,
            connections: 3,
            slots: None,
            answered: 100,
            store_ms: Some(Percentiles { p50: 1.0, p90: 4.2, p95: Some(6.0), p99: 9.0 }),
            times_peers: Some(4.25),
            is_slow: false,
        }
    }

    #[test]
    fn nodes_that_are_slow_are_named_with_their_times() {
        let mut nodes = [node("a:1", Some(true)), node("b:2", Some(true)), node("c:3", Some(true))];
        assert_eq!(slow(&nodes), None);
        nodes[1].is_slow = true;
        let one = "1 of 3 nodes is slow: b:2 (p90 4.2 ms, 4.2 times its peers')";
        assert_eq!(slow(&nodes).as_deref(), Some(one));
        nodes[2].is_slow = true;
        let two = format!(
            "{}, c:3 (p90 4.2 ms, 4.2 times its peers')",
            one.replace("1 of 3 nodes is", "2 of 3 nodes are")
        );
        assert_eq!(slow(&nodes), Some(two));
    }

    #[test]
    fn nodes_that_are_down_are_named() {
        let nodes = [node("a:1", Some(true)), node("b:2", Some(false)), node("c:3", None)];
        assert_eq!(down(&nodes).as_deref(), Some("1 of 3 nodes is down: b:2"));
        assert_eq!(down(&nodes[..1]), None);
        let both = [node("a:1", Some(false)), node("b:2", Some(false))];
        assert_eq!(down(&both).as_deref(), Some("2 of 2 nodes are down: a:1, b:2"));
    }
}
