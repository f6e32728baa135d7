//! The admin sockets over HTTP: real curl, documents and their schemas, readers, and clients of other versions.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context as _, Result, ensure};
use gate_tests::http::{curl_socket, say};
use gate_tests::proxy::{Listening, PATIENCE, read_until};
use gate_tests::schema;
use serde_json::Value;
use xtask::paths;

const TENANTS: &str = "[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"500 RU/s\"\n\
                       [[tenant]]\nname = \"other\"\nsources = [\"10.0.0.0/8\"]\nquota = \"unlimited\"\n";

/// A gate before a store of its own, whose tenant has been served and refused.
fn gate(section: &str) -> Result<(Listening, Listening)> {
    let store = Listening::embedded("memcached")?;
    let section = format!("threads = \"1\"\n{section}");
    let gate = Listening::gate_with(&section, "memcached", store.address, "", TENANTS)?;
    let mut client = gate.connect()?;
    client.write_all(&b"delete a\r\n".repeat(2_000))?;
    let mut lines = 0;
    while lines < 2_000 {
        lines += read_until(&mut client, b"\r\n")?.iter().filter(|&&byte| byte == b'\n').count();
    }
    Ok((gate, store))
}

/// A gate with a second socket, and the path of that.
fn gate_with_readers(name: &str) -> Result<(Listening, Listening, PathBuf)> {
    let path = std::env::temp_dir().join(format!("gate-read-{}-{name}.sock", std::process::id()));
    let (gate, store) = gate(&format!("admin_read = {path:?}"))?;
    Ok((gate, store, path))
}

