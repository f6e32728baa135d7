//! The program once more, as plainly as possible: a model to compare it with.
//!
//! The model shares no method with the program. Tables are lists that are searched from the start, headers
//! are slices, a charge is a loop over buckets. Of gate it uses names, and the token bucket, which has tests
//! against exact arithmetic of its own.

mod headers;
mod memcached;

use std::net::IpAddr;

use gate_common::abi::{
    Cpu, Event, Exit, Protocol, Reason, Service, ServiceState, TcpAction, TenantCounters, TenantState, draw,
    service_flags, tenant_flags, view_flags,
};
use gate_common::token_bucket::{Limits, Take, refund, take};
use gate_common::units::{Fraction, Multiplier};

use crate::fixture;
use crate::world::Plan;
use headers::{Headers, Kind, Payload, TCP, UDP, be16};
pub use memcached::{Commands, memcached, segment};

/// The contents of the maps, and the state that the program must have written.
#[derive(Debug)]
pub struct Model {
    /// The plan in force.
    pub plan: Plan,
    /// True if a plan is in force.
    pub ready: bool,
    /// gate's clock.
    pub now_ns: u64,
    /// The last heartbeat.
    pub heartbeat_ns: u64,
    /// Each tenant's words, in the order of [`gate_common::abi::Tenant`]; nobody's first.
    pub words: Vec<[u64; 5]>,
    /// The counters, by tenant.
    pub tenants: Vec<TenantCounters>,
    /// The CPU's counters, and the state of its draws.
    pub cpu: Cpu,
    /// The place of the bucket beside the tenant's own that the last charge lacked.
    pub lacking: Option<usize>,
}

/// A tenant's buckets, in the order of [`gate_common::abi::Tenant`].
#[derive(Clone, Copy)]
enum Word {
    Quota,
    Tcp,
    Reply,
    Candidate,
    Syn,
}

/// The verdict on a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// How it leaves.
    pub exit: Exit,
    /// The tenant whose counters may have changed.
    pub tenant: usize,
    /// The reply.
    pub reply: Option<Vec<u8>>,
}

impl Verdict {
    /// XDP's action.
    #[must_use]
    pub const fn action(&self) -> u32 {
        match self.exit {
            Exit::Malformed
            | Exit::UnknownSource
            | Exit::RefusedDropped
            | Exit::FragmentDropped
            | Exit::TooManyHeaders
            | Exit::SynRate
            | Exit::NoConnection => 1,
            Exit::RefusedReplied => 3,
            _ => 2,
        }
    }
}

/// A packet for a protected service, and whose.
struct PacketContext<'a> {
    packet: &'a [u8],
    headers: Headers,
    /// `None` if it is malformed.
    payload: Option<Payload>,
    /// The price of its commands, where they are read.
    commands: Option<Commands>,
    service: Service,
    tenant: usize,
    state: TenantState,
    rung: u32,
    stale: bool,
    /// The price without multiplier and rung.
    asked: u32,
    price: u32,
}

impl Model {
    /// Processes a packet.
    pub fn process(&mut self, packet: &[u8]) -> Verdict {
        let mut verdict = Verdict { exit: Exit::Passed, tenant: 0, reply: None };
        verdict.exit = match self.open(packet) {
            Err(exit) => exit,
            Ok(context) => {
                verdict.tenant = context.tenant;
                if context.stale && self.plan.view.flags & view_flags::STALE_PASS != 0 {
                    Exit::StalePassed
                } else if context.headers.transport == UDP {
                    self.datagram(&context, &mut verdict.reply)
                } else {
                    self.segment(&context, &mut verdict.reply)
                }
            }
        };
        self.cpu.exits[verdict.exit.index()] += 1;
        verdict
    }

