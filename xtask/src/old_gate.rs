//! Gates built from the project's own history, for tests of upgrades from them.
//!
//! A build lies below the target directory by its commit, and is made once. It is a dev build that starts from copies
//! of the dependencies that the workspace has built already, so that it takes seconds rather than minutes.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use crate::setup::Toolchain;
use crate::{ebpf, paths, sh};

/// The last commit whose maps have ABI version 4.
pub const ABI_V4: &str = "106b211e5f210674ed0698f8be86ee9f8b7e873e";

/// A commit whose maps have ABI version 5.
pub const ABI_V5: &str = "77d2f6adb2aaf07f02e9928ec61b6e90b161fb51";

/// True if this clone holds the commit: a shallow one does not.
#[must_use]
pub fn is_in_history(commit: &str) -> bool {
    let mut git = Command::new("git");
    git.args(["cat-file", "-e", commit]).current_dir(paths::workspace()).stderr(Stdio::null());
    git.status().is_ok_and(|status| status.success())
}

/// The `gate` binary of a commit, with the eBPF object of that commit in it; built if it is not there yet.
///
/// # Errors
///
/// If the commit is not in the repository's history, or it does not build.
pub fn gate(commit: &str) -> Result<PathBuf> {
    let directory = paths::target().join("old-gate").join(commit);
    let gate = directory.join("gate");
    if !gate.is_file() {
        build(commit, &directory, &gate).with_context(|| format!("no gate of commit {commit}"))?;
    }
    Ok(gate)
}

fn build(commit: &str, directory: &Path, gate: &Path) -> Result<()> {
    let source = directory.join("source");
    let target = directory.join("target");
    unpack(commit, &source)?;

    let toolchain = Toolchain::find().context("no compiler for eBPF: run `cargo xtask setup`")?;
    let ebpf = target.join("ebpf");
    let built = "bpfel-unknown-none/release";
    seed(&paths::target().join("ebpf-build").join(built), &ebpf.join(built))?;
    let object = ebpf::compile(&toolchain, &source, &ebpf)?.join("gate-ebpf");

    for part in ["deps", "build", ".fingerprint"] {
        seed(&paths::target().join("debug").join(part), &target.join("debug").join(part))?;
    }
    let mut cargo = sh::cargo();
    cargo.args(["build", "--quiet", "--locked", "--package", "gate-userspace", "--target-dir"]).arg(&target);
    cargo.env("GATE_EBPF_OBJECT", object).env_remove("CARGO_TARGET_DIR");
    sh::run(cargo.current_dir(&source))?;

    fs::rename(target.join("debug/gate"), gate)?;
    fs::remove_dir_all(&source)?;
    fs::remove_dir_all(&target)?;
    Ok(())
}

/// Unpacks a commit's tree.
fn unpack(commit: &str, to: &Path) -> Result<()> {
    match fs::remove_dir_all(to) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => fs::create_dir_all(to)?,
    }
    let mut git = Command::new("git");
    git.args(["archive", commit]).current_dir(paths::workspace()).stdout(Stdio::piped());
    let mut git = git.spawn().context("cannot run git")?;
    let archive = git.stdout.take().context("git has an output")?;
    let unpacked = Command::new("tar").arg("-x").current_dir(to).stdin(archive).status();
    ensure!(git.wait()?.success(), "git archive: the history of the repository is needed");
    ensure!(unpacked.context("cannot run tar")?.success(), "tar does not unpack what git archived");
    Ok(())
}

/// Makes `to` a copy of what `from` holds of other people's crates. What cannot be copied is left out: it is built again.
fn seed(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    let Ok(entries) = fs::read_dir(from) else { return Ok(()) };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let target = to.join(entry.file_name());
        let name = name.to_string_lossy();
        // cargo names the workspace's own alike in every commit, and would write over them.
        if OWN.iter().any(|own| name.trim_start_matches("lib").starts_with(own)) {
            continue;
        }
        if entry.file_type()?.is_dir() {
            seed(&entry.path(), &target)?;
        } else if entry
            .path()
            .extension()
            .is_some_and(|kind| kind == "rlib" || kind == "rmeta" || kind == "so")
        {
            // Large, and never written to in place.
            let _ = fs::hard_link(entry.path(), target);
        } else {
            fs::copy(entry.path(), &target)?;
            // cargo compares them.
            let modified = entry.metadata()?.modified()?;
            File::options().write(true).open(&target)?.set_modified(modified)?;
        }
    }
    Ok(())
}

/// The prefixes of the names of the workspace's own crates.
const OWN: [&str; 2] = ["gate", "xtask"];
