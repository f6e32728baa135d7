//! Doc comments are sentences with a subject.

use std::fs;

use super::source::{sources, workspace};

/// Rooms whose doc comments begin with a subject, or a verb.
const WITH_SENTENCES: [&str; 9] = [
    "gate-common/src",
    "gate-ebpf/src",
    "gate-userspace",
    "tests/benches",
    "tests/fuzz/checks.rs",
    "tests/fuzz/fuzz_targets",
    "tests/suites",
    "tests/support",
    "xtask/src",
];

/// Words that begin a riddle in place of a sentence.
const RIDDLES: [&str; 6] = ["What", "Whether", "Who", "Whose", "Whom", "It"];

#[test]
fn doc_comments_begin_with_their_subject() {
    let mut found = Vec::new();
    for room in WITH_SENTENCES {
        for file in sources(&workspace().join(room)) {
            let text = fs::read_to_string(&file).unwrap();
            found.extend(riddles(&text).map(|(line, text)| format!("{}:{line}: {text}", file.display())));
        }
    }
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn only_the_beginning_of_a_paragraph_is_looked_at() {
    let text = "//! What it is.\n/// The store.\n/// It answers.\n///\n/// Whether it does.\n// What else\nfn f() {}\n";
    assert_eq!(riddles(text).map(|(line, _)| line).collect::<Vec<_>>(), [1, 5]);
}

/// The paragraphs of doc comments that begin with a word of [`RIDDLES`], with their lines.
fn riddles(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut follows_text = false;
    text.lines().enumerate().filter_map(move |(number, line)| {
        let line = line.trim_start();
        let text = line.strip_prefix("/// ").or_else(|| line.strip_prefix("//! "));
        let begins = !std::mem::replace(&mut follows_text, text.is_some());
        let first = text?.split(|c: char| !c.is_alphabetic()).next()?;
        (begins && RIDDLES.contains(&first)).then_some((number + 1, line))
    })
}
