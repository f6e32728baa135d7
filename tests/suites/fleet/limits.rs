//! Limits in etcd: `gate quota apply`.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Result, ensure};
use gate_tests::etcd::{Etcd, json};
use gate_tests::fleet::Owner;
use gate_tests::proxy::Listening;
use gate_tests::wait::{wait_until, within};

const TENANTS: &str = r#"
[[tenant]]
name = "acme"
sources = ["127.0.0.0/8"]
quota = "9000 RU/s"

[[tenant]]
name = "globex"
sources = ["127.0.0.9/32"]
quota = "9000 RU/s"
"#;
/// Two ticks, and time for a busy machine.
const MOVE: Duration = Duration::from_millis(200 + 800);

fn limits(acme: u32, globex: u32) -> String {
    format!(
        "[[limit]]\nname = \"acme\"\nquota = \"{acme} RU/s\"\n[[limit]]\nname = \"globex\"\nquota = \"{globex} RU/s\"\n"
    )
}

#[test]
fn limits_that_are_applied_hold_at_every_gate_whoever_owns_them() -> Result<()> {
    let etcd = Etcd::start()?;
    let _owners = [Owner::register(&etcd)?, Owner::register(&etcd)?];
    let store = Listening::memcached()?;
    let gates = ["gate-1", "gate-2"]
        .map(|name| Listening::gate_with(&etcd.section(name), "memcached", store.address, "", TENANTS));
    let gates = gates.into_iter().collect::<Result<Vec<_>>>()?;
    for (acme, globex) in [(Some(5_000), Some(4_000)), (Some(7_000), Some(3_000)), (None, None)] {
        match (acme, globex) {
            (Some(acme), Some(globex)) => etcd.apply(&limits(acme, globex))?,
            _ => etcd.lift_all()?,
        };
        let quotas = |gate: &Listening| -> Result<[Option<f64>; 2]> {
            gate.ask(b"get k\r\n", b"\r\n")?;
            gate.ask_from([127, 0, 0, 9].into(), b"get k\r\n", b"\r\n")?;
            let quota =
                |name| anyhow::Ok(gate.json(&["tenants", name])?["tenants"][0]["quota_ru_per_sec"].as_f64());
            Ok([quota("acme")?, quota("globex")?])
        };
        let expected = [acme, globex].map(|quota| Some(quota.map_or(9_000.0, f64::from)));
        let took = within("the limits hold at every gate", MOVE, || {
            for gate in &gates {
                if quotas(gate)? != expected {
                    return Ok(false);
                }
            }
            Ok(true)
        })?;
        println!("{expected:?} hold after {took:?}");
    }
    Ok(())
}

#[test]
fn limits_that_are_gone_stay_in_force_until_they_are_lifted() -> Result<()> {
    let etcd = Etcd::start()?;
    let owner = Owner::register(&etcd)?;
    let store = Listening::memcached()?;
    let gate = Listening::gate_with(&etcd.section("gate-1"), "memcached", store.address, "", TENANTS)?;
    let quota = || -> Result<Option<f64>> {
        gate.ask(b"get k\r\n", b"\r\n")?;
        Ok(gate.json(&["tenants", "acme"])?["tenants"][0]["quota_ru_per_sec"].as_f64())
    };
    etcd.apply(&limits(5_000, 4_000))?;
    wait_until("the limits hold", || Ok(quota()? == Some(5_000.0)))?;
    for (value, said) in [(None, "is not in etcd"), (Some(""), "is empty"), (Some("[[limit]]"), "is faulty")]
    {
        etcd.put("gate/limits", value)?;
        wait_until(said, || Ok(owner.show()?["kept"].to_string().contains(said)))?;
        ensure!(quota()? == Some(5_000.0), "{said}: {:?}", quota()?);
    }
    let said = etcd.apply("").err().map(|error| error.to_string()).unwrap_or_default();
    ensure!(said.contains("--remove-all"), "{said}");
    etcd.lift_all()?;
    wait_until("the limits are lifted", || Ok(quota()? == Some(9_000.0)))?;
    ensure!(owner.show()?["kept"] == serde_json::json!([]));
    Ok(())
}

#[test]
fn faulty_limits_change_nothing_and_every_fault_is_named() -> Result<()> {
    let etcd = Etcd::start()?;
    let revision = etcd.apply(&limits(100, 50))?["revision"].clone();
    let faulty = "[[limit]]\nname = \"acme\"\nquota = \"200 RU/s\"\n[[limit]]\nname = \"a=b\"\nqouta = \"1\"\n\
                  [[limit]]\nname = \"b\"\n[quota]\n";
    let said = etcd.apply(faulty).err().map(|error| error.to_string()).unwrap_or_default();
    for fault in ["5: limit[1].name", "6: limit[1].qouta", "7: limit[2].quota", "9: quota"] {
        ensure!(said.contains(fault), "{fault}: {said}");
    }
    let after = etcd.owners()?;
    ensure!(after["limits_revision"] == revision, "{after}");
    let most = "# ".to_owned() + &"x".repeat(1 << 20) + "\n" + &limits(100, 50);
    let said = etcd.apply(&most).err().map(|error| error.to_string()).unwrap_or_default();
    ensure!(said.contains("etcd keeps at most 1048576"), "{said}");
    Ok(())
}

#[test]
fn of_two_that_apply_at_once_one_is_refused() -> Result<()> {
    let etcd = Etcd::start()?;
    let file = std::env::temp_dir().join(format!("gate-limits-{}.toml", std::process::id()));
    std::fs::write(&file, limits(100, 50))?;
    let path = file.display().to_string();
    let mut revision = 0;
    for _ in 0..5 {
        let expected = revision.to_string();
        let arguments = ["apply", &path, "--json", "--revision", &expected];
        let start = || etcd.command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let running = [start()?, start()?];
        let mut outputs = Vec::new();
        for command in running {
            outputs.push(command.wait_with_output()?);
        }
        outputs.sort_by_key(|output| output.status.success());
        let [lost, won] = outputs.as_slice() else { anyhow::bail!("two were started") };
        revision = json(won)?["revision"].as_u64().unwrap_or_default();
        ensure!(!lost.status.success(), "both were applied");
        let said = String::from_utf8_lossy(&lost.stderr);
        ensure!(said.contains(&format!("of revision {revision}, not {expected}")), "{said}");
        ensure!(etcd.owners()?["limits_revision"] == revision);
    }
    std::fs::remove_file(&file)?;
    Ok(())
}
