//! Values as they are written in arguments and in a mix.

use std::str::FromStr;

use super::keys::Keys;
use gate_config::units;

/// `uniform:1000` or `zipf:1000:0.99`.
pub(super) fn keys(text: &str) -> Result<Keys, String> {
    let wrong = || "must be like uniform:1000 or zipf:1000:0.99".to_owned();
    let mut parts = text.split(':');
    let kind = parts.next();
    let count = number(parts.next().ok_or_else(wrong)?, 1, MAX_KEYS)?;
    match (kind, parts.next(), parts.next()) {
        (Some("uniform"), None, None) => Ok(Keys::Uniform { count }),
        (Some("zipf"), Some(exponent), None) => {
            let exponent: f64 = exponent.parse().map_err(|_| wrong())?;
            if !(0.0..=10.0).contains(&exponent) {
                return Err("must have an exponent from 0 to 10, e.g. zipf:1000:0.99".to_owned());
            }
            Ok(Keys::Zipf { count, exponent })
        }
        _ => Err(wrong()),
    }
}

/// The size of a value.
pub(super) fn value_bytes(text: &str) -> Result<usize, String> {
    let bytes = units::size(text, 0, MAX_VALUE_BYTES)?;
    Ok(usize::try_from(bytes).expect("a size that fits memory"))
}

pub(super) fn number<T: FromStr + PartialOrd + std::fmt::Display>(
    text: &str,
    min: T,
    max: T,
) -> Result<T, String> {
    let number = text.parse().ok().filter(|n| (&min..=&max).contains(&n));
    number.ok_or_else(|| format!("must be a number from {min} to {max}"))
}

/// Text that may stand in a memcached key.
pub(super) fn plain(what: &str, text: &str, max: usize) -> Result<String, String> {
    if (1..=max).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic()) {
        return Ok(text.to_owned());
    }
    Err(format!("must be a {what} of 1 to {max} printable ASCII characters without blanks"))
}

/// Leaves room for a colon and a rank within memcached's 250 bytes.
pub(super) const MAX_NAME: usize = 100;
/// So many keys of one kind.
pub(super) const MAX_KEYS: u64 = 1_000_000_000;
/// As large as memcached's items are by default, and enough for what Redis is used for.
const MAX_VALUE_BYTES: u64 = 1 << 20;
