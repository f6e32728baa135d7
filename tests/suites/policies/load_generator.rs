//! `gate load` before real stores: every kind of request of a mix, large values, two targets in turn, and Ctrl-C.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use gate_tests::proxy::Listening;
use gate_tests::wait::wait_until;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use xtask::paths;

/// Requests that both stores have. A value of 1 MiB is more than an item of memcached may be by default.
const VALUES: &str = r#"
[[request]]
command = "get"
weight = 4
keys = 50
value = "512KiB"
prefix = "large"
[[request]]
command = "mget"
weight = 2
count = 7
keys = "zipf:50:1.1"
[[request]]
command = "set"
keys = 20
value = "1000KiB"
prefix = "written"
[[request]]
command = "delete"
prefix = "gone"
"#;

const REDIS_ONLY: &str = r#"
[[request]]
command = "set"
name = "set-a-MiB"
keys = 2
value = "1MiB"
prefix = "written"
[[request]]
command = "range"
count = 300
keys = 10
value = "20B"
[[request]]
command = "script"
keys = 50
script = "return redis.call('STRLEN', KEYS[1])"
[[request]]
command = ["HSET", "h:{key}", "field", "1"]
name = "field"
"#;

struct Mix(PathBuf);

impl Mix {
    fn new(name: &str, text: &str) -> Result<Self> {
        let file = std::env::temp_dir().join(format!("gate-mix-{}-{name}.toml", std::process::id()));
        fs::write(&file, text)?;
        Ok(Self(file))
    }

    fn tenant(&self, rate: u32) -> String {
        format!("name=a,rate={rate}/s,connections=4,mix={}", self.0.display())
    }
}

impl Drop for Mix {
    fn drop(&mut self) {
        // The file lies in the directory for temporary files.
        let _ = fs::remove_file(&self.0);
    }
}

fn load(target: SocketAddr, arguments: &[&str]) -> Command {
    let mut command = Command::new(paths::gate());
    command.args(["load", "--json", "--timeout", "20s", "--target", &target.to_string()]).args(arguments);
    command
}

