//! The plan of one packet: the settings of its service and its tenant, of one generation.
//!
//! The daemon writes the idle bank and then raises the generation. The reader copies the state, then reads
//! the generation again: if it changed meanwhile, the copy may mix two plans, and the reader repeats it.
//! Loads keep their order on x86; on machines that reorder them, a part of a plan may be one tick older
//! than the rest.

use core::mem::offset_of;

use gate_common::abi::{
    Control, Event, Exit, MeasuredShare, Ports, Service, ServiceState, Shed, TcpAction, TenantLine,
    TenantState, View, bank_of, find, find_v4, service_flags, tenant_flags,
};
use gate_common::token_bucket::Limits;
use gate_common::units::Multiplier;

use crate::context::Scratch;
use crate::counters;
use crate::maps::{self, opaque_const, read_once, read_word_once, write_once};
use crate::parse::frame::{self, Frame};

/// The settings that apply to one packet, of one generation.
///
/// Fields that most packets only test for their usual value stay packed in one word, as in the map.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    /// This CPU's own scratch.
    scratch: *const Scratch,
    /// The tenant that is charged. Zero: an unknown source; the tenant's fields below mean nothing.
    pub(crate) tenant_id: u32,
    /// The age from which the heartbeat is stale.
    pub(crate) stale_after_ns: u64,
    /// The shedding rungs of the service.
    shed: Shed,
    /// The quota.
    pub(crate) quota: Limits,
    /// [`View::flags`] and [`View::enforce`].
    rules: u64,
    service: ServiceWord,
    /// [`TenantLine::flags`].
    line_flags: u32,
}

/// [`Service::id`], [`Service::protocol`], [`Service::measured`] and [`Service::flags`] in one word, as in the map.
#[derive(Clone, Copy)]
pub(crate) struct ServiceWord(u64);

impl ServiceWord {
    /// [`Service::id`].
    #[inline(always)]
    fn id(self) -> u32 {
        self.0 as u32
    }

    /// A [`gate_common::abi::Protocol`].
    #[inline(always)]
    pub(crate) fn protocol(self) -> u8 {
        (self.0 >> 32) as u8
    }

    /// [`Service::measured`].
    #[inline(always)]
    pub(crate) fn measured(self) -> MeasuredShare {
        MeasuredShare((self.0 >> 40) as u8)
    }

    /// [`service_flags`].
    #[inline(always)]
    pub(crate) fn flags(self) -> u16 {
        (self.0 >> 48) as u16
    }
}

/// A tenant's state beside [`TenantLine`], which is read, and written here, only if it is [`tenant_flags::SPECIAL`].
#[derive(Clone, Copy)]
pub(crate) struct SpecialState {
    /// [`TenantState::reject_until_ns`].
    reject_until_ns: u64,
    /// [`TenantState::rejection_rate`].
    rejection_rate: u32,
    /// [`TenantState::multiplier`].
    multiplier: u32,
    /// [`TenantState::parents`].
    parents: u64,
    /// [`TenantState::tcp_action`].
    tcp_action: u8,
}

