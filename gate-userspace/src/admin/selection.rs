//! The tenants that a document lists, as a query has them: `filter=search&sort=refused-rate&limit=50`.

use std::fmt::Write as _;

use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, percent_encode};

/// The tenants that are wanted. Without any wish these are all, in the order of their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// The tenant with this name alone.
    pub tenant: Option<String>,
    /// Those that have this text in their name, their tier or a reason for which they were refused, whatever the case.
    pub filter: String,
    /// By what they are sorted.
    pub sort: Option<SortKey>,
    /// True for the other way round.
    pub is_reversed: bool,
    /// True if rates are wanted; a [`SortKey`] may want them as well.
    pub rates: bool,
    /// How many are left out before the first.
    pub offset: usize,
    /// How many are listed at most; nothing for all.
    pub limit: Option<usize>,
}

/// By what tenants are sorted: words from A, numbers from the largest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SortKey {
    /// Its name.
    Name,
    /// Its tier, `critical` first.
    Tier,
    /// Its quota, without one first.
    Quota,
    /// The part of its burst that is left.
    BurstLeft,
    /// Requests that passed since the start.
    Passed,
    /// TCP segments that passed since the start.
    Segments,
    /// Request units charged since the start.
    Charged,
    /// Requests refused since the start.
    Refused,
    /// The reason for which most were refused since the start.
    Reason,
    /// Those of which something was set by hand first.
    ByHand,
    /// Requests that pass each second.
    PassedRate,
    /// TCP segments that pass each second.
    SegmentsRate,
    /// Request units charged each second.
    ChargedRate,
    /// Requests refused each second.
    RefusedRate,
}

impl SortKey {
    /// All of them, by their names in a query.
    pub const ALL: [(&'static str, Self); 14] = [
        ("name", Self::Name),
        ("tier", Self::Tier),
        ("quota", Self::Quota),
        ("burst-left", Self::BurstLeft),
        ("passed", Self::Passed),
        ("segments", Self::Segments),
        ("charged", Self::Charged),
        ("refused", Self::Refused),
        ("reason", Self::Reason),
        ("by-hand", Self::ByHand),
        ("passed-rate", Self::PassedRate),
        ("segments-rate", Self::SegmentsRate),
        ("charged-rate", Self::ChargedRate),
        ("refused-rate", Self::RefusedRate),
    ];

    /// True if it is one of what happens each second.
    #[must_use]
    pub const fn is_rate(self) -> bool {
        matches!(self, Self::PassedRate | Self::SegmentsRate | Self::ChargedRate | Self::RefusedRate)
    }

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, key)| *key == self).map_or("", |(name, _)| name)
    }

    fn of(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(same, _)| *same == name).map(|(_, key)| *key)
    }
}

impl Selection {
    /// True if the document has rates.
    #[must_use]
    pub fn wants_rates(&self) -> bool {
        self.rates || self.sort.is_some_and(SortKey::is_rate)
    }

    /// The query of this selection.
    #[must_use]
    pub fn query(&self) -> String {
        let mut query = String::new();
        let mut add = |key: &str, value: &str| {
            let gap = if query.is_empty() { "" } else { "&" };
            // Writing to a string does not fail.
            let _ = write!(query, "{gap}{key}={}", percent_encode(value.as_bytes(), NON_ALPHANUMERIC));
        };
        self.tenant.iter().for_each(|tenant| add("tenant", tenant));
        if !self.filter.is_empty() {
            add("filter", &self.filter);
        }
        self.sort.iter().for_each(|sort| add("sort", sort.name()));
        for (key, is_wanted) in [("reverse", self.is_reversed), ("rates", self.rates)] {
            if is_wanted {
                add(key, "true");
            }
        }
        if self.offset > 0 {
            add("offset", &self.offset.to_string());
        }
        self.limit.iter().for_each(|limit| add("limit", &limit.to_string()));
        query
    }

    /// The selection of a query.
    ///
    /// # Errors
    ///
    /// The fault in the query, and what would be right.
    pub fn parse(query: &str) -> Result<Self, String> {
        let mut wanted = Self::default();
        let mut seen = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            if seen.contains(&key) {
                return Err(format!("{key} is given twice"));
            }
            seen.push(key);
            let value = percent_decode_str(value).decode_utf8();
            let value = value.map_err(|_| format!("{key} is not UTF-8"))?.into_owned();
            match key {
                "tenant" => wanted.tenant = Some(value),
                "filter" => wanted.filter = value,
                "sort" => wanted.sort = Some(SortKey::of(&value).ok_or_else(|| not_a_key(&value))?),
                "reverse" => wanted.is_reversed = flag(key, &value)?,
                "rates" => wanted.rates = flag(key, &value)?,
                "offset" => wanted.offset = count(key, &value)?,
                "limit" => wanted.limit = Some(count(key, &value)?),
                _ => {
                    return Err(format!(
                        "there is no parameter {:?}; {USAGE}",
                        key.escape_debug().to_string()
                    ));
                }
            }
        }
        Ok(wanted)
    }
}

fn not_a_key(given: &str) -> String {
    let names: Vec<_> = SortKey::ALL.iter().map(|(name, _)| *name).collect();
    format!("sort={}: must be one of {}", given.escape_debug(), names.join(", "))
}

fn flag(key: &str, value: &str) -> Result<bool, String> {
    match value {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(format!("{key}={}: must be true or false", value.escape_debug())),
    }
}

fn count(key: &str, value: &str) -> Result<usize, String> {
    value.parse().map_err(|_| format!("{key}={}: must be a number from 0 on", value.escape_debug()))
}

const USAGE: &str =
    "/v1/tenants?filter=TEXT&sort=refused&limit=50, and tenant=NAME, reverse=true, rates=true, offset=50";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selection_is_the_same_after_its_query() {
        let all = Selection {
            tenant: Some("a&b=c d".to_owned()),
            filter: "ä/%".to_owned(),
            sort: None,
            is_reversed: true,
            rates: true,
            offset: 7,
            limit: Some(0),
        };
        for (_, key) in SortKey::ALL {
            let wanted = Selection { sort: Some(key), ..all.clone() };
            assert_eq!(Selection::parse(&wanted.query()), Ok(wanted));
        }
        assert_eq!(Selection::default().query(), "");
        assert_eq!(Selection::parse(""), Ok(Selection::default()));
    }

    #[test]
    fn a_wrong_query_says_what_would_be_right() {
        for (wrong, said) in [
            ("sort=money", "sort=money: must be one of name, tier, quota,"),
            ("sort=refused&sort=name", "sort is given twice"),
            ("limit=-1", "limit=-1: must be a number from 0 on"),
            ("offset=", "offset=: must be a number from 0 on"),
            ("reverse=yes", "reverse=yes: must be true or false"),
            ("filter=%ff", "filter is not UTF-8"),
            ("money=1", "there is no parameter \"money\"; /v1/tenants?filter=TEXT"),
        ] {
            let error = Selection::parse(wrong).unwrap_err();
            assert!(error.contains(said), "{wrong}: {error}");
        }
    }
}
