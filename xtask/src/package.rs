//! `cargo xtask package`: gate as a Debian package, with the files in `gate-userspace/package`.
//!
//! The package is laid out in a directory and packed by `dpkg-deb`, which every Debian has. It depends on what `dpkg-shlibdeps`
//! finds the binary linked to. The binary is stripped, and has the eBPF object in it.

use std::env;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::setup::{self, Purpose};
use crate::{ebpf, paths, sh};

/// The arguments of `cargo xtask package`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Write the package here [default: target/debian].
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Pack this gate instead of building one.
    #[arg(long, value_name = "FILE")]
    gate: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  cargo xtask package                    build and pack
  apt install ./target/debian/gate_0.1.0_amd64.deb
                                         install it, as root";

/// Builds gate, packs it, and prints where the package is, with its size and its binary's.
///
/// # Errors
///
/// If something is missing, does not build, or cannot be packed.
pub fn run(args: &Args) -> Result<()> {
    let toolchain = setup::setup(Purpose::Package)?;
    let gate = match &args.gate {
        Some(gate) => gate.clone(),
        None => {
            ebpf::build(&toolchain)?;
            build()?
        }
    };
    let directory = args.output.clone().unwrap_or_else(|| paths::target().join("debian"));
    let package =
        Package { gate: &gate, version: env!("CARGO_PKG_VERSION"), compression: Compression::Smallest };
    let packed = package.build(&directory)?;
    let here = env::current_dir()?;
    let file = packed.file.strip_prefix(here).unwrap_or(&packed.file).display();
    println!("{file}: {}, its binary {}", megabytes(packed.bytes), megabytes(packed.binary_bytes));
    Ok(())
}

/// A package to be built.
#[derive(Debug)]
pub struct Package<'a> {
    /// The `gate` binary. A stripped copy of it is packed.
    pub gate: &'a Path,
    /// The version, as Debian writes and compares them.
    pub version: &'a str,
    /// The compression of the package.
    pub compression: Compression,
}

/// The compression of a package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// That of xz, which takes seconds.
    Smallest,
    /// None.
    None,
}

/// A package that was built.
#[derive(Debug)]
pub struct Packed {
    /// The package.
    pub file: PathBuf,
    /// The length of the package.
    pub bytes: u64,
    /// The length of the binary in it.
    pub binary_bytes: u64,
}

impl Package<'_> {
    /// Lays the package out in `directory` and packs it there.
    ///
    /// # Errors
    ///
    /// If a program that this needs is missing or fails, or a file cannot be written.
    pub fn build(&self, directory: &Path) -> Result<Packed> {
        let root = directory.join("root");
        if root.exists() {
            fs::remove_dir_all(&root).with_context(|| format!("cannot remove {}", root.display()))?;
        }
        self.install_files(&root)?;
        install_control(&root)?;
        let architecture = sh::output(Command::new("dpkg").arg("--print-architecture"))?;
        let architecture = architecture.trim();
        let size = sh::output(
            Command::new("du").args(["--summarize", "--block-size=1024", "--apparent-size"]).arg(&root),
        )?;
        let size = size.split_whitespace().next().context("du prints a size")?;
        let depends = dependencies(&root.join(BINARY), directory)?;
        let values = [
            ("@version@", self.version),
            ("@architecture@", architecture),
            ("@size@", size),
            ("@depends@", depends.as_str()),
        ];
        let control =
            values.into_iter().fold(read("control")?, |text, (name, value)| text.replace(name, value));
        write(&root.join("DEBIAN/control"), &control, DATA)?;
        // Whatever the mask for new files was.
        sh::run(Command::new("chmod").args(["--recursive", "u=rwX,go=rX"]).arg(&root))?;

        let file = directory.join(format!("gate_{}_{architecture}.deb", self.version));
        let compression = match self.compression {
            Compression::Smallest => "-Zxz",
            Compression::None => "-Znone",
        };
        let mut pack = Command::new("dpkg-deb");
        pack.args(["--root-owner-group", compression, "--build"]).arg(&root).arg(&file);
        sh::run(&mut pack)?;
        let bytes = fs::metadata(&file)?.len();
        let binary_bytes = fs::metadata(root.join(BINARY))?.len();
        fs::remove_dir_all(&root)?;
        Ok(Packed { file, bytes, binary_bytes })
    }

    /// Writes the files that the package installs.
    fn install_files(&self, root: &Path) -> Result<()> {
        let binary = root.join(BINARY);
        copy(self.gate, &binary, PROGRAM)?;
        let sections = ["--remove-section=.comment", "--remove-section=.note"];
        sh::run(Command::new("strip").args(sections).arg(&binary))?;

        copy(&source("gate.service"), &root.join("lib/systemd/system/gate.service"), DATA)?;
        copy(&source("gate.toml"), &root.join(CONFIGURATION), DATA)?;
        for (shell, file) in COMPLETIONS {
            let text = sh::output(Command::new(self.gate).args(["completions", shell]))?;
            write(&root.join(file), &text, DATA)?;
        }
        let manual = root.join("usr/share/man/man1");
        sh::run(Command::new(self.gate).arg("man").arg(&manual))?;
        for page in fs::read_dir(&manual)? {
            compress(&page?.path())?;
        }

        let documents = root.join("usr/share/doc/gate");
        copy(&source("copyright"), &documents.join("copyright"), DATA)?;
        let changelog = documents.join("changelog");
        copy(&paths::workspace().join("CHANGELOG.md"), &changelog, DATA)?;
        compress(&changelog)?;
        for (folder, names) in [("", DOCUMENTS), ("examples", EXAMPLE_FILES)] {
            for name in names {
                let from = paths::workspace().join("docs").join(name);
                copy(&from, &documents.join(folder).join(name), DATA)?;
            }
        }
        Ok(())
    }
}

