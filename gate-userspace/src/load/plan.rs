//! The load to offer: a [`Plan`] of tenants, each written as `key=value,key=value`.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use gate_common::units::Nanos;

use crate::config::units;

/// A whole run. Always bounded: by time, by count or by both.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where requests go.
    pub target: SocketAddr,
    /// How they get there.
    pub transport: Transport,
    /// How they are written. [`Protocol::Resp`] has TCP only.
    pub protocol: Protocol,
    /// The tenants, which send at the same time.
    pub tenants: Vec<TenantLoad>,
    /// For how long.
    pub duration: Nanos,
    /// How many requests each tenant sends at most; `None` for as many as the time holds.
    pub count: Option<u64>,
    /// After how long an answer is given up; 1 ms to 60 s.
    pub timeout: Nanos,
    /// Fixes arrivals and keys.
    pub seed: u64,
}

/// How requests get to the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// One request in a datagram.
    Udp,
    /// Requests pipelined over the tenant's connections.
    Tcp,
}

/// How requests are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// memcached's text protocol.
    #[default]
    Memcached,
    /// Redis' protocol.
    Resp,
}

/// One tenant's requests. Written, and checked, by [`TenantLoad::from_str`]:
///
/// `name=polite,source=198.18.1.1,rate=2000/s,keys=zipf:1000:0.99,hot=trend:20%`
///
/// | key | | default |
/// |---|---|---|
/// | `name` | any; also begins the tenant's keys | required |
/// | `rate` | requests a second, while it sends | required |
/// | `source` | a local address; may be given again, then they take turns | the kernel's choice |
/// | `arrivals` | `poisson`, `constant` | `poisson` |
/// | `bursts` | `200ms/1s`: sends for the first 200 ms of every second | always |
/// | `keys` | `uniform:COUNT`, `zipf:COUNT:EXPONENT` | `uniform:1000` |
/// | `reads` | the share of reads; the rest are writes | `100%` |
/// | `value` | the size of written values | `100B` |
/// | `hot` | `KEY:SHARE`: that share of requests asks for that one key | none |
/// | `connections` | over TCP, for each source | 4 |
#[derive(Clone, Debug, PartialEq)]
pub struct TenantLoad {
    pub(super) name: String,
    pub(super) sources: Vec<IpAddr>,
    pub(super) milli_per_sec: u64,
    pub(super) arrivals: Arrivals,
    pub(super) bursts: Option<Bursts>,
    pub(super) keys: Keys,
    pub(super) hot: Option<HotKey>,
    pub(super) reads: f64,
    pub(super) value_bytes: usize,
    pub(super) connections: usize,
}

/// When requests are due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrivals {
    Poisson,
    Constant,
}

/// Sends only in the first `on` of every `period`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bursts {
    pub(super) on: Nanos,
    pub(super) period: Nanos,
}

/// The distribution of keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Keys {
    Uniform { count: u64 },
    Zipf { count: u64, exponent: f64 },
}

/// One key that gets a share of its own.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct HotKey {
    pub(super) key: String,
    pub(super) share: f64,
}

/// Why a tenant is not one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {wrong}")]
pub struct TenantError {
    /// Which key is wrong.
    pub key: String,
    /// A correct value.
    pub wrong: String,
}

impl TenantLoad {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Requests a second, while it sends.
    #[must_use]
    pub fn per_sec(&self) -> f64 {
        self.milli_per_sec as f64 / 1e3
    }
}

impl FromStr for TenantLoad {
    type Err = TenantError;

