//! The section `[fleet]`: who owns the limits that gates share.

use super::etcd::etcd;
use super::parsers::one_of;
use super::quota::NEEDS_TLS;
use super::raw::Section;
use super::store_address::{self, NetworkAddress, is_host};
use super::tls::{PeerTls, peer_tls};
use super::units::Wrong;
use gate_fleet::gate::book::OnLost;
use gate_fleet::membership::{DnsName, MAX_OWNERS, Owners};

/// The owners that a gate reports to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fleet {
    /// The same at every gate. On loopback without `tls`.
    pub owners: Owners,
    /// This gate's name, no other gate's; `None` for the host's.
    pub name: Option<String>,
    /// `None` if gate reports in plain text.
    pub tls: Option<PeerTls>,
    /// The quota of limits whose owner is lost.
    pub on_lost: OnLost,
}

/// Reads `[fleet]`, if it is there.
pub(super) fn fleet(root: &mut Section<'_>) -> Option<Fleet> {
    let is_there = root.has("fleet");
    let mut s = root.section("fleet");
    let fleet = is_there.then(|| {
        let tls = peer_tls(&mut s);
        let owners = owners(&mut s);
        let name = s.get("name", name);
        if tls.is_some() && name.as_deref().is_some_and(|name| !is_host(name)) {
            s.fault("name", NO_DNS_NAME.to_owned());
        }
        let on_lost = s.get("on_lost", one_of(&ON_LOST)).unwrap_or_default();
        Fleet { owners, name, tls, on_lost }
    });
    s.finish();
    fleet
}

fn owners(s: &mut Section<'_>) -> Owners {
    let etcd = etcd(s);
    if s.has("etcd") {
        if s.has("owners") {
            s.fault("etcd", "stands beside owners: name one of the two".to_owned());
        }
        s.list("owners", store_address::read_network);
        return Owners::Etcd(etcd);
    }
    let mut owners: Vec<NetworkAddress> = Vec::new();
    let items = s.need_list("owners", "[\"127.0.0.1:9920\"]", place);
    if let [item] = &items[..]
        && let Place::AllOf(name) = &item.value
    {
        let name = name.clone();
        if !s.has("tls") && name.host != "localhost" {
            item.fault(NEEDS_TLS);
        }
        return Owners::Dns(name);
    }
    for item in items {
        let address = match &item.value {
            Place::One(address) => address.clone(),
            Place::AllOf(_) => {
                item.fault("stands for all owners: name no other beside it".to_owned());
                continue;
            }
        };
        let is_loopback = address.fixed().is_some_and(|address| address.ip().is_loopback());
        if !s.has("tls") && !is_loopback {
            item.fault(NEEDS_TLS);
        } else if owners.contains(&address) {
            item.fault("is listed twice".to_owned());
        } else if owners.len() == MAX_OWNERS {
            item.fault(format!("is one too many: there may be {MAX_OWNERS}"));
        } else {
            owners.push(address);
        }
    }
    Owners::Fixed(owners.iter().map(ToString::to_string).collect())
}

/// The place of one owner, or of all.
enum Place {
    One(NetworkAddress),
    AllOf(DnsName),
}

fn place(text: &str) -> Result<Place, Wrong> {
    let Some(name) = text.strip_prefix("dns:///") else {
        return store_address::read_network(text).map(Place::One);
    };
    match store_address::read_network(name)? {
        NetworkAddress::Named { host, port } => Ok(Place::AllOf(DnsName { host, port })),
        NetworkAddress::Fixed(address) => Err(format!("is an address, no name: write \"{address}\"")),
    }
}

fn name(text: &str) -> Result<String, Wrong> {
    if (1..=256).contains(&text.len()) && !text.chars().any(char::is_control) {
        return Ok(text.to_owned());
    }
    Err("must be 1 to 256 bytes without control characters, e.g. \"gate-1\"".to_owned())
}

const NO_DNS_NAME: &str =
    "must be a DNS name beside tls, since gate's certificate has to be for it, e.g. \"gate-1.example\"";
const ON_LOST: [(&str, OnLost); 2] = [("share", OnLost::Share), ("local", OnLost::Local)];
