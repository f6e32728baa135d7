//! The names of tests fit into a line of the harness' output.

use std::fs;

use super::source::{sources, workspace};

/// Where tests have such names.
const ROOMS: [&str; 4] = ["gate-common", "gate-userspace", "tests", "xtask"];

/// The longest name of a test, without its modules.
const MAX_NAME_LEN: usize = 60;

#[test]
fn test_names_have_at_most_sixty_characters() {
    let mut found = Vec::new();
    for file in ROOMS.iter().flat_map(|room| sources(&workspace().join(room))) {
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
