//! Ways to guarded services past the XDP program, as far as the machine shows them: interfaces where it is not attached, stores
//! that listen at addresses which no service names, and headers that lead a packet on to another address.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::{InterfaceFlags, if_nametoindex};

use crate::config::{Config, Service, XdpMode};
use crate::kernel::stacking;

/// The ways past the program at these interfaces, a sentence each; none where there is no program, or nothing to guard.
#[must_use]
pub fn warnings(config: &Config, attached: &[String]) -> Vec<String> {
    let guards = config.services.iter().any(|service| service.backend.is_none());
    // A configuration of another machine is checked, or an interface has vanished.
    let is_elsewhere = attached.iter().any(|name| if_nametoindex(name.as_str()).is_err());
    if config.gate.xdp == XdpMode::Off || !guards || attached.is_empty() || is_elsewhere {
        return Vec::new();
    }
    Machine::read(attached).ways_past(config, attached)
}

/// The machine, as far as it concerns ways past the program.
#[derive(Debug, Default)]
struct Machine {
    /// Interfaces that are up, and no way to the program: not loopback, none that it is at, none above or below one.
    elsewhere: BTreeSet<String>,
    /// Its addresses, but for those of loopback.
    addresses: BTreeSet<IpAddr>,
    /// Ports where a socket listens at every address: true for TCP, true for those of IPv6.
    wildcards: BTreeSet<(bool, bool, u16)>,
    /// Settings of the kernel that are 1, by their names.
    switched_on: BTreeSet<String>,
}

impl Machine {
    fn read(attached: &[String]) -> Self {
        let index = |name: &String| if_nametoindex(name.as_str()).ok();
        let indices: BTreeSet<u32> = attached.iter().filter_map(index).collect();
        let related = stacking::related(&indices).unwrap_or_default();
        let mut interfaces = BTreeMap::new();
        let mut addresses = BTreeSet::new();
        for one in getifaddrs().into_iter().flatten() {
            let of_loopback = one.flags.contains(InterfaceFlags::IFF_LOOPBACK);
            let address = one.address.as_ref();
            let v4 = address.and_then(|address| Some(IpAddr::from(address.as_sockaddr_in()?.ip())));
            let v6 = address.and_then(|address| Some(IpAddr::from(address.as_sockaddr_in6()?.ip())));
            addresses.extend(v4.or(v6).filter(|_| !of_loopback));
            let leads_here = one.flags.contains(InterfaceFlags::IFF_UP) && !of_loopback;
            interfaces.insert(one.interface_name, leads_here);
        }
        let is_elsewhere = |name: &String| {
            index(name).is_some_and(|index| !indices.contains(&index) && !related.contains(&index))
        };
        let elsewhere = interfaces.iter().filter(|(name, leads_here)| **leads_here && is_elsewhere(name));
        let elsewhere = elsewhere.map(|(name, _)| name.clone()).collect();
        Self { elsewhere, addresses, wildcards: wildcards(), switched_on: switched_on(attached) }
    }

    fn ways_past(&self, config: &Config, attached: &[String]) -> Vec<String> {
        let mut ways = Vec::new();
        if let Some(names) = listed(&self.elsewhere) {
            ways.push(format!(
                "guarded services can be reached by {names} too, where gate is not attached: add it to `interface`, or filter \
                 there what is for them"
            ));
        }
        let guarded = config.services.iter().filter(|service| service.backend.is_none());
        ways.extend(guarded.filter_map(|service| self.wildcard(service)));
        for name in attached {
            let switches = HEADERS.map(|(family, switch)| format!("net.{family}.conf.{name}.{switch}"));
            ways.extend(switches.iter().filter(|switch| self.switched_on.contains(*switch)).map(|switch| {
                format!(
                    "{switch} = 1: a packet for another address can be led on to a guarded service without being judged: set \
                     it to 0"
                )
            }));
        }
        ways
    }

    /// A store of a guarded service at addresses that the service does not name.
    fn wildcard(&self, service: &Service) -> Option<String> {
        let at = |address: &IpAddr, port| {
            service.listen.iter().any(|listen| {
                listen.port() == port && (listen.ip() == *address || listen.ip().is_unspecified())
            })
        };
        let transports = [(service.transports.tcp, true), (service.transports.udp, false)];
        let transports = || transports.into_iter().filter(|(served, _)| *served).map(|(_, tcp)| tcp);
        let answers = |address: &IpAddr, port| {
            let v6 = |tcp| self.wildcards.contains(&(tcp, true, port));
            let v4 = |tcp| address.is_ipv4() && self.wildcards.contains(&(tcp, false, port));
            // A socket at every address of IPv6 most likely takes IPv4 as well.
            transports().any(|tcp| v6(tcp) || v4(tcp))
        };
        let ports: BTreeSet<u16> = service.listen.iter().map(|listen| listen.port()).collect();
        let past = |port: u16| {
            let past = self.addresses.iter().filter(|address| !at(address, port) && answers(address, port));
            past.map(ToString::to_string).collect::<BTreeSet<_>>()
        };
        let (port, addresses) = ports.into_iter().find_map(|port| Some((port, listed(&past(port))?)))?;
        Some(format!(
            "service {}: its store listens at every address of port {port}, and gate does not judge what is for {addresses}: have \
             the store listen at the service's address alone, or name every address in `listen`",
            service.name
        ))
    }
}

/// Some of these, if there are any.
fn listed(names: &BTreeSet<String>) -> Option<String> {
    const MOST: usize = 3;
    let first = names.iter().take(MOST).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len() {
        0 => None,
        len if len <= MOST => Some(first),
        len => Some(format!("{first} and {} more", len - MOST)),
    }
}

