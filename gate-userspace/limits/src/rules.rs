//! The rules: a limit for each pattern, and the one that holds for a name.
//!
//! The most specific pattern wins: entry by entry from the left, a value of its own comes before one that a `*` ends, and the longest
//! beginning first. The look-up walks a tree of keys and values. At each of at most [`Name::MAX_ENTRIES`] entries it takes one branch more than
//! there are beginnings of the value, however many rules there are.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::calendar::Calendar;
use super::name::{Fit, Name, spelling};
use super::pattern::Pattern;
use super::quota::Limits;
use foldhash::quality::RandomState;

/// A pattern and the limits of each name that it fits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The names.
    pub pattern: Pattern,
    /// The bucket of each, in thousandths of a request unit.
    pub limits: Limits,
    /// True if it refuses nothing: what it would refuse is counted.
    pub is_shadow: bool,
    /// The windows in which each name counts; `None` for a bucket that fills evenly.
    pub calendar: Option<Arc<Calendar>>,
}

impl Rule {
    /// A rule that refuses.
    #[must_use]
    pub const fn new(pattern: Pattern, limits: Limits) -> Self {
        Self { pattern, limits, is_shadow: false, calendar: None }
    }
}

/// A set of rules with distinct patterns.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    list: Vec<Rule>,
    domains: HashMap<Box<str>, Node, RandomState>,
    /// By domain, the labels of its rules.
    labels: HashMap<Box<str>, Vec<Box<str>>, RandomState>,
}

/// A rule's pattern is that of an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The place of the earlier one.
    pub by: usize,
}

/// The place in the tree after some entries.
#[derive(Clone, Debug, Default)]
struct Node {
    /// The rule whose pattern ends here.
    rule: Option<usize>,
    /// By the next entry's key.
    keys: HashMap<Box<str>, Values, RandomState>,
}

/// The places after an entry's key.
#[derive(Clone, Debug, Default)]
struct Values {
    exact: HashMap<Box<str>, Node, RandomState>,
    /// By the length of the beginning, the longest first.
    beginnings: BTreeMap<Reverse<usize>, HashMap<Box<str>, Node, RandomState>>,
}

impl Rules {
    /// Adds a rule.
    ///
    /// # Errors
    ///
    /// [`Taken`] if a rule has this pattern; then nothing is changed.
    pub fn add(&mut self, rule: Rule) -> Result<(), Taken> {
        let (domain, entries) = rule.pattern.parts();
        let mut node = self.domains.entry(domain.into()).or_default();
        for (key, value) in entries {
            let values = node.keys.entry(key.into()).or_default();
            node = match value {
                Fit::Exact(value) => values.exact.entry(value.into()).or_default(),
                Fit::Beginning(value) => {
                    let of_this_length = values.beginnings.entry(Reverse(value.len())).or_default();
                    of_this_length.entry(value.into()).or_default()
                }
            };
        }
        if let Some(by) = node.rule {
            return Err(Taken { by });
        }
        node.rule = Some(self.list.len());
        if let Some(label) = rule.pattern.label() {
            let labels = self.labels.entry(domain.into()).or_default();
            if !labels.iter().any(|known| &**known == label) {
                labels.push(label.into());
            }
        }
        self.list.push(rule);
        Ok(())
    }

    /// The rule that holds for a name; `None` if none fits.
    #[must_use]
    pub fn find(&self, name: &Name) -> Option<&Rule> {
        let (domain, entries) = name.parts();
        let place = find(self.domains.get(domain)?, entries)?;
        self.list.get(place)
    }

    /// The labels of the rules of a pattern's domain.
    #[must_use]
    pub fn labels_like(&self, pattern: &Pattern) -> &[Box<str>] {
        self.labels.get(pattern.parts().0).map_or(&[], Vec::as_slice)
    }

    /// The labels of the rules of a domain, which is not encoded.
    #[must_use]
    pub fn labels(&self, domain: &str) -> &[Box<str>] {
        if self.labels.is_empty() {
            return &[];
        }
        self.labels.get(&*spelling(domain)).map_or(&[], Vec::as_slice)
    }

    /// The rule that holds for a name of these parts and this label, however long they are; `None` if none fits. No part is encoded.
    #[must_use]
    pub fn find_by_parts<'e>(
        &self,
        domain: &str,
        entries: impl Iterator<Item = (&'e str, &'e str)>,
        label: Option<&str>,
    ) -> Option<&Rule> {
        let label = label.map(|label| (String::new(), label.to_owned()));
        let entries: Vec<_> =
            entries.map(|(key, value)| (spelling(key), spelling(value))).chain(label).collect();
        let node = self.domains.get(&*spelling(domain))?;
        let place = find(node, entries.iter().map(|(key, value)| (key.as_str(), value.as_str())))?;
        self.list.get(place)
    }

    /// All of them, in the order in which they were added.
    #[must_use]
    pub fn list(&self) -> &[Rule] {
        &self.list
    }

    /// The same rules with other limits.
    #[must_use]
    pub fn with_limits(mut self, of: impl Fn(&Rule) -> Limits) -> Self {
        for rule in &mut self.list {
            rule.limits = of(rule);
        }
        self
    }
}

impl PartialEq for Rules {
    fn eq(&self, other: &Self) -> bool {
        self.list == other.list
    }
}

impl Eq for Rules {}

