//! How numbers, prices and JSON are printed.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::admin::price::Price;
use crate::admin::store::{Busy, Store};

/// A number with its thousands apart.
pub(super) fn count(count: u64) -> String {
    let digits = count.to_string();
    let mut grouped = String::with_capacity(digits.len() * 4 / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// A quantity, to a tenth where that is worth showing.
pub(super) fn amount(amount: f64) -> String {
    if amount >= 100.0 || amount.fract() == 0.0 {
        count(amount.round() as u64)
    } else {
        format!("{amount:.1}")
    }
}

/// Settings as a configuration has them, in one line.
pub(super) fn settings(settings: &BTreeMap<String, String>) -> String {
    settings.iter().map(|(key, value)| format!("{key} = {value:?}")).collect::<Vec<_>>().join(", ")
}

/// A price in a few words.
pub(super) fn price(price: &Price) -> String {
    let Price { base, row, kib, latency, learned } = price;
    let dearest = latency.values().copied().reduce(f64::max);
    let latency = dearest.map_or_else(String::new, |most| format!(" + up to {most} for latency"));
    let learned = if learned.is_some() { ", learned" } else { "" };
    format!("{base} + {row}/row + {kib}/KiB{latency}{learned}")
}

/// The state of a store, and how long it has been so.
pub(super) fn store(store: &Store) -> String {
    let busy = store.busy.as_ref().map(|Busy { for_s, command }| {
        format!(", busy for {for_s:.1} s ({})", command.replace('|', " ").to_ascii_uppercase())
    });
    reached(store.up, store.for_s) + &busy.unwrap_or_default()
}

/// Reachability, and how many seconds it has been so.
pub(super) fn reached(up: Option<bool>, for_s: f64) -> String {
    match up {
        Some(true) => format!("up for {}", age(for_s)),
        Some(false) => format!("down for {}", age(for_s)),
        None => "not tried yet".to_owned(),
    }
}

/// An age in its largest two units.
pub(super) fn age(secs: f64) -> String {
    let secs = secs as u64;
    match secs {
        ..60 => format!("{secs} s"),
        60..3_600 => format!("{} min {} s", secs / 60, secs % 60),
        3_600..86_400 => format!("{} h {} min", secs / 3_600, secs / 60 % 60),
        _ => format!("{} d {} h", secs / 86_400, secs / 3_600 % 24),
    }
}

/// Pretty JSON and a newline, to standard output.
pub(super) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string_pretty(value)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::price::Learned;

    #[test]
    fn a_store_is_up_or_down_for_its_largest_two_units() {
        let printed = |up, for_s| store(&Store { up, for_s, busy: None, connections: 1, clients: 2 });
        for (up, for_s, text) in [
            (None, 0.0, "not tried yet"),
            (Some(true), 0.9, "up for 0 s"),
            (Some(false), 59.9, "down for 59 s"),
            (Some(true), 61.0, "up for 1 min 1 s"),
            (Some(true), 3_660.0, "up for 1 h 1 min"),
            (Some(false), 90_000.0, "down for 1 d 1 h"),
        ] {
            assert_eq!(printed(up, for_s), text);
        }
        let busy = Busy { for_s: 1.23, command: "xinfo|stream".to_owned() };
        let store = Store { up: Some(true), for_s: 60.0, busy: Some(busy), connections: 1, clients: 2 };
        assert_eq!(super::store(&store), "up for 1 min 0 s, busy for 1.2 s (XINFO STREAM)");
    }

    #[test]
    fn a_price_says_what_it_is_made_of_and_whether_it_was_learned() {
        let mut shown = Price { base: 0.5, row: 0.25, kib: 1.0, ..Price::default() };
        assert_eq!(price(&shown), "0.5 + 0.25/row + 1/KiB");
        shown.learned = Some(Learned::default());
        shown.latency = [("get".into(), 0.1), ("unread".into(), 2.125)].into();
        assert_eq!(price(&shown), "0.5 + 0.25/row + 1/KiB + up to 2.125 for latency, learned");
    }

    #[test]
    fn numbers_are_easy_to_read() {
        for (number, printed) in [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(count(number), printed);
        }
        for (number, printed) in [(0.0, "0"), (1.25, "1.2"), (5_000.0, "5,000"), (1234.4, "1,234")] {
            assert_eq!(amount(number), printed);
        }
    }
}
