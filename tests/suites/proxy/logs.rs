//! The log: a disk that is full, a reader that reads no more, and peers that try to fill it.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

use anyhow::{Result, ensure};
use gate_tests::http_server::{HttpServer, whole};
use gate_tests::proxy::{Listening, PATIENCE};
use gate_tests::wait::wait_until;
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;

const EVERYONE: &str = "[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"unlimited\"";

/// Has a gate log a good deal, and be asked meanwhile; the lines that it lost.
fn served_all_along(gate: &Listening) -> Result<u64> {
    gate.ask(b"PING\r\n", b"+PONG\r\n")?;
    let generation = || Ok::<_, anyhow::Error>(gate.json(&["status"])?["generation"].as_u64());
    for _ in 0..5 {
        let before = generation()?;
        gate.signal(Signal::SIGHUP)?;
        wait_until("the configuration is read again", || Ok(generation()? > before))?;
    }
    gate.ask(b"PING\r\n", b"+PONG\r\n")?;
    Ok(gate.json(&["status"])?["log_lines_lost"].as_u64().unwrap_or(0))
}

#[test]
fn a_full_log_disk_costs_lines_and_no_request() -> Result<()> {
    let store = Listening::redis()?;
    let line = "exec \"$0\" \"$@\" 2> /dev/full";
    let gate = Listening::gate_by_shell(line, "resp", store.address, "", EVERYONE)?;
    ensure!(served_all_along(&gate)? > 0, "no line is counted");
    let said = String::from_utf8(gate.command(&["status"])?.stdout)?;
    ensure!(said.contains("lines of the log that were lost: "), "{said}");
    Ok(())
}

/// A pipe that is full and that nobody reads; its name, and the end that keeps it open.
fn full_pipe() -> Result<(PathBuf, File)> {
    let path = std::env::temp_dir().join(format!("gate-log-{}", std::process::id()));
    nix::unistd::mkfifo(&path, Mode::S_IRWXU)?;
    let mut pipe = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(&path)?;
    loop {
        match pipe.write(&[b'x'; 4_096]) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok((path, pipe))
}

#[test]
fn a_log_that_nobody_reads_holds_up_no_request() -> Result<()> {
    let store = Listening::redis()?;
    let (path, _pipe) = full_pipe()?;
    let line = format!("exec \"$0\" \"$@\" 2> {}", path.display());
    let gate = Listening::gate_by_shell(&line, "resp", store.address, "", EVERYONE);
    std::fs::remove_file(&path)?;
    let mut gate = gate?;
    served_all_along(&gate)?;
    // It ends all the same.
    gate.signal(Signal::SIGTERM)?;
    gate.program().wait_until("it ends", PATIENCE, || Ok(false)).unwrap_err();
    ensure!(!gate.program().is_running()?, "it is still there");
    Ok(())
}

#[test]
fn a_log_whose_reader_has_gone_costs_lines_and_no_request() -> Result<()> {
    let store = Listening::redis()?;
    let path = std::env::temp_dir().join(format!("gate-closed-log-{}", std::process::id()));
    nix::unistd::mkfifo(&path, Mode::S_IRWXU)?;
    // Both ends, so that the shell's can be opened.
    let reader = OpenOptions::new().read(true).write(true).open(&path)?;
    let line = format!("exec \"$0\" \"$@\" 2> {}", path.display());
    let gate = Listening::gate_by_shell(&line, "resp", store.address, "", EVERYONE);
    std::fs::remove_file(&path)?;
    let gate = gate?;
    gate.ask(b"PING\r\n", b"+PONG\r\n")?;
    ensure!(gate.json(&["status"])?["log_lines_lost"] == 0, "a line is lost while it is read");
    drop(reader);
    ensure!(served_all_along(&gate)? > 0, "no line is counted");
    let said = String::from_utf8(gate.command(&["status"])?.stdout)?;
    ensure!(said.contains("lines of the log that were lost: "), "{said}");
    Ok(())
}

#[test]
fn frames_of_http_2_fill_no_log() -> Result<()> {
    const ACKNOWLEDGEMENTS: usize = 20_000;
    let origin = HttpServer::start(|_| Some(whole(200, "", b"ok")))?;
    let mut gate = Listening::gate("http", origin.address, "", EVERYONE)?;
    let ask = |gate: &Listening| gate.ask(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"\r\n\r\nok");
    ask(&gate)?;
    let mut client: TcpStream = gate.connect()?;
    client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")?;
    let acknowledgements = b"\0\0\x08\x06\x01\0\0\0\0nobodys!".repeat(500);
    for _ in 0..ACKNOWLEDGEMENTS / 500 {
        // It may be closed for them.
        if client.write_all(&acknowledgements).is_err() {
            break;
        }
    }
    let _ = client.shutdown(std::net::Shutdown::Write);
    let _ = client.read_to_end(&mut Vec::new());
    ask(&gate)?;
    gate.signal(Signal::SIGINT)?;
    let mut lines = 0;
    while gate.program().wait_for("", PATIENCE).is_ok() {
        lines += 1;
    }
    ensure!(lines <= 20, "{lines} lines");
    Ok(())
}

/// Standard error that the environment calls the journal's, as systemd does.
const JOURNAL: &str = "JOURNAL_STREAM=$(stat -L -c %d:%i /dev/stderr) exec \"$0\" \"$@\"";

#[test]
fn the_journal_reads_a_line_an_event_with_its_priority() -> Result<()> {
    let store = Listening::redis()?;
    let mut gate = Listening::gate_by_shell(JOURNAL, "resp", store.address, "", EVERYONE)?;
    let version = env!("CARGO_PKG_VERSION");
    let summary = gate.program().wait_for(" serves ", PATIENCE)?;
    let begins = format!("<6>gate {version} serves store (Redis, proxied) at {}; tenants: 1; ", gate.address);
    ensure!(summary.starts_with(&begins), "{summary}");
    ensure!(summary.contains("; interfaces: none; off: XDP, page and metrics (admin_http), "), "{summary}");
    gate.ask(b"PING\r\n", b"+PONG\r\n")?;
    // Each fault is an event.
    let (config, _) = gate.files()?;
    let config = config.to_owned();
    let text = std::fs::read_to_string(&config)?;
    std::fs::write(&config, format!("{text}\nnonsense = \"1\"\nmore = \"2\"\n"))?;
    gate.signal(Signal::SIGHUP)?;
    for key in ["nonsense", "more"] {
        let said = gate.program().wait_for("the configuration stays as it was: ", PATIENCE)?;
        ensure!(said.starts_with("<3>the configuration stays as it was: ") && said.contains(key), "{said}");
    }
    gate.signal(Signal::SIGTERM)?;
    let end = gate.program().wait_for("gate ends after ", PATIENCE)?;
    ensure!(
        end.starts_with("<6>gate ends after ") && end.contains(" s: told to; requests passed: 1, refused: 0"),
        "{end}"
    );
    Ok(())
}

#[test]
fn a_log_that_is_no_journals_has_times_and_levels() -> Result<()> {
    let store = Listening::redis()?;
    // A program of a service whose output goes elsewhere has the variable as well.
    let line = "JOURNAL_STREAM=1:1 exec \"$0\" \"$@\"";
    let mut gate = Listening::gate_by_shell(line, "resp", store.address, "", EVERYONE)?;
    let summary = gate.program().wait_for(" serves ", PATIENCE)?;
    ensure!(summary.contains("Z  INFO gate ") && !summary.starts_with('<'), "{summary}");
    Ok(())
}
