//! A script cannot call the commands that are denied to its tenant, with `deny_scripts`; without it, gate warns.

use std::process::Command;

use anyhow::{Result, ensure};
use gate_tests::proxy::{Listening, PATIENCE, shown};
use nix::sys::signal::Signal;
use xtask::paths;

const SCRIPT: &[u8] = b"SET a 1\r\nEVAL \"return redis.call('FLUSHALL')\" 0\r\nEXISTS a\r\n";

fn tenants(more: &str) -> String {
    format!(
        "[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"unlimited\"\ndeny = [\"FLUSHALL\"]\n{more}"
    )
}

#[test]
fn a_script_cannot_call_what_is_denied_where_scripts_are_denied() -> Result<()> {
    let store = Listening::redis()?;
    let gate = Listening::gate("resp", store.address, "", &tenants("deny_scripts = \"on\""))?;
    let said = gate.ask(SCRIPT, b":1\r\n")?;
    ensure!(said == b"+OK\r\n-DENIED reason=unsupported rule=deny\r\n:1\r\n", "{}", shown(&said));
    Ok(())
}

#[test]
fn a_list_that_scripts_get_round_is_warned_of() -> Result<()> {
    let store = Listening::redis()?;
    for (more, warns) in [("", true), ("deny_scripts = \"on\"", false)] {
        let gate = Listening::gate("resp", store.address, "", &tenants(more))?;
        let (config, _) = gate.files()?;
        let output = Command::new(paths::gate()).arg("check").arg(config).output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "{said}");
        ensure!(said.contains("can be called by a script: set deny_scripts") == warns, "{said}");
        ensure!(said.contains("service store: tenant all may run commands that concern all"), "{said}");
    }
    Ok(())
}

#[test]
fn what_is_warned_of_is_warned_of_again_at_a_reload() -> Result<()> {
    let store = Listening::redis()?;
    let mut gate = Listening::gate("resp", store.address, "", &tenants(""))?;
    let warned = "tenant all may run commands that concern all";
    gate.program().wait_for(warned, PATIENCE)?;
    gate.signal(Signal::SIGHUP)?;
    gate.program().wait_for(warned, PATIENCE)?;
    gate.program().wait_for("configuration read again", PATIENCE).map(drop)
}
