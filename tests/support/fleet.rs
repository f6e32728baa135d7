//! Real owners of limits, and gates that report to them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use xtask::lab::process::ChildProcess;
use xtask::paths;

use crate::proxy::{PATIENCE, address};

/// A running `gate quota run`. It ends when dropped.
#[derive(Debug)]
pub struct Owner {
    /// Where gates report.
    pub address: SocketAddr,
    /// The program.
    pub program: ChildProcess,
    config: PathBuf,
}

impl Owner {
    /// An owner of these limits, which are whole sections.
    ///
    /// # Errors
    ///
    /// If it does not come up.
    pub fn start(limits: &str) -> Result<Self> {
        Self::start_at(address(), limits)
    }

    /// [`Owner::start`] where one was before.
    ///
    /// # Errors
    ///
    /// If it does not come up.
    pub fn start_at(address: SocketAddr, limits: &str) -> Result<Self> {
        let name = format!("gate-quota-{}-{}.toml", std::process::id(), address.ip());
        let config = std::env::temp_dir().join(name);
        std::fs::write(&config, format!("[quota]\nlisten = \"{address}\"\n{limits}\n"))?;
        let mut command = Command::new(paths::gate());
        command.args(["quota", "run", "--config"]).arg(&config);
        let mut program = ChildProcess::start("gate quota", command)?;
        program.wait_for("owning limits", PATIENCE)?;
        Ok(Self { address, program, config })
    }

    /// Its configuration file.
    #[must_use]
    pub const fn config(&self) -> &PathBuf {
        &self.config
    }

    /// The output of `gate quota show --json`.
    ///
    /// # Errors
    ///
    /// If it fails, or prints something else.
    pub fn show(&self) -> Result<Value> {
        let mut command = Command::new(paths::gate());
        command.args(["quota", "show", "--json", "--owner", &self.address.to_string()]);
        let output = command.output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    /// The account of a limit; `None` if there is none yet.
    ///
    /// # Errors
    ///
    /// As [`Owner::show`].
    pub fn account(&self, name: &str) -> Result<Option<Value>> {
        let shown = self.show()?;
        let accounts = shown["accounts"].as_array().context("no accounts")?;
        Ok(accounts.iter().find(|account| account["name"] == name).cloned())
    }

    /// How many gates are connected.
    ///
    /// # Errors
    ///
    /// As [`Owner::show`].
    pub fn gates(&self) -> Result<usize> {
        let shown = self.show()?;
        let gates = shown["gates"].as_array().context("no gates")?;
        Ok(gates.iter().filter(|gate| gate["is_connected"] == true).count())
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // It lies in the directory for temporary files.
        let _ = std::fs::remove_file(&self.config);
    }
}

/// The section `[fleet]` of a gate with this name.
#[must_use]
pub fn section(owners: &[&Owner], name: &str) -> String {
    let owners: Vec<String> = owners.iter().map(|owner| format!("{:?}", owner.address.to_string())).collect();
    format!("[fleet]\nowners = [{}]\nname = {name:?}\n", owners.join(", "))
}
