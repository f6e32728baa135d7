//! Explanations for guarded services: the steps of the XDP program, out of the maps that it reads.
//!
//! The program cannot be asked: a test run would charge. So its steps are repeated here with the functions that it shares
//! with the daemon (tables, prices, buckets, draws), in its order (`gate-ebpf/src/verdict.rs`); a test compares the two.
//! Nothing is written. The request is taken to come in one packet, over a connection that is open.

use std::mem::offset_of;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::Ordering;

use gate_common::abi::{
    KeyBuckets, Name, Protocol, QueryClass, Reason, Service, ServiceState, Shed, TcpAction, Tenant,
    TenantLine, TenantState, View, bank_of, draw, find, find_v4, service_flags, tenant_flags, view_flags,
};
use gate_common::token_bucket::{Limits, Take, take};
use gate_common::units::{Fraction, MilliRu, Multiplier, Nanos};

use super::guarded_request::{class_and_rows, first_key, is_malformed, with_value};
use crate::explanation::{Asker, Bucket, Explanation, PriceTerms, Question, Verdict, encode, millis, shown};
use crate::kernel::Maps;
use crate::policy::Tier;
use crate::protocol::price_class::PriceClass;
use crate::protocol::{Refusal, Rule};

/// Explains what the next request of a client would get at the service in this slot of the maps, at `now` on gate's clock.
///
/// # Errors
///
/// The fault in the question.
pub fn explain(
    maps: &Maps,
    slot: usize,
    is_udp: bool,
    is_resp: bool,
    question: &Question,
    now: Nanos,
) -> Result<Explanation, String> {
    let context = Context::new(maps, slot, is_udp, question, now)?;
    let Context { service, tenant, state, .. } = context;
    let mut explained = Explanation {
        service: service.name.as_str().to_owned(),
        layer: "xdp".to_owned(),
        command: shown(&question.words),
        tenant: (tenant != 0).then(|| context.name(tenant)),
        rule: context.rule(question),
        tier: Tier::ALL.get(usize::from(state.tier)).map_or("?", |tier| tier.name()).to_owned(),
        rung: context.prices.shed.rung(state.tier),
        ..Explanation::default()
    };
    let bytes = if service.protocol == Protocol::Opaque as u8 {
        question.words.join(&b' ')
    } else {
        with_value(encode(&question.words, is_resp)?, is_resp)
    };
    let is_scanned = is_udp && service.protocol == Protocol::Memcached as u8;
    let is_malformed = is_scanned && is_malformed(&question.words, &bytes);
    let price = match is_malformed {
        true => (MilliRu::ZERO, MilliRu::ZERO),
        false => context.price(&question.words, bytes.len(), &mut explained),
    };
    match context.follow(price, &question.words, is_malformed, &mut explained) {
        Ok(()) => explained.verdict = Verdict::Passes,
        Err(Refused { .. }) if context.is_shadowed => explained.verdict = Verdict::Passes,
        Err(Refused { refusal, bucket, is_answered }) => {
            explained.verdict = if is_answered { Verdict::Refused } else { Verdict::Dropped };
            explained.reason = Some(refusal.reason.name().to_owned());
            // Of a guarded service nothing else is too large.
            let is_too_dear = refusal.reason == Reason::TooLarge;
            explained.denied_by = is_too_dear.then(|| Rule::Burst.word().to_owned());
            explained.bucket = bucket;
            explained.retry_after_ms = Some(millis(refusal.retry_after));
        }
    }
    Ok(explained)
}

/// The state that a packet of this client would find.
struct Context<'m> {
    maps: &'m Maps,
    bank: usize,
    view: View,
    service: Service,
    prices: ServiceState,
    is_udp: bool,
    tenant: u32,
    state: TenantState,
    is_stale: bool,
    is_shadowed: bool,
    now: Nanos,
}

/// A refusal, the bucket that it is for, and true if the client may be answered.
struct Refused {
    refusal: Refusal,
    bucket: Option<String>,
    is_answered: bool,
}

