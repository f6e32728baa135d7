//! The file of an owner of limits (`quota.toml`).

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::error::Error;
use super::etcd::etcd;
use super::fault::Faults;
use super::parsers::{absolute_path, address, address_or_off, number};
use super::raw::{self, Section};
use super::text::read_text;
use super::tls::{PeerTls, peer_tls};
use super::{limits, units};
use gate_limits::Rules;

/// The configuration of `gate quota run`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaConfig {
    /// Where gates report; on loopback without `tls`.
    pub listen: SocketAddr,
    /// Where `/metrics` is; `None` if nowhere.
    pub metrics: Option<SocketAddr>,
    /// How many limits `/metrics` names, those that are asked for most; 0 to 100.
    pub metrics_limits: u32,
    /// `None` if gates report in plain text.
    pub tls: Option<PeerTls>,
    /// The most connections at once; 1 to 1,000,000.
    pub max_connections: u32,
    /// The most connections of one address at once; 1 to 1,000,000.
    pub max_connections_per_source: u32,
    /// The most memory that accounts may take, in bytes; 1 MiB to 1 TiB.
    pub memory: u64,
    /// The file of debts, written once a minute; `None` if they are in memory alone.
    pub state_file: Option<PathBuf>,
    /// Where the limits are.
    pub limits: LimitsIn,
}

/// Where an owner finds its limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitsIn {
    /// In its file.
    File(Rules),
    /// In etcd, whose members are at these URLs; at least one. There the owner registers as well.
    Etcd(Vec<String>),
}

impl QuotaConfig {
    /// Reads and parses a file.
    ///
    /// # Errors
    ///
    /// [`Error::Unreadable`] if it is not there, not text, or larger than 64 MiB; otherwise [`Error::Invalid`] with everything
    /// that is wrong.
    pub fn read(path: &Path) -> Result<Self, Error> {
        Ok(Self::parse(&path.display().to_string(), &read_text(path)?)?)
    }

    /// Parses a document; `file` is what faults call it.
    ///
    /// # Errors
    ///
    /// Everything that is wrong, by line.
    pub fn parse(file: &str, text: &str) -> Result<Self, Faults> {
        raw::parse(file, text, quota)
    }
}

fn quota(mut root: Section<'_>) -> QuotaConfig {
    let mut s = root.section("quota");
    let listen = s.get("listen", address).unwrap_or(DEFAULT_LISTEN);
    let metrics = s.get("metrics", address_or_off).unwrap_or_default();
    let metrics_limits = s.get("metrics_limits", number(0, 100)).and_then(|most| u32::try_from(most).ok());
    let metrics_limits = metrics_limits.unwrap_or(0);
    let tls = peer_tls(&mut s);
    if !s.has("tls") && !listen.ip().is_loopback() {
        s.fault("listen", NEEDS_TLS.to_owned());
    }
    let mut most = |key, default| {
        let most = s.get(key, number(1, 1_000_000)).and_then(|most| u32::try_from(most).ok());
        most.unwrap_or(default)
    };
    let max_connections = most("max_connections", 8_192);
    let max_connections_per_source = most("max_connections_per_source", 512);
    let memory = s.get("memory", |text| units::size(text, 1 << 20, 1 << 40)).unwrap_or(256 << 20);
    let state_file = s.get("state_file", absolute_path);
    let etcd = etcd(&mut s);
    let has_etcd = s.has("etcd");
    if has_etcd && listen.ip().is_unspecified() {
        s.fault(
            "listen",
            "is no address that gates can report to, as they find it in etcd: name one of this machine's"
                .to_owned(),
        );
    }
    s.finish();
    let rules = limits::rules(&mut root);
    let limits = if has_etcd {
        if root.has("limit") {
            let message =
                "are in etcd, where `gate quota apply` puts those of a file of their own".to_owned();
            root.fault("limit", message);
        }
        LimitsIn::Etcd(etcd)
    } else {
        if !root.has("limit") {
            root.fault("limit", "is missing; write at least one [[limit]]".to_owned());
        }
        LimitsIn::File(rules)
    };
    root.finish();
    QuotaConfig {
        listen,
        metrics,
        metrics_limits,
        tls,
        max_connections,
        max_connections_per_source,
        memory,
        state_file,
        limits,
    }
}