    /// Finds out what a packet is; or how it leaves, if it is not for a service.
    fn open<'p>(&mut self, packet: &'p [u8]) -> Result<PacketContext<'p>, Exit> {
        let headers = Headers::read(packet).map_err(|exit| match exit {
            // So many VLAN tags that nobody knows where it goes.
            Exit::TooManyHeaders if !self.ready => Exit::NotReady,
            Exit::TooManyHeaders if self.plan.view.flags & view_flags::SHADOW != 0 => Exit::Shadowed,
            exit => exit,
        })?;
        if headers.kind != Kind::Whole {
            headers.fits(packet)?;
            self.not_whole(&headers)?;
        }
        let ports = packet.get(headers.transport_at..headers.transport_at + 4).ok_or(Exit::BadHeader)?;
        let port = be16(&ports[2..]);
        let services = self.plan.services.iter();
        let mut here = services.filter(|(on, at, ..)| (*on, *at) == (headers.transport, port)).peekable();
        here.peek().ok_or(Exit::NotOurs)?;
        if !self.ready {
            return Err(Exit::NotReady);
        }
        headers.fits(packet)?;
        if headers.transport_at > headers.end {
            return Err(Exit::BadHeader);
        }
        // No more than eight services share a port.
        let &(_, _, service, prices) = here
            .take(8)
            .find(|(_, _, service, _)| {
                service.flags & service_flags::ANY_ADDRESS != 0 || service.address == headers.destination
            })
            .ok_or(Exit::NotOurs)?;
        let tenant = self.owner(&headers).unwrap_or(service.default_tenant) as usize;
        if tenant >= self.words.len() {
            return Err(Exit::Missing);
        }
        let state = self.state(tenant);
        let stale = self.now_ns.saturating_sub(self.heartbeat_ns) > self.plan.view.stale_after_ns;
        if stale {
            self.cpu.events[Event::Stale.index()] += 1;
        }
        let payload = headers.payload(packet);
        let rung = prices.shed.rung(state.tier);
        let mut context = PacketContext {
            packet,
            headers,
            payload,
            commands: None,
            service,
            tenant,
            state,
            rung,
            stale,
            asked: 0,
            price: 0,
        };
        context.read(&prices);
        Ok(context)
    }

    /// The exit of a packet that is not whole, unless it can be judged all the same.
    fn not_whole(&self, headers: &Headers) -> Result<(), Exit> {
        if !self.ready {
            return Err(Exit::NotReady);
        }
        let [pass, drop] = [view_flags::PASS_FRAGMENTS, view_flags::DROP_FRAGMENTS]
            .map(|flag| self.plan.view.flags & flag != 0);
        let many = headers.kind == Kind::TooManyHeaders;
        if !many && pass {
            return Err(Exit::Fragment);
        }
        if !many && !drop {
            if headers.kind == Kind::LaterFragment {
                return Err(Exit::Fragment);
            }
            if headers.transport_at + 4 <= headers.end {
                return Ok(());
            }
        }
        let [_, destination] = headers.addresses();
        let here = |address: &IpAddr| {
            *address == destination || address.is_unspecified() && address.is_ipv4() == destination.is_ipv4()
        };
        Err(if !self.plan.protected.iter().any(here) {
            if many { Exit::NotOurs } else { Exit::Fragment }
        } else if self.is_shadowed(headers) {
            Exit::Shadowed
        } else if many {
            Exit::TooManyHeaders
        } else {
            Exit::FragmentDropped
        })
    }

    /// The tenant that the longest prefix of a source names.
    fn owner(&self, headers: &Headers) -> Option<u32> {
        // The prefix in the highest bits.
        let bits = |address: IpAddr| match address {
            IpAddr::V4(address) => u128::from(address.to_bits()) << 96,
            IpAddr::V6(address) => address.to_bits(),
        };
        let [source, _] = headers.addresses();
        let covers = |prefix: &(IpAddr, u8, u32)| {
            prefix.0.is_ipv6() == headers.v6
                && (bits(prefix.0) ^ bits(source)).leading_zeros() >= u32::from(prefix.1)
        };
        let found = self.plan.sources.iter().filter(|prefix| covers(prefix)).max_by_key(|prefix| prefix.1);
        found.map(|prefix| prefix.2)
    }

    fn state(&self, tenant: usize) -> TenantState {
        tenant.checked_sub(1).and_then(|place| self.plan.tenants.get(place)).copied().unwrap_or_default()
    }

    fn is_shadowed(&self, headers: &Headers) -> bool {
        self.plan.view.flags & view_flags::SHADOW != 0
            || !self.plan.view.enforced().covers(draw::of_source(&headers.source))
    }

    fn datagram(&mut self, context: &PacketContext<'_>, reply: &mut Option<Vec<u8>>) -> Exit {
        if context.tenant == 0 {
            return self.refuse(context, Reason::UnknownSource, Exit::UnknownSource);
        }
        let Some(payload) = &context.payload else {
            return self.refuse(context, Reason::Malformed, Exit::Malformed);
        };
        if context.headers.kind == Kind::FirstFragment && context.service.flags & service_flags::PROXIED != 0
        {
            return Exit::Fragment;
        }
        let charged = self.charge(context);
        let exit = self.pass_or_refuse(context, charged, context.price);
        let Some(commands) = &context.commands else { return exit };
        if exit != Exit::RefusedDropped || !commands.answerable {
            return exit;
        }
        self.answer(context, payload, reply)
    }

    fn segment(&mut self, context: &PacketContext<'_>, reply: &mut Option<Vec<u8>>) -> Exit {
        let Some(payload) = &context.payload else {
            return self.refuse(context, Reason::Malformed, Exit::Malformed);
        };
        if context.tenant == 0 {
            let dropped = payload.opens() && context.service.flags & service_flags::DROP_UNKNOWN_SYN != 0;
            return match dropped {
                true => self.refuse(context, Reason::UnknownSource, Exit::UnknownSource),
                false => Exit::UnknownPassed,
            };
        }
        let action = if context.stale { TcpAction::None as u8 } else { context.state.tcp_action };
        if action != TcpAction::None as u8 && payload.opens() {
            let exit = self.refuse(context, Reason::RejectedUntil, Exit::RefusedDropped);
            return match exit == Exit::RefusedDropped && action == TcpAction::ResetSyn as u8 {
                true => self.answer(context, payload, reply),
                false => exit,
            };
        }
        if action == TcpAction::DropData as u8 && payload.carries_data(&context.headers) {
            return self.refuse(context, Reason::RejectedUntil, Exit::RefusedDropped);
        }
        if payload.opens() && self.take(context.tenant, Word::Syn, 1_000, &context.state.syn).is_err() {
            if self.plan.view.flags & view_flags::SYN_COOKIES == 0 {
                return self.refuse_at(context, Reason::SynRate, Exit::SynRate, 0);
            }
            self.cpu.events[Event::SynBeyondRate.index()] += 1;
        }
        if !payload.carries_data(&context.headers) {
            self.tenants[context.tenant].bare += 1;
            self.tenants[context.tenant].passed_bytes += context.headers.end as u64;
            return Exit::Bare;
        }
        if context.service.flags & service_flags::PROXIED != 0 {
            let fits = self.take(context.tenant, Word::Tcp, payload.len as u32, &context.state.tcp);
            return self.pass_or_refuse(context, fits.map_err(|_| Reason::Limit), 0);
        }
        if context.commands.is_some_and(|commands| commands.bounded) {
            self.cpu.events[Event::UpperBound.index()] += 1;
        }
        let charged = self.charge(context);
        self.pass_or_refuse(context, charged, context.price)
    }

    /// Pushed refusals first, then all buckets or none.
    fn charge(&mut self, context: &PacketContext<'_>) -> Result<(), Reason> {
        let state = &context.state;
        if !context.stale {
            if self.now_ns < state.reject_until_ns {
                return Err(Reason::RejectedUntil);
            }
            if state.flags & tenant_flags::PENALTY != 0 || context.rung == 7 {
                return Err(Reason::Penalty);
            }
            if state.rejection_rate != 0 {
                self.cpu.draw = draw::next(self.cpu.draw);
                if Fraction::from_steps(state.rejection_rate).covers(draw::share(self.cpu.draw)) {
                    return Err(Reason::RejectionRate);
                }
            }
        }
        if state.flags & tenant_flags::CANDIDATE != 0
            && self.take(context.tenant, Word::Candidate, context.price, &state.candidate).is_err()
        {
            self.tenants[context.tenant].candidate_refused += 1;
        }
        let mut taken = Vec::new();
        self.lacking = None;
        let payers = [context.tenant, state.parents[0] as usize, state.parents[1] as usize];
        for (place, payer) in payers.into_iter().enumerate() {
            let state = self.state(payer);
            let pays = payer != 0 && payer < self.words.len() && state.flags & tenant_flags::UNLIMITED == 0;
            if !pays {
                continue;
            }
            if let Err(mut reason) = self.take(payer, Word::Quota, context.price, &state.quota) {
                for (payer, cost_ns) in taken {
                    let word: &mut [u64; 5] = &mut self.words[payer];
                    word[Word::Quota as usize] = refund(word[Word::Quota as usize], cost_ns);
                }
                self.lacking = place.checked_sub(1);
                // What is too dear by its multiplier alone passes when that has passed.
                let own = &context.state;
                let fits = own.flags & tenant_flags::UNLIMITED != 0
                    || !matches!(take(0, self.now_ns, context.asked, &own.quota), Take::TooLarge);
                if reason == Reason::TooLarge && context.asked < context.price && fits {
                    reason = Reason::Penalty;
                }
                return Err(reason);
            }
            taken.push((payer, state.quota.rate.time_for(context.price)));
        }
        Ok(())
    }

    fn take(&mut self, tenant: usize, word: Word, cost: u32, limits: &Limits) -> Result<(), Reason> {
        let word = &mut self.words[tenant][word as usize];
        match take(*word, self.now_ns, cost, limits) {
            Take::Admit { tat } => *word = tat,
            Take::Refuse { .. } => return Err(Reason::Quota),
            Take::TooLarge => return Err(Reason::TooLarge),
        }
        Ok(())
    }

    fn pass_or_refuse(
        &mut self,
        context: &PacketContext<'_>,
        charged: Result<(), Reason>,
        price: u32,
    ) -> Exit {
        if let Err(reason) = charged {
            return self.refuse_at(context, reason, Exit::RefusedDropped, price);
        }
        let counters = &mut self.tenants[context.tenant];
        *context.passed(counters) += 1;
        counters.charged_mru += u64::from(price);
        counters.passed_bytes += context.headers.end as u64;
        Exit::Passed
    }

    fn refuse(&mut self, context: &PacketContext<'_>, reason: Reason, exit: Exit) -> Exit {
        self.refuse_at(context, reason, exit, context.price)
    }

    fn refuse_at(&mut self, context: &PacketContext<'_>, reason: Reason, exit: Exit, price: u32) -> Exit {
        let shadowed = self.is_shadowed(&context.headers);
        let counters = &mut self.tenants[context.tenant];
        if shadowed {
            counters.shadowed[reason.index()] += 1;
            *context.passed(counters) += 1;
            counters.passed_bytes += context.headers.end as u64;
            return Exit::Shadowed;
        }
        counters.refused[reason.index()] += 1;
        if let (Reason::Quota, Some(bucket)) = (reason, self.lacking.take()) {
            counters.quota_refused[bucket] += 1;
        }
        counters.refused_mru += u64::from(price);
        exit
    }

    fn answer(
        &mut self,
        context: &PacketContext<'_>,
        payload: &Payload,
        reply: &mut Option<Vec<u8>>,
    ) -> Exit {
        if context.state.flags & tenant_flags::MAY_REPLY == 0
            || !context.headers.may_be_answered(context.packet)
        {
            return Exit::RefusedDropped;
        }
        let answer = fixture::reply(&context.headers.rebuilt(context.packet, payload));
        if self.take(context.tenant, Word::Reply, answer.len() as u32, &context.state.reply).is_err() {
            self.cpu.events[Event::ReplyBudget.index()] += 1;
            return Exit::RefusedDropped;
        }
        self.tenants[context.tenant].replied += 1;
        *reply = Some(answer);
        Exit::RefusedReplied
    }
}

