//! The namespaces that everything else is tested in.

use std::net::{IpAddr, UdpSocket};
use std::path::Path;

use gate_tests::net::{self, Net};
use gate_tests::privilege;
use gate_tests::wait::PATIENCE;

#[test]
fn every_client_address_reaches_the_server_and_back() {
    if !privilege::root("net::every_client_address_reaches_the_server_and_back") {
        return;
    }
    let net = Net::open().unwrap();
    for (client, server) in [
        (net::CLIENT_V4, net::SERVER_V4),
        (net::CLIENT_V6, net::SERVER_V6),
        ("198.19.255.9", net::SERVER_V4),
        ("fd00::77", net::SERVER_V6),
    ] {
        let client: IpAddr = client.parse().unwrap();
        if ![net::CLIENT_V4, net::CLIENT_V6].contains(&client.to_string().as_str()) {
            net.add_client_address(client).unwrap();
        }
        let server: IpAddr = server.parse().unwrap();
        let served = net.server.enter(|| socket(server)).unwrap();
        let asking = net.client.enter(|| socket(client)).unwrap();
        asking.send_to(b"ask", served.local_addr().unwrap()).unwrap();
        let mut buffer = [0; 8];
        let (length, from) = served.recv_from(&mut buffer).unwrap();
        assert_eq!((&buffer[..length], from), (&b"ask"[..], asking.local_addr().unwrap()));
        served.send_to(b"answer", from).unwrap();
        assert_eq!(asking.recv(&mut buffer).unwrap(), 6, "{client}");
    }
}

#[test]
fn dropping_a_network_ends_what_runs_in_it_and_removes_it() {
    if !privilege::root("net::dropping_a_network_ends_what_runs_in_it_and_removes_it") {
        return;
    }
    let net = Net::open().unwrap();
    let paths = [net.client.name(), net.server.name()].map(|name| Path::new("/run/netns").join(name));
    assert!(paths.iter().all(|path| path.exists()));
    let mut child = net.server.command("sleep").arg("60").spawn().unwrap();
    drop(net);
    assert!(!child.wait().unwrap().success(), "it ran to its end instead of being killed");
    assert!(!paths.iter().any(|path| path.exists()));
}

fn socket(address: IpAddr) -> UdpSocket {
    let socket = UdpSocket::bind((address, 0)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}
