//! The tenant of a request, its price, and the decision on charging it.
//!
//! The buckets are the words that XDP charges: they are taken from by compare-and-swap, in the maps. Decisions of the
//! tick are copied once per generation and not looked up per request. Each thread has a ledger of its own, with a row
//! of counters that no one else writes.

use std::mem::offset_of;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use gate_common::abi::{
    Block, Clock, Name, OtherBucket, RareCounters, Reason, Service, ServiceState, Shed, Tenant, TenantState,
    View, bank_of, draw, find, find_v4, tenant_flags, view_flags,
};
use gate_common::units::{Fraction, MilliRu, Multiplier, Nanos};

use super::bucket_word::attempt;
use super::members::Member;
use crate::kernel::{Maps, Row};
use crate::policy::Tier;
use crate::protocol::Refusal;
use crate::protocol::price_class::PriceClass;

mod counting;
mod debts;
mod peek;
mod quotas;

/// A tenant, by its number in the maps. Zero is an unknown source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct TenantId(pub(crate) u32);

impl TenantId {
    /// A source that no rule names.
    pub(crate) const UNKNOWN: Self = Self(0);
}

/// A tenant, and the member of it whose bucket is charged; without one it is the tenant's own.
pub(crate) type Account<'m> = (TenantId, Option<&'m Member>);

/// One thread's view of tenants, prices and buckets. See the [module](self).
#[derive(Debug)]
pub(crate) struct Ledger {
    maps: Arc<Maps>,
    /// The row of counters of this thread.
    row: Row,
    /// True if others count in that row as well.
    is_shared: bool,
    clock: Clock,
    generation: u64,
    view: View,
    /// By tenant: its state as of the generation beside it.
    states: Vec<(u64, TenantState)>,
    /// By the place that a service had at the start: its prices as of this generation, and its default tenant.
    services: Vec<(ServiceState, TenantId)>,
    /// By the place that a service had at the start: its present place.
    numbers: Vec<u32>,
    /// By the same: the service's name, since a reload may give its place to another.
    names: Vec<Name>,
    draw: u64,
}

/// The result of charging one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Charge {
    /// The request may pass: this has been taken from the buckets; nothing, if the request would have been refused in
    /// earnest.
    Passed(MilliRu),
    /// The request is refused.
    Refused {
        /// The answer.
        refusal: Refusal,
        /// The tenant whose quota does not hold the price; [`TenantId::UNKNOWN`] if it is refused for something else.
        bucket: TenantId,
    },
}

impl Ledger {
    /// The ledger of a thread whose counters are in `row` of the maps; `seed` is for draws. `served` are the
    /// services, each with its place in the configuration.
    pub(crate) fn new<'n>(
        maps: Arc<Maps>,
        row: usize,
        seed: u64,
        served: impl IntoIterator<Item = (usize, &'n str)>,
    ) -> Self {
        let mut names = Vec::new();
        for (seq, name) in served {
            names.resize(names.len().max(seq + 1), Name::EMPTY);
            names[seq] = Name::new(name).unwrap_or(Name::EMPTY);
        }
        let mut this = Self {
            row: maps.row(row),
            is_shared: false,
            clock: maps.clock(),
            generation: 0,
            view: View::default(),
            states: vec![(0, TenantState::default()); maps.tenants.len()],
            services: vec![(ServiceState::default(), TenantId::UNKNOWN); names.len()],
            numbers: vec![u32::MAX; names.len()],
            names,
            draw: seed | 1,
            maps,
        };
        this.refresh();
        this
    }

    /// gate's clock when `CLOCK_MONOTONIC` has this value.
    #[inline]
    pub(crate) fn at(&self, monotonic: Nanos) -> Nanos {
        self.clock.at_monotonic(monotonic)
    }

    /// Follows the generation in force. To be called once for each batch of requests.
    #[inline]
    pub(crate) fn refresh(&mut self) {
        if self.maps.generation() != self.generation {
            self.follow();
        }
    }

