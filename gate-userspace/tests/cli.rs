//! The command line from outside: exit codes, and what is printed where.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn gate(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gate")).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn example() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/gate.toml").display().to_string()
}

#[test]
fn check_accepts_the_documented_example() {
    let output = gate(&["check", &example()]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let said: Vec<&str> = text(&output.stdout).lines().collect();
    assert!(
        said[0].contains(": valid; services: 9, tenants: 12, sources: 7, file descriptors: "),
        "{said:?}"
    );
    assert_eq!(said[1], "interfaces, with one budget: eth1, eth2");
    assert!(said[2].starts_with("memory on this machine: counters 1 of 1024 MiB, tables "), "{said:?}");
    let report: Value = serde_json::from_slice(&gate(&["check", "--json", &example()]).stdout).unwrap();
    assert_eq!((&report["valid"], &report["counts"]["tenants"]), (&true.into(), &12.into()));
}

#[test]
fn a_trace_without_a_source_or_without_xdp_is_refused() {
    for (source, remedy) in [
        ("nonsense", "must be an address or a prefix"),
        ("198.18.1.1/24", "the prefix is \"198.18.1.0/24\""),
        ("::ffff:198.18.1.1", "must be written as IPv4: 198.18.1.1"),
    ] {
        let output = gate(&["run", "--config", &example(), "--trace", source]);
        let said = text(&output.stderr);
        assert!(said.contains("--trace <SOURCE>") && said.contains(remedy), "{said}");
        assert_eq!(output.status.code(), Some(2), "{source}");
    }
    let file = std::env::temp_dir().join(format!("gate-trace-{}.toml", std::process::id()));
    let off = "[gate]\nxdp = \"off\"\n[[service]]\nname = \"s\"\nprotocol = \"memcached\"\nlisten = \"127.0.0.1:1\"\n\
               backend = \"127.0.0.1:2\"\n[[tenant]]\nname = \"t\"\nsources = [\"127.0.0.1\"]\nquota = \"9 RU/s\"\n";
    std::fs::write(&file, off).unwrap();
    let output = gate(&["run", "--config", &file.display().to_string(), "--trace", "127.0.0.1"]);
    std::fs::remove_file(&file).unwrap();
    let said = text(&output.stderr);
    assert!(said.contains("--trace follows packets") && said.contains("`xdp = \"off\"`"), "{said}");
    assert_eq!(output.status.code(), Some(1), "{said}");
}

#[test]
fn check_names_the_changed_defaults_that_a_file_relies_on() {
    let file = std::env::temp_dir().join(format!("gate-defaults-{}.toml", std::process::id()));
    let service = "[[service]]\nname = \"s\"\nprotocol = \"memcached\"\nlisten = \"127.0.0.1:11211\"\n";
    let tenant = "[[tenant]]\nname = \"t\"\nsources = [\"127.0.0.1\"]\nquota = \"9 RU/s\"\n";
    std::fs::write(&file, format!("{service}{tenant}")).unwrap();
    let path = file.display().to_string();
    let short = gate(&["check", &path]);
    let long = gate(&["check", "--verbose", &path]);
    let json = gate(&["check", "--json", &path]);
    std::fs::remove_file(&file).unwrap();
    let said = text(&short.stdout);
    assert!(!said.contains("defaults that have changed"), "a first install has relied on no others: {said}");
    let said = text(&short.stderr);
    assert!(said.contains("the bursts of tenant t hold fewer than 20 requests (t: 0 of 1 RU)"), "{said}");
    let said = text(&long.stdout);
    assert!(said.contains("\n  gate.fragments: fragments = \"pass\"\n"), "{said}");
    let report: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(report["changed_defaults"][0]["key"], "gate.fragments");
}

#[test]
fn quota_check_names_faults_and_short_bursts() {
    let file = std::env::temp_dir().join(format!("gate-quota-{}.toml", std::process::id()));
    let path = file.display().to_string();
    let check = |document: &str| {
        std::fs::write(&file, document).unwrap();
        let output = gate(&["quota", "check", &path]);
        let said = [text(&output.stdout), text(&output.stderr)].concat();
        (output.status.code(), said.replace(&path, "FILE"))
    };
    let limit = "[[limit]]\nname = \"acme\"\nquota = \"2000 RU/s\"\n";
    let valid = "FILE: valid; limits: 1, for an owner at 127.0.0.1:9920\n";
    assert_eq!(check(limit), (Some(0), valid.to_owned()));
    let (code, said) = check(&limit.replace("2000", "100"));
    assert!(
        code == Some(0) && said.contains("FILE: warning: the burst of limit acme holds fewer than 20 RU"),
        "{said}"
    );
    assert!(said.contains("write burst = \"200ms\" for acme"), "{said}");
    let (code, said) = check(&limit.replace("RU/s", ""));
    assert!(
        code == Some(1) && said.starts_with("FILE:3: limit[0].quota = \"2000 \": must be a rate"),
        "{said}"
    );
    assert_eq!(check("limits = \"none\"\n").0, Some(0));
    assert_eq!(check("qouta = \"1\"\n").0, Some(1));
    std::fs::remove_file(&file).unwrap();
    let missing = gate(&["quota", "check", &path]);
    let said = text(&missing.stderr);
    assert!(missing.status.code() == Some(1) && said.trim_end().lines().count() == 1, "{said}");
}

#[test]
fn check_refuses_counters_that_take_more_memory_than_is_allowed() {
    let file = std::env::temp_dir().join(format!("gate-check-{}.toml", std::process::id()));
    let tenants: String = (0..3_000)
        .map(|n| {
            format!(
                "[[tenant]]\nname = \"t{n}\"\nsources = [\"10.0.{}.{}/32\"]\nquota = \"9 RU/s\"\n",
                n >> 8,
                n & 255
            )
        })
        .collect();
    let service = "[[service]]\nname = \"s\"\nprotocol = \"memcached\"\nlisten = \"127.0.0.1:11211\"\n";
    std::fs::write(&file, format!("[gate]\ncounter_memory = \"1MiB\"\n{service}{tenants}")).unwrap();
    let path = file.display().to_string();
    let output = gate(&["check", &path]);
    let json = gate(&["check", "--json", &path]);
    std::fs::remove_file(&file).unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.contains("counter_memory allows 1024 KiB: raise it"), "{said}");
    let report: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(
        (&report["valid"], &report["faults"][0]["path"]),
        (&false.into(), &"gate.counter_memory".into())
    );
}

