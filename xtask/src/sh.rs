//! Running other programs, with errors that say which.

use std::env;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::paths;

/// Runs it to its end; what it printed is shown only if it failed.
///
/// # Errors
///
/// If it cannot be started or fails; the error holds what it printed.
pub fn run(command: &mut Command) -> Result<()> {
    output(command).map(drop)
}

/// Runs it to its end and returns what it printed on its standard output.
///
/// # Errors
///
/// If it cannot be started or fails; the error holds what it printed.
pub fn output(command: &mut Command) -> Result<String> {
    let shown = shown(command);
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {shown}"))?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("{shown}: {}\n{}{}", output.status, stdout, stderr.trim_end());
    }
    Ok(stdout.into_owned())
}

/// Runs it to its end with this process's own output.
///
/// # Errors
///
/// If it cannot be started or fails.
pub fn stream(command: &mut Command) -> Result<()> {
    let shown = shown(command);
    let status = command.status().with_context(|| format!("cannot run {shown}"))?;
    if !status.success() {
        bail!("{shown}: {status}");
    }
    Ok(())
}

/// Where a program lies: on `$PATH`, or where administrators' programs lie on Debian, which other users'
/// `$PATH` leaves out.
#[must_use]
pub fn find(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let directories = env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    directories.map(|directory| directory.join(program)).find(|file| file.is_file())
}

/// The cargo that runs this, in the workspace and as from a shell: what a cargo says of a package to the program that
/// it runs is left out. Build scripts of dependencies read the same names, so that they and all above them
/// would be compiled anew whenever another program asks.
#[must_use]
pub fn cargo() -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(paths::workspace());
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(describes_a_package) {
            cargo.env_remove(name);
        }
    }
    cargo
}

/// Variables that cargo sets for the package whose program it runs.
fn describes_a_package(variable: &str) -> bool {
    let prefixes = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_"];
    prefixes.iter().any(|prefix| variable.starts_with(prefix))
        || ["CARGO_CRATE_NAME", "CARGO_PRIMARY_PACKAGE", "CARGO_TARGET_TMPDIR", "OUT_DIR"].contains(&variable)
}

/// The command as one would type it.
fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargo_is_run_as_from_a_shell() {
        // Cargo runs this test, and has said for which package.
        assert!(env::var_os("CARGO_MANIFEST_DIR").is_some());
        let cargo = cargo();
        let removed = |wanted: &str| cargo.get_envs().any(|(name, value)| name == wanted && value.is_none());
        for name in ["CARGO_MANIFEST_DIR", "CARGO_PKG_NAME", "CARGO_PKG_VERSION_PRE"] {
            assert!(removed(name), "{name}");
        }
        for name in ["CARGO_TARGET_DIR", "CARGO_INCREMENTAL", "CARGO_PROFILE_RELEASE_LTO", "PATH"] {
            assert!(!describes_a_package(name), "{name}");
        }
    }
}
