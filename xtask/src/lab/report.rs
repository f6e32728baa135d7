//! The output of the lab: a table every second, and a summary at the end.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{IsTerminal as _, stdout};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::chart::Chart;
use super::counts::{Count, Snapshot};
use super::tenants::Tenant;

/// The counters over the run, as far as they are needed.
#[derive(Debug)]
pub struct History {
    first: Snapshot,
    steady: Option<Snapshot>,
    before_last: Snapshot,
    last: Snapshot,
    /// For the picture: the first readings, at most [`MAX_POINTS`].
    rates: Vec<Rates>,
}

/// The rates between two readings.
#[derive(Debug, Clone)]
pub struct Rates {
    /// Seconds from the start to the second reading.
    pub seconds: f64,
    /// By tenant: requests that passed and that were refused, a second.
    pub per_sec: BTreeMap<String, (f64, f64)>,
}

impl Rates {
    /// The rates of a tenant that passed and were refused; zero if it was not seen.
    #[must_use]
    pub fn of(&self, tenant: &Tenant) -> (f64, f64) {
        self.per_sec.get(tenant.name).copied().unwrap_or_default()
    }
}

/// How many seconds the picture shows.
const MAX_POINTS: usize = 600;
/// After so long every burst is spent and every program is warm.
const WARM_UP: Duration = Duration::from_secs(2);

impl History {
    /// Begins now, with a gate that has counted nothing yet.
    #[must_use]
    pub fn begin() -> Self {
        let first = Snapshot { at: Instant::now(), tenants: BTreeMap::new() };
        Self { before_last: first.clone(), last: first.clone(), steady: None, first, rates: Vec::new() }
    }

    /// Adds counters read while the tenants ask.
    pub fn add(&mut self, snapshot: Snapshot) {
        if self.steady.is_none() && snapshot.at >= self.first.at + WARM_UP {
            self.steady = Some(snapshot.clone());
        }
        self.before_last = std::mem::replace(&mut self.last, snapshot);
        if self.rates.len() < MAX_POINTS {
            self.rates.push(self.latest());
        }
    }

    /// Requests that passed and that were refused, second by second, and the quotas.
    #[must_use]
    pub fn chart(&self, tenants: &[Tenant]) -> Chart {
        let mut chart = Chart { title: "tenants".to_owned(), ..Chart::default() };
        for rates in &self.rates {
            for tenant in tenants {
                let (passed, refused) = rates.of(tenant);
                chart.add(&format!("{} passed", tenant.name), rates.seconds, passed);
                chart.add(&format!("{} refused", tenant.name), rates.seconds, refused);
            }
        }
        chart
    }

    /// The rates between the last two readings.
    fn latest(&self) -> Rates {
        let Self { first, before_last: before, last: now, .. } = self;
        let elapsed = (now.at - before.at).as_secs_f64();
        let per_sec = now.tenants.keys().map(|name| {
            let count = now.of(name).since(&before.of(name));
            let per_sec = |count: u64| count as f64 / elapsed;
            (name.clone(), (per_sec(count.passed), per_sec(count.refused_total())))
        });
        Rates { seconds: (now.at - first.at).as_secs_f64(), per_sec: per_sec.collect() }
    }

    /// How long it lasted after the warm-up, and how many requests of `tenant` passed meanwhile.
    fn steady(&self, tenant: &str) -> (Duration, u64) {
        let Some(steady) = &self.steady else { return (Duration::ZERO, 0) };
        (self.last.at - steady.at, self.last.of(tenant).since(&steady.of(tenant)).passed)
    }
}

/// The live view: a table that is redrawn on a terminal, a line a second elsewhere.
#[derive(Debug)]
pub struct View {
    tenants: &'static [Tenant],
    terminal: bool,
    drawn: usize,
}

impl View {
    /// Shows `tenants` on this process's standard output.
    #[must_use]
    pub fn new(tenants: &'static [Tenant]) -> Self {
        Self { tenants, terminal: stdout().is_terminal(), drawn: 0 }
    }

    /// Shows what happened between the last two readings.
    pub fn draw(&mut self, history: &History) {
        let History { before_last: before, last: now, .. } = history;
        let elapsed = (now.at - before.at).as_secs_f64();
        let seconds = (now.at - history.first.at).as_secs();
        let count = |tenant: &Tenant| now.of(tenant.name).since(&before.of(tenant.name));
        let counts = self.tenants.iter().map(|tenant| (tenant, count(tenant)));
        let per_sec = |count: u64| grouped((count as f64 / elapsed).round() as u64);
        if !self.terminal {
            let tenants = counts.map(|(tenant, count)| {
                let passed = per_sec(count.passed);
                let refused = per_sec(count.refused_total());
                format!("{} {passed}/s passed, {refused}/s refused", tenant.name)
            });
            println!("{seconds:>4} s  {}", tenants.collect::<Vec<_>>().join("; "));
            return;
        }
        let mut lines = vec![format!(
            "{:<8}{:>12}{:>12}{:>12}{:>12}  why",
            format!("{seconds} s"),
            "quota/s",
            "asked/s",
            "passed/s",
            "refused/s"
        )];
        lines.extend(counts.map(|(tenant, count)| {
            format!(
                "{:<8}{:>12}{:>12}{:>12}{:>12}  {}",
                tenant.name,
                grouped(tenant.quota_ru_per_sec.into()),
                per_sec(count.passed + count.refused_total()),
                per_sec(count.passed),
                per_sec(count.refused_total()),
                count.refused.keys().map(String::as_str).collect::<Vec<_>>().join(", ")
            )
        }));
        if self.drawn > 0 {
            // Up to where the last table began, and clear from there.
            print!("\x1b[{}A\x1b[J", self.drawn);
        }
        self.drawn = lines.len();
        println!("{}", lines.join("\n"));
    }
}

