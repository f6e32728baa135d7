//! The suites of `tests/suites` by name: a suite is a directory with a `main.rs`, and consists of modules.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};

use crate::sh;

/// The suite that reads the source alone, for which nothing has to be built: a package without dependencies.
const REPOSITORY: &str = "repository";

/// The packages that test commands select, whatever they run of them: cargo compiles a dependency anew for each set of features,
/// and which are asked for depends on the packages.
pub(super) const PACKAGES: [&str; 3] = ["--workspace", "--exclude", "gate-ebpf"];

/// A suite, or one module of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Selection {
    suite: String,
    module: Option<String>,
}

impl Selection {
    /// True if its tests run gate.
    pub(super) fn needs_gate(&self) -> bool {
        self.suite != REPOSITORY
    }

    /// Its suite.
    pub(super) fn suite(&self) -> &str {
        &self.suite
    }

    /// True if the test at `path` in its suite is one of it.
    pub(super) fn contains(&self, test: &str) -> bool {
        self.module.as_ref().is_none_or(|module| {
            test.strip_prefix(module.as_str()).is_some_and(|rest| rest.starts_with("::"))
        })
    }
}

/// The suites of `selected`, each once.
pub(super) fn names(selected: &[Selection]) -> Vec<&str> {
    let names: BTreeSet<&str> = selected.iter().map(Selection::suite).collect();
    names.into_iter().collect()
}

/// The suites' executables, by name.
pub(crate) type Executables = Vec<(String, PathBuf)>;

/// Builds suites, with cargo's own messages on standard error.
///
/// # Errors
///
/// If one does not build.
pub(crate) fn build(names: &[&str]) -> Result<Executables> {
    let mut cargo = sh::cargo();
    cargo.arg("test").args(PACKAGES).args(["--no-run", "--message-format=json-render-diagnostics"]);
    for name in names {
        cargo.args(["--test", name]);
    }
    let output = cargo.stdin(Stdio::null()).stderr(Stdio::inherit()).output().context("cannot run cargo")?;
    ensure!(output.status.success(), "the test suites do not build");
    let built: Executables = String::from_utf8_lossy(&output.stdout).lines().filter_map(executable).collect();
    for name in names {
        ensure!(built.iter().any(|(built, _)| built == name), "cargo does not say where the suite {name} is");
    }
    Ok(built)
}

/// The executable in a line of cargo's messages: its name and where it is.
fn executable(line: &str) -> Option<(String, PathBuf)> {
    let message: serde_json::Value = serde_json::from_str(line).ok()?;
    let file = message["executable"].as_str()?;
    Some((message["target"]["name"].as_str()?.to_owned(), file.into()))
}

/// All suites below `directory`.
///
/// # Errors
///
/// If the directory cannot be read.
pub(super) fn all(directory: &Path) -> Result<Vec<Selection>> {
    let suites =
        entries(directory)?.into_iter().filter(|suite| directory.join(suite).join("main.rs").is_file());
    Ok(suites.map(|suite| Selection { suite, module: None }).collect())
}

/// The selection that `name` stands for below `directory`: a suite, or a module of any suite, as `hot` or `proxy_hot`.
///
/// # Errors
///
/// If nothing has that name; the error lists the suites and their modules.
pub(super) fn select(directory: &Path, name: &str) -> Result<Vec<Selection>> {
    let mut known = String::new();
    let mut found = Vec::new();
    for suite in entries(directory)? {
        let inside = directory.join(&suite);
        if !inside.join("main.rs").is_file() {
            continue;
        }
        if suite == name {
            return Ok(vec![Selection { suite, module: None }]);
        }
        let modules: Vec<_> =
            entries(&inside)?.into_iter().filter(|module| is_module(&inside, module)).collect();
        known += &format!("\n  {suite}: {}", modules.join(", "));
        let named =
            modules.into_iter().filter(|module| module == name || format!("{suite}_{module}") == name);
        found.extend(named.map(|module| Selection { suite: suite.clone(), module: Some(module) }));
    }
    ensure!(!found.is_empty(), "no suite or module of a suite is called {name}; there are{known}");
    Ok(found)
}

fn is_module(suite: &Path, name: &str) -> bool {
    name != "main"
        && (suite.join(name).with_extension("rs").is_file() || suite.join(name).join("mod.rs").is_file())
}

/// The names of what is in a directory, in order, without extensions.
fn entries(directory: &Path) -> Result<BTreeSet<String>> {
    let entries = fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    let names =
        entries.map(|entry| Ok(entry?.path().file_stem().unwrap_or_default().to_string_lossy().into_owned()));
    names.collect()
}

#[cfg(test)]
mod tests {
    use super::{Selection, executable, select};
    use crate::paths;

    fn selected(name: &str) -> Vec<(String, Option<String>)> {
        let found = select(&paths::workspace().join("tests/suites"), name).unwrap();
        found.into_iter().map(|selection| (selection.suite, selection.module)).collect()
    }

    fn module(suite: &str, module: &str) -> (String, Option<String>) {
        (suite.to_owned(), Some(module.to_owned()))
    }

    #[test]
    fn a_suite_is_found_by_its_name_and_modules_by_theirs() {
        assert_eq!(selected("proxy"), [("proxy".to_owned(), None)]);
        assert_eq!(selected("hot"), [module("proxy", "hot")]);
        assert_eq!(selected("proxy_hot"), [module("proxy", "hot")]);
        assert_eq!(selected("isolation"), [module("proxy", "isolation")]);
        let several = [module("fixtures", "memcached"), module("interface", "memcached")];
        assert!(several.iter().all(|one| selected("memcached").contains(one)));
    }

    #[test]
    fn an_unknown_name_is_an_error_that_lists_the_known() {
        let error = select(&paths::workspace().join("tests/suites"), "nothing").unwrap_err().to_string();
        assert!(
            error.contains("called nothing") && error.contains("proxy: ") && error.contains("hot"),
            "{error}"
        );
    }

    #[test]
    fn a_module_contains_its_own_tests_alone() {
        let hot = Selection { suite: "proxy".to_owned(), module: Some("hot".to_owned()) };
        assert!(hot.contains("hot::a") && hot.contains("hot::meta::b"));
        assert!(!hot.contains("hotter::a") && !hot.contains("faults::hot::a"));
        let all = Selection { module: None, ..hot };
        assert!(all.contains("hotter::a"));
    }

    #[test]
    fn cargo_says_where_a_suite_is() {
        let line =
            r#"{"reason":"compiler-artifact","target":{"name":"fixtures"},"executable":"/t/fixtures-1"}"#;
        assert_eq!(executable(line), Some(("fixtures".into(), "/t/fixtures-1".into())));
        assert_eq!(executable(r#"{"reason":"compiler-artifact","executable":null}"#), None);
        assert_eq!(executable("no message"), None);
    }
}
