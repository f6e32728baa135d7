//! An overload, and an objective for response times: Bouncer refuses what would miss it, CoDel what has waited too long.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::{Outcome, WITHOUT, first_broken, part, percent, share};
use crate::lab::picture::{Bar, Comparison};
use crate::lab::report::latency;
use crate::lab::stage::{Load, Protocol, Seen, Stage};

/// A request keeps the store busy for about so long.
const SERVICE_TIME: Duration = Duration::from_millis(4);
/// Offered, as a multiple of what the store can do.
const LOAD: f64 = 1.7;
/// The objectives, in service times: half of the answers, and 90 % of them.
const P50: u32 = 20;
const P90: u32 = 40;
/// Before the overload Bouncer sees how long requests take, at this part of what the store can do.
const CALM: f64 = 0.7;

const BOUNCER: &str = "Bouncer";
const CODEL: &str = "CoDel";

/// The views of the caller without gate and with each policy.
#[derive(Debug, Clone, Copy, Default)]
struct Measured {
    objective: Duration,
    /// For how long each policy was asked.
    seconds: f64,
    without: Seen,
    bouncer: Seen,
    codel: Seen,
}

pub(super) fn play(stage: &mut Stage<'_>, time: Duration) -> Result<Outcome> {
    let command = request(stage.place.is_network());
    let mix = stage.place.config_file().with_extension("mix.toml");
    fs::write(&mix, command).with_context(|| format!("cannot write {}", mix.display()))?;
    let source = stage.place.source(1);
    let caller = |load: f64| {
        let rate = (load / SERVICE_TIME.as_secs_f64()).round();
        format!("name=caller,source={source},rate={rate}/s,connections=32,mix={}", mix.display())
    };
    let played = compare(stage, time, &caller);
    fs::remove_file(&mix)?;
    let measured = played?;
    let seen = |seen: &Seen| {
        let [refused, lost] =
            [seen.refused, seen.unanswered()].map(|count| percent(share(count, seen.offered)));
        format!("p90 {} ({refused} refused, {lost} without an answer)", latency(seen.latency.p90))
    };
    let result = format!(
        "the objective is p90 {} at {LOAD} of what the store can do: Bouncer {}, CoDel {}; without gate {}",
        latency(measured.objective.as_nanos() as u64),
        seen(&measured.bouncer),
        seen(&measured.codel),
        seen(&measured.without)
    );
    let compared = compared(&measured, part(time, 0.2).as_secs_f64());
    Ok(Outcome { result, compared, claim: claim(&measured) })
}

/// A request as a mix, which keeps the store busy for [`SERVICE_TIME`]: Redis gets a script that works until so much time
/// is over.
fn request(network: bool) -> String {
    if !network {
        return "[[request]]\ncommand = \"get\"\n".to_owned();
    }
    let micros = SERVICE_TIME.as_micros();
    // Bounded, should a Redis let time stand still for its scripts.
    format!(
        "[[request]]\ncommand = \"script\"\nscript = \"local function now() local t = redis.call('TIME') \
         return t[1] * 1000000 + t[2] end local over = now() + {micros} \
         for i = 1, 100000 do if now() >= over then break end end return 1\"\n"
    )
}

/// A store without a backlog.
fn start_store(stage: &mut Stage<'_>) -> Result<u32> {
    let service_time = format!("{}us", SERVICE_TIME.as_micros());
    stage.start_store(Protocol::Resp, &["--concurrency", "1", "--service-time", &service_time])
}

fn compare(stage: &mut Stage<'_>, time: Duration, caller: &dyn Fn(f64) -> String) -> Result<Measured> {
    start_store(stage)?;
    let store = stage.place.store();
    let gate = stage.place.gate();
    let [p50, p90] = [P50, P90].map(|times| SERVICE_TIME * times);
    let ask = |stage: &mut Stage<'_>, phase: &str, target, load, part_of: f64| -> Result<Seen> {
        // Answers that come late have been waited for.
        let load = Load {
            target,
            how: &["--protocol", "resp", "--timeout", "3s"],
            fill: None,
            callers: vec![caller(load)],
        };
        Ok(stage.play(phase, part(time, part_of), &[load], |_, _| Ok(()))?.of("caller"))
    };
    let without = ask(stage, WITHOUT, store, LOAD, 0.2)?;
    let micros = [p50, p90].map(|time| time.as_micros());
    let objective = format!("{{ p50 = \"{}us\", p90 = \"{}us\" }}", micros[0], micros[1]);
    let bouncer = format!(
        "admission = \"bouncer\"\nhistogram_values = \"100\"\nobjectives = {{ default = {objective} }}\n\
         codel = {{ law = \"off\" }}"
    );
    start_store(stage)?;
    start_gate(stage, &bouncer)?;
    ask(stage, "as usual", gate, CALM, 0.2)?;
    let bouncer = ask(stage, BOUNCER, gate, LOAD, 0.3)?;
    stage.end_gate()?;
    let codel = format!("admission = \"off\"\ncodel = {{ target = \"{}us\" }}", micros[0] / 2);
    start_store(stage)?;
    start_gate(stage, &codel)?;
    let codel = ask(stage, CODEL, gate, LOAD, 0.3)?;
    Ok(Measured { objective: p90, seconds: part(time, 0.3).as_secs_f64(), without, bouncer, codel })
}

