//! `gate queues --by node`: the stores that share the keys of a service, each by itself.

use crate::admin::queues::{Queues, Service};
use crate::admin::store::Node;
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
pub(super) const NODES: [Column; 4] = [text("node"), text("state"), number("connections"), number("slots")];

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
        Cell::number(node.slots.map(f64::from), |slots| print::count(slots as u64)),
    ]
}

/// The nodes that are down, in a line for those who look at the whole service.
pub(super) fn down(nodes: &[Node]) -> Option<String> {
    let down: Vec<_> = nodes.iter().filter(|node| node.up == Some(false)).collect();
    let names: Vec<_> = down.iter().map(|node| node.address.as_str()).collect();
    let are = if down.len() == 1 { "is" } else { "are" };
    let count = format!("{} of {}", down.len(), nodes.len());
    (!down.is_empty()).then(|| format!("{count} nodes {are} down: {}", names.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(address: &str, up: Option<bool>) -> Node {
        Node { address: address.to_owned(), up, for_s: 5.0, connections: 3, slots: None }
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
