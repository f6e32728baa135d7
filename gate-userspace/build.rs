//! Embeds the eBPF object, its variant that traces, and that of interception, where they have been built.
//!
//! Looks at `$GATE_EBPF_OBJECT`, `$GATE_EBPF_TRACE_OBJECT` and `$GATE_EBPF_INTERCEPT_OBJECT`; without the first at
//! `ebpf/gate-ebpf.o`, `ebpf/gate-ebpf-trace.o` and `ebpf/gate-ebpf-intercept.o` in the target directory, where `cargo xtask build-ebpf` puts them. Without either the crate builds
//! all the same, and the binary says that it was built without the object.

use std::env;
use std::path::{Path, PathBuf};

fn main() {
    println!("cargo::rustc-check-cfg=cfg(gate_ebpf_object)");
    println!("cargo::rustc-check-cfg=cfg(gate_ebpf_trace_object)");
    println!("cargo::rustc-check-cfg=cfg(gate_ebpf_intercept_object)");
    println!("cargo::rerun-if-env-changed=GATE_EBPF_OBJECT");
    println!("cargo::rerun-if-env-changed=GATE_EBPF_TRACE_OBJECT");
    println!("cargo::rerun-if-env-changed=GATE_EBPF_INTERCEPT_OBJECT");
    println!("cargo::rerun-if-env-changed=CARGO_TARGET_DIR");
    println!("cargo::rerun-if-changed=build.rs");
    let object = named("GATE_EBPF_OBJECT");
    let are_named = object.is_some();
    let beside = |variable, name| if are_named { named(variable) } else { in_target_dir(name) };
    let trace = beside("GATE_EBPF_TRACE_OBJECT", "gate-ebpf-trace.o");
    let intercept = beside("GATE_EBPF_INTERCEPT_OBJECT", "gate-ebpf-intercept.o");
    let object = object.or_else(|| in_target_dir("gate-ebpf.o"));
    if let Some(object) = object {
        println!("cargo::rustc-cfg=gate_ebpf_object");
        println!("cargo::rustc-env=GATE_EBPF_EMBEDDED={}", object.display());
    }
    if let Some(trace) = trace {
        println!("cargo::rustc-cfg=gate_ebpf_trace_object");
        println!("cargo::rustc-env=GATE_EBPF_TRACE_EMBEDDED={}", trace.display());
    }
    if let Some(intercept) = intercept {
        println!("cargo::rustc-cfg=gate_ebpf_intercept_object");
        println!("cargo::rustc-env=GATE_EBPF_INTERCEPT_EMBEDDED={}", intercept.display());
    }
}

/// The object that a variable of the environment names.
fn named(variable: &str) -> Option<PathBuf> {
    let named = PathBuf::from(env::var_os(variable)?);
    assert!(named.is_absolute(), "{variable} must be an absolute path: {}", named.display());
    assert!(named.is_file(), "{variable} is no file: {}", named.display());
    println!("cargo::rerun-if-changed={}", named.display());
    Some(named)
}

/// An object that `cargo xtask build-ebpf` made, if it did.
///
/// Cargo takes a missing file for a changed one and would build the crate anew every time; so what is
/// watched is the directory, which is made if need be.
fn in_target_dir(name: &str) -> Option<PathBuf> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the workspace");
    let target = env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let directory = workspace.join(target).join("ebpf");
    std::fs::create_dir_all(&directory).ok()?;
    println!("cargo::rerun-if-changed={}", directory.display());
    let object = directory.join(name);
    object.is_file().then_some(object)
}
