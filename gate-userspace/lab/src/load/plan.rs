//! The load to offer: a [`Plan`] of tenants, each written as `key=value,key=value`.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use gate_common::units::{Fraction, Nanos};

use super::keys::Keys;
use super::mix::Mix;
use super::mix_file;
use super::parsers::{MAX_NAME, keys, number, plain, value_bytes};
use super::protocol::{Protocol, Transport};
use gate_config::units;

/// A whole run. Always bounded: by time, by count or by both.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where requests go.
    pub target: SocketAddr,
    /// How they get there.
    pub transport: Transport,
    /// How they are written. [`Protocol::Resp`] and [`Protocol::Http`] have TCP only.
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

impl Plan {
    /// The first request that cannot be made this way, with its tenant and the remedy.
    #[must_use]
    pub fn refusal(&self) -> Option<String> {
        let udp = self.transport == Transport::Udp;
        self.tenants.iter().find_map(|tenant| {
            let wrong = tenant.mix.refusal(self.protocol, udp, &tenant.name)?;
            Some(format!("tenant {}: {wrong}", tenant.name))
        })
    }
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
/// | `value` | the size of written values, up to 1 MiB (over UDP 1 KiB) | `100B` |
/// | `mix` | a file with a [`Mix`] of requests, instead of `keys`, `reads`, `value` and `hot` | none |
/// | `hot` | `KEY:SHARE`: that share of requests asks for that one key | none |
/// | `connections` | over TCP, for each source | 4 |
#[derive(Clone, Debug, PartialEq)]
pub struct TenantLoad {
    pub(super) name: String,
    pub(super) sources: Vec<IpAddr>,
    pub(super) milli_per_sec: u64,
    pub(super) arrivals: Arrivals,
    pub(super) bursts: Option<Bursts>,
    pub(super) hot: Option<HotKey>,
    pub(super) mix: Arc<Mix>,
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
        let mut written = Written::default();
        for pair in text.split(',') {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            written
                .set(key.trim(), value.trim())
                .map_err(|wrong| TenantError { key: key.trim().to_owned(), wrong })?;
        }
        written.finish().map_err(|(key, wrong)| TenantError { key: key.to_owned(), wrong: wrong.to_owned() })
    }
}

/// A tenant as far as it is written.
#[derive(Default)]
struct Written {
    name: Option<String>,
    sources: Vec<IpAddr>,
    milli_per_sec: Option<u64>,
    arrivals: Option<Arrivals>,
    bursts: Option<Bursts>,
    keys: Option<Keys>,
    hot: Option<HotKey>,
    reads: Option<Fraction>,
    value_bytes: Option<usize>,
    mix: Option<Mix>,
    connections: Option<usize>,
}

impl Written {
    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "name" => self.name = Some(plain("name", value, MAX_NAME)?),
            "source" => {
                let source = value.parse().map_err(|_| "must be an address, e.g. 198.18.1.1".to_owned())?;
                self.sources.push(source);
                if self.sources.len() > MAX_SOURCES {
                    return Err(format!("must be at most {MAX_SOURCES}"));
                }
            }
            "rate" => {
                let milli_per_sec = units::event_rate(value)?;
                if milli_per_sec > MAX_PER_SEC * 1_000 {
                    return Err(format!("must be at most {MAX_PER_SEC}/s"));
                }
                self.milli_per_sec = Some(milli_per_sec);
            }
            "arrivals" => {
                self.arrivals = match value {
                    "poisson" => Some(Arrivals::Poisson),
                    "constant" => Some(Arrivals::Constant),
                    _ => return Err("must be poisson or constant".to_owned()),
                }
            }
            "bursts" => self.bursts = Some(bursts(value)?),
            "keys" => self.keys = Some(keys(value)?),
            "hot" => self.hot = Some(hot_key(value)?),
            "reads" => self.reads = Some(units::percentage(value)?),
            "value" => self.value_bytes = Some(value_bytes(value)?),
            "mix" => self.mix = Some(mix_file::read(Path::new(value))?),
            "connections" => self.connections = Some(number(value, 1, MAX_CONNECTIONS)?),
            _ => {
                return Err("unknown; known are name, source, rate, arrivals, bursts, keys, reads, value, \
                            hot, mix, connections"
                    .to_owned());
            }
        }
        Ok(())
    }

    fn finish(self) -> Result<TenantLoad, (&'static str, &'static str)> {
        let name = self.name.ok_or(("name", "is missing"))?;
        let milli_per_sec = self.milli_per_sec.ok_or(("rate", "is missing"))?;
        let of_the_mix = [
            ("keys", self.keys.is_some()),
            ("reads", self.reads.is_some()),
            ("value", self.value_bytes.is_some()),
            ("hot", self.hot.is_some()),
        ];
        let mix = match self.mix {
            Some(mix) => match of_the_mix.into_iter().find(|(_, given)| *given) {
                Some((key, _)) => return Err((key, "belongs into the file that mix= names")),
                None => mix,
            },
            None => {
                let reads = self.reads.unwrap_or(Fraction::ONE).steps();
                let keys = self.keys.unwrap_or(Keys::Uniform { count: 1_000 });
                Mix::reads_and_writes(reads, Fraction::ONE.steps(), keys, self.value_bytes.unwrap_or(100))
            }
        };
        Ok(TenantLoad {
            name,
            sources: self.sources,
            milli_per_sec,
            arrivals: self.arrivals.unwrap_or(Arrivals::Poisson),
            bursts: self.bursts,
            hot: self.hot,
            mix: Arc::new(mix),
            connections: self.connections.unwrap_or(4),
        })
    }
}

