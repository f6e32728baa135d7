//! The output of a fleet's lab: a line a second, and a summary at the end.

use std::fmt;
use std::net::SocketAddr;

use serde_json::{Value, json};

use super::limits::GREEDY;
use super::measurement::{Account, Measurement};
use super::traffic::Counts;
use crate::lab::chart::Chart;
use crate::lab::report::grouped;
use crate::lab::scenes::percent;

/// The lines, and the picture of the same.
#[derive(Debug, Default)]
pub(super) struct View {
    shown: Counts,
    pub(super) chart: Chart,
}

impl View {
    /// Prints what happened since the last line.
    pub(super) fn show(&mut self, counts: &Counts, decides: Option<SocketAddr>) {
        let seconds = counts.seconds;
        let earlier = std::mem::replace(&mut self.shown, *counts);
        let per_sec = |count: u64| (count as f64 / (seconds - earlier.seconds).max(0.1)).round();
        let rate = |count: u64| grouped(per_sec(count) as u64);
        let gates = counts.greedy.iter().zip(&earlier.greedy);
        let gates: Vec<_> = gates.map(|(now, before)| now.since(Some(before)).answered).collect();
        let total: u64 = gates.iter().sum();
        let polite = counts.polite.since(Some(&earlier.polite));
        let envoy = counts.envoy.since(Some(&earlier.envoy));
        let shares: Vec<_> = gates.iter().map(|given| rate(*given)).collect();
        println!(
            "{seconds:>4.0} s  greedy {} of {} RU/s: {}, {}; polite {}, {} refused; Envoy 200: {}, 429: {}",
            rate(total),
            grouped(GREEDY.per_sec.into()),
            shares.join(" + "),
            decides.map_or_else(|| "no owner".to_owned(), |owner| format!("by {owner}")),
            rate(polite.answered),
            rate(polite.refused),
            rate(envoy.answered),
            rate(envoy.refused),
        );
        if seconds > MOST_DRAWN_SECS {
            return;
        }
        self.chart.add("greedy", seconds, per_sec(total));
        for (number, given) in gates.iter().enumerate() {
            self.chart.add(&format!("greedy at gate-{}", number + 1), seconds, per_sec(*given));
        }
        self.chart.add("polite", seconds, per_sec(polite.answered));
        self.chart.add("Envoy", seconds, per_sec(envoy.answered));
    }

    /// Prints an event.
    pub(super) fn event(&self, seconds: f64, text: &str) {
        println!("{seconds:>4.0} s  {text}");
    }

    /// Draws the beginning of a phase.
    pub(super) fn phase(&mut self, seconds: f64, name: &str) {
        if seconds <= MOST_DRAWN_SECS {
            self.chart.phases.push((seconds, name.to_owned()));
        }
    }
}

/// The result of a run.
#[derive(Debug)]
pub(super) struct Summary {
    pub(super) measurement: Measurement,
    /// How long the clients asked.
    pub(super) seconds: f64,
}

impl Summary {
    /// For `--json`, with what came of the claim.
    pub(super) fn json(&self, claim: &Result<(), String>) -> Value {
        let limits: Vec<_> = self.measurement.accounts.iter().map(|account| self.account(account)).collect();
        let takeovers = self.measurement.takeovers.iter().map(|takeover| {
            json!({
                "killed": takeover.killed.to_string(),
                "by": takeover.by.map(|by| by.to_string()),
                "seconds": takeover.took.as_secs_f64(),
            })
        });
        json!({
            "seconds": self.seconds,
            "limits": limits,
            "takeovers": takeovers.collect::<Vec<_>>(),
            "holds": claim.is_ok(),
            "broken": claim.as_ref().err(),
        })
    }

    fn account(&self, account: &Account) -> Value {
        let Account { limit, seen, steady, takeover, most_per_sec, .. } = account;
        json!({
            "name": limit.name,
            "client": limit.client,
            "limit_ru_per_sec": limit.per_sec,
            "offered": seen.offered,
            "answered": seen.answered,
            "refused": seen.refused,
            "failed": account.failed(),
            "steady_seconds": steady.seconds,
            "steady_ru_per_sec": steady.per_sec(),
            "takeover_seconds": takeover.seconds,
            "takeover_ru_per_sec": takeover.per_sec(),
            "most_in_10_s_ru_per_sec": most_per_sec,
        })
    }

    fn write_account(&self, account: &Account, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Account { limit, seen, steady, takeover, most_per_sec, .. } = account;
        let rate =
            |per_sec: f64| if per_sec > 0.0 { grouped(per_sec.round() as u64) } else { "-".to_owned() };
        let most = if *most_per_sec > 0.0 { percent(account.share(*most_per_sec)) } else { "-".to_owned() };
        writeln!(
            f,
            "{:<8}{:>9}{:>9}{:>10}{:>10}{:>12}{:>14}{:>10}{:>8}",
            limit.client,
            grouped(limit.per_sec.into()),
            rate(seen.offered as f64 / self.seconds),
            rate(steady.per_sec()),
            percent(account.share(steady.per_sec())),
            rate(takeover.per_sec()),
            most,
            grouped(seen.refused),
            grouped(account.failed()),
        )
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<8}{:>9}{:>9}{:>10}{:>10}{:>12}{:>14}{:>10}{:>8}",
            "client",
            "limit/s",
            "asked/s",
            "steady/s",
            "of limit",
            "takeover/s",
            "most in 10 s",
            "refused",
            "failed"
        )?;
        let Measurement { accounts, takeovers } = &self.measurement;
        accounts.iter().try_for_each(|account| self.write_account(account, f))?;
        let steady = accounts[0].steady.seconds;
        let takeover = accounts[0].takeover.seconds;
        writeln!(
            f,
            "takeover/s is the mean of the {takeover:.0} s in which owners changed, steady/s of {steady:.0} others"
        )?;
        for takeover in takeovers {
            let seconds = takeover.took.as_secs_f64();
            match takeover.by {
                Some(by) => writeln!(f, "{by} decided {seconds:.1} s after {} was killed", takeover.killed)?,
                None => {
                    writeln!(f, "{} was killed, and for {seconds:.1} s no other decided", takeover.killed)?
                }
            }
        }
        Ok(())
    }
}

/// How many seconds the picture shows.
const MOST_DRAWN_SECS: f64 = 600.0;
