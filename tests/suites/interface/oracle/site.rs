//! The two pairs, gate's configuration, and what a batch of units came to.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail, ensure};
use gate_common::abi::{Exit, Protocol, Service, ServiceState, service_flags};
use gate_tests::net::{Net, SERVER_INTERFACE, SERVER_V4, SERVER_V6};
use gate_tests::world::{PRICES, Plan, TCP, UDP, World, service, tenant};
use gate_userspace::kernel::attach::Mode;
use gate_userspace::kernel::interfaces::attach;
use gate_userspace::kernel::{Peer, PinDir};

use super::generate::Sender;
use super::lane::{ANYWHERE, Arrival, Got, Lane, MEMCACHED, OPAQUE};
use super::spec::Spec;

/// A pair behind gate, and the same without.
pub(crate) struct Site {
    world: World,
    gate: Lane,
    twin: Lane,
    _twin_program: Peer,
    /// Batches that were sent again, because fragments may have been forgotten meanwhile.
    pub(crate) repeated: u64,
}

/// The result of a batch.
pub(crate) struct Outcome {
    pub(crate) frames: u64,
    /// The units that arrived behind gate, and without it.
    pub(crate) gate: Vec<Arrival>,
    pub(crate) twin: Vec<Arrival>,
    /// The units that arrived behind gate when the batch took too long, before it was sent again.
    late: Vec<Arrival>,
    /// How gate's packets left the program.
    pub(crate) exits: BTreeMap<Exit, u64>,
}

/// The demand of a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Demand {
    /// All that is judged is dropped.
    NothingPasses,
    /// All that is judged passes.
    EverythingPasses,
}

impl Site {
    pub(crate) fn open() -> Result<Self> {
        let mut world = World::new(4, 2_048)?;
        world.install(&plan());
        // The second tenant has spent what it will get in an hour.
        world.spend(2);
        let gate = Lane::open(|net| {
            let pins = PinDir::make(net.pins())?;
            net.server.enter(|| attach(&mut world.loaded, SERVER_INTERFACE, Mode::Native, &pins))??;
            Ok(())
        })?;
        // A program that passes everything: so both pairs make their packets' buffers in the same way.
        let mut program = None;
        let twin = Lane::open(|net: &Net| {
            program = Some(net.server.enter(|| Peer::attach(SERVER_INTERFACE))??);
            Ok(())
        })?;
        let _twin_program = program.expect("attached");
        Ok(Self { world, gate, twin, _twin_program, repeated: 0 })
    }

    /// Sends a batch over both pairs; with other fragments' numbers again, if that took so long that the kernel may have
    /// forgotten fragments at one of them.
    pub(crate) fn run(&mut self, batch: &[Spec]) -> Result<Outcome> {
        let mut late = Vec::new();
        for attempt in 0..ATTEMPTS {
            let number = |spec: &mut Spec| spec.id = spec.id.wrapping_add(attempt * OTHER_NUMBERS);
            let batch: Vec<Spec> = batch.iter().map(|spec| spec.clone().with(number)).collect();
            let (outcome, in_time) = self.run_once(&batch)?;
            if in_time {
                return Ok(Outcome { late, ..outcome });
            }
            self.repeated += 1;
            late.extend(outcome.gate);
        }
        bail!("a batch took too long {ATTEMPTS} times: this thread gets no CPU")
    }

    fn run_once(&mut self, batch: &[Spec]) -> Result<(Outcome, bool)> {
        let frames: Vec<Vec<u8>> = batch.iter().flat_map(Spec::frames).collect();
        let before = self.exits();
        let sent = self.gate.sent;
        let (gate, gate_in_time) = self.gate.run(&frames).context("behind gate")?;
        let after = self.exits();
        let exits = after.iter().map(|(exit, count)| (*exit, count - before[exit])).collect();
        let counted: u64 = after.values().sum::<u64>() - before.values().sum::<u64>();
        let sent = self.gate.sent - sent;
        ensure!(counted == sent, "gate counted {counted} packets of {sent}");
        let (twin, twin_in_time) = self.twin.run(&frames).context("without gate")?;
        let outcome = Outcome { frames: frames.len() as u64, gate, twin, late: Vec::new(), exits };
        Ok((outcome, gate_in_time && twin_in_time))
    }

    /// The number of packets lost to full queues so far.
    pub(crate) fn lost(&self) -> Result<u64> {
        Ok(self.gate.lost()? + self.twin.lost()?)
    }

    fn exits(&self) -> BTreeMap<Exit, u64> {
        let counted = self.world.loaded.maps.cpu_counters();
        Exit::ALL.into_iter().map(|exit| (exit, counted.exits[exit.index()])).collect()
    }
}

