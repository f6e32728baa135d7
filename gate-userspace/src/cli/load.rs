//! `gate load`: the open-loop load generator.

use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use gate_common::units::Nanos;
use indicatif::{ProgressBar, ProgressStyle};

use super::duration;
use super::signals::Signals;
use crate::clock;
use crate::load::compare::Comparison;
use crate::load::{self, Plan, Protocol, Running, Summary, TenantLoad, Totals, Transport, fill};

mod table;

/// Offer load to a memcached or Redis service, as several tenants, and time the answers.
///
/// Requests are due at their set rate whatever the answers do, and latency counts from when a request
/// was due. Ctrl-C ends the run with its summary.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Args {
    /// Where requests go.
    #[arg(long)]
    target: SocketAddr,
    /// Another target that is asked the same, in turn with the first; both are shown, with the second's figures as
    /// parts of the first's. Each is asked for `--for`.
    #[arg(long, value_name = "ADDRESS", conflicts_with = "count")]
    compare: Option<SocketAddr>,
    /// With `--compare`: for how long each target is asked before it is the other's turn.
    #[arg(long, default_value = "1s", value_parser = slice, value_name = "TIME")]
    slice: Nanos,
    /// Before the run, write all keys that are read to this store (not through gate, whose quotas would refuse it).
    #[arg(long, value_name = "ADDRESS")]
    fill: Option<SocketAddr>,
    /// Send one request in a datagram (the default).
    #[arg(long, conflicts_with = "tcp")]
    udp: bool,
    /// Pipeline requests over a few connections for each source.
    #[arg(long)]
    tcp: bool,
    /// How requests are written; RESP and HTTP go over TCP.
    #[arg(long, default_value = "memcached")]
    protocol: ProtocolArg,
    /// A tenant; may be given again. Keys: name, rate (required), source (may be given again),
    /// arrivals=poisson|constant, bursts=ON/PERIOD, keys=uniform:COUNT|zipf:COUNT:EXPONENT,
    /// hot=KEY:SHARE, reads=SHARE, value=SIZE, connections=COUNT; or mix=FILE instead of keys, hot, reads
    /// and value.
    #[arg(long = "tenant", required = true, value_name = "name=NAME,rate=RATE,...")]
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
    /// Print the counters so far this often as well, e.g. 500ms; one line each, and the summary as the last.
    #[arg(long, value_name = "TIME", value_parser = timeout, requires = "json", conflicts_with = "compare")]
    every: Option<Nanos>,
}

const EXAMPLES: &str = r#"Examples:
  2,000 gets a second over UDP, of keys that Zipf's law draws:
    gate load --target 127.0.0.1:11211 \
      --tenant name=polite,rate=2000/s,keys=zipf:10000:0.99

  Two tenants over TCP, from addresses of their own; one writes 64 KiB:
    gate load --target 127.0.0.1:11311 --tcp \
      --tenant name=search,source=127.0.0.2,rate=2000/s \
      --tenant name=reports,source=127.0.0.3,rate=100/s,reads=50%,value=64KiB

  A mix to Redis through gate, with its keys written to Redis itself first:
    gate load --target 127.0.0.1:6380 --fill 127.0.0.1:6379 \
      --protocol resp --tenant name=app,rate=500/s,mix=mix.toml

  Redis beside gate before it, one second each in turn:
    gate load --target 127.0.0.1:6379 --compare 127.0.0.1:6380 \
      --protocol resp --tenant name=a,rate=5000/s --for 30s

A mix, with all that a request can have (ranges and scripts need --protocol resp; over HTTP a list is a method and a path):

    [[request]]
    command = "get"          # or mget, set, delete, range, script
    weight = 3               # how often beside the others; default 1
    keys = 10000             # or "zipf:COUNT:EXPONENT"; default 1000
    value = "1KiB"           # of a set and --fill; up to 1MiB, default 100B

    [[request]]
    command = "range"        # LRANGE of a list's first rows
    count = 500              # rows; of an mget, keys; 1 to 100000, default 10
    prefix = "app:lists"     # app:lists:0 ...; default the tenant's name

    [[request]]
    command = "script"
    script = "return redis.call('STRLEN', KEYS[1])"

    [[request]]
    command = ["HSET", "h:{key}", "field", "1"]
    name = "write a field"   # under which it is counted; default the command

