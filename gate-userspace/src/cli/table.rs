//! Tables of texts and numbers: their order, what is left of them, and their layout at a width.

use std::cmp::Ordering;
use std::fmt::{self, Display, Formatter};

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Width};
use ratatui::text::Span;

use super::print;

/// The heading of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// The place of the column with this name, or of the only one whose name begins so, whatever the case of letters. A dash
/// stands for a space.
pub(super) fn place_of(columns: &[Column], wanted: &str) -> Option<usize> {
    let plain = |name: &str| name.to_lowercase().replace('-', " ");
    let wanted = plain(wanted);
    let whole = columns.iter().position(|column| plain(column.name) == wanted);
    let mut begun = (0..columns.len()).filter(|&place| plain(columns[place].name).starts_with(&wanted));
    whole.or_else(|| begun.next().filter(|_| begun.next().is_none()))
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

    /// A count, with its thousands apart.
    pub(super) fn count(count: u64) -> Self {
        Self { text: print::count(count), number: Some(count as f64) }
    }

    fn compare(&self, other: &Self) -> Ordering {
        match (self.number, other.number) {
            (Some(one), Some(another)) => one.total_cmp(&another),
            (one, another) => one.is_some().cmp(&another.is_some()).then_with(|| self.text.cmp(&other.text)),
        }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::text(text)
    }
}

/// Leaves the rows with this text in a cell, whatever the case of letters.
pub(super) fn filter(rows: &mut Vec<impl AsRef<[Cell]>>, wanted: &str) {
    let wanted = wanted.to_lowercase();
    rows.retain(|row| row.as_ref().iter().any(|cell| cell.text.to_lowercase().contains(&wanted)));
}

/// Puts the rows in order: words from A, numbers from the largest, or the other way round. Equal ones stay as they are.
pub(super) fn sort(rows: &mut [impl AsRef<[Cell]>], columns: &[Column], by: usize, is_reversed: bool) {
    let Some(column) = columns.get(by) else { return };
    rows.sort_by(|one, another| {
        let order = one.as_ref()[by].compare(&another.as_ref()[by]);
        if column.is_number != is_reversed { order.reverse() } else { order }
    });
}

