//! `cargo xtask run` without root: the proxied half of the lab, which needs nothing but loopback.
//!
//! Run by root, these tests become another user for it.

use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use std::{env, fs, process};

use gate_tests::http::curl;
use gate_tests::proxy::address;
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
        installed.open_directory("tmp");
        installed
    }

    /// A program of these, as a user without root. Its temporary files are no other test's: a lab removes those of dead labs.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.directory.join(program));
        command.current_dir("/").env("HOME", "/nonexistent").env("TMPDIR", self.directory.join("tmp"));
        if geteuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    }

    /// A directory where everyone may write.
    fn open_directory(&self, name: &str) -> PathBuf {
        let directory = self.directory.join(name);
        fs::DirBuilder::new().mode(0o777).create(&directory).unwrap();
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).unwrap();
        directory
    }

    /// The lab, up to where its tenants ask, with the socket that it names.
    fn lab(&self, arguments: &[&str]) -> (ChildProcess, PathBuf) {
        let mut command = self.command("xtask");
        command.args(["run", "--no-story", "--gate"]).arg(self.directory.join("gate")).args(arguments);
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
    let tenants = installed.show("tenants", &socket)["tenants"].take();
    assert!(named(&tenants, "hostile")["refused"]["quota"].as_u64() > Some(0), "{tenants}");
    assert!(named(&tenants, "polite")["passed"].as_u64() > Some(0), "{tenants}");
    let keys = installed.show("hotkeys", &socket)["keys"].take();
    assert_eq!(keys[0]["key"], "planted", "{keys}");

    let printed = lab.finish(PATIENCE).unwrap().join("\n");
    assert!(printed.contains("refused by reason") && printed.contains("planted"), "{printed}");
    assert!(!socket.parent().unwrap().exists(), "{} is left", socket.display());
}

/// A Prometheus that reads `url` and has these rules, with its data in `directory`.
fn prometheus(directory: &Path, url: &str, rules: &Path) -> (ChildProcess, SocketAddr) {
    let (target, path) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let config = directory.join("prometheus.yml");
    let text = format!(
        "global: {{ scrape_interval: 200ms, scrape_timeout: 200ms, evaluation_interval: 200ms }}\n\
         rule_files: [{rules:?}]\n\
         scrape_configs:\n- job_name: gate\n  metrics_path: /{path}\n  static_configs: [{{ targets: ['{target}'] }}]\n"
    );
    fs::write(&config, text).unwrap();
    let address = address();
    let mut command = Command::new("prometheus");
    command.arg(format!("--config.file={}", config.display()));
    command.arg(format!("--storage.tsdb.path={}", directory.join("tsdb").display()));
    command.arg(format!("--web.listen-address={address}"));
    let mut prometheus = ChildProcess::start("prometheus", command).unwrap();
    prometheus.wait_for("Server is ready", PATIENCE).unwrap();
    (prometheus, address)
}

/// The answer of Prometheus to a path with arguments.
fn asked(prometheus: SocketAddr, path: &str, arguments: &[&str]) -> Value {
    let url = format!("http://{prometheus}/api/v1/{path}");
    let arguments: Vec<_> =
        arguments.iter().flat_map(|argument| ["--data-urlencode", argument]).chain(["--get", &url]).collect();
    let answer = curl(&arguments).unwrap().json().unwrap();
    assert_eq!(answer["status"], "success", "{arguments:?}: {answer}");
    answer["data"].clone()
}

#[test]
fn prometheus_scrapes_the_lab_and_takes_alerts_and_dashboard() {
    let installed = Installed::new("scraped");
    let mut command = installed.command("xtask");
    command.args(["run", "--no-story", "--for", "20s", "--gate"]).arg(installed.directory.join("gate"));
    let mut lab = ChildProcess::start("cargo xtask run", command).unwrap();
    let line = lab.wait_for("/metrics", PATIENCE).unwrap();
    let url = line.rsplit(' ').next().unwrap();
    let documents = paths::workspace().join("docs");
    let (prometheus, address) =
        prometheus(&installed.open_directory("results"), url, &documents.join("alerts.yml"));
    until("it has scraped refusals", PATIENCE, || {
        let refused = "query=sum by (tenant) (gate_tenant_refused_requests_total{tenant=\"hostile\"}) > 0";
        !asked(address, "query", &[refused])["result"].as_array().unwrap().is_empty()
    });
    let target = &asked(address, "targets", &[])["activeTargets"][0];
    assert_eq!((&target["health"], &target["lastError"]), (&"up".into(), &"".into()), "{target}");
    until("every alert has been evaluated", PATIENCE, || {
        let groups = asked(address, "rules", &[])["groups"].clone();
        let rules: Vec<_> =
            groups.as_array().unwrap().iter().flat_map(|group| group["rules"].as_array().unwrap()).collect();
        assert!(rules.iter().all(|rule| rule["health"] != "err"), "{rules:?}");
        !rules.is_empty() && rules.iter().all(|rule| rule["health"] == "ok")
    });
    let dashboard = fs::read_to_string(documents.join("grafana.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&dashboard).unwrap();
    let targets =
        dashboard["panels"].as_array().unwrap().iter().flat_map(|panel| panel["targets"].as_array());
    let mut queries = 0;
    for target in targets.flatten() {
        let query = target["expr"].as_str().unwrap();
        let query = ["$job", "$tenant", "$service"].iter().fold(query.to_owned(), |query, variable| {
            query.replace(variable, if *variable == "$job" { "gate" } else { ".*" })
        });
        asked(address, "query", &[&format!("query={}", query.replace("$__rate_interval", "5s"))]);
        queries += 1;
    }
    assert!(queries > 10, "{queries}");
    prometheus.end().unwrap();
    lab.signal(Signal::SIGINT).unwrap();
    lab.finish(PATIENCE).unwrap();
}

#[test]
fn without_root_the_lab_holds_quotas_and_spares_the_polite() {
    let installed = Installed::new("quotas");
    let results = installed.open_directory("results");
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
fn without_root_the_story_leaves_out_what_needs_it() {
    let installed = Installed::new("story");
    let json = installed.open_directory("results").join("story.json");
    let mut command = installed.command("xtask");
    command.args(["run", "--for", "40s", "--gate"]).arg(installed.directory.join("gate"));
    command.arg("--json").arg(&json).arg("--plot").arg(json.with_extension("svg"));
    let lab = ChildProcess::start("cargo xtask run", command).unwrap();
    let printed = lab.finish(PATIENCE * 3).unwrap();
    assert_eq!(printed[0], "left out: quotas (needs root), slow-store (needs root)", "{printed:?}");
    let results: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    for name in ["costs", "objectives", "viral-key", "http"] {
        assert_eq!(named(&results["scenes"], name)["holds"], true, "{results}");
    }
    assert_eq!(results["scenes"].as_array().map(Vec::len), Some(4), "{results}");
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

#[test]
fn without_root_a_fleet_says_what_it_lacks() {
    let installed = Installed::new("fleet");
    // Nothing is installed, as far as it can see.
    let mut command = installed.command("xtask");
    let output = command.args(["run", "--fleet"]).env("PATH", "/nonexistent").output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{error}");
    for said in ["python3-pip", "etcd-server", "sudo apt-get install"] {
        assert!(error.contains(said), "{error}");
    }
}
