//! Owners of limits: `gate quota run`, and what it is asked.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::lab::process::{ChildProcess, bound_command};
use crate::lab::programs::START;
use crate::sh;

/// Said by an owner with limits of its own once it is ready.
pub const OWNS: &str = "owning limits";
/// Said by one that has registered with etcd.
pub const REGISTERED: &str = "registered as an owner";

/// Starts an owner at `address`, with these further lines of its configuration, which is written to `file`. Once it is ready it
/// says `ready`.
///
/// # Errors
///
/// If it does not come up; with its last lines.
pub fn start(gate: &Path, file: &Path, address: SocketAddr, more: &str, ready: &str) -> Result<ChildProcess> {
    let text = format!("[quota]\nlisten = \"{address}\"\n{more}");
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
    let mut command = bound_command(gate);
    command.args(["quota", "run", "--config"]).arg(file);
    let mut owner = ChildProcess::start("gate quota", command)?;
    owner.wait_for(ready, START)?;
    Ok(owner)
}

/// The output of `gate quota show --json` for the accounts of an owner whose names begin with `prefix`; `credentials` are further
/// arguments.
///
/// # Errors
///
/// If the owner does not answer.
pub fn show(gate: &Path, address: SocketAddr, prefix: &str, credentials: &[String]) -> Result<Value> {
    let mut command = Command::new(gate);
    command.args(["quota", "show", "--json", "--owner", &address.to_string(), prefix]).args(credentials);
    Ok(serde_json::from_str(&sh::output(&mut command)?)?)
}
