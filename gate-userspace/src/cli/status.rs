//! `gate status`: who runs, what is attached, how every packet left.

use std::collections::BTreeMap;
use std::process::ExitCode;

use gate_common::abi::{Event, Exit, view_flags};
use serde::Serialize;

use super::pins::Pins;
use super::print;
use crate::clock;
use crate::daemon::mode_name;
use crate::kernel::attach::{interface_name, is_elsewhere};
use crate::kernel::{Maps, owner};

/// Show whether a gate runs, where it is attached, and how every packet left it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Reads the pinned maps: works without the daemon too.")]
pub(super) struct Args {
    #[command(flatten)]
    pins: Pins,
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Report {
    /// The daemon's process id; none if it is gone.
    daemon: Option<u32>,
    /// Nothing if it is not attached, or the interface has vanished; of another network namespace its index.
    interface: Option<String>,
    mode: &'static str,
    abi_version: u32,
    epoch: u64,
    generation: u64,
    heartbeat_age_ms: u64,
    stale: bool,
    shadow: bool,
    on_stale: &'static str,
    enforced_percent: f64,
    sample_every: u32,
    clock_tick_ns: u64,
    tenants: u32,
    services: Vec<Service>,
    /// Packets, by how they left.
    exits: BTreeMap<&'static str, u64>,
    /// What happened on the way.
    events: BTreeMap<&'static str, u64>,
}

#[derive(Debug, Serialize)]
struct Service {
    name: String,
    address: String,
    transport: &'static str,
    protocol: &'static str,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let report = Report::read(&args.pins.maps()?);
    if args.pins.json {
        print::json(&report)?;
    } else {
        report.print();
    }
    Ok(ExitCode::SUCCESS)
}

impl Report {
    fn read(maps: &Maps) -> Self {
        let control = maps.control.load(0);
        let view = maps.view();
        let now = maps.clock().at_monotonic(clock::monotonic());
        let age = now.saturating_sub(maps.heartbeat());
        let counters = maps.cpu_counters();
        let attached = maps.attached();
        let interface = attached.and_then(|(index, _)| match is_elsewhere(maps) {
            true => Some(format!("interface {index} of another network namespace")),
            false => interface_name(index),
        });
        let services = view.first_service..view.first_service + view.services;
        Self {
            daemon: owner::alive(maps),
            interface,
            mode: attached.map_or("none", |(_, mode)| mode_name(mode)),
            abi_version: control.abi_version,
            epoch: control.epoch,
            generation: control.generation,
            heartbeat_age_ms: age.0 / 1_000_000,
            stale: age.0 > view.stale_after_ns,
            shadow: view.flags & view_flags::SHADOW != 0,
            on_stale: if view.flags & view_flags::STALE_PASS != 0 { "pass" } else { "bucket" },
            enforced_percent: f64::from(view.enforce) / 655.36,
            sample_every: view.sample_every,
            clock_tick_ns: control.clock.tick_ns,
            tenants: (1..=view.last_tenant).filter(|&id| super::tenants::exists(maps, id)).count() as u32,
            services: services.map(|slot| Service::read(maps, slot)).collect(),
            exits: Exit::ALL.iter().map(|exit| (exit.name(), counters.exits[exit.index()])).collect(),
            events: Event::ALL.iter().map(|event| (event.name(), counters.events[event.index()])).collect(),
        }
    }

    fn print(&self) {
        match (self.daemon, &self.interface) {
            (Some(pid), Some(interface)) => {
                println!("gate runs as process {pid}, attached to {interface} in {} mode", self.mode);
            }
            (None, Some(interface)) => {
                println!("no daemon runs; the program is attached to {interface} in {} mode", self.mode);
            }
            (Some(pid), None) => println!("gate runs as process {pid}, attached to nothing"),
            (None, None) => println!("no daemon runs, nothing is attached; `gate detach` removes the pins"),
        }
        println!(
            "generation {}, heartbeat {} ms ago{}, {}, {} tenants",
            self.generation,
            self.heartbeat_age_ms,
            if self.stale { " (stale)" } else { "" },
            match (self.shadow, self.enforced_percent) {
                (true, _) => "shadow: nothing is refused".to_owned(),
                (false, percent) if percent >= 100.0 => "enforcing".to_owned(),
                (false, percent) => format!("enforcing {percent:.1}% of the sources"),
            },
            self.tenants,
        );
        let mut services = print::table(&["service", "address", "transport", "protocol"]);
        for Service { name, address, transport, protocol } in &self.services {
            services.add_row([name.as_str(), address, transport, protocol]);
        }
        println!("{services}");
        let mut packets = print::table(&["packets", "count"]);
        print::right(&mut packets, &[1]);
        for (name, count) in self.exits.iter().chain(&self.events).filter(|(_, count)| **count > 0) {
            packets.add_row([(*name).to_owned(), print::count(*count)]);
        }
        println!("{packets}");
    }
}

impl Service {
    fn read(maps: &Maps, slot: u32) -> Self {
        use gate_common::abi::{Protocol, service_flags};
        let service = maps.services.load(slot as usize);
        let address = std::net::Ipv6Addr::from(service.address).to_canonical();
        let address = if service.flags & service_flags::ANY_ADDRESS != 0 {
            format!("*:{}", service.port)
        } else {
            std::net::SocketAddr::new(address, service.port).to_string()
        };
        Self {
            name: service.name.as_str().to_owned(),
            address,
            transport: if service.transport == 17 { "udp" } else { "tcp" },
            protocol: match service.protocol {
                protocol if protocol == Protocol::Memcached as u8 => "memcached",
                protocol if protocol == Protocol::Resp as u8 => "resp",
                _ => "opaque",
            },
        }
    }
}
