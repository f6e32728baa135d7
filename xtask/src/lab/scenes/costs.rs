//! Requests priced by what they cost: a limit on requests does not tell a read of one row from one of thousands.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::{Outcome, WITHOUT, first_broken, part, percent, share};
use crate::lab::picture::{Bar, Comparison};
use crate::lab::report::{grouped, latency};
use crate::lab::stage::{Load, Protocol, Seen, Stage};

/// Requests a second, by each of the two.
const PER_SEC: u32 = 150;
/// The rows of a dear request: as many as the store bears.
const REDIS_ROWS: u32 = 100_000;
const EMBEDDED_ROWS: u32 = 1_000;
/// The time that one of these rows takes the embedded store, so that a dear request takes it about as long as Redis.
const ROW_TIME: &str = "10us";
/// With RU, the quota of each pays for so many dear requests a second, or far more point reads than are asked.
const SCANS_PER_SEC: u32 = 4;
const PHASES: [&str; 3] = [WITHOUT, "limit on requests", "with RU"];
/// Their parts of the scene.
const PARTS: [f64; 3] = [0.2, 0.4, 0.4];

/// Both callers' views.
#[derive(Debug, Clone, Copy, Default)]
struct Measured {
    points: Seen,
    scans: Seen,
}

pub(super) fn play(stage: &mut Stage<'_>, time: Duration) -> Result<Outcome> {
    let rows = if stage.place.is_network() { REDIS_ROWS } else { EMBEDDED_ROWS };
    let mix = stage.place.config_file().with_extension("mix.toml");
    let text = if stage.place.is_network() {
        format!("[[request]]\ncommand = \"range\"\nkeys = 1\ncount = {rows}\nvalue = \"4B\"\n")
    } else {
        format!("[[request]]\ncommand = \"mget\"\nkeys = {rows}\ncount = {rows}\nvalue = \"4B\"\n")
    };
    fs::write(&mix, text).with_context(|| format!("cannot write {}", mix.display()))?;
    let played = compare(stage, time, &mix.display().to_string(), rows);
    let removed = fs::remove_file(&mix);
    let [without, by_requests, by_ru] = played?;
    removed?;
    let p99 = |measured: &Measured| latency(measured.points.latency.p99);
    let result = format!(
        "reads of 1 row beside as many of {}: p99 {} with RU, {} with a limit on requests; without gate {}",
        grouped(rows.into()),
        p99(&by_ru),
        p99(&by_requests),
        p99(&without)
    );
    let seconds = PARTS.map(|share| part(time, share).as_secs_f64());
    let compared = compared([&without, &by_requests, &by_ru], seconds);
    Ok(Outcome { result, compared, claim: claim(&by_requests, &by_ru) })
}

/// Without gate, with a limit on requests, and with RU.
fn compare(stage: &mut Stage<'_>, time: Duration, mix: &str, rows: u32) -> Result<[Measured; 3]> {
    let [without, by_requests, by_ru] = PARTS.map(|share| part(time, share));
    let without = measure(stage, PHASES[0], without, mix, None)?;
    // Every request costs the same: a limit on requests, which both keep.
    let requests = "price = { base = \"1 RU\", row = \"0 RU\", kib = \"0 RU\", learn = \"off\" }";
    let by_requests = measure(stage, PHASES[1], by_requests, mix, Some((requests, 2 * PER_SEC)))?;
    stage.end_gate()?;
    let ru = "price = { base = \"0.5 RU\", row = \"0.5 RU\", kib = \"0 RU\" }";
    let by_ru = measure(stage, PHASES[2], by_ru, mix, Some((ru, SCANS_PER_SEC * rows / 2)))?;
    Ok([without, by_requests, by_ru])
}

/// For so many seconds of each phase.
fn compared(measured: [&Measured; 3], seconds: [f64; 3]) -> [Comparison; 2] {
    let each = |bar: &dyn Fn(&'static str, &Measured, f64) -> Bar| {
        (0..3).map(|number| bar(PHASES[number], measured[number], seconds[number])).collect()
    };
    [
        Comparison {
            of: "points, reads of one row: p99 of their answers".to_owned(),
            bars: each(&|phase, measured, _| {
                Bar::latency(phase, measured.points.latency.p99, &measured.points)
            }),
        },
        Comparison {
            of: "scans, reads of thousands: served".to_owned(),
            bars: each(&|phase, measured, seconds| Bar::per_sec(phase, measured.scans.answered, seconds)),
        },
    ]
}

