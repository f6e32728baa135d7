//! Services whose stores keep their address, which gate serves at in their place.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::parsers::{SWITCH, one_of};
use super::raw::Section;
use super::store_address::{NetworkAddress, StoreAddress};
use super::values::Transports;

/// How a store's connections are given to gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intercept {
    /// True if those from the machine itself are as well.
    pub local: bool,
    /// True if connections are refused while gate is lost; else they reach the store.
    pub refuse: bool,
    /// The line that asks for it, for what only the start finds out.
    pub line: usize,
}

impl Intercept {
    /// True if a running gate would have to start anew for the `other`.
    pub(super) fn differs(one: Option<Self>, other: Option<Self>) -> bool {
        let without_line = |of: Option<Self>| of.map(|of| (of.local, of.refuse));
        without_line(one) != without_line(other)
    }
}

/// True if a service's requests pass through the daemon.
pub(super) fn is_proxied(section: &Section<'_>) -> bool {
    section.has("backend") || section.has("backends") || is_on(section)
}

pub(super) fn is_on(section: &Section<'_>) -> bool {
    section.says("intercept", "on")
}

/// Reads whether the service's connections are intercepted.
pub(super) fn read(
    section: &mut Section<'_>,
    transports: Transports,
    listen: &[SocketAddr],
    backend: Option<&StoreAddress>,
) -> Option<Intercept> {
    let intercept = section.get("intercept", one_of(&SWITCH)).unwrap_or(false);
    let local = section.get("local", one_of(&SWITCH)).unwrap_or(false);
    let refuse = section.get("on_lost", one_of(&ON_LOST)).unwrap_or(false);
    if !intercept {
        for key in ["local", "on_lost"].into_iter().filter(|key| section.has(key)) {
            section.fault(key, "means something only beside intercept = \"on\"".to_owned());
        }
        return None;
    }
    if transports.udp {
        let message = "takes connections alone; write transports = [\"tcp\"], and guard UDP by a service of its own without it";
        section.fault("intercept", message.to_owned());
    }
    if local && listen.iter().any(SocketAddr::is_ipv6) {
        let message = "tells gate's own connections from others over IPv4 alone; list no IPv6 address in listen, or write \"off\"";
        section.fault("local", message.to_owned());
    } else if !local && let Some(loopback) = listen.iter().find(|address| address.ip().is_loopback()) {
        let message = format!(
            "leaves nobody to intercept at {loopback}, which only this machine reaches; write local = \"on\", or the \
             address that clients use"
        );
        section.fault("intercept", message);
    }
    if let Some(backend) = backend
        && !backend.fixed().is_some_and(|address| is_store(address, listen))
    {
        let message = "must be the store on this machine: leave it out, or write an address of listen or a loopback address, e.g. \
                       \"127.0.0.1:6379\"";
        section.fault("backend", message.to_owned());
    }
    Some(Intercept { local, refuse, line: section.line("intercept") })
}

/// Where gate reaches the store of a service that listens at `listen`.
pub(super) fn store(listen: &[SocketAddr]) -> Option<StoreAddress> {
    let first = listen.first()?;
    let ip = match first.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    Some(StoreAddress::Network(NetworkAddress::Fixed(SocketAddr::new(ip, first.port()))))
}

fn is_store(address: SocketAddr, listen: &[SocketAddr]) -> bool {
    address.ip().is_loopback() || listen.contains(&address)
}

const ON_LOST: [(&str, bool); 2] = [("pass", false), ("refuse", true)];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    const TEXT: &str = "[gate]\ninterface = \"eth1\"\n[[service]]\nname = \"cache\"\nprotocol = \"memcached\"\n\
                        listen = \"198.18.0.1:11211\"\n[[tenant]]\nname = \"a\"\nsources = \"10.0.0.0/8\"\n\
                        quota = \"unlimited\"\n";

    #[test]
    fn an_intercepted_service_is_proxied_to_its_own_address() {
        for (listen, store) in [
            ("198.18.0.1:11211", "198.18.0.1:11211"),
            ("0.0.0.0:11211", "127.0.0.1:11211"),
            ("[::]:11211", "[::1]:11211"),
        ] {
            let with = |intercept: &str| {
                let text =
                    TEXT.replace("198.18.0.1:11211\"", &format!("{listen}\"\nintercept = \"{intercept}\""));
                Config::parse("gate.toml", &text).unwrap().services.remove(0)
            };
            let service = with("on");
            assert_eq!(service.backend.unwrap().address.to_string(), store);
            assert_eq!(service.transports, Transports { udp: false, tcp: true });
            let intercept = service.intercept.unwrap();
            assert_eq!((intercept.local, intercept.refuse, intercept.line), (false, false, 7));
            assert!(with("off").backend.is_none());
        }
    }
}
