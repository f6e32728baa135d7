//! `gate queues`: how requests of proxied services fare.

mod cells;
mod guarded;
mod nodes;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::process::ExitCode;

use self::cells::{REFUSED, health, lasting, met_by, or_dash, time, times};
use self::guarded::{in_passing, probed};
use super::listing::{Listing, NOTHING_LEFT};
use super::pins::Source;
use super::print;
use super::table::{Cell, Column, Table, number, text};
use crate::admin::document::Versioned;
use crate::admin::price::{Learned, Price};
use crate::admin::queues::{QueryType, Queues, ReadPrice, Refusals, Service, TierQueue, Written};

/// Show how requests of proxied services fare: waits, times and refusals by query type, and who waits by tier; of
/// guarded ones what their probe finds, and what answers say that were measured in passing.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Show only this service.
    service: Option<String>,
    /// Show the parts of services in place of their requests.
    #[arg(long, value_enum)]
    by: Option<nodes::By>,
    #[command(flatten)]
    listing: Listing,
    #[command(flatten)]
    source: Source,
}

const EXAMPLES: &str = "\
Examples:
  gate queues                every service that is proxied or has a probe
  gate queues cache          one of them
  gate queues cache --sort together --watch
  gate queues --filter scan
  gate queues --by node      the stores of pools and clusters, each by itself
  gate queues --json | jq '.services[].types[] | {name, accepted}'

Times are percentiles of the last 10 to 20 s: the wait for the store, the store's own time, and both
together, also at the percentiles of their objective: `p95 31 of 20` misses it. `delay` is the longest
wait lately, `expected` what one more request would wait now: of a tier, or of a type in the tiers that
its requests have. `refused at once` are refusals that were decided when the request was decoded; those
behind the store's answer to an earlier request of the same client cannot be written before it, and are
not timed.

Columns to sort by: tier, waiting, delay-ms, expected-ms, price, state of tiers; type, answered, accepted,
waiting, expected, wait, store, together, objective of types; node, state, connections, answered, store,
peers, slots of nodes. Times are sorted by their p99. `peers` is how many times a node's p90 is the median
of the other nodes'. A filter leaves the tiers, types and guarded services that have the text, and all of
a service whose name has it.

Asks the running gate: needs its admin socket.";

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let by_node = args.by.is_some();
    args.listing.check(if by_node { &[&nodes::NODES] } else { &[&TIERS, &TYPES] });
    if args.source.pins.json {
        print::json(&Versioned::new(read(&args)?))?;
        return Ok(ExitCode::SUCCESS);
    }
    let shown = if by_node { nodes::shown } else { shown };
    args.listing.show(|| Ok(shown(&read(&args)?, &args.listing)))
}

fn read(args: &Args) -> anyhow::Result<Queues> {
    let mut queues: Queues = args.source.ask()?;
    if let Some(wanted) = &args.service {
        queues.services.retain(|service| service.name == *wanted);
        queues.probed.retain(|service| service.name == *wanted);
        queues.in_passing.retain(|service| service.name == *wanted);
        anyhow::ensure!(
            !queues.services.is_empty() || !queues.probed.is_empty() || !queues.in_passing.is_empty(),
            "no service {wanted:?} is proxied, has a probe or is measured in passing; `gate queues` lists all"
        );
    }
    Ok(queues)
}

fn shown(queues: &Queues, listing: &Listing) -> String {
    if queues.services.is_empty() && queues.probed.is_empty() && queues.in_passing.is_empty() {
        return "nothing is known of any service: none has a backend or a probe, or is measured in passing"
            .to_owned();
    }
    let proxied =
        queues.services.iter().filter_map(|service| self::service(service, queues.window_s, listing));
    let probed: Vec<_> = queues.probed.iter().map(probed).filter(|line| listing.wants(line)).collect();
    let measured = queues.in_passing.iter().map(in_passing).filter(|line| listing.wants(line));
    let guarded: Vec<_> = probed.into_iter().chain(measured).collect();
    let guarded = (!guarded.is_empty()).then(|| guarded.join("\n"));
    let parts: Vec<_> = proxied.chain(guarded).collect();
    if parts.is_empty() { NOTHING_LEFT.to_owned() } else { parts.join("\n\n") }
}