    /// The tenant that a source is charged to at a service.
    pub(crate) fn tenant_of(&self, source: IpAddr, service: usize) -> TenantId {
        match self.tenant_of_source(source) {
            TenantId::UNKNOWN => self.services.get(service).map_or(TenantId::UNKNOWN, |service| service.1),
            named => named,
        }
    }

    /// The tenant that has a prefix of a source.
    pub(crate) fn tenant_of_source(&self, source: IpAddr) -> TenantId {
        let entry = |block: u32, index: u8| {
            let words = self.maps.tables.load_at::<u64>(block as usize, usize::from(index & !1) * 4);
            Some(if index & 1 == 0 { words as u32 } else { (words >> 32) as u32 })
        };
        TenantId(match source.to_canonical() {
            IpAddr::V4(source) => find_v4(self.view.sources_v4, source.octets(), entry),
            IpAddr::V6(source) => find(self.view.sources_v6, &source.octets(), entry),
        })
    }

    /// True if a tenant still has this name.
    pub(crate) fn has_name(&self, tenant: TenantId, name: &Name) -> bool {
        let tenant = tenant.0 as usize;
        let current = || self.maps.tenants.load_at::<Name>(tenant, offset_of!(Tenant, name));
        tenant < self.maps.tenants.len() && current() == *name
    }

    /// True if refusals of this source are only counted.
    pub(crate) fn is_shadowed(&self, source: IpAddr) -> bool {
        let address = match source.to_canonical() {
            IpAddr::V4(source) => source.to_ipv6_mapped().octets(),
            IpAddr::V6(source) => source.octets(),
        };
        self.view.flags & view_flags::SHADOW != 0 || !self.view.enforced().covers(draw::of_source(&address))
    }

    /// A tenant's tier.
    #[inline]
    pub(crate) fn tier(&mut self, tenant: TenantId) -> Tier {
        let tier = usize::from(self.state(tenant).tier);
        Tier::ALL.get(tier).copied().unwrap_or_default()
    }

    /// True if a tenant's reads may be answered from the cache.
    #[inline]
    pub(crate) fn may_cache(&mut self, tenant: TenantId) -> bool {
        self.state(tenant).flags & tenant_flags::NO_CACHE == 0
    }

    /// One of so many requests gives a sample of its key.
    #[inline]
    pub(crate) fn sample_every(&self) -> u32 {
        self.view.sample_every
    }

    /// A service's number in samples: its place in the configuration in force.
    pub(crate) fn number(&self, service: usize) -> u32 {
        self.numbers.get(service).copied().unwrap_or(u32::MAX)
    }

    /// The price of a request at a service, before its tenant's multiplier; without `commands` that of its rows and
    /// bytes alone, without a class that of one that no store answers.
    #[inline]
    pub(crate) fn price(
        &self,
        service: usize,
        commands: u32,
        rows: u32,
        bytes: usize,
        class: Option<PriceClass>,
    ) -> MilliRu {
        let Some((prices, _)) = self.services.get(service) else { return MilliRu::ZERO };
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let latency = class.filter(|_| commands > 0).map_or(0, |class| prices.latency_mru[class.index()]);
        MilliRu(prices.price(commands, rows, bytes).saturating_add(latency))
    }

    /// The rung of [`Shed`] of a tier at a service.
    #[inline]
    pub(crate) fn rung(&self, service: usize, tier: Tier) -> u32 {
        self.services.get(service).map_or(0, |(state, _)| state.shed.rung(tier as u8))
    }

    /// A price raised by a tenant's multiplier and by `rung`.
    #[inline]
    pub(crate) fn apply_multiplier(&mut self, tenant: TenantId, price: MilliRu, rung: u32) -> MilliRu {
        MilliRu(Shed::price(rung, price.scaled(Multiplier(self.state(tenant).multiplier)).0))
    }

