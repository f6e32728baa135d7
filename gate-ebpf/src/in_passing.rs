//! Measurement in passing: how long a guarded service takes, from requests that XDP lets through and answers at egress.
//!
//! **Requests.** [`MeasuredShare`](gate_common::abi::MeasuredShare) says which are noted. A request that repeats the id of one
//! that is under way makes that unknown: which of them an answer is for cannot be told. So does what asks several things, or
//! nothing that is answered. Whatever passes with an id that is noted is seen here, so that no time is counted from a request
//! that another one has followed.
//!
//! **Answers.** The first datagram (sequence 0) from the service's address and port to the client's, with its id, is the answer.
//! A later one finds nothing. At egress nothing is changed, of the packet or of its way.

use core::intrinsics::{AtomicOrdering, atomic_cxchg, atomic_xadd, atomic_xchg};

use aya_ebpf::Global;
use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use gate_common::abi::{Event, Measured, Pending, QueryClass};

use crate::context::Scratch;
use crate::counters;
use crate::maps::{self, PENDING, SAMPLES, opaque_const, read_once, read_word_once, write_once};
use crate::parse::Packet;
use crate::parse::frame::{self, IPV4, IPV6, UDP, is_vlan};
use crate::parse::memcached::{Commands, FRAME_HEADER};
use crate::parse::transport::UDP_HEADER;
use crate::sample;

/// The hash of the request in scratch.
#[inline(always)]
pub(crate) fn hash(scratch: &Scratch) -> u32 {
    Pending::hash(&keys(), scratch.frame.source, scratch.scan.id_and_port)
}

/// Notes the request in scratch, which is to be noted and has this hash; or makes the one unknown that it repeats.
#[inline(never)]
pub(crate) fn note(scratch: *mut Scratch, hash: u32) {
    // SAFETY: this CPU's own scratch.
    let scratch = unsafe { &*scratch };
    let Some(at) = PENDING.get_ptr_mut(Pending::slot(hash)) else { return };
    // SAFETY: the helper reads a clock.
    let now_ns = unsafe { bpf_ktime_get_ns() };
    let Some(service) = maps::SERVICES.get_ptr_mut(scratch.service_slot) else { return };
    let class = class(scratch);
    if !lock(at) {
        return counters::count_event(Event::MeasurementLost);
    }
    // SAFETY: addresses lie at multiples of eight bytes in the slot, which nobody else reads or writes.
    let (client, server) =
        unsafe { ((&raw mut (*at).client).cast::<[u64; 2]>(), (&raw mut (*at).server).cast::<[u64; 2]>()) };
    let name = u64::from(scratch.scan.id_and_port) | u64::from(read_once!((*service).port).to_be()) << 32;
    let asked_ns = read_once!((*at).asked_ns);
    let is_awaited = asked_ns != 0 && now_ns.wrapping_sub(asked_ns) < Pending::LONGEST_NS;
    let is_same = read_word_once!((*at).id) & Pending::NAME_MASK == name
        && is(client, scratch.frame.source)
        && is(server, scratch.frame.destination);
    if is_awaited && is_same {
        write_once!((*at).asked_ns, 0);
    } else if class < QueryClass::COUNT as u32 {
        set(client, scratch.frame.source);
        set(server, scratch.frame.destination);
        let word = name | u64::from(read_once!((*service).measured)) << 48 | u64::from(class) << 56;
        // SAFETY: as above, the word of the id and what follows it.
        unsafe { (&raw mut (*at).id).cast::<u64>().write_volatile(word) };
        write_once!((*at).service, scratch.service_slot);
        write_once!((*at).asked_ns, now_ns);
        // SAFETY: a word of a map's element; all writers use atomics.
        unsafe { atomic_xadd::<u64, u64, { AtomicOrdering::Relaxed }>(&raw mut (*service).noted, 1) };
    }
    unlock(at);
}