/// A table that is printed as wide as the terminal.
#[derive(Clone, Debug)]
pub(super) struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    /// Without rows.
    pub(super) fn new(columns: &[Column]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row, of a cell for each column.
    pub(super) fn add_row<C: Into<Cell>>(&mut self, cells: impl IntoIterator<Item = C>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Leaves the rows with this text, as [`filter`].
    pub(super) fn filter(&mut self, wanted: &str) {
        filter(&mut self.rows, wanted);
    }

    /// Leaves at most so many rows; returns how many are gone.
    pub(super) fn truncate(&mut self, most: usize) -> usize {
        let left_out = self.rows.len().saturating_sub(most);
        self.rows.truncate(most);
        left_out
    }

    /// Sorts by the column that [`place_of`] finds; leaves the rows as they are if there is none.
    pub(super) fn sort(&mut self, wanted: &str) {
        if let Some(place) = place_of(&self.columns, wanted) {
            sort(&mut self.rows, &self.columns, place, false);
        }
    }

    /// As printed where lines have so many columns; a serial console that nobody has told its size has 0.
    fn at_width(&self, width: Option<u16>) -> String {
        match width {
            None | Some(0) => self.arranged(None),
            Some(width) if self.least_width() <= usize::from(width) => self.arranged(Some(width)),
            Some(width) => self.listed(width.into()),
        }
    }

    /// The least width at which no word is cut.
    fn least_width(&self) -> usize {
        self.widest(longest_word).iter().map(|least| least + PADDING).sum()
    }

    /// The most that `measure` finds in each column, its name included.
    fn widest(&self, measure: impl Fn(&str) -> usize) -> Vec<usize> {
        let most = |place: usize| {
            let texts = self.rows.iter().map(|row| row[place].text.as_str());
            texts.chain([self.columns[place].name]).map(&measure).max().unwrap_or(0).max(1)
        };
        (0..self.columns.len()).map(most).collect()
    }

    /// The columns' widths that make use of this one: the widest give way, none below its longest word.
    fn widths(&self, width: usize) -> Vec<usize> {
        let whole = self.widest(width_of);
        let least = self.widest(longest_word);
        let capped = |cap: usize| -> Vec<usize> {
            whole.iter().zip(&least).map(|(&whole, &least)| whole.min(cap.max(least))).collect()
        };
        let fits = |cap: &usize| capped(*cap).iter().map(|wide| wide + PADDING).sum::<usize>() <= width;
        let most = whole.iter().copied().max().unwrap_or(0);
        capped((0..=most).rev().find(fits).unwrap_or(0))
    }

    /// Side by side; cells wrap where there is a width. Without one lines are as long as they are.
    fn arranged(&self, width: Option<u16>) -> String {
        let mut table = comfy_table::Table::new();
        table.load_style(NOTHING).set_header(self.columns.iter().map(|column| column.name));
        table.add_rows(self.rows.iter().map(|row| row.iter().map(|cell| &cell.text)));
        if let Some(width) = width {
            table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
            let widths = self.widths(width.into()).into_iter();
            let fixed = |wide| Width::Fixed(u16::try_from(wide + PADDING).unwrap_or(u16::MAX));
            table.set_constraints(widths.map(|wide| ColumnConstraint::Absolute(fixed(wide))));
        }
        for (place, _) in self.columns.iter().enumerate().filter(|(_, column)| column.is_number) {
            if let Some(shown) = table.column_mut(place) {
                shown.set_cell_alignment(CellAlignment::Right);
            }
        }
        table.trim_fmt()
    }

    /// One cell below the other, with the name of its column; an empty line between two rows.
    fn listed(&self, width: usize) -> String {
        let rows = self.rows.iter().map(|row| {
            let cells = self.columns.iter().zip(row).filter(|(_, cell)| !cell.text.is_empty());
            let lines = cells.map(|(column, cell)| match column.name {
                "" => wrapped(&cell.text, width),
                name => wrapped(&format!("{name}: {}", cell.text), width),
            });
            lines.collect::<Vec<_>>().join("\n")
        });
        rows.collect::<Vec<_>>().join("\n\n")
    }
}

impl Display for Table {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        // That of the terminal, if standard output is one.
        f.write_str(&self.at_width(comfy_table::Table::new().width()))
    }
}

/// The columns of a terminal that a text takes.
pub(super) fn width_of(text: &str) -> usize {
    Span::raw(text).width()
}

fn longest_word(text: &str) -> usize {
    text.split_whitespace().map(width_of).max().unwrap_or(0)
}

/// Lines of at most so many columns, of which those after the first are set in where there is room. Words are cut only if they
/// are longer than a line.
fn wrapped(text: &str, width: usize) -> String {
    let indent = if width >= 4 * PADDING { " ".repeat(PADDING) } else { String::new() };
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("there is a line");
        let gap = usize::from(!line.trim_start().is_empty());
        if width_of(line) + gap + width_of(word) <= width {
            line.push_str(&" ".repeat(gap));
            line.push_str(word);
            continue;
        }
        if gap > 0 {
            lines.push(indent.clone());
        }
        for letter in word.chars() {
            let line = lines.last_mut().expect("there is a line");
            let is_full = width_of(line) + width_of(letter.encode_utf8(&mut [0; 4])) > width;
            if is_full && !line.trim_start().is_empty() {
                lines.push(indent.clone());
            }
            lines.last_mut().expect("there is a line").push(letter);
        }
    }
    lines.join("\n")
}