#[test]
fn check_prints_every_fault_of_a_broken_file_and_fails() {
    // A file that is certainly there, and certainly no configuration.
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let output = gate(&["check", file]);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), ""));
    let faults: Vec<_> = text(&output.stderr).lines().collect();
    assert!(
        faults.len() > 3 && faults.iter().all(|line| line.starts_with(&format!("{file}:"))),
        "{faults:?}"
    );
    let output = gate(&["check", "--json", file]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &report["valid"]), (Some(1), &false.into()));
    assert_eq!(report["faults"].as_array().unwrap().len(), faults.len());
}

#[test]
fn what_cannot_be_done_fails_with_one_and_wrong_usage_with_two() {
    for (arguments, code, said) in [
        (&["check", "/no/such/file"][..], 1, "cannot read /no/such/file: there is no such file"),
        (&["check"], 2, "<FILE>"),
        (&["load", "--target", "127.0.0.1:1"], 2, "--tenant"),
        (
            &[
                "load",
                "--target",
                "127.0.0.1:1",
                "--tenant",
                "name=a,rate=5/s",
                "--udp",
                "--protocol",
                "resp",
            ],
            1,
            "RESP has no UDP transport",
        ),
        (&["load", "--target", "127.0.0.1:1", "--tenant", "name=a,rate=5"], 2, "rate: must be a rate"),
        (&["load", "--target", "127.0.0.1:1", "--tenant", "name=a,rate=5/s", "--every", "1s"], 2, "--json"),
        (
            &["load", "--target", "127.0.0.1:1", "--tenant", "name=a,rate=5/s", "--for", "9"],
            2,
            "must be a time",
        ),
        (
            &["load", "--target", "127.0.0.1:1", "--tenant", "name=a,rate=5/s,source=198.18.77.77"],
            1,
            "tenant a cannot send: Cannot assign",
        ),
        (
            &["load", "--target", "127.0.0.1:1", "--tenant", "name=a,rate=5/s,value=64KiB,reads=0%"],
            1,
            "tenant a: a request of 65536 bytes does not fit a datagram (at most 1024): give --tcp",
        ),
        (
            &["load", "--target", "127.0.0.1:1", "--tenant", "name=a,rate=5/s,mix=/no/such/file"],
            2,
            "mix: cannot read /no/such/file",
        ),
        (
            &["load", "--target", "127.0.0.1:1", "--tenant", "name=a,rate=50/s", "--count", "3"],
            1,
            "127.0.0.1:1 answered none of 3 requests: does a memcached listen there, over UDP?",
        ),
        (
            &[
                "load",
                "--target",
                "127.0.0.1:1",
                "--tcp",
                "--tenant",
                "name=a,rate=50/s",
                "--fill",
                "127.0.0.1:1",
            ],
            1,
            "filling 127.0.0.1:1: Connection refused",
        ),
        (&["tenants", "--sort", "money"], 2, "there are tenant, tier, quota RU/s, burst left, passed"),
        (
            &["queues", "--sort", "money"],
            2,
            "there are tier, waiting, delay ms, expected ms, price, state, type",
        ),
        (&["tenants", "--json", "--watch"], 2, "cannot be used with"),
        (&["store", "--listen", "198.18.77.77:1"], 1, "Cannot assign"),
        (&["store", "--time", "GET"], 2, "must be like GET=2ms"),
        (&["store", "--time", "GET=2"], 2, "must be a time"),
        (&["store", "--contention", "101"], 2, "must be a number from 0 to 100"),
    ] {
        let output = gate(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(said), "{arguments:?}: {}", text(&output.stderr));
    }
}

