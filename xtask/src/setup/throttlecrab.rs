//! throttlecrab-server, a rate limiter with a gRPC server, for `bench fleet` alone: built from crates.io into `target/tools`.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use super::step;
use crate::{paths, sh};

/// The program, once it has been built.
#[must_use]
pub fn program() -> PathBuf {
    paths::tools().join("bin/throttlecrab-server")
}

/// Builds it, unless it is there.
///
/// # Errors
///
/// If it cannot be had, or does not build.
pub fn install() -> Result<()> {
    if program().exists() {
        return Ok(());
    }
    step(&format!("building {PACKAGE} (some minutes)"), || {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["install", "--quiet", "--locked", PACKAGE, "--root"]).arg(paths::tools());
        // Its usual release build, somewhere else than the workspace's.
        sh::run(cargo.env_remove("CARGO_TARGET_DIR").env_remove("CARGO_PROFILE_RELEASE_OPT_LEVEL"))
    })
}

const PACKAGE: &str = "throttlecrab-server@0.4.40";
