//! `cargo xtask run --fleet`: it shows an owner's end and what comes of it, its claim can fail, and it leaves nothing.

use std::path::PathBuf;
use std::{env, fs};

use gate_tests::wait::until;
use nix::sys::signal::{Signal, kill};
use serde_json::Value;
use xtask::lab::process::ChildProcess;
use xtask::paths;

use crate::lab::{PATIENCE, lab, wait_for_the_end_of};
use crate::story::{Temporary, child_named};

/// The lab of a fleet, with the gate that has been built.
fn fleet(arguments: &[&str]) -> ChildProcess {
    let gate = paths::gate();
    lab(&[&["--fleet", "--gate", gate.to_str().unwrap()], arguments].concat())
}

/// Its programs at present: etcd, two owners, a store, three gates, an Envoy, and their clients.
fn programs(lab: &ChildProcess) -> Vec<u32> {
    let id = lab.id();
    let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
    children.split_whitespace().map(|child| child.parse().unwrap()).collect()
}

fn directory(lab: u32) -> PathBuf {
    env::temp_dir().join(format!("gate-lab-{lab}-0"))
}

fn assert_nothing_left(lab: u32, programs: &[u32]) {
    wait_for_the_end_of(programs);
    assert!(!directory(lab).exists(), "{} is left", directory(lab).display());
}

#[test]
fn a_fleet_keeps_its_limits_while_an_owner_is_killed() {
    let [json, plot] = ["fleet.json", "fleet.svg"].map(Temporary::new);
    let mut lab = fleet(&["--for", "15s", "--json", json.path(), "--plot", plot.path()]);
    let id = lab.id();
    let killed = lab.wait_for(" killed: gates keep to on_lost", PATIENCE).unwrap();
    let programs = programs(&lab);
    assert!(programs.len() >= 13, "{programs:?}");
    let printed = lab.finish(PATIENCE).unwrap().join("\n");
    assert_nothing_left(id, &programs);
    for shown in ["no owner; polite", "decides, ", "started again", "decides again", "holds"] {
        assert!(printed.contains(shown), "no {shown:?} in {killed}\n{printed}");
    }

    let results: Value = serde_json::from_slice(&fs::read(json.path()).unwrap()).unwrap();
    let number = |limit: usize, field: &str| results["limits"][limit][field].as_f64().unwrap();
    for (limit, name) in ["greedy", "polite", "shop/remote_address=*"].into_iter().enumerate() {
        assert_eq!(results["limits"][limit]["name"], name, "{results}");
        assert!(number(limit, "failed") == 0.0 && number(limit, "answered") > 1_000.0, "{results}");
    }
    for limit in [0, 2] {
        let share = number(limit, "steady_ru_per_sec") / number(limit, "limit_ru_per_sec");
        assert!((0.95..=1.05).contains(&share), "{results}");
        assert!(number(limit, "refused") > number(limit, "answered"), "{results}");
    }
    assert!(number(1, "refused") == 0.0, "{results}");
    let seconds = results["takeovers"][0]["seconds"].as_f64().unwrap();
    assert!((1.0..4.7).contains(&seconds), "{results}");
    assert!(fs::read_to_string(plot.path()).unwrap().contains("owner killed"));
}

#[test]
fn without_a_takeover_the_fleet_exits_with_one() {
    let mut lab = fleet(&["--for", "15s"]);
    let id = lab.id();
    lab.wait_for(" killed: gates keep to on_lost", PATIENCE).unwrap();
    let programs = programs(&lab);
    // No lease ends meanwhile, so no owner takes over.
    let etcd = child_named(&lab, "etcd");
    kill(etcd, Signal::SIGSTOP).unwrap();
    lab.wait_for("limit/s", PATIENCE).unwrap();
    kill(etcd, Signal::SIGCONT).unwrap();
    let error = lab.finish(PATIENCE).unwrap_err().to_string();
    assert!(
        error.contains("exit status: 1") && error.contains("was killed no other owner decided"),
        "{error}"
    );
    assert_nothing_left(id, &programs);
}

#[test]
fn ctrl_c_ends_a_fleet_with_a_summary_and_nothing_left() {
    let mut lab = fleet(&[]);
    let id = lab.id();
    let asked = lab.wait_for("explain greedy --etcd ", PATIENCE).unwrap();
    lab.wait_for(", by ", PATIENCE).unwrap();
    let programs = programs(&lab);
    // The commands that it prints work.
    let words: Vec<_> = asked.split_whitespace().collect();
    let explained = std::process::Command::new(words[0]).args(&words[1..]).output().unwrap();
    let explained = String::from_utf8(explained.stdout).unwrap();
    assert!(explained.contains("gate-3: asked for"), "{asked}: {explained}");
    lab.signal(Signal::SIGINT).unwrap();
    let printed = lab.finish(PATIENCE).unwrap().join("\n");
    assert!(printed.contains("of limit"), "{printed}");
    assert_nothing_left(id, &programs);
}

#[test]
fn a_killed_fleet_takes_its_programs_with_it() {
    let mut lab = fleet(&[]);
    let id = lab.id();
    lab.wait_for(", by ", PATIENCE).unwrap();
    let programs = programs(&lab);
    lab.signal(Signal::SIGKILL).unwrap();
    assert!(lab.finish(PATIENCE).is_err());
    wait_for_the_end_of(&programs);
    // The next one removes it.
    drop(xtask::lab::loopback::Directory::make().unwrap());
    until("its directory is gone", PATIENCE, || !directory(id).exists());
}

#[test]
fn what_makes_no_sense_with_a_fleet_is_refused() {
    for (arguments, said) in [
        (&["--for", "14s"][..], "a fleet takes at least 15 s"),
        (&["--scene", "quotas"], "cannot be used with"),
        (&["--no-story"], "cannot be used with"),
        (&["--proxied"], "cannot be used with"),
        (&["--", "--interface", "lo"], "cannot be used with"),
    ] {
        let error = fleet(arguments).finish(PATIENCE).unwrap_err().to_string();
        assert!(error.contains(said), "{arguments:?}: {error}");
    }
}
