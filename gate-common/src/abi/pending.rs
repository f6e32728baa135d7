//! Answers measured in passing: requests whose answer is awaited, and the measurements.
//!
//! XDP notes some of the requests that it lets through to a guarded service in [`super::maps::PENDING`]; the program at the
//! interface's egress finds them there when their answers leave, and sends a [`Measured`] through the ring buffer.
//!
//! Which requests are noted follows from a hash of client, port and request id, so that a request which repeats an id is always
//! noticed. Neither of two requests that are under way with the same id is measured: no answer says which of them it is for.
//! The hash is strongly universal, with keys that no client knows (M. Dietzfelbinger, *Universal hashing and k-wise independent
//! random variables via integer arithmetic without primes*, 1996): no client can choose requests that are noted, or that take
//! the slots of others.

use core::mem::{offset_of, size_of};

/// A request whose answer is awaited. All integers but the last three fields as in the packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Pending {
    /// The client's address; IPv4 as `::ffff:a.b.c.d`.
    pub client: [u8; 16],
    /// The address that it asked.
    pub server: [u8; 16],
    /// The request id.
    pub id: u16,
    /// The client's port.
    pub client_port: u16,
    /// The service's port.
    pub port: u16,
    /// [`super::Service::measured`] as the request was noted by it. Another one is in force: nothing is measured.
    pub measured: u8,
    /// A [`super::QueryClass`].
    pub class: u8,
    /// When it came in, as `CLOCK_MONOTONIC` was. Zero: nothing is awaited.
    pub asked_ns: u64,
    /// The slot of the service.
    pub service: u32,
    /// Spelled out.
    pub _reserved: u32,
    /// Not zero while a program reads or writes the slot.
    pub lock: u64,
}

const _: () = assert!(size_of::<Pending>() == 64);
const _: () = {
    assert!(offset_of!(Pending, id) == 32 && offset_of!(Pending, client_port) == 34);
    assert!(offset_of!(Pending, port) == 36 && offset_of!(Pending, measured) == 38);
    assert!(offset_of!(Pending, asked_ns) == 40 && offset_of!(Pending, lock) == 56);
};

impl Pending {
    /// Slots: a power of two. At the aimed rate, enough for a store that takes seconds.
    pub const SLOTS: u32 = 1 << Self::SLOT_BITS;
    const SLOT_BITS: u32 = 13;
    /// No answer is waited for longer than this.
    pub const LONGEST_NS: u64 = 2_000_000_000;
    /// The bits of [`Pending::id`] and what follows, as one word, that tell requests apart.
    pub const NAME_MASK: u64 = 0x0000_ffff_ffff_ffff;
    /// How many numbers make the key of [`Pending::hash`].
    pub const KEYS: usize = 6;

    /// The hash of a request: its client's address as two words in memory order; its id and the client's port, as they lie in
    /// [`Pending`].
    #[must_use]
    #[inline(always)]
    pub const fn hash(keys: &[u64; Self::KEYS], client: [u64; 2], id_and_port: u32) -> u32 {
        let [first, second] = client;
        let sum = keys[0]
            .wrapping_add((first as u32 as u64).wrapping_mul(keys[1]))
            .wrapping_add((first >> 32).wrapping_mul(keys[2]))
            .wrapping_add((second as u32 as u64).wrapping_mul(keys[3]))
            .wrapping_add((second >> 32).wrapping_mul(keys[4]))
            .wrapping_add((id_and_port as u64).wrapping_mul(keys[5]));
        (sum >> 32) as u32
    }

    /// The slot of a request with this hash.
    #[must_use]
    #[inline(always)]
    pub const fn slot(hash: u32) -> u32 {
        hash >> (32 - Self::SLOT_BITS)
    }
}

/// [`super::Service::measured`]: which of a service's requests are noted.
///
/// The number of a rate, plus one, in the lowest five bits: one in `2^rate`. Above it a turn of three bits: each turn
/// notes others. Zero: none is noted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct MeasuredShare(pub u8);

impl MeasuredShare {
    /// The highest rate: one request in 2^16.
    pub const MOST: u8 = 16;
    /// How many turns there are.
    pub const TURNS: u8 = 8;
    const RATE_BITS: u8 = 5;

    /// One request in `2^rate`, at most [`MeasuredShare::MOST`].
    #[must_use]
    pub const fn new(rate: u8, turn: u8) -> Self {
        let rate = if rate > Self::MOST { Self::MOST } else { rate };
        Self((rate + 1) | (turn % Self::TURNS) << Self::RATE_BITS)
    }

    /// The rate; `None` if no request is noted.
    #[must_use]
    pub const fn rate(self) -> Option<u8> {
        (self.0 & ((1 << Self::RATE_BITS) - 1)).checked_sub(1)
    }

