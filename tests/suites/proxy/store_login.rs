//! A memcached that wants a user and a password of gate.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use gate_tests::proxy::{Listening, PATIENCE, shown};
use gate_tests::wait::wait_until;

const EVERYONE: &str = "[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"unlimited\"";
const SECRET: &str = "hunter2-of-gate";

/// A file of this run alone, which ends with it.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, text: &str) -> Result<Self> {
        let path = std::env::temp_dir().join(format!("gate-{}-{name}", std::process::id()));
        std::fs::write(&path, text)?;
        std::fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // It lies in the directory for temporary files.
        let _ = std::fs::remove_file(&self.0);
    }
}

fn gate(store: &Listening, password: &Path) -> Result<Listening> {
    let service = format!("store_user = \"gate\"\nstore_password_file = {password:?}");
    Listening::gate("memcached", store.address, &service, EVERYONE)
}

#[test]
fn gate_logs_in_to_memcached_on_all_its_connections() -> Result<()> {
    let users = Scratch::new("users", &format!("other:x\ngate:{SECRET}\n"))?;
    let password = Scratch::new("right", &format!("{SECRET}\n"))?;
    let store = Listening::memcached_with_users(&users.0)?;
    ensure!(store.ask(b"get a\r\n", b"\r\n")? == b"CLIENT_ERROR unauthenticated\r\n");
    let gate = gate(&store, &password.0)?;
    ensure!(gate.ask(b"set a 0 0 1\r\n1\r\n", b"\r\n")? == b"STORED\r\n");
    // By a connection of its own, which is used a second time.
    let large = [&b"set large 0 0 200000\r\n"[..], &[b'v'; 200_000], b"\r\n"].concat();
    for _ in 0..3 {
        ensure!(gate.ask(&large, b"\r\n")? == b"STORED\r\n");
    }
    let said = gate.ask(b"get a gate large\r\n", b"END\r\n")?;
    ensure!(said.starts_with(b"VALUE a 0 1\r\n1\r\nVALUE large 0 200000\r\n"), "{}", shown(&said));
    Ok(())
}

#[test]
fn a_wrong_password_is_reported_without_itself() -> Result<()> {
    let users = Scratch::new("more-users", &format!("gate:{SECRET}\n"))?;
    let password = Scratch::new("wrong", "not-the-one\n")?;
    let store = Listening::memcached_with_users(&users.0)?;
    let mut gate = gate(&store, &password.0)?;
    let line = gate.program().wait_for("authentication failure", PATIENCE)?;
    ensure!(!line.contains("not-the-one") && !line.contains("gate 0 -1"), "{line}");
    wait_until("it is not refused", || {
        Ok(gate.ask(b"get a\r\n", b"\r\n")?.ends_with(b"reason=store-down\r\n"))
    })?;
    // A file that is mended is read at the next attempt.
    std::fs::write(&password.0, SECRET)?;
    wait_until("it is not let in", || Ok(gate.ask(b"get a\r\n", b"\r\n")? == b"END\r\n"))
}

#[test]
fn a_memcached_without_users_gets_no_password() -> Result<()> {
    let password = Scratch::new("needless", SECRET)?;
    let store = Listening::memcached()?;
    let gate = gate(&store, &password.0)?;
    ensure!(gate.ask(b"get a gate\r\n", b"\r\n")? == b"END\r\n");
    let stats = store.ask(b"stats\r\n", b"END\r\n")?;
    ensure!(String::from_utf8_lossy(&stats).contains("STAT cmd_set 0\r\n"), "{}", shown(&stats));
    Ok(())
}
