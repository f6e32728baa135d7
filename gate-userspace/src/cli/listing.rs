//! `--watch`, `--sort` and `--filter` of the commands that list something.

use std::process::ExitCode;

use clap::error::ErrorKind;

use super::redraw;
use super::table::{Column, Table, place_of};

/// The rows that are listed, their order, and how often.
#[derive(Debug, clap::Args)]
pub(super) struct Listing {
    /// Show it anew every second, until Ctrl-C: in place on a terminal, one after the other elsewhere.
    #[arg(long, conflicts_with = "json")]
    watch: bool,
    /// Sort by this column, words from A and numbers from the largest; the beginning of its name is enough.
    #[arg(long, value_name = "COLUMN", conflicts_with = "json")]
    sort: Option<String>,
    /// Show only rows with this text, whatever the case of letters.
    #[arg(long, value_name = "TEXT", conflicts_with = "json")]
    filter: Option<String>,
}

impl Listing {
    /// Ends the process as for any wrong usage if none of these tables has the column to sort by.
    pub(super) fn check(&self, tables: &[&[Column]]) {
        if let Some(said) = self.unknown_column(tables) {
            clap::Error::raw(ErrorKind::InvalidValue, format!("{said}\n")).exit();
        }
    }

    fn unknown_column(&self, tables: &[&[Column]]) -> Option<String> {
        let wanted = self.sort.as_ref()?;
        if tables.iter().any(|columns| place_of(columns, wanted).is_some()) {
            return None;
        }
        let mut names: Vec<&str> = Vec::new();
        for column in tables.concat() {
            // Tables may share some.
            if !names.contains(&column.name) {
                names.push(column.name);
            }
        }
        Some(format!("there is no one column {wanted:?} to sort by; there are {}", names.join(", ")))
    }

    /// The rows that are wanted, in the order that is wanted.
    pub(super) fn arrange(&self, mut table: Table) -> Table {
        self.filter.iter().for_each(|wanted| table.filter(wanted));
        self.sorted(table)
    }

    /// All rows, in the order that is wanted.
    pub(super) fn sorted(&self, mut table: Table) -> Table {
        self.sort.iter().for_each(|wanted| table.sort(wanted));
        table
    }

    /// True if this text is wanted.
    pub(super) fn wants(&self, text: &str) -> bool {
        let has = |wanted: &String| text.to_lowercase().contains(&wanted.to_lowercase());
        self.filter.as_ref().is_none_or(has)
    }

    /// Prints what `text` returns, once or every second.
    ///
    /// # Errors
    ///
    /// Those of `text`, while nothing has been printed.
    pub(super) fn show(&self, mut text: impl FnMut() -> anyhow::Result<String>) -> anyhow::Result<ExitCode> {
        if self.watch {
            redraw::every_second(text)?;
        } else {
            println!("{}", text()?);
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The text where a filter leaves nothing.
pub(super) const NOTHING_LEFT: &str = "nothing has that text";

#[cfg(test)]
mod tests {
    use super::super::table::{number, text};
    use super::*;

    #[test]
    fn an_unknown_column_names_those_that_there_are_once() {
        let listing = |sort: &str| Listing { watch: false, sort: Some(sort.to_owned()), filter: None };
        let tiers = [text("tier"), number("waiting")];
        let types = [text("type"), number("waiting"), number("burst left")];
        let unknown = |sort| listing(sort).unknown_column(&[&tiers, &types]);
        for known in ["tier", "waiting", "burst-left", "Burst"] {
            assert_eq!(unknown(known), None, "{known}");
        }
        assert_eq!(
            unknown("money").unwrap_or_default(),
            "there is no one column \"money\" to sort by; there are tier, waiting, type, burst left"
        );
    }
}
