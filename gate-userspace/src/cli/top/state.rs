//! The state of the screen of `gate top`, and how keys change it.

use gate_common::units::Nanos;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::detail::{Field, fields};
use super::reading::{ReadResult, Reading, Span, Wanted};
use super::rows::Row;
use super::view::View;
use crate::admin::selection::Selection;
use crate::cli::table::{filter, sort};

/// An overlay of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Over {
    Nothing,
    /// All that is known of the selected row, from this line on.
    Detail {
        from: usize,
    },
    Help,
}

/// The consequence of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    Draw,
    End,
}

/// The state of the screen.
#[derive(Debug)]
pub(super) struct State {
    view: View,
    before: Option<Reading>,
    now: Option<Reading>,
    /// Why the last reading failed.
    pub(super) failure: Option<String>,
    /// True while the table is held still.
    pub(super) is_held: bool,
    sorted_by: usize,
    is_reversed: bool,
    filter: String,
    /// True while the filter is typed.
    is_typing: bool,
    /// The key of the selected row; the first row without one.
    selected: Option<String>,
    /// The place of the first row that is asked for, where only a part of the rows is.
    first: usize,
    /// The place of the row that is to be selected once it is there.
    awaited: Option<usize>,
    pub(super) over: Over,
}

impl State {
    pub(super) const fn new(view: View) -> Self {
        Self {
            view,
            before: None,
            now: None,
            failure: None,
            is_held: false,
            sorted_by: view.sorted_by(),
            is_reversed: false,
            filter: String::new(),
            is_typing: false,
            selected: None,
            first: 0,
            awaited: None,
            over: Over::Nothing,
        }
    }

    /// Takes a new reading, or keeps the last one and says why there is no newer one.
    pub(super) fn receive(&mut self, result: ReadResult) {
        match result {
            // What is newly wished is shown all the same.
            Ok(reading) if self.is_held && self.now.as_ref().is_some_and(|now| now.of == reading.of) => {}
            Ok(reading) => {
                self.failure = None;
                let is_soon = |now: &Reading| reading.at.saturating_sub(now.at) < LEAST_SPAN;
                if !self.now.as_ref().is_some_and(is_soon) {
                    self.before = self.now.take();
                }
                self.now = Some(reading);
                self.select_awaited();
            }
            Err(error) => self.failure = Some(error.to_string()),
        }
    }

    /// The documents and tenants that have to be asked for.
    pub(super) fn wanted(&self) -> Wanted {
        let tenants = match self.view.sort_key(self.sorted_by) {
            Some(key) => Selection {
                filter: self.filter.clone(),
                sort: Some(key),
                is_reversed: self.is_reversed,
                rates: true,
                offset: self.first,
                limit: Some(WINDOW),
                tenant: None,
            },
            // Their sums are shown everywhere.
            None => Selection { limit: Some(0), ..Selection::default() },
        };
        let is_detail = self.view == View::Tenants && matches!(self.over, Over::Detail { .. });
        let detail = self.selected.clone().filter(|_| is_detail);
        Wanted { documents: self.view.documents(), tenants, detail }
    }

    /// True while the reading is of another view.
    pub(super) fn is_asking(&self) -> bool {
        self.now.as_ref().is_none_or(|now| now.of.documents != self.view.documents())
    }

    pub(super) const fn view(&self) -> View {
        self.view
    }

