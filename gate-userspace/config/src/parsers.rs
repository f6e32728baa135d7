//! Parsers of values. Each says what would be right.

use std::net::{IpAddr, SocketAddr};
use std::path::{Component, Path, PathBuf};

use gate_common::abi::Name;
use gate_common::units::Nanos;
use ipnet::IpNet;

use super::units::{self, Wrong};

pub(super) const SWITCH: [(&str, bool); 2] = [("on", true), ("off", false)];

pub(super) fn one_of<T: Copy>(choices: &[(&'static str, T)]) -> impl Fn(&str) -> Result<T, Wrong> {
    move |text| {
        let choice = choices.iter().find(|(name, _)| *name == text);
        choice.map(|&(_, value)| value).ok_or_else(|| {
            let names: Vec<_> = choices.iter().map(|(name, _)| format!("{name:?}")).collect();
            let (last, others) = names.split_last().expect("a choice has alternatives");
            format!("must be {} or {last}", others.join(", "))
        })
    }
}

pub(super) fn time((min, max): (Nanos, Nanos)) -> impl Fn(&str) -> Result<Nanos, Wrong> {
    move |text| units::duration(text, min, max)
}

/// A whole number from `min` to `max`; may be grouped.
pub(super) fn number(min: u64, max: u64) -> impl Fn(&str) -> Result<u64, Wrong> {
    move |text| {
        let plain = text.replace('_', "");
        let digits = !plain.is_empty() && plain.bytes().all(|byte| byte.is_ascii_digit());
        let number = digits.then(|| plain.parse().ok()).flatten();
        number
            .filter(|number| (min..=max).contains(number))
            .ok_or_else(|| format!("must be a whole number from {min} to {max}"))
    }
}

pub(super) fn name(text: &str) -> Result<String, Wrong> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    if (1..=Name::MAX).contains(&text.len()) && text.bytes().all(plain) {
        return Ok(text.to_owned());
    }
    Err(format!("must be 1 to {} letters, digits, '-', '_' or '.'", Name::MAX))
}

pub(super) fn absolute_path(text: &str) -> Result<PathBuf, Wrong> {
    let path = Path::new(text);
    let plain = path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    if path.is_absolute() && plain && path.file_name().is_some() && !text.contains('\0') {
        return Ok(path.to_owned());
    }
    Err("must be an absolute path without \"..\", e.g. \"/sys/fs/bpf/gate\"".to_owned())
}

/// Where a document is shown to readers; `None` if nowhere.
pub(super) fn address_or_off(text: &str) -> Result<Option<SocketAddr>, Wrong> {
    match text {
        "off" => Ok(None),
        _ => {
            text.parse().ok().filter(|address: &SocketAddr| address.port() != 0).map(Some).ok_or_else(|| {
                "must be \"off\" or an address and a port, e.g. \"127.0.0.1:9911\" or \"[::1]:9911\""
                    .to_owned()
            })
        }
    }
}

pub(super) fn address(text: &str) -> Result<SocketAddr, Wrong> {
    let wrong = || "must be an address and a port, e.g. \"198.18.0.1:11211\" or \"[::]:11211\"".to_owned();
    let address: SocketAddr = text.parse().map_err(|_| wrong())?;
    if address.port() == 0 {
        return Err("must have a port from 1 to 65535".to_owned());
    }
    unmapped(address.ip())?;
    Ok(address)
}

/// An address or a prefix.
///
/// # Errors
///
/// The fault, and what would be right.
pub fn prefix(text: &str) -> Result<IpNet, Wrong> {
    let bare = || text.parse::<IpAddr>().map(IpNet::from);
    let prefix: IpNet = text.parse().or_else(|_| bare()).map_err(|_| {
        "must be an address or a prefix, e.g. \"198.18.1.0/24\" or \"fd00:1::/64\"".to_owned()
    })?;
    if prefix.trunc() != prefix {
        return Err(format!("has bits beyond its length; the prefix is \"{}\"", prefix.trunc()));
    }
    unmapped(prefix.addr())?;
    Ok(prefix)
}

/// Refuses an IPv4 address in the form that sockets give it in IPv6: no packet carries it.
fn unmapped(ip: IpAddr) -> Result<(), Wrong> {
    match ip.to_canonical() {
        canonical if canonical != ip => Err(format!("must be written as IPv4: {canonical}")),
        _ => Ok(()),
    }
}

pub(super) fn overlap(a: SocketAddr, b: SocketAddr) -> bool {
    let any = a.ip().is_unspecified() || b.ip().is_unspecified();
    a.port() == b.port() && (any || a.ip() == b.ip())
}