/// A document that is limits alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitsDocument {
    /// The limits.
    pub rules: Rules,
    /// True if it says that there are to be none. That there is none in it does not say so.
    pub lifts_all: bool,
}

/// Parses a document that is limits alone; `file` is what faults call it.
///
/// # Errors
///
/// Everything that is wrong, by line.
pub fn parse_limits(file: &str, text: &str) -> Result<LimitsDocument, Faults> {
    raw::parse(file, text, |mut root| {
        let none = |text: &str| (text == "none").then_some(()).ok_or_else(|| "must be \"none\"".to_owned());
        let lifts_all = root.get("limits", none).is_some();
        let rules = limits::rules(&mut root);
        if lifts_all && !rules.list().is_empty() {
            root.fault("limits", "says that there are none, beside some".to_owned());
        }
        root.finish();
        LimitsDocument { rules, lifts_all }
    })
}

/// The line that has a document without limits lift all.
pub const LIFTS_ALL: &str = "limits = \"none\"\n";

/// A fault of an address that gates and owners are not to talk at in plain text.
pub(super) const NEEDS_TLS: &str = "is no loopback address, where reports are neither encrypted nor signed without TLS: write \
                                    tls = { ca = ..., certificate = ..., key = ... } as well, or name \"127.0.0.1:9920\"";
const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 9920);

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(section: &str) -> Result<QuotaConfig, String> {
        let text = format!("[quota]\n{section}[[limit]]\nname = \"acme\"\nquota = \"100 RU/s\"\n");
        QuotaConfig::parse("quota.toml", &text).map_err(|faults| faults.to_string())
    }

    #[test]
    fn an_owner_beyond_loopback_needs_certificates() {
        let config = parse("").unwrap();
        assert_eq!(
            (config.tls, config.max_connections, config.max_connections_per_source),
            (None, 8_192, 512)
        );
        let tls = "tls = { ca = \"/a\", certificate = \"/c\", key = \"/k\" }\n";
        let listen = "listen = \"198.18.0.1:9920\"\n";
        assert!(parse(&format!("{listen}{tls}")).is_ok_and(|config| config.tls.is_some()));
        let fault = parse(listen).unwrap_err();
        let expected = format!("quota.toml:2: quota.listen = \"198.18.0.1:9920\": {NEEDS_TLS}");
        assert_eq!(fault, expected);
    }

    #[test]
    fn a_document_lifts_all_limits_only_if_it_says_so() {
        let parse = |text: &str| parse_limits("limits.toml", text).map_err(|faults| faults.to_string());
        assert_eq!(parse("# nothing\n"), Ok(LimitsDocument::default()));
        assert_eq!(parse(LIFTS_ALL), Ok(LimitsDocument { lifts_all: true, ..LimitsDocument::default() }));
        let acme = "[[limit]]\nname = \"acme\"\nquota = \"100 RU/s\"\n";
        assert!(parse(acme).is_ok_and(|document| !document.lifts_all && document.rules.list().len() == 1));
        for (text, fault) in [
            (
                format!("{LIFTS_ALL}{acme}"),
                "limits.toml:1: limits = \"none\": says that there are none, beside some",
            ),
            ("limits = \"all\"\n".to_owned(), "limits.toml:1: limits = \"all\": must be \"none\""),
        ] {
            assert_eq!(parse(&text), Err(fault.to_owned()));
        }
    }

    #[test]
    fn faults_of_an_owners_section_say_what_is_right() {
        let faults = parse(
            "tls = { ca = \"/a\", key = \"/k\" }\nmax_connections = \"0\"\nmetrics_limits = \"101\"\nmetrics = \"localhost:9921\"\n",
        )
        .unwrap_err();
        let expected = "quota.toml:2: quota.tls.certificate: is missing, e.g. certificate = \"/etc/gate/fleet.pem\"\n\
                        quota.toml:3: quota.max_connections = \"0\": must be a whole number from 1 to 1000000\n\
                        quota.toml:4: quota.metrics_limits = \"101\": must be a whole number from 0 to 100\n\
                        quota.toml:5: quota.metrics = \"localhost:9921\": must be \"off\" or an address and a port, \
                        e.g. \"127.0.0.1:9911\" or \"[::1]:9911\"";
        assert_eq!(faults, expected);
    }
}