/// The class of a request that is answered once; [`QueryClass::COUNT`] of anything else.
#[inline(always)]
fn class(scratch: &Scratch) -> u32 {
    match scratch.commands {
        Commands::SingleGet => QueryClass::Get as u32,
        Commands::NotParsed => QueryClass::COUNT as u32,
        Commands::Scanned => {
            let mut commands = 0;
            let mut found = 0;
            for class in 0..QueryClass::COUNT {
                let of_class = read_once!(scratch.scan.commands[class]);
                commands += u64::from(of_class);
                // Without branches, each of which doubles what the verifier walks.
                found += u64::from(of_class) * class as u64;
            }
            let is_one = commands == 1 && scratch.scan.wants_reply && scratch.scan.unread() == 0;
            if is_one { found as u32 } else { QueryClass::COUNT as u32 }
        }
    }
}

/// Measures an answer that leaves.
#[inline(always)]
pub(crate) fn measure(skb: *mut __sk_buff) {
    if let Some(answer) = Answer::parse(&Packet::of_skb(skb)) {
        let hash = Pending::hash(&keys(), answer.client, answer.name as u32);
        let Some(at) = PENDING.get_ptr_mut(Pending::slot(hash)) else { return };
        if read_word_once!((*at).id) & Pending::NAME_MASK == answer.name && read_once!((*at).asked_ns) != 0 {
            finish(at, &answer);
        }
    }
}

/// The first datagram of an answer.
struct Answer {
    /// As [`Pending::client`], [`Pending::server`].
    client: [u64; 2],
    server: [u64; 2],
    /// As [`Pending::id`] and what follows it, the lowest 48 bits.
    name: u64,
    /// The bytes of all datagrams, if they are as long as this one.
    bytes: u32,
    failed: bool,
}

impl Answer {
    /// Reads a datagram from a protected port. One with options or extension headers is none, nor one whose headers are not in
    /// the linear part.
    #[inline(always)]
    fn parse(packet: &Packet) -> Option<Self> {
        let mut ether_type = packet.bytes::<14>(0)?.get::<u16, 12>();
        let mut at = 14;
        for _ in 0..2 {
            if is_vlan(ether_type) {
                ether_type = packet.bytes::<4>(at)?.get::<u16, 2>();
                at += 4;
            }
        }
        let (client, server);
        match ether_type {
            IPV4 => {
                let header = packet.bytes::<20>(at)?;
                let is_first = header.get::<u16, 6>() & LATER_FRAGMENT_V4 == 0;
                if header.get::<u8, 0>() != 0x45 || header.get::<u8, 9>() != UDP || !is_first {
                    return None;
                }
                client = frame::words_v4(header.get::<u32, 16>());
                server = frame::words_v4(header.get::<u32, 12>());
                at += 20;
            }
            IPV6 => {
                let header = packet.bytes::<40>(at)?;
                if header.get::<u8, 6>() != UDP {
                    return None;
                }
                client = [header.get::<u64, 24>(), header.get::<u64, 32>()];
                server = [header.get::<u64, 8>(), header.get::<u64, 16>()];
                at += 40;
            }
            _ => return None,
        }
        let header = packet.bytes::<16>(at)?;
        let port = header.get::<u16, 0>();
        let ports = maps::PORTS.get_ptr(0)?;
        // A sequence number of zero.
        if read_once!((*ports).udp[port as usize]) == 0 || header.get::<u16, 10>() != 0 {
            return None;
        }
        let name = u64::from(header.get::<u16, 8>())
            | u64::from(header.get::<u16, 2>()) << 16
            | u64::from(port) << 32;
        let payload = u32::from(u16::from_be(header.get::<u16, 4>())).saturating_sub(HEADERS);
        let bytes = payload.saturating_mul(u16::from_be(header.get::<u16, 12>()).into());
        let failed = packet
            .bytes::<8>(at + HEADERS as usize)
            .is_some_and(|start| start.get::<u64, 0>() == u64::from_le_bytes(*b"SERVER_E"));
        Some(Self { client, server, name, bytes, failed })
    }
}

