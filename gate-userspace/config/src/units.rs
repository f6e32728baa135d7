//! Quantities as they are written: a number and its unit, `"5000 RU/s"`, `"100ms"`, `"64MiB"`.
//!
//! Every reader gives exact integers or says what would be right. Numbers are decimal, may have a
//! fraction where the unit can hold it exactly, and may be grouped with `_`.

use gate_common::token_bucket::Rate;
use gate_common::units::{Fraction, MilliRu, Multiplier, Nanos};

/// Why a string is not the quantity asked for: what would be right.
pub type Wrong = String;

const TIME: &[(&str, u64)] = &[
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("min", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
];
const SIZE: &[(&str, u64)] = &[("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];

/// A span of time between `min` and `max`, both included: `"100ms"`.
///
/// # Errors
///
/// The value that would be right; so do the other readers.
pub fn duration(text: &str, min: Nanos, max: Nanos) -> Result<Nanos, Wrong> {
    let example = "\"100ms\" (ns, us, ms, s, min, h, d)";
    let nanos = quantity(text, TIME, "a time", example)?;
    if (min.0..=max.0).contains(&nanos) {
        return Ok(Nanos(nanos));
    }
    Err(format!("must be from {min} to {max}"))
}

/// A size of at least `min` and at most `max` bytes: `"64MiB"`.
pub fn size(text: &str, min: u64, max: u64) -> Result<u64, Wrong> {
    let bytes = quantity(text, SIZE, "a size", "\"64MiB\" (B, KiB, MiB, GiB)")?;
    within(bytes, min, max, print_size)
}

/// Bytes a second, at least `min` and at most `max`: `"64KiB/s"`.
pub(super) fn byte_rate(text: &str, min: u64, max: u64) -> Result<u64, Wrong> {
    let example = "\"64KiB/s\" (B/s, KiB/s, MiB/s, GiB/s)";
    let Some(size) = text.strip_suffix("/s") else { return Err(not_a("a rate in bytes a second", example)) };
    let bytes = quantity(size, SIZE, "a rate in bytes a second", example)?;
    within(bytes, min, max, |bytes| format!("{}/s", print_size(bytes)))
}

/// Thousandths of a request unit a second, above 0: `"5000 RU/s"`. `None` for `"unlimited"`.
pub(super) fn ru_rate(text: &str) -> Result<Option<u64>, Wrong> {
    if text == "unlimited" {
        return Ok(None);
    }
    let milli_ru = quantity(text, &[("RU/s", 1_000)], "a rate in request units", "\"5000 RU/s\"")?;
    match milli_ru {
        0 => Err(above_zero("\"5000 RU/s\"")),
        1..=Rate::MAX_PER_SEC => Ok(Some(milli_ru)),
        _ => Err(format!("must be at most {} RU/s, or \"unlimited\"", Rate::MAX_PER_SEC / 1_000)),
    }
}

/// Thousandths of something: `"0.5"`.
pub(super) fn amount(text: &str) -> Result<u64, Wrong> {
    quantity(text, &[("", 1_000)], "a number", "\"5\"")
}

/// Thousandths of events a second, above 0 and at most a billion events: `"2000/s"`.
pub fn event_rate(text: &str) -> Result<u64, Wrong> {
    let milli = quantity(text, &[("/s", 1_000)], "a rate", "\"2000/s\"")?;
    match milli {
        0 => Err(above_zero("\"2000/s\"")),
        1..=1_000_000_000_000 => Ok(milli),
        _ => Err("must be at most 1000000000/s".to_owned()),
    }
}

/// As [`event_rate`], but 100 events at least: of rarer ones too few are sampled.
pub(super) fn key_rate(text: &str) -> Result<u64, Wrong> {
    match event_rate(text)? {
        0..100_000 => Err("must be at least 100/s".to_owned()),
        milli => Ok(milli),
    }
}

/// A price of at most a million request units: `"0.5 RU"`.
pub(super) fn price(text: &str) -> Result<MilliRu, Wrong> {
    let milli_ru = quantity(text, &[("RU", 1_000)], "a price in request units", "\"0.5 RU\"")?;
    match u32::try_from(milli_ru) {
        Ok(milli_ru) if milli_ru <= MAX_PRICE.0 => Ok(MilliRu(milli_ru)),
        _ => Err(format!("must be at most {} RU", MAX_PRICE.0 / 1_000)),
    }
}

/// The dearest price that can be configured: far above any request's, far below overflow.
const MAX_PRICE: MilliRu = MilliRu(1_000_000_000);

/// A factor on prices from 1 to 64: `"4"`, `"1.5"`. Rounded up.
pub(super) fn multiplier(text: &str) -> Result<Multiplier, Wrong> {
    let thousandths = quantity(text, &[("", 1_000)], "a factor", "\"4\"")?;
    match u32::try_from(thousandths) {
        Ok(thousandths @ 1_000..=64_000) => Ok(Multiplier((thousandths * Multiplier::ONE.0).div_ceil(1_000))),
        _ => Err("must be from 1 to 64".to_owned()),
    }
}

/// A share of a whole: `"12.5%"`.
pub fn percentage(text: &str) -> Result<Fraction, Wrong> {
    let millionths = quantity(text, &[("%", 10_000)], "a percentage", "\"100%\"")?;
    if millionths > 1_000_000 {
        return Err("must be from 0% to 100%".to_owned());
    }
    Ok(Fraction::of(millionths, 1_000_000))
}

/// A share of a whole as a number from 0 to 1: `"0.05"`.
pub(super) fn share(text: &str) -> Result<Fraction, Wrong> {
    let millionths = quantity(text, &[("", 1_000_000)], "a number from 0 to 1", "\"0.05\"")?;
    if millionths > 1_000_000 {
        return Err("must be from 0 to 1".to_owned());
    }
    Ok(Fraction::of(millionths, 1_000_000))
}

/// Prints a size in the largest unit that holds it exactly.
pub fn print_size(bytes: u64) -> String {
    let largest = SIZE.iter().rev().find(|&&(_, unit)| bytes >= unit && bytes.is_multiple_of(unit));
    let (name, unit) = largest.unwrap_or(&SIZE[0]);
    format!("{}{name}", bytes / unit)
}

fn within(value: u64, min: u64, max: u64, print: impl Fn(u64) -> String) -> Result<u64, Wrong> {
    if (min..=max).contains(&value) {
        return Ok(value);
    }
    Err(format!("must be from {} to {}", print(min), print(max)))
}

/// Reads a number and one of `units`, into multiples of the smallest.
fn quantity(text: &str, units: &[(&str, u64)], what: &str, example: &str) -> Result<u64, Wrong> {
    let wrong = || not_a(what, example);
    if text.starts_with('-') {
        return Err(above_zero(example));
    }
    let end = text.find(|c: char| !matches!(c, '0'..='9' | '.' | '_')).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = unit.trim_start_matches(' ');
    let &(_, scale) = units.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
    match decimal(number, scale) {
        Decimal::Exactly(value) => Ok(value),
        Decimal::NotANumber => Err(wrong()),
        Decimal::TooFine => Err(format!("has more digits than its unit holds; write e.g. {example}")),
        Decimal::TooLarge => Err(format!("is larger than can be counted; write e.g. {example}")),
    }
}

enum Decimal {
    Exactly(u64),
    NotANumber,
    TooFine,
    TooLarge,
}

/// `number * scale`, exactly.
fn decimal(number: &str, scale: u64) -> Decimal {
    let (whole, fraction) = number.split_once('.').map_or((number, None), |(w, f)| (w, Some(f)));
    let grouped = |digits: &str| {
        !digits.is_empty()
            && !digits.starts_with('_')
            && !digits.ends_with('_')
            && !digits.contains("__")
            && digits.bytes().all(|b| b.is_ascii_digit() || b == b'_')
    };
    if !grouped(whole) || !fraction.is_none_or(grouped) {
        return Decimal::NotANumber;
    }
    let fraction = fraction.unwrap_or_default().replace('_', "");
    let fraction = fraction.trim_end_matches('0');
    let digits = whole.replace('_', "") + fraction;
    // Beyond 10^18 parts no unit here can hold the fraction.
    let Some(parts) = u32::try_from(fraction.len()).ok().and_then(|n| 10_u128.checked_pow(n)) else {
        return Decimal::TooFine;
    };
    let Ok(digits) = digits.trim_start_matches('0').parse::<u128>().or_else(|error| match error.kind() {
        std::num::IntErrorKind::Empty => Ok(0),
        _ => Err(error),
    }) else {
        return Decimal::TooLarge;
    };
    let Some(scaled) = digits.checked_mul(u128::from(scale)) else { return Decimal::TooLarge };
    if !scaled.is_multiple_of(parts) {
        return Decimal::TooFine;
    }
    u64::try_from(scaled / parts).map_or(Decimal::TooLarge, Decimal::Exactly)
}

fn not_a(what: &str, example: &str) -> Wrong {
    format!("must be {what}, e.g. {example}")
}

fn above_zero(example: &str) -> Wrong {
    format!("must be above 0, e.g. {example}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_with_its_unit_is_read_exactly() {
        let time = |text| duration(text, Nanos::ZERO, Nanos::MAX).map(|n| n.0);
        for (read, exactly) in [
            (time("100ms"), 100_000_000),
            (time("1.5 s"), 1_500_000_000),
            (time("0.000000001s"), 1),
            (time("2µs"), 2_000),
            (time("1_000us"), 1_000_000),
            (time("0.50h"), 1_800_000_000_000),
            (time("18446744073709551615ns"), u64::MAX),
            (size("64MiB", 0, u64::MAX), 64 << 20),
            (size("0.5KiB", 0, u64::MAX), 512),
            (size("0 B", 0, u64::MAX), 0),
            (byte_rate("64KiB/s", 0, u64::MAX), 65_536),
            (ru_rate("5000 RU/s").map(Option::unwrap), 5_000_000),
            (ru_rate("0.001RU/s").map(Option::unwrap), 1),
            (event_rate("2000/s"), 2_000_000),
            (price("0.5 RU").map(|p| p.0.into()), 500),
            (percentage("100%").map(|f| f.steps().into()), 65_536),
            (percentage("12.5 %").map(|f| f.steps().into()), 8_192),
            (percentage("0%").map(|f| f.steps().into()), 0),
        ] {
            assert_eq!(read, Ok(exactly));
        }
        assert_eq!(ru_rate("unlimited"), Ok(None));
    }

    #[test]
    fn a_fault_says_what_would_be_right() {
        let time = |text: &str| duration(text, Nanos(1), Nanos::from_secs(60)).map(|n| n.0);
        for (read, hint) in [
            (time("100"), "e.g. \"100ms\""),
            (time("ms"), "e.g. \"100ms\""),
            (time(""), "e.g. \"100ms\""),
            (time("1,5s"), "e.g. \"100ms\""),
            (time("1.2.3s"), "e.g. \"100ms\""),
            (time("1.s"), "e.g. \"100ms\""),
            (time("_1s"), "e.g. \"100ms\""),
            (time("100 MS"), "e.g. \"100ms\""),
            (time("+1s"), "e.g. \"100ms\""),
            (time("-1s"), "above 0"),
            (time("0.5ns"), "more digits"),
            (time("0ns"), "from 1ns to 60s"),
            (time("2min"), "from 1ns to 60s"),
            (time("99999999999999999999999999999999999999999h"), "larger than"),
            (time("0.00000000000000000000000000000000000000000001h"), "more digits"),
            (size("64 MB", 0, 1 << 30), "MiB"),
            (size("2GiB", 0, 1 << 30), "from 0B to 1GiB"),
            (byte_rate("64KiB", 0, 1), "64KiB/s"),
            (byte_rate("64 RU/s", 0, 1), "64KiB/s"),
            (ru_rate("5000").map(Option::unwrap), "5000 RU/s"),
            (ru_rate("0 RU/s").map(Option::unwrap), "above 0"),
            (ru_rate("2000000000 RU/s").map(Option::unwrap), "at most 1000000000 RU/s"),
            (event_rate("2000"), "e.g. \"2000/s\""),
            (event_rate("0/s"), "above 0"),
            (event_rate("2000000000/s"), "at most"),
            (price("1000000.1 RU").map(|p| p.0.into()), "at most 1000000 RU"),
            (percentage("101%").map(|f| f.steps().into()), "from 0% to 100%"),
            (percentage("0.5").map(|f| f.steps().into()), "100%"),
        ] {
            let wrong = read.expect_err(hint);
            assert!(wrong.contains(hint), "{wrong:?} lacks {hint:?}");
        }
    }

    #[test]
    fn a_size_prints_in_its_largest_unit() {
        for (bytes, printed) in [(0, "0B"), (1_000, "1000B"), (65_536, "64KiB"), (3 << 30, "3GiB")] {
            assert_eq!(print_size(bytes), printed);
        }
    }

    proptest::proptest! {
        #[test]
        fn no_string_makes_a_reader_panic(text in "[0-9._ a-zA-Zµ%/+-]{0,50}") {
            let _ = duration(&text, Nanos::ZERO, Nanos::MAX);
            let _ = byte_rate(&text, 0, u64::MAX);
            let _ = ru_rate(&text);
            let _ = price(&text);
            let _ = percentage(&text);
        }

        #[test]
        fn a_printed_size_reads_back(bytes: u64) {
            proptest::prop_assert_eq!(size(&print_size(bytes), 0, u64::MAX), Ok(bytes));
        }
    }
}
