//! Keys on tables of a few rows, and of many.

use std::io;
use std::path::PathBuf;

use super::super::fixture::empty;
use super::super::reading::Documents;
use super::*;
use crate::admin::client::Error;
use crate::admin::hotkeys::Key;

fn with_keys(secs: u64, keys: &[&str]) -> Reading {
    let mut reading = empty(secs, Documents::Hotkeys);
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
    let gone = || Error::NoDaemon { path: PathBuf::from("/run/gate.sock"), error: io::Error::other("gone") };
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

/// The part of 1,000 tenants that was asked for.
fn of_many(state: &State, secs: u64) -> Reading {
    let mut reading = empty(secs, Documents::Tenants);
    reading.of = state.wanted();
    reading.tenants.matching = 1_000;
    let Selection { offset, limit, .. } = reading.of.tenants;
    let last = (offset + limit.unwrap_or(1_000)).min(1_000);
    reading.tenants.tenants = (offset..last)
        .map(|place| {
            let tenant = serde_json::json!({
                "id": place + 1, "name": format!("t{place}"), "tier": "default", "quota_ru_per_sec": null,
                "burst_ms": 0.0, "burst_left": 0.0, "debt_ms": 0.0, "price_multiplier": 1.0, "rejection_rate": 0.0,
                "passed": 0, "passed_bytes": 0, "charged_ru": 0.0, "refused_ru": 0.0, "refused": {}, "shadowed": {},
                "replied": 0, "candidate_refused": 0,
            });
            serde_json::from_value(tenant).unwrap()
        })
        .collect();
    reading
}

#[test]
fn of_many_tenants_those_in_sight_are_asked_for() {
    let mut state = State::new(View::Tenants);
    state.receive(Ok(of_many(&state, 1)));
    let selected = |state: &State| {
        let (names, place) = shown(state);
        names[place].clone()
    };
    press(&mut state, &[KeyCode::Down; 3]);
    assert_eq!((selected(&state), state.wanted().tenants.offset), ("t3".to_owned(), 0));
    press(&mut state, &[KeyCode::PageDown; 11]);
    assert_eq!(state.wanted().tenants.offset, 123, "t223 in the middle");
    press(&mut state, &[KeyCode::Down]);
    state.receive(Ok(of_many(&state, 2)));
    assert_eq!(selected(&state), "t224");
    press(&mut state, &[KeyCode::End]);
    state.receive(Ok(of_many(&state, 3)));
    assert_eq!(selected(&state), "t999");
    press(&mut state, &[KeyCode::Down, KeyCode::Up]);
    assert_eq!(selected(&state), "t998");
    press(&mut state, &[KeyCode::Char('s')]);
    let wanted = state.wanted().tenants;
    assert_eq!((wanted.offset, wanted.sort), (0, View::Tenants.sort_key(2)));
    press(&mut state, &[KeyCode::Enter]);
    assert_eq!(state.wanted().detail, Some("t998".to_owned()), "wherever it is now");
    press(&mut state, &[KeyCode::Esc, KeyCode::Char('2')]);
    assert_eq!(state.wanted().tenants.limit, Some(0), "their sums alone");
    assert!(state.is_asking());
}

#[test]
fn what_is_newly_wished_is_shown_while_it_is_held() {
    let mut state = State::new(View::Tenants);
    state.receive(Ok(of_many(&state, 1)));
    press(&mut state, &[KeyCode::Char(' '), KeyCode::End]);
    state.receive(Ok(of_many(&state, 2)));
    assert_eq!(shown(&state).0.last().map(String::as_str), Some("t999"));
    let held = state.span().map(|span| span.now.at);
    state.receive(Ok(of_many(&state, 3)));
    assert_eq!(state.span().map(|span| span.now.at), held);
}
