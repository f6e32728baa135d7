//! One row of a table of packets: what comes in, how it leaves, and what was counted.

use std::net::IpAddr;

use gate_common::abi::{
    Cpu, Event, Exit, OtherBucket, Protocol, Reason, Service, ServiceState, TenantCounters, TenantState,
    service_flags,
};

use crate::packet::{Inside, Packet, tcp};
use crate::privilege;
use crate::world::{Plan, TCP, UDP, World, service, tenant};

/// A packet and what must become of it.
pub struct Row {
    /// The description.
    pub what: String,
    /// The packet in.
    pub packet: Vec<u8>,
    /// How it must leave.
    pub exit: Exit,
    /// The tenant whose counters must have changed.
    pub tenant: usize,
    /// Those counters.
    pub counters: TenantCounters,
    /// The events that must be counted.
    pub events: Vec<Event>,
    /// The keys that must have been sampled.
    pub samples: Vec<Vec<u8>>,
    /// The sampled refusal: the tenant, the reason, and the bucket by its number in a sample.
    pub verdict: Option<(u32, Reason, u8)>,
    /// The packet out, if it is neither the packet in nor none.
    pub reply: Option<Vec<u8>>,
    change: Box<dyn Fn(&mut Plan)>,
    prepare: Box<dyn Fn(&World)>,
}

/// A packet as it is sent.
#[derive(Clone, Debug)]
pub struct Sent {
    bytes: Vec<u8>,
    /// Without padding.
    len: usize,
    is_tcp: bool,
}

impl Sent {
    /// The counters of a packet that passed.
    fn passed(&self) -> TenantCounters {
        TenantCounters {
            passed: u64::from(!self.is_tcp),
            segments: u64::from(self.is_tcp),
            passed_bytes: self.len as u64,
            ..TenantCounters::default()
        }
    }
}

impl From<&Packet> for Sent {
    fn from(packet: &Packet) -> Self {
        let bytes = packet.bytes();
        let is_tcp = matches!(packet.inside, Inside::Tcp { .. });
        Self { len: bytes.len() - packet.padding, bytes, is_tcp }
    }
}

impl From<Packet> for Sent {
    fn from(packet: Packet) -> Self {
        Self::from(&packet)
    }
}

impl From<Vec<u8>> for Sent {
    /// A datagram.
    fn from(bytes: Vec<u8>) -> Self {
        Self { len: bytes.len(), bytes, is_tcp: false }
    }
}

/// XDP's actions.
const DROP: u32 = 1;
const PASS: u32 = 2;
const TRANSMIT: u32 = 3;

impl Row {
    /// A packet that leaves without anything else being counted.
    #[must_use]
    pub fn new(what: impl Into<String>, packet: impl Into<Sent>, exit: Exit) -> Self {
        Self {
            what: what.into(),
            packet: packet.into().bytes,
            exit,
            tenant: 0,
            counters: TenantCounters::default(),
            events: Vec::new(),
            samples: Vec::new(),
            verdict: None,
            reply: None,
            change: Box::new(|_| ()),
            prepare: Box::new(|_| ()),
        }
    }

    /// A request of `tenant` that passes at this price.
    #[must_use]
    pub fn passed(what: impl Into<String>, packet: impl Into<Sent>, tenant: usize, price: u64) -> Self {
        let packet = packet.into();
        let counters = TenantCounters { charged_mru: price, ..packet.passed() };
        Self { tenant, counters, ..Self::new(what, packet, Exit::Passed) }
    }

    /// A segment without a request, of `tenant`, that passes.
    #[must_use]
    pub fn bare(what: impl Into<String>, packet: impl Into<Sent>, tenant: usize) -> Self {
        let packet = packet.into();
        let counters =
            TenantCounters { bare: 1, passed_bytes: packet.len as u64, ..TenantCounters::default() };
        Self { tenant, counters, ..Self::new(what, packet, Exit::Bare) }
    }

    /// A request of `tenant` that is refused for a reason, at this price.
    #[must_use]
    pub fn refused(
        what: impl Into<String>,
        packet: impl Into<Sent>,
        tenant: usize,
        reason: Reason,
        price: u64,
    ) -> Self {
        let exit = match reason {
            Reason::UnknownSource => Exit::UnknownSource,
            Reason::Malformed => Exit::Malformed,
            Reason::SynRate => Exit::SynRate,
            Reason::NoConnection => Exit::NoConnection,
            _ => Exit::RefusedDropped,
        };
        let mut counters = TenantCounters { refused_mru: price, ..TenantCounters::default() };
        counters.refused[reason.index()] = 1;
        Self { tenant, counters, ..Self::new(what, packet, exit) }
    }

    /// The refusal is that of this bucket.
    #[must_use]
    pub fn of_bucket(mut self, bucket: OtherBucket) -> Self {
        self.counters.quota_refused[bucket.index()] = 1;
        self
    }