fn find<'n>(node: &Node, mut rest: impl Iterator<Item = (&'n str, &'n str)> + Clone) -> Option<usize> {
    let Some((key, value)) = rest.next() else { return node.rule };
    let values = node.keys.get(key)?;
    let exact = values.exact.get(value).and_then(|node| find(node, rest.clone()));
    exact.or_else(|| {
        values.beginnings.iter().find_map(|(Reverse(len), of_this_length)| {
            // A spelling is ASCII, so any length of it is whole characters.
            find(of_this_length.get(value.get(..*len)?)?, rest.clone())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rules(patterns: &[&str]) -> Rules {
        let mut rules = Rules::default();
        for (place, pattern) in patterns.iter().enumerate() {
            let limits = Limits::new(place as u64 + 1, 1);
            rules.add(Rule::new(Pattern::parse(pattern).unwrap(), limits)).unwrap();
        }
        rules
    }

    fn found<'r>(rules: &'r Rules, name: &str) -> Option<&'r str> {
        rules.find(&Name::parse(name).unwrap()).map(|rule| rule.pattern.as_str())
    }

    #[test]
    fn the_most_specific_pattern_wins_from_the_left() {
        let rules = rules(&[
            "acme",
            "shop/user=*",
            "shop/user=alice",
            "shop/user=*/path=%2Fx",
            "shop/user=alice/path=*",
            "shop/user=bob/path=%2Fy",
            "shop/user=%2A",
            "shop/path=%2Fapi%2F*",
            "shop/path=%2Fapi%2F",
            "shop/path=%2Fapi%2Fv2*",
            "shop/path=%2Fapi%2Fv2%2F*/user=bob",
            "shop/path=*",
        ]);
        for (name, pattern) in [
            ("acme", Some("acme")),
            ("acme/user=alice", None),
            ("shop", None),
            ("shop/user=alice", Some("shop/user=alice")),
            ("shop/user=carol", Some("shop/user=*")),
            ("shop/user=", Some("shop/user=*")),
            ("shop/user=%2A", Some("shop/user=%2A")),
            ("shop/name=carol", None),
            ("other/user=carol", None),
            // The left entry decides, though the right one is exact in the other.
            ("shop/user=alice/path=%2Fx", Some("shop/user=alice/path=*")),
            // The exact branch leads nowhere: back to the star.
            ("shop/user=bob/path=%2Fx", Some("shop/user=*/path=%2Fx")),
            ("shop/user=bob/path=%2Fy", Some("shop/user=bob/path=%2Fy")),
            ("shop/user=bob/path=%2Fz", None),
            ("shop/path=%2Fx/user=alice", None),
            ("shop/path=%2Fapi%2F", Some("shop/path=%2Fapi%2F")),
            ("shop/path=%2Fapi%2Fv1", Some("shop/path=%2Fapi%2F*")),
            ("shop/path=%2Fapi%2Fv2%2Fx", Some("shop/path=%2Fapi%2Fv2*")),
            ("shop/path=%2Fapi%2Fv2%2Fx/user=bob", Some("shop/path=%2Fapi%2Fv2%2F*/user=bob")),
            ("shop/path=%2Fapi", Some("shop/path=*")),
            ("shop/path=", Some("shop/path=*")),
            ("shop/user=alice/path=%2Fx/more=1", None),
        ] {
            assert_eq!(found(&rules, name), pattern, "{name}");
        }
    }

    #[test]
    fn a_pattern_is_taken_once() {
        let mut rules = rules(&["acme", "shop/user=*"]);
        let again = Rule::new(Pattern::parse("sh%6Fp/user=*").unwrap(), Limits::UNLIMITED);
        assert_eq!(rules.add(again), Err(Taken { by: 1 }));
        assert_eq!(rules.list().len(), 2);
    }

    /// Compares all patterns with the name, which the tree does not.
    fn by_scan<'r>(rules: &'r Rules, name: &Name) -> Option<&'r str> {
        let (domain, entries) = name.parts();
        let entries: Vec<_> = entries.collect();
        let fitting = rules.list().iter().filter_map(|rule| {
            let (its_domain, its_entries) = rule.pattern.parts();
            let its_entries: Vec<_> = its_entries.collect();
            let fits = its_domain == domain
                && its_entries.len() == entries.len()
                && its_entries.iter().zip(&entries).all(|((its_key, fit), (key, value))| {
                    let fits_value = match fit {
                        Fit::Exact(its_value) => its_value == value,
                        Fit::Beginning(beginning) => value.starts_with(beginning),
                    };
                    its_key == key && fits_value
                });
            let order: Vec<(bool, Reverse<usize>)> = its_entries
                .iter()
                .map(|(_, fit)| match fit {
                    Fit::Exact(_) => (false, Reverse(0)),
                    Fit::Beginning(beginning) => (true, Reverse(beginning.len())),
                })
                .collect();
            fits.then_some((order, rule.pattern.as_str()))
        });
        fitting.min().map(|(_, pattern)| pattern)
    }

    proptest! {
        #[test]
        fn the_tree_finds_what_a_scan_finds(
            patterns in proptest::collection::btree_set("[de](/[kl]=([ab]{0,2}|[ab]{0,2}\\*)){0,4}", 0..40),
            names in proptest::collection::vec("[de](/[kl]=[abc]{0,3}){0,4}", 1..20),
        ) {
            let rules = rules(&patterns.iter().map(String::as_str).collect::<Vec<_>>());
            for name in names {
                let name = Name::parse(&name).unwrap();
                let found = rules.find(&name).map(|rule| rule.pattern.as_str());
                prop_assert_eq!(found, by_scan(&rules, &name));
                let (domain, entries) = name.parts();
                let by_parts = rules.find_by_parts(domain, entries, None).map(|rule| rule.pattern.as_str());
                prop_assert_eq!(found, by_parts);
            }
        }
    }
}
