//! Keys: how many there are, which are asked for, and how they are written.

use rand_distr::Zipf;

use crate::sim::rng::Rng;

/// The distribution of keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Keys {
    Uniform { count: u64 },
    Zipf { count: u64, exponent: f64 },
}

impl Keys {
    /// How many there are.
    pub(super) const fn count(self) -> u64 {
        match self {
            Self::Uniform { count } | Self::Zipf { count, .. } => count,
        }
    }
}

/// Ranks from 0, the most frequent first.
pub(super) enum KeyDistribution {
    Uniform(u64),
    Zipf(Zipf<f64>),
}

impl KeyDistribution {
    pub(super) fn new(keys: Keys) -> Self {
        match keys {
            Keys::Uniform { count } => Self::Uniform(count),
            Keys::Zipf { count, exponent } => {
                Self::Zipf(Zipf::new(count as f64, exponent).expect("count and exponent are in range"))
            }
        }
    }

    pub(super) fn draw(&self, rng: &mut Rng) -> u64 {
        match self {
            // The high half of the product is uniform, within one part in 2^64 / count.
            Self::Uniform(count) => ((u128::from(rng.bits()) * u128::from(*count)) >> 64) as u64,
            Self::Zipf(zipf) => rng.draw(zipf) as u64 - 1,
        }
    }
}

/// Appends a key: what it begins with, and its rank.
pub(super) fn push_key(text: &mut String, prefix: &str, rank: u64) {
    text.push_str(prefix);
    text.push(':');
    push_decimal(text, rank);
}

/// Appends a number; formatting it would cost more than everything else about a request.
fn push_decimal(text: &mut String, mut number: u64) {
    let mut digits = [0; 20];
    let mut start = digits.len();
    loop {
        start -= 1;
        digits[start] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    text.extend(digits[start..].iter().map(|&digit| char::from(digit)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_is_written_in_decimal() {
        for number in [0, 7, 10, 1_234_567, u64::MAX] {
            let mut text = String::new();
            push_key(&mut text, "a", number);
            assert_eq!(text, format!("a:{number}"));
        }
    }
}
