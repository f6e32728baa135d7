//! Embeds the eBPF object, where one has been built.
//!
//! Looks at `$GATE_EBPF_OBJECT`, else at `ebpf/gate-ebpf.o` in the target directory, where
//! `cargo xtask build-ebpf` puts it. Without either the crate builds all the same, and the binary says
//! that it was built without the object.

use std::env;
use std::path::{Path, PathBuf};

fn main() {
    println!("cargo::rustc-check-cfg=cfg(gate_ebpf_object)");
    println!("cargo::rerun-if-env-changed=GATE_EBPF_OBJECT");
    println!("cargo::rerun-if-env-changed=CARGO_TARGET_DIR");
    println!("cargo::rerun-if-changed=build.rs");
    let object = match env::var_os("GATE_EBPF_OBJECT") {
        Some(named) => {
            let named = PathBuf::from(named);
            assert!(named.is_absolute(), "GATE_EBPF_OBJECT must be an absolute path: {}", named.display());
            assert!(named.is_file(), "GATE_EBPF_OBJECT is no file: {}", named.display());
            println!("cargo::rerun-if-changed={}", named.display());
            Some(named)
        }
        None => in_target_dir(),
    };
    if let Some(object) = object {
        println!("cargo::rustc-cfg=gate_ebpf_object");
        println!("cargo::rustc-env=GATE_EBPF_EMBEDDED={}", object.display());
    }
}

/// The object that `cargo xtask build-ebpf` made, if it did.
///
/// Cargo takes a missing file for a changed one and would build the crate anew every time; so what is
/// watched is the directory, which is made if need be.
fn in_target_dir() -> Option<PathBuf> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the workspace");
    let target = env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let directory = workspace.join(target).join("ebpf");
    std::fs::create_dir_all(&directory).ok()?;
    println!("cargo::rerun-if-changed={}", directory.display());
    let object = directory.join("gate-ebpf.o");
    object.is_file().then_some(object)
}