fn schema(name: &str) -> Result<Value> {
    let output = Command::new(paths::gate()).args(["schema", name]).output()?;
    ensure!(output.status.success(), "{output:?}");
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn documents_that_curl_reads_and_the_cli_prints_fit_schemas() -> Result<()> {
    let (gate, _store) = gate("")?;
    let (_, socket) = gate.files()?;
    gate.json(&["set", "tenant.all.tier", "batch"])?;
    for name in ["status", "tenants", "hotkeys", "queues", "members", "sources", "watch"] {
        let answer = curl_socket(&socket, &format!("/v1/{name}"), &[])?;
        ensure!(answer.status == 200 && answer.head.contains("content-type: application/json"), "{answer:?}");
        let document = answer.json()?;
        ensure!(document["schema_version"] == 1, "{name}: {document}");
        schema::check(&schema(name)?, &document).with_context(|| format!("/v1/{name}"))?;
        let printed = gate.json(&[name])?;
        ensure!(printed["schema_version"] == 1, "{name}: {printed}");
        schema::check(&schema(name)?, &printed).with_context(|| name)?;
    }
    let tenants = curl_socket(&socket, "/v1/tenants", &[])?.json()?;
    let all = &tenants["tenants"][0];
    ensure!(all["name"] == "all" && all["overrides"]["tier"] == "batch", "{tenants}");
    ensure!(all["passed"].as_u64() > Some(0) && all["refused"]["quota"].as_u64() > Some(0), "{tenants}");
    let selected = curl_socket(&socket, "/v1/tenants?sort=refused-rate&filter=AL&limit=0", &[])?.json()?;
    schema::check(&schema("tenants")?, &selected)?;
    ensure!(selected["tenants"] == serde_json::json!([]) && selected["matching"] == 1, "{selected}");
    ensure!(
        selected["totals"] == tenants["totals"] && selected["totals"]["passed"] == all["passed"],
        "{selected}"
    );
    let order = serde_json::json!({ "set": [{ "key": "gate.mode", "value": "shadow" }], "dry_run": true });
    schema::check(&schema("order")?, &order)?;
    let done = curl_socket(&socket, "/v1/set", &["--data", &order.to_string()])?;
    ensure!(done.status == 200, "{done:?}");
    schema::check(&schema("set")?, &done.json()?)?;
    schema::check(&schema("set")?, &gate.json(&["set", "--list"])?)?;
    let failed = curl_socket(&socket, "/v1/money", &[])?;
    schema::check(&schema("error")?, &failed.json()?)
}

#[test]
fn malformed_requests_get_clear_answers_and_change_nothing() -> Result<()> {
    let (gate, _store) = gate("")?;
    let (_, socket) = gate.files()?;
    let long = "x".repeat(70_000);
    for (path, arguments, status, said) in [
        (
            "/v1/money",
            &[][..],
            404,
            "there are /live, /ready, /metrics, /v1/status, /v1/tenants, /v1/hotkeys, /v1/queues, /v1/explain, /v1/members, /v1/sources, /v1/watch, /v1/cache, /v1/events, /v1/history, /v1/reasons and, over the socket",
        ),
        ("/", &[], 404, "has no /"),
        ("/v1/tenants?sort=money", &[], 422, "sort=money: must be one of name, tier"),
        ("/v1/set", &[], 405, "/v1/set does not take GET, but POST"),
        ("/v1/status", &["--request", "DELETE"], 405, "/v1/status does not take DELETE, but GET"),
        ("/v1/set", &["--data", "hello"], 400, "not an order: expected value at line 1"),
        ("/v1/set", &["--data", ""], 400, "not an order: EOF"),
        ("/v1/set", &["--data", "{\"sett\":[]}"], 400, "unknown field `sett`"),
        ("/v1/set", &["--data", "{\"set\":7}"], 400, "invalid type"),
        ("/v1/set", &["--data", "{\"unset\":[\"gate.mode\"]}"], 422, "gate.mode is not set"),
        ("/v1/set", &["--data", &long], 413, "an order has at most 65536 bytes"),
    ] {
        let answer = curl_socket(&socket, path, arguments).with_context(|| path.to_owned())?;
        ensure!(answer.status == status, "{path}: {answer:?}");
        ensure!(
            answer.error()?.contains(said) && answer.json()?["schema_version"] == 1,
            "{path}: {answer:?}"
        );
    }
    let long_path = curl_socket(&socket, &format!("/{}", &long[..9_000]), &[])?;
    ensure!(long_path.body.len() < 450, "{long_path:?}");
    ensure!(gate.json(&["set", "--list"])?["overrides"] == Value::Array(Vec::new()));
    for bytes in [
        &b"\n"[..],
        b"\xff\xfe\r\n\r\n",
        b"{\"ask\":\"status\"}\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
    ] {
        let stream = UnixStream::connect(&socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let said = say(stream, bytes)?;
        ensure!(said.is_empty() || said.starts_with("HTTP/1.1 400 "), "{bytes:?}: {said}");
    }
    Ok(())
}

#[test]
fn readers_are_shown_everything_and_can_change_nothing() -> Result<()> {
    let (gate, _store, path) = gate_with_readers("readers")?;
    let mode = std::fs::metadata(&path)?.permissions().mode() & 0o777;
    ensure!(mode == 0o660, "{mode:o}");
    for name in ["status", "tenants", "hotkeys", "queues"] {
        ensure!(curl_socket(&path, &format!("/v1/{name}"), &[])?.status == 200, "{name}");
    }
    let order = r#"{"set":[{"key":"gate.mode","value":"shadow"}]}"#;
    for body in [order, "{}"] {
        let refused = curl_socket(&path, "/v1/set", &["--data", body])?;
        ensure!(refused.status == 403, "{refused:?}");
        ensure!(refused.error()?.starts_with("nothing can be changed over this socket"), "{refused:?}");
    }
    let by = |socket: &Path, arguments: &[&str]| {
        Command::new(paths::gate()).args(arguments).arg("--socket").arg(socket).output()
    };
    ensure!(by(&path, &["status"])?.status.success());
    let set = by(&path, &["set", "gate.mode", "shadow"])?;
    ensure!(set.status.code() == Some(1) && stderr(&set).contains("nothing can be changed"), "{set:?}");
    ensure!(gate.json(&["status"])?["shadow"] == false);
    drop(gate);
    ensure!(!path.exists(), "{} is left", path.display());
    Ok(())
}

#[test]
fn a_change_is_logged_with_the_user_and_process_that_made_it() -> Result<()> {
    let (mut gate, _store) = gate("")?;
    let (_, socket) = gate.files()?;
    let mut command = Command::new(paths::gate());
    command.args(["set", "gate.mode", "shadow", "--socket"]).arg(&socket);
    let child = command.stdout(std::process::Stdio::null()).spawn()?;
    let pid = child.id();
    ensure!(child.wait_with_output()?.status.success());
    let line = gate.program().wait_for("gate.mode", PATIENCE)?;
    let uid = nix::unistd::getuid();
    ensure!(line.contains(&format!("uid={uid}")) && line.contains(&format!("pid={pid}")), "{line}");
    Ok(())
}

/// Answers one request with these bytes, as a gate of another version would, and returns what `gate status` says to that.
fn status_of(name: &str, answer: &'static str) -> Result<String> {
    let path = std::env::temp_dir().join(format!("gate-other-{}-{name}.sock", std::process::id()));
    let listener = UnixListener::bind(&path)?;
    let other = std::thread::spawn(move || -> Result<()> {
        let (mut stream, _) = listener.accept()?;
        let mut request = [0; 4_096];
        let _ = stream.read(&mut request)?;
        Ok(stream.write_all(answer.as_bytes())?)
    });
    let asked = Command::new(paths::gate()).args(["status", "--socket"]).arg(&path).output()?;
    std::fs::remove_file(&path)?;
    other.join().ok().context("the other gate panicked")??;
    ensure!(asked.status.code() == Some(1) && asked.stdout.is_empty(), "{asked:?}");
    Ok(stderr(&asked))
}

#[test]
fn a_gate_of_another_version_is_named_as_such() -> Result<()> {
    let line_of_json = "{\"error\":\"not a request: expected value at line 1 column 1\"}";
    let newer = "HTTP/1.1 200 OK\r\ncontent-length: 20\r\n\r\n{\"schema_version\":2}";
    let without = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
    let gone =
        "HTTP/1.1 404 Not Found\r\ncontent-length: 37\r\n\r\n{\"error\":\"gate 9 has no /v1/status\"}\r\n";
    for (name, answer, said) in [
        ("older", line_of_json, "is it of another version than this one, 0.1.0?"),
        ("newer", newer, "its documents have version 2, and this gate reads version 1"),
        ("without", without, "is it of another version"),
        ("gone", gone, "gate 9 has no /v1/status"),
    ] {
        let found = status_of(name, answer)?;
        ensure!(found.contains(said), "{name}: {found}");
    }
    Ok(())
}
