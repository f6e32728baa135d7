//! The plan of one packet: the settings of its service and its tenant, of one generation.
//!
//! The daemon writes the idle bank and then raises the generation. The reader copies the state, then reads
//! the generation again: if it changed meanwhile, the copy may mix two plans, and the reader repeats it.
//! Loads keep their order on x86; on machines that reorder them, a part of a plan may be one tick older
//! than the rest.

use core::mem::offset_of;

use gate_common::abi::{
    Control, Event, Exit, Ports, Service, ServiceState, Shed, TenantLine, TenantState, View, bank_of, find,
    find_v4, service_flags, tenant_flags,
};
use gate_common::token_bucket::Limits;
use gate_common::units::Multiplier;

use crate::counters;
use crate::maps::{self, opaque_const, read_once, read_word_once, write_once};
use crate::parse::frame::{self, Frame};

/// The settings that apply to one packet, of one generation.
///
/// Fields that most packets only test for their usual value stay packed in one word, as in the map.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    /// The tenant that is charged. Zero: an unknown source; the tenant's fields below mean nothing.
    pub(crate) tenant_id: u32,
    /// The request's price, in thousandths of a request unit, before any multiplier.
    pub(crate) price_mru: u32,
    /// The age from which the heartbeat is stale.
    pub(crate) stale_after_ns: u64,
    /// One in this many requests is sampled.
    pub(crate) sample_every: u32,
    /// The shedding rungs of the service.
    shed: Shed,
    /// The quota.
    pub(crate) quota: Limits,
    /// Everything is refused before this time.
    pub(crate) reject_until_ns: u64,
    /// [`View::flags`] and [`View::enforce`].
    rules: u64,
    /// [`Service::id`], [`Service::protocol`], [`Service::flags`].
    service: u64,
    /// [`TenantState::rejection_rate`] and [`TenantState::multiplier`].
    factors: u64,
    /// [`TenantState::also_charge`].
    pub(crate) parents: u64,
    /// [`TenantLine::flags`].
    line_flags: u32,
    /// [`TenantState::flags`], [`TenantState::tier`], [`TenantState::tcp_action`], of which only the last counts.
    packed_flags: u64,
}

const _: () = assert!(offset_of!(View, flags).is_multiple_of(8));
const _: () = assert!(offset_of!(View, enforce) == offset_of!(View, flags) + 4);
const _: () = assert!(offset_of!(Service, id).is_multiple_of(8));
const _: () = assert!(offset_of!(Service, protocol) == offset_of!(Service, id) + 4);
const _: () = assert!(offset_of!(Service, flags) == offset_of!(Service, id) + 6);
const _: () = assert!(offset_of!(TenantState, rejection_rate).is_multiple_of(8));
const _: () = assert!(offset_of!(TenantState, multiplier) == offset_of!(TenantState, rejection_rate) + 4);
const _: () = assert!(offset_of!(TenantState, also_charge).is_multiple_of(8));
const _: () = assert!(offset_of!(TenantState, flags).is_multiple_of(8));
const _: () = assert!(offset_of!(TenantState, tcp_action) == offset_of!(TenantState, flags) + 5);

impl Plan {
    /// [`gate_common::abi::view_flags`].
    #[inline(always)]
    pub(crate) fn view_flags(&self) -> u32 {
        self.rules as u32
    }

    /// The share of sources that is enforced, in steps.
    #[inline(always)]
    pub(crate) fn enforce(&self) -> u32 {
        (self.rules >> 32) as u32
    }

    /// [`Service::id`].
    #[inline(always)]
    pub(crate) fn service_id(&self) -> u32 {
        self.service as u32
    }

    /// A [`gate_common::abi::Protocol`].
    #[inline(always)]
    pub(crate) fn protocol(&self) -> u8 {
        (self.service >> 32) as u8
    }

    /// [`service_flags`].
    #[inline(always)]
    pub(crate) fn service_flags(&self) -> u16 {
        (self.service >> 48) as u16
    }

    /// The share of requests refused, in steps.
    #[inline(always)]
    pub(crate) fn rejection_rate(&self) -> u32 {
        self.factors as u32
    }

    /// The factor on prices.
    #[inline(always)]
    pub(crate) fn multiplier(&self) -> u32 {
        (self.factors >> 32) as u32
    }

    /// [`tenant_flags`].
    #[inline(always)]
    pub(crate) fn tenant_flags(&self) -> u32 {
        self.line_flags
    }

    /// A [`gate_common::abi::TcpAction`].
    #[inline(always)]
    pub(crate) fn tcp_action(&self) -> u8 {
        (self.packed_flags >> 40) as u8
    }

    /// The service's shedding rung for the tenant's tier, see [`Shed`].
    #[inline(always)]
    pub(crate) fn rung(&self) -> u32 {
        self.shed.rung((self.line_flags >> tenant_flags::TIER_SHIFT) as u8)
    }

    /// True if nothing changes the price, sheds, or refuses by chance.
    #[inline(always)]
    pub(crate) fn has_no_modifier(&self) -> bool {
        self.factors == (Multiplier::ONE.0 as u64) << 32 && self.shed.0 == 0
    }
}

/// Reads a packet's plan from the maps.
pub(crate) struct PlanReader<'a> {
    /// The element that names the bank in force.
    pub(crate) control: *mut Control,
    /// The packet's headers.
    pub(crate) frame: &'a Frame,
    /// The destination port's entry of [`Ports`].
    pub(crate) entry: *const u32,
    /// The exit of a packet without a plan. It lies in memory: a register would be undefined where the loop begins, and
    /// the verifier refuses to spill an undefined register.
    pub(crate) exit: *mut Exit,
    /// The slot of the packet's service, in memory for the same reason.
    pub(crate) service_slot: *mut u32,
}

