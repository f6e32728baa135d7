//! What one packet is judged by: one generation's word on its service and its tenant.
//!
//! The daemon writes the idle bank and then raises the generation. Here the state is copied, and then
//! the generation read again: if it changed meanwhile, the copy may be of two plans and is made anew.
//! Loads keep their order on x86; on machines that reorder them, a packet may be judged by a plan of
//! which a part is one tick older.

use gate_common::abi::{
    Control, Event, Exit, Service, ServiceState, Tenant, bank_of, find, find_v4, service_flags,
};
use gate_common::token_bucket::Limits;

use crate::count;
use crate::maps::{self, opaque, peek};
use crate::parse::frame::{self, Frame, UDP};

/// One generation's word on one packet.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    /// When the heartbeat is stale.
    pub(crate) stale_after_ns: u64,
    /// The quota.
    pub(crate) quota: Limits,
    /// Refused until then.
    pub(crate) reject_until_ns: u64,
    /// [`gate_common::abi::view_flags`].
    pub(crate) view_flags: u32,
    /// The share of sources that is enforced, in steps.
    pub(crate) enforce: u32,
    /// One in this many requests is sampled.
    pub(crate) sample_every: u32,
    /// [`Service::id`].
    pub(crate) service_id: u32,
    /// What the request costs, in thousandths of a request unit, before any multiplier.
    pub(crate) price_mru: u32,
    /// Who is charged; zero: nobody knows, and nothing of the tenant below means anything.
    pub(crate) tenant_id: u32,
    /// The share of requests refused, in steps.
    pub(crate) rejection_rate: u32,
    /// The factor on prices.
    pub(crate) multiplier: u32,
    /// Who is charged as well.
    pub(crate) also_charge: [u32; 2],
    /// [`gate_common::abi::tenant_flags`].
    pub(crate) tenant_flags: u32,
    /// [`service_flags`].
    pub(crate) service_flags: u16,
    /// A [`gate_common::abi::TcpAction`].
    pub(crate) tcp_action: u8,
    /// A [`gate_common::abi::Protocol`].
    pub(crate) protocol: u8,
    /// What the service sheds of the tenant's tier, a rung of [`gate_common::abi::Shed`].
    pub(crate) rung: u32,
}

/// Where a plan is copied from.
pub(crate) struct Source<'a> {
    /// The element that says what is in force.
    pub(crate) control: *mut Control,
    /// The packet's headers.
    pub(crate) frame: &'a Frame,
    /// Its destination port.
    pub(crate) port: u16,
}

impl Source<'_> {
    /// Copies what the packet needs to `plan`, and returns its tenant. `price` prices it, given the service's
    /// protocol and prices; it is only asked for packets of somebody.
    ///
    /// # Errors
    ///
    /// [`Exit::NotOurs`], [`Exit::Missing`].
    #[inline(always)]
    pub(crate) fn copy(
        &self,
        plan: *mut Plan,
        mut price: impl FnMut(u8, *const ServiceState) -> u32,
    ) -> Result<*mut Tenant, Exit> {
        let mut left = opaque::<RETRIES>();
        loop {
            let generation = peek!((*self.control).generation);
            let tenant = self.copy_bank(bank_of(generation), plan, &mut price);
            if peek!((*self.control).generation) == generation {
                return tenant;
            }
            if left == 0 {
                count::event(Event::Torn);
                return tenant;
            }
            left -= 1;
            count::event(Event::Retried);
        }
    }

    /// Copies from one bank, which may be overwritten meanwhile.
    #[inline(always)]
    fn copy_bank(
        &self,
        bank: usize,
        plan: *mut Plan,
        price: &mut impl FnMut(u8, *const ServiceState) -> u32,
    ) -> Result<*mut Tenant, Exit> {
        let service = self.service(bank)?;
        let tenant_id = match self.tenant(bank) {
            0 => peek!((*service).default_tenant),
            found => found,
        };
        let tenant = maps::TENANTS.get_ptr_mut(tenant_id).ok_or(Exit::Missing)?;
        // SAFETY: parts of elements of maps.
        let (view, state, prices) = unsafe {
            (
                &raw const (*self.control).views[bank],
                &raw const (*tenant).banks[bank],
                &raw const (*service).banks[bank],
            )
        };
        // Field by field: a plan that is put together first would fill the stack.
        // SAFETY: this CPU's own scratch.
        let plan = unsafe { &mut *plan };
        plan.protocol = peek!((*service).protocol);
        plan.price_mru = if tenant_id == 0 { 0 } else { price(plan.protocol, prices) };
        plan.stale_after_ns = peek!((*view).stale_after_ns);
        plan.view_flags = peek!((*view).flags);
        plan.enforce = peek!((*view).enforce);
        plan.sample_every = peek!((*view).sample_every);
        plan.service_id = peek!((*service).id);
        plan.service_flags = peek!((*service).flags);
        plan.tenant_id = tenant_id;
        plan.quota.rate = peek!((*state).quota.rate);
        plan.quota.burst_ns = peek!((*state).quota.burst_ns);
        plan.quota.max_debt_ns = peek!((*state).quota.max_debt_ns);
        plan.reject_until_ns = peek!((*state).reject_until_ns);
        plan.rejection_rate = peek!((*state).rejection_rate);
        plan.multiplier = peek!((*state).multiplier);
        plan.also_charge[0] = peek!((*state).also_charge[0]);
        plan.also_charge[1] = peek!((*state).also_charge[1]);
        plan.tenant_flags = peek!((*state).flags);
        plan.tcp_action = peek!((*state).tcp_action);
        plan.rung = peek!((*prices).shed).rung(peek!((*state).tier));
        Ok(tenant)
    }

    /// The service on the packet's port and address.
    #[inline(always)]
    fn service(&self, bank: usize) -> Result<*mut Service, Exit> {
        let ports = if self.frame.transport == UDP {
            peek!((*self.control).views[bank].udp_ports)
        } else {
            peek!((*self.control).views[bank].tcp_ports)
        };
        let mut slot = find(ports, &self.port.to_be_bytes(), maps::entry);
        for _ in 0..opaque::<{ Service::MAX_CHAIN as u32 }>() {
            if slot == 0 {
                return Err(Exit::NotOurs);
            }
            let service = maps::SERVICES.get_ptr_mut(slot).ok_or(Exit::Missing)?;
            let any = peek!((*service).flags) & service_flags::ANY_ADDRESS != 0;
            if any || address(service) == self.frame.destination {
                return Ok(service);
            }
            slot = peek!((*service).next);
        }
        Err(Exit::NotOurs)
    }

    /// The tenant that the source's prefix names; zero if none does.
    #[inline(always)]
    fn tenant(&self, bank: usize) -> u32 {
        if self.frame.v6 {
            find_v6(peek!((*self.control).views[bank].sources_v6), self.frame.source)
        } else {
            let [.., a, b, c, d] = frame::bytes(self.frame.source);
            find_v4(peek!((*self.control).views[bank].sources_v4), [a, b, c, d], maps::entry)
        }
    }
}

/// Copies something else about a tenant, all of one generation; rarely needed, so not part of a plan.
#[inline(always)]
pub(crate) fn settled<T>(control: *mut Control, copy: impl Fn(usize) -> T) -> T {
    let mut left = opaque::<RETRIES>();
    loop {
        let generation = peek!((*control).generation);
        let copied = copy(bank_of(generation));
        if left == 0 || peek!((*control).generation) == generation {
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