    fn from_str(text: &str) -> Result<Self, TenantError> {
        let mut tenant = Self {
            name: String::new(),
            sources: Vec::new(),
            milli_per_sec: 0,
            arrivals: Arrivals::Poisson,
            bursts: None,
            keys: Keys::Uniform { count: 1_000 },
            hot: None,
            reads: 1.0,
            value_bytes: 100,
            connections: 4,
        };
        for pair in text.split(',') {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            tenant
                .set(key.trim(), value.trim())
                .map_err(|wrong| TenantError { key: key.trim().to_owned(), wrong })?;
        }
        let missing = [("name", tenant.name.is_empty()), ("rate", tenant.milli_per_sec == 0)];
        match missing.into_iter().find(|(_, missing)| *missing) {
            Some((key, _)) => Err(TenantError { key: key.to_owned(), wrong: "is missing".to_owned() }),
            None => Ok(tenant),
        }
    }
}

impl TenantLoad {
    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "name" => self.name = plain("name", value, MAX_NAME)?,
            "source" => {
                let source = value.parse().map_err(|_| "must be an address, e.g. 198.18.1.1".to_owned())?;
                self.sources.push(source);
                if self.sources.len() > MAX_SOURCES {
                    return Err(format!("must be at most {MAX_SOURCES}"));
                }
            }
            "rate" => {
                self.milli_per_sec = units::event_rate(value)?;
                if self.milli_per_sec > MAX_PER_SEC * 1_000 {
                    return Err(format!("must be at most {MAX_PER_SEC}/s"));
                }
            }
            "arrivals" => {
                self.arrivals = match value {
                    "poisson" => Arrivals::Poisson,
                    "constant" => Arrivals::Constant,
                    _ => return Err("must be poisson or constant".to_owned()),
                }
            }
            "bursts" => self.bursts = Some(bursts(value)?),
            "keys" => self.keys = keys(value)?,
            "hot" => self.hot = Some(hot_key(value)?),
            "reads" => self.reads = share(value)?,
            "value" => {
                let bytes = units::size(value, 0, MAX_VALUE_BYTES)?;
                self.value_bytes = usize::try_from(bytes).expect("a small size");
            }
            "connections" => self.connections = number(value, 1, MAX_CONNECTIONS)?,
            _ => {
                return Err("unknown; known are name, source, rate, arrivals, bursts, keys, reads, value, \
                            hot, connections"
                    .to_owned());
            }
        }
        Ok(())
    }
}

fn bursts(text: &str) -> Result<Bursts, String> {
    let (on, period) = text.split_once('/').ok_or("must be like 200ms/1s")?;
    let period = units::duration(period, Nanos::from_millis(1), Nanos::from_secs(3_600))?;
    let on = units::duration(on, Nanos::from_micros(1), period)?;
    Ok(Bursts { on, period })
}

fn keys(text: &str) -> Result<Keys, String> {
    let wrong = || "must be like uniform:1000 or zipf:1000:0.99".to_owned();
    let mut parts = text.split(':');
    let kind = parts.next();
    let count = number(parts.next().ok_or_else(wrong)?, 1, MAX_KEYS)?;
    match (kind, parts.next(), parts.next()) {
        (Some("uniform"), None, None) => Ok(Keys::Uniform { count }),
        (Some("zipf"), Some(exponent), None) => {
            let exponent: f64 = exponent.parse().map_err(|_| wrong())?;
            if !(0.0..=10.0).contains(&exponent) {
                return Err("must have an exponent from 0 to 10, e.g. zipf:1000:0.99".to_owned());
            }
            Ok(Keys::Zipf { count, exponent })
        }
        _ => Err(wrong()),
    }
}

fn hot_key(text: &str) -> Result<HotKey, String> {
    let (key, part) = text.rsplit_once(':').ok_or("must be like trend:20%")?;
    Ok(HotKey { key: plain("key", key, MAX_KEY)?, share: share(part)? })
}

fn share(text: &str) -> Result<f64, String> {
    Ok(f64::from(units::percentage(text)?.steps()) / 65_536.0)
}

fn number<T: FromStr + PartialOrd + std::fmt::Display>(text: &str, min: T, max: T) -> Result<T, String> {
    let number = text.parse().ok().filter(|n| (&min..=&max).contains(&n));
    number.ok_or_else(|| format!("must be a number from {min} to {max}"))
}