/// A file with a mix, which is removed with it.
struct MixFile(std::path::PathBuf);

impl MixFile {
    fn new(name: &str, text: &str) -> Self {
        let file = std::env::temp_dir().join(format!("gate-cli-{}-{name}.toml", std::process::id()));
        std::fs::write(&file, text).unwrap();
        Self(file)
    }

    fn tenant(&self) -> String {
        format!("name=a,rate=5/s,mix={}", self.0.display())
    }
}

impl Drop for MixFile {
    fn drop(&mut self) {
        // The file lies in the directory for temporary files.
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn a_mix_that_cannot_be_asked_is_named_with_its_line() {
    let broken = MixFile::new("broken", "[[request]]\ncommand = \"get\"\nweight = 0\n");
    let output = gate(&["load", "--target", "127.0.0.1:1", "--tenant", &broken.tenant()]);
    let said = format!("{}:3: request[0].weight = 0: must be a whole number", broken.0.display());
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains(&said), "{}", text(&output.stderr));

    let range = MixFile::new("range", "[[request]]\ncommand = \"range\"\n");
    let output = gate(&["load", "--target", "127.0.0.1:1", "--tenant", &range.tenant()]);
    assert_eq!(output.status.code(), Some(1));
    let said = "tenant a: range: memcached has no range: give --protocol resp";
    assert!(text(&output.stderr).contains(said), "{}", text(&output.stderr));
}

#[test]
fn load_that_nobody_accepts_ends_early() {
    let arguments = ["--target", "127.0.0.1:1", "--tcp", "--tenant", "name=a,rate=100/s", "--for", "600s"];
    let output = gate(&[&["load", "--json"][..], &arguments].concat());
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("does a memcached listen there, over TCP?"));
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(summary["seconds"].as_f64() < Some(300.0), "{summary}");
}

