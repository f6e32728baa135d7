//! `gate status`: who runs, what is attached, how every packet left.

use std::process::ExitCode;

use super::pins::Source;
use super::print;
use super::table::{Table, number, text};
use crate::admin::change::Override;
use crate::admin::document::Versioned;
use crate::admin::fleet::FleetOwner;
use crate::admin::interception::Interception;
use crate::admin::status::{Interface, Service, Status};
use crate::kernel::Maps;
use crate::kernel::interfaces::detached;

/// Show whether a gate runs, where it is attached, and how every packet left it.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    source: Source,
}

const EXAMPLES: &str = "\
Examples:
  gate status
  gate status --json | jq .exits
  gate status --socket /run/user/1000/gate.sock

Reads the pinned maps: works without the daemon too. Where there are none (xdp = \"off\"), it asks the running gate.";

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let source = &args.source;
    let from_maps = |maps: &Maps| {
        let detached = detached(maps, &source.pins.pin_dir);
        let mut status = Status::read(maps).without(|interface| detached.contains(&interface.index));
        status.interception = Interception::read(&source.pins.pin_dir);
        source.daemon_status(maps).iter().for_each(|daemon_status| status.add_from_daemon(daemon_status));
        status
    };
    let status: Status = match source.interception_alone() {
        Some(interception) => Status::of_interception(interception),
        None => source.read(from_maps)?,
    };
    if source.pins.json {
        print::json(&Versioned::new(status))?;
    } else {
        print_status(&status);
    }
    Ok(ExitCode::SUCCESS)
}

/// The interfaces that are there, and how it is attached to each.
fn attached_to(status: &Status) -> Option<String> {
    let attached =
        |Interface { name, mode, .. }: &Interface| Some(format!("{} in {mode} mode", name.as_ref()?));
    let attached: Vec<_> = status.interfaces.iter().filter_map(attached).collect();
    (!attached.is_empty()).then(|| attached.join(", "))
}

/// The interfaces that are not; the daemon knows their names.
fn vanished(status: &Status) -> Option<String> {
    let gone = status.interfaces.iter().filter(|interface| interface.name.is_none());
    let gone: Vec<_> = gone.map(|interface| format!("interface {}", interface.index)).collect();
    let names = if status.vanished.len() == gone.len() { &status.vanished } else { &gone };
    (!gone.is_empty()).then(|| names.join(", "))
}

/// The interfaces at which charged datagrams are not marked, although they are to be.
fn unmarked(status: &Status) -> Option<String> {
    let unmarked = status.interfaces.iter().filter(|interface| interface.marks == Some(false));
    let names: Vec<_> = unmarked.filter_map(|interface| interface.name.as_deref()).collect();
    (!names.is_empty()).then(|| names.join(", "))
}

/// Says of a guarded service if its answers are measured in passing, where they can be.
fn measured(service: &Service) -> Option<String> {
    let Service { name, address, .. } = service;
    Some(match service.measured_every? {
        0 => format!("no answers of {name} at {address} are measured in passing"),
        1 => format!("answers of {name} at {address} are measured in passing: to all requests"),
        every => format!("answers of {name} at {address} are measured in passing: to one request in {every}"),
    })
}

/// The owners of limits that are shared with other gates.
fn owners(fleet: &[FleetOwner]) -> Table {
    let mut table = Table::new(&[text("owner of limits"), text("state"), number("gates"), number("limits")]);
    for FleetOwner { address, lost, answered_ms_ago, gates, limits } in fleet {
        let state = match (lost, answered_ms_ago) {
            (false, _) => "answers".to_owned(),
            (true, Some(ago)) => format!("silent for {}", print::age(*ago as f64 / 1e3)),
            (true, None) => "has not answered yet".to_owned(),
        };
        table.add_row([address.clone(), state, gates.to_string(), print::count(*limits)]);
    }
    table
}