/// A gate with a price, and with so many RU a second for each.
fn start_gate(stage: &mut Stage<'_>, price: &str, quota: u32) -> Result<()> {
    let gate = stage.place.gate();
    let store = stage.place.store();
    let [points, scans] = [1, 2].map(|number| stage.place.source(number));
    stage.start_gate(&format!(
        "[[service]]\nname = \"data\"\nprotocol = \"resp\"\nlisten = \"{gate}\"\nbackend = \"{store}\"\n{price}\n\
         # What is seen is what prices do.\n\
         shedding = {{ enabled = \"off\" }}\nhot_keys = {{ cache = \"off\" }}\nparallelism = \"off\"\n\
         [[tenant]]\nname = \"points\"\nsources = [\"{points}\"]\nquota = \"{quota} RU/s\"\n\
         [[tenant]]\nname = \"scans\"\nsources = [\"{scans}\"]\nquota = \"{quota} RU/s\"\n"
    ))
}

fn measure(
    stage: &mut Stage<'_>,
    phase: &str,
    time: Duration,
    mix: &str,
    gate: Option<(&str, u32)>,
) -> Result<Measured> {
    // Without what the last callers have left in it.
    stage.start_store(
        Protocol::Resp,
        &["--concurrency", "1", "--service-time", "100us", "--row-time", ROW_TIME],
    )?;
    if let Some((price, quota)) = gate {
        start_gate(stage, price, quota)?;
    }
    let store = stage.place.store();
    let target = if gate.is_none() { store } else { stage.place.gate() };
    let [points, scans] = [1, 2].map(|number| stage.place.source(number));
    let fill = store.to_string();
    let load = Load {
        target,
        how: &["--protocol", "resp"],
        fill: Some(fill),
        callers: vec![
            format!("name=points,source={points},rate={PER_SEC}/s,connections=4"),
            format!("name=scans,source={scans},rate={PER_SEC}/s,connections=4,mix={mix}"),
        ],
    };
    let played = stage.play(phase, time, &[load], |_, _| Ok(()))?;
    Ok(Measured { points: played.of("points"), scans: played.of("scans") })
}

fn claim(by_requests: &Measured, by_ru: &Measured) -> Result<(), String> {
    let [broken, kept] = [by_requests, by_ru].map(|measured| measured.points.latency.p99);
    let missed = |seen: &Seen| share(seen.offered.saturating_sub(seen.answered), seen.offered);
    let scans = missed(&by_ru.scans);
    let points = missed(&by_ru.points);
    let harmed = broken as f64 / kept.max(1) as f64;
    first_broken([
        (
            share(by_requests.scans.refused, by_requests.scans.offered) < 0.3,
            "a limit on requests refused what is within it".to_owned(),
        ),
        (by_ru.scans.answered > 0, "with RU the dear requests got nothing for their quota".to_owned()),
        (by_ru.scans.refused > 0, "with RU the dear requests were not refused".to_owned()),
        (scans >= 0.3, format!("with RU only {} of the dear requests were held back", percent(scans))),
        (
            by_ru.points.answered > 0 && points <= 0.03,
            format!("with RU {} of the point reads were missed", percent(points)),
        ),
        (
            harmed >= 2.0,
            format!(
                "p99 of point reads: {} with RU, {} with a limit on requests",
                latency(kept),
                latency(broken)
            ),
        ),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::stage::Quantiles;

    #[test]
    fn point_reads_hold_with_ru_and_not_with_requests() {
        let seen = |answered, refused, p99_ms: u64| Seen {
            offered: 1_000,
            answered,
            refused,
            latency: Quantiles { p99: p99_ms * 1_000_000, ..Quantiles::default() },
            ..Seen::default()
        };
        let measured = |points, scans| Measured { points, scans };
        let by_requests = measured(seen(900, 0, 800), seen(500, 0, 900));
        let held = seen(30, 970, 20);
        for (by_requests, by_ru, broken) in [
            (by_requests, measured(seen(1_000, 0, 30), held), None),
            (by_requests, by_requests, Some("were not refused")),
            (by_requests, measured(seen(1_000, 0, 30), seen(0, 1_000, 0)), Some("got nothing")),
            (by_requests, measured(seen(1_000, 0, 30), seen(900, 100, 20)), Some("only 10.0 %")),
            (by_requests, measured(seen(900, 100, 30), held), Some("10.0 % of the point reads")),
            (by_requests, measured(seen(1_000, 0, 600), held), Some("600.0 ms with RU, 800.0 ms")),
            (measured(seen(900, 0, 800), held), measured(seen(1_000, 0, 30), held), Some("within it")),
        ] {
            let said = claim(&by_requests, &by_ru).err();
            assert_eq!(said.is_some(), broken.is_some(), "{said:?}");
            assert!(said.unwrap_or_default().contains(broken.unwrap_or_default()), "{broken:?}");
        }
    }
}