    /// As [`Row::refused`], but shadowed: it passes.
    #[must_use]
    pub fn shadowed(what: impl Into<String>, packet: impl Into<Sent>, tenant: usize, reason: Reason) -> Self {
        let packet = packet.into();
        let mut counters = packet.passed();
        counters.shadowed[reason.index()] = 1;
        Self { tenant, counters, ..Self::new(what, packet, Exit::Shadowed) }
    }

    /// The refusal is answered: the reply must be the one that `packet` asks for.
    #[must_use]
    pub fn answered(mut self, packet: &Packet) -> Self {
        self.exit = Exit::RefusedReplied;
        self.counters.replied = 1;
        self.reply = Some(reply(packet));
        self
    }

    /// With another plan than the usual one.
    #[must_use]
    pub fn plan(mut self, change: impl Fn(&mut Plan) + 'static) -> Self {
        let before = self.change;
        self.change = Box::new(move |plan| {
            before(plan);
            change(plan);
        });
        self
    }

    /// After something else was done to the maps.
    #[must_use]
    pub fn after(mut self, prepare: impl Fn(&World) + 'static) -> Self {
        self.prepare = Box::new(prepare);
        self
    }

    /// Something happens on the way.
    #[must_use]
    pub fn event(mut self, event: Event) -> Self {
        self.events.push(event);
        self
    }

    /// Every request is sampled, and this key must be; none if it is empty.
    #[must_use]
    pub fn sampled(mut self, key: &[u8]) -> Self {
        if !key.is_empty() {
            self.events.push(Event::Sampled);
            self.samples.push(key.to_vec());
        }
        self.plan(|plan| plan.view.sample_every = 1)
    }

    /// Every request is sampled, and so this refusal must be, with the bucket of its counters.
    ///
    /// # Panics
    ///
    /// If it is no refusal.
    #[must_use]
    pub fn refusal_sampled(mut self) -> Self {
        let refused = Reason::ALL.into_iter().find(|reason| self.counters.refused[reason.index()] != 0);
        let other = self.counters.quota_refused.iter().position(|&count| count != 0);
        let bucket = other.map_or(0, |place| place as u8 + 1);
        self.verdict = Some((self.tenant as u32, refused.expect("a refusal"), bucket));
        self.events.push(Event::RefusalSampled);
        self.plan(|plan| plan.view.sample_every = 1)
    }

    /// The counters are these after a change.
    #[must_use]
    pub fn counters(mut self, change: impl FnOnce(&mut TenantCounters)) -> Self {
        change(&mut self.counters);
        self
    }

    /// Runs it, and says what is wrong.
    ///
    /// # Errors
    ///
    /// Compares the program's result with the row.
    ///
    /// # Panics
    ///
    /// If the kernel refuses the packet.
    pub fn check(&self, world: &mut World) -> Result<(), String> {
        self.install(world);
        self.check_in_buffers(world, self.packet.len())
    }

    /// Puts its plan in force.
    fn install(&self, world: &mut World) {
        let mut plan = fixture_plan();
        (self.change)(&mut plan);
        world.install(&plan);
    }

    /// As [`Row::check`], with its plan in force already, and a packet of which only the first `linear` bytes lie in the
    /// linear part.
    ///
    /// # Errors
    ///
    /// As there.
    ///
    /// # Panics
    ///
    /// As there.
    fn check_in_buffers(&self, world: &mut World, linear: usize) -> Result<(), String> {
        world.reset_counters();
        world.loaded.maps.beat(world.now());
        // The second tenant has spent all it has.
        world.spend(2);
        (self.prepare)(world);
        let before = world.counted();
        let runner = world.loaded.runner().expect("the program");
        let run = if linear < self.packet.len() {
            runner.run_in_buffers(&self.packet, linear)
        } else {
            runner.run(&self.packet, 1)
        };
        let run = run.unwrap_or_else(|fault| panic!("{}, {linear} bytes linear: {fault}", self.what));
        let mut keys = Vec::new();
        let mut verdicts = Vec::new();
        world.loaded.samples.drain_requests(usize::MAX, |sample| match sample.head.reason() {
            Some(reason) => verdicts.push((sample.head.tenant, reason, sample.head.bucket)),
            None => keys.push(sample.key[..usize::from(sample.head.key_len)].to_vec()),
        });
        let counted = world.counted();

        let mut faults = Vec::new();
        let mut expected = before;
        expected.cpu.exits[self.exit.index()] += 1;
        for event in &self.events {
            expected.cpu.events[event.index()] += 1;
        }
        expected.tenants[self.tenant] = self.counters;
        if counted.cpu != expected.cpu {
            faults.push(format!("left by {}, not {}", names(&counted.cpu), names(&expected.cpu)));
        }
        for (id, (found, expected)) in counted.tenants.iter().zip(&expected.tenants).enumerate() {
            if found != expected {
                faults.push(format!(
                    "tenant {id} counted {}, not {}",
                    nonzero_counters(found),
                    nonzero_counters(expected)
                ));
            }
        }
        let action = match self.exit {
            Exit::Malformed
            | Exit::UnknownSource
            | Exit::RefusedDropped
            | Exit::FragmentDropped
            | Exit::TooManyHeaders
            | Exit::SynRate
            | Exit::NoConnection => DROP,
            Exit::RefusedReplied => TRANSMIT,
            _ => PASS,
        };
        if run.action != action {
            faults.push(format!("action {}, not {action}", run.action));
        }
        let out = match &self.reply {
            Some(reply) if linear >= self.packet.len() => in_frame_of(reply, &self.packet),
            Some(reply) => reply.clone(),
            None => self.packet.clone(),
        };
        if run.packet != out {
            faults.push(format!("came out as\n  {:02x?}\n  not {out:02x?}", run.packet));
        }
        if keys != self.samples {
            faults.push(format!("sampled {keys:?}, not {:?}", self.samples));
        }
        if verdicts != self.verdict.into_iter().collect::<Vec<_>>() {
            faults.push(format!("sampled verdicts {verdicts:?}, not {:?}", self.verdict));
        }
        if faults.is_empty() { Ok(()) } else { Err(format!("{}: {}", self.what, faults.join("\n  "))) }
    }
}

