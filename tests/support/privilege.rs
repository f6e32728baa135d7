//! Tests that cannot run where they are started say so.

use std::io::Write as _;

/// True if this test may run: it runs as root.
///
/// Otherwise says on standard error that `test` was not run (`cargo xtask test` lists these at its end).
///
/// # Panics
///
/// Where it cannot run and `$CI` is set: nothing may be left out there.
#[must_use]
pub fn root(test: &str) -> bool {
    if nix::unistd::geteuid().is_root() {
        return true;
    }
    not_run(test, "needs root");
    false
}

/// Says on standard error that `test` was not run, and why (`cargo xtask test` lists and counts these at its end).
///
/// # Panics
///
/// Where `$CI` is set: nothing may be left out there.
pub fn not_run(test: &str, why: &str) {
    assert!(std::env::var_os("CI").is_none(), "{test}: {why}, and in CI nothing may be left out");
    // Not eprintln!, which the test harness captures. Whether anyone reads it is not the test's concern.
    let _ = writeln!(std::io::stderr(), "not run: {test} ({why})");
}
