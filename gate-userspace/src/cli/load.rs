//! `gate load`: the open-loop load generator.

use std::io::{IsTerminal as _, Write as _};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use gate_common::units::Nanos;

use super::duration;
use super::signals::Signals;
use crate::load::{self, Plan, Protocol, Summary, TenantLoad, Transport};

/// Offer load to a memcached or Redis service, as several tenants, and time the answers.
///
/// Requests are due at their set rate whatever the answers do, and latency counts from when a request
/// was due. Ctrl-C ends the run with its summary.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Where requests go.
    #[arg(long)]
    target: SocketAddr,
    /// Send one request in a datagram (the default).
    #[arg(long, conflicts_with = "tcp")]
    udp: bool,
    /// Pipeline requests over a few connections for each source.
    #[arg(long)]
    tcp: bool,
    /// How requests are written; RESP goes over TCP.
    #[arg(long, default_value = "memcached")]
    protocol: ProtocolArg,
    /// A tenant; may be given again. Keys: name, rate (required), source (may be given again),
    /// arrivals=poisson|constant, bursts=ON/PERIOD, keys=uniform:COUNT|zipf:COUNT:EXPONENT,
    /// hot=KEY:SHARE, reads=SHARE, value=SIZE, connections=COUNT.
    #[arg(long = "tenant", required = true, value_name = "name=polite,rate=2000/s,...")]
    tenants: Vec<TenantLoad>,
    /// For how long.
    #[arg(long = "for", default_value = "10s", value_parser = duration)]
    lasting: Nanos,
    /// How many requests each tenant sends at most.
    #[arg(long)]
    count: Option<u64>,
    /// After how long an answer is given up.
    #[arg(long, default_value = "1s", value_parser = timeout)]
    timeout: Nanos,
    /// Fixes arrivals and keys.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// A protocol, as arguments name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum ProtocolArg {
    Memcached,
    Resp,
}

impl From<ProtocolArg> for Protocol {
    fn from(named: ProtocolArg) -> Self {
        match named {
            ProtocolArg::Memcached => Self::Memcached,
            ProtocolArg::Resp => Self::Resp,
        }
    }
}

fn timeout(text: &str) -> Result<Nanos, String> {
    crate::config::units::duration(text, Nanos::from_millis(1), Nanos::from_secs(60))
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let protocol = Protocol::from(args.protocol);
    let resp = protocol == Protocol::Resp;
    anyhow::ensure!(!(resp && args.udp), "RESP has no UDP transport; leave out --udp");
    let signals = Signals::block()?;
    let plan = Plan {
        target: args.target,
        transport: if args.tcp || resp { Transport::Tcp } else { Transport::Udp },
        protocol,
        tenants: args.tenants,
        duration: args.lasting,
        count: args.count,
        timeout: args.timeout,
        seed: args.seed,
    };
    let running = load::start(&plan)?;
    let watched = std::io::stderr().is_terminal();
    let mut looks = 0_u32;
    while !running.is_finished() {
        if signals.wait(LOOK_EVERY) {
            running.stop();
        }
        looks += 1;
        if watched && looks.is_multiple_of(LOOKS_TO_A_LINE) {
            eprint!("\r\x1b[K{}", progress(&running.progress()));
            std::io::stderr().flush()?;
        }
    }
    if watched {
        eprint!("\r\x1b[K");
    }
    let summary = running.finish();
    if args.json {
        println!("{}", serde_json::to_string_pretty(&summary)?);
    } else {
        println!("{}", table(&summary));
    }
    Ok(ExitCode::SUCCESS)
}

fn progress(summary: &Summary) -> String {
    let tenants = summary.tenants.iter().map(|tenant| {
        let sent = tenant.sent;
        let answered = tenant.answered;
        let refused = tenant.refused;
        format!("{}: {sent} sent, {answered} answered, {refused} refused, {} lost", tenant.name, tenant.lost)
    });
    format!("{:.1} s  {}", summary.seconds, Vec::from_iter(tenants).join(" | "))
}

fn table(summary: &Summary) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "tenant", "offered", "sent", "answered", "refused", "failed", "lost", "unsent", "p50", "p90", "p99",
        "p99.9", "max", "lag p99",
    ]);
    for tenant in &summary.tenants {
        let reasons: Vec<_> =
            tenant.refused_by_reason.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
        let refused = if reasons.is_empty() {
            "0".to_owned()
        } else {
            format!("{} ({})", tenant.refused, reasons.join(", "))
        };
        let latency = &tenant.latency_ns;
        let time = |ns: u64| if tenant.answered == 0 { "-".to_owned() } else { micros(ns) };
        table.add_row([
            tenant.name.clone(),
            tenant.offered.to_string(),
            tenant.sent.to_string(),
            tenant.answered.to_string(),
            refused,
            tenant.failed.to_string(),
            tenant.lost.to_string(),
            tenant.unsent.to_string(),
            time(latency.p50),
            time(latency.p90),
            time(latency.p99),
            time(latency.p999),
            time(latency.max),
            micros(tenant.lag_ns.p99),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// As people read it: 870µs, 1.2ms.
fn micros(ns: u64) -> String {
    match ns {
        0..1_000_000 => format!("{}µs", ns / 1_000),
        1_000_000..1_000_000_000 => format!("{:.1}ms", ns as f64 / 1e6),
        _ => format!("{:.2}s", ns as f64 / 1e9),
    }
}

/// The end is noticed this late at most.
const LOOK_EVERY: Duration = Duration::from_millis(20);
const LOOKS_TO_A_LINE: u32 = 25;