/// The ports where a socket listens at every address of this network namespace.
fn wildcards() -> BTreeSet<(bool, bool, u16)> {
    let mut all = BTreeSet::new();
    for (file, tcp, v6) in
        [("tcp", true, false), ("udp", false, false), ("tcp6", true, true), ("udp6", false, true)]
    {
        let sockets = fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap_or_default();
        all.extend(wildcard_ports(&sockets, tcp).into_iter().map(|port| (tcp, v6, port)));
    }
    all
}

/// The same, in the kernel's list of sockets: number, own address and port, the other end's, state.
fn wildcard_ports(sockets: &str, tcp: bool) -> BTreeSet<u16> {
    let state = if tcp { TCP_LISTEN } else { UDP_UNCONNECTED };
    let port = |line: &str| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let (address, port) = fields.next()?.split_once(':')?;
        let listens = fields.nth(1)? == state && address.bytes().all(|digit| digit == b'0');
        listens.then(|| u16::from_str_radix(port, 16).ok())?
    };
    sockets.lines().filter_map(port).collect()
}

/// The settings that lead packets on, as far as they are in force at these interfaces: for all and for the one.
fn switched_on(attached: &[String]) -> BTreeSet<String> {
    let is_on = |family: &str, interface: &str, switch: &str| {
        // A name of an interface may have a dot in it.
        let path = format!("/proc/sys/net/{family}/conf/{interface}/{switch}");
        fs::read_to_string(path).is_ok_and(|value| value.trim().parse::<i32>().is_ok_and(|value| value > 0))
    };
    let mut on = BTreeSet::new();
    for (family, switch) in HEADERS.into_iter().filter(|(family, switch)| is_on(family, "all", switch)) {
        let names = attached.iter().filter(|name| is_on(family, name, switch));
        on.extend(names.map(|name| format!("net.{family}.conf.{name}.{switch}")));
    }
    on
}

/// Headers in which a packet names where it goes next: options of IPv4, and routing headers of IPv6.
const HEADERS: [(&str, &str); 3] =
    [("ipv4", "accept_source_route"), ("ipv6", "seg6_enabled"), ("ipv6", "rpl_seg_enabled")];
/// States of sockets in `/proc/net`.
const TCP_LISTEN: &str = "0A";
const UDP_UNCONNECTED: &str = "07";

#[cfg(test)]
mod tests {
    use super::*;

    fn config(listen: &str) -> Config {
        let text = format!(
            "[gate]\ninterface = \"eth0\"\n[[service]]\nname = \"cache\"\nprotocol = \"memcached\"\nlisten = [{listen}]\n\
             [[tenant]]\nname = \"t\"\nsources = \"10.0.0.0/8\"\nquota = \"unlimited\""
        );
        Config::parse("test.toml", &text).unwrap_or_else(|faults| panic!("{faults}"))
    }

    fn set(of: &[&str]) -> BTreeSet<String> {
        of.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn each_way_past_the_program_is_named() {
        let attached = ["eth0".to_owned()];
        let addresses = ["198.18.0.1", "198.18.0.2", "fd00::1"].map(|address| address.parse().unwrap());
        let machine = |wildcards: &[(bool, bool, u16)]| Machine {
            addresses: BTreeSet::from(addresses),
            wildcards: wildcards.iter().copied().collect(),
            ..Machine::default()
        };
        let one = config("\"198.18.0.1:11211\"");
        assert!(machine(&[]).ways_past(&one, &attached).is_empty());
        let past = |wildcards: &[(bool, bool, u16)], listen: &str| {
            machine(wildcards).ways_past(&config(listen), &attached).join("\n")
        };
        let of_v4 = past(&[(true, false, 11_211)], "\"198.18.0.1:11211\"");
        assert!(of_v4.contains("judge what is for 198.18.0.2: have"), "{of_v4}");
        let of_both = past(&[(false, true, 11_211)], "\"198.18.0.1:11211\"");
        assert!(of_both.contains("judge what is for 198.18.0.2, fd00::1: have"), "{of_both}");
        // Another port, and a service at every address.
        assert!(past(&[(true, true, 80)], "\"198.18.0.1:11211\"").is_empty());
        assert!(past(&[(true, true, 11_211)], "\"[::]:11211\"").is_empty());

        let others = ["br0", "docker0", "eth1", "wg0"];
        let machine = Machine {
            elsewhere: set(&others),
            switched_on: set(&["net.ipv4.conf.eth0.accept_source_route", "net.ipv6.conf.eth9.seg6_enabled"]),
            ..Machine::default()
        };
        let ways = machine.ways_past(&one, &attached);
        assert_eq!(ways.len(), 2, "{ways:?}");
        assert!(ways[0].contains("by br0, docker0, eth1 and 1 more too"), "{ways:?}");
        assert!(ways[1].starts_with("net.ipv4.conf.eth0.accept_source_route = 1: "), "{ways:?}");
    }

    #[test]
    fn sockets_at_every_address_are_found_in_the_kernels_list() {
        let tcp = "  sl  local_address rem_address   st tx_queue\n\
                   0: 00000000:2BCB 00000000:0000 0A 00000000:00000000\n\
                   1: 0100007F:0050 00000000:0000 0A 00000000:00000000\n\
                   2: 00000000:0051 0200007F:1F90 01 00000000:00000000\n";
        assert_eq!(wildcard_ports(tcp, true), BTreeSet::from([11_211]));
        assert_eq!(wildcard_ports(&tcp.replace(" 0A ", " 07 "), false), BTreeSet::from([11_211]));
    }
}
