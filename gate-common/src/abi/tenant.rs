//! A tenant: its buckets, which are never banked, and two banks of state.
//!
//! A packet of a tenant without anything special reads one cache line of it, its [`TenantLine`]. These lie side by side in a
//! map of their own, so that those of many tenants fit into a CPU's cache. Everything else is in its [`Tenant`].

use core::mem::{offset_of, size_of};

use super::Name;
use crate::token_bucket::{Limits, Rate};
use crate::units::Multiplier;

/// The cache line of a tenant that each of its packets reads: the bucket of its quota, and of both banks what a tenant
/// without anything special needs. Index zero is nobody.
///
/// The first word is the `tat` of a [token bucket](crate::token_bucket), changed only by compare-and-swap. The rest is
/// a copy of parts of [`Tenant::banks`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct TenantLine {
    /// The quota, in thousandths of a request unit, shared by XDP and the daemon.
    pub quota_tat: u64,
    /// [`Limits::rate`] of the quota, by bank.
    pub rate: [Rate; 2],
    /// [`Limits::burst_ns`] of the quota, by bank.
    pub burst_ns: [u64; 2],
    /// [`Limits::max_debt_ns`] of the quota, by bank.
    pub max_debt_ns: [u64; 2],
    /// [`TenantState::line_flags`], by bank.
    pub flags: [u32; 2],
}

const _: () = assert!(size_of::<TenantLine>() == 64);
const _: () = assert!(offset_of!(TenantLine, flags).is_multiple_of(8));

/// The rest of one tenant. Index zero is nobody.
///
/// The first words are the `tat` of a [token bucket](crate::token_bucket) each, changed only by
/// compare-and-swap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Tenant {
    /// The coarse second line of proxied TCP, in bytes.
    pub tcp_tat: u64,
    /// The budget for replies from XDP, in bytes.
    pub reply_tat: u64,
    /// A candidate quota, which only counts.
    pub candidate_tat: u64,
    /// Connection attempts, in thousandths.
    pub syn_tat: u64,
    /// Spelled out: the words have a cache line of their own.
    pub _reserved: [u64; 4],
    /// The daemon's decisions; [`super::bank_of`] the generation is in force.
    pub banks: [TenantState; 2],
    /// Its name, for whoever reads the maps.
    pub name: Name,
    /// The refusals that were counted at the places of [`TenantState::parents`] before those took them: they are not theirs.
    pub refused_before: [u64; 2],
}

const _: () = assert!(size_of::<Tenant>() == 64 + 2 * 192 + 48 + 16);

/// The daemon's decisions about a tenant.
///
/// The fields that every packet needs come first: with the banks at multiples of 64 bytes it is one cache line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct TenantState {
    /// The quota.
    pub quota: Limits,
    /// Refused without a look at its bucket until then, on gate's clock.
    pub reject_until_ns: u64,
    /// The share of requests refused, a [`crate::units::Fraction`] in steps.
    pub rejection_rate: u32,
    /// The factor on its prices, a [`crate::units::Multiplier`].
    pub multiplier: u32,
    /// Further tenants whose quota its requests charge as well, all or none. Zero: none.
    pub parents: [u32; 2],
    /// See [`tenant_flags`].
    pub flags: u32,
    /// Its tier: 0 is `critical`, 3 is `best-effort`.
    pub tier: u8,
    /// A [`TcpAction`].
    pub tcp_action: u8,
    /// Spelled out.
    pub _reserved: u16,
    /// The generation that wrote this.
    pub stamp: u64,
    /// The coarse bucket of proxied TCP.
    pub tcp: Limits,
    /// The budget for replies.
    pub reply: Limits,
    /// The candidate quota; see [`tenant_flags::CANDIDATE`].
    pub candidate: Limits,
    /// Connection attempts, in thousandths.
    pub syn: Limits,
    /// Spelled out: the next bank starts a cache line.
    pub _reserved_end: [u64; 4],
}

const _: () = assert!(size_of::<TenantState>() == 192);

impl TenantState {
    /// True if [`TenantLine`] holds all that a packet needs: nothing is refused ahead, prices are as configured, and
    /// nobody else is charged.
    #[must_use]
    pub const fn is_plain(&self) -> bool {
        self.reject_until_ns == 0
            && self.rejection_rate == 0
            && self.multiplier == Multiplier::ONE.0
            && self.parents[0] == 0
            && self.parents[1] == 0
            && self.tcp_action == TcpAction::None as u8
    }

    /// Its flags in [`TenantLine::flags`]: the same bits, its tier, and [`tenant_flags::SPECIAL`].
    #[must_use]
    pub const fn line_flags(&self) -> u32 {
        let tier = (self.tier as u32 & 3) << tenant_flags::TIER_SHIFT;
        self.flags | tier | if self.is_plain() { 0 } else { tenant_flags::SPECIAL }
    }
}

/// Bits of [`TenantState::flags`].
pub mod tenant_flags {
    /// A configured tenant: XDP may answer it. Never set for a service's default tenant.
    pub const MAY_REPLY: u32 = 1 << 0;
    /// Everything is refused, by the operator's word.
    pub const PENALTY: u32 = 1 << 1;
    /// The tenant has a candidate quota.
    pub const CANDIDATE: u32 = 1 << 2;
    /// The tenant has no quota: nothing is taken from its bucket.
    pub const UNLIMITED: u32 = 1 << 3;
    /// The daemon answers none of its reads with what it has kept of hot keys.
    pub const NO_CACHE: u32 = 1 << 4;
    /// Only in [`super::TenantLine::flags`]: where its tier begins, two bits.
    pub const TIER_SHIFT: u32 = 28;
    /// Only in [`super::TenantLine::flags`]: its state has to be read as well, see [`super::TenantState::is_plain`].
    pub const SPECIAL: u32 = 1 << 31;
}

/// The action on the TCP segments of a tenant deep in debt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum TcpAction {
    /// Nothing.
    #[default]
    None = 0,
    /// SYNs are answered with RST.
    ResetSyn = 1,
    /// SYNs are dropped.
    DropSyn = 2,
    /// SYNs and segments with data are dropped.
    DropData = 3,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_a_line_has_no_room_for_makes_a_tenant_special() {
        let plain = TenantState {
            multiplier: Multiplier::ONE.0,
            flags: tenant_flags::MAY_REPLY,
            tier: 2,
            ..TenantState::default()
        };
        assert_eq!(plain.line_flags(), tenant_flags::MAY_REPLY | 2 << tenant_flags::TIER_SHIFT);
        for special in [
            TenantState { reject_until_ns: 1, ..plain },
            TenantState { rejection_rate: 1, ..plain },
            TenantState { multiplier: 0, ..plain },
            TenantState { multiplier: Multiplier::ONE.0 + 1, ..plain },
            TenantState { parents: [1, 0], ..plain },
            TenantState { parents: [0, 1], ..plain },
            TenantState { tcp_action: TcpAction::DropSyn as u8, ..plain },
        ] {
            assert_eq!(special.line_flags(), plain.line_flags() | tenant_flags::SPECIAL, "{special:?}");
        }
    }
}
