//! Routes: which requests are of which query type, by method and path.
//!
//! A pattern is a path, with a method before it or none: `GET /api/v1/query*`, `/push`, `/label/{name}/values`. `{name}`
//! stands for one segment, `*` at the end for anything that follows. A pattern for `GET` is for `HEAD` as well. If several
//! match, the one with the most literal characters wins; among those, one without `*`, then one with a method, then the
//! one that was written first.

use std::cmp::Reverse;
use std::fmt;
use std::str::FromStr;

/// The requests that a route is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pattern {
    method: Option<String>,
    segments: Vec<Segment>,
    /// True if anything may follow.
    is_open: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Segment {
    Literal(String),
    Any,
}

/// The fault in a pattern, and what would be right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrongPattern(&'static str);

impl fmt::Display for WrongPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl FromStr for Pattern {
    type Err = WrongPattern;

    fn from_str(text: &str) -> Result<Self, WrongPattern> {
        let (method, path) = match text.split_once(' ') {
            Some((method, path)) => (Some(method), path.trim_start()),
            None => (None, text),
        };
        let is_method = |method: &str| !method.is_empty() && method.bytes().all(|b| b.is_ascii_uppercase());
        if !method.is_none_or(is_method) {
            return Err(WrongPattern("a method is in capital letters, e.g. \"GET /api/v1/query*\""));
        }
        let Some(path) = path.strip_prefix('/') else {
            return Err(WrongPattern(
                "must be a path that begins with /, behind a method or not, e.g. \"POST /push\"",
            ));
        };
        let (path, is_open) = path.strip_suffix('*').map_or((path, false), |path| (path, true));
        if path.contains('*') {
            return Err(WrongPattern("may have * at its end only; {name} stands for one segment"));
        }
        if path.contains(['%', '?', '#', ' ']) {
            return Err(WrongPattern("is compared with decoded paths without query: write it so"));
        }
        let segments = path.split('/').map(segment).collect::<Result<Vec<_>, _>>()?;
        if is_open && segments.last() == Some(&Segment::Any) {
            return Err(WrongPattern("has * behind {name}: leave one of them out"));
        }
        let inner = &segments[..segments.len() - 1];
        if inner.iter().any(|segment| matches!(segment, Segment::Literal(text) if text.is_empty())) {
            return Err(WrongPattern("has two slashes in a row, which no path has here"));
        }
        Ok(Self { method: method.map(str::to_owned), segments, is_open })
    }
}

fn segment(text: &str) -> Result<Segment, WrongPattern> {
    match text.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) {
        Some(_) => Ok(Segment::Any),
        None if text.contains(['{', '}']) => {
            Err(WrongPattern("has a brace in a segment; {name} is a whole one"))
        }
        None if text == "." || text == ".." => Err(WrongPattern("has a dot segment, which no path has here")),
        None => Ok(Segment::Literal(text.to_owned())),
    }
}

impl Pattern {
    /// True if it is for a request; `path` is [normalised](super::path::normalised).
    #[must_use]
    pub fn matches(&self, method: &str, path: &str) -> bool {
        let asked = if method == "HEAD" { "GET" } else { method };
        if self.method.as_deref().is_some_and(|own| own != asked && own != method) {
            return false;
        }
        let mut rest = path.strip_prefix('/').unwrap_or(path);
        let last = self.segments.len() - 1;
        for (seq, segment) in self.segments.iter().enumerate() {
            let (own, behind) = match rest.split_once('/') {
                Some((own, behind)) => (own, Some(behind)),
                None => (rest, None),
            };
            let fits = match segment {
                Segment::Literal(text) if seq == last && self.is_open => {
                    return rest.starts_with(text.as_str());
                }
                Segment::Literal(text) => own == text,
                Segment::Any => !own.is_empty(),
            };
            if !fits || behind.is_some() != (seq < last) {
                return false;
            }
            rest = behind.unwrap_or_default();
        }
        true
    }

    /// Its place among patterns that match: the lower, the more specific.
    fn order(&self) -> (Reverse<usize>, bool, bool) {
        let literal = |segment: &Segment| match segment {
            Segment::Literal(text) => text.len() + 1,
            Segment::Any => 1,
        };
        let literals = self.segments.iter().map(literal).sum();
        (Reverse(literals), self.is_open, self.method.is_none())
    }
}

/// Patterns, each with the place of its query type, the most specific first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routes(Vec<(Pattern, usize)>);

impl Routes {
    /// Those of these patterns.
    #[must_use]
    pub fn new(patterns: impl IntoIterator<Item = (Pattern, usize)>) -> Self {
        let mut routes: Vec<_> = patterns.into_iter().collect();
        routes.sort_by_key(|(pattern, _)| pattern.order());
        Self(routes)
    }

    /// The place of the query type of a request; `path` is [normalised](super::path::normalised).
    #[must_use]
    pub fn find(&self, method: &str, path: &str) -> Option<usize> {
        self.0.iter().find(|(pattern, _)| pattern.matches(method, path)).map(|(_, place)| *place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_specific_pattern_wins() {
        let written = [
            "/*",
            "GET /api/v1/query*",
            "/api/v1/query",
            "GET /api/v1/query",
            "POST /push",
            "/label/{name}/values",
            "/label/{name}/*",
            "/label/*",
            "/label/job/values",
            "DELETE /",
        ];
        let patterns = written.map(|text| text.parse().unwrap());
        let routes = Routes::new(patterns.into_iter().zip(0..));
        for (method, path, expected) in [
            ("GET", "/api/v1/query", "GET /api/v1/query"),
            ("HEAD", "/api/v1/query", "GET /api/v1/query"),
            ("POST", "/api/v1/query", "/api/v1/query"),
            ("GET", "/api/v1/query_range", "GET /api/v1/query*"),
            ("GET", "/api/v1/query/x/y", "GET /api/v1/query*"),
            ("POST", "/api/v1/query_range", "/*"),
            ("POST", "/push", "POST /push"),
            ("POST", "/push/", "/*"),
            ("POST", "/pushy", "/*"),
            ("GET", "/label/a/values", "/label/{name}/values"),
            ("GET", "/label/job/values", "/label/job/values"),
            ("GET", "/label/a/other", "/label/{name}/*"),
            ("GET", "/label//values", "/label/*"),
            ("GET", "/label/", "/label/*"),
            ("GET", "/label", "/*"),
            ("DELETE", "/", "DELETE /"),
            ("GET", "/", "/*"),
        ] {
            let found = routes.find(method, path).map(|place| written[place]);
            assert_eq!(found, Some(expected), "{method} {path}");
        }
        let few = Routes::new([("POST /push".parse().unwrap(), 0)]);
        assert_eq!(few.find("GET", "/push"), None);
    }

    #[test]
    fn wrong_patterns_say_what_would_be_right() {
        for (text, needle) in [
            ("", "begins with /"),
            ("api", "begins with /"),
            ("get /", "capital letters"),
            (" /", "capital letters"),
            ("/a*b", "at its end only"),
            ("/a/{b", "a whole one"),
            ("/a/x{b}", "a whole one"),
            ("/a/{b}*", "leave one of them out"),
            ("/a//b", "two slashes"),
            ("/a/../b", "dot segment"),
            ("/a%20b", "decoded"),
            ("/a?b", "without query"),
        ] {
            let wrong = text.parse::<Pattern>().unwrap_err().to_string();
            assert!(wrong.contains(needle), "{text:?}: {wrong}");
        }
    }
}