/// The stores' addresses at which gate gets the connections.
fn print_interception(interception: &Interception) {
    let owner = match interception.owner {
        Some(pid) => format!("gate intercepts as process {pid}"),
        None => "no gate that intercepts runs".to_owned(),
    };
    let attached = match interception.attached_ms_ago {
        Some(ago) => format!("its program was attached {} ago", print::age(ago as f64 / 1e3)),
        None => "its program is not attached".to_owned(),
    };
    let heartbeat = interception.heartbeat_age_ms.map_or_else(
        || "no heartbeat".to_owned(),
        |age| format!("heartbeat {age} ms ago, stale after {} ms", interception.stale_after_ms),
    );
    println!("{owner}; {attached}; {heartbeat}");
    let columns = ["intercepted", "service", "new connections", "from this machine", "when gate is lost"];
    let counts = ["gate got", "store got", "refused"];
    let columns: Vec<_> = columns.into_iter().map(text).chain(counts.into_iter().map(number)).collect();
    let mut table = Table::new(&columns);
    for at in &interception.addresses {
        table.add_row([
            at.address.clone(),
            at.service.clone(),
            at.in_words(),
            if at.local { "too" } else { "pass by" }.to_owned(),
            at.on_lost.to_string(),
            print::count(at.to_gate),
            print::count(at.to_store),
            print::count(at.refused),
        ]);
    }
    println!("{table}");
}

fn print_status(status: &Status) {
    if let (None, Some(interception), true) =
        (status.daemon, &status.interception, status.services.is_empty())
    {
        print_interception(interception);
        println!("`gate run` takes it over, `gate detach` removes it");
        return;
    }
    match (status.daemon, attached_to(status)) {
        (Some(pid), Some(interfaces)) => println!("gate runs as process {pid}, attached to {interfaces}"),
        (None, Some(interfaces)) => println!("no daemon runs; the program is attached to {interfaces}"),
        (Some(pid), None) => println!("gate runs as process {pid}, attached to nothing"),
        (None, None) => println!("no daemon runs, nothing is attached; `gate detach` removes the pins"),
    }
    if let Some(vanished) = vanished(status) {
        println!("vanished, and the program with it: {vanished}; attached again when it is back");
    }
    if let Some(unmarked) = unmarked(status) {
        println!("charged datagrams are not marked at {unmarked}: what comes in there counts as charged");
    }
    println!(
        "generation {}, heartbeat {} ms ago{}, {}, {} tenants",
        status.generation,
        status.heartbeat_age_ms,
        if status.stale { " (stale)" } else { "" },
        match (status.shadow, status.enforced_percent) {
            (true, _) => "shadow: nothing is refused".to_owned(),
            (false, percent) if percent >= 100.0 => "enforcing".to_owned(),
            (false, percent) => format!("enforcing {percent:.1}% of the sources"),
        },
        status.tenants,
    );
    let listens: Vec<_> = status.listens.iter().map(|at| format!("{} ({})", at.address, at.key)).collect();
    if !listens.is_empty() {
        println!("listens at {}", listens.join(", "));
    }
    if !status.later.is_empty() {
        println!("counts from the next start only: {}", status.later.join(", "));
    }
    let columns = ["service", "address", "transport", "protocol", "price", "store", "clients", "sheds"];
    let mut services = Table::new(&columns.map(text));
    for Service { name, address, transport, protocol, price, shed, store, .. } in &status.services {
        let shed: Vec<_> = shed.iter().map(|(tier, what)| format!("{tier} {what}")).collect();
        let shed = if shed.is_empty() { "nothing".to_owned() } else { shed.join(", ") };
        let clients = store.as_ref().map_or_else(String::new, |store| print::count(store.clients));
        let store = store.as_ref().map_or_else(|| "not proxied".to_owned(), print::store);
        let price = print::price(price);
        let row: [&str; 8] = [name, address, transport, protocol, &price, &store, &clients, &shed];
        services.add_row(row);
    }
    println!("{services}");
    status.services.iter().filter_map(measured).for_each(|line| println!("{line}"));
    let mut packets = Table::new(&[text("packets"), number("count")]);
    for (name, count) in status.exits.iter().chain(&status.events).filter(|(_, count)| **count > 0) {
        packets.add_row([name.to_string(), print::count(*count)]);
    }
    if !packets.is_empty() {
        println!("{packets}");
    }
    status.interception.iter().for_each(print_interception);
    if !status.fleet.is_empty() {
        println!("{}", owners(&status.fleet));
    }
    if status.log_lines_lost > 0 {
        println!("lines of the log that were lost: {}", print::count(status.log_lines_lost));
    }
    if !status.overrides.is_empty() {
        println!("set since the start (`gate set`):");
    }
    for Override { key, value } in &status.overrides {
        println!("  {key} = {value:?}");
    }
}
