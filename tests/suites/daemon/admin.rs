//! A running gate is asked and told over its admin socket.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use gate_tests::proxy::{Listening, PATIENCE, read_until};
use gate_tests::slow_store::slow_store;
use gate_tests::wait::wait_until;
use nix::sys::signal::Signal;
use serde_json::Value;
use xtask::lab::process::ChildProcess;
use xtask::paths;

const TENANT: &str = "# Who pays.\n[[tenant]]\nname = \"all\" # everyone\nsources = [\"127.0.0.0/8\"]\n\
                      quota = \"5000 RU/s\" # enough\n";

fn gate(service: &str) -> Result<Listening> {
    let service = format!("price = {{ base = \"1 RU\", row = \"0 RU\", kib = \"0 RU\" }}\n{service}");
    Listening::gate_with("threads = \"1\"", "memcached", slow_store(SERVICE_TIME)?, &service, TENANT)
}

const SERVICE_TIME: Duration = Duration::from_millis(1);

fn quota(gate: &Listening) -> Result<f64> {
    gate.json(&["tenants"])?["tenants"][0]["quota_ru_per_sec"].as_f64().context("no quota")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn the_socket_is_private_to_its_owner_and_goes_with_the_gate() -> Result<()> {
    let mut gate = gate("")?;
    let (_, socket) = gate.files()?;
    let mode = std::fs::metadata(&socket)?.permissions().mode();
    ensure!(mode & 0o777 == 0o600, "{mode:o}");
    gate.program().signal(Signal::SIGTERM)?;
    wait_until("it ends", || Ok(!gate.program().is_running()?))?;
    ensure!(!socket.exists(), "the socket is still there");
    let asked = gate.command(&["queues"])?;
    ensure!(asked.status.code() == Some(1), "{asked:?}");
    ensure!(stderr(&asked).starts_with("gate: no gate listens at "), "{}", stderr(&asked));
    Ok(())
}

#[test]
fn a_dead_gates_socket_is_replaced_and_a_living_ones_is_kept() -> Result<()> {
    let mut first = gate("")?;
    let (config, socket) = first.files()?;
    let text = std::fs::read_to_string(config)?;
    let other = config.with_extension("other.toml");
    std::fs::write(&other, text.replace(":21211", ":21212"))?;
    let start = || {
        let mut command = Command::new(paths::gate());
        command.arg("run").arg("--config").arg(&other);
        ChildProcess::start("gate", command)
    };
    let said = start()?.finish(PATIENCE).err().map(|error| error.to_string()).unwrap_or_default();
    ensure!(said.contains("another gate listens at"), "{said}");
    first.json(&["status"])?;
    first.signal(Signal::SIGKILL)?;
    // That it was killed is an error there.
    wait_until("it ends", || Ok(!first.program().is_running().unwrap_or(false)))?;
    ensure!(socket.exists(), "who is killed removes nothing");
    let mut second = start()?;
    second.wait_for("running without XDP", PATIENCE)?;
    ensure!(first.json(&["status"])?["daemon"] == second.id(), "another one answers");
    second.end()?;
    std::fs::remove_file(&other)?;
    Ok(())
}

#[test]
fn a_gate_that_is_stopped_is_said_not_to_answer() -> Result<()> {
    let gate = gate("")?;
    gate.signal(Signal::SIGSTOP)?;
    let asked = gate.command(&["queues"])?;
    gate.signal(Signal::SIGCONT)?;
    ensure!(asked.status.code() == Some(1) && stderr(&asked).contains("does not answer"), "{asked:?}");
    gate.json(&["queues"])?;
    Ok(())
}

#[test]
fn it_says_what_the_maps_would_and_how_requests_fare() -> Result<()> {
    let service = "parallelism = \"1\"\nadmission = \"off\"\ndeadline = \"5ms\"\n\
                   objectives = { delete = { p50 = \"7ms\", p90 = \"9ms\" } }";
    let gate = gate(service)?;
    let mut client = gate.connect()?;
    client.write_all(&b"delete a\r\n".repeat(200))?;
    let mut said = String::new();
    while said.matches("\r\n").count() < 200 {
        said += &String::from_utf8(read_until(&mut client, b"\r\n")?)?;
    }
    let passed = said.matches("DELETED\r\n").count() as u64;
    let late = said.matches("reason=deadline\r\n").count() as u64;
    ensure!(passed > 0 && late > 0 && passed + late == 200, "{passed} and {late}");

    let status = gate.json(&["status"])?;
    ensure!(status["daemon"].is_u64() && status["services"][0]["name"] == "store", "{status}");
    // Who is refused after waiting has its charge back, and is counted once.
    let tenant = &gate.json(&["tenants"])?["tenants"][0];
    ensure!(tenant["passed"] == passed && tenant["charged_ru"] == passed as f64, "{tenant}");
    ensure!(tenant["refused"]["deadline"] == late, "{tenant}");
    ensure!(gate.json(&["hotkeys"])?["keys"].is_array());

    let queues = gate.json(&["queues"])?;
    let service = &queues["services"][0];
    let delete = &service["types"][0];
    ensure!(delete["name"] == "delete" && delete["answered"] == passed, "{service}");
    ensure!(delete["offered"] == 200 && delete["refused"] == late, "{service}");
    ensure!(delete["accepted"].as_f64() == Some(passed as f64 / 200.0), "{service}");
    ensure!(delete["objective_ms"]["p90"] == 9.0, "{service}");
    ensure!(delete["processing_ms"]["p50"].as_f64() >= Some(1.0), "{service}");
    ensure!(delete["wait_ms"]["p99"].as_f64() <= delete["response_ms"]["p99"].as_f64(), "{service}");
    ensure!(
        service["tiers"][3]["tier"] == "best-effort" && service["events"]["requests"] == 200,
        "{service}"
    );
    for command in ["status", "tenants", "hotkeys", "queues"] {
        let shown = gate.command(&[command])?;
        ensure!(shown.status.success() && !shown.stdout.is_empty(), "{command}: {}", stderr(&shown));
    }
    Ok(())
}

#[test]
fn what_is_set_holds_survives_a_reload_and_is_unset_again() -> Result<()> {
    let gate = gate("")?;
    let (config, _) = gate.files()?;
    let text = std::fs::read_to_string(config)?;
    let key = "tenant.all.quota";
    let dry = gate.json(&["set", key, "8000 RU/s", "--dry-run"])?;
    ensure!(dry["changed"][0]["from"] == "5000 RU/s" && dry["changed"][0]["to"] == "8000 RU/s", "{dry}");
    ensure!(quota(&gate)? == 5_000.0);
    gate.json(&["set", key, "8000 RU/s"])?;
    gate.json(&["set", "gate.mode", "shadow"])?;
    ensure!(quota(&gate)? == 8_000.0);
    for document in [gate.json(&["status"])?, gate.json(&["set", "--list"])?] {
        ensure!(document["overrides"][0]["value"] == "8000 RU/s", "{document}");
    }

    // The file has another quota now, and another tier: the first is set, the second counts.
    std::fs::write(config, text.replace("\"5000 RU/s\"", "\"6000 RU/s\"\ntier = \"batch\""))?;
    gate.signal(Signal::SIGHUP)?;
    let deadline = Instant::now() + PATIENCE;
    while gate.json(&["tenants"])?["tenants"][0]["tier"] != "batch" {
        ensure!(Instant::now() < deadline, "it was not read again");
    }
    ensure!(quota(&gate)? == 8_000.0 && gate.json(&["status"])?["shadow"] == true);
    let done = gate.json(&["set", "--unset", key, "--unset", "gate.mode"])?;
    ensure!(
        done["changed"][0]["to"] == "6000 RU/s" && done["overrides"] == Value::Array(Vec::new()),
        "{done}"
    );
    ensure!(quota(&gate)? == 6_000.0 && gate.json(&["status"])?["shadow"] == false);
    Ok(())
}

/// The reply to one request.
fn asked(gate: &Listening) -> Result<String> {
    let mut client = gate.connect()?;
    client.write_all(b"delete a\r\n")?;
    Ok(String::from_utf8(read_until(&mut client, b"\r\n")?)?)
}

/// Waits until a request is answered so: the threads follow at their next tick.
fn wait_for_answer(gate: &Listening, answer: &str) -> Result<()> {
    wait_until(answer, || Ok(asked(gate)?.contains(answer)))
}

#[test]
fn a_tenant_is_refused_or_dearer_by_hand_until_that_is_unset() -> Result<()> {
    let mut gate = gate("")?;
    wait_for_answer(&gate, "DELETED")?;
    gate.json(&["set", "tenant.all.refuse", "on"])?;
    wait_for_answer(&gate, "reason=penalty")?;
    let tenant = &gate.json(&["tenants"])?["tenants"][0];
    ensure!(tenant["refuse"] == true && tenant["overrides"]["refuse"] == "on", "{tenant}");
    ensure!(tenant["refused"]["penalty"].as_u64() > Some(0), "{tenant}");
    let shown = String::from_utf8(gate.command(&["tenants"])?.stdout)?;
    ensure!(shown.contains("by hand") && shown.contains("refused, set: refuse = \"on\""), "{shown}");
    // Whatever the file says meanwhile.
    reload(&mut gate, |text| text.replace("# enough", "# enough\nrefuse = \"off\"\ntier = \"batch\""))?;
    wait_until("its tier", || Ok(gate.json(&["tenants"])?["tenants"][0]["tier"] == "batch"))?;
    ensure!(asked(&gate)?.contains("reason=penalty"), "the reload has taken it back");

    gate.json(&["set", "tenant.all.multiplier", "4"])?;
    gate.json(&["set", "--unset", "tenant.all.refuse"])?;
    wait_for_answer(&gate, "DELETED")?;
    let charged = || gate.json(&["tenants"])?["tenants"][0]["charged_ru"].as_f64().context("no charge");
    let before = charged()?;
    ensure!(asked(&gate)? == "DELETED\r\n");
    ensure!(charged()? == before + 4.0, "{before}, then {}", charged()?);
    let tenant = &gate.json(&["tenants"])?["tenants"][0];
    ensure!(tenant["price_multiplier"] == 4.0 && tenant["refuse"] == false, "{tenant}");
    let shown = String::from_utf8(gate.command(&["tenants"])?.stdout)?;
    ensure!(shown.contains("prices x4, set: multiplier = \"4\""), "{shown}");
    gate.json(&["set", "--unset", "tenant.all.multiplier"])?;
    wait_until("its price", || Ok(gate.json(&["tenants"])?["tenants"][0]["price_multiplier"] == 1.0))?;
    let shown = String::from_utf8(gate.command(&["tenants"])?.stdout)?;
    ensure!(!shown.contains("by hand"), "{shown}");
    Ok(())
}

#[test]
fn what_is_set_of_a_service_is_shown_with_its_queues() -> Result<()> {
    let gate = gate("")?;
    gate.json(&["set", "service.store.price.row", "2 RU"])?;
    let service = &gate.json(&["queues"])?["services"][0];
    ensure!(service["overrides"]["price.row"] == "2 RU", "{service}");
    let shown = String::from_utf8(gate.command(&["queues"])?.stdout)?;
    ensure!(shown.contains("set since the start: price.row = \"2 RU\""), "{shown}");
    Ok(())
}

#[test]
fn what_is_wrong_changes_nothing_and_says_what_would_be_right() -> Result<()> {
    let gate = gate("")?;
    for (arguments, said) in [
        (
            &["set", "tenant.all.quota", "0 RU/s"][..],
            "gate: tenant.all.quota = \"0 RU/s\": must be above 0, e.g. \"5000 RU/s\"",
        ),
        (
            &["set", "tenant.all.multiplier", "65"],
            "gate: tenant.all.multiplier = \"65\": must be from 1 to 64",
        ),
        (
            &["set", "tenant.all.refuse", "yes"],
            "gate: tenant.all.refuse = \"yes\": must be \"on\" or \"off\"",
        ),
        (&["set", "tenant.al.quota", "1 RU/s"], "no tenant of this name; did you mean all?"),
        (&["set", "gate.tick", "1s"], "gate.tick is not among the keys that can be set while gate runs"),
        (&["set", "--unset", "gate.mode"], "gate.mode is not set"),
    ] {
        let output = gate.command(arguments)?;
        ensure!(output.status.code() == Some(1) && stderr(&output).contains(said), "{}", stderr(&output));
    }
    for arguments in [&["set"][..], &["set", "gate.mode"], &["set", "a", "b", "--list"]] {
        ensure!(gate.command(arguments)?.status.code() == Some(2), "{arguments:?}");
    }
    ensure!(quota(&gate)? == 5_000.0);
    ensure!(gate.json(&["set", "--list"])?["overrides"] == Value::Array(Vec::new()));
    Ok(())
}

#[test]
fn a_faulty_file_is_named_with_its_line() -> Result<()> {
    let gate = gate("")?;
    let (config, _) = gate.files()?;
    let text = std::fs::read_to_string(config)? + "\noops = \n";
    std::fs::write(config, &text)?;
    let place = format!("{}:{}: ", config.display(), text.lines().count());
    for arguments in [&["set", "gate.mode", "shadow"][..], &["set", "gate.mode", "shadow", "--save"]] {
        let output = gate.command(arguments)?;
        ensure!(output.status.code() == Some(1) && stderr(&output).contains(&place), "{}", stderr(&output));
    }
    ensure!(std::fs::read_to_string(config)? == text);
    Ok(())
}

#[test]
fn what_is_saved_is_in_the_configuration_and_comments_stay() -> Result<()> {
    let gate = gate("")?;
    let (config, _) = gate.files()?;
    let text = std::fs::read_to_string(config)?;
    gate.json(&["set", "gate.mode", "shadow"])?;
    let done = gate.json(&["set", "tenant.all.quota", "8000 RU/s", "--save"])?;
    ensure!(done["overrides"][0]["key"] == "gate.mode" && done["overrides"][1].is_null(), "{done}");
    // Only what was to be saved is.
    ensure!(std::fs::read_to_string(config)? == text.replace("5000", "8000"));
    ensure!(quota(&gate)? == 8_000.0);
    Ok(())
}

#[test]
fn an_order_says_that_the_file_had_been_edited() -> Result<()> {
    let mut gate = gate("")?;
    let (config, _) = gate.files()?;
    let config = config.to_owned();
    let set = |gate: &Listening, mode: &str| gate.json(&["set", "gate.mode", mode]);
    ensure!(set(&gate, "shadow")?["edited"] == false);
    let text = std::fs::read_to_string(&config)?;
    std::fs::write(&config, text.replace("5000", "6000"))?;
    ensure!(gate.json(&["set", "gate.mode", "enforce", "--dry-run"])?["edited"] == true);
    ensure!(quota(&gate)? == 5_000.0, "a dry run");
    ensure!(set(&gate, "enforce")?["edited"] == true && quota(&gate)? == 6_000.0);
    ensure!(set(&gate, "shadow")?["edited"] == false);
    reload(&mut gate, |text| text.replace("6000", "7000"))?;
    ensure!(set(&gate, "enforce")?["edited"] == false && quota(&gate)? == 7_000.0);
    let done = gate.json(&["set", "tenant.all.quota", "8000 RU/s", "--save"])?;
    ensure!(done["edited"] == false, "{done}");
    ensure!(set(&gate, "shadow")?["edited"] == false, "what gate itself has saved");
    Ok(())
}

/// Rewrites the configuration, has it read again, and waits until it says so.
fn reload(gate: &mut Listening, change: impl Fn(&str) -> String) -> Result<()> {
    let (config, _) = gate.files()?;
    let text = std::fs::read_to_string(config)?;
    let changed = change(&text);
    ensure!(changed != text, "nothing to be read again");
    std::fs::write(config, changed)?;
    gate.signal(Signal::SIGHUP)?;
    gate.program().wait_for("configuration read again", PATIENCE)?;
    Ok(())
}

/// How many of 100 requests at once, each of a millisecond, are refused with `deadline`.
fn late(gate: &Listening) -> Result<usize> {
    let mut client = gate.connect()?;
    client.write_all(&b"delete a\r\n".repeat(100))?;
    let mut said = String::new();
    while said.matches("\r\n").count() < 100 {
        said += &String::from_utf8(read_until(&mut client, b"\r\n")?)?;
    }
    Ok(said.matches("reason=deadline\r\n").count())
}

#[test]
fn a_reload_changes_limits_and_objectives_of_a_proxied_service() -> Result<()> {
    let queue = "parallelism = \"1\"\nadmission = \"off\"\ncodel = { law = \"off\" }\n";
    let mut gate = gate(queue)?;
    ensure!(late(&gate)? == 0);
    let deadline = "deadline = \"5ms\"\nobjectives = { default = { p50 = \"7ms\" } }\nparallelism";
    reload(&mut gate, |text| text.replace("parallelism", deadline))?;
    // The threads follow at their next tick.
    let patience = Instant::now() + PATIENCE;
    while late(&gate)? == 0 {
        ensure!(Instant::now() < patience, "the deadline does not count");
    }
    let queues = gate.json(&["queues"])?;
    ensure!(queues["services"][0]["types"][0]["objective_ms"]["p50"] == 7.0, "{queues}");
    // And at run time.
    gate.json(&["set", "service.store.deadline", "10s"])?;
    while late(&gate)? > 0 {
        ensure!(Instant::now() < patience, "the deadline still counts");
    }
    Ok(())
}

#[test]
fn a_reload_says_what_counts_from_the_next_start() -> Result<()> {
    let mut gate = gate("parallelism = \"1\"\nadmission = \"off\"\n")?;
    let (config, _) = gate.files()?;
    let more = "parallelism = \"2\"\nconnections = \"7\"";
    std::fs::write(config, std::fs::read_to_string(config)?.replace("parallelism = \"1\"", more))?;
    gate.signal(Signal::SIGHUP)?;
    for key in ["connections", "parallelism"] {
        let expected = format!("service.store.{key} counts from the next start only");
        gate.program().wait_for(&expected, PATIENCE)?;
    }
    Ok(())
}

#[test]
fn prices_stay_when_a_reload_puts_a_service_first() -> Result<()> {
    let mut gate = gate("")?;
    late(&gate)?;
    let before = gate.json(&["tenants"])?["tenants"][0]["charged_ru"].as_f64().context("no charge")?;
    let first = "[[service]]\nname = \"first\"\nprotocol = \"memcached\"\nlisten = \"127.0.0.1:1\"\n\
                 backend = \"127.0.0.1:2\"\nprice = { base = \"7 RU\" }\n\n[[service]]\nname = \"store\"";
    reload(&mut gate, |text| text.replace("[[service]]\nname = \"store\"", first))?;
    late(&gate)?;
    let after = gate.json(&["tenants"])?["tenants"][0]["charged_ru"].as_f64().context("no charge")?;
    ensure!((before, after) == (100.0, 200.0), "{before}, then {after}");
    Ok(())
}