memcached refuses values of more than its item size (-I), 1 MiB with key and header by default."#;

/// A protocol, as arguments name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum ProtocolArg {
    Memcached,
    Resp,
    Http,
}

impl From<ProtocolArg> for Protocol {
    fn from(named: ProtocolArg) -> Self {
        match named {
            ProtocolArg::Memcached => Self::Memcached,
            ProtocolArg::Resp => Self::Resp,
            ProtocolArg::Http => Self::Http,
        }
    }
}

fn timeout(text: &str) -> Result<Nanos, String> {
    crate::config::units::duration(text, Nanos::from_millis(1), Nanos::from_secs(60))
}

fn slice(text: &str) -> Result<Nanos, String> {
    crate::config::units::duration(text, Nanos::from_millis(100), Nanos::from_secs(3_600))
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let protocol = Protocol::from(args.protocol);
    let over_tcp = protocol != Protocol::Memcached;
    let name = if protocol == Protocol::Http { "HTTP" } else { "RESP" };
    anyhow::ensure!(!(over_tcp && args.udp), "{name} has no UDP transport; leave out --udp");
    let signals = Signals::block()?;
    let plan = Plan {
        target: args.target,
        transport: if args.tcp || over_tcp { Transport::Tcp } else { Transport::Udp },
        protocol,
        tenants: args.tenants,
        duration: args.lasting,
        count: args.count,
        timeout: args.timeout,
        seed: args.seed,
    };
    if let Some(wrong) = plan.refusal() {
        anyhow::bail!("{wrong}");
    }
    if let Some(store) = args.fill {
        fill::fill(&plan, store)?;
    }
    let both = if args.compare.is_some() { 2 } else { 1 };
    let watch = Watch { signals, every: args.every, bar: bar(Nanos(plan.duration.0.saturating_mul(both))) };
    let Some(other) = args.compare else {
        let running = load::start(&plan)?;
        watch.until_done(&running, Nanos::ZERO, plan.timeout)?;
        watch.bar.finish_and_clear();
        let summary = running.finish();
        if args.every.is_some() {
            println!("{}", serde_json::to_string(&summary)?);
        } else {
            print(args.json, &summary, table::summary)?;
        }
        return Ok(exit_code(&[&summary], protocol));
    };
    let compared = compare(&plan, other, args.slice, &watch)?;
    watch.bar.finish_and_clear();
    print(args.json, &compared, table::comparison)?;
    Ok(exit_code(&[&compared.first, &compared.second], protocol))
}

/// Asks both targets the same, a slice of the time each in turn.
fn compare(plan: &Plan, other: SocketAddr, slice: Nanos, watch: &Watch) -> anyhow::Result<Comparison> {
    let targets = [plan.target, other];
    let mut totals = [Totals::default(), Totals::default()];
    let mut begun = Nanos::ZERO;
    let mut stopped = false;
    for number in 0.. {
        let duration = slice.min(plan.duration.saturating_sub(begun));
        if duration == Nanos::ZERO || stopped {
            break;
        }
        for (place, target) in targets.into_iter().enumerate() {
            let seed = plan.seed.wrapping_add(number);
            let running = load::start(&Plan { target, duration, seed, ..plan.clone() })?;
            let before = Nanos(2 * begun.0 + place as u64 * duration.0);
            stopped |= watch.until_done(&running, before, plan.timeout)?;
            totals[place].add(running);
        }
        begun = begun.saturating_add(duration);
    }
    let [first, second] = [0, 1].map(|i| totals[i].summary(targets[i].to_string(), plan.transport));
    Ok(Comparison::new(first, second))
}

