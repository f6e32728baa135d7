//! `gate store`: the embedded store, for trying things out.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use gate_common::units::Nanos;

use super::load::ProtocolArg;
use super::signals::Signals;
use super::{bytes, duration};
use crate::clock;
use crate::load::store::{Settings, Spread, Store};

/// Run a small memcached (text protocol, UDP and TCP), Redis (strings, TCP) or HTTP server (paths as keys, TCP) with a set
/// service time, to try things out.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Where to listen, over TCP and, for memcached, UDP.
    #[arg(long, default_value = "127.0.0.1:11211")]
    listen: SocketAddr,
    /// The protocol.
    #[arg(long, default_value = "memcached")]
    protocol: ProtocolArg,
    /// The mean time that one command takes, e.g. 50us.
    #[arg(long, default_value = "0s", value_parser = duration)]
    service_time: Nanos,
    /// The mean time of one command, e.g. GET=2ms; over HTTP of a method, or of paths by their first segment; may be given
    /// again. Stores that speak RESP or HTTP answer those that they do not know otherwise with OK.
    #[arg(long = "time", value_name = "COMMAND=TIME", value_parser = command_time)]
    times: Vec<(String, Nanos)>,
    /// By how much a command takes longer for each other that is there, as a share of its time, e.g. 0.1; 0 to 100.
    #[arg(long, default_value_t = 0.0, value_name = "SHARE", value_parser = contention)]
    contention: f64,
    /// The time that each key adds which a command reads beyond its first, e.g. 10us.
    #[arg(long, default_value = "0s", value_parser = duration)]
    row_time: Nanos,
    /// How service times are spread around their mean.
    #[arg(long, default_value = "fixed")]
    spread: SpreadArg,
    /// How many commands are served at the same time.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..))]
    concurrency: u16,
    /// Spend the service time computing, one command at a time, rather than waiting.
    #[arg(long)]
    busy: bool,
    /// The most that keys and values may take, e.g. 64MiB.
    #[arg(long, default_value = "64MiB", value_parser = bytes)]
    memory: u64,
    /// End after so long; otherwise with Ctrl-C.
    #[arg(long = "for", value_parser = duration)]
    lasting: Option<Nanos>,
    /// Print what it did as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum SpreadArg {
    Fixed,
    Exponential,
}

fn command_time(text: &str) -> Result<(String, Nanos), String> {
    let (command, time) = text.split_once('=').ok_or("must be like GET=2ms")?;
    if command.is_empty() || !command.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return Err("must begin with a command, e.g. GET=2ms".to_owned());
    }
    Ok((command.to_ascii_lowercase(), duration(time)?))
}

fn contention(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..=100.0).contains(share));
    share.ok_or_else(|| "must be a number from 0 to 100, e.g. 0.1".to_owned())
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let signals = Signals::block()?;
    let spread = match args.spread {
        SpreadArg::Fixed => Spread::Fixed,
        SpreadArg::Exponential => Spread::Exponential,
    };
    let store = Store::start(&Settings {
        protocol: args.protocol.into(),
        service_time: args.service_time,
        times: args.times.into_iter().collect(),
        contention: args.contention,
        row_time: args.row_time,
        spread,
        concurrency: args.concurrency.into(),
        busy: args.busy,
        memory: args.memory,
        ..Settings::new(args.listen)
    })?;
    eprintln!("listening on {}", store.address());
    let until = args.lasting.map_or(Nanos::MAX, |lasting| clock::monotonic().saturating_add(lasting));
    let a_day = Duration::from_secs(86_400);
    while clock::monotonic() < until {
        let left = Duration::from(until.saturating_sub(clock::monotonic()));
        if signals.wait(left.min(a_day)) {
            break;
        }
    }
    let stats = store.stats();
    if args.json {
        println!("{}", serde_json::to_string_pretty(&stats)?);
    } else {
        println!(
            "commands: {}, datagrams dropped: {}, connections: {}",
            stats.commands, stats.dropped, stats.connections
        );
    }
    Ok(ExitCode::SUCCESS)
}
