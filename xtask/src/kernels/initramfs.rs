//! The initial file system of a kernel: gate, the suites, the programs and libraries that they need, and modules.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use super::packages::Package;
use crate::test::suites::Executables;
use crate::{paths, sh};

/// A test suite, and what it is called with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Suite {
    pub(super) name: &'static str,
    pub(super) arguments: &'static str,
    /// Tests that the kernel cannot run, and why.
    pub(super) skipped: &'static [(&'static str, &'static str)],
}

impl Suite {
    /// All of a suite.
    pub(super) const fn new(name: &'static str) -> Self {
        Self { name, arguments: "", skipped: &[] }
    }

    /// The tests that are left out, by name.
    pub(super) fn left_out(&self) -> impl Iterator<Item = String> {
        self.skipped.iter().map(|(test, why)| format!("{}::{test} ({why})", self.name))
    }
}

/// The programs that the suites call beside gate.
const PROGRAMS: [&str; 2] = ["ip", "memcached"];
/// The last two are for filters of `clsact`, which come before tcx links.
const MODULES: [&str; 3] = ["veth", "sch_ingress", "cls_bpf"];

/// Puts together and packs the initramfs that runs `suites`, below `place`.
///
/// # Errors
///
/// If a file is missing.
pub(super) fn pack(
    place: &Path,
    package: &Package,
    suites: &[Suite],
    executables: &Executables,
) -> Result<PathBuf> {
    let root = Root { path: place.join("root") };
    let _ = fs::remove_dir_all(&root.path);
    for directory in ["bin", "dev", "etc", "proc", "root", "run", "sys", "tmp"] {
        root.make(directory)?;
    }
    // memcached looks itself up.
    fs::write(root.path.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n")?;
    root.add(&found("busybox")?, "bin/busybox")?;
    symlink("busybox", root.path.join("bin/sh"))?;
    root.add_stripped(&paths::gate(), "target/release/gate")?;
    for program in PROGRAMS {
        root.add(&found(program)?, &format!("usr/bin/{program}"))?;
    }
    for suite in suites {
        let built = executables.iter().find(|(name, _)| name == suite.name);
        let (name, file) = built.with_context(|| format!("suite {} is not built", suite.name))?;
        root.add_stripped(file, &format!("suites/{name}"))?;
    }
    let mut modules = Vec::new();
    for module in MODULES {
        root.add_module(&package.modules, module, &mut modules)?;
    }
    root.write_init(&modules, suites)?;
    root.pack(&place.join("initramfs.cpio"))
}

/// The file system that becomes an initramfs.
struct Root {
    path: PathBuf,
}

impl Root {
    fn make(&self, directory: impl AsRef<Path>) -> Result<()> {
        let path = self.path.join(directory);
        fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))
    }

    /// Adds a program and the libraries that it is linked to.
    fn add(&self, program: &Path, to: &str) -> Result<()> {
        self.copy(program, to)?;
        for library in libraries(program)? {
            let to = library.strip_prefix("/").context("a library's whole path")?;
            if !self.path.join(to).exists() {
                self.copy(&library, to)?;
            }
        }
        Ok(())
    }

    /// As [`Root::add`], without what only a debugger reads: nine tenths of a suite.
    fn add_stripped(&self, program: &Path, to: &str) -> Result<()> {
        self.add(program, to)?;
        sh::run(Command::new("strip").arg(self.path.join(to)))
    }

    fn copy(&self, from: &Path, to: impl AsRef<Path>) -> Result<()> {
        let to = self.path.join(to);
        self.make(to.parent().expect("a file in a directory"))?;
        fs::copy(from, &to).with_context(|| format!("cannot copy {}", from.display()))?;
        Ok(())
    }

    /// Adds a module and, before it, those that it depends on; `added` is in the order to load them in.
    fn add_module(&self, modules: &Path, name: &str, added: &mut Vec<String>) -> Result<()> {
        if added.iter().any(|module| module == name) {
            return Ok(());
        }
        let file = find_module(modules, name)
            .with_context(|| format!("no module {name} below {}", modules.display()))?;
        let bytes = if file.extension().is_some_and(|kind| kind == "xz") {
            let unpacked = Command::new("busybox").arg("xzcat").arg(&file).output()?;
            ensure!(unpacked.status.success(), "cannot unpack {}", file.display());
            unpacked.stdout
        } else {
            fs::read(&file)?
        };
        for dependency in dependencies(&bytes) {
            self.add_module(modules, &dependency, added)?;
        }
        self.make("modules")?;
        fs::write(self.path.join("modules").join(name), bytes)?;
        added.push(name.to_owned());
        Ok(())
    }

    fn write_init(&self, modules: &[String], suites: &[Suite]) -> Result<()> {
        let file = self.path.join("init");
        fs::write(&file, init(modules, suites))?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755))?;
        Ok(())
    }

    /// Packs everything into `archive`; uncompressed, since the emulated CPU would have to unpack it.
    fn pack(&self, archive: &Path) -> Result<PathBuf> {
        let mut cpio = Command::new("sh");
        cpio.args(["-c", "find . | cpio --quiet --create --format=newc --owner=0:0 --file=\"$1\"", "pack"]);
        sh::run(cpio.arg(archive).current_dir(&self.path))?;
        Ok(archive.to_owned())
    }
}

