//! Files and functions have a length that a reader can hold. What is longer is listed here.

use std::fs;

use super::source::{sources, workspace};

/// The crates that gate consists of, with the most lines of a file and of a function.
const CODE: (&[&str], usize, usize) =
    (&["gate-common/src", "gate-ebpf/src", "gate-userspace", "xtask/src"], 450, 80);

/// Tests, with the same.
const TESTS: (&[&str], usize, usize) = (&["tests/benches", "tests/suites", "tests/support"], 600, 80);

/// Longer files and functions, each with its lines. Tables of rows.
const LONGER: [(&str, &str, usize); 7] = [
    ("gate-userspace/config/src/tests/broken/service.rs", "", 600),
    ("gate-userspace/config/src/tests/broken/tenant.rs", "", 500),
    ("gate-userspace/protocol/src/resp/tests/requests.rs", "", 500),
    ("tests/suites/fixtures/headers.rs", "v6", 100),
    ("tests/suites/proxy/own_keys.rs", "no_request_of_memcached_touches_a_key_of_another", 85),
    ("tests/suites/proxy/own_keys.rs", "no_request_of_redis_touches_a_key_of_another", 95),
    ("xtask/src/isolation/memcached.rs", "behaviours", 100),
];

#[test]
fn files_and_functions_are_short() {
    let mut found = Vec::new();
    for (rooms, most_of_file, most_of_function) in [CODE, TESTS] {
        for file in rooms.iter().flat_map(|room| sources(&workspace().join(room))) {
            let text = fs::read_to_string(&file).unwrap();
            let path = file.strip_prefix(workspace()).unwrap().display().to_string();
            let functions = functions(&text).map(|(name, lines)| (name, lines, most_of_function));
            let lengths = std::iter::once(("", text.lines().count(), most_of_file)).chain(functions);
            found.extend(lengths.filter(|&(name, lines, most)| lines > most_for(&path, name, most)).map(
                |(name, lines, most)| {
                    format!("{path} {name}: {lines} lines, more than {most}: cut it by concept")
                },
            ));
        }
    }
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn every_longer_item_is_there_and_longer() {
    for (path, name, _) in LONGER {
        let text = fs::read_to_string(workspace().join(path)).unwrap();
        let is_test = path.starts_with("tests/");
        let (_, of_file, of_function) = if is_test { TESTS } else { CODE };
        let is_longer = if name.is_empty() {
            text.lines().count() > of_file
        } else {
            functions(&text).any(|(other, lines)| other == name && lines > of_function)
        };
        assert!(is_longer, "{path} {name} is short: take it out of LONGER");
    }
}

#[test]
fn functions_end_at_the_brace_below_their_beginning() {
    let text = "fn one() {\n    1\n}\nimpl A {\n    pub(crate) async fn two<T>(\n        a: T,\n    ) -> bool {\n        \
                x\n    }\n    fn none(&self);\n    fn far(\n        a: A,\n    ) -> bool;\n    fn short() {}\n}\n";
    let found: Vec<_> = functions(text).collect();
    assert_eq!(found, [("one", 3), ("two", 5), ("none", 1), ("far", 3), ("short", 1)]);
}

/// The most lines of a file, or of a function in it.
fn most_for(path: &str, name: &str, most: usize) -> usize {
    LONGER.iter().find(|longer| (longer.0, longer.1) == (path, name)).map_or(most, |longer| longer.2)
}

/// The functions in `text`, each with its lines.
fn functions(text: &str) -> impl Iterator<Item = (&str, usize)> {
    let lines: Vec<_> = text.lines().collect();
    (0..lines.len()).filter_map(move |first| {
        let line = lines[first];
        let code = line.trim_start();
        let indent = &line[..line.len() - code.len()];
        let (before, rest) = code.split_once("fn ")?;
        let is_item = before.split_whitespace().all(|word| {
            word.starts_with("pub") || ["const", "async", "unsafe", "extern", "\"C\""].contains(&word)
        });
        let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().filter(|_| is_item)?;
        let ends_here = code.ends_with(['}', ';']);
        let ends = |line: &&str| {
            let line = line.strip_prefix(indent).unwrap_or_default();
            line == "}" || line.starts_with(')') && line.ends_with(';')
        };
        let more = if ends_here { 0 } else { lines[first + 1..].iter().position(ends)? + 1 };
        Some((name, more + 1))
    })
}