    /// The turn.
    #[must_use]
    pub const fn turn(self) -> u8 {
        self.0 >> Self::RATE_BITS
    }

    /// True if a request with this [hash](Pending::hash) is noted. Its slot says nothing about that.
    #[must_use]
    #[inline(always)]
    pub const fn covers(self, hash: u32) -> bool {
        let rate_plus_one = self.0 & ((1 << Self::RATE_BITS) - 1);
        // The turn, repeated along the bits that are compared.
        let turn = (self.0 >> Self::RATE_BITS) as u32 * 0o1_111_111;
        let compared = (1_u32 << (rate_plus_one & 31)) - 1;
        rate_plus_one != 0 && (hash ^ turn) & (compared >> 1) == 0
    }
}

/// An answer that was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Measured {
    /// From the request's arrival at the interface to its answer's departure.
    pub took_ns: u64,
    /// The slot of the service.
    pub service: u32,
    /// The bytes of the answer: exact for one datagram, else at most so many.
    pub bytes: u32,
    /// The service's port, in network order.
    pub port: u16,
    /// A [`super::QueryClass`].
    pub class: u8,
    /// 1 for an error of the store (`SERVER_ERROR`).
    pub failed: u8,
    /// Spelled out.
    pub _reserved: u32,
}

const _: () = assert!(size_of::<Measured>() == 24);

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec::Vec;

    use super::*;
    use crate::abi::draw;

    const KEYS: [u64; Pending::KEYS] = [
        0x1f83_d9ab_fb41_bd6b,
        0x9b05_688c_2b3e_6c1f,
        0x510e_527f_ade6_82d1,
        0xa54f_f53a_5f1d_36f1,
        0x3c6e_f372_fe94_f82b,
        0xbb67_ae85_84ca_a73b,
    ];

    /// Hashes of clients at one address that count ids up at many ports.
    fn hashes() -> impl Iterator<Item = u32> {
        let client = |n: u32| [0, 0xffff_0000 | u64::from(n % 3) << 32];
        (0..1 << 16).map(move |n| Pending::hash(&KEYS, client(n), n.rotate_left(16) ^ n >> 3))
    }

    #[test]
    fn each_rate_covers_its_share_and_each_turn_others() {
        assert!(hashes().all(|hash| !MeasuredShare(0).covers(hash)));
        for rate in [0, 1, 3, 6, 9] {
            for turn in 0..MeasuredShare::TURNS {
                let share = MeasuredShare::new(rate, turn);
                assert_eq!((share.rate(), share.turn()), (Some(rate), turn));
                let covered = hashes().filter(|&hash| share.covers(hash)).count();
                let expected = (1 << 16) >> rate;
                assert!(covered.abs_diff(expected) <= expected / 3, "{rate} {turn}: {covered} of {expected}");
            }
        }
        let of_turn = |turn| hashes().filter(move |&hash| MeasuredShare::new(6, turn).covers(hash));
        assert!(of_turn(0).all(|hash| !MeasuredShare::new(6, 1).covers(hash)));
    }

    #[test]
    fn noted_requests_spread_over_all_slots() {
        let mut taken = std::vec![0_u32; Pending::SLOTS as usize];
        let share = MeasuredShare::new(3, 5);
        hashes().filter(|&hash| share.covers(hash)).for_each(|hash| taken[Pending::slot(hash) as usize] += 1);
        // 8,192 balls in as many bins: about 1 - 1/e are hit.
        let hit = taken.iter().filter(|&&count| count > 0).count();
        assert!(hit > 4_500, "{hit}");
        assert!(taken.iter().all(|&count| count < 12));
    }

    #[test]
    fn requests_collide_no_more_often_than_by_chance() {
        // Pairs that differ by one bit, or by the highest bits of two words, under many keys.
        let differences: Vec<([u64; 2], u32)> =
            [([0, 1 << 63], 0), ([1 << 63, 1 << 63], 0), ([0, 1 << 31], 1 << 31), ([0, 0], 1)].into();
        for (client, id) in differences {
            let mut state = 7;
            let collisions = (0..100_000).filter(|_| {
                let keys = [0; Pending::KEYS].map(|_: u64| {
                    state = draw::next(state);
                    state.wrapping_mul(0x9e37_79b9_7f4a_7c15)
                });
                let one = Pending::slot(Pending::hash(&keys, [3, 5], 7));
                one == Pending::slot(Pending::hash(&keys, [3 ^ client[0], 5 ^ client[1]], 7 ^ id))
            });
            let collisions = collisions.count();
            assert!(collisions < 60, "{client:x?} {id:x}: {collisions}");
        }
    }
}
