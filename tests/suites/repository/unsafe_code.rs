//! `unsafe` stands only in the files that are listed here. The lint `unsafe_code` is denied elsewhere.

use std::fs;
use std::path::Path;

use super::source::{sources, workspace};

/// Files with `unsafe`, each with its reason in an `allow`.
const ALLOWED: [&str; 17] = [
    "gate-ebpf/src/bench.rs",
    "gate-ebpf/src/intercept.rs",
    "gate-ebpf/src/main.rs",
    "gate-userspace/src/cli/signals.rs",
    "gate-userspace/src/daemon/allocator.rs",
    "gate-userspace/src/kernel/heartbeat.rs",
    "gate-userspace/src/kernel/link.rs",
    "gate-userspace/src/kernel/mapped.rs",
    "gate-userspace/src/kernel/migration.rs",
    "gate-userspace/src/kernel/owner.rs",
    "gate-userspace/src/kernel/requirements.rs",
    "gate-userspace/src/kernel/unsent.rs",
    "tests/benches/xdp.rs",
    "tests/suites/proxy/isolation/connections.rs",
    "tests/support/raw.rs",
    "xtask/src/isolation/hostile.rs",
    "xtask/src/lab/process.rs",
];

/// The crates of the workspace.
const CRATES: [&str; 8] = [
    "gate-common",
    "gate-ebpf",
    "gate-userspace",
    "gate-userspace/policy",
    "gate-userspace/protocol",
    "tests",
    "tests/suites/repository",
    "xtask",
];

#[test]
fn unsafe_code_is_allowed_in_the_listed_files_alone() {
    let mut allowed: Vec<_> = CRATES.iter().flat_map(|of| sources(&workspace().join(of))).collect();
    allowed.retain(|file| allows(&fs::read_to_string(file).unwrap()));
    allowed.sort();
    allowed.dedup();
    let allowed: Vec<_> = allowed.iter().map(|file| file.strip_prefix(workspace()).unwrap()).collect();
    assert_eq!(allowed, ALLOWED.map(Path::new));
}

#[test]
fn unsafe_code_is_denied_in_every_crate() {
    let manifest = fs::read_to_string(workspace().join("Cargo.toml")).unwrap();
    assert!(manifest.contains("[workspace.lints.rust]") && manifest.contains("\nunsafe_code = \"deny\"\n"));
    for of in CRATES {
        let manifest = fs::read_to_string(workspace().join(of).join("Cargo.toml")).unwrap();
        assert!(manifest.contains("[lints]\nworkspace = true\n"), "{of} has lints of its own");
    }
}

#[test]
fn an_allow_is_distinguished_from_a_word() {
    assert!(allows("//! Text.\n\n#![allow(unsafe_code, reason = \"memory\")]\n"));
    assert!(allows("fn f() {\n    #[allow(dead_code, unsafe_code, reason = \"a call\")]\n    g();\n}\n"));
    assert!(!allows("// #![allow(unsafe_code)]\n#![forbid(unsafe_code)]\nlet text = \"unsafe_code\";\n"));
}

/// True if a source allows `unsafe_code` somewhere.
fn allows(text: &str) -> bool {
    text.lines().map(str::trim).any(|line| {
        let attribute = line.strip_prefix("#![allow(").or_else(|| line.strip_prefix("#[allow("));
        attribute.is_some_and(|lints| lints.split(", ").any(|lint| lint == "unsafe_code"))
    })
}
