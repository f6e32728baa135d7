//! A store that slows down: the lowest tier is refused at the interface, and `critical` is served.

use std::time::Duration;

use anyhow::Result;

use super::cpu_limit::CpuLimit;
use super::{Outcome, WITH, WITHOUT, first_broken, part, percent, share};
use crate::lab::picture::{Bar, Comparison};
use crate::lab::report::grouped;
use crate::lab::stage::{Load, Phase, Protocol, Seen, Stage};

/// Of one CPU; the store needs more than twice as much for what it is asked.
const SHARE: f64 = 0.04;
const CRITICAL_PER_SEC: u32 = 300;
const BEST_EFFORT_PER_SEC: u32 = 20_000;
/// gate sees the store slow down, makes the lowest tier dearer tick by tick, and then refuses it.
const REACTION: Duration = Duration::from_millis(2_500);

/// Both tiers' views while the store is slow.
#[derive(Debug, Clone, Copy, Default)]
struct Measured {
    critical: Seen,
    best_effort: Seen,
}

pub(super) fn play(stage: &mut Stage<'_>, time: Duration) -> Result<Outcome> {
    let store = stage.start_store(Protocol::Memcached, &[])?;
    let slow = CpuLimit::start(store, SHARE)?;
    let without = ask(stage, "slow, without gate", part(time, 0.2))?;
    let without = measured(&without, None);
    drop(slow);
    start_gate(stage)?;
    ask(stage, "as usual", part(time, 0.25))?;
    let slow = CpuLimit::start(store, SHARE)?;
    let with = ask(stage, "slow, with gate", part(time, 0.55))?;
    drop(slow);
    let reaction = REACTION.min(part(time, 0.55) / 2);
    let with = measured(&with, Some(reaction.as_secs_f64()));
    let result = format!(
        "once the lowest tier is refused ({} of its requests), `critical` misses {} of its answers; without gate {}",
        percent(missed(&with.best_effort)),
        percent(missed(&with.critical)),
        percent(missed(&without.critical))
    );
    let seconds = [part(time, 0.2), part(time, 0.55) - reaction].map(|time| time.as_secs_f64());
    Ok(Outcome { result, compared: compared([&without, &with], seconds), claim: claim(&without, &with) })
}

fn start_gate(stage: &mut Stage<'_>) -> Result<()> {
    let [critical, best_effort] = [1, 2].map(|number| stage.place.source(number));
    let store = stage.place.store();
    stage.start_gate(&format!(
        "[[service]]\nname = \"cache\"\nprotocol = \"memcached\"\nlisten = \"{store}\"\n\
         probe = {{ every = \"5ms\" }}\n\
         # The machine's other work is no reason to refuse, nor is there time to let the tier in again and again.\n\
         shedding = {{ short = \"500ms\", floor = \"15ms\", wait = \"60s\", longest_wait = \"60s\" }}\n\
         [[tenant]]\nname = \"critical\"\nsources = [\"{critical}\"]\nquota = \"unlimited\"\ntier = \"critical\"\n\
         [[tenant]]\nname = \"best-effort\"\nsources = [\"{best_effort}\"]\nquota = \"unlimited\"\ntier = \"best-effort\"\n"
    ))
}

fn ask(stage: &mut Stage<'_>, phase: &str, time: Duration) -> Result<Phase> {
    let caller = |name: &str, number, rate: u32| {
        let source = stage.place.source(number);
        format!("name={name},source={source},rate={rate}/s,reads=90%")
    };
    let critical = caller("critical", 1, CRITICAL_PER_SEC);
    let best_effort = caller("best-effort", 2, BEST_EFFORT_PER_SEC);
    let callers = vec![critical, best_effort];
    let load =
        Load { target: stage.place.store(), how: &["--udp", "--timeout", "400ms"], fill: None, callers };
    stage.play(phase, time, &[load], |_, _| Ok(()))
}

/// From then on, in seconds since the phase began, or all of it.
fn measured(played: &Phase, from: Option<f64>) -> Measured {
    let seen = |caller| from.map_or_else(|| played.of(caller), |from| played.from(from, caller));
    Measured { critical: seen("critical"), best_effort: seen("best-effort") }
}

/// The share of a tier's requests that were refused or never answered.
fn missed(seen: &Seen) -> f64 {
    share(seen.offered.saturating_sub(seen.answered), seen.offered)
}

/// For so many seconds of each phase.
fn compared([without, with]: [&Measured; 2], seconds: [f64; 2]) -> [Comparison; 2] {
    let answers = |phase, seen: &Seen, seconds| Bar::per_sec(phase, seen.answered, seconds);
    [
        Comparison {
            of: format!("critical: served while the store is slow, of {CRITICAL_PER_SEC}/s"),
            bars: vec![
                answers(WITHOUT, &without.critical, seconds[0]),
                answers(WITH, &with.critical, seconds[1]),
            ],
        },
        Comparison {
            of: format!(
                "best-effort: served while the store is slow, of {}/s",
                grouped(BEST_EFFORT_PER_SEC.into())
            ),
            bars: vec![
                answers(WITHOUT, &without.best_effort, seconds[0]),
                answers(WITH, &with.best_effort, seconds[1]),
            ],
        },
    ]
}

fn claim(without: &Measured, with: &Measured) -> Result<(), String> {
    let [before, after] = [without, with].map(|measured| missed(&measured.critical));
    let given_way = missed(&with.best_effort);
    first_broken([
        (
            before >= 0.1,
            format!("without gate `critical` missed only {}: the store was not slow", percent(before)),
        ),
        (with.best_effort.refused > 0, "the lowest tier was not refused".to_owned()),
        (given_way >= 0.8, format!("only {} of the lowest tier gave way", percent(given_way))),
        (with.critical.answered > 0 && with.critical.refused == 0, "`critical` was refused".to_owned()),
        (
            after <= 0.05 && after <= before / 4.0,
            format!("`critical` missed {}, without gate {}", percent(after), percent(before)),
        ),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_tier_gives_way_and_critical_is_served() {
        let seen = |offered, answered, refused| Seen { offered, answered, refused, ..Seen::default() };
        let measured = |critical, best_effort| Measured { critical, best_effort };
        let without = measured(seen(1_000, 300, 0), seen(40_000, 10_000, 0));
        let shed = seen(40_000, 100, 30_000);
        for (without, with, broken) in [
            (without, measured(seen(1_000, 990, 0), shed), None),
            (without, measured(seen(1_000, 300, 0), seen(40_000, 10_000, 0)), Some("was not refused")),
            (without, measured(seen(1_000, 990, 0), seen(40_000, 20_000, 20_000)), Some("only 50.0 %")),
            (without, measured(seen(1_000, 990, 1), shed), Some("`critical` was refused")),
            (without, measured(seen(1_000, 800, 0), shed), Some("missed 20.0 %")),
            (without, measured(Seen::default(), shed), Some("`critical` was refused")),
            (measured(seen(1_000, 999, 0), shed), measured(seen(1_000, 999, 0), shed), Some("was not slow")),
        ] {
            let said = claim(&without, &with).err();
            assert_eq!(said.is_some(), broken.is_some(), "{said:?}");
            assert!(said.unwrap_or_default().contains(broken.unwrap_or_default()), "{broken:?}");
        }
    }
}
