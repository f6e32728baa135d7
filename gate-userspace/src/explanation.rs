//! Explanations: what the next request of a client would get, and why. Plain data, and requests out of words.
//!
//! A proxied service explains by the functions of its own pipeline (`dispatcher/pipeline/explain.rs`,
//! `dispatcher/http/explain.rs`), a guarded one by
//! those that the XDP program shares with the daemon (`admin/explain/guarded.rs`). Neither takes, counts or draws.

use std::net::IpAddr;

use gate_common::token_bucket::{Limits, Take};
use gate_common::units::{MilliRu, Nanos};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A request that is asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The client.
    pub client: Asker,
    /// The user as whom it has logged in.
    pub user: Option<String>,
    /// The words of the command: for Redis its arguments, for memcached the words of its line, and behind them the value
    /// of a command that has one. A value that is left out is made up. For HTTP the method, the target, and fields.
    pub words: Vec<Vec<u8>>,
}

/// The client that would send the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asker {
    /// A client at this address.
    Source(IpAddr),
    /// Any client of the tenant with this name.
    Tenant(String),
}

/// The verdict on the next request of a client, and the grounds for it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Explanation {
    /// The service.
    pub service: String,
    /// Where it is decided: `proxy`, or `xdp` for a guarded service.
    pub layer: String,
    /// The command, with bytes that are not printable ASCII as `\xNN`.
    pub command: String,
    /// The tenant that is charged; nothing if none is.
    pub tenant: Option<String>,
    /// The rule that names the tenant.
    pub rule: String,
    /// The query type; only of a proxied service.
    pub query_type: Option<String>,
    /// The tier of the request.
    pub tier: String,
    /// The shedding of that tier at the service: 0 is none, up to 6 a doubling of prices each, 7 a refusal.
    pub rung: u32,
    /// The price and its terms.
    pub price: PriceTerms,
    /// The buckets that are asked, in their order.
    pub buckets: Vec<Bucket>,
    /// True if its first key is hot.
    pub hot: bool,
    /// The expected response time beside each target of its objective; only where a policy knows one.
    pub estimates: Vec<Expected>,
    /// The result.
    pub verdict: Verdict,
    /// The reason of a refusal.
    pub reason: Option<String>,
    /// The name of the bucket that refuses it.
    pub bucket: Option<String>,
    /// The rule of the configuration that denies it: `deny`, `keys`, `size`, `burst`, `users` or `tenant_header`.
    #[serde(default)]
    pub denied_by: Option<String>,
    /// When it is worth another try, in ms.
    pub retry_after_ms: Option<f64>,
    /// The chance that a draw refuses it, from 0 to 1, where one decides. The verdict is that of the next draw of the thread
    /// that was asked; another thread has another.
    pub refused_by_chance: Option<f64>,
    /// Reasons for which it would be refused, if refusals of this client were not only counted.
    pub shadowed: Vec<String>,
    /// Remarks.
    pub notes: Vec<String>,
}

/// The result for a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The request goes to the store at once.
    #[default]
    Passes,
    /// The request waits for a permit.
    Queued,
    /// A kept answer of a hot key answers it.
    Cached,
    /// Another client's read of the same key answers it.
    Joins,
    /// gate answers it by itself.
    Answered,
    /// The request is refused.
    Refused,
    /// The request is dropped without an answer.
    Dropped,
}

/// The terms of a price, in request units.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PriceTerms {
    /// The price class, as in `gate queues`.
    pub class: String,
    /// The rows that it names, or is expected to read.
    pub rows: u32,
    /// Its bytes, and those beyond them that it is expected to read.
    pub bytes: u64,
    /// The part of any request.
    pub base_ru: f64,
    /// The part for its rows.
    pub rows_ru: f64,
    /// The part for its bytes.
    pub bytes_ru: f64,
    /// The part for its expected latency.
    pub latency_ru: f64,
    /// True if rows or bytes are those that the last such requests have read.
    pub learned: bool,
    /// The factor of the tenant.
    pub multiplier: f64,
    /// The sum that is charged, with factor and rung, and no more than the buckets ever admit.
    pub ru: f64,
}

/// One bucket, as the request finds it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Bucket {
    /// `quota` of the tenant itself, `charge` of one that is charged with it, `limit` by what is asked, `hot-key`, or
    /// `candidate`, which only counts.
    pub kind: String,
    /// The tenant that has the quota, the name of the limit, or the key.
    pub name: String,
    /// `RU`, or `requests`.
    pub unit: String,
    /// Its content; below 0 in debt.
    pub level: f64,
    /// Its content when it is full.
    pub full: f64,
    /// The rate at which it fills, a second.
    pub per_s: f64,
    /// The sum that the request takes.
    pub cost: f64,
    /// True if it admits the request.
    pub admits: bool,
    /// The time until it does, in ms; nothing if it admits it, or never does.
    pub wait_ms: Option<f64>,
}

/// The response time that is expected of a request, at one percentile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Expected {
    /// From 0 to 100.
    pub percentile: f64,
    /// In ms.
    pub expected_ms: f64,
    /// The objective, in ms.
    pub objective_ms: f64,
}

impl Bucket {
    /// A bucket from what its word and its limits say. `debt` is the time until it is full, `cost` in thousandths.
    #[must_use]
    pub fn new(
        kind: &str,
        name: &str,
        unit: &str,
        limits: &Limits,
        debt: Nanos,
        cost: MilliRu,
        take: Take,
    ) -> Self {
        // A thousandth a second is the unit of rates.
        let per_ns = limits.rate.units_per_sec().map_or(0.0, |milli| milli as f64 / 1e12);
        let full = limits.burst_ns as f64 * per_ns;
        Self {
            kind: kind.to_owned(),
            name: name.to_owned(),
            unit: unit.to_owned(),
            level: full - debt.0 as f64 * per_ns,
            full,
            per_s: per_ns * 1e9,
            cost: f64::from(cost.0) / 1e3,
            admits: matches!(take, Take::Admit { .. }),
            wait_ms: match take {
                Take::Refuse { wait_ns } => Some(millis(Nanos(wait_ns))),
                Take::Admit { .. } | Take::TooLarge => None,
            },
        }
    }
}

