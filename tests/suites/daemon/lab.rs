//! `cargo xtask run` as a newcomer types it: what it shows, and what it leaves behind, however it ends.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use gate_tests::net::Net;
use gate_tests::privilege;
use gate_tests::wait::until;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use xtask::lab::process::ChildProcess;
use xtask::paths;

/// The lab starts in a second or two; the rest is for building what has changed, on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

pub(crate) fn lab(arguments: &[&str]) -> ChildProcess {
    let program = paths::target().join("debug/xtask");
    assert!(program.exists(), "no {}: run `cargo xtask test`", program.display());
    let mut command = Command::new(program);
    command.arg("run").args(arguments);
    ChildProcess::start("cargo xtask run", command).unwrap()
}

/// The lab with its tenants asking, and the ids of its programs.
fn running_lab() -> (ChildProcess, Vec<u32>) {
    let mut lab = lab(&["--no-story"]);
    lab.wait_for("hostile", PATIENCE).unwrap();
    let id = lab.id();
    let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
    let children: Vec<u32> = children.split_whitespace().map(|child| child.parse().unwrap()).collect();
    // And now and then one that reads the counters.
    assert!(children.len() >= 5, "store, gate, peer and both loads: {children:?}");
    (lab, children)
}

/// Namespaces and pins that carry the process id of a lab.
fn left_by(lab: u32) -> Vec<PathBuf> {
    let prefix = format!("gate-lab-{lab}-");
    let directories = ["/run/netns", "/sys/fs/bpf"].map(Path::new);
    let entries = directories.iter().filter_map(|directory| directory.read_dir().ok()).flatten();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with(&prefix)).collect()
}

pub(crate) fn assert_nothing_left_by(lab: u32) {
    let left = left_by(lab);
    assert!(left.is_empty(), "{left:?}");
}

/// Waits until none of the processes runs any more.
pub(crate) fn wait_for_the_end_of(processes: &[u32]) {
    let runs = |process: &&u32| {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        // The state follows the name; Z waits only for its parent to look.
        !matches!(stat.rsplit(") ").next().and_then(|rest| rest.chars().next()), None | Some('Z'))
    };
    until("all have ended", PATIENCE, || !processes.iter().any(|process| runs(&process)));
}

fn tenant<'a>(summary: &'a Value, name: &str) -> &'a Value {
    summary["tenants"].as_array().unwrap().iter().find(|tenant| tenant["name"] == name).unwrap()
}

#[test]
fn lab_keeps_hostile_to_its_quota_and_polite_unharmed() {
    if !privilege::root("lab::lab_keeps_hostile_to_its_quota_and_polite_unharmed") {
        return;
    }
    let json = std::env::temp_dir().join(format!("gate-lab-{}.json", std::process::id()));
    let lab = lab(&["--no-story", "--for", "14s", "--json", json.to_str().unwrap()]);
    let id = lab.id();
    let printed = lab.finish(PATIENCE).unwrap().join("\n");
    assert_nothing_left_by(id);
    let summary: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    std::fs::remove_file(&json).unwrap();

    let hostile = tenant(&summary, "hostile");
    let [offered, passed, quota] =
        ["offered", "steady_passed", "quota_ru_per_sec"].map(|field| hostile[field].as_f64().unwrap());
    let seconds = hostile["steady_seconds"].as_f64().unwrap();
    assert!(seconds >= 9.9, "{hostile}");
    assert!(offered / 14.0 >= 100_000.0 && offered / 14.0 >= 50.0 * quota, "{hostile}");
    let rate = passed / seconds;
    assert!((rate - quota).abs() <= 0.02 * quota, "{rate} passed a second, the quota is {quota}: {hostile}");

    let polite = tenant(&summary, "polite");
    assert_eq!((&polite["refused"], &polite["client"]["refused"]), (&0.into(), &0.into()), "{polite}");
    assert!(polite["passed"].as_u64().unwrap() > 14 * 1_900, "{polite}");
    let bursty = tenant(&summary, "bursty");
    assert!(bursty["passed"].as_u64() > Some(0) && bursty["refused"].as_u64() > Some(0), "{bursty}");

    let proxied = &summary["proxied"];
    assert_eq!(proxied["answered"], proxied["offered"], "{proxied}");
    assert!(proxied["answered"].as_u64().unwrap() > 14 * 400, "{proxied}");

    let [first, second] = [0, 1].map(|place| &summary["hot_keys"][place]);
    let at_least = first["estimate"].as_u64().unwrap() - first["error"].as_u64().unwrap();
    let other = second["estimate"].as_u64().unwrap();
    assert_eq!(first["key"], "planted", "{summary}");
    assert!(at_least > other, "the bound of its error sets it apart: {first}, {second}");
    for shown in ["polite", "bursty", "hostile", "planted", "quota", "through the daemon"] {
        assert!(printed.contains(shown), "{printed}");
    }
}

#[test]
fn ctrl_c_ends_it_with_a_summary_and_nothing_left() {
    if !privilege::root("lab::ctrl_c_ends_it_with_a_summary_and_nothing_left") {
        return;
    }
    let (lab, children) = running_lab();
    let id = lab.id();
    lab.signal(Signal::SIGINT).unwrap();
    let printed = lab.finish(PATIENCE).unwrap().join("\n");
    assert!(printed.contains("refused by reason"), "{printed}");
    wait_for_the_end_of(&children);
    assert_nothing_left_by(id);
}

#[test]
fn a_program_that_dies_fails_the_lab_and_nothing_is_left() {
    if !privilege::root("lab::a_program_that_dies_fails_the_lab_and_nothing_is_left") {
        return;
    }
    let (lab, children) = running_lab();
    let id = lab.id();
    kill(Pid::from_raw(children[0].cast_signed()), Signal::SIGKILL).unwrap();
    let error = lab.finish(PATIENCE).unwrap_err().to_string();
    assert!(error.contains("gate store") && error.contains("signal: 9"), "{error}");
    wait_for_the_end_of(&children);
    assert_nothing_left_by(id);
}

#[test]
fn what_a_killed_lab_left_the_next_one_removes() {
    if !privilege::root("lab::what_a_killed_lab_left_the_next_one_removes") {
        return;
    }
    let (lab, children) = running_lab();
    let id = lab.id();
    // Once it is dead, whoever else opens a network on this machine removes them.
    assert!(!left_by(id).is_empty(), "it has namespaces");
    lab.signal(Signal::SIGKILL).unwrap();
    assert!(lab.finish(PATIENCE).is_err());
    wait_for_the_end_of(&children);
    drop(Net::open().unwrap());
    assert_nothing_left_by(id);
}
