//! The steps of one source's packets through the XDP program, printed to standard output.
//!
//! In a thread of its own, which waits for whoever reads the output: a reader that is slow or gone never holds up a tick. What
//! nobody takes in time the program loses and counts.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use gate_common::abi::{Exit, Reason, Step, TraceRecord, TracedBucket, TracedCharge, TracedReply};
use gate_common::units::Nanos;

use super::error::Error;
use crate::clock;
use crate::kernel::{Maps, Missed, Trace};

/// Starts the thread.
///
/// # Errors
///
/// If there is none to be had.
pub(super) fn start(trace: Trace, maps: Arc<Maps>) -> Result<(), Error> {
    let run = move || {
        if let Err(error) = print(trace, &maps, &mut io::stdout()) {
            tracing::warn!(%error, "the trace is no longer printed");
        }
    };
    let started = std::thread::Builder::new().name("trace".to_owned()).spawn(run);
    started.map(|_| ()).map_err(|source| Error::System { what: "starting the thread that traces", source })
}

/// Prints until nobody reads.
fn print(mut trace: Trace, maps: &Maps, out: &mut impl Write) -> io::Result<()> {
    let unix_ns = clock::unix_millis().saturating_mul(1_000_000);
    let clock_offset_ns = unix_ns.saturating_sub(clock::monotonic().0);
    let mut tenant = Names::default();
    let mut reported = Missed::default();
    let mut reported_at = Nanos::ZERO;
    loop {
        trace.wait(REPORT_EVERY)?;
        let mut lines = String::new();
        while lines.len() < MOST_BYTES
            && let Some(record) = trace.read()
        {
            tenant.follow(&record, maps);
            if let Some(line) = line(&record, &tenant, clock_offset_ns) {
                lines.push_str(&line);
                lines.push('\n');
            }
        }
        let missed = trace.missed();
        let now = clock::monotonic();
        if missed != reported && now.saturating_sub(reported_at) >= Nanos::from(REPORT_EVERY) {
            lines.push_str(&missed_line(missed, reported, now.0.saturating_add(clock_offset_ns)));
            reported = missed;
            reported_at = now;
        }
        out.write_all(lines.as_bytes())?;
        out.flush()?;
    }
}

/// The names that the steps of one packet have in common.
#[derive(Default)]
struct Names {
    packet: u64,
    service: String,
    tenant: String,
    parents: [String; 2],
}

impl Names {
    /// Looks up what a record refers to.
    fn follow(&mut self, record: &TraceRecord, maps: &Maps) {
        if record.packet != self.packet {
            *self = Self { packet: record.packet, ..Self::default() };
        }
        let [number, ..] = record.values;
        match Step::ALL.get(record.step as usize) {
            Some(Step::Service) if (number as usize) < maps.services.len() => {
                self.service = maps.services.load(number as usize).name.as_str().to_owned();
            }
            Some(Step::Tenant) => {
                self.tenant = maps.tenant_name(number as u32);
                self.parents = maps.parents(number as u32).map(|parent| maps.tenant_name(parent));
            }
            _ => {}
        }
    }
}

/// A step in a line; `None` of one that this version does not know. The time is UTC.
fn line(record: &TraceRecord, names: &Names, clock_offset_ns: u64) -> Option<String> {
    let step = *Step::ALL.get(usize::try_from(record.step).ok()?)?;
    let time = time(record.at_ns.saturating_add(clock_offset_ns));
    let source = IpAddr::V6(Ipv6Addr::from(record.source)).to_canonical();
    let values = values(step, record.values, names)?;
    Some(format!("{time} {source} #{} {}: {values}", record.packet, step.name()))
}

