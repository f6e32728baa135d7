//! The records of the tracing variant of the XDP program.

use std::io;
use std::mem::offset_of;
use std::net::IpAddr;
use std::os::fd::AsFd as _;
use std::sync::atomic::Ordering;
use std::time::Duration;

use aya::Ebpf;
use aya::maps::{MapData, RingBuf};
use gate_common::abi::{TraceRecord, Tracing, trace_maps};
use ipnet::IpNet;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::arrays;
use super::error::{Error, Result};
use super::mapped::{Mapped, read_words};

/// Reads what the tracing variant says of the packets of a source. Only one reader at a time.
pub struct Trace {
    records: RingBuf<MapData>,
    tracing: Mapped<Tracing>,
}

/// Packets and steps that were not traced, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Missed {
    /// Packets beyond [`Tracing::PACKETS_PER_SEC`].
    pub packets: u64,
    /// Steps for which the ring buffer had no room.
    pub steps: u64,
}

impl Trace {
    /// Tells a loaded variant which sources to trace.
    ///
    /// # Errors
    ///
    /// [`Error::ObjectLacks`], or what the kernel says.
    pub(super) fn new(object: &mut Ebpf, sources: IpNet) -> Result<Self> {
        let tracing: Mapped<Tracing> = arrays::of_object(object, trace_maps::TRACING)?;
        let [mask, network] = mask_and_network(sources);
        tracing.store_at(0, offset_of!(Tracing, mask), &mask);
        tracing.store_at(0, offset_of!(Tracing, network), &network);
        let name = trace_maps::TRACES;
        let records = object.take_map(name).ok_or_else(|| Error::ObjectLacks { what: name.to_owned() })?;
        let records = RingBuf::try_from(records).map_err(|source| Error::aya(name, source))?;
        Ok(Self { records, tracing })
    }

    /// Waits for a record; false if none came in this time.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    pub fn wait(&self, at_most: Duration) -> io::Result<bool> {
        let timeout = PollTimeout::try_from(at_most).unwrap_or(PollTimeout::MAX);
        let mut files = [PollFd::new(self.records.as_fd(), PollFlags::POLLIN)];
        Ok(poll(&mut files, timeout)? > 0)
    }

    /// The next record; `None` if none waits.
    pub fn read(&mut self) -> Option<TraceRecord> {
        self.records.next().and_then(|item| read_words(&item))
    }

    /// Packets and steps that were not traced, since the start.
    #[must_use]
    pub fn missed(&self) -> Missed {
        let word = |offset| self.tracing.word(0, offset).load(Ordering::Relaxed);
        Missed { packets: word(offset_of!(Tracing, skipped)), steps: word(offset_of!(Tracing, lost)) }
    }
}

impl std::fmt::Debug for Trace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Trace")
    }
}

/// [`Tracing::mask`] and [`Tracing::network`] of sources.
fn mask_and_network(sources: IpNet) -> [[u64; 2]; 2] {
    let (mask, network) = match (sources.netmask(), sources.network()) {
        (IpAddr::V4(mask), IpAddr::V4(network)) => {
            (u128::MAX << 32 | u128::from(mask.to_bits()), network.to_ipv6_mapped().to_bits())
        }
        (IpAddr::V6(mask), IpAddr::V6(network)) => (mask.to_bits(), network.to_bits()),
        _ => unreachable!("a network and its mask are of one family"),
    };
    [mask, network].map(|bits| {
        let bytes = bits.to_be_bytes();
        let (first, second) = bytes.split_at(8);
        [first, second].map(|half| u64::from_ne_bytes(half.try_into().expect("eight bytes")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_traced_if_its_bits_are_those_of_the_network() {
        let is_traced = |sources: &str, source: &str| {
            let [mask, network] = mask_and_network(sources.parse().unwrap());
            let source = match source.parse().unwrap() {
                IpAddr::V4(v4) => v4.to_ipv6_mapped(),
                IpAddr::V6(v6) => v6,
            };
            let [_, source] = mask_and_network(IpNet::from(IpAddr::V6(source)));
            (0..2).all(|half| source[half] & mask[half] == network[half])
        };
        for (sources, source, expected) in [
            ("198.18.1.7/32", "198.18.1.7", true),
            ("198.18.1.7/32", "198.18.1.8", false),
            ("198.18.0.0/15", "198.19.255.255", true),
            ("198.18.0.0/15", "198.20.0.0", false),
            ("0.0.0.0/0", "10.0.0.1", true),
            ("0.0.0.0/0", "fd00::1", false),
            ("fd00::/64", "fd00::ffff", true),
            ("fd00::/64", "fd00:0:0:1::", false),
            ("fd00::1/128", "fd00::1", true),
            ("fd00::1/128", "fd00::2", false),
        ] {
            assert_eq!(is_traced(sources, source), expected, "{sources} {source}");
        }
    }
}
