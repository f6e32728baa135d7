//! The pure modules import no I/O, no clock and no entropy.
//!
//! Policies, codecs and `decide()` take time and randomness as arguments, so that the simulator runs the
//! very code that the daemon runs. Here their source is read for names that would break this.

use std::fs;
use std::path::Path;

use super::source::{sources, workspace};

/// The pure code: files, or directories with everything in them.
const PURE: [&str; 18] = [
    "gate-common/src",
    "gate-userspace/policy/src",
    "gate-userspace/protocol/src",
    "gate-userspace/src/control/decide.rs",
    "gate-userspace/config/src/buckets.rs",
    "gate-userspace/config/src/frames.rs",
    "gate-userspace/config/src/gate.rs",
    "gate-userspace/config/src/names.rs",
    "gate-userspace/config/src/parsers.rs",
    "gate-userspace/config/src/raw.rs",
    "gate-userspace/config/src/read.rs",
    "gate-userspace/config/src/shedding.rs",
    "gate-userspace/config/src/units.rs",
    "gate-userspace/config/src/values.rs",
    "gate-userspace/lab/src/load/memcached.rs",
    "gate-userspace/lab/src/load/workload.rs",
    "gate-userspace/lab/src/load/store/command.rs",
    "gate-userspace/lab/src/load/store/service.rs",
];

/// Names that reach for the outside, each with the path separator that tells a module from a word.
const IMPURE: [&str; 22] = [
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
    "gate_system::clock",
    "crate::kernel",
];

#[test]
fn pure_modules_reach_for_nothing() {
    let mut found = Vec::new();
    for file in PURE.iter().flat_map(|pure| sources(&workspace().join(pure))) {
        let is_test = is_test(file.strip_prefix(workspace()).unwrap());
        if !is_test {
            let text = fs::read_to_string(&file).unwrap();
            found.extend(reaches(&text).map(|(line, name)| format!("{}:{line}: {name}", file.display())));
        }
    }
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn an_impure_file_is_recognised() {
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

/// True for a file of tests, or one in a directory of theirs.
fn is_test(file: &Path) -> bool {
    file.components().any(|part| Path::new(part.as_os_str()).file_stem().is_some_and(|stem| stem == "tests"))
}
