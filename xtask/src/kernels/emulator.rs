//! The emulator: the machine's own, or Debian's package of it, unpacked and never installed.
//!
//! Installing it could remove the machine's other programs of the same project (`qemu-utils` from elsewhere), and wants root.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::sh;

/// qemu for x86_64.
#[derive(Debug)]
pub(super) struct Emulator {
    /// Where it is unpacked, unless it is installed.
    unpacked: Option<PathBuf>,
}

impl Emulator {
    /// The installed one, or the one that is unpacked below `directory`, now if need be.
    ///
    /// # Errors
    ///
    /// If apt knows no package of it, or it cannot be fetched.
    pub(super) fn find(directory: &Path) -> Result<Self> {
        if sh::find(PROGRAM).is_some() {
            return Ok(Self { unpacked: None });
        }
        let place = directory.join("qemu");
        if !place.exists() {
            eprintln!("kernels: getting qemu");
            let new = directory.join("qemu.new");
            let _ = fs::remove_dir_all(&new);
            unpack(&new).context("cannot get qemu; `apt-get update` may help")?;
            fs::rename(&new, &place)?;
        }
        Ok(Self { unpacked: Some(place) })
    }

    /// The command without arguments.
    pub(super) fn command(&self) -> Command {
        let Some(place) = &self.unpacked else { return Command::new(PROGRAM) };
        let mut qemu = Command::new(place.join("usr/bin").join(PROGRAM));
        for firmware in ["usr/share/qemu", "usr/share/seabios", "usr/lib/ipxe/qemu"] {
            qemu.arg("-L").arg(place.join(firmware));
        }
        let libraries = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"].map(|path| place.join(path));
        qemu.env("LD_LIBRARY_PATH", libraries.map(|path| path.display().to_string()).join(":"));
        qemu
    }
}

/// Unpacks the package, and those that it needs and the machine lacks.
fn unpack(place: &Path) -> Result<()> {
    fs::create_dir_all(place).with_context(|| format!("cannot make {}", place.display()))?;
    let mut simulate = Command::new("apt-get");
    simulate.args(["install", "--simulate", "--no-install-recommends", PACKAGE]).env("LC_ALL", "C");
    let plan = sh::output(&mut simulate)?;
    let packages: Vec<_> = to_be_installed(&plan).collect();
    ensure!(packages.contains(&PACKAGE), "apt would not install {PACKAGE}");
    let mut download = Command::new("apt-get");
    // Its own user could not write below ours.
    download.args(["-o", "APT::Sandbox::User=root", "--quiet", "download"]);
    sh::run(download.args(packages).current_dir(place))?;
    for entry in fs::read_dir(place)? {
        let file = entry?.path();
        if file.extension().is_some_and(|extension| extension == "deb") {
            sh::run(Command::new("dpkg").arg("-x").arg(&file).arg(place))?;
            fs::remove_file(&file)?;
        }
    }
    Ok(())
}

/// The packages in what `apt-get install --simulate` prints.
fn to_be_installed(plan: &str) -> impl Iterator<Item = &str> {
    plan.lines().filter_map(|line| line.strip_prefix("Inst ")?.split(' ').next())
}

const PROGRAM: &str = "qemu-system-x86_64";
const PACKAGE: &str = "qemu-system-x86";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_apt_would_install_is_read_and_nothing_else() {
        let plan = "Reading package lists...\nThe following packages will be REMOVED:\n  qemu-utils\n\
                    Remv qemu-utils [1:10.0.2]\nInst libfdt1 (1.6.1-4+b1 Debian:12.14/oldstable [amd64])\n\
                    Inst qemu-system-x86 (1:7.2 Debian:12.14/oldstable [amd64])\nConf libfdt1 (1.6.1-4+b1)\n";
        assert_eq!(to_be_installed(plan).collect::<Vec<_>>(), ["libfdt1", "qemu-system-x86"]);
    }
}