#[test]
fn load_reaches_a_store_and_both_end_with_their_counts() {
    let mut store = Command::new(env!("CARGO_BIN_EXE_gate"))
        .args(["store", "--listen", "127.0.0.1:0", "--for", "20s", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    BufReader::new(store.stderr.take().unwrap()).read_line(&mut said).unwrap();
    let target = said.trim().strip_prefix("listening on ").unwrap();
    let tenant = "name=polite,rate=5000/s,keys=zipf:100:0.99,hot=trend:20%";
    let output = gate(&["load", "--target", target, "--tenant", tenant, "--count", "200", "--json"]);
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(summary["tenants"][0]["answered"], 200, "{summary}");

    let often = ["--count", "50", "--every", "1ms"];
    let output = gate(
        &[&["load", "--target", target, "--tenant", "name=a,rate=100/s", "--json"][..], &often].concat(),
    );
    let lines: Vec<Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let answered = |line: &Value| line["tenants"][0]["answered"].as_u64().unwrap();
    assert!(lines.len() > 3 && lines.is_sorted_by_key(answered), "{lines:?}");
    assert_eq!(answered(lines.last().unwrap()), 50, "{lines:?}");

    let store_id = nix::unistd::Pid::from_raw(store.id().cast_signed());
    nix::sys::signal::kill(store_id, nix::sys::signal::Signal::SIGINT).unwrap();
    let output = store.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let stats: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(stats["commands"], 250, "{stats}");
}

/// Two ports of this machine that are taken, and a file for each of gate's kinds of configuration.
#[test]
fn bad_input_is_answered_in_one_line_with_a_remedy() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap();
    let place = std::env::temp_dir().join(format!("gate-one-line-{}", std::process::id()));
    std::fs::create_dir(&place).unwrap();
    let write = |name: &str, text: &str| {
        let path = place.join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let section = |listen: &str, gate: &str| {
        format!(
            "[gate]\nxdp = \"off\"\nadmin = \"off\"\n{gate}[[service]]\nname = \"s\"\nprotocol = \"memcached\"\nlisten = \"{listen}\"\n\
             backend = \"127.0.0.1:1\"\n[[tenant]]\nname = \"t\"\nsources = \"127.0.0.1\"\nquota = \"unlimited\"\n"
        )
    };
    let limit = "[[limit]]\nname = \"a\"\nquota = \"100 RU/s\"\n";
    let unknown = write("unknown.toml", &section("127.0.0.1:2", "threds = \"1\"\n"));
    let service = write("service.toml", &section(&port.to_string(), ""));
    let page = write("page.toml", &section("127.0.0.1:2", &format!("admin_http = \"{port}\"\n")));
    let quota_unknown = write("quota-unknown.toml", &format!("[quota]\nlistn = \"{port}\"\n{limit}"));
    let quota = write("quota.toml", &format!("[quota]\nlisten = \"{port}\"\n{limit}"));
    let limits = write("limits.toml", &format!("{limit}brust = \"1s\"\n"));
    let missing = place.join("none.toml").display().to_string();
    let socket = place.join("none.sock").display().to_string();
    let free = "127.0.0.1:1";
    for (words, expected) in [
        (vec!["run", "--config", &missing], "there is no such file"),
        (vec!["check", &missing], "there is no such file"),
        (vec!["web", "--config", &missing], "there is no such file"),
        (vec!["quota", "run", "--config", &missing], "there is no such file"),
        (vec!["quota", "check", &missing], "there is no such file"),
        (vec!["quota", "apply", &missing], "there is no such file"),
        (vec!["check", &unknown], ":4: gate.threds = \"1\": unknown key; did you mean threads?"),
        (vec!["run", "--config", &unknown], ":4: gate.threds = \"1\": unknown key; did you mean threads?"),
        (vec!["quota", "run", "--config", &quota_unknown], ":2: quota.listn = "),
        (vec!["quota", "check", &quota_unknown], "unknown key; did you mean listen?"),
        (vec!["quota", "apply", &limits], "unknown key; did you mean burst?"),
        (vec!["run", "--config", &service], "another program listens there; `ss -lntup` says which"),
        (vec!["run", "--config", &page], "another program listens there; `ss -lntup` says which"),
        (vec!["quota", "run", "--config", &quota], "another program listens there; `ss -lntup` says which"),
        (vec!["status", "--socket", &socket], "start one with `gate run`"),
        (vec!["tenants", "--socket", &socket], "start one with `gate run`"),
        (vec!["hotkeys", "--socket", &socket], "start one with `gate run`"),
        (vec!["queues", "--socket", &socket], "start one with `gate run`"),
        (vec!["sources", "--socket", &socket], "start one with `gate run`"),
        (vec!["watch", "--socket", &socket], "start one with `gate run`"),
        (vec!["set", "--socket", &socket, "gate.mode", "shadow"], "start one with `gate run`"),
        (
            vec!["explain", "--socket", &socket, "--service", "s", "--tenant", "t", "--", "get", "a"],
            "`gate run`",
        ),
        (vec!["status", "--pin-dir", "/no/such/pins"], "; start one with `gate run`"),
        (
            vec!["quota", "show", "--owner", free],
            "start one with `gate quota run`, or name another with --owner",
        ),
    ] {
        let output = gate(&words);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {said}");
        let last = said.lines().last().unwrap_or_default();
        assert!(last.contains(expected), "{words:?}: {said}");
        // A warning may stand before it.
        let faults = said.lines().filter(|line| !line.contains("WARN") && !line.contains("INFO"));
        assert_eq!(faults.count(), 1, "{words:?}: {said}");
        assert!(!said.contains("os error"), "{words:?}: {said}");
    }
    std::fs::remove_dir_all(&place).unwrap();
}
