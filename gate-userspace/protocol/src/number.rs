//! Numbers as text.

/// Appends `number` in decimal.
pub(super) fn write(mut number: u64, out: &mut Vec<u8>) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// Appends so many thousandths, with as many places behind the point as it takes.
pub(super) fn write_thousandths(thousandths: u64, out: &mut Vec<u8>) {
    write(thousandths / 1_000, out);
    let mut rest = thousandths % 1_000;
    if rest > 0 {
        out.push(b'.');
    }
    let mut place = 100;
    while rest > 0 {
        out.push(b'0' + (rest / place) as u8);
        rest %= place;
        place /= 10;
    }
}

/// A number written in digits alone: no sign, no blanks.
pub(super) fn unsigned(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > 20 {
        return None;
    }
    text.iter().try_fold(0_u64, |number, &byte| {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        number.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{unsigned, write, write_thousandths};

    #[test]
    fn only_digits_that_fit_are_numbers() {
        for text in
            ["", "-1", "+1", " 1", "1 ", "1\r", "0x1", "18446744073709551616", "100000000000000000000"]
        {
            assert_eq!(unsigned(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(unsigned(b"007"), Some(7));
    }

    proptest! {
        #[test]
        fn thousandths_are_written_as_a_fraction_is(number: u32) {
            let mut text = Vec::new();
            write_thousandths(number.into(), &mut text);
            prop_assert_eq!(String::from_utf8(text).unwrap(), (f64::from(number) / 1e3).to_string());
        }

        #[test]
        fn what_is_written_is_read(number: u64) {
            let mut text = Vec::new();
            write(number, &mut text);
            prop_assert_eq!(unsigned(&text), Some(number));
            prop_assert_eq!(String::from_utf8(text).unwrap(), number.to_string());
        }
    }
}
