//! The state of the screen of `gate top`, and how keys change it.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::detail::{Field, fields};
use super::reading::{ReadResult, Reading, Span};
use super::rows::Row;
use super::view::View;
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
            over: Over::Nothing,
        }
    }

    /// Takes a new reading, or keeps the last one and says why there is no newer one.
    pub(super) fn receive(&mut self, result: ReadResult) {
        match result {
            Ok(_) if self.is_held => {}
            Ok(reading) => {
                self.failure = None;
                self.before = self.now.replace(reading);
            }
            Err(error) => self.failure = Some(error.to_string()),
        }
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
        filter(&mut rows, &self.filter);
        sort(&mut rows, self.view.columns(), self.sorted_by, self.is_reversed);
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
            KeyCode::Char('s') => self.sorted_by = (self.sorted_by + 1) % columns,
            KeyCode::Char('S') => self.sorted_by = (self.sorted_by + columns - 1) % columns,
            KeyCode::Char('r') => self.is_reversed = !self.is_reversed,
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

    fn typed(&mut self, code: KeyCode) {
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

    /// Selects the row that stands there, or the last one.
    fn select(&mut self, other: impl FnOnce(usize) -> usize) {
        let (rows, place) = self.rows();
        let place = other(place).min(rows.len().saturating_sub(1));
        self.selected = rows.get(place).map(|row| row.key.clone());
    }
}

/// The rows of a page.
const PAGE: usize = 20;
/// No name is longer.
const MAX_FILTER: usize = 64;

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::PathBuf;

    use super::super::fixture::empty;
    use super::*;
    use crate::admin::client::Error;
    use crate::admin::hotkeys::Key;

    fn with_keys(secs: u64, keys: &[&str]) -> Reading {
        let mut reading = empty(secs);
        reading.hotkeys.keys = keys
            .iter()
            .enumerate()
            .map(|(place, key)| Key {
                rank: place + 1,
                service: "cache".to_owned(),
                key: (*key).to_owned(),
                estimate: 100 - place as u64,
                error: 0,
                hot: false,
                limited: false,
            })
            .collect();
        reading
    }

    fn press(state: &mut State, codes: &[KeyCode]) -> Then {
        codes.iter().fold(Then::Draw, |_, &code| state.key(KeyEvent::new(code, KeyModifiers::NONE)))
    }

    fn shown(state: &State) -> (Vec<String>, usize) {
        let (rows, place) = state.rows();
        (rows.into_iter().map(|row| row.cells[0].text.clone()).collect(), place)
    }

    fn three() -> State {
        let mut state = State::new(View::Keys);
        state.receive(Ok(with_keys(1, &["b", "a", "c"])));
        state
    }

    #[test]
    fn a_row_stays_selected_wherever_it_moves() {
        let mut state = three();
        press(&mut state, &[KeyCode::Down]);
        assert_eq!(shown(&state), (vec!["b".to_owned(), "a".to_owned(), "c".to_owned()], 1));
        state.receive(Ok(with_keys(2, &["c", "b", "a"])));
        assert_eq!(shown(&state).1, 2, "a, which is last now");
        state.receive(Ok(with_keys(3, &["c", "b"])));
        assert_eq!(shown(&state).1, 0, "a is gone");
        press(&mut state, &[KeyCode::End, KeyCode::Down]);
        assert_eq!(shown(&state).1, 1, "no further than the last");
    }

    #[test]
    fn columns_sort_in_turn_and_the_other_way_round() {
        let mut state = three();
        assert_eq!(state.order(), (1, false));
        press(&mut state, &[KeyCode::Char('S')]);
        assert_eq!(shown(&state).0, ["a", "b", "c"]);
        press(&mut state, &[KeyCode::Char('r')]);
        assert_eq!(shown(&state).0, ["c", "b", "a"]);
        press(&mut state, &[KeyCode::Char('S')]);
        assert_eq!(state.order().0, View::Keys.columns().len() - 1);
    }

    #[test]
    fn what_is_typed_filters_and_escape_ends_that() {
        let mut state = three();
        assert_eq!(press(&mut state, &[KeyCode::Char('/'), KeyCode::Char('q')]), Then::Draw);
        assert_eq!(shown(&state).0.len(), 0);
        press(&mut state, &[KeyCode::Backspace, KeyCode::Char('A'), KeyCode::Enter]);
        assert_eq!(state.filter(), ("A", false));
        // The service's name, cache, has that letter.
        assert_eq!(shown(&state).0.len(), 3);
        press(&mut state, &[KeyCode::Char('/'), KeyCode::Esc]);
        assert_eq!(state.filter(), ("", false));
        press(&mut state, &[KeyCode::Char('/'); 200]);
        assert_eq!(state.filter().0.len(), MAX_FILTER);
    }

    #[test]
    fn detail_and_help_close_before_it_ends() {
        let mut state = three();
        press(&mut state, &[KeyCode::Enter, KeyCode::Down]);
        assert_eq!(state.over, Over::Detail { from: 1 });
        assert_eq!(state.detail().0, "cache b");
        assert_eq!(press(&mut state, &[KeyCode::Esc]), Then::Draw);
        press(&mut state, &[KeyCode::Char('?')]);
        assert_eq!(state.over, Over::Help);
        assert_eq!(press(&mut state, &[KeyCode::Char('q')]), Then::Draw);
        assert_eq!(press(&mut state, &[KeyCode::Char('q')]), Then::End);
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(three().key(interrupt), Then::End);
        let mut empty = State::new(View::Tenants);
        press(&mut empty, &[KeyCode::Enter]);
        assert_eq!(empty.over, Over::Nothing, "nothing is selected");
    }

    #[test]
    fn a_view_begins_anew_and_keeps_its_readings() {
        let mut state = three();
        press(&mut state, &[KeyCode::Char('/'), KeyCode::Char('b'), KeyCode::Enter, KeyCode::Char('1')]);
        assert_eq!((state.view(), state.filter().0), (View::Tenants, ""));
        press(&mut state, &[KeyCode::BackTab, KeyCode::BackTab]);
        assert_eq!(state.view(), View::Keys);
        assert_eq!(shown(&state).0.len(), 3);
    }

    #[test]
    fn a_failure_keeps_the_last_reading_and_a_hold_every_one() {
        let mut state = three();
        let gone =
            || Error::NoDaemon { path: PathBuf::from("/run/gate.sock"), source: io::Error::other("gone") };
        state.receive(Err(gone()));
        assert!(state.failure.as_ref().is_some_and(|said| said.contains("/run/gate.sock")));
        assert_eq!(shown(&state).0.len(), 3);
        state.receive(Ok(with_keys(2, &["d"])));
        assert_eq!((state.failure.clone(), shown(&state).0.len()), (None, 1));
        press(&mut state, &[KeyCode::Char(' ')]);
        state.receive(Ok(with_keys(3, &["d", "e"])));
        assert_eq!(shown(&state).0.len(), 1);
        press(&mut state, &[KeyCode::Char(' ')]);
        state.receive(Ok(with_keys(4, &["d", "e"])));
        assert_eq!(shown(&state).0.len(), 2);
    }
}
