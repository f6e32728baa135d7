//! `cargo xtask bench`: gate and its peers, measured in one run, side by side.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};

mod cores;
mod harness;
mod http;
mod idle;
mod isolation;
pub mod load;
mod machine;
mod operate;
mod proxy;
mod study;

use cores::Cores;

/// The benchmark.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The benchmark.
    #[arg(value_enum)]
    what: What,
    /// Also write what was measured to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// With `proxy` and `http`: only loads with this in their name, such as "memcached GET" or "x16". With `isolation`: only
    /// behaviours with this in their name, store or group. With `study`: only policies with this in their name. With `fleet`: only
    /// the part with this name.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// With `proxy`, `http`, `isolation`, `study` and `operate`: how long each load, behaviour, policy or viewer is measured, at each
    /// target or rate, in milliseconds; by default 1000, 1000, 2000, 20000 and 10000.
    #[arg(long, value_name = "MS")]
    each: Option<u64>,
    /// With `proxy`, `http` and `isolation`: how often; the medians are shown.
    #[arg(long, default_value_t = 3, value_name = "N")]
    rounds: usize,
    /// With `study`: before which store.
    #[arg(long, value_enum, default_value_t, value_name = "STORE")]
    store: study::Chosen,
    /// With `operate` and `http`: this program instead of the release build.
    #[arg(long, value_name = "FILE")]
    gate: Option<PathBuf>,
    /// With `proxy` and `http`: which CPUs there are for what.
    #[arg(long, value_enum, default_value_t, value_name = "HOW")]
    cores: Cores,
}

impl Args {
    /// How long each load or behaviour runs.
    fn each(&self) -> Duration {
        let default = match self.what {
            What::Isolation => 2_000,
            What::Study => 20_000,
            What::Operate => 10_000,
            _ => 1_000,
        };
        Duration::from_millis(self.each.unwrap_or(default))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum What {
    /// A packet in XDP, by test run, beside a bare drop and the kernel's LPM trie. Needs root.
    Xdp,
    /// A flood over a veth pair: what the receiving core pays for each packet, beside a bare drop, xdp-filter
    /// and nftables; and what the lab's polite tenant notices. Needs root and two CPUs.
    Veth,
    /// A tick of the daemon with 10,000 tenants on 64 CPUs, which are faked. Needs root.
    Tick,
    /// Limits that gates share: an owner's entries beside redis-server with GCRA, their bytes and memory; a tick and proxied
    /// requests with a fleet and without; requests of Envoy's protocol beside a server that always says OK and throttlecrab; and
    /// Envoy's response times. Needs root.
    Fleet,
    /// The policies and codecs, beside libraries that do the same.
    Policies,
    /// The simulator.
    Sim,
    /// Redis and memcached: directly, through gate, nutcracker and haproxy.
    Proxy,
    /// HTTP: nginx, directly, through gate and through another nginx; refusals of gate and of nginx.
    Http,
    /// A polite tenant beside hostile ones, directly at the store and through gate. Writes docs/ISOLATION.md
    /// unless `--only` is given.
    Isolation,
    /// Six admission policies before a store with eleven query types whose times rise with the load, and before Redis with
    /// five commands of different cost: rejections and response times at five rates. Takes 14 minutes each. Writes
    /// docs/STUDY.md and its plots unless `--only` is given.
    Study,
    /// The cost of looking at a gate with 100 and with 10,000 tenants: a scrape of `/metrics`, `gate top`, viewers of the page.
    Operate,
}

/// Measures, and prints a table.
///
/// # Errors
///
/// If a part cannot be had or fails.
pub fn run(args: &Args) -> Result<()> {
    if args.json.is_some() && matches!(args.what, What::Policies | What::Sim) {
        bail!("`bench policies` and `bench sim` print their harness' own table, and write no JSON");
    }
    match args.what {
        What::Xdp => harness::xdp(args.json.as_deref()),
        What::Veth => harness::veth(args.json.as_deref()),
        What::Tick => harness::tick(args.json.as_deref()),
        What::Fleet => harness::fleet(args.only.as_deref(), args.json.as_deref()),
        What::Policies => harness::policies(),
        What::Sim => harness::sim(),
        What::Proxy => proxy::run(args),
        What::Http => http::run(args),
        What::Isolation => isolation::run(args),
        What::Study => study::run(args),
        What::Operate => operate::run(args.gate.as_deref(), args.each(), args.json.as_deref()),
    }
}