fn values(step: Step, [a, b, c, d]: [u64; 4], names: &Names) -> Option<String> {
    Some(match step {
        Step::Headers => {
            let version = if b == 0 { "IPv4" } else { "IPv6" };
            let transport = match a {
                6 => "TCP".to_owned(),
                17 => "UDP".to_owned(),
                other => format!("protocol {other}"),
            };
            let kind = ["", ", a first fragment", ", a later fragment", ", too many headers"];
            format!("{version}, {transport} at byte {d}{}", kind.get(c as usize)?)
        }
        Step::ReadAgain => "the headers lie outside the frame's linear part, and are read again".to_owned(),
        Step::Port => {
            format!("{a}, {}", if b == 0 { "no service listens there" } else { "a service listens there" })
        }
        Step::Payload if d == 2 => "malformed".to_owned(),
        Step::Payload => {
            let flags = if c == 0 { String::new() } else { format!(", flags {}", tcp_flags(c)) };
            let fragment = if d == 0 { "" } else { ", in a first fragment" };
            format!("{b} bytes at byte {a}{flags}{fragment}")
        }
        Step::Service => names.service.clone(),
        Step::Tenant if a == 0 => "nobody".to_owned(),
        Step::Tenant => names.tenant.clone(),
        Step::Price => {
            let by = ["by its length", "a single get", "by its commands"].get(a as usize)?;
            let scaled =
                if b == c { String::new() } else { format!(", {} RU with multipliers", thousandths(c)) };
            let stale = if d == 0 { "" } else { ", the heartbeat is stale" };
            format!("{} RU, {by}{scaled}{stale}", thousandths(b))
        }
        Step::Pushed => match a.checked_sub(1) {
            None => "nothing is refused ahead".to_owned(),
            Some(reason) => Reason::ALL.get(reason as usize)?.name().to_owned(),
        },
        Step::Connection => (*["open, or not to be known", "closed", "none"].get(a as usize)?).to_owned(),
        Step::Bucket => bucket(a, [b, c, d], names)?,
        Step::Refusal => {
            let reason = Reason::ALL.get(a as usize)?.name();
            let of = match names.parents.get(c as usize) {
                Some(parent) => format!(" of {parent}"),
                None => String::new(),
            };
            let shadowed = if b == 0 { "" } else { ", only counted" };
            format!("{reason}{of}{shadowed}")
        }
        Step::Reply => match TracedReply::ALL.get(a as usize)? {
            TracedReply::Written => "written",
            TracedReply::NotAllowed => "none is allowed",
            TracedReply::NoBudget => "none, reply_budget is spent",
            TracedReply::NoRoom => "none, the driver leaves no room",
        }
        .to_owned(),
        Step::Mark => "charged, for the daemon".to_owned(),
        Step::Exit => {
            let action = ["XDP_ABORTED", "XDP_DROP", "XDP_PASS", "XDP_TX"].get(b as usize)?;
            format!("{}, {action}", Exit::ALL.get(a as usize)?.name())
        }
    })
}

/// A bucket's charge, in shares of its burst, as `gate tenants` shows what is left.
fn bucket(numbers: u64, [lacks_ns, cost_ns, burst_ns]: [u64; 3], names: &Names) -> Option<String> {
    let bucket = match TracedBucket::ALL.get((numbers & 0xff) as usize)? {
        TracedBucket::Quota => format!("quota of {}", names.tenant),
        TracedBucket::FirstParent => format!("quota of {}", names.parents[0]),
        TracedBucket::SecondParent => format!("quota of {}", names.parents[1]),
        TracedBucket::Candidate => "candidate".to_owned(),
        TracedBucket::Tcp => "tcp_quota".to_owned(),
        TracedBucket::Reply => "reply_budget".to_owned(),
        TracedBucket::Syn => "syn_rate".to_owned(),
        TracedBucket::UnknownSyn => "unknown_syn_rate".to_owned(),
        TracedBucket::Key => "hot_key_limit".to_owned(),
    };
    let percent = |ns: f64| format!("{:.2} %", ns / burst_ns.max(1) as f64 * 100.0);
    let cost = percent(cost_ns as f64);
    let left = percent(burst_ns as f64 - lacks_ns as f64);
    Some(match TracedCharge::ALL.get((numbers >> 8) as usize)? {
        TracedCharge::Charged => format!("{bucket}: took {cost} of its burst; {left} left"),
        TracedCharge::Lacks => format!("{bucket}: lacks the price, {cost} of its burst; {left} left"),
        TracedCharge::TooLarge => format!("{bucket}: {cost} of its burst is more than it may owe"),
        TracedCharge::GivenBack => format!("{bucket}: {cost} of its burst given back"),
    })
}

fn missed_line(missed: Missed, reported: Missed, unix_ns: u64) -> String {
    let packets = missed.packets - reported.packets;
    let steps = missed.steps - reported.steps;
    format!(
        "{} not traced: {packets} packets above 100 a second, {steps} steps for want of room\n",
        time(unix_ns)
    )
}