const _: () = assert!(offset_of!(View, flags).is_multiple_of(8));
const _: () = assert!(offset_of!(View, enforce) == offset_of!(View, flags) + 4);
const _: () = assert!(offset_of!(Service, id).is_multiple_of(8));
const _: () = assert!(offset_of!(Service, protocol) == offset_of!(Service, id) + 4);
const _: () = assert!(offset_of!(Service, measured) == offset_of!(Service, id) + 5);
const _: () = assert!(offset_of!(Service, flags) == offset_of!(Service, id) + 6);
const _: () = assert!(offset_of!(TenantState, parents).is_multiple_of(8));

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
        self.service.id()
    }

    /// A [`gate_common::abi::Protocol`].
    #[inline(always)]
    pub(crate) fn protocol(&self) -> u8 {
        self.service.protocol()
    }

    /// [`service_flags`].
    #[inline(always)]
    pub(crate) fn service_flags(&self) -> u16 {
        self.service.flags()
    }

    /// [`Service::measured`].
    #[inline(always)]
    pub(crate) fn measured(&self) -> MeasuredShare {
        self.service.measured()
    }

    /// [`tenant_flags`].
    #[inline(always)]
    pub(crate) fn tenant_flags(&self) -> u32 {
        self.line_flags
    }

    /// True if the tenant has a [`SpecialState`].
    #[inline(always)]
    fn is_special(&self) -> bool {
        self.line_flags & tenant_flags::SPECIAL != 0
    }

    /// Everything is refused before this time.
    #[inline(always)]
    pub(crate) fn reject_until_ns(&self) -> u64 {
        if self.is_special() { read_once!((*self.scratch).special.reject_until_ns) } else { 0 }
    }

    /// The share of requests refused, in steps.
    #[inline(always)]
    pub(crate) fn rejection_rate(&self) -> u32 {
        if self.is_special() { read_once!((*self.scratch).special.rejection_rate) } else { 0 }
    }

    /// The factor on prices.
    #[inline(always)]
    pub(crate) fn multiplier(&self) -> u32 {
        if self.is_special() { read_once!((*self.scratch).special.multiplier) } else { Multiplier::ONE.0 }
    }

    /// [`TenantState::parents`].
    #[inline(always)]
    pub(crate) fn parents(&self) -> u64 {
        if self.is_special() { read_once!((*self.scratch).special.parents) } else { 0 }
    }

    /// A [`gate_common::abi::TcpAction`].
    #[inline(always)]
    pub(crate) fn tcp_action(&self) -> u8 {
        if self.is_special() { read_once!((*self.scratch).special.tcp_action) } else { TcpAction::None as u8 }
    }

    /// The service's shedding rung for the tenant's tier, see [`Shed`].
    #[inline(always)]
    pub(crate) fn rung(&self) -> u32 {
        self.shed.rung((self.line_flags >> tenant_flags::TIER_SHIFT) as u8)
    }

    /// True if nothing changes the price, sheds, or refuses but the quota.
    #[inline(always)]
    pub(crate) fn is_ordinary(&self) -> bool {
        self.takes_from_quota_only() && self.shed.0 == 0
    }

    /// True if a charge takes from the tenant's own quota, and from nothing else.
    #[inline(always)]
    pub(crate) fn takes_from_quota_only(&self) -> bool {
        self.line_flags & NOT_ORDINARY == 0
    }
}

/// Reads a packet's plan from the maps.
pub(crate) struct PlanReader {
    /// The element that names the bank in force.
    pub(crate) control: *mut Control,
    /// This CPU's own scratch, which holds the packet's headers.
    pub(crate) scratch: *mut Scratch,
    /// The destination port's entry of [`Ports`].
    pub(crate) entry: *const u32,
}