/// Writes what dpkg is to know of the files, and the scripts that it runs.
fn install_control(root: &Path) -> Result<()> {
    let directory = root.join("DEBIAN");
    write(&directory.join("conffiles"), &format!("/{CONFIGURATION}\n"), DATA)?;
    // Not of the configuration, which may be changed.
    let script = "find usr lib -type f | LC_ALL=C sort | xargs md5sum";
    let sums = sh::output(Command::new("sh").args(["-c", script]).current_dir(root))?;
    write(&directory.join("md5sums"), &sums, DATA)?;
    let gates = read("gates.sh")?;
    for name in ["postinst", "prerm", "postrm"] {
        write(&directory.join(name), &read(name)?.replace("#GATES#\n", &gates), PROGRAM)?;
    }
    Ok(())
}

/// The binary for packages: of a profile of its own, whatever the environment asks of other builds.
fn build() -> Result<PathBuf> {
    eprintln!("building gate for the package; the first time this takes minutes");
    let mut cargo = sh::cargo();
    cargo.args(["build", "--quiet", "--locked", "--profile", "dist", "--package", "gate-userspace"]);
    cargo.env("GATE_EBPF_OBJECT", paths::object()).env("GATE_EBPF_TRACE_OBJECT", paths::trace_object());
    cargo.env("GATE_EBPF_INTERCEPT_OBJECT", paths::intercept_object());
    sh::stream(&mut cargo)?;
    Ok(paths::target().join("dist/gate"))
}

/// The packages of the libraries that the binary is linked to, as in `Depends`.
fn dependencies(binary: &Path, directory: &Path) -> Result<String> {
    // It reads the description of a source package, in the directory that it is started in.
    let source = directory.join("source");
    write(&source.join("debian/control"), "Source: gate\n\nPackage: gate\nArchitecture: any\n", DATA)?;
    let mut shlibdeps = Command::new("dpkg-shlibdeps");
    shlibdeps.arg("-O").arg(fs::canonicalize(binary)?).current_dir(&source);
    let found = sh::output(&mut shlibdeps)?;
    fs::remove_dir_all(&source)?;
    let depends = found.trim().strip_prefix("shlibs:Depends=");
    Ok(depends.context("dpkg-shlibdeps finds no library")?.to_owned())
}

/// A file in `gate-userspace/package`.
fn source(name: &str) -> PathBuf {
    paths::workspace().join("gate-userspace/package").join(name)
}

fn read(name: &str) -> Result<String> {
    let file = source(name);
    fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))
}

fn write(file: &Path, text: &str, mode: u32) -> Result<()> {
    let written = make_parent(file)
        .and_then(|()| fs::write(file, text))
        .and_then(|()| fs::set_permissions(file, fs::Permissions::from_mode(mode)));
    written.with_context(|| format!("cannot write {}", file.display()))
}

fn copy(from: &Path, to: &Path, mode: u32) -> Result<()> {
    let copied = make_parent(to)
        .and_then(|()| fs::copy(from, to))
        .and_then(|_| fs::set_permissions(to, fs::Permissions::from_mode(mode)));
    copied.with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))
}

fn make_parent(file: &Path) -> io::Result<()> {
    file.parent().map_or(Ok(()), fs::create_dir_all)
}

/// Replaces a file by a compressed one, which is the same for the same text.
fn compress(file: &Path) -> Result<()> {
    sh::run(Command::new("gzip").args(["--best", "--no-name"]).arg(file))
}

/// As people read it, in units of 1,000,000 bytes.
fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

const BINARY: &str = "usr/bin/gate";
const CONFIGURATION: &str = "etc/gate/gate.toml";
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/gate"),
    ("zsh", "usr/share/zsh/vendor-completions/_gate"),
    ("fish", "usr/share/fish/vendor_completions.d/gate.fish"),
];
/// Files of `docs`.
const DOCUMENTS: &[&str] = &[
    "COMPATIBILITY.md",
    "CONFIGURATION.md",
    "GLOSSARY.md",
    "METRICS.md",
    "OPERATIONS.md",
    "PRODUCTION.md",
    "RECIPES.md",
    "ROLLING-OUT.md",
    "SECURITY.md",
];
const EXAMPLE_FILES: &[&str] = &["alerts.yml", "gate.toml", "grafana.json", "proxy.toml", "tls.toml"];
/// Modes of files.
const PROGRAM: u32 = 0o755;
const DATA: u32 = 0o644;
