//! One binding a line: no `let` takes a tuple or an array apart that is written beside it, and no line has two.

use std::fs;

use super::source::{code, sources, workspace};

/// The crates, with everything in them.
const CRATES: [&str; 5] = ["gate-common", "gate-ebpf", "gate-userspace", "tests", "xtask"];

#[test]
fn each_line_has_one_binding() {
    let mut found = Vec::new();
    for file in CRATES.iter().flat_map(|of| sources(&workspace().join(of))) {
        let text = fs::read_to_string(&file).unwrap();
        let name = file.strip_prefix(workspace()).unwrap().display();
        found.extend(several(&code(&text)).map(|line| format!("{name}:{line}: bind each name on its own")));
    }
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn bindings_of_a_written_tuple_or_array_are_found() {
    for (code, lines) in [
        ("let (a, b) = (1, 2);", &[1][..]),
        ("let (a, mut b): (u8, Vec<u8>) =\n    (1, f(2));", &[1]),
        ("let [a, b] = [1, 2];", &[1]),
        ("let (Some(a), b) = (c, d);", &[1]),
        ("let a = 1; let b = 2;", &[1]),
        ("x();\nlet a = 1;\nlet b = 2;", &[]),
        ("let (a, b) = f((1, 2));", &[]),
        ("let [a, b] = [1, 2].map(f);", &[]),
        ("let (Some(a), true) = (b, c) else { return };", &[]),
        ("if let (Some(a), true) = (b, c) { d(); }", &[]),
        ("(a, b) = (b, a);", &[]),
        ("let a = (1, 2);", &[]),
    ] {
        assert_eq!(several(code).collect::<Vec<_>>(), lines, "{code}");
    }
}

/// The lines in which several names are bound to as many written values.
fn several(code: &str) -> impl Iterator<Item = usize> {
    let ends_statement = |before: &str| before.trim_end_matches([' ', '\t']).ends_with(';');
    code.match_indices("let ").filter_map(move |(at, _)| {
        let before = &code[..at];
        let rest = code[at + 4..].trim_start();
        let is_word = !before.ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let is_second = ends_statement(before) && before.ends_with(' ');
        (is_word && (is_second || unpacks(rest).unwrap_or(false))).then(|| before.matches('\n').count() + 1)
    })
}

/// True if a pattern in brackets is bound to a value in brackets, and the statement ends behind that.
fn unpacks(code: &str) -> Option<bool> {
    let code = code[bracketed(code)?..].trim_start();
    let code = match code.strip_prefix(':') {
        Some(typed) => typed.trim_start().get(bracketed(typed.trim_start())?..)?.trim_start(),
        None => code,
    };
    let value = code.strip_prefix('=')?.trim_start();
    Some(value[bracketed(value)?..].trim_start().starts_with(';'))
}

/// The length of the brackets that `code` begins with.
fn bracketed(code: &str) -> Option<usize> {
    if !code.starts_with(['(', '[']) {
        return None;
    }
    let mut depth = 0;
    let end = code.bytes().position(|byte| {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth -= 1,
            _ => {}
        }
        depth == 0
    });
    end.map(|end| end + 1)
}