fn bursts(text: &str) -> Result<Bursts, String> {
    let (on, period) = text.split_once('/').ok_or("must be like 200ms/1s")?;
    let period = units::duration(period, Nanos::from_millis(1), Nanos::from_secs(3_600))?;
    let on = units::duration(on, Nanos::from_micros(1), period)?;
    Ok(Bursts { on, period })
}

fn hot_key(text: &str) -> Result<HotKey, String> {
    let (key, part) = text.rsplit_once(':').ok_or("must be like trend:20%")?;
    Ok(HotKey { key: plain("key", key, MAX_KEY)?, share: share(part)? })
}

fn share(text: &str) -> Result<f64, String> {
    Ok(f64::from(units::percentage(text)?.steps()) / 65_536.0)
}

const MAX_KEY: usize = 250;
const MAX_SOURCES: usize = 256;
const MAX_CONNECTIONS: usize = 1_024;
const MAX_PER_SEC: u64 = 10_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_is_read_with_its_defaults() {
        let plain: TenantLoad = "name=polite,rate=2000/s".parse().unwrap();
        assert_eq!((plain.name(), plain.per_sec(), plain.mix.entries[1].weight), ("polite", 2_000.0, 0));
        let full = "name=hostile, source=198.18.1.1, source=fd00::1, rate=0.5/s, arrivals=constant, \
                    bursts=200ms/1s, keys=zipf:1000:0.99, reads=25%, value=1KiB, hot=a:b:50%, connections=2";
        let full: TenantLoad = full.parse().unwrap();
        let expected = TenantLoad {
            name: "hostile".to_owned(),
            sources: vec!["198.18.1.1".parse().unwrap(), "fd00::1".parse().unwrap()],
            milli_per_sec: 500,
            arrivals: Arrivals::Constant,
            bursts: Some(Bursts { on: Nanos::from_millis(200), period: Nanos::from_secs(1) }),
            hot: Some(HotKey { key: "a:b".to_owned(), share: 0.5 }),
            mix: Arc::new(Mix::reads_and_writes(
                16_384,
                65_536,
                Keys::Zipf { count: 1_000, exponent: 0.99 },
                1_024,
            )),
            connections: 2,
        };
        assert_eq!(full, expected);
    }

    #[test]
    fn a_wrong_tenants_fault_says_what_would_be_right() {
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
            ("name=a,rate=1/s,value=2MiB", "value: must be from 0B to 1MiB"),
            ("name=a,rate=1/s,hot=key", "hot: must be like"),
            ("name=a,rate=1/s,hot=:1%", "hot: must be a key"),
            ("name=a,rate=1/s,connections=0", "connections: must be a number"),
            ("name=a,rate=1/s,colour=red", "colour: unknown"),
            ("name=a,rate=1/s,mix=/no/such/file", "mix: cannot read /no/such/file: No such file"),
        ] {
            let error = text.parse::<TenantLoad>().expect_err(text).to_string();
            assert!(error.starts_with(reply), "{text}: {error}");
        }
    }
}