impl PlanReader<'_> {
    /// Copies the plan and finds the tenant. `price` prices the packet, given the service's protocol and prices; it
    /// is not called for unknown sources.
    ///
    /// # Errors
    ///
    /// [`Exit::NotOurs`], [`Exit::Missing`].
    #[inline(always)]
    pub(crate) fn read(
        &self,
        mut price: impl FnMut(u8, *const ServiceState) -> u32,
    ) -> Result<(Plan, *mut TenantLine), Exit> {
        let mut left = opaque_const::<RETRIES>();
        loop {
            let generation = read_once!((*self.control).generation);
            let copied = self.read_bank(bank_of(generation), &mut price);
            if read_once!((*self.control).generation) == generation {
                return copied.ok_or_else(|| read_once!(*self.exit));
            }
            if left == 0 {
                counters::count_event(Event::Torn);
                return copied.ok_or_else(|| read_once!(*self.exit));
            }
            left -= 1;
            counters::count_event(Event::Retried);
        }
    }

    /// Copies from one bank, which the daemon may overwrite meanwhile.
    #[inline(always)]
    fn read_bank(
        &self,
        bank: usize,
        price: &mut impl FnMut(u8, *const ServiceState) -> u32,
    ) -> Option<(Plan, *mut TenantLine)> {
        let service = self.service(bank)?;
        let tenant_id = match self.tenant(bank) {
            0 => read_once!((*service).default_tenant),
            found => found,
        };
        let line = self.or_missing(maps::TENANT_LINES.get_ptr_mut(tenant_id))?;
        let line_flags = read_once!((*line).flags[bank]);
        // Nobody's state is that of a tenant without anything special, whose own is left alone.
        let special = ((line_flags & tenant_flags::SPECIAL) as i32 >> 31) as u32;
        let tenant = self.or_missing(maps::TENANTS.get_ptr_mut(tenant_id & special))?;
        // SAFETY: parts of elements of maps.
        let (view, state, prices) = unsafe {
            (
                &raw const (*self.control).views[bank],
                &raw const (*tenant).banks[bank],
                &raw const (*service).banks[bank],
            )
        };
        let of_service = read_word_once!((*service).id);
        let price_mru = if tenant_id == 0 { 0 } else { price((of_service >> 32) as u8, prices) };
        let plan = Plan {
            tenant_id,
            price_mru,
            stale_after_ns: read_once!((*view).stale_after_ns),
            sample_every: read_once!((*view).sample_every),
            shed: read_once!((*prices).shed),
            quota: Limits {
                rate: read_once!((*line).rate[bank]),
                burst_ns: read_once!((*line).burst_ns[bank]),
                max_debt_ns: read_once!((*line).max_debt_ns[bank]),
            },
            reject_until_ns: read_once!((*state).reject_until_ns),
            rules: read_word_once!((*view).flags),
            service: of_service,
            factors: read_word_once!((*state).rejection_rate),
            parents: read_word_once!((*state).also_charge),
            line_flags,
            packed_flags: read_word_once!((*state).flags),
        };
        Some((plan, line))
    }

    /// The element, or `None` with [`Exit::Missing`] as the exit.
    #[inline(always)]
    fn or_missing<T>(&self, element: Option<*mut T>) -> Option<*mut T> {
        if element.is_none() {
            write_once!(*self.exit, Exit::Missing);
        }
        element
    }

    /// The service on the packet's port and address.
    #[inline(always)]
    fn service(&self, bank: usize) -> Option<*mut Service> {
        let shift = read_once!((*self.control).views[bank].ports_shift);
        let mut slot = Ports::slot(read_once!(*self.entry), shift);
        for _ in 0..opaque_const::<{ Service::MAX_CHAIN as u32 }>() {
            if slot == 0 {
                break;
            }
            let service = self.or_missing(maps::SERVICES.get_ptr_mut(slot))?;
            let any = read_once!((*service).flags) & service_flags::ANY_ADDRESS != 0;
            if any || address(service) == self.frame.destination {
                write_once!(*self.service_slot, slot);
                return Some(service);
            }
            slot = read_once!((*service).next);
        }
        write_once!(*self.exit, Exit::NotOurs);
        None
    }

    /// The tenant of the source's prefix; zero if there is none.
    #[inline(always)]
    fn tenant(&self, bank: usize) -> u32 {
        if self.frame.v6 {
            find_v6(read_once!((*self.control).views[bank].sources_v6), self.frame.source)
        } else {
            let address = frame::bytes_v4(self.frame.source);
            find_v4(read_once!((*self.control).views[bank].sources_v4), address, maps::table_entry)
        }
    }
}

/// Copies state of one generation that few packets need and a plan does not hold.
#[inline(always)]
pub(crate) fn copy_consistent<T>(control: *mut Control, copy: impl Fn(usize) -> T) -> T {
    let mut left = opaque_const::<RETRIES>();
    loop {
        let generation = read_once!((*control).generation);
        let copied = copy(bank_of(generation));
        if left == 0 || read_once!((*control).generation) == generation {
            return copied;
        }
        left -= 1;
    }
}

/// Walks a table along an IPv6 address.
#[inline(never)]
pub(crate) fn find_v6(root: u32, address: [u64; 2]) -> u32 {
    find(root, &frame::bytes(address), maps::table_entry)
}

/// A service's address as two words in memory order.
#[inline(always)]
fn address(service: *mut Service) -> [u64; 2] {
    // SAFETY: a service's element, whose first 16 bytes are its address.
    unsafe { (&raw const (*service).address).cast::<[u64; 2]>().read_volatile() }
}

/// The number of times that a copy is repeated before it is used as it is.
const RETRIES: u32 = 2;
