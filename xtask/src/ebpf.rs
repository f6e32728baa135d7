//! Building the eBPF object.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use nix::fcntl::{Flock, FlockArg};
use object::{build, elf, write};

use crate::setup::Toolchain;
use crate::{calls, paths, sh};

/// Builds the object and its variants, and puts them where gate's `build.rs` finds them; leaves those untouched that are the
/// same, so that nothing is built anew for them. Returns where the object lies.
///
/// # Errors
///
/// If one does not build, or calls a byte loop of the compiler's.
pub fn build(toolchain: &Toolchain) -> Result<PathBuf> {
    let directory = paths::target().join("ebpf-build");
    let _lock = lock(&directory)?;
    let variants = [(&["--features", "trace"][..], paths::trace_object()), (&[], paths::object())];
    for (arguments, object) in variants {
        // Cargo puts all variants in the same place: each is taken from there before the next is built.
        let built = compile(toolchain, &directory, arguments)?;
        let program = read(&built.join("gate-ebpf"))?;
        calls::check(&program)?;
        place(&without_debug_sections(&program)?, &object)?;
    }
    let built = directory.join(BUILT);
    let intercept = read(&built.join("gate-ebpf-intercept"))?;
    calls::check(&intercept)?;
    place(&without_debug_sections(&intercept)?, &paths::intercept_object())?;
    place(&read(&built.join("gate-ebpf-bench"))?, &paths::bench_object())?;
    Ok(paths::object())
}

/// Keeps others from building a variant where this process is about to take another from.
fn lock(directory: &Path) -> Result<Flock<File>> {
    fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
    let path = directory.join("variants.lock");
    let file = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    let locked = Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| error);
    locked.with_context(|| format!("cannot lock {}", path.display()))
}

/// Builds a variant into a target `directory`; returns where in there its objects lie.
fn compile(toolchain: &Toolchain, directory: &Path, arguments: &[&str]) -> Result<PathBuf> {
    let mut cargo = toolchain.cargo_build();
    cargo.args(["--quiet", "--release", "--package", "gate-ebpf"]).args(arguments);
    cargo.arg("--target-dir").arg(directory);
    // Thin LTO is for the daemon: bpf-linker links whole programs anyway.
    cargo.env("CARGO_PROFILE_RELEASE_LTO", "off").current_dir(paths::workspace());
    // The verifier refuses the program unless it is optimised as a whole, and its types come from what a debugger reads, whatever the
    // environment asks of other builds.
    let settings = [
        ("OPT_LEVEL", "3"),
        ("CODEGEN_UNITS", "16"),
        ("INCREMENTAL", "false"),
        ("DEBUG", "line-tables-only"),
    ];
    for (setting, value) in settings {
        cargo.env(format!("CARGO_PROFILE_RELEASE_{setting}"), value);
    }
    cargo.env("CARGO_INCREMENTAL", "0");
    sh::stream(&mut cargo).context("the eBPF object does not build")?;
    Ok(directory.join(BUILT))
}

/// An object without what only a debugger reads, three quarters of it. What the kernel reads (`.BTF`) stays.
fn without_debug_sections(object: &[u8]) -> Result<Vec<u8>> {
    let mut builder = build::elf::Builder::read(object).context("no ELF object")?;
    let is_debug = |name: &[u8]| name.starts_with(b".debug_") || name.starts_with(b".rel.debug_");
    builder.sections.iter_mut().for_each(|section| section.delete |= is_debug(&section.name));
    builder.delete_orphans();
    // bpf-linker puts the names of sections and symbols into one section; the writer wants one for each.
    let names = builder.sections.add();
    names.name = b".shstrtab"[..].into();
    names.sh_type = elf::SHT_STRTAB;
    names.data = build::elf::SectionData::SectionString;
    let mut stripped = Vec::new();
    builder.write(&mut write::StreamingBuffer::new(&mut stripped)).context("cannot write the object")?;
    Ok(stripped)
}

fn read(file: &Path) -> Result<Vec<u8>> {
    fs::read(file).with_context(|| format!("cannot read {}", file.display()))
}

/// Copies what was built, if it is not the same already.
fn place(bytes: &[u8], object: &Path) -> Result<()> {
    if fs::read(object).is_ok_and(|present| present == bytes) {
        return Ok(());
    }
    let new = object.with_extension("new");
    fs::create_dir_all(object.parent().expect("a file in a directory"))?;
    fs::write(&new, bytes).with_context(|| format!("cannot write {}", new.display()))?;
    fs::rename(&new, object).with_context(|| format!("cannot write {}", object.display()))?;
    eprintln!("built {} ({} bytes)", object.display(), bytes.len());
    Ok(())
}

/// Where in a target directory cargo puts what it builds.
const BUILT: &str = "bpfel-unknown-none/release";