/// A proxied service; `None` if nothing of it is wanted.
fn service(service: &Service, window_s: f64, listing: &Listing) -> Option<String> {
    let arranged = |columns: &[Column], rows: Vec<Vec<Cell>>| {
        let mut table = Table::new(columns);
        rows.into_iter().for_each(|row| table.add_row(row));
        // Of a service that is named itself everything is.
        if listing.wants(&service.name) { listing.sorted(table) } else { listing.arrange(table) }
    };
    let tiers = arranged(&TIERS, service.tiers.iter().map(tier_row).collect());
    let types = arranged(&TYPES, service.types.iter().map(type_row).collect());
    if tiers.is_empty() && types.is_empty() && !listing.wants(&service.name) {
        return None;
    }
    let mut lines =
        vec![format!("{}: {}", service.name, health(service.latency_ratio, service.shedding.as_ref()))];
    if let Some(store) = &service.store {
        let connections = print::count(store.connections);
        let clients = print::count(store.clients);
        let state = print::store(store);
        lines.push(format!("store {state}, {connections} shared connections to it, {clients} clients"));
    }
    lines.extend(nodes::down(&service.nodes));
    lines.extend(nodes::slow(&service.nodes));
    if !service.overrides.is_empty() {
        lines.push(format!("set since the start: {}", print::settings(&service.overrides)));
    }
    lines.push(costs(&service.price));
    lines.extend(read_prices(&service.read_prices));
    if let Some(parallelism) = service.parallelism {
        lines.push(format!("at most {} requests at the store at once", print::count(parallelism)));
    }
    if let Some(settled) = service.settled_ru {
        lines.push(format!("charged afterwards, for what cost more: {} RU", print::amount(settled)));
    }
    lines.extend((!tiers.is_empty()).then(|| tiers.to_string()));
    if !types.is_empty() {
        lines.push(format!("in the last {window_s:.0} s, times in ms at p50/p90/p99:"));
        lines.push(types.to_string());
    }
    lines.extend(refusals(service.refusals));
    let events = service.events.iter().filter(|(_, count)| **count > 0);
    let events: Vec<_> = events.map(|(name, count)| format!("{name} {}", print::count(*count))).collect();
    lines.push(format!("since the start: {}", events.join(", ")));
    Some(lines.join("\n"))
}

/// The latency of refusals, if there were any.
fn refusals(Refusals { written, written_ms, held_back }: Refusals) -> Option<String> {
    let took = |Written { p50, p99, max }| {
        format!(
            ", written {}/{}/{} ms after they were decoded (p50/p99/max)",
            time(p50),
            time(p99),
            time(max)
        )
    };
    let took = written_ms.map_or_else(String::new, took);
    (written + held_back > 0).then(|| {
        let [written, held_back] = [written, held_back].map(print::count);
        format!("refused at once: {written}{took}; {held_back} more in their turn behind other replies")
    })
}

/// The price of a request, and how it was learned.
fn costs(price: &Price) -> String {
    let Price { base, row, kib, latency, learned } = price;
    let costs = format!("a request costs {base} RU, and {row} for a row, {kib} for a KiB");
    let Some(Learned { of_latency, reference_ms }) = learned else {
        return format!("{costs}, as configured");
    };
    let added: Vec<_> = latency.iter().map(|(class, ru)| format!("{class} {ru}")).collect();
    let added = if added.is_empty() { "nothing".to_owned() } else { added.join(", ") };
    let reference = match reference_ms {
        Some(ms) => format!("a small read takes {} ms", time(*ms)),
        None => "too few small reads yet".to_owned(),
    };
    format!(
        "{costs}; learned, {reference}\nexpected latency adds, at {of_latency} for each small read's: {added}"
    )
}

/// The prices that follow what requests read, if there were any.
fn read_prices(prices: &BTreeMap<Cow<'static, str>, ReadPrice>) -> Option<String> {
    let one = |(class, price): (&Cow<'static, str>, &ReadPrice)| {
        let [by_class, learned] = [price.class_ru, price.learned_ru].map(print::amount);
        format!("{class} {learned} (by its class {by_class}; {} requests)", print::count(price.requests))
    };
    let prices: Vec<_> = prices.iter().map(one).collect();
    (!prices.is_empty()).then(|| format!("by what they read, in RU: {}", prices.join(", ")))
}

const TIERS: [Column; 6] = [
    text("tier"),
    number("waiting"),
    number("delay ms"),
    number("expected ms"),
    number("price"),
    text("state"),
];

fn tier_row(tier: &TierQueue) -> Vec<Cell> {
    vec![
        Cell::text(tier.tier.clone()),
        Cell::count(tier.waiting),
        Cell::number(Some(tier.delay_ms), time),
        or_dash(tier.expected_wait_ms, time),
        Cell { text: met_by(tier.rung), number: Some(tier.rung.into()) },
        Cell::text(tier_state(tier)),
    ]
}

/// The trouble of a tier in words; nothing if it has none.
fn tier_state(tier: &TierQueue) -> String {
    let shed = match tier.rung {
        0 => None,
        REFUSED.. => Some("refused"),
        _ => Some("dearer"),
    };
    let shed = shed.map(|shed| format!("{shed}{}", lasting(tier.rung_for_s)));
    let stands = tier.stands.then(|| "stands".to_owned());
    shed.into_iter().chain(stands).collect::<Vec<_>>().join(", ")
}

