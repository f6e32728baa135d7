//! Benchmarks that cargo runs: what is measured within one process.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::setup::{self, Purpose, throttlecrab};
use crate::{ebpf, run, sh};

/// A packet in XDP, by test run.
pub(super) fn xdp(json: Option<&Path>) -> Result<()> {
    ebpf::build(&setup::setup(Purpose::Build)?)?;
    suite("xdp", json)
}

/// A tick of the daemon.
pub(super) fn tick(json: Option<&Path>) -> Result<()> {
    ebpf::build(&setup::setup(Purpose::Build)?)?;
    suite("tick", json)
}

/// A flood over a veth pair, beside what else could stop it; and who suffers from it.
pub(super) fn veth(json: Option<&Path>) -> Result<()> {
    ebpf::build(&setup::setup(Purpose::Bench)?)?;
    run::build_gate()?;
    suite("veth", json)
}

/// Limits that gates share, beside what else could do it.
pub(super) fn fleet(only: Option<&str>, json: Option<&Path>) -> Result<()> {
    ebpf::build(&setup::setup(Purpose::Bench)?)?;
    throttlecrab::install()?;
    run::build_gate()?;
    part("fleet", only, json)
}

fn suite(bench: &str, json: Option<&Path>) -> Result<()> {
    part(bench, None, json)
}

fn part(bench: &str, only: Option<&str>, json: Option<&Path>) -> Result<()> {
    let mut cargo = cargo("gate-tests", &[bench]);
    if let Some(only) = only {
        cargo.args(["--", only]);
    }
    if let Some(json) = json {
        cargo.env("GATE_BENCH_JSON", std::path::absolute(json)?);
    }
    sh::stream(&mut cargo)
}

/// The policies, beside the libraries that do the same.
pub(super) fn policies() -> Result<()> {
    sh::stream(&mut cargo("gate-userspace", &["bouncer", "bucket", "codecs", "codel", "space_saving"]))
}

/// The simulator.
pub(super) fn sim() -> Result<()> {
    sh::stream(&mut cargo("gate-userspace", &["sim"]))
}

fn cargo(package: &str, benches: &[&str]) -> Command {
    let mut cargo = sh::cargo();
    cargo.args(["bench", "--quiet", "--package", package]);
    for bench in benches {
        cargo.args(["--bench", bench]);
    }
    cargo
}