impl PacketContext<'_> {
    /// The counter of what passes over its transport.
    fn passed<'c>(&self, counters: &'c mut TenantCounters) -> &'c mut u64 {
        if self.headers.transport == TCP { &mut counters.segments } else { &mut counters.passed }
    }

    /// Prices what it carries; what cannot be priced is malformed.
    fn read(&mut self, prices: &ServiceState) {
        let Some(payload) = &self.payload else { return };
        if self.tenant == 0 {
            return;
        }
        // How long a segment is, its first fragment does not say.
        let hidden = self.headers.transport == TCP && self.headers.kind == Kind::FirstFragment;
        let len = if hidden { 65_535 } else { payload.len };
        let shown = &self.packet[payload.at..self.headers.end.min(payload.at + payload.len)];
        let is_memcached = self.service.protocol == Protocol::Memcached as u8;
        let by_lines = self.service.flags & service_flags::PRICED_BY_LINES != 0 && payload.len != 0;
        let price = if self.headers.transport == TCP && is_memcached && by_lines {
            self.commands = segment(shown, len, prices);
            self.commands.map_or(0, |commands| commands.price)
        } else if self.headers.transport == TCP || !is_memcached {
            let bytes = (len as u64 * u64::from(prices.kib_mru)).div_ceil(1024);
            u64::from(prices.base_mru) + bytes
        } else {
            let is_fragment = self.headers.kind == Kind::FirstFragment;
            let is_read_again = is_fragment && self.service.flags & service_flags::PROXIED != 0;
            self.commands = memcached(shown, payload.len, prices, is_read_again);
            let Some(commands) = &self.commands else {
                self.payload = None;
                return;
            };
            commands.price
        };
        let mut price = price.min(u64::from(u32::MAX));
        self.asked = price as u32;
        if !self.stale {
            let one = u64::from(Multiplier::ONE.0);
            price = (price * u64::from(self.state.multiplier)).div_ceil(one).min(u64::from(u32::MAX));
            price = (price << self.rung.min(6)).min(u64::from(u32::MAX));
        }
        self.price = price as u32;
    }
}
