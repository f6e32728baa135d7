//! `SCAN` before a Redis Cluster: a node is asked with its own cursor, and its client reads that of the scan.

use crate::protocol::resp::Request;

/// The cursor of a scan, as clients write it; `None` if it is no number.
pub(super) fn cursor(request: &Request, bytes: &[u8]) -> Option<u64> {
    unsigned(request.args(bytes).nth(1)?)
}

/// A number of digits alone.
pub(super) fn unsigned(text: &[u8]) -> Option<u64> {
    let is_number = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text).ok().filter(|_| is_number)?.parse().ok()
}

/// Appends a scan with another cursor. Without one it is no number: a node refuses it in its own words.
pub(super) fn with_cursor(request: &Request, bytes: &[u8], cursor: Option<u64>, out: &mut Vec<u8>) {
    let cursor = cursor.map_or_else(|| NO_CURSOR.to_owned(), |cursor| cursor.to_string());
    request.write_with(1, cursor.as_bytes(), bytes, out);
}

const NO_CURSOR: &str = "none";

#[cfg(test)]
mod tests {
    use super::super::tests::request;
    use super::*;

    #[test]
    fn a_cursor_is_a_number_and_all_else_is_carried() {
        for (text, number) in [
            ("0", Some(0)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("-1", None),
            ("+1", None),
            ("0x1", None),
            ("a", None),
        ] {
            let (request, bytes) = request(&format!("scan {text} MATCH a* COUNT 5 TYPE list"));
            assert_eq!(cursor(&request, &bytes), number, "{text}");
            let mut out = Vec::new();
            with_cursor(&request, &bytes, Some(12_345), &mut out);
            let (request, bytes) = super::super::tests::request(&String::from_utf8(out.clone()).unwrap());
            let args: Vec<_> = request.args(&bytes).map(String::from_utf8_lossy).collect();
            assert_eq!(args.join(" "), "scan 12345 MATCH a* COUNT 5 TYPE list");
        }
        let (request, bytes) = request("SCAN x");
        let mut out = Vec::new();
        with_cursor(&request, &bytes, None, &mut out);
        assert_eq!(out, b"*2\r\n$4\r\nSCAN\r\n$4\r\nnone\r\n");
    }
}