/// The result of the run.
#[derive(Debug)]
pub struct Summary {
    tenants: Vec<Outcome>,
    /// The result of the client of the proxied service, where the others ask at the interface.
    proxied: Option<Value>,
    hot_keys: Vec<Value>,
}

#[derive(Debug)]
struct Outcome {
    tenant: &'static Tenant,
    /// The result of its client.
    client: Value,
    /// The gate's counters.
    count: Count,
    steady: (Duration, u64),
}

impl Summary {
    /// From the gate's last counters, `gate load --json` of both services, and `gate hotkeys --json`.
    #[must_use]
    pub fn new(
        tenants: &'static [Tenant],
        history: &History,
        end: &Snapshot,
        load: &Value,
        proxied: Option<&Value>,
        hot_keys: Vec<Value>,
    ) -> Self {
        let clients: BTreeMap<&str, &Value> = load["tenants"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|client| Some((client["name"].as_str()?, client)))
            .collect();
        let tenants = tenants.iter().map(|tenant| Outcome {
            tenant,
            client: clients.get(tenant.name).map_or(Value::Null, |client| (*client).clone()),
            count: end.of(tenant.name),
            steady: history.steady(tenant.name),
        });
        let proxied = proxied.map(|proxied| proxied["tenants"][0].clone());
        Self { tenants: tenants.collect(), proxied, hot_keys }
    }

    /// For `--json`.
    #[must_use]
    pub fn json(&self) -> Value {
        let tenants: Vec<_> = self.tenants.iter().map(Outcome::json).collect();
        json!({ "tenants": tenants, "proxied": self.proxied, "hot_keys": self.hot_keys })
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<8}{:>10}{:>12}{:>12}{:>12}{:>12}{:>10}{:>10}  refused by reason",
            "tenant", "quota/s", "offered", "passed", "steady/s", "refused", "p50", "p99"
        )?;
        for Outcome { tenant, client, count, steady: (over, passed) } in &self.tenants {
            let steady = if over.is_zero() {
                "-".to_owned()
            } else {
                grouped((*passed as f64 / over.as_secs_f64()).round() as u64)
            };
            let by_reason: Vec<_> =
                count.refused.iter().map(|(reason, count)| format!("{reason} {}", grouped(*count))).collect();
            writeln!(
                f,
                "{:<8}{:>10}{:>12}{:>12}{:>12}{:>12}{:>10}{:>10}  {}",
                tenant.name,
                grouped(tenant.quota_ru_per_sec.into()),
                client["offered"].as_u64().map_or_else(|| "-".to_owned(), grouped),
                grouped(count.passed),
                steady,
                grouped(count.refused_total()),
                latency(client["latency_ns"]["p50"].as_u64().unwrap_or(0)),
                latency(client["latency_ns"]["p99"].as_u64().unwrap_or(0)),
                by_reason.join(", ")
            )?;
        }
        writeln!(
            f,
            "offered, p50 and p99 (of answers by the store) are the clients'; the rest is the gate's; steady/s is passed after {} s",
            WARM_UP.as_secs()
        )?;
        self.proxied.iter().try_for_each(|proxied| fmt_proxied(proxied, f))?;
        writeln!(f, "\nhot keys, by sampled requests of the last seconds:")?;
        for key in &self.hot_keys {
            let number = |field: &str| key[field].as_u64().map_or_else(|| "-".to_owned(), grouped);
            let text = |field: &str| key[field].as_str().unwrap_or("-").to_owned();
            writeln!(
                f,
                "{:>10}  at most {:>5} too many  {:7}  {}",
                number("estimate"),
                number("error"),
                text("service"),
                text("key")
            )?;
        }
        Ok(())
    }
}

/// The line of who asks through the daemon, where others ask at the interface.
fn fmt_proxied(proxied: &Value, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let number = |field: &str| proxied[field].as_u64().map_or_else(|| "-".to_owned(), grouped);
    let quantile = |name: &str| latency(proxied["latency_ns"][name].as_u64().unwrap_or(0));
    writeln!(
        f,
        "\nthrough the daemon, over TCP: offered {}, answered {}, refused {}, p50 {}, p99 {}",
        number("offered"),
        number("answered"),
        number("refused"),
        quantile("p50"),
        quantile("p99")
    )
}

impl Outcome {
    fn json(&self) -> Value {
        let Self { tenant, client, count, steady: (over, passed) } = self;
        json!({
            "name": tenant.name,
            "quota_ru_per_sec": tenant.quota_ru_per_sec,
            "offered": client["offered"],
            "passed": count.passed,
            "refused": count.refused_total(),
            "refused_by_reason": count.refused,
            "steady_seconds": over.as_secs_f64(),
            "steady_passed": passed,
            "p50_ns": client["latency_ns"]["p50"],
            "p99_ns": client["latency_ns"]["p99"],
            "client": client,
        })
    }
}

/// 1234567 as 1,234,567.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A time as people read it; there is none of 0 ns.
pub(super) fn latency(nanos: u64) -> String {
    match nanos {
        0 => "-".to_owned(),
        1..1_000_000 => format!("{} µs", nanos / 1_000),
        1_000_000..1_000_000_000 => format!("{:.1} ms", nanos as f64 / 1e6),
        _ => format!("{:.1} s", nanos as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_grouped() {
        for (number, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(grouped(number), text);
        }
    }
}