impl PlanReader {
    /// Copies the plan and finds the tenant. `price` prices the packet, given the service and its prices, into
    /// memory: a register would be undefined where the loop begins. It is not called for unknown sources.
    ///
    /// # Errors
    ///
    /// [`Exit::NotOurs`], [`Exit::Missing`].
    #[inline(always)]
    pub(crate) fn read(
        &self,
        mut price: impl FnMut(ServiceWord, *const ServiceState),
    ) -> Result<(Plan, *mut TenantLine), Exit> {
        let mut left = opaque_const::<RETRIES>();
        loop {
            let generation = read_once!((*self.control).generation);
            let copied = self.read_bank(bank_of(generation), &mut price);
            if read_once!((*self.control).generation) == generation {
                return copied.ok_or_else(|| read_once!((*self.scratch).exit));
            }
            if left == 0 {
                counters::count_event(Event::Torn);
                return copied.ok_or_else(|| read_once!((*self.scratch).exit));
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
        price: &mut impl FnMut(ServiceWord, *const ServiceState),
    ) -> Option<(Plan, *mut TenantLine)> {
        let service = self.service(bank)?;
        let tenant_id = match self.tenant(bank) {
            0 => read_once!((*service).default_tenant),
            found => found,
        };
        let line = self.or_missing(maps::TENANT_LINES.get_ptr_mut(tenant_id))?;
        let line_flags = read_once!((*line).flags[bank]);
        // SAFETY: parts of elements of maps.
        let (view, prices) =
            unsafe { (&raw const (*self.control).views[bank], &raw const (*service).banks[bank]) };
        let of_service = ServiceWord(read_word_once!((*service).id));
        if tenant_id != 0 {
            price(of_service, prices);
        }
        if line_flags & tenant_flags::SPECIAL != 0 {
            let tenant = self.or_missing(maps::TENANTS.get_ptr_mut(tenant_id))?;
            // SAFETY: a part of a map's element, and of this CPU's own scratch.
            let (state, special) =
                unsafe { (&raw const (*tenant).banks[bank], &raw mut (*self.scratch).special) };
            write_once!((*special).reject_until_ns, read_once!((*state).reject_until_ns));
            write_once!((*special).rejection_rate, read_once!((*state).rejection_rate));
            write_once!((*special).multiplier, read_once!((*state).multiplier));
            write_once!((*special).parents, read_word_once!((*state).parents));
            write_once!((*special).tcp_action, read_once!((*state).tcp_action));
        }
        let plan = Plan {
            scratch: self.scratch,
            tenant_id,
            stale_after_ns: read_once!((*view).stale_after_ns),
            shed: read_once!((*prices).shed),
            quota: Limits {
                rate: read_once!((*line).rate[bank]),
                burst_ns: read_once!((*line).burst_ns[bank]),
                max_debt_ns: read_once!((*line).max_debt_ns[bank]),
            },
            rules: read_word_once!((*view).flags),
            service: of_service,
            line_flags,
        };
        Some((plan, line))
    }

    #[inline(always)]
    fn frame(&self) -> &Frame {
        // SAFETY: this CPU's own scratch; nothing writes its headers meanwhile.
        unsafe { &(*self.scratch).frame }
    }

    /// The element, or `None` with [`Exit::Missing`] as the exit.
    #[inline(always)]
    fn or_missing<T>(&self, element: Option<*mut T>) -> Option<*mut T> {
        if element.is_none() {
            write_once!((*self.scratch).exit, Exit::Missing);
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
            if any || address(service) == self.frame().destination {
                write_once!((*self.scratch).service_slot, slot);
                return Some(service);
            }
            slot = read_once!((*service).next);
        }
        write_once!((*self.scratch).exit, Exit::NotOurs);
        None
    }

    /// The tenant of the source's prefix; zero if there is none.
    #[inline(always)]
    fn tenant(&self, bank: usize) -> u32 {
        if self.frame().v6 {
            find_v6(read_once!((*self.control).views[bank].sources_v6), self.frame().source)
        } else {
            let address = frame::bytes_v4(self.frame().source);
            find_v4(read_once!((*self.control).views[bank].sources_v4), address, maps::table_entry)
        }
    }
}

/// The price of bytes whose commands are not parsed.
#[inline(always)]
pub(crate) fn price_of_bytes(prices: *const ServiceState, bytes: u32) -> u32 {
    let prices = ServiceState {
        base_mru: read_once!((*prices).base_mru),
        kib_mru: read_once!((*prices).kib_mru),
        ..ServiceState::default()
    };
    prices.price(1, 0, bytes)
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

/// The flags of [`TenantLine::flags`] without which a charge takes from the tenant's own quota, and from nothing else.
const NOT_ORDINARY: u32 =
    tenant_flags::SPECIAL | tenant_flags::PENALTY | tenant_flags::CANDIDATE | tenant_flags::UNLIMITED;
/// The number of times that a copy is repeated before it is used as it is.
const RETRIES: u32 = 2;