    /// Charges `price` to a tenant and to those charged with it, all or none, and counts a refusal; `rung` is that of
    /// its service and tier, and `asked` the price without it and the tenant's multiplier. With `shadow` a refused request
    /// passes all the same.
    #[inline]
    pub(crate) fn charge(
        &mut self,
        (tenant, member): Account<'_>,
        (asked, price): (MilliRu, MilliRu),
        rung: u32,
        now: Nanos,
        shadow: bool,
    ) -> Charge {
        let now = self.at(now);
        let state = *self.state(tenant);
        match self.admit_request((tenant, member), &state, price, rung, now) {
            Ok(()) => Charge::Passed(price),
            Err((mut refusal, place)) => {
                if refusal.reason == Reason::TooLarge {
                    refusal = self.too_dear(tenant, asked);
                }
                self.count_refusal(tenant, refusal.reason, price, shadow);
                if shadow {
                    return Charge::Passed(MilliRu::ZERO);
                }
                if refusal.reason != Reason::Quota {
                    return Charge::Refused { refusal, bucket: TenantId::UNKNOWN };
                }
                let others = [None, Some(OtherBucket::FirstParent), Some(OtherBucket::SecondParent)];
                if let Some(other) = others[place] {
                    self.count_other_bucket(tenant, other);
                }
                Charge::Refused { refusal, bucket: charged_with(tenant, &state)[place] }
            }
        }
    }

    /// Charges the cost of requests beyond the `paid`, as [`Ledger::charge_again`] does. Returns that difference.
    pub(crate) fn settle(
        &mut self,
        (tenant, member): Account<'_>,
        cost: MilliRu,
        paid: MilliRu,
        now: Nanos,
    ) -> MilliRu {
        self.refresh();
        let due = MilliRu(self.apply_multiplier(tenant, cost, 0).0.saturating_sub(paid.0));
        if due != MilliRu::ZERO {
            self.charge_again((tenant, member), due, now);
        }
        due
    }

    /// Charges a tenant, and those charged with it, a price that may leave debts of at most `max_debt`.
    pub(crate) fn charge_again(&mut self, (tenant, member): Account<'_>, price: MilliRu, now: Nanos) {
        self.charge_debt((tenant, member), price, now);
        self.count_charged(tenant, price);
    }

    /// Gives back the charge of a request that was refused after all.
    pub(crate) fn refund(&mut self, (tenant, member): Account<'_>, price: MilliRu) {
        let parents = self.state(tenant).parents;
        self.give_back((tenant, member), price);
        parents.into_iter().for_each(|parent| self.give_back((TenantId(parent), None), price));
    }

    /// True if a datagram with this mark, which came in by this interface, was charged by the XDP program; `None` if nothing is
    /// marked there.
    pub(crate) fn is_marked(&self, mark: u32, interface: u32) -> Option<bool> {
        self.maps.mark_at(interface).map(|bit| mark & bit != 0)
    }

    /// True if the XDP program is attached to an interface.
    pub(crate) fn is_attached_to(&self, interface: u32) -> bool {
        self.maps.is_attached_to(interface)
    }

    /// True if so many bytes of gate's own may be sent to the address that a datagram names as its sender.
    pub(crate) fn may_reply(&mut self, tenant: TenantId, bytes: u32, now: Nanos) -> bool {
        let now = self.at(now);
        let state = *self.state(tenant);
        // In this bucket a thousandth of a request unit is a byte.
        let word = self.word(tenant, offset_of!(Tenant, reply_tat));
        state.flags & tenant_flags::MAY_REPLY != 0 && attempt(word, now, MilliRu(bytes), &state.reply).is_ok()
    }

    /// True if so many bytes beyond the datagram's length may be sent to the address that it names as its sender. The
    /// budget is the same, but default tenants have it for this as well.
    pub(crate) fn may_amplify(&mut self, tenant: TenantId, bytes: u32, now: Nanos) -> bool {
        let now = self.at(now);
        let reply = self.state(tenant).reply;
        attempt(self.word(tenant, offset_of!(Tenant, reply_tat)), now, MilliRu(bytes), &reply).is_ok()
    }

