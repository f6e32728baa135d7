//! `cargo xtask run`: the lab, or gate at a real interface.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use nix::unistd::geteuid;

use crate::lab::Lab;
use crate::lab::fleet::FleetLab;
use crate::lab::story::{self, Programme};
use crate::setup::{self, Purpose};
use crate::{ebpf, paths, sh};

/// The arguments of `cargo xtask run`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// End the lab by itself after this long, e.g. `60s` or `5min`: the scenes that fit, of 10 s at least, are played;
    /// otherwise the tenants go on asking after the last until Ctrl-C.
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    time: Option<Duration>,
    /// Play this scene alone, and end.
    #[arg(long, value_name = "NAME", conflicts_with = "no_story")]
    scene: Option<String>,
    /// List the scenes, and do nothing else.
    #[arg(long)]
    list: bool,
    /// Leave the scenes out: the tenants alone, until Ctrl-C or for the time of `--for`.
    #[arg(long)]
    no_story: bool,
    /// Also write the results here, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw what was answered and refused here instead of into a file for temporary files.
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Leave XDP out as root too: the proxied half of the lab, on loopback.
    #[arg(long)]
    proxied: bool,
    /// Three gates that share their limits, an Envoy, and two owners in etcd, one of which is killed in view; on loopback.
    #[arg(long, conflicts_with_all = ["scene", "list", "no_story", "proxied"])]
    fleet: bool,
    /// Run this gate instead of building the workspace's.
    #[arg(long, value_name = "FILE")]
    gate: Option<PathBuf>,
    /// No lab: arguments for `gate run`, e.g. `--interface eth1 --config gate.toml`.
    #[arg(last = true, conflicts_with_all = ["time", "scene", "list", "no_story", "json", "plot", "proxied", "fleet"])]
    arguments: Vec<OsString>,
}

const EXAMPLES: &str = "\
Examples:
  cargo xtask run                       the story, then the lab until Ctrl-C; without root its proxied half
  cargo xtask run --for 60s             the scenes that fit into so long
  cargo xtask run --scene viral-key     one of them; --list names all
  cargo xtask run --no-story --for 20s  the tenants alone
  cargo xtask run --fleet               several gates, one quota, until Ctrl-C or for 15 s and more
  cargo xtask run -- --interface eth1 --config gate.toml";

/// Sets up what is missing, builds, and runs. Without root, that is the proxied half of the lab.
///
/// # Errors
///
/// If something is missing or does not build, or if what runs fails.
pub fn run(args: &Args) -> Result<()> {
    if args.list {
        println!("{}", story::list());
        return Ok(());
    }
    if args.fleet {
        return run_fleet(args);
    }
    let root = geteuid().is_root();
    ensure!(
        root || args.arguments.is_empty(),
        "XDP at an interface needs root:\n\n    sudo env \"PATH=$PATH\" \"HOME=$HOME\" cargo xtask run -- ...\n"
    );
    let xdp = root && !args.proxied;
    // What cannot be played is said before anything is built.
    let lab = if args.arguments.is_empty() { Some(lab(args, xdp)?) } else { None };
    let gate = match &args.gate {
        Some(gate) => gate.clone(),
        None => build(xdp)?,
    };
    if let Some(lab) = lab {
        return Lab { gate, ..lab }.run();
    }
    let error = Command::new(&gate).arg("run").args(&args.arguments).exec();
    Err(error).with_context(|| format!("cannot run {}", gate.display()))
}

fn run_fleet(args: &Args) -> Result<()> {
    FleetLab::check(args.time)?;
    let gate = match &args.gate {
        Some(gate) => gate.clone(),
        None => {
            setup::setup_fleet()?;
            build(false)?
        }
    };
    FleetLab { gate, duration: args.time, json: args.json.clone(), plot: args.plot.clone() }.run()
}

/// The lab that the arguments ask for.
fn lab(args: &Args, xdp: bool) -> Result<Lab> {
    let story =
        if args.no_story { None } else { Some(Programme::choose(args.scene.as_deref(), args.time, xdp)?) };
    let ends = story.is_some() && (args.time.is_some() || args.scene.is_some());
    let duration = if ends { Some(Duration::ZERO) } else { args.time };
    let gate = PathBuf::new();
    Ok(Lab { gate, xdp, story, duration, json: args.json.clone(), plot: args.plot.clone() })
}

/// Builds gate, for XDP with the eBPF object in it, and returns where it lies.
fn build(xdp: bool) -> Result<PathBuf> {
    if xdp {
        ebpf::build(&setup::setup(Purpose::Run)?)?;
    }
    let gate = paths::gate();
    if !gate.exists() {
        eprintln!("building gate; the first build takes a few minutes");
    }
    build_gate()?;
    Ok(gate)
}

/// The release build of `gate`, with the object in it.
///
/// # Errors
///
/// If it does not build.
pub fn build_gate() -> Result<()> {
    let build = ["build", "--quiet", "--release", "--package", "gate-userspace"];
    sh::stream(sh::cargo().args(build))
}

/// `20s`, `5min`: whole numbers with a unit.
fn duration(text: &str) -> Result<Duration> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let number = digits.parse::<u32>();
    let unit = &text[digits.len()..];
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