fn start_gate(stage: &mut Stage<'_>, policy: &str) -> Result<()> {
    let gate = stage.place.gate().to_string();
    let store = stage.place.store().to_string();
    let caller = stage.place.source(1).to_string();
    stage.start_gate(&format!(
        "[[service]]\nname = \"data\"\nprotocol = \"resp\"\nlisten = \"{gate}\"\nbackend = \"{store}\"\n\
         parallelism = \"1\"\n{policy}\n\
         # What is seen is what the policy does.\n\
         shedding = {{ enabled = \"off\" }}\nhot_keys = {{ cache = \"off\" }}\nprice = {{ learn = \"off\" }}\n\
         [[tenant]]\nname = \"caller\"\nsources = [\"{caller}\"]\nquota = \"unlimited\"\n"
    ))
}

/// Without gate it was asked for so many seconds.
fn compared(measured: &Measured, seconds: f64) -> [Comparison; 2] {
    let Measured { objective, seconds: with, without, bouncer, codel } = measured;
    let phases = [(WITHOUT, without, seconds), (BOUNCER, bouncer, *with), (CODEL, codel, *with)];
    [
        Comparison {
            of: format!("p90 of its answers, objective {}", latency(objective.as_nanos() as u64)),
            bars: phases.map(|(phase, seen, _)| Bar::latency(phase, seen.latency.p90, seen)).into(),
        },
        Comparison {
            of: "answers, late ones included".to_owned(),
            bars: phases.map(|(phase, seen, seconds)| Bar::per_sec(phase, seen.answered, seconds)).into(),
        },
    ]
}

fn claim(measured: &Measured) -> Result<(), String> {
    let Measured { objective, seconds, without, bouncer, codel } = measured;
    // A third more, for what else the machine does meanwhile.
    let most = objective.as_nanos() as u64 * 4 / 3;
    let late = |seen: &Seen| {
        format!("answered at p90 {}, the objective is {objective:?}", latency(seen.latency.p90))
    };
    // On a busy machine each request takes the store longer, and what waits before it as many times longer.
    let slower = |seen: &Seen| (seconds / seen.answered.max(1) as f64 / SERVICE_TIME.as_secs_f64()).max(1.0);
    let keeps = |seen: &Seen| seen.answered > 0 && seen.latency.p90 as f64 <= most as f64 * slower(seen);
    // Redis works off what it has read of a connection before it answers any of it: most answers come after all patience.
    let lost = share(without.unanswered(), without.offered);
    let refuses = |seen: &Seen| (0.1..0.98).contains(&share(seen.refused, seen.offered));
    let refused = |seen: &Seen| format!("refused {}", percent(share(seen.refused, seen.offered)));
    first_broken([
        (
            lost > 0.2 || without.latency.p90 > most * 3 / 2,
            format!("without gate the store {}", late(without)),
        ),
        (keeps(bouncer), format!("Bouncer {}", late(bouncer))),
        (refuses(bouncer), format!("Bouncer {}", refused(bouncer))),
        (keeps(codel), format!("CoDel {}", late(codel))),
        (refuses(codel), format!("CoDel {}", refused(codel))),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::stage::Quantiles;

    #[test]
    fn policies_keep_the_objective_by_refusing_some() {
        let seen = |answered, refused, p90_ms: u64| Seen {
            offered: 1_000,
            answered,
            refused,
            latency: Quantiles { p90: p90_ms * 1_000_000, ..Quantiles::default() },
            ..Seen::default()
        };
        let objective = Duration::from_millis(160);
        let kept = seen(600, 400, 150);
        let good =
            Measured { objective, seconds: 2.4, without: seen(1_000, 0, 900), bouncer: kept, codel: kept };
        for (measured, broken) in [
            (good, None),
            (Measured { bouncer: seen(1_000, 0, 900), ..good }, Some("Bouncer answered at p90 900.0 ms")),
            (Measured { codel: seen(1_000, 0, 900), ..good }, Some("CoDel answered")),
            // A machine on which the store takes twice as long.
            (Measured { codel: seen(300, 700, 400), ..good }, None),
            (Measured { codel: seen(300, 700, 450), ..good }, Some("CoDel answered")),
            (Measured { bouncer: seen(1_000, 0, 100), ..good }, Some("Bouncer refused 0.0 %")),
            (Measured { codel: seen(10, 990, 100), ..good }, Some("CoDel refused 99.0 %")),
            (Measured { bouncer: Seen::default(), ..good }, Some("Bouncer answered")),
            (Measured { without: seen(1_000, 0, 170), ..good }, Some("without gate")),
            (Measured { without: Seen { lost: 900, ..seen(100, 0, 20) }, ..good }, None),
        ] {
            let said = claim(&measured).err();
            assert_eq!(said.is_some(), broken.is_some(), "{said:?}");
            assert!(said.unwrap_or_default().contains(broken.unwrap_or_default()), "{broken:?}");
        }
    }
}
