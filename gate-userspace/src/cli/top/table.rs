//! Tables of `gate top`: cells that can be compared, in an order, for a width.

use std::cmp::Ordering;

/// The heading of a column.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    pub(super) name: &'static str,
    /// Numbers stand to the right, and their largest first.
    pub(super) is_number: bool,
}

/// A column of words.
pub(super) const fn text(name: &'static str) -> Column {
    Column { name, is_number: false }
}

/// A column of numbers.
pub(super) const fn number(name: &'static str) -> Column {
    Column { name, is_number: true }
}

/// One cell: its text, and its number where it has one.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Cell {
    pub(super) text: String,
    pub(super) number: Option<f64>,
}

impl Cell {
    pub(super) fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), number: None }
    }

    /// A number in the words of `print`; empty if there is none.
    pub(super) fn number(number: Option<f64>, print: impl FnOnce(f64) -> String) -> Self {
        Self { text: number.map_or_else(String::new, print), number }
    }

    fn compare(&self, other: &Self) -> Ordering {
        match (self.number, other.number) {
            (Some(one), Some(another)) => one.total_cmp(&another),
            (one, another) => one.is_some().cmp(&another.is_some()).then_with(|| self.text.cmp(&other.text)),
        }
    }
}

/// One row.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    /// Distinct names of what it shows, by which it stays selected.
    pub(super) key: String,
    pub(super) cells: Vec<Cell>,
    /// True for what an operator should look at.
    pub(super) stands_out: bool,
}

/// Leaves the rows with this text in a cell, whatever the case of letters.
pub(super) fn filter(rows: &mut Vec<Row>, wanted: &str) {
    let wanted = wanted.to_lowercase();
    rows.retain(|row| row.cells.iter().any(|cell| cell.text.to_lowercase().contains(&wanted)));
}

/// Puts the rows in order: words from A, numbers from the largest, or the other way round. Equal ones stay as they are.
pub(super) fn sort(rows: &mut [Row], columns: &[Column], by: usize, is_reversed: bool) {
    let Some(column) = columns.get(by) else { return };
    rows.sort_by(|one, another| {
        let order = one.cells[by].compare(&another.cells[by]);
        if column.is_number != is_reversed { order.reverse() } else { order }
    });
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

    const COLUMNS: [Column; 3] = [text("name"), number("rate"), text("reason")];

    fn row(name: &str, rate: Option<f64>, reason: &str) -> Row {
        let rate = Cell::number(rate, |rate| format!("{rate:.0}"));
        let cells = vec![Cell::text(name), rate, Cell::text(reason)];
        Row { key: name.to_owned(), cells, stands_out: false }
    }

    fn rows() -> Vec<Row> {
        vec![row("search", Some(9.0), "quota"), row("ads", None, ""), row("checkout", Some(1000.0), "slo")]
    }

    fn names(rows: &[Row]) -> Vec<&str> {
        rows.iter().map(|row| row.key.as_str()).collect()
    }

    #[test]
    fn words_are_sorted_from_a_and_numbers_from_the_largest() {
        let mut rows = rows();
        for (by, is_reversed, expected) in [
            (0, false, ["ads", "checkout", "search"]),
            (0, true, ["search", "checkout", "ads"]),
            (1, false, ["checkout", "search", "ads"]),
            (1, true, ["ads", "search", "checkout"]),
            (2, false, ["ads", "search", "checkout"]),
        ] {
            sort(&mut rows, &COLUMNS, by, is_reversed);
            assert_eq!(names(&rows), expected, "{by} {is_reversed}");
        }
        sort(&mut rows, &COLUMNS, 3, false);
        assert_eq!(names(&rows), ["ads", "search", "checkout"], "a column that is not there");
    }

    #[test]
    fn rows_are_filtered_by_any_cell_whatever_the_case() {
        for (wanted, expected) in [
            ("", vec!["search", "ads", "checkout"]),
            ("QUO", vec!["search"]),
            ("e", vec!["search", "checkout"]),
        ] {
            let mut rows = rows();
            filter(&mut rows, wanted);
            assert_eq!(names(&rows), expected, "{wanted}");
        }
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
