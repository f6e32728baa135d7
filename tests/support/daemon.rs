//! A real gate at the server's end of a network of its own.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use gate_userspace::admin::default_path;
use xtask::lab::net::{CLIENT_INTERFACE, Net, SERVER_INTERFACE};
use xtask::lab::process::ChildProcess;
use xtask::paths;

pub use crate::wait::PATIENCE;
use crate::wait::wait_until;

/// The beginning of the line that gate logs when it is attached.
pub const ATTACHED: &str = "attached interface=";

/// A network, a configuration, and the command line to use on them.
#[derive(Debug)]
pub struct Site {
    /// The namespaces.
    pub net: Net,
    config: PathBuf,
}

impl Site {
    /// A new network with this configuration.
    ///
    /// # Errors
    ///
    /// Without root, or without the `gate` binary.
    pub fn new(config: &str) -> Result<Self> {
        ensure!(paths::gate().exists(), "no {}: run `cargo xtask test`", paths::gate().display());
        let net = Net::open()?;
        let config_path = std::env::temp_dir().join(format!("{}.toml", net.server.name()));
        let site = Self { net, config: config_path };
        site.configure(config)?;
        Ok(site)
    }

    /// Where its gate pins its maps.
    #[must_use]
    pub fn pins(&self) -> &Path {
        self.net.pins()
    }

    /// Its configuration file.
    #[must_use]
    pub fn config(&self) -> &Path {
        &self.config
    }

    /// Writes another configuration; a running gate does not notice by itself.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn configure(&self, config: &str) -> Result<()> {
        std::fs::write(&self.config, config).with_context(|| self.config.display().to_string())
    }

    /// The command `gate run` with this site's configuration and pins, at `interface`.
    #[must_use]
    pub fn command(&self, interface: &str) -> Command {
        let mut command = self.net.server.command(paths::gate());
        command.arg("run").arg("--config").arg(&self.config);
        command.args(["--interface", interface]).arg("--pin-dir").arg(self.pins());
        command
    }

    /// Starts a gate and waits until it is attached and the next may start: one that is stopped before keeps all others waiting.
    ///
    /// # Errors
    ///
    /// If it ends before that.
    pub fn start(&self, arguments: &[&str]) -> Result<ChildProcess> {
        let mut gate = self.launch(arguments)?;
        gate.wait_for(ATTACHED, PATIENCE)?;
        let turn = default_path(self.pins()).with_added_extension("start");
        wait_until("its turn to start is over", || Ok(!turn.exists()))?;
        Ok(gate)
    }

    /// Starts a gate and waits until the maps that another one left are its own; the program that is
    /// attached is still the other's. Then also returns how long that took, but for what it waited for a CPU.
    ///
    /// # Errors
    ///
    /// If it ends before that.
    pub fn take_over(&self, arguments: &[&str]) -> Result<(ChildProcess, Duration)> {
        let own = || waited_for_cpu(Path::new("/proc/thread-self"));
        let started = Instant::now();
        let before = own();
        let mut gate = self.launch(arguments)?;
        gate.wait_for("took over", PATIENCE)?;
        let took = started.elapsed();
        let waited_here = own() - before;
        let tasks = std::fs::read_dir(format!("/proc/{}/task", gate.id()))?;
        let waited: Duration = tasks.filter_map(|task| Some(waited_for_cpu(&task.ok()?.path()))).sum();
        Ok((gate, took.saturating_sub(waited_here).saturating_sub(waited)))
    }

    /// Starts a gate and waits for nothing.
    ///
    /// # Errors
    ///
    /// If it cannot be run.
    pub fn launch(&self, arguments: &[&str]) -> Result<ChildProcess> {
        let mut command = self.command(SERVER_INTERFACE);
        command.args(arguments);
        ChildProcess::start("gate", command)
    }

    /// Starts what the client's end needs to receive a gate's replies.
    ///
    /// # Errors
    ///
    /// If it ends before it is attached.
    pub fn peer(&self) -> Result<ChildProcess> {
        let mut command = self.net.client.command(paths::gate());
        command.args(["peer", "--interface", CLIENT_INTERFACE]);
        let mut peer = ChildProcess::start("gate peer", command)?;
        peer.wait_for("everything passes", PATIENCE)?;
        Ok(peer)
    }

    /// The output of a gate that cannot start.
    ///
    /// # Errors
    ///
    /// If it starts all the same.
    pub fn refusal(&self, command: Command) -> Result<String> {
        let mut gate = ChildProcess::start("gate", command)?;
        match gate.wait_for(ATTACHED, PATIENCE) {
            Ok(line) => bail!("it started: {line}"),
            Err(error) => Ok(error.to_string()),
        }
    }

    /// Runs `gate` with these arguments and this site's pins.
    ///
    /// # Errors
    ///
    /// If it cannot be run.
    pub fn gate(&self, arguments: &[&str]) -> Result<Output> {
        let mut command = self.net.server.command(paths::gate());
        Ok(command.args(arguments).arg("--pin-dir").arg(self.pins()).output()?)
    }

    /// The output of `gate ... --json`.
    ///
    /// # Errors
    ///
    /// If it fails, or prints something else.
    pub fn json(&self, arguments: &[&str]) -> Result<serde_json::Value> {
        let output = self.gate(&[arguments, &["--json"]].concat())?;
        ensure!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    /// True if anything of a gate is left: a pin, or a program at the interface.
    ///
    /// # Errors
    ///
    /// If `ip` fails.
    pub fn anything_left(&self) -> Result<Option<String>> {
        if self.pins().exists() {
            return Ok(Some(format!("{} is still there", self.pins().display())));
        }
        let mut ip = self.net.server.command("ip");
        let link = ip.args(["link", "show", "dev", SERVER_INTERFACE]).output()?;
        let link = String::from_utf8_lossy(&link.stdout).into_owned();
        Ok(link.contains("xdp").then_some(link))
    }
}

/// How long a task was ready to run, and another ran. Nothing where the kernel does not count it.
fn waited_for_cpu(task: &Path) -> Duration {
    let counted = std::fs::read_to_string(task.join("schedstat")).unwrap_or_default();
    let waited = counted.split_whitespace().nth(1).and_then(|ns| ns.parse().ok());
    Duration::from_nanos(waited.unwrap_or(0))
}

impl Drop for Site {
    fn drop(&mut self) {
        // It lies in the directory for temporary files.
        let _ = std::fs::remove_file(&self.config);
    }
}

/// A configuration with one guarded memcached and two tenants.
pub const CONFIG: &str = r#"
[[service]]
name = "cache"
protocol = "memcached"
listen = ["198.18.0.1:11211", "[fd00::1]:11211"]

[[tenant]]
name = "polite"
sources = ["198.18.1.0/24", "fd00::1:0/112"]
quota = "5000 RU/s"

[[tenant]]
name = "other"
sources = ["198.18.2.0/24"]
quota = "1000 RU/s"
"#;
