//! What one packet is judged by: one generation's word on its service and its tenant.
//!
//! The daemon writes the idle bank and then raises the generation. Here the state is copied, and then
//! the generation read again: if it changed meanwhile, the copy may be of two plans and is made anew.
//! Loads keep their order on x86; on machines that reorder them, a packet may be judged by a plan of
//! which a part is one tick older.

use core::mem::offset_of;

use gate_common::abi::{
    Control, Event, Exit, Ports, Service, ServiceState, Shed, Tenant, TenantState, View, bank_of, find,
    find_v4, service_flags,
};
use gate_common::token_bucket::Limits;
use gate_common::units::Multiplier;

use crate::counters;
use crate::maps::{self, opaque_const, read_once, read_word_once, write_once};
use crate::parse::frame::{self, Frame};

/// One generation's word on one packet.
///
/// What most packets need only to see that nothing special is in it stays in the words that it lies in.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    /// Who is charged; zero: nobody knows, and nothing of the tenant below means anything.
    pub(crate) tenant_id: u32,
    /// What the request costs, in thousandths of a request unit, before any multiplier.
    pub(crate) price_mru: u32,
    /// When the heartbeat is stale.
    pub(crate) stale_after_ns: u64,
    /// One in this many requests is sampled.
    pub(crate) sample_every: u32,
    /// What the service sheds.
    shed: Shed,
    /// The quota.
    pub(crate) quota: Limits,
    /// Refused until then.
    pub(crate) reject_until_ns: u64,
    /// [`View::flags`] and [`View::enforce`].
    rules: u64,
    /// [`Service::id`], [`Service::protocol`], [`Service::flags`].
    service: u64,
    /// [`TenantState::rejection_rate`] and [`TenantState::multiplier`].
    factors: u64,
    /// [`TenantState::also_charge`].
    pub(crate) also_charge: u64,
    /// [`TenantState::flags`], [`TenantState::tier`], [`TenantState::tcp_action`].
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
const _: () = assert!(offset_of!(TenantState, tier) == offset_of!(TenantState, flags) + 4);
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

    /// [`gate_common::abi::tenant_flags`].
    #[inline(always)]
    pub(crate) fn tenant_flags(&self) -> u32 {
        self.packed_flags as u32
    }

    /// A [`gate_common::abi::TcpAction`].
    #[inline(always)]
    pub(crate) fn tcp_action(&self) -> u8 {
        (self.packed_flags >> 40) as u8
    }

    /// What the service sheds of the tenant's tier, a rung of [`Shed`].
    #[inline(always)]
    pub(crate) fn rung(&self) -> u32 {
        self.shed.rung((self.packed_flags >> 32) as u8)
    }

    /// Whether nothing changes the price, and nobody is shed or refused by chance.
    #[inline(always)]
    pub(crate) fn has_no_modifier(&self) -> bool {
        self.factors == (Multiplier::ONE.0 as u64) << 32 && self.shed.0 == 0
    }
}

/// Where a plan is copied from.
pub(crate) struct PlanReader<'a> {
    /// The element that says what is in force.
    pub(crate) control: *mut Control,
    /// The packet's headers.
    pub(crate) frame: &'a Frame,
    /// Its destination port's entry of [`Ports`].
    pub(crate) entry: *const u32,
    /// Room for how a packet leaves that there is no plan for. Kept in memory: in a register it would be undefined where
    /// the loop begins, and the verifier refuses to spill what happens to lie there.
    pub(crate) exit: *mut Exit,
}

impl PlanReader<'_> {
    /// Copies what the packet needs, and finds its tenant. `price` prices it, given the service's protocol and
    /// prices; it is only asked for packets of somebody.
    ///
    /// # Errors
    ///
    /// [`Exit::NotOurs`], [`Exit::Missing`].
    #[inline(always)]
    pub(crate) fn copy(
        &self,
        mut price: impl FnMut(u8, *const ServiceState) -> u32,
    ) -> Result<(Plan, *mut Tenant), Exit> {
        let mut left = opaque_const::<RETRIES>();
        loop {
            let generation = read_once!((*self.control).generation);
            let copied = self.copy_bank(bank_of(generation), &mut price);
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

    /// Copies from one bank, which may be overwritten meanwhile.
    #[inline(always)]
    fn copy_bank(
        &self,
        bank: usize,
        price: &mut impl FnMut(u8, *const ServiceState) -> u32,
    ) -> Option<(Plan, *mut Tenant)> {
        let service = self.service(bank)?;
        let tenant_id = match self.tenant(bank) {
            0 => read_once!((*service).default_tenant),
            found => found,
        };
        let tenant = self.or_missing(maps::TENANTS.get_ptr_mut(tenant_id))?;
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
                rate: read_once!((*state).quota.rate),
                burst_ns: read_once!((*state).quota.burst_ns),
                max_debt_ns: read_once!((*state).quota.max_debt_ns),
            },
            reject_until_ns: read_once!((*state).reject_until_ns),
            rules: read_word_once!((*view).flags),
            service: of_service,
            factors: read_word_once!((*state).rejection_rate),
            also_charge: read_word_once!((*state).also_charge),
            packed_flags: read_word_once!((*state).flags),
        };
        Some((plan, tenant))
    }

    /// An element that should be there.
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
                return Some(service);
            }
            slot = read_once!((*service).next);
        }
        write_once!(*self.exit, Exit::NotOurs);
        None
    }

    /// The tenant that the source's prefix names; zero if none does.
    #[inline(always)]
    fn tenant(&self, bank: usize) -> u32 {
        if self.frame.v6 {
            find_v6(read_once!((*self.control).views[bank].sources_v6), self.frame.source)
        } else {
            let address = frame::bytes_v4(self.frame.source);
            find_v4(read_once!((*self.control).views[bank].sources_v4), address, maps::entry)
        }
    }
}

/// Copies something else about a tenant, all of one generation; rarely needed, so not part of a plan.
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
    find(root, &frame::bytes(address), maps::entry)
}

/// A service's address as two words in the order of memory.
#[inline(always)]
fn address(service: *mut Service) -> [u64; 2] {
    // SAFETY: a service's element, whose first 16 bytes are its address.
    unsafe { (&raw const (*service).address).cast::<[u64; 2]>().read_volatile() }
}

/// How often a copy is made anew before it is taken as it is.
const RETRIES: u32 = 2;
