//! Limits of the calendar, and several limits of one name, before a real Envoy; and what is left of them when all have been restarted.

use anyhow::{Result, ensure};
use gate_tests::envoy::{Envoy, Filter};
use gate_tests::fleet::{Owner, section};
use gate_tests::proxy::{Listening, address};
use gate_tests::wait::wait_until;
use nix::sys::signal::Signal;

/// Each user: five in a year of the calendar, in which this test does not end, and four in an hour.
const LIMITS: &str = r#"
[[limit]]
name = "shop/user=*"
quota = "5/year"
window = "calendar"
zone = "Europe/Berlin"
[[limit]]
name = "shop/user=*"
label = "hourly"
quota = "4/hour"
[[limit]]
name = "shop/user=often"
label = "hourly"
quota = "unlimited"
"#;
const TENANT: &str = "[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"unlimited\"\n";

/// A gate with these sections of its own, and an Envoy that asks it.
fn gate(store: &Listening, fleet: &str) -> Result<(Listening, Envoy)> {
    let envoys = address();
    let sections = format!("{TENANT}{LIMITS}[envoy]\nlisten = \"{envoys}\"\n");
    let gate = Listening::gate_with(fleet, "memcached", store.address, "", &sections)?;
    let envoy = Envoy::start(&envoys.to_string(), Filter::EachRequest { failure_mode_deny: true })?;
    Ok((gate, envoy))
}

#[test]
fn an_envoy_is_shown_the_strictest_of_several_limits() -> Result<()> {
    let store = Listening::memcached()?;
    let (_gate, envoy) = gate(&store, "")?;
    // Of the hour's four fewer are left than of the year's five.
    for (status, left) in [(200, 3), (200, 2), (200, 1), (200, 0), (429, 0)] {
        let answer = envoy.ask("x-user: alice")?;
        ensure!(answer.status == status, "{answer:?}");
        ensure!(answer.head.contains(&format!("x-ratelimit-remaining: {left}\r")), "{answer:?}");
        ensure!(answer.head.contains("name=\"hourly\""), "{answer:?}");
    }
    // Nothing of the year's was used up by what the hour's has refused: it is the only one that holds here, and has five.
    for (status, left) in [(200, 4), (200, 3), (200, 2), (200, 1), (200, 0), (429, 0)] {
        let answer = envoy.ask("x-user: often")?;
        ensure!(answer.status == status, "{answer:?}");
        ensure!(answer.head.contains(&format!("x-ratelimit-remaining: {left}\r")), "{answer:?}");
        ensure!(!answer.head.contains("name="), "{answer:?}");
    }
    Ok(())
}

#[test]
fn a_window_is_still_used_up_when_all_were_restarted() -> Result<()> {
    let file = std::env::temp_dir().join(format!("gate-debts-{}", std::process::id()));
    let key = format!("state_file = \"{}\"\n", file.display());
    let result = used_up_after_a_restart(&key);
    let mode =
        std::fs::metadata(&file).map(|file| std::os::unix::fs::PermissionsExt::mode(&file.permissions()));
    let _ = std::fs::remove_file(&file);
    result?;
    ensure!(mode? & 0o777 == 0o600);
    Ok(())
}

fn used_up_after_a_restart(key: &str) -> Result<()> {
    let store = Listening::memcached()?;
    let mut owner = Owner::start_with(address(), key, LIMITS)?;
    let left = |owner: &Owner| -> Result<Option<f64>> {
        Ok(owner.account("shop/user=often")?.and_then(|account| account["left_ru"].as_f64()))
    };
    let (gate, envoy) = self::gate(&store, &section(&[&owner], "one"))?;
    wait_until("the gate reports", || Ok(owner.gates()? == 1))?;
    wait_until("all of it is used", || {
        envoy.ask("x-user: often")?;
        Ok(left(&owner)?.is_some_and(|left| left < 1.0))
    })?;
    drop((gate, envoy));
    owner.program.signal(Signal::SIGTERM)?;
    wait_until("the owner has ended", || Ok(!owner.program.is_running()?))?;
    let owner = Owner::start_with(owner.address, key, LIMITS)?;
    wait_until("it knows what was used", || Ok(left(&owner)?.is_some_and(|left| left < 1.0)))
}
