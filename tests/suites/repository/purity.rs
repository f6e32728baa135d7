//! The pure modules import no I/O, no clock and no entropy.
//!
//! Policies, codecs and `decide()` take time and randomness as arguments, so that the simulator runs the
//! very code that the daemon runs. Here their source is read for names that would break this.

use std::fs;
use std::path::{Path, PathBuf};

/// The pure code: files, or directories with everything in them.
const PURE: [&str; 18] = [
    "gate-common/src",
    "gate-userspace/policy/src",
    "gate-userspace/protocol/src",
    "gate-userspace/src/control/decide.rs",
    "gate-userspace/src/config/buckets.rs",
    "gate-userspace/src/config/frames.rs",
    "gate-userspace/src/config/gate.rs",
    "gate-userspace/src/config/names.rs",
    "gate-userspace/src/config/parsers.rs",
    "gate-userspace/src/config/raw.rs",
    "gate-userspace/src/config/read.rs",
    "gate-userspace/src/config/shedding.rs",
    "gate-userspace/src/config/units.rs",
    "gate-userspace/src/config/values.rs",
    "gate-userspace/src/load/memcached.rs",
    "gate-userspace/src/load/workload.rs",
    "gate-userspace/src/load/store/command.rs",
    "gate-userspace/src/load/store/service.rs",
];

/// Names that reach for the outside, each with the path separator that tells a module from a word.
const IMPURE: [&str; 21] = [
    "Instant",
    "SystemTime",
    "std::env",
    "std::fs",
    "std::io",
    "std::net::Tcp",
    "std::net::Udp",
    "std::os",
    "std::process",
    "std::thread",
    "tokio::",
    "nix::",
    "libc::",
    "aya::",
    "rand::rng",
    "rand::random",
    "thread_rng",
    "SysRng",
    "RandomState",
    "crate::clock",
    "crate::kernel",
];

#[test]
fn pure_modules_reach_for_nothing() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut found = Vec::new();
    for pure in PURE {
        let files = sources(&workspace.join(pure));
        assert!(!files.is_empty(), "{pure} holds no source: has it moved?");
        for file in files {
            let text = fs::read_to_string(&file).unwrap();
            found.extend(reaches(&text).map(|(line, name)| format!("{}:{line}: {name}", file.display())));
        }
    }
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn a_pure_file_is_told_from_one_that_is_not() {
    let impure = "//! Instant in words.\nuse std::sync::Arc;\nlet now = std::time::Instant::now();\n";
    assert_eq!(reaches(impure).collect::<Vec<_>>(), [(3, "Instant")]);
    let only_its_tests = "fn pure() {}\n#[cfg(test)]\nmod tests {\n    use std::fs;\n}\n";
    assert_eq!(reaches(only_its_tests).count(), 0);
    let a_module_for_tests = "#[cfg(test)]\nmod tests;\nuse std::fs::File;\n";
    assert_eq!(reaches(a_module_for_tests).collect::<Vec<_>>(), [(3, "std::fs")]);
}

/// The lines with a name that reaches for the outside, comments and the tests at a file's end aside.
fn reaches(text: &str) -> impl Iterator<Item = (usize, &'static str)> {
    let tests = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    text[..tests].lines().enumerate().flat_map(|(number, line)| {
        let code = line.split("//").next().unwrap_or_default();
        IMPURE.iter().filter(|name| code.contains(*name)).map(move |name| (number + 1, *name))
    })
}

/// The Rust files at or below `path`, those of tests aside.
fn sources(path: &Path) -> Vec<PathBuf> {
    if path.is_file() {
        return vec![path.to_owned()];
    }
    let Ok(entries) = fs::read_dir(path) else { return Vec::new() };
    let entries = entries.map(|entry| entry.unwrap().path());
    let kept = entries.filter(|entry| entry.file_stem().is_some_and(|stem| stem != "tests"));
    let below = kept.flat_map(|entry| sources(&entry));
    below.filter(|file| file.extension().is_some_and(|extension| extension == "rs")).collect()
}