impl<'m> Context<'m> {
    fn new(
        maps: &'m Maps,
        slot: usize,
        is_udp: bool,
        question: &Question,
        now: Nanos,
    ) -> Result<Self, String> {
        let view = maps.view();
        let bank = bank_of(maps.generation());
        let service: Service = maps.services.load(slot);
        let (tenant, source) = match &question.client {
            Asker::Source(source) => {
                let source = source.to_canonical();
                let named = tenant_of(maps, &view, source);
                (if named == 0 { service.default_tenant } else { named }, Some(source))
            }
            Asker::Tenant(name) => {
                let held = |id: &u32| Name::new(name) == Some(name_of(maps, *id));
                let tenant = (1..=view.last_tenant).find(held);
                (tenant.ok_or_else(|| format!("there is no tenant {name:?}"))?, None)
            }
        };
        let age = now.saturating_sub(maps.heartbeat());
        let is_covered = source.is_none_or(|source| view.enforced().covers(draw::of_source(&mapped(source))));
        let mut context = Self {
            maps,
            bank,
            view,
            prices: service.banks[bank],
            service,
            is_udp,
            tenant,
            state: TenantState::default(),
            is_stale: age.0 > view.stale_after_ns,
            is_shadowed: view.flags & view_flags::SHADOW != 0 || !is_covered,
            now,
        };
        context.state = context.state_of(tenant);
        Ok(context)
    }

    fn state_of(&self, tenant: u32) -> TenantState {
        if tenant as usize >= self.maps.tenants.len() {
            return TenantState::default();
        }
        let bank = offset_of!(Tenant, banks) + self.bank * size_of::<TenantState>();
        self.maps.tenants.load_at(tenant as usize, bank)
    }

    fn name(&self, tenant: u32) -> String {
        match name_of(self.maps, tenant).as_str() {
            "" => format!("tenant {tenant}"),
            name => name.to_owned(),
        }
    }

    fn rule(&self, question: &Question) -> String {
        match question.client {
            Asker::Tenant(_) => "the question".to_owned(),
            Asker::Source(_) if self.tenant == 0 => "no rule names its source".to_owned(),
            Asker::Source(source) if tenant_of(self.maps, &self.view, source.to_canonical()) != 0 => {
                "its source".to_owned()
            }
            Asker::Source(_) => format!("the default of {}", self.service.name.as_str()),
        }
    }

    /// The price of a request, as the program reads it: without multiplier and rung, and with them.
    fn price(&self, words: &[Vec<u8>], len: usize, explained: &mut Explanation) -> (MilliRu, MilliRu) {
        let is_memcached = self.service.protocol == Protocol::Memcached as u8;
        let by_lines = self.service.flags & service_flags::PRICED_BY_LINES != 0;
        let is_read = is_memcached && (self.is_udp || by_lines);
        // A datagram has a frame header.
        let len = len + if is_memcached && self.is_udp { FRAME_HEADER } else { 0 };
        let (class, rows) = if is_read { class_and_rows(words) } else { (QueryClass::Get, 0) };
        let latency = if is_read { self.prices.latency_mru[class as usize] } else { 0 };
        let asked = MilliRu(self.prices.price(1, rows, len as u32).saturating_add(latency));
        let factor = if self.is_stale { Multiplier::ONE } else { Multiplier(self.state.multiplier) };
        let rung = if self.is_stale { 0 } else { explained.rung };
        let price =
            if self.tenant == 0 { MilliRu::ZERO } else { MilliRu(Shed::price(rung, asked.scaled(factor).0)) };
        let ru = |mru: u64| mru as f64 / 1e3;
        explained.price = PriceTerms {
            class: if is_read { PriceClass::OF_MEMCACHED[class as usize] } else { "bytes" }.to_owned(),
            rows,
            bytes: len as u64,
            base_ru: ru(self.prices.base_mru.into()),
            rows_ru: ru(u64::from(rows) * u64::from(self.prices.row_mru)),
            bytes_ru: ru((len as u64 * u64::from(self.prices.kib_mru)).div_ceil(1_024)),
            latency_ru: ru(latency.into()),
            learned: false,
            multiplier: f64::from(factor.0) / f64::from(Multiplier::ONE.0),
            ru: ru(price.0.into()),
        };
        if len > ONE_PACKET {
            explained.notes.push("it does not fit into one packet, and is priced as if it did".to_owned());
        }
        (asked, price)
    }

    /// The reason for which a price is refused that a bucket never admits; the program asks the tenant's own alone if it would
    /// admit what the request costs without multiplier and rung.
    fn too_dear(&self, asked: MilliRu, price: MilliRu) -> Reason {
        let has_room =
            self.state.flags & tenant_flags::UNLIMITED != 0 || self.state.quota.ever_admits(asked.0);
        if asked < price && has_room { Reason::Penalty } else { Reason::TooLarge }
    }

