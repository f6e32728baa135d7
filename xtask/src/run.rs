//! `cargo xtask run`: the lab, or gate at a real interface.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use nix::unistd::geteuid;

use crate::lab::Lab;
use crate::setup::{self, Purpose};
use crate::{ebpf, paths, sh};

/// What to run.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// End the lab by itself after this long, e.g. `20s` or `5min`; otherwise Ctrl-C ends it.
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    time: Option<Duration>,
    /// Also write the lab's summary here, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// No lab: arguments for `gate run`, e.g. `--interface eth1 --config gate.toml`.
    #[arg(last = true, conflicts_with_all = ["time", "json"])]
    gate: Vec<OsString>,
}

/// Sets up what is missing, builds, and runs.
///
/// # Errors
///
/// Without root, if something is missing or does not build, or if what runs fails.
pub fn run(args: &Args) -> Result<()> {
    ensure!(
        geteuid().is_root(),
        "namespaces and XDP need root:\n\n    sudo env \"PATH=$PATH\" \"HOME=$HOME\" cargo xtask run\n"
    );
    ebpf::build(&setup::setup(Purpose::Run)?)?;
    build_gate()?;
    if args.gate.is_empty() {
        return Lab { duration: args.time, json: args.json.clone() }.run();
    }
    let error = Command::new(paths::gate()).arg("run").args(&args.gate).exec();
    Err(error).with_context(|| format!("cannot run {}", paths::gate().display()))
}

/// The release build of `gate`, with the object in it.
///
/// # Errors
///
/// If it does not build.
pub fn build_gate() -> Result<()> {
    sh::stream(sh::cargo().args(["build", "--quiet", "--release", "--package", "gate-userspace"]))
}

/// `20s`, `5min`: whole numbers with a unit.
fn duration(text: &str) -> Result<Duration> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let (number, unit) = (digits.parse::<u32>(), &text[digits.len()..]);
    match (number, unit) {
        (Ok(number @ 1..), "s") => Ok(Duration::from_secs(number.into())),
        (Ok(number @ 1..), "min") => Ok(Duration::from_secs(u64::from(number) * 60)),
        _ => bail!("must be a number of `s` or `min`, at least 1, e.g. 20s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_with_their_unit() {
        for (text, seconds) in [
            ("20s", Some(20)),
            ("5min", Some(300)),
            ("0s", None),
            ("20", None),
            ("", None),
            ("1h", None),
            ("-1s", None),
        ] {
            assert_eq!(duration(text).ok(), seconds.map(Duration::from_secs), "{text}");
        }
    }
}
