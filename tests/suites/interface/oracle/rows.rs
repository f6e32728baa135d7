//! Packets that once reached a protected socket unjudged, or might, one by one.

use gate_tests::net::{SERVER_V4, SERVER_V6};
use gate_tests::privilege;
use gate_tests::world::pin;

use super::generate::{DESTINATION, HOP_BY_HOP, Sender};
use super::lane::{MEMCACHED, OPAQUE};
use super::site::{Demand, Site};
use super::spec::{Fragment, Length, Spec, hex};

const SYN: u8 = 0x02;
const DATA: u8 = 0x18;

struct Row {
    name: &'static str,
    /// The transport's flags, of a segment.
    tcp: bool,
    v6: bool,
    change: fn(&mut Spec),
    /// True if a tenant's arrives as well; nothing of it, where gate cannot tell what it is.
    tenant: bool,
}

const ROWS: &[Row] = &[
    Row { name: "an ordinary datagram", tcp: false, v6: false, change: |_| {}, tenant: true },
    Row { name: "an ordinary segment", tcp: true, v6: true, change: |_| {}, tenant: true },
    Row {
        name: "a payload length of 0 and padding in a hop-by-hop header",
        tcp: false,
        v6: true,
        change: zero_length,
        tenant: true,
    },
    Row { name: "the same, of a segment", tcp: true, v6: true, change: zero_length, tenant: true },
    Row {
        name: "nine headers of destination options",
        tcp: false,
        v6: true,
        change: |spec| spec.extensions = vec![padding(DESTINATION); 9],
        tenant: true,
    },
    Row {
        name: "sixty-four headers of destination options",
        tcp: true,
        v6: true,
        change: |spec| spec.extensions = vec![padding(DESTINATION); 64],
        tenant: true,
    },
    Row {
        name: "sixty-five headers of destination options",
        tcp: false,
        v6: true,
        change: |spec| spec.extensions = vec![padding(DESTINATION); 65],
        tenant: false,
    },
    Row { name: "two fragments", tcp: false, v6: false, change: |spec| cut_value(spec, 32), tenant: true },
    Row {
        name: "two fragments of IPv6",
        tcp: false,
        v6: true,
        change: |spec| cut_value(spec, 32),
        tenant: true,
    },
    Row {
        name: "a command in two fragments",
        tcp: false,
        v6: false,
        change: |spec| spec.cut(24),
        tenant: false,
    },
    Row {
        name: "two fragments of a segment",
        tcp: true,
        v6: true,
        change: |spec| spec.cut(24),
        tenant: true,
    },
    Row {
        name: "fragments of 16 bytes, the first of which shows no command",
        tcp: false,
        v6: false,
        change: |spec| spec.cut(16),
        tenant: false,
    },
    Row {
        name: "fragments of 8 bytes, the first of which hides memcached's header",
        tcp: false,
        v6: false,
        change: |spec| spec.cut(8),
        tenant: false,
    },
    Row {
        name: "a first fragment that hides the transport header",
        tcp: false,
        v6: true,
        change: |spec| {
            spec.inner = vec![padding(DESTINATION); 2];
            spec.cut(8);
        },
        tenant: false,
    },
    Row {
        name: "fragments of 8 bytes, the first of which hides the segment's flags",
        tcp: true,
        v6: false,
        change: |spec| spec.cut(8),
        tenant: false,
    },
    Row {
        name: "the last fragment first",
        tcp: false,
        v6: false,
        change: |spec| {
            cut_value(spec, 32);
            spec.fragments.reverse();
        },
        tenant: true,
    },
    Row {
        name: "a first fragment twice",
        tcp: false,
        v6: true,
        change: |spec| {
            cut_value(spec, 32);
            let first: Fragment = spec.fragments[0];
            spec.fragments.insert(0, first);
        },
        tenant: true,
    },
    Row {
        name: "destination options before and behind the fragment header",
        tcp: false,
        v6: true,
        change: |spec| {
            spec.extensions = vec![padding(DESTINATION)];
            spec.inner = vec![padding(DESTINATION)];
            cut_value(spec, 40);
        },
        tenant: true,
    },
    Row {
        name: "three tags of priority",
        tcp: false,
        v6: false,
        change: |spec| spec.vlans = vec![(0x8100, 0x2000); 3],
        tenant: true,
    },
    Row {
        name: "eight tags of priority",
        tcp: true,
        v6: true,
        change: |spec| spec.vlans = vec![(0x88a8, 0); 8],
        tenant: true,
    },
    Row {
        name: "seventy tags of priority",
        tcp: false,
        v6: false,
        change: |spec| spec.vlans = vec![(0x8100, 0); 70],
        tenant: false,
    },
];

/// Makes it store a value, with the command whole in the first of two fragments.
fn cut_value(spec: &mut Spec, first: usize) {
    spec.payload = b"\0\x07\0\0\0\x01\0\0set a 0 0 8\r\nabcdefgh\r\n".to_vec();
    spec.cut(first);
}

fn padding(kind: u8) -> (u8, Vec<u8>) {
    (kind, vec![0, 1, 4, 0, 0, 0, 0])
}

fn zero_length(spec: &mut Spec) {
    spec.extensions = vec![padding(HOP_BY_HOP)];
    spec.length = Length::Fixed(0);
}

impl Row {
    fn unit(&self, sender: Sender, id: u32) -> Spec {
        let source = sender.addresses()[usize::from(self.v6)];
        let server = [SERVER_V4, SERVER_V6][usize::from(self.v6)];
        let request = b"\0\x07\0\0\0\x01\0\0get abcdefgh\r\n";
        let spec = match (self.tcp, sender) {
            (false, _) => Spec::udp(source, server, MEMCACHED, request),
            (true, Sender::Unknown) => Spec::tcp(source, server, OPAQUE, SYN, b""),
            (true, _) => Spec::tcp(source, server, OPAQUE, DATA, b"get abcdefgh\r\n"),
        };
        spec.with(|spec| {
            spec.id = id;
            (self.change)(spec);
        })
    }
}

#[test]
fn each_way_past_gate_is_closed_and_stays_open_for_tenants() {
    if !privilege::root("oracle::each_way_past_gate_is_closed_and_stays_open_for_tenants") {
        return;
    }
    pin(0);
    let mut site = Site::open().unwrap();
    let mut faults = Vec::new();
    let mut id = 0;
    for row in ROWS {
        for sender in [Sender::Unknown, Sender::Spent, Sender::Tenant] {
            id += 1;
            let unit = [row.unit(sender, id)];
            let outcome = site.run(&unit).unwrap();
            let arrived = outcome.gate.len();
            let expected = usize::from(sender == Sender::Tenant && row.tenant);
            let demand =
                if sender == Sender::Tenant { Demand::EverythingPasses } else { Demand::NothingPasses };
            let fault = if row.tenant { outcome.fault(demand, &unit) } else { None };
            if outcome.twin.len() != 1 || arrived != expected || fault.is_some() {
                let name = row.name;
                let twin = outcome.twin.len();
                let sent = hex(&unit[0].frames());
                faults.push(format!("{name} of {sender:?}: {arrived} arrived, not {expected}; {twin} without gate, where 1 has to; {fault:?}{sent}"));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