/// Runs every row, and fails with all that is wrong.
///
/// # Panics
///
/// If a row is not met, or there are fewer than `least`.
pub fn check_all(rows: &[Row], least: usize) {
    assert!(rows.len() >= least, "{} rows", rows.len());
    check_all_in(World::new(8, 2048).expect("the program loads"), rows);
}

/// Runs every row in a world.
///
/// # Panics
///
/// If one is not met.
pub fn check_all_in(mut world: World, rows: &[Row]) {
    let faults: Vec<String> = rows.iter().filter_map(|row| row.check(&mut world).err()).collect();
    assert!(faults.is_empty(), "{} of {} rows:\n{}", faults.len(), rows.len(), faults.join("\n"));
}

/// Runs every row with linear parts of many sizes: those around the headers' ends, or all if `all` is set.
///
/// # Panics
///
/// If a row is not met.
pub fn check_linear(rows: &[Row], all: bool) {
    let mut world = World::new(8, 2048).expect("the program loads");
    if world.loaded.runner().expect("the program").run_in_buffers(&[0; 64], LEAST_LINEAR).is_err() {
        return privilege::not_run("fixtures at other linear sizes", NO_LINEAR_SIZES);
    }
    let mut faults = Vec::new();
    let mut runs = 0;
    for row in rows {
        row.install(&mut world);
        for linear in LEAST_LINEAR..row.packet.len().min(MOST_LINEAR) {
            if !all && !is_boundary(linear, row.packet.len()) {
                continue;
            }
            runs += 1;
            faults.extend(
                row.check_in_buffers(&mut world, linear)
                    .err()
                    .map(|fault| format!("{linear} linear: {fault}")),
            );
        }
    }
    let listed = faults.iter().take(20).map(String::as_str).collect::<Vec<_>>().join("\n");
    assert!(faults.is_empty(), "{} of {runs} runs:\n{listed}", faults.len());
}

/// Where headers end, and around the ends of Ethernet, IPv4 and the frame.
fn is_boundary(linear: usize, len: usize) -> bool {
    let near = |end: usize| linear + 1 >= end && linear <= end + 1;
    near(14) || near(34) || near(len - 1) || BOUNDARIES.contains(&linear)
}

/// The fewest linear bytes that a test run takes.
const LEAST_LINEAR: usize = 14;
/// Why a test that needs other linear sizes is not run.
pub const NO_LINEAR_SIZES: &str =
    "this kernel's test runs take no linear part of another size; Linux 6.18 does";
/// More than a test run's linear part holds.
const MOST_LINEAR: usize = 3_000;
/// The ends of Ethernet, VLAN tags, IPv4, IPv6, UDP, TCP and memcached's frame header, with and without tags or options.
const BOUNDARIES: [usize; 12] = [17, 18, 22, 38, 42, 46, 49, 50, 54, 61, 62, 70];

