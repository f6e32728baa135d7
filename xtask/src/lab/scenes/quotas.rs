//! Quotas at the interface: a hostile tenant is refused before its packets cost anything, and a polite one is served.

use std::time::Duration;

use anyhow::Result;

use super::{Outcome, WITH, WITHOUT, first_broken, part, percent, share};
use crate::lab::picture::{Bar, Comparison};
use crate::lab::report::{grouped, latency};
use crate::lab::stage::{Load, Protocol, Seen, Stage};

/// RU a second; a request costs one.
const QUOTA: u32 = 2_000;
const HOSTILE_PER_SEC: u32 = 100_000;
const POLITE_PER_SEC: u32 = 1_000;

/// Both tenants' views, and for how long they asked.
#[derive(Debug, Clone, Copy, Default)]
struct Measured {
    seconds: f64,
    polite: Seen,
    hostile: Seen,
}

pub(super) fn play(stage: &mut Stage<'_>, time: Duration) -> Result<Outcome> {
    stage.start_store(Protocol::Memcached, &[])?;
    let without = measure(stage, WITHOUT, part(time, 0.35))?;
    let [polite, hostile] = [1, 2].map(|number| stage.place.source(number));
    let store = stage.place.store();
    stage.start_gate(&format!(
        "[[service]]\nname = \"cache\"\nprotocol = \"memcached\"\nlisten = \"{store}\"\n\
         price = {{ base = \"0.5 RU\", row = \"0.5 RU\", kib = \"0 RU\" }}\n\
         [[tenant]]\nname = \"polite\"\nsources = [\"{polite}\"]\nquota = \"{QUOTA} RU/s\"\n\
         [[tenant]]\nname = \"hostile\"\nsources = [\"{hostile}\"]\nquota = \"{QUOTA} RU/s\"\n"
    ))?;
    let with = measure(stage, WITH, part(time, 0.65))?;
    let served = |measured: &Measured| {
        let rate = measured.hostile.answered as f64 / measured.seconds;
        format!(
            "hostile is served {}/s of {}/s, polite misses {} of its answers, p99 {}",
            grouped(rate as u64),
            grouped((measured.hostile.offered as f64 / measured.seconds) as u64),
            percent(missed(&measured.polite)),
            latency(measured.polite.latency.p99)
        )
    };
    let result = format!("{}; without gate {}", served(&with), served(&without));
    Ok(Outcome { result, compared: compared(&without, &with), claim: claim(&without, &with) })
}

fn measure(stage: &mut Stage<'_>, phase: &'static str, time: Duration) -> Result<Measured> {
    let caller = |name: &str, number, rate: u32| {
        let source = stage.place.source(number);
        format!("name={name},source={source},rate={rate}/s,arrivals=constant,reads=90%")
    };
    let callers = vec![caller("polite", 1, POLITE_PER_SEC), caller("hostile", 2, HOSTILE_PER_SEC)];
    let load = Load { target: stage.place.store(), how: &["--udp"], fill: None, callers };
    let played = stage.play(phase, time, &[load], |_, _| Ok(()))?;
    Ok(Measured { seconds: time.as_secs_f64(), polite: played.of("polite"), hostile: played.of("hostile") })
}

/// The share of a tenant's requests that were refused or never answered.
fn missed(seen: &Seen) -> f64 {
    share(seen.refused + seen.unanswered(), seen.offered)
}

fn compared(without: &Measured, with: &Measured) -> [Comparison; 2] {
    let phases = [(WITHOUT, without), (WITH, with)];
    let polite = |(phase, measured): (_, &Measured)| {
        Bar::latency(phase, measured.polite.latency.p99, &measured.polite)
    };
    let hostile =
        |(phase, measured): (_, &Measured)| Bar::per_sec(phase, measured.hostile.answered, measured.seconds);
    [
        Comparison { of: "polite: p99 of its answers".to_owned(), bars: phases.map(polite).into() },
        Comparison {
            of: format!("hostile: served, of a quota of {}/s", grouped(QUOTA.into())),
            bars: phases.map(hostile).into(),
        },
    ]
}

fn claim(without: &Measured, with: &Measured) -> Result<(), String> {
    let passed = with.hostile.answered as f64 / with.seconds;
    let before = without.hostile.answered as f64 / without.seconds;
    let most = f64::from(QUOTA) * 1.3;
    let polite = missed(&with.polite);
    first_broken([
        (
            before > most,
            format!("without gate the hostile tenant was served {before:.0}/s, no more than its quota"),
        ),
        (passed <= most, format!("the hostile tenant was served {passed:.0}/s, its quota is {QUOTA}/s")),
        (
            passed > f64::from(QUOTA) / 4.0,
            format!("the hostile tenant was served {passed:.0}/s of its quota"),
        ),
        (with.polite.answered > 0 && with.polite.refused == 0, "the polite tenant was refused".to_owned()),
        (polite <= 0.02, format!("the polite tenant missed {} of its answers", percent(polite))),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hostile_is_held_to_its_quota_and_the_polite_is_served() {
        let seen = |offered, answered, refused| Seen {
            offered,
            answered,
            refused,
            lost: offered - answered - refused,
            ..Seen::default()
        };
        let measured = |polite, hostile| Measured { seconds: 10.0, polite, hostile };
        let calm = seen(10_000, 10_000, 0);
        let flood = seen(1_000_000, 600_000, 0);
        let without = measured(seen(10_000, 5_000, 0), flood);
        for (without, with, broken) in [
            (without, measured(calm, seen(1_000_000, 20_000, 100_000)), None),
            (without, measured(calm, flood), Some("its quota is 2000/s")),
            (without, measured(calm, seen(1_000_000, 0, 100_000)), Some("of its quota")),
            (
                without,
                measured(seen(10_000, 9_999, 1), seen(1_000_000, 20_000, 0)),
                Some("polite tenant was refused"),
            ),
            (without, measured(seen(10_000, 9_700, 0), seen(1_000_000, 20_000, 0)), Some("3.0 %")),
            (without, measured(Seen::default(), seen(1_000_000, 20_000, 0)), Some("refused")),
            (
                measured(calm, seen(10, 10, 0)),
                measured(calm, seen(1_000_000, 20_000, 0)),
                Some("without gate"),
            ),
        ] {
            let said = claim(&without, &with).err();
            assert_eq!(said.is_some(), broken.is_some(), "{said:?}");
            assert!(said.unwrap_or_default().contains(broken.unwrap_or_default()), "{broken:?}");
        }
    }
}