/// A time of the day, in microseconds.
fn time(unix_ns: u64) -> String {
    let us = unix_ns / 1_000 % 86_400_000_000;
    let secs = us / 1_000_000;
    let us = us % 1_000_000;
    format!("{:02}:{:02}:{:02}.{us:06}", secs / 3_600, secs / 60 % 60, secs % 60)
}

fn thousandths(number: u64) -> String {
    format!("{}.{:03}", number / 1_000, number % 1_000)
}

fn tcp_flags(flags: u64) -> String {
    const NAMES: [&str; 8] = ["FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"];
    let set = NAMES.iter().enumerate().filter(|(bit, _)| flags & 1 << bit != 0);
    set.map(|(_, name)| *name).collect::<Vec<_>>().join("+")
}

/// How often what was not traced is reported.
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// The most that is written at once.
const MOST_BYTES: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_is_a_line_with_its_values() {
        let names = Names {
            packet: 7,
            service: "cache".to_owned(),
            tenant: "a".to_owned(),
            parents: ["whole".to_owned(), String::new()],
        };
        let source = "198.18.0.2".parse::<std::net::Ipv4Addr>().unwrap().to_ipv6_mapped().octets();
        for (step, values, expected) in [
            (Step::Headers, [17, 0, 0, 34], "headers: IPv4, UDP at byte 34"),
            (Step::Headers, [6, 1, 1, 62], "headers: IPv6, TCP at byte 62, a first fragment"),
            (
                Step::ReadAgain,
                [0; 4],
                "read-again: the headers lie outside the frame's linear part, and are read again",
            ),
            (Step::Port, [53, 0, 0, 0], "port: 53, no service listens there"),
            (Step::Payload, [42, 13, 0, 0], "payload: 13 bytes at byte 42"),
            (Step::Payload, [54, 0, 0x12, 0], "payload: 0 bytes at byte 54, flags SYN+ACK"),
            (Step::Payload, [0, 0, 0, 2], "payload: malformed"),
            (Step::Service, [3, 9, 0, 0], "service: cache"),
            (Step::Tenant, [0; 4], "tenant: nobody"),
            (Step::Tenant, [1, 0, 0, 0], "tenant: a"),
            (Step::Price, [1, 1_000, 1_000, 0], "price: 1.000 RU, a single get"),
            (
                Step::Price,
                [2, 20, 80, 1],
                "price: 0.020 RU, by its commands, 0.080 RU with multipliers, the heartbeat is stale",
            ),
            (Step::Pushed, [0; 4], "pushed: nothing is refused ahead"),
            (Step::Pushed, [4, 0, 0, 0], "pushed: penalty"),
            (Step::Connection, [2, 0, 0, 0], "connection: none"),
            (
                Step::Bucket,
                [0, 1_500_000, 500_000, 10_000_000],
                "bucket: quota of a: took 5.00 % of its burst; 85.00 % left",
            ),
            (
                Step::Bucket,
                [0x101, 10_000_000, 500_000, 10_000_000],
                "bucket: quota of whole: lacks the price, 5.00 % of its burst; 0.00 % left",
            ),
            (
                Step::Bucket,
                [0x300, 0, 500_000, 10_000_000],
                "bucket: quota of a: 5.00 % of its burst given back",
            ),
            (Step::Refusal, [0, 0, 0, 0], "refusal: quota of whole"),
            (Step::Refusal, [11, 1, u64::from(u32::MAX), 0], "refusal: unknown-source, only counted"),
            (Step::Reply, [2, 0, 0, 0], "reply: none, reply_budget is spent"),
            (Step::Mark, [0; 4], "mark: charged, for the daemon"),
            (Step::Exit, [13, 3, 0, 0], "exit: refused-replied, XDP_TX"),
        ] {
            let record =
                TraceRecord { at_ns: 3_723_000_004_000, packet: 7, source, step: step as u64, values };
            let expected = format!("01:02:03.000004 198.18.0.2 #7 {expected}");
            assert_eq!(line(&record, &names, 0), Some(expected));
        }
        let unknown = TraceRecord { step: Step::ALL.len() as u64, ..TraceRecord::default() };
        assert_eq!(line(&unknown, &names, 0), None);
    }
}