/// Where the rows play.
///
/// | tenant | sources | |
/// |---|---|---|
/// | 1 | `198.18.0.2`, `fd00::2` | has plenty |
/// | 2 | `198.18.2.0/24`, `fd00:2::/64` | has spent its quota |
/// | 3 | none | the default of port 9999, never answered |
/// | 4 | `198.18.4.0/24` | spare |
#[must_use]
pub fn fixture_plan() -> Plan {
    let proxied = |mut service: (u8, u16, Service, ServiceState)| {
        service.2.flags |= service_flags::PROXIED;
        service
    };
    let mut strict = service(TCP, "198.18.0.1", 6379, Protocol::Resp);
    strict.2.flags |= service_flags::DROP_UNKNOWN_SYN;
    let mut open = service(UDP, "", 9999, Protocol::Opaque);
    open.2.default_tenant = 3;
    let address = |address: &str| -> IpAddr { address.parse().expect("an address") };
    Plan {
        services: vec![
            service(UDP, "198.18.0.1", 11211, Protocol::Memcached),
            service(TCP, "198.18.0.1", 11211, Protocol::Memcached),
            service(UDP, "fd00::1", 11211, Protocol::Memcached),
            service(TCP, "fd00::1", 11211, Protocol::Memcached),
            strict,
            proxied(service(UDP, "198.18.0.1", 11212, Protocol::Memcached)),
            proxied(service(TCP, "198.18.0.1", 11212, Protocol::Memcached)),
            open,
        ],
        tenants: vec![tenant(), tenant(), TenantState { flags: 0, ..tenant() }, tenant()],
        sources: vec![
            (address("198.18.0.2"), 32, 1),
            (address("fd00::2"), 128, 1),
            (address("198.18.2.0"), 24, 2),
            (address("fd00:2::"), 64, 2),
            (address("198.18.4.0"), 24, 4),
        ],
        protected: ["198.18.0.1", "fd00::1"].map(address).into(),
        ..Plan::default()
    }
}

/// The reply to a refused packet: its headers reversed, without options, and the short refusal.
///
/// # Panics
///
/// If the packet is neither a datagram nor a segment.
#[must_use]
pub fn reply(packet: &Packet) -> Vec<u8> {
    let text = b"SERVER_ERROR throttled\r\n";
    let [to, from] = packet.macs;
    let mut reply = Packet {
        macs: [from, to],
        source: packet.destination,
        destination: packet.source,
        ports: [packet.ports[1], packet.ports[0]],
        options: Vec::new(),
        extensions: Vec::new(),
        hops: 64,
        dont_fragment: true,
        fragment: (false, 0),
        padding: 0,
        ..packet.clone()
    };
    match &packet.inside {
        Inside::Udp(_) => {
            reply.inside = Inside::Udp(None);
            reply.payload = [&packet.payload[..2], &[0, 0, 0, 1, 0, 0], text].concat();
        }
        Inside::Tcp { flags, sequence, .. } => {
            let fin = u32::from(flags & tcp::FIN != 0);
            let acknowledgment = sequence.wrapping_add(1 + fin + packet.payload.len() as u32);
            reply.inside = Inside::Reset { acknowledgment };
            reply.payload = Vec::new();
            reply.padding = 6;
        }
        inside => panic!("there is no reply to {inside:?}"),
    }
    reply.bytes()
}

/// A reply as it leaves in the frame of its request, all of which is linear: the end of a request that is a little longer
/// stays behind it.
#[must_use]
pub fn in_frame_of(reply: &[u8], request: &[u8]) -> Vec<u8> {
    match request.get(reply.len()..) {
        Some(rest) if rest.len() <= MOST_PADDING => [reply, rest].concat(),
        _ => reply.to_vec(),
    }
}

/// The most bytes of a request that stay behind its reply.
const MOST_PADDING: usize = 64;

/// The counters that are not zero.
fn nonzero_counters(counters: &TenantCounters) -> String {
    let TenantCounters {
        passed,
        segments,
        charged_mru,
        refused_mru,
        replied,
        candidate_refused,
        bare,
        passed_bytes,
        ..
    } = counters;
    let mut nonzero_counters = vec![
        ("passed", *passed),
        ("segments", *segments),
        ("charged", *charged_mru),
        ("refused mRU", *refused_mru),
        ("replied", *replied),
        ("candidate", *candidate_refused),
        ("bare", *bare),
        ("bytes", *passed_bytes),
    ];
    nonzero_counters.extend(Reason::ALL.map(|reason| (reason.name(), counters.refused[reason.index()])));
    nonzero_counters.push(("by another bucket", counters.quota_refused.iter().sum()));
    let shadowed = counters.shadowed.iter().sum();
    nonzero_counters.push(("shadowed", shadowed));
    nonzero_counters.retain(|(_, count)| *count != 0);
    format!("{nonzero_counters:?}")
}

fn names(cpu: &Cpu) -> String {
    let exits = Exit::ALL.iter().filter(|exit| cpu.exits[exit.index()] != 0).map(|exit| exit.name());
    let events = Event::ALL.iter().filter(|event| cpu.events[event.index()] != 0).map(|event| event.name());
    exits.chain(events).collect::<Vec<_>>().join(" + ")
}
