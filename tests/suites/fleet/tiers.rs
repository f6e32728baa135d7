//! Users, their workspaces and accounts: a request is charged to three limits, which three owners own, or to none.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use gate_tests::fleet::{Owner, names_owned_by, section};
use gate_tests::proxy::{Listening, PATIENCE, address};
use gate_tests::wait::wait_until;
use serde_json::Value;
use xtask::lab::process::ChildProcess;
use xtask::paths;

/// From the user to its account.
const LEVELS: [&str; 3] = ["user", "workspace", "account"];
/// Request units a second: the limit of the level that is exceeded, and that of the others.
const TIGHT: u64 = 100;
const WIDE: u64 = 2_000;
const ONE_RU: &str = "price = { base = \"1 RU\", row = \"0 RU\", kib = \"0 RU\" }";

/// A user, its workspace and its account, of which one has a tight limit.
struct Hierarchy {
    /// The first is the user, which is also the tenant that asks.
    names: [String; 3],
    tight: usize,
    source: String,
}

impl Hierarchy {
    fn tenants(&self) -> String {
        let [user, workspace, account] = &self.names;
        let quota = "quota = \"unlimited\"\n";
        format!(
            "[[tenant]]\nname = {user:?}\nsources = [\"{}\"]\n{quota}charge = [{workspace:?}, {account:?}]\n\
             [[tenant]]\nname = {workspace:?}\n{quota}[[tenant]]\nname = {account:?}\n{quota}",
            self.source
        )
    }

    fn limits(&self) -> String {
        let quota = |level| if level == self.tight { TIGHT } else { WIDE };
        let limit =
            |(level, name)| format!("[[limit]]\nname = {name:?}\nquota = \"{} RU/s\"\n", quota(level));
        self.names.iter().enumerate().map(limit).collect()
    }
}

/// A part of the load on one gate: three times the tight limits at two of them together.
fn load(gate: &Listening, hierarchies: &[Hierarchy]) -> Result<ChildProcess> {
    let mut command = Command::new(paths::gate());
    command.args(["load", "--tcp", "--json", "--for", "3s", "--target", &gate.address.to_string()]);
    for Hierarchy { names, source, .. } in hierarchies {
        let rate = 3 * TIGHT / 2;
        command.args(["--tenant", &format!("name={},rate={rate}/s,source={source},connections=1", names[0])]);
    }
    ChildProcess::start("gate load", command)
}

#[test]
fn levels_at_three_owners_are_charged_all_or_none() -> Result<()> {
    let addresses = [address(), address(), address()];
    let hierarchy = |tight: usize| {
        // Each level at another owner, and each owner has the tight one once.
        let name = |level: usize| {
            let owner = addresses[(level + tight) % 3];
            names_owned_by(owner, &addresses, &format!("{}-{tight}", LEVELS[level]), 1).remove(0)
        };
        Hierarchy { names: [0, 1, 2].map(name), tight, source: format!("127.0.1.{}", tight + 1) }
    };
    let hierarchies = [0, 1, 2].map(hierarchy);
    let limits: String = hierarchies.iter().map(Hierarchy::limits).collect();
    let owners = addresses.map(|address| Owner::start_at(address, &limits)).into_iter();
    let owners = owners.collect::<Result<Vec<_>>>()?;
    let store = Listening::memcached()?;
    let tenants: String = hierarchies.iter().map(Hierarchy::tenants).collect();
    let all: Vec<&Owner> = owners.iter().collect();
    let gate =
        |name| Listening::gate_with(&section(&all, name), "memcached", store.address, ONE_RU, &tenants);
    let gates = ["gate-1", "gate-2"].map(gate).into_iter().collect::<Result<Vec<_>>>()?;
    for owner in &owners {
        wait_until("all gates report", || Ok(owner.gates()? == gates.len()))?;
    }
    let loads = gates.iter().map(|gate| load(gate, &hierarchies)).collect::<Result<Vec<_>>>()?;
    let mut served = [0; 3];
    let mut refused = [0; 3];
    for load in loads {
        let summary: Value = serde_json::from_str(&load.finish(PATIENCE)?.join("\n"))?;
        for (place, Hierarchy { names, .. }) in hierarchies.iter().enumerate() {
            let tenants = summary["tenants"].as_array().context("no tenants")?;
            let user = tenants.iter().find(|tenant| tenant["name"] == names[0]).context("no such tenant")?;
            ensure!(user["failed"] == 0 && user["lost"] == 0, "{user}");
            served[place] += user["answered"].as_u64().context("no count")?;
            refused[place] += user["refused"].as_u64().context("no count")?;
        }
    }
    println!("served {served:?}, refused {refused:?}");
    ensure!(refused.iter().all(|refused| *refused > 2 * TIGHT), "{refused:?}");
    for (place, Hierarchy { names, .. }) in hierarchies.iter().enumerate() {
        for (level, name) in names.iter().enumerate() {
            let owner = &owners[(level + place) % 3];
            let charged = || -> Result<Option<f64>> {
                Ok(owner.account(name)?.and_then(|account| account["charged_ru"].as_f64()))
            };
            let all = Some(served[place] as f64);
            let agrees = wait_until("all is charged", || Ok(charged()? >= all));
            let charged = charged()?;
            ensure!(agrees.is_ok() && charged == all, "{name}: {charged:?} of {all:?} charged");
        }
    }
    Ok(())
}
