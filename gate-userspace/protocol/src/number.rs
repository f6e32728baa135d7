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

    use super::{unsigned, write};

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
        fn what_is_written_is_read(number: u64) {
            let mut text = Vec::new();
            write(number, &mut text);
            prop_assert_eq!(unsigned(&text), Some(number));
            prop_assert_eq!(String::from_utf8(text).unwrap(), number.to_string());
        }
    }
}
