//! The documents agree with the tree: every file and directory that they name exists.

use std::fs;
use std::path::{Path, PathBuf};

use super::source::workspace;

/// The documents: README.md, those below docs, and that of the fuzz targets, each relative to the workspace.
fn documents() -> Vec<PathBuf> {
    let mut found = vec!["README.md".into(), "tests/fuzz/README.md".into()];
    let mut directories = vec![PathBuf::from("docs")];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(workspace().join(&directory)).unwrap() {
            let path = directory.join(entry.unwrap().file_name());
            if workspace().join(&path).is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// The most words in the README: so many are read in some minutes.
const README_WORDS: usize = 1_200;

/// The top of the workspace: what begins with one of these is a path.
const TOP: [&str; 6] = ["gate-common", "gate-ebpf", "gate-userspace", "tests", "xtask", "docs"];

fn architecture() -> String {
    fs::read_to_string(workspace().join("docs/ARCHITECTURE.md")).unwrap()
}

#[test]
fn every_path_in_the_architecture_and_the_recipes_exists() {
    let described = ["docs/ARCHITECTURE.md", "docs/CONTRIBUTING.md", "docs/decisions"];
    for document in documents().iter().filter(|path| described.iter().any(|about| path.starts_with(about))) {
        let text = fs::read_to_string(workspace().join(document)).unwrap();
        let missing: Vec<_> = paths(&text).filter(|path| !workspace().join(path).exists()).collect();
        assert!(missing.is_empty(), "{} names {missing:?}", document.display());
    }
}

#[test]
fn the_code_map_has_a_row_for_every_room() {
    let text = architecture();
    let rows: Vec<_> =
        section(&text, "## Code map").lines().filter_map(|line| line.strip_prefix("| `")).collect();
    for directory in ["gate-userspace/src", "gate-userspace/src/dispatcher", "gate-userspace/lab/src"] {
        for entry in fs::read_dir(workspace().join(directory)).unwrap() {
            let path = entry.unwrap().path();
            let room = path.strip_prefix(workspace()).unwrap().display().to_string();
            let has_row = rows.iter().any(|row| {
                [format!("{room}`"), format!("{room}.rs`")].iter().any(|name| row.starts_with(name))
            });
            assert!(has_row || !path.is_dir(), "the code map has no row for {room}");
        }
    }
}

#[test]
fn every_step_of_the_walks_names_a_file() {
    let text = architecture();
    for walk in ["## The walk of a packet", "## The walk of a proxied request"] {
        let steps: Vec<_> =
            section(&text, walk).split("\n\n").filter(|list| list.starts_with("1. ")).collect();
        let [steps] = steps[..] else { panic!("{walk} has one numbered list") };
        let steps: Vec<_> = steps.lines().collect();
        let count = steps.iter().filter(|line| line.starts_with(|c: char| c.is_ascii_digit())).count();
        assert!(count >= 8, "{walk} has {count} steps");
        for line in steps.iter().filter(|line| line.starts_with(|c: char| c.is_ascii_digit())) {
            let file = paths(line).next().map(|path| workspace().join(path));
            assert!(file.is_some_and(|file| file.is_file()), "{walk}: no file in {line:?}");
        }
    }
}

#[test]
fn links_between_documents_lead_somewhere() {
    for document in documents() {
        let file = workspace().join(&document);
        let text = fs::read_to_string(&file).unwrap();
        for target in links(&text) {
            let target = target.split('#').next().unwrap_or_default();
            let is_here = target.is_empty() || target.contains("://");
            let exists = is_here || file.parent().unwrap().join(target).exists();
            assert!(exists, "{} links to {target}", document.display());
        }
    }
}

#[test]
fn every_alert_names_a_section_of_the_operations() {
    let read = |name: &str| fs::read_to_string(workspace().join("docs").join(name)).unwrap();
    let operations = read("OPERATIONS.md");
    let headings = operations.lines().filter(|line| line.starts_with("##"));
    let anchors: Vec<_> = headings.map(|heading| anchor(heading.trim_start_matches(['#', ' ']))).collect();
    let alerts = read("alerts.yml");
    let (_, rules) = alerts.split_once("- alert: ").unwrap();
    for rule in rules.split("- alert: ") {
        let runbook = rule.lines().find_map(|line| line.trim().strip_prefix("runbook: OPERATIONS.md#"));
        let name = rule.lines().next().unwrap();
        let named = runbook.unwrap_or_else(|| panic!("{name} names no section"));
        assert!(anchors.iter().any(|anchor| anchor == named), "{name}: no section {named}");
    }
}

#[test]
fn the_kernels_table_names_the_commit_it_was_measured_at() {
    let text = fs::read_to_string(workspace().join("docs/BENCHMARKS.md")).unwrap();
    let (_, after) = section(&text, "## Kernels")
        .split_once("`cargo xtask test --kernels` at ")
        .expect("`.ci/run` reads it");
    let commit = after.split(|c: char| !c.is_ascii_hexdigit()).next().unwrap();
    assert!((7..=40).contains(&commit.len()), "{commit:?} is no commit");
}

/// The part of a link that leads to a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || *c == ' ' || *c == '-');
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

#[test]
fn the_readme_is_read_in_minutes() {
    let readme = fs::read_to_string(workspace().join("README.md")).unwrap();
    let words = readme.split_whitespace().count();
    assert!(words <= README_WORDS, "README.md has {words} words: move what is no first look to docs");
}

/// A step of rolling out is watched by alerts that there are.
#[test]
fn alerts_that_documents_name_exist() {
    let read = |name: &str| fs::read_to_string(workspace().join("docs").join(name)).unwrap();
    let alerts = read("alerts.yml");
    for name in ["ROLLING-OUT.md", "PRODUCTION.md"] {
        let text = read(name);
        let words = text.split(|c: char| !c.is_ascii_alphanumeric());
        let is_alert = |word: &&str| word.starts_with("Gate") && word.len() > "Gate".len();
        let missing: Vec<_> =
            words.filter(is_alert).filter(|word| !alerts.contains(&format!("alert: {word}\n"))).collect();
        assert!(missing.is_empty(), "docs/{name} names {missing:?}");
    }
}

/// A link to a heading of another document, or of its own.
#[test]
fn links_to_headings_lead_to_one() {
    for document in documents() {
        let file = workspace().join(&document);
        let text = fs::read_to_string(&file).unwrap();
        for (target, heading) in links(&text).filter_map(|target| target.split_once('#')) {
            if target.contains("://") || !(target.is_empty() || target.ends_with(".md")) {
                continue;
            }
            let other = if target.is_empty() { file.clone() } else { file.parent().unwrap().join(target) };
            let other = fs::read_to_string(other).unwrap();
            let mut headings = other.lines().filter(|line| line.starts_with('#'));
            let is_there = headings.any(|line| anchor(line.trim_start_matches(['#', ' '])) == heading);
            assert!(is_there, "{} links to {target}#{heading}", document.display());
        }
    }
}

#[test]
fn the_readme_links_to_all_documents() {
    let readme = fs::read_to_string(workspace().join("README.md")).unwrap();
    let linked: Vec<PathBuf> = links(&readme).map(PathBuf::from).collect();
    for entry in fs::read_dir(workspace().join("docs")).unwrap() {
        let path = Path::new("docs").join(entry.unwrap().file_name());
        let is_document = path.extension().is_some_and(|extension| extension == "md");
        assert!(!is_document || linked.contains(&path), "README.md does not link to {}", path.display());
    }
}

#[test]
fn paths_are_distinguished_from_other_words() {
    let text =
        "`gate-common/src`, `gate`, gate-ebpf/src/x.rs: a word; `xtask`; ```\ntests/y\n``` `docs/a.md:3`";
    assert_eq!(paths(text).collect::<Vec<_>>(), ["gate-common/src", "xtask"]);
    assert_eq!(links("see [a](docs/a.md), [b](x.md#y)").collect::<Vec<_>>(), ["docs/a.md", "x.md#y"]);
    assert_eq!(section("# a\n## b\none\n## c\ntwo\n", "## b"), "\none\n");
}

/// Paths: words in backquotes that begin with a directory of the workspace; patterns are left out.
fn paths(text: &str) -> impl Iterator<Item = &str> {
    let outside = text.split("```").step_by(2);
    outside.flat_map(|prose| prose.split('`').skip(1).step_by(2)).filter(|quoted| {
        let top = quoted.split('/').next().unwrap_or_default();
        TOP.contains(&top) && !quoted.contains(['<', '*', ' ', ':'])
    })
}

/// The targets of a document's links.
fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| rest.split(')').next())
}

/// The text below a heading, up to the next of its level.
fn section<'t>(text: &'t str, heading: &str) -> &'t str {
    let start = text.find(heading).unwrap_or_else(|| panic!("no heading {heading}")) + heading.len();
    let rest = &text[start..];
    &rest[..rest.find("\n## ").map_or(rest.len(), |end| end + 1)]
}
