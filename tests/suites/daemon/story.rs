//! The scenes that `cargo xtask run` plays: they hold with gate and not without its work, and leave nothing.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::{env, fs, process};

use gate_tests::privilege;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use xtask::lab::process::ChildProcess;
use xtask::paths;

use crate::lab::{PATIENCE, assert_nothing_left_by, lab, wait_for_the_end_of};

/// A file that goes when dropped.
pub(crate) struct Temporary(PathBuf);

impl Temporary {
    pub(crate) fn new(name: &str) -> Self {
        Self(env::temp_dir().join(format!("gate-{}-{name}", process::id())))
    }

    pub(crate) fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    /// A gate whose configuration is changed by a command of sed.
    fn broken_gate(name: &str, edit: &str) -> Self {
        let file = Self::new(name);
        let gate = paths::gate();
        let script = format!(
            "#!/bin/sh\n[ \"$1\" = run ] && sed -i '{edit}' \"$3\"\nexec {} \"$@\"\n",
            gate.display()
        );
        fs::write(&file.0, script).unwrap();
        fs::set_permissions(&file.0, fs::Permissions::from_mode(0o755)).unwrap();
        file
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// The lab with the gate that has been built: to build it again may take longer than a test waits.
fn scenes(arguments: &[&str]) -> ChildProcess {
    let gate = paths::gate();
    lab(&[arguments, &["--gate", gate.to_str().unwrap()]].concat())
}

/// The lab's process of that name.
pub(crate) fn child_named(lab: &ChildProcess, name: &str) -> Pid {
    let id = lab.id();
    let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
    let is_named = |child: &&str| {
        fs::read_to_string(format!("/proc/{child}/comm")).is_ok_and(|comm| comm.trim() == name)
    };
    let child = children.split_whitespace().find(is_named).unwrap_or_else(|| panic!("no {name}"));
    Pid::from_raw(child.parse().unwrap())
}

#[test]
fn every_scene_holds_and_the_run_is_drawn() {
    if !privilege::root("story::every_scene_holds_and_the_run_is_drawn") {
        return;
    }
    let [json, plot] = ["story.json", "story.svg"].map(Temporary::new);
    let lab = scenes(&["--for", "1min", "--json", json.path(), "--plot", plot.path()]);
    let id = lab.id();
    let printed = lab.finish(PATIENCE).unwrap().join("\n");
    assert_nothing_left_by(id);
    let results: Value = serde_json::from_slice(&fs::read(&json.0).unwrap()).unwrap();
    let picture = fs::read_to_string(&plot.0).unwrap();
    let names = ["quotas", "costs", "slow-store", "objectives", "viral-key", "http"];
    assert_eq!(results["scenes"].as_array().map(Vec::len), Some(names.len()), "{results}");
    for (number, name) in names.into_iter().enumerate() {
        let scene = &results["scenes"][number];
        assert_eq!((&scene["name"], &scene["holds"]), (&name.into(), &true.into()), "{printed}");
        assert!(printed.contains(&format!("== {name}: ")) && picture.contains(name), "{printed}");
        assert!(scene["result"].as_str().unwrap().contains("without gate"), "{printed}");
    }
}

#[test]
fn a_scene_without_its_mechanism_exits_with_one() {
    if !privilege::root("story::a_scene_without_its_mechanism_exits_with_one") {
        return;
    }
    let gate = Temporary::broken_gate("shadow", "s/^\\[gate\\]/[gate]\\nmode = \"shadow\"/");
    let plot = Temporary::new("shadow.svg");
    let lab = lab(&["--scene", "quotas", "--for", "10s", "--gate", gate.path(), "--plot", plot.path()]);
    let id = lab.id();
    let error = lab.finish(PATIENCE).unwrap_err().to_string();
    assert!(error.contains("exit status: 1") && error.contains("its quota is"), "{error}");
    assert_nothing_left_by(id);
}

#[test]
fn a_store_that_dies_in_a_scene_is_reported() {
    if !privilege::root("story::a_store_that_dies_in_a_scene_is_reported") {
        return;
    }
    let mut lab = scenes(&["--scene", "quotas"]);
    lab.wait_for("with gate", PATIENCE).unwrap();
    let id = lab.id();
    kill(child_named(&lab, "memcached"), Signal::SIGKILL).unwrap();
    let error = lab.finish(PATIENCE).unwrap_err().to_string();
    assert!(error.contains("exit status: 1"), "{error}");
    assert!(error.contains("the scene quotas failed: memcached ended: signal: 9"), "{error}");
    assert_nothing_left_by(id);
}

#[test]
fn ctrl_c_ends_a_scene_and_leaves_nothing() {
    if !privilege::root("story::ctrl_c_ends_a_scene_and_leaves_nothing") {
        return;
    }
    let plot = Temporary::new("ctrl-c.svg");
    let mut lab = scenes(&["--scene", "slow-store", "--plot", plot.path()]);
    // The store is stopped most of the time.
    lab.wait_for("slow, without gate", PATIENCE).unwrap();
    let id = lab.id();
    let store = child_named(&lab, "memcached");
    lab.signal(Signal::SIGINT).unwrap();
    lab.finish(PATIENCE).unwrap();
    wait_for_the_end_of(&[store.as_raw().cast_unsigned()]);
    assert_nothing_left_by(id);
}

#[test]
fn what_cannot_be_played_is_said_before_anything_starts() {
    for (arguments, said) in [
        (&["--proxied", "--scene", "nonsense"][..], "no scene is called nonsense; there are\n  quotas"),
        (&["--proxied", "--scene", "quotas"], "the scene quotas needs root"),
        (
            &["--proxied", "--for", "9s"],
            "left out: quotas (needs root), slow-store (needs root), costs (no time)",
        ),
    ] {
        let error = lab(arguments).finish(PATIENCE).unwrap_err().to_string();
        assert!(error.contains("exit status: 1") && error.contains(said), "{error}");
    }
    let listed = lab(&["--list"]).finish(PATIENCE).unwrap();
    assert_eq!(listed.len(), 6, "{listed:?}");
}
