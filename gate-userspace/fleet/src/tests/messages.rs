//! The size of reports and answers, and what they leave out.

use prost::Message as _;

use super::*;

#[test]
fn counts_travel_in_the_largest_unit_they_have_in_common() {
    let mut book = book();
    let mut owner = Owner::new();
    let [acme, alice] = ["acme", "shop/user=alice"].map(|text| book.line(&name(text)));
    for (millis, counts, unit) in [(100, [20_000, 1_500], 500), (200, [0, 31], 31), (300, [7_000, 3], 1)] {
        book.count(acme, at(0), counts[0], 0);
        book.count(alice, at(0), 0, counts[1]);
        let report = book.report(0, at(millis)).unwrap();
        assert_eq!(report.unit, unit);
        let answer = owner.take(at(millis), &report).unwrap();
        book.answer(0, at(millis), &answer).unwrap();
    }
    assert_eq!(owner.charged("acme"), (27_000, 0));
    assert_eq!(owner.charged("shop/user=alice"), (0, 1_534));
}

#[test]
fn columns_of_zeros_are_left_out() {
    let mut book = book();
    let mut owner = Owner::new();
    let line = book.line(&name("acme"));
    for (millis, charged, refused) in [(100, 1_000, 0), (200, 0, 3_000)] {
        book.count(line, at(millis), charged, refused);
        let report = book.report(0, at(millis)).unwrap();
        assert_eq!((report.charged.is_empty(), report.refused.is_empty()), (charged == 0, refused == 0));
        let answer = owner.take(at(millis), &report).unwrap();
        assert!(answer.per_sec.is_empty() && answer.burst_ru.is_empty(), "{answer:?}");
        assert_eq!(answer.full_in_ms.is_empty(), charged == 0);
        book.answer(0, at(millis), &answer).unwrap();
        assert_eq!(book.grant(line, at(millis)).and_then(|grant| grant.rate.units_per_sec()), Some(LIMIT));
    }
    assert_eq!(owner.charged("acme"), (1_000, 3_000));
    book.count(line, at(300), 1_000, 0);
    book.report(0, at(300)).unwrap();
    let unfit = Answer { number: 3, burst_ru: vec![1, 1], ..Answer::default() };
    assert!(book.answer(0, at(300), &unfit).is_err(), "two numbers for one handle");
}

#[test]
fn in_deep_debt_a_gate_gives_out_nothing_until_parts_are_due() {
    let mut book = book();
    let mut owner = Owner::new();
    let line = book.line(&name("acme"));
    // Ten seconds of the limit: all of it is owed but the burst and what came in within the report.
    book.count(line, at(0), 10_100_000, 0);
    exchange(&mut book, &mut owner, at(100));
    let all = owner.accounts.all();
    let Share::Part { reject_until, .. } = all[0].lock().share(1, at(100)) else {
        panic!("nobody is held back")
    };
    let grant = book.grant(line, at(100)).unwrap();
    let rejected = at(100).saturating_add(grant.reject_for);
    // The answer is in whole milliseconds.
    assert!((reject_until.0..reject_until.0 + 1_000_000).contains(&rejected.0), "{grant:?}");
    assert_eq!(book.grant(line, rejected).map(|grant| grant.reject_for), Some(Nanos::ZERO));
}

#[test]
fn an_entry_and_its_answer_take_ten_bytes() {
    for (asked_for, most) in [(2_000, 3.1), (160_000, 10.0)] {
        let mut book = book();
        let mut owner = Owner::new();
        let names: Vec<_> = (0..1_000).map(|number| name(&format!("shop/user={number}"))).collect();
        let mut bytes = 0;
        for tick in 1..20 {
            for (place, name) in (0..).zip(&names) {
                let line = book.line(name);
                // Of each request one is charged and two are refused, if the limit is exceeded.
                let amount = asked_for + place % 40 * 1_000;
                let refused = if asked_for > 100_000 { 2 * amount / 3_000 * 1_000 } else { 0 };
                book.count(line, at(0), amount - refused, refused);
            }
            let report = book.report(0, at(tick * 100)).unwrap();
            let answer = owner.take(at(tick * 100), &report).unwrap();
            bytes = report.encoded_len() + answer.encoded_len();
            book.answer(0, at(tick * 100), &answer).unwrap();
        }
        let each = bytes as f64 / names.len() as f64;
        assert!(each <= most, "{each} bytes at {asked_for}");
    }
}
