//! Keys in base64, as memcached decodes them (`base64.c`, the same in every version that has the flag `b`).

use super::MAX_KEY;

/// The bytes of a decoded key: 3 of 4, padding not yet taken off.
pub(super) type Buffer = [u8; MAX_KEY];

/// The key that memcached decodes `text` to; `None` if it refuses it. Bytes outside the alphabet are skipped.
pub(super) fn decode<'b>(text: &[u8], buffer: &'b mut Buffer) -> Option<&'b [u8]> {
    let count = text.iter().filter(|&&byte| sextet(byte).is_some()).count();
    if count == 0 || !count.is_multiple_of(4) || text.len() > MAX_KEY {
        return None;
    }
    let mut bits = 0_u32;
    let mut len = 0;
    let mut padding = 0;
    for (place, (byte, sextet)) in text.iter().filter_map(|&byte| Some((byte, sextet(byte)?))).enumerate() {
        padding += usize::from(byte == b'=');
        bits = bits << 6 | sextet;
        if place % 4 < 3 {
            continue;
        }
        buffer[len..len + 3].copy_from_slice(&bits.to_be_bytes()[1..]);
        len += 3;
        bits = 0;
        if padding > 0 {
            break;
        }
    }
    (padding <= 2).then(|| &buffer[..len - padding])
}

/// The key that `text` is the standard spelling of; `None` if it is none.
pub(super) fn decode_standard<'b>(text: &[u8], buffer: &'b mut Buffer) -> Option<&'b [u8]> {
    let padding = text.iter().rev().take_while(|&&byte| byte == b'=').count();
    let is_standard = text.len().is_multiple_of(4)
        && padding <= 2
        && text[..text.len() - padding].iter().all(|&byte| byte != b'=' && sextet(byte).is_some());
    if is_standard { decode(text, buffer) } else { None }
}

/// The six bits of a byte of the alphabet; padding has none set.
fn sextet(byte: u8) -> Option<u32> {
    let value = match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        b'=' => 0,
        _ => return None,
    };
    Some(u32::from(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_comes_back_from_base64() {
        const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        for text in [&b"\x00\xff\x10"[..], b"own:", b"\xfb\xef\xbe\x01", b"12345"] {
            let mut encoded = Vec::new();
            for piece in text.chunks(3) {
                let bits = piece.iter().fold(0_u32, |bits, &byte| bits << 8 | u32::from(byte))
                    << (8 * (3 - piece.len()));
                let digits = (0..4).map(|place| ALPHABET[(bits >> (18 - 6 * place) & 63) as usize]);
                encoded.extend(digits.take(piece.len() + 1));
                encoded.extend(std::iter::repeat_n(b'=', 3 - piece.len()));
            }
            assert_eq!(decode(&encoded, &mut [0; MAX_KEY]), Some(text));
            assert_eq!(decode_standard(&encoded, &mut [0; MAX_KEY]), Some(text));
        }
    }

    #[test]
    fn other_spellings_are_decoded_as_memcached_does() {
        for (text, expected) in [
            ("YT-pi", Some("a:b")),
            ("\u{1}YTpi", Some("a:b")),
            // memcached ignores bytes behind the padding.
            ("YQ==YTpi", Some("a")),
            ("YTpiYQ==YTpi", Some("a:ba")),
            ("YT=i", Some("a0")),
            ("Y===", None),
            ("====", None),
            ("YTp", None),
            ("YTpiY", None),
            ("!!!", None),
            ("", None),
        ] {
            let mut buffer = [0; MAX_KEY];
            let decoded = decode(text.as_bytes(), &mut buffer);
            assert_eq!(decoded, expected.map(str::as_bytes), "{text}");
            assert_eq!(decode_standard(text.as_bytes(), &mut [0; MAX_KEY]), None, "{text}");
        }
    }
}