/// Milliseconds.
#[must_use]
pub fn millis(time: Nanos) -> f64 {
    time.0 as f64 / 1e6
}

/// The bytes of a command, by its words; of memcached without the value that may follow.
///
/// # Errors
///
/// The fault in the words.
pub fn encode(words: &[Vec<u8>], is_resp: bool) -> Result<Vec<u8>, String> {
    if words.is_empty() || words[0].is_empty() {
        return Err("name a command, e.g. `-- get foo`".to_owned());
    }
    if words.iter().map(Vec::len).sum::<usize>() > MAX_BYTES {
        return Err(format!("a command that is asked about has at most {MAX_BYTES} bytes"));
    }
    let mut bytes = Vec::new();
    if is_resp {
        bytes.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
        for word in words {
            bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            bytes.extend_from_slice(word);
            bytes.extend_from_slice(b"\r\n");
        }
        return Ok(bytes);
    }
    let (line, value) = split_value(words);
    if line.iter().any(|word| word.iter().any(|byte| b"\r\n".contains(byte))) {
        return Err("that is several lines; ask about one command at a time".to_owned());
    }
    bytes.extend_from_slice(&line.join(&b' '));
    bytes.extend_from_slice(b"\r\n");
    if let Some(value) = value {
        bytes.extend_from_slice(value);
        bytes.extend_from_slice(b"\r\n");
    }
    Ok(bytes)
}

/// The words of memcached's line, and the value behind them: `set key 0 0 5 hello`.
fn split_value(words: &[Vec<u8>]) -> (&[Vec<u8>], Option<&[u8]>) {
    let length_at = match &*words[0] {
        b"set" | b"add" | b"replace" | b"append" | b"prepend" | b"cas" => 4,
        b"ms" => 2,
        _ => return (words, None),
    };
    let length = words.get(length_at).and_then(|word| std::str::from_utf8(word).ok()?.parse::<usize>().ok());
    match words.split_last() {
        Some((last, line)) if line.len() > length_at && length == Some(last.len()) => (line, Some(last)),
        _ => (words, None),
    }
}

/// The words as one line, with bytes that are not printable ASCII as `\xNN`.
#[must_use]
pub fn shown(words: &[Vec<u8>]) -> String {
    let line = words.join(&b' ');
    let mut shown = line[..line.len().min(MAX_SHOWN)].escape_ascii().to_string();
    if line.len() > MAX_SHOWN {
        shown.push_str("...");
    }
    shown
}

/// So that a question fits into the head of a request.
const MAX_BYTES: usize = 4 << 10;
/// The bytes of a command that an explanation repeats.
const MAX_SHOWN: usize = 200;

#[cfg(test)]
mod tests {
    use gate_common::token_bucket::take;

    use super::*;

    fn words(line: &str) -> Vec<Vec<u8>> {
        line.split(' ').map(|word| word.as_bytes().to_vec()).collect()
    }

    #[test]
    fn words_become_a_request_of_either_protocol() {
        for (line, memcached, resp) in [
            ("get foo", "get foo\r\n", "*2\r\n$3\r\nget\r\n$3\r\nfoo\r\n"),
            (
                "set k 0 0 1 v",
                "set k 0 0 1\r\nv\r\n",
                "*6\r\n$3\r\nset\r\n$1\r\nk\r\n$1\r\n0\r\n$1\r\n0\r\n$1\r\n1\r\n$1\r\nv\r\n",
            ),
            (
                "set k 0 0 1",
                "set k 0 0 1\r\n",
                "*5\r\n$3\r\nset\r\n$1\r\nk\r\n$1\r\n0\r\n$1\r\n0\r\n$1\r\n1\r\n",
            ),
            ("ms k 2 vv", "ms k 2\r\nvv\r\n", "*4\r\n$2\r\nms\r\n$1\r\nk\r\n$1\r\n2\r\n$2\r\nvv\r\n"),
        ] {
            assert_eq!(encode(&words(line), false).unwrap(), memcached.as_bytes(), "{line}");
            assert_eq!(encode(&words(line), true).unwrap(), resp.as_bytes(), "{line}");
        }
        for wrong in [vec![], vec![vec![]], words("get a\r\nget b"), vec![vec![b'x'; 5_000]]] {
            assert!(encode(&wrong, false).is_err(), "{}", shown(&wrong));
        }
        assert!(encode(&words("get a\r\nb"), true).is_ok(), "a key of Redis may have lines");
    }

    #[test]
    fn a_level_is_what_a_bucket_holds_and_below_zero_in_debt() {
        let limits = Limits::new(1_000_000, 500_000_000);
        for (debt, cost, level, admits) in [
            (0, 500_000, 500.0, true),
            (250_000_000, 500_000, 250.0, false),
            (750_000_000, 1_000, -250.0, false),
        ] {
            let take = take(1_000_000_000 + debt, 1_000_000_000, cost, &limits);
            let bucket = Bucket::new("quota", "a", "RU", &limits, Nanos(debt), MilliRu(cost), take);
            assert!((bucket.level - level).abs() < 1e-6 && bucket.admits == admits, "{bucket:?}");
            assert!((bucket.full - 500.0).abs() < 1e-6 && (bucket.per_s - 1_000.0).abs() < 1e-6);
            assert_eq!(bucket.wait_ms.is_some(), !admits);
        }
    }
}
