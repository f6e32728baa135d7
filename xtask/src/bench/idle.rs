//! The memory of idle connections in a proxy.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

/// How many connections there are: fewer than a process may have files.
pub(super) const CONNECTIONS: usize = 10_000;

/// Bytes of memory that each of [`CONNECTIONS`] keeps in `process`, which listens at `proxy`, after each has asked
/// once and then been silent for a while.
///
/// # Errors
///
/// If a connection fails or its answer is another.
pub(super) fn bytes_each(process: u32, proxy: SocketAddr, request: &[u8], answer: usize) -> Result<f64> {
    // Whatever is made once is there then.
    drop(asked(proxy, request, answer)?);
    let before = resident_bytes(process)?;
    let connections = (0..CONNECTIONS)
        .map(|number| asked(proxy, request, answer).with_context(|| format!("connection {number}")))
        .collect::<Result<Vec<_>>>()?;
    std::thread::sleep(SILENCE);
    let after = resident_bytes(process)?;
    Ok((after - before) / connections.len() as f64)
}

fn asked(proxy: SocketAddr, request: &[u8], answer: usize) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(proxy)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(request)?;
    stream.read_exact(&mut vec![0; answer])?;
    Ok(stream)
}

fn resident_bytes(process: u32) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kib: f64 = line.trim().trim_end_matches(" kB").parse()?;
    ensure!(kib > 0.0, "no memory");
    Ok(kib * 1_024.0)
}

/// Twice as long as gate takes to give back what idle connections hold.
const SILENCE: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_secs(10);
