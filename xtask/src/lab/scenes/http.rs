//! An HTTP service that is asked for three times what it can do: the batch tenant is refused, and the critical one keeps its
//! answers and their time.

use std::time::Duration;

use anyhow::Result;

use super::{Outcome, WITH, WITHOUT, first_broken, part, percent, share};
use crate::lab::picture::{Bar, Comparison};
use crate::lab::report::latency;
use crate::lab::stage::{Load, Protocol, Seen, Stage};

/// A request takes the store so long, and it works at two of them.
const SERVICE_TIME: Duration = Duration::from_millis(8);
const WORKERS: u32 = 2;
/// Offered by each, as a multiple of what the store can do.
const CRITICAL: f64 = 0.4;
const BATCH: f64 = 2.6;
/// The objectives, in service times: half of the answers, and 90 % of them.
const P50: u32 = 10;
const P90: u32 = 20;

/// Both callers' views.
#[derive(Debug, Clone, Copy, Default)]
struct Measured {
    search: Seen,
    reports: Seen,
}

pub(super) fn play(stage: &mut Stage<'_>, time: Duration) -> Result<Outcome> {
    start_store(stage)?;
    let store = stage.place.store();
    let without = measure(stage, WITHOUT, store, part(time, 0.3), [CRITICAL, BATCH])?;
    start_store(stage)?;
    start_gate(stage)?;
    let gate = stage.place.gate();
    measure(stage, "as usual", gate, part(time, 0.2), [CRITICAL, CRITICAL])?;
    let with = measure(stage, WITH, gate, part(time, 0.5), [CRITICAL, BATCH])?;
    let served = |measured: &Measured| {
        let Measured { search, reports } = measured;
        format!(
            "{} of search answered, p90 {}; of reports {} refused",
            percent(share(search.answered, search.offered)),
            latency(search.latency.p90),
            percent(share(reports.refused, reports.offered))
        )
    };
    let result = format!("{}; without gate {}", served(&with), served(&without));
    let seconds = [0.3, 0.5].map(|share| part(time, share).as_secs_f64());
    Ok(Outcome { result, compared: compared([&without, &with], seconds), claim: claim(&without, &with) })
}

fn start_store(stage: &mut Stage<'_>) -> Result<u32> {
    let service_time = format!("{}us", SERVICE_TIME.as_micros());
    let workers = WORKERS.to_string();
    stage.start_store(Protocol::Http, &["--concurrency", &workers, "--service-time", &service_time])
}

fn measure(
    stage: &mut Stage<'_>,
    phase: &str,
    target: std::net::SocketAddr,
    time: Duration,
    loads: [f64; 2],
) -> Result<Measured> {
    let capacity = f64::from(WORKERS) / SERVICE_TIME.as_secs_f64();
    let caller = |name: &str, number, load: f64| {
        let source = stage.place.source(number);
        format!("name={name},source={source},rate={}/s,connections=64", (load * capacity) as u32)
    };
    let [search, reports] = loads;
    let callers = vec![caller("search", 1, search), caller("reports", 2, reports)];
    let load = Load { target, how: &["--protocol", "http", "--timeout", "3s"], fill: None, callers };
    let played = stage.play(phase, time, &[load], |_, _| Ok(()))?;
    Ok(Measured { search: played.of("search"), reports: played.of("reports") })
}

fn start_gate(stage: &mut Stage<'_>) -> Result<()> {
    let gate = stage.place.gate().to_string();
    let store = stage.place.store().to_string();
    let [search, reports] = [1, 2].map(|number| stage.place.source(number));
    let [p50, p90] = [P50, P90].map(|times| (SERVICE_TIME * times).as_micros());
    stage.start_gate(&format!(
        "[[service]]\nname = \"search\"\nprotocol = \"http\"\nlisten = \"{gate}\"\nbackend = \"{store}\"\n\
         parallelism = \"{WORKERS}\"\nadmission = \"bouncer\"\nhistogram_values = \"100\"\n\
         objectives = {{ default = {{ p50 = \"{p50}us\", p90 = \"{p90}us\" }} }}\n\
         # A machine that also builds and browses is no place to judge a store by its latency.\n\
         shedding = {{ enabled = \"off\" }}\n\
         [[tenant]]\nname = \"search\"\nsources = [\"{search}\"]\nquota = \"unlimited\"\ntier = \"critical\"\n\
         [[tenant]]\nname = \"reports\"\nsources = [\"{reports}\"]\nquota = \"unlimited\"\ntier = \"batch\"\n"
    ))
}

/// For so many seconds of each phase.
fn compared([without, with]: [&Measured; 2], seconds: [f64; 2]) -> [Comparison; 2] {
    let phases = [(WITHOUT, without, seconds[0]), (WITH, with, seconds[1])];
    let search = |(phase, measured, _): (_, &Measured, _)| {
        Bar::latency(phase, measured.search.latency.p90, &measured.search)
    };
    let reports = |(phase, measured, seconds): (_, &Measured, _)| {
        Bar::per_sec(phase, measured.reports.answered, seconds)
    };
    [
        Comparison { of: "search, critical: p90 of its answers".to_owned(), bars: phases.map(search).into() },
        Comparison { of: "reports, batch: served".to_owned(), bars: phases.map(reports).into() },
    ]
}

fn claim(without: &Measured, with: &Measured) -> Result<(), String> {
    // A third more, for what else the machine does meanwhile.
    let most = (SERVICE_TIME * P90).as_nanos() as u64 * 4 / 3;
    let p90 = |seen: &Seen| format!("search answered at p90 {}", latency(seen.latency.p90));
    let answered = share(with.search.answered, with.search.offered);
    let refused = share(with.reports.refused, with.reports.offered);
    let lost = share(without.search.unanswered(), without.search.offered);
    first_broken([
        (
            lost > 0.2 || without.search.latency.p90 > most * 3 / 2,
            format!("without gate {}", p90(&without.search)),
        ),
        (answered >= 0.95, format!("with gate {} of search were answered", percent(answered))),
        (with.search.latency.p90 <= most, format!("with gate {}", p90(&with.search))),
        ((0.1..1.0).contains(&refused), format!("with gate {} of reports were refused", percent(refused))),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::stage::Quantiles;

    #[test]
    fn critical_keeps_its_answers_and_batch_gives_way() {
        let seen = |answered, refused, p90_ms: u64| Seen {
            offered: 1_000,
            answered,
            refused,
            latency: Quantiles { p90: p90_ms * 1_000_000, ..Quantiles::default() },
            ..Seen::default()
        };
        let good = Measured { search: seen(990, 10, 100), reports: seen(300, 700, 100) };
        let late = Measured { search: seen(1_000, 0, 2_000), reports: seen(1_000, 0, 2_000) };
        let lost = Measured { search: Seen { lost: 600, ..seen(400, 0, 50) }, ..late };
        for (without, with, broken) in [
            (late, good, None),
            (lost, good, None),
            (good, good, Some("without gate search answered at p90 100.0 ms")),
            (late, late, Some("with gate search answered at p90")),
            (late, Measured { search: seen(900, 100, 100), ..good }, Some("90.0 % of search")),
            (late, Measured { reports: seen(1_000, 0, 100), ..good }, Some("0.0 % of reports were refused")),
            (late, Measured { reports: seen(0, 1_000, 100), ..good }, Some("100.0 % of reports")),
        ] {
            let said = claim(&without, &with).err();
            assert_eq!(said.is_some(), broken.is_some(), "{said:?}");
            assert!(said.unwrap_or_default().contains(broken.unwrap_or_default()), "{broken:?}");
        }
    }
}