/// The columns that are free beside a cell.
const PADDING: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 3] = [text("name"), number("rate"), text("reason")];

    fn table() -> Table {
        let mut table = Table::new(&COLUMNS);
        for (name, rate, reason) in [
            ("search", Some(9.0), "quota 12, syn-rate 5"),
            ("ads", None, ""),
            ("checkout", Some(1000.0), "slo"),
        ] {
            let rate = Cell::number(rate, |rate| format!("{rate:.0}"));
            table.add_row([Cell::text(name), rate, Cell::text(reason)]);
        }
        table
    }

    fn names(table: &Table) -> Vec<&str> {
        table.rows.iter().map(|row| row[0].text.as_str()).collect()
    }

    #[test]
    fn words_are_sorted_from_a_and_numbers_from_the_largest() {
        let mut rows = table().rows;
        for (by, is_reversed, expected) in [
            (0, false, ["ads", "checkout", "search"]),
            (0, true, ["search", "checkout", "ads"]),
            (1, false, ["checkout", "search", "ads"]),
            (1, true, ["ads", "search", "checkout"]),
            (2, false, ["ads", "search", "checkout"]),
            (3, false, ["ads", "search", "checkout"]),
        ] {
            sort(&mut rows, &COLUMNS, by, is_reversed);
            let names: Vec<_> = rows.iter().map(|row| row[0].text.as_str()).collect();
            assert_eq!(names, expected, "{by} {is_reversed}");
        }
    }

    #[test]
    fn columns_are_found_by_the_beginning_of_one_name_alone() {
        let columns = [text("tier"), text("tenant"), number("burst left"), number("wait"), number("waiting")];
        for (wanted, place) in [
            ("tier", Some(0)),
            ("TENANT", Some(1)),
            ("ten", Some(1)),
            ("t", None),
            ("burst-left", Some(2)),
            ("burst", Some(2)),
            ("wait", Some(3)),
            ("waiti", Some(4)),
            ("waiting for", None),
            ("left", None),
        ] {
            assert_eq!(place_of(&columns, wanted), place, "{wanted}");
        }
    }

    #[test]
    fn rows_are_filtered_by_any_cell_whatever_the_case() {
        for (wanted, expected) in [
            ("", vec!["search", "ads", "checkout"]),
            ("QUO", vec!["search"]),
            ("e", vec!["search", "checkout"]),
            ("money", vec![]),
        ] {
            let mut table = table();
            table.filter(wanted);
            assert_eq!(names(&table), expected, "{wanted}");
            assert_eq!(table.is_empty(), expected.is_empty());
        }
    }

    #[test]
    fn lines_without_a_width_are_as_long_as_they_are() {
        let expected =
            " name      rate  reason\n search       9  quota 12, syn-rate 5\n ads\n checkout  1000  slo";
        for width in [None, Some(0), Some(200)] {
            assert_eq!(table().at_width(width), expected, "{width:?}");
        }
    }

    #[test]
    fn lines_fit_any_width_and_words_are_whole_while_they_can_be() {
        let table = table();
        let words = |text: &str| -> Vec<String> {
            let mut words: Vec<_> = text.split_whitespace().map(str::to_owned).collect();
            words.sort();
            words
        };
        for width in 1..=60 {
            let said = table.at_width(Some(width));
            let widest = said.lines().map(width_of).max().unwrap_or(0);
            assert!(widest <= usize::from(width), "{width}:\n{said}");
            if usize::from(width) >= table.least_width() {
                assert_eq!(words(&said), words(&table.at_width(None)), "{width}:\n{said}");
            }
            let letters =
                |text: &str| text.chars().filter(|letter| !letter.is_whitespace()).collect::<String>();
            assert!(width >= 20 || letters(&said).contains("reason:quota12,syn-rate5"), "{width}:\n{said}");
        }
    }

    #[test]
    fn narrow_consoles_have_a_line_for_each_cell() {
        let said = "name: search\nrate: 9\nreason: quota 12,\n  syn-rate 5\n\nname: ads\n\nname: checkout\nrate: 1000\nreason: slo";
        assert_eq!(table().at_width(Some(20)), said);
    }
}
