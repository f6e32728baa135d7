//! Where things lie in the workspace.

use std::env;
use std::path::{Path, PathBuf};

/// The workspace's own directory.
#[must_use]
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace")
}

/// Where cargo builds: `$CARGO_TARGET_DIR`, else `target`.
#[must_use]
pub fn target() -> PathBuf {
    workspace().join(env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

/// The eBPF object that gate's binary embeds.
#[must_use]
pub fn object() -> PathBuf {
    target().join("ebpf/gate-ebpf.o")
}

/// Its variant that says each step of one source's packets.
#[must_use]
pub fn trace_object() -> PathBuf {
    target().join("ebpf/gate-ebpf-trace.o")
}

/// The eBPF object of interception, which gate's binary embeds as well.
#[must_use]
pub fn intercept_object() -> PathBuf {
    target().join("ebpf/gate-ebpf-intercept.o")
}

/// The eBPF programs that the benchmarks set gate's beside.
#[must_use]
pub fn bench_object() -> PathBuf {
    target().join("ebpf/gate-ebpf-bench.o")
}

/// Tools that are built for the workspace alone, as `cargo install --root` lays them out.
#[must_use]
pub fn tools() -> PathBuf {
    target().join("tools")
}

/// The `gate` binary of the release build.
#[must_use]
pub fn gate() -> PathBuf {
    target().join("release/gate")
}
