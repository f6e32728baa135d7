//! Two gates with XDP before a memcached each share a limit that three times as much is asked for, in datagrams. The memcacheds' own
//! counters are the judge.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use gate_tests::daemon::ATTACHED;
use gate_tests::fleet_site::{ONE_RU, OwnerSite, Reading, named, section};
use gate_tests::privilege;
use gate_tests::proxy::{Listening, PATIENCE};
use gate_tests::switch::{INTERFACE, Machine, Switch};
use gate_tests::tls::Authority;
use gate_tests::wait::wait_until;
use serde_json::Value;
use xtask::lab::process::ChildProcess;
use xtask::paths;

const LIMITS: &str = "[[limit]]\nname = \"greedy\"\nquota = \"2000 RU/s\"\n[[limit]]\nname = \"polite\"\nquota = \"400 RU/s\"\n";
const LIMIT: f64 = 2_000.0;
const TENANTS: &str = r#"
[[tenant]]
name = "greedy"
sources = ["198.18.1.0/24"]
quota = "unlimited"

[[tenant]]
name = "polite"
sources = ["198.18.2.0/24"]
quota = "unlimited"
"#;
/// Three times the limit, of which twice as much at the first gate.
const RATES: [u32; 2] = [4_000, 2_000];
const PORT: u16 = 11_211;

/// A gate at the interface of a machine on which a memcached takes datagrams.
struct GuardedSite {
    _gate: ChildProcess,
    store: Listening,
    config: PathBuf,
    machine: Machine,
}

impl GuardedSite {
    fn start(switch: &Switch, authority: &Authority, name: &str, owners: &str) -> Result<Self> {
        let fleet = section(authority, name, owners)?;
        let machine = switch.machine()?;
        let address = machine.at(PORT);
        let store = machine.on(|| Listening::memcached_at(address))?;
        let config = std::env::temp_dir().join(format!("gate-{}-{}.toml", std::process::id(), machine.ip));
        let text = format!(
            "[gate]\ninterface = \"{INTERFACE}\"\nxdp = \"native\"\npin_dir = {:?}\n{fleet}\n\
             [[service]]\nname = \"cache\"\nprotocol = \"memcached\"\nlisten = \"{address}\"\n{ONE_RU}\n{TENANTS}",
            machine.pins()
        );
        std::fs::write(&config, text)?;
        let mut command = machine.command(paths::gate());
        command.arg("run").arg("--config").arg(&config);
        let mut gate = ChildProcess::start("gate", command)?;
        gate.wait_for(ATTACHED, PATIENCE)?;
        gate.wait_for("reporting to an owner", PATIENCE)?;
        Ok(Self { _gate: gate, store, config, machine })
    }

    /// A tenant's counters.
    fn tenant(&self, name: &str) -> Result<Value> {
        let mut command = self.machine.command(paths::gate());
        command.args(["tenants", name, "--json", "--pin-dir"]).arg(self.machine.pins());
        let output = command.output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let document: Value = serde_json::from_slice(&output.stdout)?;
        Ok(document["tenants"][0].clone())
    }

    fn refused(&self, name: &str) -> Result<u64> {
        let tenant = self.tenant(name)?;
        let refused = tenant["refused"].as_object().context("no refusals")?;
        Ok(refused.values().filter_map(Value::as_u64).sum())
    }
}

impl Drop for GuardedSite {
    fn drop(&mut self) {
        // It lies in the directory for temporary files.
        let _ = std::fs::remove_file(&self.config);
    }
}

/// Asks a gate from another machine for so long: the greedy one reads, the polite one writes.
fn load(client: &Machine, site: &GuardedSite, rate: u32, time: Duration) -> Result<ChildProcess> {
    let mut command = Command::new(paths::gate());
    command.args(["load", "--udp", "--json", "--target", &site.machine.at(PORT).to_string()]);
    command.args(["--tenant", &format!("name=greedy,rate={rate}/s,source=198.18.1.1,reads=100%")]);
    command.args(["--tenant", "name=polite,rate=100/s,source=198.18.2.1,reads=0%,arrivals=constant"]);
    command.args(["--for", &format!("{}s", time.as_secs())]);
    client.on(|| ChildProcess::start("gate load", command))
}

#[test]
fn two_xdp_gates_give_out_one_limit() -> Result<()> {
    if !privilege::root("two_xdp_gates_give_out_one_limit") {
        return Ok(());
    }
    let switch = Switch::open()?;
    let authority = Authority::new()?;
    let owners =
        [OwnerSite::start(&switch, &authority, LIMITS)?, OwnerSite::start(&switch, &authority, LIMITS)?];
    let line = named(&owners);
    let gate = |name| GuardedSite::start(&switch, &authority, name, &line);
    let gates = [gate("gate-1")?, gate("gate-2")?];
    let client = switch.machine()?;
    for address in [[198, 18, 1, 1], [198, 18, 2, 1]] {
        client.add_address(address.into())?;
    }
    let time = Duration::from_secs(15);
    let loads = gates.iter().zip(RATES).map(|(site, rate)| load(&client, site, rate, time));
    let loads = loads.collect::<Result<Vec<_>>>()?;
    wait_until("the limit holds gates back", || {
        Ok(gates.iter().all(|site| site.refused("greedy").is_ok_and(|refused| refused > 3_000)))
    })?;
    let take = || Reading::take(gates.iter().map(|site| (&site.machine, &site.store)));
    let readings = Reading::series(Duration::from_secs(1), Duration::from_secs(11), take)?;
    let ten = readings.iter().zip(readings.iter().skip(10));
    let rates: Vec<Vec<f64>> = ten.map(|(from, to)| to.per_sec(from)).collect();
    println!("reads a second at each gate in each ten seconds: {rates:.0?}");
    for rates in &rates {
        ensure!((0.95 * LIMIT..1.05 * LIMIT).contains(&rates.iter().sum()), "{rates:?}");
        ensure!(rates.iter().all(|rate| *rate > 0.2 * LIMIT), "{rates:?}");
    }
    for (load, site) in loads.into_iter().zip(&gates) {
        let summary: Value = serde_json::from_str(&load.finish(PATIENCE)?.join("\n"))?;
        let polite = &summary["tenants"][1];
        ensure!(site.refused("polite")? == 0, "somebody below its limit was refused");
        ensure!(polite["answered"] == polite["offered"], "{polite}");
        let writes = site.machine.on(|| site.store.stat("cmd_set"))?;
        ensure!(polite["offered"] == writes, "the store has {writes} of {polite}");
    }
    Ok(())
}