    /// The steps of the program.
    fn follow(
        &self,
        (asked, price): (MilliRu, MilliRu),
        words: &[Vec<u8>],
        is_malformed: bool,
        explained: &mut Explanation,
    ) -> Result<(), Refused> {
        if self.is_stale && self.view.flags & view_flags::STALE_PASS != 0 {
            explained.notes.push("the heartbeat is stale: all passes (`on_stale`)".to_owned());
            return Ok(());
        }
        if self.tenant == 0 {
            return self.unknown(explained);
        }
        let action = if self.is_stale { TcpAction::None as u8 } else { self.state.tcp_action };
        if !self.is_udp && action != TcpAction::None as u8 {
            explained.notes.push("new connections are refused: the tenant is deep in debt".to_owned());
            if action == TcpAction::DropData as u8 {
                return self.refuse(explained, Refusal::of(Reason::RejectedUntil), None);
            }
        }
        if is_malformed {
            explained.notes.push("memcached's versions read that line differently".to_owned());
            return self.refuse(explained, Refusal::of(Reason::Malformed), None);
        }
        self.key_bucket(words, explained)?;
        self.describe_quotas(price, explained);
        if !self.is_stale {
            self.pushed(explained)?;
        }
        for (tenant, _, take) in self.quotas(price) {
            let refusal = match take {
                Take::Admit { .. } => continue,
                Take::Refuse { wait_ns } => Refusal::after(Reason::Quota, Nanos(wait_ns)),
                Take::TooLarge => Refusal::of(self.too_dear(asked, price)),
            };
            return self.refuse(explained, refusal, Some(self.name(tenant)));
        }
        Ok(())
    }

    /// A request of nobody's.
    fn unknown(&self, explained: &mut Explanation) -> Result<(), Refused> {
        if self.is_udp {
            return self.refuse(explained, Refusal::of(Reason::UnknownSource), None);
        }
        let is_dropped = self.service.flags & service_flags::DROP_UNKNOWN_SYN != 0;
        let note = match is_dropped {
            true => {
                "unknown sources cannot open connections (`unknown_syn`); on those that are open they pass uncharged"
            }
            false => {
                "segments of unknown sources pass uncharged, connection attempts at a rate (`unknown_syn_rate`)"
            }
        };
        explained.notes.push(note.to_owned());
        Ok(())
    }

    /// Refusals that the daemon decided ahead.
    fn pushed(&self, explained: &mut Explanation) -> Result<(), Refused> {
        if self.now.0 < self.state.reject_until_ns {
            let wait = Nanos(self.state.reject_until_ns - self.now.0);
            return self.refuse(explained, Refusal::after(Reason::RejectedUntil, wait), None);
        }
        if self.state.flags & tenant_flags::PENALTY != 0 || explained.rung >= Shed::REFUSED {
            return self.refuse(explained, Refusal::of(Reason::Penalty), None);
        }
        let rate = Fraction::from_steps(self.state.rejection_rate);
        if rate != Fraction::ZERO {
            explained.refused_by_chance = Some(f64::from(rate.steps()) / f64::from(Fraction::ONE.steps()));
        }
        if rate.covers(u16::MAX) {
            return self.refuse(explained, Refusal::of(Reason::RejectionRate), None);
        }
        Ok(())
    }

    /// The bucket of a hot key, which datagrams take from.
    fn key_bucket(&self, words: &[Vec<u8>], explained: &mut Explanation) -> Result<(), Refused> {
        let has_limits = self.service.flags & service_flags::LIMITS_KEYS != 0
            && self.service.protocol == Protocol::Memcached as u8;
        let Some(key) = first_key(words).filter(|_| has_limits && self.is_udp && !self.is_stale) else {
            return Ok(());
        };
        let hash = KeyBuckets::hash(self.service.id, key);
        let word = |field: usize, place: usize| {
            self.maps.tables.load_at::<u64>(KeyBuckets::BLOCK as usize, field + place * size_of::<u64>())
        };
        let first = KeyBuckets::first_place(hash);
        let hashes = offset_of!(KeyBuckets, hashes);
        let Some(place) = (first..first + KeyBuckets::WAYS).find(|&place| word(hashes, place) == hash) else {
            return Ok(());
        };
        explained.hot = true;
        let rate = self
            .maps
            .tables
            .load_at(KeyBuckets::BLOCK as usize, offset_of!(KeyBuckets, rates) + place * size_of::<u64>());
        let burst_ns = word(offset_of!(KeyBuckets, bursts_ns), place);
        let limits = Limits { rate, burst_ns, max_debt_ns: 0 };
        let tat = word(offset_of!(KeyBuckets, tats), place);
        let taken = take(tat, self.now.0, KeyBuckets::COST, &limits);
        let debt = Nanos(tat.saturating_sub(self.now.0));
        let name = key.escape_ascii().to_string();
        let cost = MilliRu(KeyBuckets::COST);
        explained.buckets.push(Bucket::new("hot-key", &name, "requests", &limits, debt, cost, taken));
        match taken {
            Take::Admit { .. } => Ok(()),
            Take::Refuse { wait_ns } => {
                self.refuse(explained, Refusal::after(Reason::HotKey, Nanos(wait_ns)), Some(name))
            }
            Take::TooLarge => self.refuse(explained, Refusal::of(Reason::HotKey), Some(name)),
        }
    }