fn result(mut command: Command) -> Result<Value> {
    let output = command.output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Everything was answered, each kind of request by itself as well, and those that read found something.
fn ensure_answered(summary: &Value, kinds: &[&str]) -> Result<()> {
    let tenant = &summary["tenants"][0];
    let count = |of: &Value, what: &str| of[what].as_u64().context("no count");
    let offered = count(tenant, "offered")?;
    ensure!(offered > 0 && count(tenant, "answered")? == offered, "{summary:#}");
    let requests = tenant["requests"].as_array().context("no requests")?;
    let names: Vec<_> = requests.iter().filter_map(|request| request["name"].as_str()).collect();
    ensure!(names == kinds, "{names:?}");
    let mut sum = 0;
    for request in requests {
        let answered = count(request, "answered")?;
        ensure!(answered > 0 && answered == count(request, "offered")?, "{request:#}");
        ensure!(count(&request["latency_ns"], "p50")? > 0, "{request:#}");
        sum += answered;
    }
    ensure!(sum == offered, "{sum} by kind, {offered} in all");
    Ok(())
}

#[test]
fn redis_answers_every_kind_of_request() -> Result<()> {
    let store = Listening::redis()?;
    let mix = Mix::new("redis", &format!("{VALUES}{REDIS_ONLY}"))?;
    let fill = store.address.to_string();
    let tenant = mix.tenant(500);
    let arguments = ["--protocol", "resp", "--fill", &fill, "--tenant", &tenant, "--count", "600"];
    let summary = result(load(store.address, &arguments))?;
    ensure_answered(&summary, &["get", "mget", "set", "delete", "set-a-MiB", "range", "script", "field"])?;
    // Gets, multi-gets and ranges were filled; a MiB was written whole.
    let hits = summary["tenants"][0]["hits"].as_u64().context("no hits")?;
    let reads: u64 = ["get", "mget", "range"].iter().filter_map(|name| answered(&summary, name)).sum();
    ensure!(hits == reads, "{hits} hits, {reads} reads: {summary:#}");
    let mut redis = Command::new("redis-cli");
    redis.args(["-h", &store.address.ip().to_string(), "-p", &store.address.port().to_string()]);
    let rows = redis.args(["LLEN", "a:rows:0"]).output()?;
    ensure!(rows.stdout == b"300\n", "{rows:?}");
    Ok(())
}

fn answered(summary: &Value, name: &str) -> Option<u64> {
    let requests = summary["tenants"][0]["requests"].as_array()?;
    requests.iter().find(|request| request["name"] == name)?["answered"].as_u64()
}

#[test]
fn memcached_answers_every_kind_of_request() -> Result<()> {
    let store = Listening::memcached()?;
    let mix = Mix::new("memcached", VALUES)?;
    let fill = store.address.to_string();
    let tenant = mix.tenant(500);
    let summary =
        result(load(store.address, &["--tcp", "--fill", &fill, "--tenant", &tenant, "--count", "400"]))?;
    ensure_answered(&summary, &["get", "mget", "set", "delete"])?;
    let hits = summary["tenants"][0]["hits"].as_u64().context("no hits")?;
    let reads = answered(&summary, "get").unwrap_or(0) + answered(&summary, "mget").unwrap_or(0);
    ensure!(hits == reads, "{hits} hits, {reads} reads: {summary:#}");
    Ok(())
}

#[test]
fn what_memcached_refuses_for_its_size_fails_alone() -> Result<()> {
    let store = Listening::memcached()?;
    let text = "[[request]]\ncommand = \"set\"\nvalue = \"1MiB\"\n[[request]]\ncommand = \"get\"\nprefix = \"none\"\n";
    let mix = Mix::new("size", text)?;
    let summary = result(load(store.address, &["--tcp", "--tenant", &mix.tenant(200), "--count", "100"]))?;
    let requests = &summary["tenants"][0]["requests"];
    ensure!(requests[0]["failed"] == requests[0]["offered"], "{summary:#}");
    ensure!(requests[1]["answered"] == requests[1]["offered"], "{summary:#}");
    Ok(())
}

#[test]
fn a_comparison_asks_both_targets_the_same() -> Result<()> {
    let store = Listening::redis()?;
    let gate = Listening::gate(
        "resp",
        store.address,
        "",
        "[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"100 RU/s\"",
    )?;
    let other = gate.address.to_string();
    let arguments = [
        "--protocol",
        "resp",
        "--compare",
        &other,
        "--slice",
        "200ms",
        "--for",
        "1s",
        "--tenant",
        "name=a,rate=2000/s,arrivals=constant",
    ];
    let compared = result(load(store.address, &arguments))?;
    let count = |which: &str, what: &str| compared[which]["tenants"][0][what].as_u64().context("no count");
    // Five slices of 200 ms each; the request that is due at the end of a slice belongs to none.
    ensure!(count("first", "offered")? == 5 * 399, "{compared:#}");
    ensure!(count("first", "offered")? == count("second", "offered")?, "{compared:#}");
    ensure!(count("first", "answered")? == count("first", "offered")?, "{compared:#}");
    ensure!(count("second", "refused")? > 0, "{compared:#}");
    let ratio = compared["ratios"][0]["answered"].as_f64().context("no ratio")?;
    let expected = count("second", "answered")? as f64 / count("first", "answered")? as f64;
    ensure!((ratio - expected).abs() < 1e-9 && ratio < 1.0, "{compared:#}");
    Ok(())
}

#[test]
fn ctrl_c_ends_a_run_with_its_summary() -> Result<()> {
    let store = Listening::redis()?;
    let arguments = ["--protocol", "resp", "--tenant", "name=a,rate=1000/s", "--for", "1h"];
    let mut running = load(store.address, &arguments).stdout(Stdio::piped()).spawn()?;
    let mut redis = Command::new("redis-cli");
    redis.args(["-h", &store.address.ip().to_string(), "-p", &store.address.port().to_string()]);
    redis.args(["INFO", "commandstats"]);
    let asked = wait_until("nothing was asked", || {
        Ok(String::from_utf8_lossy(&redis.output()?.stdout).contains("cmdstat_get:"))
    });
    kill(Pid::from_raw(i32::try_from(running.id())?), Signal::SIGINT)?;
    let ended = wait_until("it goes on", || Ok(running.try_wait()?.is_some()));
    if ended.is_err() {
        running.kill()?;
    }
    let output = running.wait_with_output()?;
    asked.and(ended)?;
    ensure!(output.status.success());
    let summary: Value = serde_json::from_slice(&output.stdout)?;
    ensure!(summary["tenants"][0]["answered"].as_u64() > Some(0), "{summary:#}");
    Ok(())
}
