//! Inline requests: words on a line, with quotes as a shell has them.

use std::fmt;

use super::fault::FaultKind;
use crate::number;

/// A line as an array of bulk strings. Its memory is used again and again.
#[derive(Clone, Default)]
pub(super) struct Rewritten {
    bytes: Vec<u8>,
    word: Vec<u8>,
}

impl fmt::Debug for Rewritten {
    /// The contents are left out: they may be a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rewritten({} bytes)", self.bytes.len())
    }
}

impl Rewritten {
    /// The array.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Rewrites the words of `line`, which is without its end; how many there are.
    ///
    /// Source: `sdssplitargs` of Redis 7.0. Blanks before a word are the six of the C locale, but a vertical tab
    /// or a form feed does not end one.
    pub(super) fn rewrite(&mut self, line: &[u8]) -> Result<u32, FaultKind> {
        if memchr::memchr(0, line).is_some() {
            return Err(FaultKind::Nul);
        }
        let mut count = 0;
        let mut rest = line;
        while next(&mut rest, &mut self.word)? {
            count += 1;
        }
        self.bytes.clear();
        self.bytes.push(b'*');
        number::write(u64::from(count), &mut self.bytes);
        self.bytes.extend_from_slice(b"\r\n");
        let mut rest = line;
        while next(&mut rest, &mut self.word)? {
            self.bytes.push(b'$');
            number::write(self.word.len() as u64, &mut self.bytes);
            self.bytes.extend_from_slice(b"\r\n");
            self.bytes.extend_from_slice(&self.word);
            self.bytes.extend_from_slice(b"\r\n");
        }
        Ok(count)
    }
}

/// Moves `rest` past a word, which `word` then is; false if there is none.
fn next(rest: &mut &[u8], word: &mut Vec<u8>) -> Result<bool, FaultKind> {
    let blanks = rest.iter().take_while(|&&byte| is_blank(byte)).count();
    let text = &rest[blanks..];
    if text.is_empty() {
        return Ok(false);
    }
    word.clear();
    *rest = take(text, word).ok_or(FaultKind::Quotes)?;
    Ok(true)
}

/// Appends the word that `text` begins with to `word`; what follows it, or `None` if its quotes do not match.
fn take<'t>(mut text: &'t [u8], word: &mut Vec<u8>) -> Option<&'t [u8]> {
    loop {
        match text {
            [] | [b' ' | b'\n' | b'\r' | b'\t', ..] => return Some(text),
            // What ends with a quote ends a word.
            [b'"', quoted @ ..] => return after_quotes(double(quoted, word)?),
            [b'\'', quoted @ ..] => return after_quotes(single(quoted, word)?),
            [byte, rest @ ..] => {
                word.push(*byte);
                text = rest;
            }
        }
    }
}

fn after_quotes(rest: &[u8]) -> Option<&[u8]> {
    rest.first().is_none_or(|&byte| is_blank(byte)).then_some(rest)
}

/// The text between double quotes: `\xHH`, `\n` and its like, and a backslash before any other byte for that.
fn double<'t>(mut text: &'t [u8], word: &mut Vec<u8>) -> Option<&'t [u8]> {
    loop {
        match text {
            [b'"', rest @ ..] => return Some(rest),
            [b'\\', b'x', high, low, rest @ ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                word.push(hex(*high) << 4 | hex(*low));
                text = rest;
            }
            [b'\\', escaped, rest @ ..] => {
                word.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 0x08,
                    b'a' => 0x07,
                    other => *other,
                });
                text = rest;
            }
            [byte, rest @ ..] => {
                word.push(*byte);
                text = rest;
            }
            [] => return None,
        }
    }
}

/// The text between single quotes, as it stands but for `\'`.
fn single<'t>(mut text: &'t [u8], word: &mut Vec<u8>) -> Option<&'t [u8]> {
    loop {
        match text {
            [b'\\', b'\'', rest @ ..] => {
                word.push(b'\'');
                text = rest;
            }
            [b'\'', rest @ ..] => return Some(rest),
            [byte, rest @ ..] => {
                word.push(*byte);
                text = rest;
            }
            [] => return None,
        }
    }
}

const fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c)
}

/// The value of a hexadecimal digit.
const fn hex(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => (digit | 0x20) - b'a' + 10,
    }
}

#[cfg(test)]
mod tests {
    use super::super::fault::FaultKind;
    use super::Rewritten;

    #[test]
    fn words_are_split_as_redis_splits_them() {
        let rows: &[(&str, &[&str])] = &[
            ("", &[]),
            (" \t\x0b\x0c ", &[]),
            ("get  a\r", &["get", "a"]),
            ("set a \"x y\"", &["set", "a", "x y"]),
            ("set a \"\"", &["set", "a", ""]),
            (r#""\x41\x6a\xzz\n\r\t\a\b\"\\""#, &["Ajxzz\n\r\t\x07\x08\"\\"]),
            (r"'a\'b\n'", &[r"a'b\n"]),
            (r#"a"b c""#, &["ab c"]),
            ("a\x0bb", &["a\x0bb"]),
            (r"a\nb", &[r"a\nb"]),
        ];
        let mut rewritten = Rewritten::default();
        for (line, words) in rows {
            assert_eq!(rewritten.rewrite(line.as_bytes()), Ok(words.len() as u32), "{line:?}");
            let bulks: String = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
            let expected = format!("*{}\r\n{bulks}", words.len());
            assert_eq!(str::from_utf8(rewritten.bytes()), Ok(&expected[..]), "{line:?}");
        }
        for line in ["\"", "'", "\"a", "'a", "\"a\"b", "'a'b", "a\"b\"c", "\"\\", "\"\\\"", "'\\'"] {
            assert_eq!(rewritten.rewrite(line.as_bytes()), Err(FaultKind::Quotes), "{line:?}");
        }
        assert_eq!(rewritten.rewrite(b"get\0a"), Err(FaultKind::Nul));
    }
}
