//! Scrapes of `/metrics`.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};

/// One scrape.
#[derive(Clone, Debug, Default)]
pub struct Scrape {
    /// The type of each family, by its name.
    pub kinds: BTreeMap<String, String>,
    /// Each series with its value.
    pub series: BTreeMap<Series, f64>,
}

/// A series: its name and its labels.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Series {
    /// Its name.
    pub name: String,
    /// Names and values.
    pub labels: BTreeMap<String, String>,
}

impl Scrape {
    /// Reads Prometheus' text format, as far as gate uses it.
    ///
    /// # Errors
    ///
    /// The first fault: a series twice, without a type or help, or a value that is none.
    pub fn parse(text: &str) -> Result<Self> {
        let mut this = Self::default();
        let mut helped = None;
        for line in text.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                helped = help.split_once(' ').map(|(name, _)| name);
            } else if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (name, kind) = kind.split_once(' ').context("a type without a name")?;
                ensure!(helped == Some(name), "{name} has no help");
                let before = this.kinds.insert(name.to_owned(), kind.to_owned());
                ensure!(before.is_none(), "{name} comes twice");
            } else {
                let (series, value) = line.rsplit_once(' ').with_context(|| line.to_owned())?;
                let series = Series::parse(series).with_context(|| line.to_owned())?;
                ensure!(this.kind_of(&series.name).is_some(), "{line}: no type");
                let value: f64 = value.parse().with_context(|| line.to_owned())?;
                ensure!(this.series.insert(series, value).is_none(), "{line}: it comes twice");
            }
        }
        Ok(this)
    }

    /// The type of the family that a series of this name belongs to.
    #[must_use]
    pub fn kind_of(&self, name: &str) -> Option<&str> {
        let of_histogram = || {
            let family = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix))?;
            self.kinds.get(family).filter(|kind| *kind == "histogram")
        };
        self.kinds.get(name).or_else(of_histogram).map(String::as_str)
    }

    /// The sum of all series of a name whose labels are these and others.
    #[must_use]
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let all = self.series.iter().filter(|(series, _)| series.name == name && series.has(labels));
        all.map(|(_, value)| value).sum()
    }

    /// The first counter, or part of a histogram, that is less than before or gone.
    #[must_use]
    pub fn fallen_since(&self, before: &Self) -> Option<String> {
        before.series.iter().find_map(|(series, was)| {
            let falls = self.kind_of(&series.name) == Some("gauge");
            let is = self.series.get(series);
            (!falls && is.is_none_or(|is| is < was)).then(|| format!("{series:?}: {was}, now {is:?}"))
        })
    }
}

impl Series {
    fn parse(text: &str) -> Option<Self> {
        let Some((name, labels)) = text.split_once('{') else {
            return Some(Self { name: text.to_owned(), labels: BTreeMap::new() });
        };
        let labels = labels.strip_suffix('}')?.split(',').map(|label| {
            let (name, value) = label.split_once('=')?;
            Some((name.to_owned(), value.strip_prefix('"')?.strip_suffix('"')?.to_owned()))
        });
        Some(Self { name: name.to_owned(), labels: labels.collect::<Option<_>>()? })
    }

    fn has(&self, labels: &[(&str, &str)]) -> bool {
        labels.iter().all(|(name, value)| self.labels.get(*name).is_some_and(|has| has == value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_that_fall_and_texts_that_are_wrong_are_found() {
        let text = |a: u8, b: u8| {
            format!(
                "# HELP a_total A.\n# TYPE a_total counter\na_total{{x=\"1\",y=\"2\"}} {a}\na_total{{x=\"2\"}} 1\n\
                 # HELP b B.\n# TYPE b gauge\nb {b}\n"
            )
        };
        let [before, after, fallen] =
            [text(1, 9), text(2, 1), text(0, 9)].map(|t| Scrape::parse(&t).unwrap());
        assert_eq!((after.fallen_since(&before), after.sum("a_total", &[])), (None, 3.0));
        assert_eq!(after.sum("a_total", &[("x", "1")]), 2.0);
        assert!(fallen.fallen_since(&before).is_some());
        assert!(Scrape::default().fallen_since(&before).is_some());
        for wrong in ["a 1\n", "# TYPE a gauge\na 1\n", "# HELP a A.\n# TYPE a gauge\na 1\na 2\n"] {
            assert!(Scrape::parse(wrong).is_err(), "{wrong}");
        }
    }
}
