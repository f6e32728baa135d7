//! The workspace's Rust sources, and their code without comments and literals.

use std::fs;
use std::path::{Path, PathBuf};

/// The workspace's directory.
pub(crate) fn workspace() -> &'static Path {
    // This package lies in tests/suites/repository.
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(3).unwrap()
}

/// The Rust files at or below `path`, at least one.
pub(crate) fn sources(path: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    collect(path, &mut found);
    assert!(!found.is_empty(), "{} holds no source: has it moved?", path.display());
    found.sort();
    found
}

fn collect(path: &Path, found: &mut Vec<PathBuf>) {
    if path.is_file() {
        let is_written = !path.ends_with("generated.rs");
        let is_source = path.extension().is_some_and(|extension| extension == "rs");
        found.extend((is_source && is_written).then(|| path.to_owned()));
        return;
    }
    let Ok(entries) = fs::read_dir(path) else { return };
    entries.for_each(|entry| collect(&entry.unwrap().path(), found));
}

/// `text` with blanks in place of comments and literals, each byte where it was. A literal leaves its first byte as `0`, so
/// that it remains an expression.
pub(crate) fn code(text: &str) -> String {
    let mut code = text.as_bytes().to_vec();
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        let Some((len, is_literal)) = blank(rest, text[..at].chars().next_back()) else {
            at += rest.chars().next().map_or(1, char::len_utf8);
            continue;
        };
        code[at..at + len].iter_mut().filter(|byte| **byte != b'\n').for_each(|byte| *byte = b' ');
        if is_literal {
            code[at] = b'0';
        }
        at += len;
    }
    String::from_utf8(code).unwrap()
}

/// The length of the comment or literal that `rest` begins with, and true for a literal.
fn blank(rest: &str, before: Option<char>) -> Option<(usize, bool)> {
    let up_to =
        |end: &str, skip: usize| rest[skip..].find(end).map_or(rest.len(), |at| skip + at + end.len());
    let in_name = before.is_some_and(|before| before.is_alphanumeric() || before == '_');
    let raw = rest.strip_prefix("br").or_else(|| rest.strip_prefix('r')).filter(|_| !in_name);
    let hashes = raw.map_or(0, |raw| raw.len() - raw.trim_start_matches('#').len());
    if rest.starts_with("//") {
        Some((rest.find('\n').unwrap_or(rest.len()), false))
    } else if rest.starts_with("/*") {
        Some((up_to("*/", 2), false))
    } else if raw.is_some_and(|raw| raw[hashes..].starts_with('"')) {
        let start = rest.find('"')? + 1;
        Some((up_to(&format!("\"{}", "#".repeat(hashes)), start), true))
    } else if rest.starts_with('"') {
        Some((quoted(rest, '"')?, true))
    } else if let Some(inside) = rest.strip_prefix('\'') {
        // A lifetime has no second quote, or one behind more than a character.
        let mut chars = inside.chars();
        let first = chars.next()?;
        (first == '\\' || chars.next() == Some('\''))
            .then(|| quoted(rest, '\''))
            .flatten()
            .map(|len| (len, true))
    } else {
        None
    }
}

/// The length of the literal up to the quote that ends it.
fn quoted(text: &str, quote: char) -> Option<usize> {
    let mut is_escaped = false;
    let end = text.char_indices().skip(1).find(|&(_, c)| {
        let ends = c == quote && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
        ends
    });
    end.map(|(at, _)| at + 1)
}

#[test]
fn comments_and_literals_are_blanked() {
    for (text, expected) in [
        ("a // b\nc", "a     \nc"),
        ("a /* b\n */ c", "a     \n    c"),
        (r#"f("a\"b", 'x', '\'', b"y")"#, "f(0     , 0  , 0   , b0  )"),
        ("r#\"a\"b\"# + for_r\"c\"", "0        + for_r0  "),
        ("fn f<'a>(x: &'a str) {}", "fn f<'a>(x: &'a str) {}"),
        ("\"é\"; x", "0   ; x"),
    ] {
        assert_eq!(code(text), expected);
    }
}