const TYPES: [Column; 9] = [
    text("type"),
    number("answered"),
    number("accepted"),
    number("waiting"),
    number("expected"),
    number("wait"),
    number("store"),
    number("together"),
    number("objective"),
];

fn type_row(query_type: &QueryType) -> Vec<Cell> {
    // The same percentile on both sides.
    let objective = query_type.objective_ms.iter().map(|(percentile, limit)| {
        match query_type.response_ms.and_then(|times| times.at(percentile)) {
            Some(took) => format!("{percentile} {} of {}", time(took), time(*limit)),
            None => format!("{percentile} of {}", time(*limit)),
        }
    });
    vec![
        Cell::text(query_type.name.clone()),
        Cell::count(query_type.answered),
        or_dash(query_type.accepted, |share| format!("{:.1}%", share * 100.0)),
        Cell::count(query_type.waiting),
        or_dash(query_type.expected_wait_ms, time),
        times(query_type.wait_ms),
        times(query_type.processing_ms),
        times(query_type.response_ms),
        Cell {
            text: objective.collect::<Vec<_>>().join(", "),
            number: query_type.objective_ms.values().copied().reduce(f64::max),
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_prices_are_shown_of_classes_whose_price_is_learned() {
        assert_eq!(read_prices(&BTreeMap::new()), None);
        let range = ReadPrice { requests: 12, class_ru: 50.5, learned_ru: 1_200.0 };
        assert_eq!(
            read_prices(&[("range".into(), range)].into()).unwrap(),
            format!(
                "by what they read, in RU: range {} (by its class {}; 12 requests)",
                print::amount(1_200.0),
                print::amount(50.5)
            )
        );
    }

    #[test]
    fn an_objective_stands_beside_what_is_measured() {
        let query_type = serde_json::json!({
            "name": "get", "offered": 20, "refused": 10, "answered": 10, "accepted": 0.5, "wait_ms": null, "processing_ms": null,
            "response_ms": {"p50": 1.0, "p90": 2.0, "p95": 31.4, "p99": 30.0}, "objective_ms": {"p50": 18.0, "p95": 20.0},
        });
        let mut query_type: QueryType = serde_json::from_value(query_type).unwrap();
        assert_eq!(type_row(&query_type)[8].text, "p50 1.0 of 18, p95 31 of 20");
        query_type.response_ms = None;
        assert_eq!(type_row(&query_type)[8].text, "p50 of 18, p95 of 20");
    }

    #[test]
    fn refusals_are_one_line_if_there_are_any() {
        let none = Refusals { written: 0, written_ms: None, held_back: 0 };
        assert_eq!(refusals(none), None);
        let held_back = Refusals { held_back: 3, ..none };
        let line = "refused at once: 0; 3 more in their turn behind other replies";
        assert_eq!(refusals(held_back).as_deref(), Some(line));
        let written_ms = Some(Written { p50: 0.005, p99: 0.12, max: 1.5 });
        let line = "refused at once: 1,234, written 0.005/0.1/1.5 ms after they were decoded (p50/p99/max); \
                    0 more in their turn behind other replies";
        assert_eq!(refusals(Refusals { written: 1_234, written_ms, held_back: 0 }).as_deref(), Some(line));
    }

    #[test]
    fn a_price_is_as_configured_or_says_what_it_was_learned_by() {
        let mut price = Price { base: 0.5, row: 0.5, kib: 1.0, ..Price::default() };
        let costs_so = "a request costs 0.5 RU, and 0.5 for a row, 1 for a KiB";
        assert_eq!(costs(&price), format!("{costs_so}, as configured"));
        price.learned = Some(Learned::default());
        assert_eq!(
            costs(&price),
            format!(
                "{costs_so}; learned, too few small reads yet\n\
                 expected latency adds, at 0 for each small read's: nothing"
            )
        );
        price.learned = Some(Learned { of_latency: 0.25, reference_ms: Some(0.21) });
        price.latency = [("get".into(), 0.25), ("mget".into(), 2.5)].into();
        assert_eq!(
            costs(&price),
            format!(
                "{costs_so}; learned, a small read takes 0.2 ms\n\
                 expected latency adds, at 0.25 for each small read's: get 0.25, mget 2.5"
            )
        );
    }

    #[test]
    fn times_are_short_and_still_say_something() {
        for (ms, printed) in [(0.0, "0"), (0.004, "0.004"), (0.1, "0.1"), (9.44, "9.4"), (123.4, "123")] {
            assert_eq!(time(ms), printed);
        }
    }
}
