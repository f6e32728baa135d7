//! One spelling of `Accept-Encoding` for each set of codings that a client takes (RFC 9110, 12.5.3). Pure.
//!
//! A client chooses the spelling, and each one would be a key of its own. Weights other than zero, order and codings that are
//! not in [`KNOWN`] are left out, as Varnish and CDNs do: every answer to the normalised field is one that the client takes.

use hyper::header::HeaderValue;

/// The normalised field.
pub(super) fn normalised(field: &HeaderValue) -> HeaderValue {
    let text = field.to_str().unwrap_or_default().to_ascii_lowercase();
    let mut taken = [false; KNOWN.len()];
    let mut refused = [false; KNOWN.len()];
    let mut others = None;
    let mut identity = None;
    for item in text.split(',') {
        let mut parts = item.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default();
        let Some(is_taken) = parts.next().map_or(Some(true), has_weight) else { continue };
        let name = name.strip_prefix("x-").unwrap_or(name);
        match KNOWN.iter().position(|&known| known == name) {
            Some(place) if is_taken => taken[place] = true,
            Some(place) => refused[place] = true,
            None if name == "*" => others = Some(is_taken),
            None if name == "identity" => identity = Some(is_taken),
            None => {}
        }
    }
    let takes_others = others == Some(true);
    let mut spelled: Vec<String> = Vec::new();
    for (place, name) in KNOWN.into_iter().enumerate() {
        match (taken[place], refused[place]) {
            (true, false) => spelled.push(name.to_owned()),
            (_, true) if takes_others => spelled.push(format!("{name};q=0")),
            _ => {}
        }
    }
    if takes_others {
        spelled.push("*".to_owned());
    }
    match identity.or(others.filter(|is_taken| !is_taken)) {
        Some(false) => spelled.push("identity;q=0".to_owned()),
        _ if spelled.is_empty() => spelled.push("identity".to_owned()),
        _ => {}
    }
    HeaderValue::try_from(spelled.join(", ")).unwrap_or(HeaderValue::from_static("identity"))
}

/// True for a weight above zero; `None` for what is no weight.
fn has_weight(parameter: &str) -> Option<bool> {
    let digits = parameter.strip_prefix("q=")?.trim();
    let (whole, rest) = digits.split_once('.').unwrap_or((digits, ""));
    let is_number =
        matches!(whole, "0" | "1") && rest.len() <= 3 && rest.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.bytes().any(|byte| (b'1'..=b'9').contains(&byte)))
}

/// The registered codings that servers and browsers use.
const KNOWN: [&str; 5] = ["br", "compress", "deflate", "gzip", "zstd"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_that_mean_the_same_are_one_key() {
        for (fields, expected) in [
            (
                &[
                    "gzip",
                    "GZIP",
                    " gzip ",
                    "x-gzip",
                    "gzip;q=1",
                    "gzip; q=0.5",
                    "gzip,gzip",
                    "gzip, unknown",
                    "br;q=0, gzip",
                ][..],
                "gzip",
            ),
            (
                &[
                    "gzip, br",
                    "br,gzip",
                    "br;q=1.0, gzip;q=0.8",
                    "identity, br, gzip",
                    "gzip, br, *;q=0, identity;q=0.1",
                ],
                "br, gzip",
            ),
            (&["gzip, deflate, br, zstd", "zstd, br, gzip, deflate"], "br, deflate, gzip, zstd"),
            (
                &[
                    "",
                    "identity",
                    "unknown",
                    "gzip;q=0",
                    "gzip;q=0.000",
                    "gzip;q=2",
                    "gzip;q=x",
                    "gzip;level=1",
                ],
                "identity",
            ),
            (&["*", "*;q=0.1"], "*"),
            (&["gzip;q=0, *"], "gzip;q=0, *"),
            (&["gzip, identity;q=0", "gzip, *;q=0"], "gzip, identity;q=0"),
            (&["*;q=0"], "identity;q=0"),
        ] {
            for field in fields {
                assert_eq!(normalised(&HeaderValue::from_static(field)), expected, "{field:?}");
            }
        }
    }
}
