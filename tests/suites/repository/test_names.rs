//! The names of tests fit into a line of the harness' output.

use std::fs;
use std::path::{Path, PathBuf};

/// Where tests have such names.
const ROOMS: [&str; 13] = [
    "gate-common/src",
    "gate-userspace/protocol/src",
    "gate-userspace/src/admin",
    "gate-userspace/src/cli",
    "gate-userspace/src/config",
    "gate-userspace/src/control",
    "gate-userspace/src/daemon",
    "gate-userspace/src/kernel",
    "gate-userspace/src/load",
    "gate-userspace/src/probe",
    "gate-userspace/src/sim",
    "tests/suites",
    "xtask/src",
];

/// The longest name of a test, without its modules.
const MAX_NAME_LEN: usize = 60;

#[test]
fn test_names_have_at_most_sixty_characters() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut found = Vec::new();
    for file in ROOMS.iter().flat_map(|room| sources(&workspace.join(room))) {
        let text = fs::read_to_string(&file).unwrap();
        let long = tests(&text).filter(|name| name.len() > MAX_NAME_LEN);
        found.extend(long.map(|name| format!("{}: {name}: {}", file.display(), name.len())));
    }
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn tests_are_found_below_other_attributes() {
    let text = "#[test]\nfn one() {}\nfn helper() {}\n#[test]\n#[ignore = \"slow\"]\nasync fn two() {}\n";
    assert_eq!(tests(text).collect::<Vec<_>>(), ["one", "two"]);
}

/// The names of the functions that are marked as tests.
fn tests(text: &str) -> impl Iterator<Item = &str> {
    let marked = text.split("#[test]\n").skip(1);
    marked.filter_map(|item| {
        let name = item.split_once("fn ")?.1;
        Some(&name[..name.find('(')?])
    })
}

/// The Rust files at or below `path`.
fn sources(path: &Path) -> Vec<PathBuf> {
    if path.is_file() {
        return vec![path.to_owned()];
    }
    let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    let below = entries.flat_map(|entry| sources(&entry));
    below.filter(|file| file.extension().is_some_and(|extension| extension == "rs")).collect()
}
