//! Real stores that listen at a Unix socket alone.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;
use nix::sys::signal::Signal;
use xtask::lab::process::ChildProcess;

use crate::wait::until_up;

/// A store at a Unix socket; ends when dropped.
#[derive(Debug)]
pub struct UnixStore {
    /// The path of the socket.
    pub path: PathBuf,
    program: ChildProcess,
}

/// A path for a socket of this process.
#[must_use]
pub fn socket_path(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("gate-{}-{name}.store", std::process::id()))
}

impl UnixStore {
    /// A memcached with one thread.
    ///
    /// # Errors
    ///
    /// If it does not come up.
    pub fn memcached(path: PathBuf) -> Result<Self> {
        let mut command = Command::new("memcached");
        command.args(["-u", "root", "-t", "1", "-s"]).arg(&path);
        Self::start("memcached", command, path)
    }

    /// A redis-server that keeps nothing.
    ///
    /// # Errors
    ///
    /// If it does not come up.
    pub fn redis(path: PathBuf) -> Result<Self> {
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"]).arg(&path);
        Self::start("redis-server", command, path)
    }

    fn start(name: &'static str, command: Command, path: PathBuf) -> Result<Self> {
        let mut program = ChildProcess::start(name, command)?;
        until_up(&mut program, name, || Ok(UnixStream::connect(&path).is_ok()))?;
        Ok(Self { path, program })
    }

    /// Kills it. Its socket stays, at which nobody listens.
    ///
    /// # Errors
    ///
    /// If it has ended.
    pub fn kill(&self) -> Result<()> {
        self.program.signal(Signal::SIGKILL)
    }

    /// The address of the socket, as a configuration names it.
    #[must_use]
    pub fn backend(&self) -> String {
        format!("unix:{}", self.path.display())
    }
}

impl Drop for UnixStore {
    fn drop(&mut self) {
        // A store that is killed leaves it.
        let _ = std::fs::remove_file(&self.path);
    }
}
