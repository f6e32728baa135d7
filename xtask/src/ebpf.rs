//! Building the eBPF object.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::setup::Toolchain;
use crate::{calls, paths, sh};

/// Builds the object and puts it where gate's `build.rs` finds it; leaves it untouched if it is the same,
/// so that nothing is built anew for it. Returns where it lies.
///
/// # Errors
///
/// If it does not build, or calls a byte loop of the compiler's.
pub fn build(toolchain: &Toolchain) -> Result<PathBuf> {
    let directory = paths::target().join("ebpf-build");
    let object = paths::object();
    let built = compile(toolchain, paths::workspace(), &directory)?;
    let program = built.join("gate-ebpf");
    calls::check(&fs::read(&program).with_context(|| format!("cannot read {}", program.display()))?)?;
    place(&built.join("gate-ebpf-bench"), &paths::bench_object())?;
    place(&program, &object)?;
    Ok(object)
}

/// Builds the objects of a `workspace` into a target `directory`; returns where in there they lie.
///
/// # Errors
///
/// If they do not build.
pub fn compile(toolchain: &Toolchain, workspace: &Path, directory: &Path) -> Result<PathBuf> {
    let mut cargo = toolchain.cargo_build();
    cargo.args(["--quiet", "--release", "--package", "gate-ebpf", "--target-dir"]).arg(directory);
    // Thin LTO is for the daemon: bpf-linker links whole programs anyway.
    cargo.env("CARGO_PROFILE_RELEASE_LTO", "off").current_dir(workspace);
    // The verifier refuses the program unless it is optimised as a whole, whatever the environment asks of other builds.
    for (setting, value) in [("OPT_LEVEL", "3"), ("CODEGEN_UNITS", "16"), ("INCREMENTAL", "false")] {
        cargo.env(format!("CARGO_PROFILE_RELEASE_{setting}"), value);
    }
    cargo.env("CARGO_INCREMENTAL", "0");
    sh::stream(&mut cargo).context("the eBPF object does not build")?;
    Ok(directory.join("bpfel-unknown-none/release"))
}

/// Copies what was built, if it is not the same already.
fn place(built: &Path, object: &Path) -> Result<()> {
    let bytes = fs::read(built).with_context(|| format!("cannot read {}", built.display()))?;
    if fs::read(object).is_ok_and(|present| present == bytes) {
        return Ok(());
    }
    let new = object.with_extension("new");
    fs::create_dir_all(object.parent().expect("a file in a directory"))?;
    fs::write(&new, &bytes).with_context(|| format!("cannot write {}", new.display()))?;
    fs::rename(&new, object).with_context(|| format!("cannot write {}", object.display()))?;
    eprintln!("built {} ({} bytes)", object.display(), bytes.len());
    Ok(())
}
