//! Columns of numbers, one for each handle of a report, which are left out if all are zero; and the unit that keeps them small.

/// A column of these numbers.
#[must_use]
pub fn column(numbers: impl IntoIterator<Item = u64>) -> Vec<u64> {
    let column: Vec<u64> = numbers.into_iter().collect();
    if column.iter().all(|&number| number == 0) { Vec::new() } else { column }
}

/// The number in a place of a column.
pub(crate) fn value(column: &[u64], place: usize) -> u64 {
    column.get(place).copied().unwrap_or(0)
}

/// True if a column has a number for each of so many handles.
pub(crate) fn fits(column: &[u64], handles: usize) -> bool {
    column.is_empty() || column.len() == handles
}

/// The largest number that all of these are multiples of; at least 1.
#[must_use]
pub fn common_unit(amounts: impl IntoIterator<Item = u64>) -> u64 {
    let mut unit = 0;
    for amount in amounts {
        unit = common_divisor(amount, unit);
        if unit == 1 {
            break;
        }
    }
    unit.max(1)
}

fn common_divisor(mut one: u64, mut other: u64) -> u64 {
    while other > 0 {
        let rest = one % other;
        one = other;
        other = rest;
    }
    one
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_is_the_largest_that_all_are_multiples_of() {
        for (amounts, unit) in [
            (&[][..], 1),
            (&[0, 0], 1),
            (&[0, 3_000], 3_000),
            (&[2_000, 0, 3_000], 1_000),
            (&[1_500, 31], 1),
            (&[u64::MAX, 5], 5),
        ] {
            assert_eq!(common_unit(amounts.iter().copied()), unit, "{amounts:?}");
        }
    }

    #[test]
    fn a_column_of_zeros_is_left_out_and_read_as_zeros() {
        assert!(column([0, 0]).is_empty());
        assert_eq!(column([0, 2]), [0, 2]);
        assert!(fits(&[], 2) && fits(&[0, 2], 2) && !fits(&[2], 2));
        assert_eq!([0, 1].map(|place| value(&[], place)), [0, 0]);
        assert_eq!([0, 1].map(|place| value(&[0, 2], place)), [0, 2]);
    }
}
