//! The number that follows a type's first byte.

/// The result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Length {
    /// Its end has not come.
    Incomplete,
    /// Not a number as RESP writes them.
    Bad,
    /// A number, and where what follows it begins.
    Is(i64, usize),
}

/// Reads the number at `input[at..]`: no sign but a minus, no needless zero, a carriage return and a newline.
#[inline]
pub(super) fn read(input: &[u8], at: usize) -> Length {
    // Nearly all have one digit or two.
    match input.get(at..).and_then(<[u8]>::first_chunk) {
        Some(&[ones @ b'0'..=b'9', b'\r', b'\n', _]) => Length::Is(digit(ones), at + 3),
        Some(&[tens @ b'1'..=b'9', ones @ b'0'..=b'9', b'\r', b'\n']) => {
            Length::Is(10 * digit(tens) + digit(ones), at + 4)
        }
        _ => read_any(input, at),
    }
}

fn read_any(input: &[u8], at: usize) -> Length {
    let mut number = 0_i64;
    let mut digits = 0;
    let mut negative = false;
    let mut rest = input.get(at..).unwrap_or_default().iter().enumerate();
    loop {
        let Some((place, &byte)) = rest.next() else { return Length::Incomplete };
        match byte {
            b'0'..=b'9' => {
                if digits > 0 && number == 0 {
                    return Length::Bad;
                }
                let next = if negative { -digit(byte) } else { digit(byte) };
                let Some(next) = number.checked_mul(10).and_then(|number| number.checked_add(next)) else {
                    return Length::Bad;
                };
                number = next;
                digits += 1;
            }
            b'-' if place == 0 => negative = true,
            b'\r' if digits > 0 && !(negative && number == 0) => {
                return match rest.next() {
                    Some((place, b'\n')) => Length::Is(number, at + place + 1),
                    Some(_) => Length::Bad,
                    None => Length::Incomplete,
                };
            }
            _ => return Length::Bad,
        }
    }
}

fn digit(byte: u8) -> i64 {
    i64::from(byte - b'0')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Length, read};

    #[test]
    fn numbers_are_as_redis_reads_them() {
        use Length::{Bad, Incomplete, Is};
        for (text, expected) in [
            ("", Incomplete),
            ("12", Incomplete),
            ("12\r", Incomplete),
            ("-", Incomplete),
            ("12\r\nx", Is(12, 5)),
            ("0\r\n", Is(0, 4)),
            ("1\r\n", Is(1, 4)),
            ("1\r\nxx", Is(1, 4)),
            ("10\r\n", Is(10, 5)),
            ("-1\r\n", Is(-1, 5)),
            ("01\r\n", Bad),
            ("9223372036854775807\r\n", Is(i64::MAX, 22)),
            ("-9223372036854775808\r\n", Is(i64::MIN, 23)),
            ("9223372036854775808", Bad),
            ("-9223372036854775809", Bad),
            ("\r\n", Bad),
            ("-\r\n", Bad),
            ("-0\r\n", Bad),
            ("007\r\n", Bad),
            ("+1\r\n", Bad),
            (" 1\r\n", Bad),
            ("1 \r\n", Bad),
            ("1\n", Bad),
            ("1\rx", Bad),
            ("1-1\r\n", Bad),
        ] {
            assert_eq!(read(format!("*{text}").as_bytes(), 1), expected, "{text:?}");
        }
        assert_eq!(read(b"", 1), Incomplete);
    }

    proptest! {
        #[test]
        fn every_number_is_read(number: i64, rest in "[^0-9]{0,3}") {
            let text = format!("{number}\r\n");
            prop_assert_eq!(read(format!("{text}{rest}").as_bytes(), 0), Length::Is(number, text.len()));
        }
    }
}
