//! The machine that a benchmark runs on, for documents.

use std::fs;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::sh;

/// The time and place of the measurement.
pub(super) struct Machine {
    pub(super) date: String,
    pub(super) kernel: String,
    pub(super) cpus: usize,
    /// The load average of the minute before.
    pub(super) load: f64,
    /// This process' own nice value, and that of all that it starts.
    pub(super) nice: i64,
}

impl Machine {
    /// A phrase for what else ran. It is busy if more was waiting for a processor than half of these, before this run added to it.
    pub(super) fn state(&self) -> &'static str {
        if self.load > self.cpus as f64 / 2.0 {
            "a **busy** machine, on which other programs ran as well"
        } else {
            "a quiet machine"
        }
    }

    /// Brackets around what differs from the usual build, if anything does.
    pub(super) fn build() -> String {
        match std::env::var("CARGO_PROFILE_RELEASE_OPT_LEVEL") {
            Ok(level) => format!(" (a build with `opt-level = {level}`)"),
            Err(_) => String::new(),
        }
    }

    /// As it is now.
    pub(super) fn now() -> Result<Self> {
        let printed = |program: &str, argument: &str| {
            sh::output(Command::new(program).arg(argument)).map(|text| text.trim().to_owned())
        };
        let load = fs::read_to_string("/proc/loadavg")?;
        let load = load.split(' ').next().context("no load average")?.parse()?;
        Ok(Self {
            date: printed("date", "+%F")?,
            kernel: printed("uname", "-r")?,
            cpus: std::thread::available_parallelism()?.get(),
            load,
            nice: nice()?,
        })
    }
}

fn nice() -> Result<i64> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    // After the name, which may hold anything but ends with the last parenthesis: field 19 of all.
    let rest = stat.rsplit_once(") ").context("a process without a name")?.1;
    Ok(rest.split(' ').nth(16).context("no nice value")?.parse()?)
}