    /// The quotas that are charged, in their order, with the time debt and the answer of each.
    fn quotas(&self, price: MilliRu) -> impl Iterator<Item = (u32, (Limits, Nanos), Take)> {
        let [first, second] = self.state.parents;
        let quota = move |tenant: u32| {
            let state = self.state_of(tenant);
            let has_quota = tenant != 0
                && (tenant as usize) < self.maps.tenants.len()
                && state.flags & tenant_flags::UNLIMITED == 0;
            if !has_quota {
                return None;
            }
            let tat = self.maps.tenant_lines.word(tenant as usize, offset_of!(TenantLine, quota_tat));
            let tat = tat.load(Ordering::Relaxed);
            let debt = Nanos(tat.saturating_sub(self.now.0));
            Some((tenant, (state.quota, debt), take(tat, self.now.0, price.0, &state.quota)))
        };
        [self.tenant, first, second].into_iter().filter_map(quota)
    }

    fn describe_quotas(&self, price: MilliRu, explained: &mut Explanation) {
        for (tenant, (limits, debt), take) in self.quotas(price) {
            let kind = if tenant == self.tenant { "quota" } else { "charge" };
            explained.buckets.push(Bucket::new(kind, &self.name(tenant), "RU", &limits, debt, price, take));
        }
        if self.state.flags & tenant_flags::CANDIDATE != 0 {
            explained.notes.push("a candidate quota counts it as well, and refuses nothing".to_owned());
        }
    }

    fn refuse(
        &self,
        explained: &mut Explanation,
        refusal: Refusal,
        bucket: Option<String>,
    ) -> Result<(), Refused> {
        if self.is_shadowed {
            explained.shadowed.push(refusal.reason.name().to_owned());
        }
        let is_memcached = self.service.protocol == Protocol::Memcached as u8;
        let is_answered = self.tenant != 0
            && self.is_udp
            && is_memcached
            && self.state.flags & tenant_flags::MAY_REPLY != 0
            && refusal.reason != Reason::Malformed;
        if is_answered {
            explained.notes.push(
                "refusals are answered as far as `reply_budget` goes, and dropped beyond it".to_owned(),
            );
        }
        Err(Refused { refusal, bucket, is_answered })
    }
}

/// The tenant that has a prefix of a source; zero if none has.
fn tenant_of(maps: &Maps, view: &View, source: IpAddr) -> u32 {
    let entry = |block: u32, index: u8| {
        let words = maps.tables.load_at::<u64>(block as usize, usize::from(index & !1) * 4);
        Some(if index & 1 == 0 { words as u32 } else { (words >> 32) as u32 })
    };
    match source {
        IpAddr::V4(source) => find_v4(view.sources_v4, source.octets(), entry),
        IpAddr::V6(source) => find(view.sources_v6, &source.octets(), entry),
    }
}

fn name_of(maps: &Maps, tenant: u32) -> Name {
    let is_there = (tenant as usize) < maps.tenants.len();
    if is_there { maps.tenants.load_at(tenant as usize, offset_of!(Tenant, name)) } else { Name::EMPTY }
}

fn mapped(source: IpAddr) -> [u8; 16] {
    match source {
        IpAddr::V4(source) => Ipv4Addr::to_ipv6_mapped(&source).octets(),
        IpAddr::V6(source) => source.octets(),
    }
}

/// Bytes before the commands of a datagram.
const FRAME_HEADER: usize = 8;
/// The payload that every Ethernet carries in one packet.
const ONE_PACKET: usize = 1_400;
