//! The access log of a service.

use anyhow::{Result, ensure};
use gate_tests::proxy::Listening;
use gate_tests::wait::wait_until;
use nix::sys::signal::Signal;
use serde_json::Value;

use super::cache::{Directory, FRESH, Origin, wait_open};
use super::{OPEN, client_from};

/// The lines of a file, once there are so many.
pub(super) fn lines(path: &std::path::Path, count: usize) -> Result<Vec<Value>> {
    let mut found = Vec::new();
    wait_until("the lines are not there", || {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        found = text.split_inclusive('\n').filter(|line| line.ends_with('\n')).map(str::to_owned).collect();
        Ok(found.len() >= count)
    })?;
    ensure!(found.len() == count, "{found:?}");
    Ok(found.iter().map(|line| serde_json::from_str(line)).collect::<Result<_, _>>()?)
}

#[test]
fn each_request_is_a_line_of_the_access_log() -> Result<()> {
    let directory = Directory::new("access-log");
    std::fs::create_dir_all(directory.path())?;
    let origin = Origin::start()?;
    let path = directory.path().with_extension("json");
    let service = format!("access_log = {path:?}\n{}", directory.cache(""));
    let gate = Listening::gate_with("tick = \"10ms\"", "http", origin.address, &service, OPEN)?;
    wait_open(&gate)?;
    let client = &mut client_from(&gate, 2)?;
    origin.put("/a?secret=1", FRESH, "0123456789");
    for (line, fields) in [
        ("GET /a?secret=1", ""),
        ("GET /a?secret=1", "range: bytes=2-4\r\n"),
        ("HEAD /a?secret=1", ""),
        ("GET /none", ""),
    ] {
        client.ask(line, fields)?;
    }
    ensure!(client.ask("POST /a", "expect: other\r\n")?.status == 417);
    let written = lines(&path, 5)?;
    let expected = [
        ("GET", "/a", 200, 10, "", "fwd=uri-miss; stored"),
        ("GET", "/a", 206, 3, "", "hit"),
        ("HEAD", "/a", 200, 0, "", "hit"),
        ("GET", "/none", 404, 0, "", ""),
        ("POST", "/a", 417, 0, "unsupported", ""),
    ];
    for (line, expected) in written.iter().zip(expected) {
        let text = |name: &str| line[name].as_str().unwrap_or_default();
        let number = |name: &str| line[name].as_u64().unwrap_or(u64::MAX);
        // gate's own text of a refusal is a body as well.
        let bytes = if text("reason").is_empty() { number("bytes") } else { 0 };
        let found = (text("method"), text("path"), number("status"), bytes, text("reason"), text("cache"));
        ensure!(found == expected, "{line}");
        ensure!((text("tenant"), text("client")) == ("all", "127.0.0.2"), "{line}");
        let takes = |name: &str| line[name].as_f64().unwrap_or(-1.0);
        ensure!(takes("first_ms") >= 0.0 && takes("ms") >= takes("first_ms"), "{line}");
        ensure!(text("time").ends_with('Z') && !line.to_string().contains("secret"), "{line}");
    }
    let moved = path.with_extension("1");
    std::fs::rename(&path, &moved)?;
    gate.signal(Signal::SIGHUP)?;
    let mut asked = 5;
    wait_until("it is not opened anew", || {
        client_from(&gate, 3)?.ask("GET /", "")?;
        asked += 1;
        Ok(path.exists())
    })?;
    let count =
        |path: &std::path::Path| -> Result<usize> { Ok(std::fs::read_to_string(path)?.lines().count()) };
    wait_until("a line is missing", || Ok(count(&path)? + count(&moved)? == asked))?;
    ensure!(std::fs::read_to_string(&path)?.lines().all(|line| line.contains("127.0.0.3")));
    std::fs::remove_file(&path)?;
    std::fs::remove_file(&moved)?;
    Ok(())
}
