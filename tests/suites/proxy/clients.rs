//! Ordinary client libraries before gate, unmodified: they work as they do before the store itself.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use gate_tests::proxy::Listening;

const EVERYONE: &str = "[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"unlimited\"";

#[test]
fn redis_py_works() -> Result<()> {
    let store = Listening::redis()?;
    let gate = Listening::gate("resp", store.address, "", EVERYONE)?;
    speak("speak_redis.py", &store)?;
    speak("speak_redis.py", &gate)
}

#[test]
fn pymemcache_works() -> Result<()> {
    let store = Listening::memcached()?;
    let gate = Listening::gate("memcached", store.address, "", EVERYONE)?;
    speak("speak_memcached.py", &store)?;
    speak("speak_memcached.py", &gate)
}

/// Runs a program with a server's address; Debian's own Python has Debian's libraries.
fn speak(program: &str, server: &Listening) -> Result<()> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("suites/proxy/clients");
    let mut command = Command::new("/usr/bin/python3");
    command.arg("-B").arg(directory.join(program));
    command.args([server.address.ip().to_string(), server.address.port().to_string()]);
    let output = command.output().context("/usr/bin/python3")?;
    let said = String::from_utf8_lossy(&output.stdout);
    let failed = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success() && said.trim() == "done", "{program} at {}: {failed}", server.address);
    Ok(())
}