/// Ends the wait for an answer, and sends the measurement.
#[inline(never)]
fn finish(at: *mut Pending, answer: &Answer) {
    // SAFETY: the helper reads a clock.
    let now_ns = unsafe { bpf_ktime_get_ns() };
    if !lock(at) {
        return counters::count_event(Event::MeasurementLost);
    }
    // SAFETY: addresses lie at multiples of eight bytes in the slot.
    let (client, server) =
        unsafe { ((&raw mut (*at).client).cast::<[u64; 2]>(), (&raw mut (*at).server).cast::<[u64; 2]>()) };
    let asked_ns = read_once!((*at).asked_ns);
    let word = read_word_once!((*at).id);
    let service_slot = read_once!((*at).service);
    let is_for = asked_ns != 0
        && word & Pending::NAME_MASK == answer.name
        && is(client, answer.client)
        && is(server, answer.server);
    if is_for {
        write_once!((*at).asked_ns, 0);
    }
    unlock(at);
    let took_ns = now_ns.wrapping_sub(asked_ns);
    let Some(service) = maps::SERVICES.get_ptr(service_slot) else { return };
    let is_in_force = u64::from(read_once!((*service).measured)) == word >> 48 & 0xff;
    if !is_for || !is_in_force || took_ns >= Pending::LONGEST_NS {
        return;
    }
    let entry = if sample::is_half_full() { None } else { SAMPLES.reserve::<Measured>(0) };
    let Some(mut entry) = entry else { return counters::count_event(Event::MeasurementLost) };
    // SAFETY: the entry belongs to this program until it is submitted.
    unsafe {
        entry.as_mut_ptr().write(Measured {
            took_ns,
            service: service_slot,
            bytes: answer.bytes,
            port: (word >> 32) as u16,
            class: (word >> 56) as u8,
            failed: u8::from(answer.failed),
            _reserved: 0,
        });
    }
    entry.submit(0);
}

/// Takes a slot for this program alone; false if another CPU holds it for longer than it ever does.
#[inline(always)]
fn lock(at: *mut Pending) -> bool {
    for _ in 0..opaque_const::<ATTEMPTS>() {
        // SAFETY: a word of a map's element, aligned to 8; all access is atomic.
        let (_, locked) = unsafe {
            atomic_cxchg::<u64, { AtomicOrdering::SeqCst }, { AtomicOrdering::SeqCst }>(
                &raw mut (*at).lock,
                0,
                1,
            )
        };
        if locked {
            return true;
        }
    }
    false
}

#[inline(always)]
fn unlock(at: *mut Pending) {
    // SAFETY: as in `lock`.
    unsafe { atomic_xchg::<u64, { AtomicOrdering::SeqCst }>(&raw mut (*at).lock, 0) };
}

/// True if the address at a place is this one.
#[inline(always)]
fn is(at: *const [u64; 2], [first, second]: [u64; 2]) -> bool {
    read_once!((*at)[0]) == first && read_once!((*at)[1]) == second
}

#[inline(always)]
fn set(at: *mut [u64; 2], [first, second]: [u64; 2]) {
    write_once!((*at)[0], first);
    write_once!((*at)[1], second);
}

#[inline(always)]
fn keys() -> [u64; Pending::KEYS] {
    PENDING_KEYS.load()
}

/// The key of [`Pending::hash`], which the loader draws.
#[unsafe(no_mangle)]
static PENDING_KEYS: Global<[u64; Pending::KEYS]> = Global::new([0; Pending::KEYS]);

/// A slot is held for well below a microsecond.
const ATTEMPTS: u32 = 32;
/// The offset of a fragment.
const LATER_FRAGMENT_V4: u16 = 0x1fff_u16.to_be();
/// Bytes of the headers of UDP and of memcached's frame.
const HEADERS: u32 = UDP_HEADER as u32 + FRAME_HEADER;