/// The first process of the guest: makes the usual places, runs the suites, ends the machine.
fn init(modules: &[String], suites: &[Suite]) -> String {
    // PATH has no busybox in it: its `ip` is not the one that the suites need.
    let mut script = "#!/bin/busybox sh\nb=/bin/busybox\n\
                      $b mount -t proc proc /proc\n$b mount -t sysfs sys /sys\n$b mount -t bpf bpf /sys/fs/bpf\n\
                      $b mount -t devtmpfs dev /dev\n$b mount -t tmpfs run /run\n\
                      export PATH=/usr/bin CARGO_TARGET_DIR=/target\n\
                      echo \"kernel: $($b uname -r) $($b uname -v)\"\n"
        .to_owned();
    for module in modules {
        script += &format!("$b insmod /modules/{module}\n");
    }
    for Suite { name, arguments, skipped } in suites {
        let skipped: String = skipped.iter().map(|(test, _)| format!(" --skip {test}")).collect();
        script += &format!(
            "/suites/{name} --test-threads=1{skipped} {arguments}\n\
             echo \"suite {name} ended: $?\"\n"
        );
    }
    script + "$b reboot -f\n"
}

fn found(program: &str) -> Result<PathBuf> {
    sh::find(program).with_context(|| format!("no {program}"))
}

/// The libraries that `ldd` names for a program; none if it is linked statically.
fn libraries(program: &Path) -> Result<BTreeSet<PathBuf>> {
    let output = Command::new("ldd").arg(program).env("LC_ALL", "C").output().context("cannot run ldd")?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(!said.contains("not found"), "{} lacks a library:\n{said}", program.display());
    Ok(linked(&said))
}

/// The paths in what `ldd` says.
fn linked(said: &str) -> BTreeSet<PathBuf> {
    let paths = said.split_whitespace().filter(|word| word.starts_with('/') && !word.ends_with(':'));
    paths.map(PathBuf::from).collect()
}

/// The file of a module, packed or not.
fn find_module(directory: &Path, name: &str) -> Option<PathBuf> {
    let plain = format!("{name}.ko");
    let packed = format!("{name}.ko.xz");
    fs::read_dir(directory).ok()?.flatten().find_map(|entry| {
        if entry.file_type().ok()?.is_dir() {
            return find_module(&entry.path(), name);
        }
        let file = entry.file_name();
        (file == plain.as_str() || file == packed.as_str()).then(|| entry.path())
    })
}

/// The modules that one says it depends on.
fn dependencies(module: &[u8]) -> Vec<String> {
    // Entries of its section `.modinfo`, each ended by a zero.
    let entries = module.split(|byte| *byte == 0);
    let named = entries.filter_map(|entry| std::str::from_utf8(entry).ok()?.strip_prefix("depends="));
    named.flat_map(|names| names.split(',')).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_what_ldd_names_with_a_path() {
        let said = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let expected = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"];
        assert_eq!(linked(said), expected.map(PathBuf::from).into());
        assert!(linked("\tnot a dynamic executable\n").is_empty());
    }

    #[test]
    fn a_module_names_what_it_depends_on() {
        let module = |depends: &str| [b"\x7fELF\0license=GPL\0", depends.as_bytes(), b"\0name=x\0"].concat();
        assert_eq!(dependencies(&module("depends=llc,stp")), ["llc", "stp"]);
        assert!(dependencies(&module("depends=")).is_empty());
    }
}