/// Ctrl-C, and the progress that is shown.
struct Watch {
    signals: Signals,
    /// How often the counters are printed.
    every: Option<Nanos>,
    bar: ProgressBar,
}

impl Watch {
    /// Waits for the end of a run that began so long after the first; true if it was stopped.
    fn until_done(&self, running: &Running, before: Nanos, timeout: Nanos) -> anyhow::Result<bool> {
        let mut stopped = false;
        let mut looks = 0_u32;
        let mut next = self.every.map(|every| clock::monotonic().saturating_add(every));
        while !running.is_finished() {
            let mut stop = self.signals.wait(LOOK_EVERY);
            if let (Some(every), Some(due)) = (self.every, next)
                && clock::monotonic() >= due
            {
                next = Some(due.saturating_add(every));
                println!("{}", serde_json::to_string(&running.progress())?);
            }
            looks += 1;
            if looks.is_multiple_of(LOOKS_TO_A_LINE) {
                let summary = running.progress();
                let elapsed = Nanos((summary.seconds * 1e9) as u64);
                self.bar.set_position(before.saturating_add(elapsed).0 / NANOS_PER_MILLI);
                self.bar.set_message(progress(&summary));
                let patience = timeout.max(PATIENCE);
                // Without a single connection nothing will change.
                stop |= elapsed > patience && summary.transport == Transport::Tcp && !is_sending(&summary);
            }
            if stop {
                running.stop();
                stopped = true;
            }
        }
        Ok(stopped)
    }
}

/// A bar for so long, in milliseconds; hidden if nobody looks or the run is short.
fn bar(lasting: Nanos) -> ProgressBar {
    if lasting < SHORT || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(lasting.0 / NANOS_PER_MILLI);
    let style = ProgressStyle::with_template("{bar:30} {elapsed}, {eta} left  {wide_msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

fn progress(summary: &Summary) -> String {
    let tenants = summary.tenants.iter().map(|tenant| {
        let sent = tenant.sent;
        let answered = tenant.answered;
        let refused = tenant.refused;
        format!("{}: {sent} sent, {answered} answered, {refused} refused, {} lost", tenant.name, tenant.lost)
    });
    Vec::from_iter(tenants).join(" | ")
}

fn is_sending(summary: &Summary) -> bool {
    summary.tenants.iter().any(|tenant| tenant.sent > 0 || tenant.offered == 0)
}

fn print<T: serde::Serialize>(json: bool, what: &T, table: impl Fn(&T) -> String) -> anyhow::Result<()> {
    if json {
        println!("{}", serde_json::to_string_pretty(what)?);
    } else {
        println!("{}", table(what));
    }
    Ok(())
}

/// Failure, with a remark, if a target answered nothing at all.
fn exit_code(summaries: &[&Summary], protocol: Protocol) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    for summary in summaries {
        let sum = |count: fn(&load::TenantSummary) -> u64| summary.tenants.iter().map(count).sum::<u64>();
        let unanswered = sum(|tenant| tenant.failed + tenant.lost);
        if unanswered == 0 || sum(|tenant| tenant.answered + tenant.refused) > 0 {
            continue;
        }
        let over = if summary.transport == Transport::Udp { "UDP" } else { "TCP" };
        let speaks = match protocol {
            Protocol::Memcached => "a memcached",
            Protocol::Resp => "a Redis",
            Protocol::Http => "an HTTP server",
        };
        eprintln!(
            "gate: {} answered none of {unanswered} requests: does {speaks} listen there, over {over}?",
            summary.target
        );
        code = ExitCode::FAILURE;
    }
    code
}

/// The end is noticed this late at most.
const LOOK_EVERY: Duration = Duration::from_millis(20);
const LOOKS_TO_A_LINE: u32 = 25;
const NANOS_PER_MILLI: u64 = 1_000_000;
/// A target that accepts no connection is given up after so long, or the time for an answer if that is longer.
const PATIENCE: Nanos = Nanos::from_secs(3);
/// Runs that are shorter have no progress bar.
const SHORT: Nanos = Nanos::from_secs(2);
