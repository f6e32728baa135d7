//! A tenant: its buckets, which are never banked, and two banks of state.

use core::mem::size_of;

use super::Name;
use crate::token_bucket::Limits;

/// One tenant. Index zero is nobody.
///
/// The four words are the `tat` of a [token bucket](crate::token_bucket) each, changed only by
/// compare-and-swap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Tenant {
    /// The quota, in thousandths of a request unit, shared by XDP and the daemon.
    pub quota_tat: u64,
    /// The coarse second line of proxied TCP, in bytes.
    pub tcp_tat: u64,
    /// The budget for replies from XDP, in bytes.
    pub reply_tat: u64,
    /// A candidate quota, which only counts.
    pub candidate_tat: u64,
    /// Spelled out: the words have a cache line of their own.
    pub _reserved: [u64; 4],
    /// What the daemon decided; [`super::bank_of`] the generation is in force.
    pub banks: [TenantState; 2],
    /// Its name, for whoever reads the maps.
    pub name: Name,
    /// Spelled out: the next tenant starts a cache line.
    pub _reserved_end: [u64; 2],
}

const _: () = assert!(size_of::<Tenant>() == 64 + 2 * 192 + 48 + 16);

/// What the daemon decided about a tenant.
///
/// What every packet needs comes first: with the banks at multiples of 64 bytes it is one cache line.
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
    pub also_charge: [u32; 2],
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
    /// Spelled out: the next bank starts a cache line.
    pub _reserved_end: [u64; 7],
}

const _: () = assert!(size_of::<TenantState>() == 192);

/// Bits of [`TenantState::flags`].
pub mod tenant_flags {
    /// A configured tenant: XDP may answer it. Never set for a service's default tenant.
    pub const MAY_REPLY: u32 = 1 << 0;
    /// Everything is refused, by the operator's word.
    pub const PENALTY: u32 = 1 << 1;
    /// It has a candidate quota.
    pub const CANDIDATE: u32 = 1 << 2;
    /// It has no quota: nothing is taken from its bucket.
    pub const UNLIMITED: u32 = 1 << 3;
    /// The daemon answers none of its reads with what it has kept of hot keys.
    pub const NO_CACHE: u32 = 1 << 4;
}

/// What happens to the TCP segments of a tenant deep in debt.
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