impl Outcome {
    /// The contradiction to the demand, if there is one.
    pub(crate) fn fault(&self, demand: Demand, batch: &[Spec]) -> Option<String> {
        match demand {
            Demand::NothingPasses => self.unjudged(),
            Demand::EverythingPasses => self.beyond_judged().or_else(|| self.missing(batch)),
        }
    }

    fn unjudged(&self) -> Option<String> {
        let arrived = self.gate.iter().chain(&self.late).find(|arrival| !may_arrive(arrival))?;
        Some(format!("{arrived:?} arrived"))
    }

    fn beyond_judged(&self) -> Option<String> {
        let judged: u64 = JUDGED.iter().map(|exit| self.exits[exit]).sum();
        let arrived = self.gate.len() as u64;
        (arrived > judged).then(|| format!("{arrived} arrived, and only {judged} were judged"))
    }

    /// The units that arrived on one side alone, of those of which gate has no right to drop anything.
    fn missing(&self, batch: &[Spec]) -> Option<String> {
        let whole = |arrival: &&Arrival| {
            let sent = |unit: &&Spec| (unit.source, unit.ports[0]) == (arrival.source, arrival.source_port);
            let unit = batch.iter().find(sent);
            unit.is_some_and(|unit| !unit.may_be_dropped())
        };
        // Changed bytes may have made another unit's port of one.
        let of_changed = |arrival: &Arrival| {
            let ports = [arrival.source_port.to_be_bytes(), arrival.port.to_be_bytes()].concat();
            let mut changed = batch.iter().filter(|unit| !unit.flips.is_empty()).flat_map(Spec::frames);
            changed.any(|frame| frame.windows(ports.len()).any(|bytes| bytes == ports))
        };
        let mut gate: Vec<_> = self.gate.iter().filter(whole).collect();
        for arrival in self.twin.iter().filter(whole) {
            match gate.iter().position(|other| *other == arrival) {
                Some(place) => _ = gate.swap_remove(place),
                None if of_changed(arrival) => {}
                None => return Some(format!("{arrival:?} arrived only without gate")),
            }
        }
        let only = gate.into_iter().find(|arrival| !of_changed(arrival))?;
        Some(format!("{only:?} arrived only with gate"))
    }
}

/// True if gate lets this pass where all that it can judge is refused.
fn may_arrive(arrival: &Arrival) -> bool {
    match (Sender::of(arrival.source), arrival.got) {
        // A changed byte has made it a tenant's.
        (Sender::Tenant, _) => true,
        (_, Got::Datagram(_)) => false,
        (Sender::Unknown, Got::Segment { opens, .. }) => !opens,
        // A reset may carry the reason for it, which is no data.
        (Sender::Spent, Got::Segment { resets, data, .. }) => resets || data == 0,
    }
}

/// How often a batch is sent.
const ATTEMPTS: u32 = 100;
/// Added to fragments' numbers, of which IPv4 has the lower 16 bits, so that a batch that is sent again completes nothing of
/// before.
const OTHER_NUMBERS: u32 = 0x0100_2000;
/// The exits by which a judged packet passes.
const JUDGED: [Exit; 4] = [Exit::Passed, Exit::Shadowed, Exit::Bare, Exit::UnknownPassed];

fn plan() -> Plan {
    let mut services = Vec::new();
    for address in [SERVER_V4, SERVER_V6] {
        services.push(service(UDP, address, OPAQUE, Protocol::Opaque));
        services.push(service(UDP, address, MEMCACHED, Protocol::Memcached));
        services.push(service(TCP, address, OPAQUE, Protocol::Opaque));
    }
    services.push(service(UDP, "", ANYWHERE, Protocol::Opaque));
    services.push(service(TCP, "", ANYWHERE, Protocol::Opaque));
    for (transport, _, service, state) in &mut services {
        // So cheap that nobody but the second tenant runs out of anything.
        *state = ServiceState { base_mru: 1, row_mru: 0, kib_mru: 0, latency_mru: [0; 8], ..PRICES };
        if *transport == TCP {
            let flags = service.flags | service_flags::DROP_UNKNOWN_SYN;
            *service = Service { flags, ..*service };
        }
    }
    let mut sources = Vec::new();
    for (sender, id) in [(Sender::Tenant, 1), (Sender::Spent, 2)] {
        for address in sender.addresses() {
            let length = if address.contains(':') { 128 } else { 32 };
            sources.push((address.parse().expect("an address"), length, id));
        }
    }
    // A service at any address protects all of them.
    let protected = ["0.0.0.0", "::"].map(|any| any.parse().expect("an address")).to_vec();
    Plan { services, tenants: vec![tenant(); 2], sources, protected, ..Plan::default() }
}