    /// The readings that are shown; none before the first.
    pub(super) fn span(&self) -> Option<Span<'_>> {
        Some(Span { before: self.before.as_ref(), now: self.now.as_ref()? })
    }

    /// The column that the rows are sorted by, and whether the other way round.
    pub(super) const fn order(&self) -> (usize, bool) {
        (self.sorted_by, self.is_reversed)
    }

    /// The filter as far as it is typed, and whether it still is.
    pub(super) fn filter(&self) -> (&str, bool) {
        (&self.filter, self.is_typing)
    }

    /// The rows in their order, and the place of the selected one.
    pub(super) fn rows(&self) -> (Vec<Row>, usize) {
        let mut rows = self.span().map_or_else(Vec::new, |span| self.view.rows(span));
        // Of tenants gate does both.
        if self.view.sort_key(self.sorted_by).is_none() {
            filter(&mut rows, &self.filter);
            sort(&mut rows, self.view.columns(), self.sorted_by, self.is_reversed);
        }
        let place = rows.iter().position(|row| Some(&row.key) == self.selected.as_ref());
        (rows, place.unwrap_or(0))
    }

    /// The fields of the selected row, and its name.
    pub(super) fn detail(&self) -> (String, Vec<Field>) {
        let (rows, place) = self.rows();
        let key = self.selected.clone().or_else(|| rows.get(place).map(|row| row.key.clone()));
        let key = key.unwrap_or_default();
        let fields = self.span().map_or_else(Vec::new, |span| fields(self.view, &key, span));
        (key, fields)
    }

    /// Obeys a key.
    pub(super) fn key(&mut self, key: KeyEvent) -> Then {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Then::End;
        }
        if self.is_typing {
            self.typed(key.code);
            return Then::Draw;
        }
        match (self.over, key.code) {
            (Over::Nothing, KeyCode::Char('q') | KeyCode::Esc) => return Then::End,
            (_, KeyCode::Char('q') | KeyCode::Esc | KeyCode::Enter) if self.over != Over::Nothing => {
                self.over = Over::Nothing;
            }
            (Over::Detail { from }, KeyCode::Down | KeyCode::Char('j')) => {
                let last = self.detail().1.len().saturating_sub(1);
                self.over = Over::Detail { from: (from + 1).min(last) };
            }
            (Over::Detail { from }, KeyCode::Up | KeyCode::Char('k')) => {
                self.over = Over::Detail { from: from.saturating_sub(1) };
            }
            (_, KeyCode::Char('?' | 'h')) => self.over = Over::Help,
            (_, KeyCode::Char(' ')) => self.is_held = !self.is_held,
            (Over::Nothing, code) => self.key_of_table(code),
            _ => {}
        }
        Then::Draw
    }

    fn key_of_table(&mut self, code: KeyCode) {
        let columns = self.view.columns().len();
        match code {
            KeyCode::Tab | KeyCode::Right | KeyCode::Char('l') => self.show(self.view.next()),
            KeyCode::BackTab | KeyCode::Left => self.show(self.view.previous()),
            KeyCode::Char(digit @ '1'..='5') => self.show(View::ALL[digit as usize - '1' as usize]),
            KeyCode::Char('s') => self.sort((self.sorted_by + 1) % columns, self.is_reversed),
            KeyCode::Char('S') => self.sort((self.sorted_by + columns - 1) % columns, self.is_reversed),
            KeyCode::Char('r') => self.sort(self.sorted_by, !self.is_reversed),
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Enter => {
                let (rows, place) = self.rows();
                if let Some(row) = rows.get(place) {
                    self.selected = Some(row.key.clone());
                    self.over = Over::Detail { from: 0 };
                }
            }
            KeyCode::Down | KeyCode::Char('j') => self.select(|place| place + 1),
            KeyCode::Up | KeyCode::Char('k') => self.select(|place| place.saturating_sub(1)),
            KeyCode::PageDown => self.select(|place| place + PAGE),
            KeyCode::PageUp => self.select(|place| place.saturating_sub(PAGE)),
            KeyCode::Home | KeyCode::Char('g') => self.select(|_| 0),
            KeyCode::End | KeyCode::Char('G') => self.select(|_| usize::MAX),
            _ => {}
        }
    }

    fn sort(&mut self, by: usize, is_reversed: bool) {
        self.sorted_by = by;
        self.is_reversed = is_reversed;
        self.show_the_first();
    }

    fn show_the_first(&mut self) {
        self.first = 0;
        self.awaited = None;
    }

    fn typed(&mut self, code: KeyCode) {
        self.show_the_first();
        match code {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(letter) if self.filter.len() < MAX_FILTER => self.filter.push(letter),
            _ => {}
        }
    }

    fn show(&mut self, view: View) {
        let Self { before, now, failure, is_held, .. } = std::mem::replace(self, Self::new(view));
        *self = Self { before, now, failure, is_held, ..Self::new(view) };
    }

    /// Selects the row that stands there, or the last one; one that is not among those that were asked for once it is.
    fn select(&mut self, other: impl FnOnce(usize) -> usize) {
        let (rows, place) = self.rows();
        let (first, all) = self.window(rows.len());
        let place = other(self.awaited.unwrap_or(first + place)).min(all.saturating_sub(1));
        self.awaited = None;
        if let Some(row) = place.checked_sub(first).and_then(|place| rows.get(place)) {
            self.selected = Some(row.key.clone());
        } else if all > 0 {
            self.first = place.saturating_sub(WINDOW / 2);
            self.awaited = Some(place);
        }
    }

    fn select_awaited(&mut self) {
        let (rows, _) = self.rows();
        let (first, all) = self.window(rows.len());
        let Some(place) = self.awaited.filter(|_| first == self.first) else { return };
        self.awaited = None;
        let place = place.min(all.saturating_sub(1)).saturating_sub(first);
        self.selected = rows.get(place).or(rows.last()).map(|row| row.key.clone());
    }

    /// The place of the first of these rows, and how many there are with those that were not asked for.
    fn window(&self, rows: usize) -> (usize, usize) {
        match &self.now {
            Some(now) if self.view == View::Tenants => (now.of.tenants.offset, now.tenants.matching),
            _ => (0, rows),
        }
    }
}

/// So many rows are asked for: more than a terminal has lines.
const WINDOW: usize = 200;
/// Rates of less time leap.
const LEAST_SPAN: Nanos = Nanos::from_millis(150);
/// The rows of a page.
const PAGE: usize = 20;
/// No name is longer.
const MAX_FILTER: usize = 64;

#[cfg(test)]
mod tests;
