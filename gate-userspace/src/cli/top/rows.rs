//! The rows of `gate top`, and the widths of its columns.

use crate::cli::table::{Cell, Column};

/// One row.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    /// Distinct names of what it shows, by which it stays selected.
    pub(super) key: String,
    pub(super) cells: Vec<Cell>,
    /// True for what an operator should look at.
    pub(super) stands_out: bool,
}

impl AsRef<[Cell]> for Row {
    fn as_ref(&self) -> &[Cell] {
        &self.cells
    }
}

/// The widths of the columns that fit, from the left, with a space between two. The first column is always there and gives
/// way before a second is left out.
pub(super) fn widths(columns: &[Column], rows: &[Row], width: usize) -> Vec<usize> {
    let natural: Vec<usize> = columns
        .iter()
        .enumerate()
        .map(|(place, column)| {
            // And the mark of the order.
            let heading = column.name.chars().count() + 1;
            rows.iter().map(|row| row.cells[place].text.chars().count()).fold(heading, usize::max)
        })
        .collect();
    let first = natural[0].min(MAX_FIRST);
    let mut fits = vec![first.min(width)];
    let mut left = width.saturating_sub(first.min(width.min(MIN_FIRST)));
    for wide in &natural[1..] {
        let Some(rest) = left.checked_sub(wide + 1) else { break };
        left = rest;
        fits.push(*wide);
    }
    let others: usize = fits[1..].iter().map(|wide| wide + 1).sum();
    fits[0] = first.min(width.saturating_sub(others));
    fits
}

/// The least that is left of the first column for the sake of others.
const MIN_FIRST: usize = 10;
/// Longer names are cut.
const MAX_FIRST: usize = 40;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::table::{number, text};

    const COLUMNS: [Column; 3] = [text("name"), number("rate"), text("reason")];

    fn row(name: &str, rate: Option<f64>, reason: &str) -> Row {
        let rate = Cell::number(rate, |rate| format!("{rate:.0}"));
        let cells = vec![Cell::text(name), rate, Cell::text(reason)];
        Row { key: name.to_owned(), cells, stands_out: false }
    }

    fn rows() -> Vec<Row> {
        vec![row("search", Some(9.0), "quota"), row("ads", None, ""), row("checkout", Some(1000.0), "slo")]
    }

    #[test]
    fn columns_that_do_not_fit_are_left_out_from_the_right() {
        for (width, expected) in [
            (0, vec![0]),
            (5, vec![5]),
            (13, vec![8]),
            (14, vec![8, 5]),
            (16, vec![8, 5]),
            (22, vec![8, 5, 7]),
            (200, vec![8, 5, 7]),
        ] {
            let widths = widths(&COLUMNS, &rows(), width);
            assert_eq!(widths, expected, "{width}");
            let used = widths.iter().sum::<usize>() + widths.len() - 1;
            assert!(used <= width, "{used} of {width}");
        }
    }

    #[test]
    fn a_long_name_gives_way_to_the_columns_beside_it() {
        let long = [row(&"n".repeat(100), Some(1.0), "quota")];
        assert_eq!(widths(&COLUMNS, &long, 60), [40, 5, 7]);
        assert_eq!(widths(&COLUMNS, &long, 30), [16, 5, 7]);
        assert_eq!(widths(&COLUMNS, &long, 20), [14, 5]);
    }
}