    /// A draw from `[0, 1)`.
    pub(crate) fn draw(&mut self) -> f64 {
        self.draw = draw::next(self.draw);
        (self.draw >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Takes a price from all buckets that a tenant is charged with, or from none. An error has the place of the bucket in
    /// [`charged_with`]; zero for what no bucket refuses.
    #[inline(always)]
    fn admit_request(
        &mut self,
        (tenant, member): Account<'_>,
        state: &TenantState,
        price: MilliRu,
        rung: u32,
        now: Nanos,
    ) -> Result<(), (Refusal, usize)> {
        let by_own = |refusal| (refusal, 0);
        if tenant == TenantId::UNKNOWN {
            return Err(by_own(Refusal::of(Reason::UnknownSource)));
        }
        self.pushed(state, rung, now).map_err(by_own)?;
        if state.flags & tenant_flags::CANDIDATE != 0 {
            let word = self.word(tenant, offset_of!(Tenant, candidate_tat));
            if attempt(word, now, price, &state.candidate).is_err() {
                self.count_rare(tenant, offset_of!(RareCounters, candidate_refused), 1);
            }
        }
        if state.parents == [0; 2] {
            return self.take_quota((tenant, member), price, now).map_err(by_own);
        }
        // What was taken is given back if one refuses.
        let [own, first, second] = charged_with(tenant, state);
        let all = [(own, member), (first, None), (second, None)];
        for (place, &charged) in all.iter().enumerate() {
            if let Err(refusal) = self.take_quota(charged, price, now) {
                all[..place].iter().for_each(|&charged| self.give_back(charged, price));
                return Err((refusal, place));
            }
        }
        Ok(())
    }

    /// Refusals that were decided ahead.
    fn pushed(&mut self, state: &TenantState, rung: u32, now: Nanos) -> Result<(), Refusal> {
        if now.0 < state.reject_until_ns {
            let retry_after = Nanos(state.reject_until_ns - now.0);
            return Err(Refusal::after(Reason::RejectedUntil, retry_after));
        }
        if state.flags & tenant_flags::PENALTY != 0 || rung >= Shed::REFUSED {
            return Err(Refusal::of(Reason::Penalty));
        }
        if state.rejection_rate != 0 {
            self.draw = draw::next(self.draw);
            if Fraction::from_steps(state.rejection_rate).covers(draw::share(self.draw)) {
                return Err(Refusal::of(Reason::RejectionRate));
            }
        }
        Ok(())
    }

    /// The word of another of a tenant's buckets.
    #[inline]
    fn word(&self, tenant: TenantId, offset: usize) -> &AtomicU64 {
        self.maps.tenants.word(tenant.0 as usize, offset)
    }

    /// A tenant's state in this generation.
    #[inline]
    fn state(&mut self, tenant: TenantId) -> &TenantState {
        let id = (tenant.0 as usize).min(self.states.len() - 1);
        if self.states[id].0 != self.generation {
            let bank = offset_of!(Tenant, banks) + bank_of(self.generation) * size_of::<TenantState>();
            self.states[id] = (self.generation, self.maps.tenants.load_at(id, bank));
        }
        &self.states[id].1
    }

    #[cold]
    fn follow(&mut self) {
        loop {
            self.generation = self.maps.generation();
            self.view = self.maps.view();
            let slots = self.view.first_service..self.view.first_service + self.view.services;
            for slot in slots {
                let service: Service = self.maps.services.load(slot as usize);
                // One that is not in the configuration any more keeps what it had.
                if let Some(seq) = self.names.iter().position(|name| *name == service.name) {
                    let prices = service.banks[bank_of(self.generation)];
                    self.services[seq] = (prices, TenantId(service.default_tenant));
                    self.numbers[seq] = service.id;
                }
            }
            if self.maps.generation() == self.generation {
                return;
            }
        }
    }
}

/// The tenant itself and those charged with it, in the order in which their buckets are asked.
const fn charged_with(tenant: TenantId, state: &TenantState) -> [TenantId; 3] {
    [tenant, TenantId(state.parents[0]), TenantId(state.parents[1])]
}

const _: () = assert!(size_of::<Block>() == 256 * size_of::<u32>());

#[cfg(test)]
mod tests;