/// Text that may stand in a memcached key.
fn plain(what: &str, text: &str, max: usize) -> Result<String, String> {
    if (1..=max).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic()) {
        return Ok(text.to_owned());
    }
    Err(format!("must be a {what} of 1 to {max} printable ASCII characters without blanks"))
}

/// Leaves room for a colon and a rank within memcached's 250 bytes.
const MAX_NAME: usize = 100;
const MAX_KEY: usize = 250;
const MAX_KEYS: u64 = 1_000_000_000;
/// A request stays within one Ethernet frame, as memcached wants it over UDP.
const MAX_VALUE_BYTES: u64 = 1_024;
const MAX_SOURCES: usize = 256;
const MAX_CONNECTIONS: usize = 1_024;
const MAX_PER_SEC: u64 = 10_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_is_read_with_its_defaults() {
        let plain: TenantLoad = "name=polite,rate=2000/s".parse().unwrap();
        assert_eq!((plain.name(), plain.per_sec(), plain.reads), ("polite", 2_000.0, 1.0));
        let full = "name=hostile, source=198.18.1.1, source=fd00::1, rate=0.5/s, arrivals=constant, \
                    bursts=200ms/1s, keys=zipf:1000:0.99, reads=25%, value=1KiB, hot=a:b:50%, connections=2";
        let full: TenantLoad = full.parse().unwrap();
        let expected = TenantLoad {
            name: "hostile".to_owned(),
            sources: vec!["198.18.1.1".parse().unwrap(), "fd00::1".parse().unwrap()],
            milli_per_sec: 500,
            arrivals: Arrivals::Constant,
            bursts: Some(Bursts { on: Nanos::from_millis(200), period: Nanos::from_secs(1) }),
            keys: Keys::Zipf { count: 1_000, exponent: 0.99 },
            hot: Some(HotKey { key: "a:b".to_owned(), share: 0.5 }),
            reads: 0.25,
            value_bytes: 1_024,
            connections: 2,
        };
        assert_eq!(full, expected);
    }

    #[test]
    fn a_wrong_tenant_is_told_what_would_be_right() {
        for (text, reply) in [
            ("", ": unknown"),
            ("name=a", "rate: is missing"),
            ("rate=1/s", "name: is missing"),
            ("name=a b,rate=1/s", "name: must be a name"),
            ("name=a,rate=5", "rate: must be a rate, e.g. \"2000/s\""),
            ("name=a,rate=0/s", "rate: must be above 0"),
            ("name=a,rate=20000000/s", "rate: must be at most"),
            ("name=a,rate=1/s,source=localhost", "source: must be an address"),
            ("name=a,rate=1/s,arrivals=now", "arrivals: must be"),
            ("name=a,rate=1/s,bursts=1s", "bursts: must be like"),
            ("name=a,rate=1/s,bursts=2s/1s", "bursts: must be from"),
            ("name=a,rate=1/s,keys=uniform", "keys: must be like"),
            ("name=a,rate=1/s,keys=uniform:0", "keys: must be a number"),
            ("name=a,rate=1/s,keys=zipf:9", "keys: must be like"),
            ("name=a,rate=1/s,keys=zipf:9:NaN", "keys: must have an exponent"),
            ("name=a,rate=1/s,reads=101%", "reads: must be from"),
            ("name=a,rate=1/s,value=1MiB", "value: must be from"),
            ("name=a,rate=1/s,hot=key", "hot: must be like"),
            ("name=a,rate=1/s,hot=:1%", "hot: must be a key"),
            ("name=a,rate=1/s,connections=0", "connections: must be a number"),
            ("name=a,rate=1/s,colour=red", "colour: unknown"),
        ] {
            let error = text.parse::<TenantLoad>().expect_err(text).to_string();
            assert!(error.starts_with(reply), "{text}: {error}");
        }
    }
}
