//! `cargo xtask run` without root: the proxied half of the lab, which needs nothing but loopback.
//!
//! Run by root, these tests become another user for it.

use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use std::{env, fs, process};

use gate_tests::wait::until;
use nix::sys::signal::Signal;
use nix::unistd::geteuid;
use serde_json::Value;
use xtask::lab::process::ChildProcess;
use xtask::paths;

/// The lab starts in a second or two, on a busy machine in more.
const PATIENCE: Duration = Duration::from_secs(60);
/// `nobody`, who may do nothing anywhere.
const NOBODY: u32 = 65_534;

/// `xtask` and `gate` where every user can run them; removed when dropped.
struct Installed {
    directory: PathBuf,
}

impl Installed {
    fn new(test: &str) -> Self {
        let directory = env::temp_dir().join(format!("gate-{}-{test}", process::id()));
        fs::DirBuilder::new().mode(0o755).create(&directory).unwrap();
        let installed = Self { directory };
        for (program, name) in [(paths::target().join("debug/xtask"), "xtask"), (paths::gate(), "gate")] {
            assert!(program.exists(), "no {}: run `cargo xtask test`", program.display());
            let copy = installed.directory.join(name);
            fs::copy(program, &copy).unwrap();
            fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
        }
        installed
    }

    /// A program of these, as a user without root.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.directory.join(program));
        command.current_dir("/").env("HOME", "/nonexistent");
        if geteuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    }

    /// The lab, up to where its tenants ask, with the socket that it names.
    fn lab(&self, arguments: &[&str]) -> (ChildProcess, PathBuf) {
        let mut command = self.command("xtask");
        command.args(["run", "--gate"]).arg(self.directory.join("gate")).args(arguments);
        let mut lab = ChildProcess::start("cargo xtask run", command).unwrap();
        lab.wait_for("As root, `cargo xtask run` adds XDP", PATIENCE).unwrap();
        let line = lab.wait_for("gate hotkeys --socket ", PATIENCE).unwrap();
        let socket = PathBuf::from(line.rsplit(' ').next().unwrap());
        lab.wait_for("hostile", PATIENCE).unwrap();
        (lab, socket)
    }

    /// The output of a command of gate for the running lab.
    fn show(&self, command: &str, socket: &Path) -> Value {
        let output = self.command("gate").args([command, "--json", "--socket"]).arg(socket).output().unwrap();
        assert!(output.status.success(), "gate {command}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// The lab's programs: those that nobody runs any more are gone.
fn children_of(lab: &ChildProcess) -> Vec<PathBuf> {
    let id = lab.id();
    let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
    children.split_whitespace().map(|child| Path::new("/proc").join(child)).collect()
}

fn named<'a>(list: &'a Value, name: &str) -> &'a Value {
    list.as_array()
        .unwrap()
        .iter()
        .find(|one| one["name"] == name)
        .unwrap_or_else(|| panic!("{name}: {list}"))
}

#[test]
fn without_root_the_lab_proxies_and_can_be_looked_at() {
    let installed = Installed::new("looked-at");
    let (lab, socket) = installed.lab(&["--for", "5s"]);

    let queues = installed.show("queues", &socket);
    assert!(named(&queues["services"], "cache")["types"][0]["answered"].as_u64() > Some(0), "{queues}");
    let tenants = installed.show("tenants", &socket);
    assert!(named(&tenants, "hostile")["refused"]["quota"].as_u64() > Some(0), "{tenants}");
    assert!(named(&tenants, "polite")["passed"].as_u64() > Some(0), "{tenants}");
    let keys = installed.show("hotkeys", &socket);
    assert_eq!(keys[0]["key"], "planted", "{keys}");

    let printed = lab.finish(PATIENCE).unwrap().join("\n");
    assert!(printed.contains("refused by reason") && printed.contains("planted"), "{printed}");
    assert!(!socket.parent().unwrap().exists(), "{} is left", socket.display());
}

#[test]
fn without_root_the_lab_holds_quotas_and_spares_the_polite() {
    let installed = Installed::new("quotas");
    // Where nobody may write: root reads them from there.
    let results = installed.directory.join("results");
    fs::DirBuilder::new().mode(0o777).create(&results).unwrap();
    fs::set_permissions(&results, fs::Permissions::from_mode(0o777)).unwrap();
    let [json, plot] = ["lab.json", "lab.svg"].map(|name| results.join(name));
    let arguments = ["--for", "6s", "--json", json.to_str().unwrap(), "--plot", plot.to_str().unwrap()];
    installed.lab(&arguments).0.finish(PATIENCE).unwrap();
    let summary: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();

    let hostile = named(&summary["tenants"], "hostile");
    let [passed, seconds, quota] =
        ["steady_passed", "steady_seconds", "quota_ru_per_sec"].map(|field| hostile[field].as_f64().unwrap());
    assert!(passed > 0.0 && passed / seconds <= 1.02 * quota, "{hostile}");
    assert!(hostile["refused"].as_u64() > hostile["passed"].as_u64(), "{hostile}");
    let polite = named(&summary["tenants"], "polite");
    assert_eq!((&polite["refused"], &polite["passed"]), (&0.into(), &polite["offered"]), "{polite}");

    let picture = fs::read_to_string(&plot).unwrap();
    assert!(picture.starts_with("<svg") && picture.contains("hostile"), "{picture}");
}

#[test]
fn ctrl_c_without_root_ends_with_a_summary_and_nothing_left() {
    let installed = Installed::new("ctrl-c");
    let (lab, socket) = installed.lab(&[]);
    let children = children_of(&lab);
    assert!(children.len() >= 3, "store, gate and load: {children:?}");
    lab.signal(Signal::SIGINT).unwrap();
    let printed = lab.finish(PATIENCE).unwrap().join("\n");
    assert!(printed.contains("refused by reason"), "{printed}");
    assert!(!children.iter().any(|child| child.exists()), "one of {children:?} runs on");
    assert!(!socket.parent().unwrap().exists(), "{} is left", socket.display());
}

#[test]
fn what_a_killed_lab_without_root_left_the_next_removes() {
    let installed = Installed::new("killed");
    let (lab, socket) = installed.lab(&[]);
    let children = children_of(&lab);
    lab.signal(Signal::SIGKILL).unwrap();
    assert!(lab.finish(PATIENCE).is_err());
    until("its programs have ended", PATIENCE, || !children.iter().any(|child| child.exists()));
    assert!(socket.parent().unwrap().exists(), "what was killed removes nothing");
    let (next, _) = installed.lab(&[]);
    assert!(!socket.parent().unwrap().exists(), "{} is left", socket.display());
    next.signal(Signal::SIGTERM).unwrap();
    next.finish(PATIENCE).unwrap();
}

#[test]
fn an_interface_without_root_is_refused_with_what_to_type() {
    let installed = Installed::new("interface");
    let output = installed.command("xtask").args(["run", "--", "--interface", "lo"]).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("needs root") && error.contains("sudo"), "{error}");
}
