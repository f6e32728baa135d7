//! The compiler and the linker for the eBPF object: the first of two that is there.
//!
//! - **Debian's**: `rustc-web` with core for BPF ready-made, so neither a nightly compiler nor the source of
//!   core is needed. It is called by its path: rustup need not know it. The linker is built once, for
//!   its LLVM, into the target directory.
//! - **rustup's**: a nightly with `rust-src` (the component, not the toolchain alone, is what counts) and a
//!   `bpf-linker` on the path.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::step;
use crate::{paths, sh};

/// The packages that set-up installs for Debian's way.
pub(super) const DEBIAN_PACKAGES: [&str; 6] =
    ["rustc-web", "cargo-web", "libstd-rust-web-dev-bpf", "llvm-22-dev", "libpolly-22-dev", "libzstd-dev"];

const DEBIAN_RUSTC: &str = "/usr/bin/rustc";
const DEBIAN_CARGO: &str = "/usr/bin/cargo";
const DEBIAN_CORE: &str = "/usr/lib/rustlib/bpfel-unknown-none/lib";
/// The LLVM of Debian's compiler; the linker must read what it writes.
const LLVM: &str = "22";
const LLVM_PREFIX: &str = "/usr/lib/llvm-22";
const LINKER_VERSION: &str = "0.13.0";

const NOT_FOR_IT: [&str; 6] =
    ["RUSTUP_TOOLCHAIN", "CARGO", "LD_LIBRARY_PATH", "RUSTFLAGS", "RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER"];

/// A compiler that can make the object, and its linker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Toolchain {
    /// Debian's packages.
    Debian {
        /// The `bpf-linker` for its LLVM.
        linker: PathBuf,
    },
    /// A nightly of rustup's that has the source of core.
    Nightly {
        /// Its name for `rustup run`.
        name: String,
        /// The `bpf-linker` on the path.
        linker: PathBuf,
    },
}

impl Toolchain {
    /// The first one that is complete.
    #[must_use]
    pub fn find() -> Option<Self> {
        let debian = has_debian_compiler().then(debian_linker).flatten();
        debian.map(|linker| Self::Debian { linker }).or_else(|| {
            let linker = sh::find("bpf-linker")?;
            Some(Self::Nightly { name: nightly_with_source()?, linker })
        })
    }

    /// `cargo build` with it, for the BPF target, without arguments yet.
    #[must_use]
    pub fn cargo_build(&self) -> Command {
        let (mut cargo, linker) = match self {
            Self::Debian { linker } => {
                let mut cargo = Command::new(DEBIAN_CARGO);
                // The intrinsics for compare-and-swap are not stable; nothing else unstable is used.
                cargo.env("RUSTC", DEBIAN_RUSTC).env("RUSTC_BOOTSTRAP", "1").arg("build");
                (cargo, linker)
            }
            Self::Nightly { name, linker } => {
                let mut cargo = Command::new("rustup");
                cargo.args(["run", name, "cargo", "build", "-Zbuild-std=core"]);
                (cargo, linker)
            }
        };
        let flags = [
            "-Cdebuginfo=2",
            "-Clink-arg=--btf",
            "-Ctarget-cpu=v3",
            &format!("-Clinker={}", linker.display()),
        ];
        // The environment of the caller's cargo is for another compiler.
        for other in NOT_FOR_IT {
            cargo.env_remove(other);
        }
        cargo.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
        cargo.args(["--target", "bpfel-unknown-none"]);
        cargo
    }
}

impl fmt::Display for Toolchain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Debian { linker } => write!(f, "Debian's rustc and {}", linker.display()),
            Self::Nightly { name, linker } => write!(f, "{name} and {}", linker.display()),
        }
    }
}

/// Debian's packages that are missing for its way.
pub(super) fn debian_packages_missing() -> Vec<&'static str> {
    // apt fails when it does not know one of them, and lists the others all the same.
    let mut query = Command::new("dpkg-query");
    query.args(["--show", "--showformat=${Package} ${db:Status-Status}\n"]).args(DEBIAN_PACKAGES);
    let listed = query.output().map(|output| output.stdout).unwrap_or_default();
    let listed = String::from_utf8_lossy(&listed);
    let installed = |package: &str| listed.lines().any(|line| line == format!("{package} installed"));
    DEBIAN_PACKAGES.into_iter().filter(|package| !installed(package)).collect()
}

/// Builds the linker for Debian's compiler, unless it is there.
pub(super) fn build_linker() -> Result<()> {
    if debian_linker().is_some() || !has_debian_compiler() {
        return Ok(());
    }
    step(&format!("building bpf-linker {LINKER_VERSION} for LLVM {LLVM} (a minute or two)"), || {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["install", "--quiet", "--locked", "--no-default-features", "--root"]).arg(paths::tools());
        cargo.arg(format!("--features=llvm-{LLVM}")).arg(format!("bpf-linker@{LINKER_VERSION}"));
        let path = std::env::var("PATH").unwrap_or_default();
        // Without the prefix its build looks for LLVM in the wrong directory.
        cargo.env("LLVM_PREFIX", LLVM_PREFIX).env("PATH", format!("{LLVM_PREFIX}/bin:{path}"));
        sh::run(&mut cargo)
    })
}

/// The compilers that were found, for a set-up that should have worked and did not.
pub(super) fn findings() -> String {
    format!(
        "  Debian's compiler for BPF: {}\n  bpf-linker for LLVM {LLVM}: {:?}\n  nightly with rust-src: {:?}\n  \
         bpf-linker: {:?}",
        if has_debian_compiler() { "there" } else { "missing" },
        debian_linker(),
        nightly_with_source(),
        sh::find("bpf-linker"),
    )
}

fn has_debian_compiler() -> bool {
    Path::new(DEBIAN_RUSTC).exists() && Path::new(DEBIAN_CARGO).exists() && has_core()
}

fn has_core() -> bool {
    let Ok(files) = fs::read_dir(DEBIAN_CORE) else { return false };
    files.flatten().any(|file| file.file_name().to_string_lossy().starts_with("libcore-"))
}

/// A linker that reads what Debian's compiler writes: ours, or one on the path that uses the same LLVM.
fn debian_linker() -> Option<PathBuf> {
    let ours = paths::tools().join("bin/bpf-linker");
    let candidates = [ours.is_file().then_some(ours), sh::find("bpf-linker")];
    candidates.into_iter().flatten().find(|linker| {
        let libraries = sh::output(Command::new("ldd").arg(linker)).unwrap_or_default();
        let loaded = libraries.lines().find(|line| line.contains(&format!("libLLVM.so.{LLVM}.")));
        loaded.is_some_and(|line| !line.contains("not found"))
    })
}

fn nightly_with_source() -> Option<String> {
    let listed = sh::output(Command::new("rustup").args(["toolchain", "list"])).ok()?;
    let nightlies = listed.lines().filter_map(|line| line.split(' ').next());
    nightlies.filter(|name| name.starts_with("nightly")).map(str::to_owned).find(|name| {
        let sysroot = Command::new("rustup").args(["run", name, "rustc", "--print", "sysroot"]).output();
        let Ok(sysroot) = sysroot else { return false };
        let sysroot = String::from_utf8_lossy(&sysroot.stdout).trim().to_owned();
        Path::new(&sysroot).join("lib/rustlib/src/rust/library/core/src/lib.rs").is_file()
    })
}
