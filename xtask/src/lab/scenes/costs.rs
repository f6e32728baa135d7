//! Requests priced by what they cost: a limit on requests does not tell a read of one row from one of thousands.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::{Outcome, first_broken, part, percent, share};
use crate::lab::report::{grouped, latency};
use crate::lab::stage::{Load, Protocol, Seen, Stage};

/// Requests a second, by each of the two.
const PER_SEC: u32 = 150;
/// The rows of a dear request: as many as the store bears.
const REDIS_ROWS: u32 = 100_000;
const EMBEDDED_ROWS: u32 = 1_000;
/// The time that one of these rows takes the embedded store, so that a dear request takes it about as long as Redis.
const ROW_TIME: &str = "10us";
/// The budget of each, RU or requests a second.
const QUOTA: u32 = 1_000;

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
    let played = compare(stage, time, &mix.display().to_string());
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
    Ok(Outcome { result, claim: claim(&by_requests, &by_ru) })
}

/// Without gate, with a limit on requests, and with RU.
fn compare(stage: &mut Stage<'_>, time: Duration, mix: &str) -> Result<[Measured; 3]> {
    let without = measure(stage, "without gate", part(time, 0.2), mix, None)?;
    // Every request costs the same: a limit on requests.
    let requests = "price = { base = \"1 RU\", row = \"0 RU\", kib = \"0 RU\", learn = \"off\" }";
    let by_requests = measure(stage, "limit on requests", part(time, 0.4), mix, Some(requests))?;
    stage.end_gate()?;
    let ru = "price = { base = \"0.5 RU\", row = \"0.5 RU\", kib = \"1 RU\" }";
    let by_ru = measure(stage, "with RU", part(time, 0.4), mix, Some(ru))?;
    Ok([without, by_requests, by_ru])
}

fn start_gate(stage: &mut Stage<'_>, price: &str) -> Result<()> {
    let gate = stage.place.gate();
    let store = stage.place.store();
    let [points, scans] = [1, 2].map(|number| stage.place.source(number));
    stage.start_gate(&format!(
        "[[service]]\nname = \"data\"\nprotocol = \"resp\"\nlisten = \"{gate}\"\nbackend = \"{store}\"\n{price}\n\
         # What is seen is what prices do.\n\
         shedding = {{ enabled = \"off\" }}\nhot_keys = {{ cache = \"off\" }}\nparallelism = \"off\"\n\
         [[tenant]]\nname = \"points\"\nsources = [\"{points}\"]\nquota = \"{QUOTA} RU/s\"\n\
         [[tenant]]\nname = \"scans\"\nsources = [\"{scans}\"]\nquota = \"{QUOTA} RU/s\"\n"
    ))
}

fn measure(
    stage: &mut Stage<'_>,
    phase: &str,
    time: Duration,
    mix: &str,
    price: Option<&str>,
) -> Result<Measured> {
    // Without what the last callers have left in it.
    stage.start_store(
        Protocol::Resp,
        &["--concurrency", "1", "--service-time", "100us", "--row-time", ROW_TIME],
    )?;
    if let Some(price) = price {
        start_gate(stage, price)?;
    }
    let store = stage.place.store();
    let target = if price.is_none() { store } else { stage.place.gate() };
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
