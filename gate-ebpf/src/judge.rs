//! From a packet to its exit.

use aya_ebpf::bindings::xdp_md;
use aya_ebpf::helpers::generated::bpf_jiffies64;
use gate_common::abi::{
    ABI_VERSION, Control, Event, Exit, PortFilter, Protocol, Reason, ServiceState, Shed, TcpAction, Tenant,
    bank_of, draw, find, service_flags, tenant_flags, view_flags,
};
use gate_common::units::{Fraction, MilliRu, Multiplier};

use crate::admit::{Ask, Purse};
use crate::count::{self, Tally};
use crate::maps::{self, forget, peek};
use crate::parse::Packet;
use crate::parse::extensions::Walk;
use crate::parse::frame::{self, Frame, Glance, UDP};
use crate::parse::scan::Scan;
use crate::parse::transport::Load;
use crate::parse::{first_line, memcached};
use crate::plan::{Plan, Source, find_v6};
use crate::{admit, reply, sample};

/// Judges a packet: how it leaves. A reply is already written when this says so.
#[inline(always)]
pub(crate) fn judge(ctx: *mut xdp_md) -> Exit {
    match try_judge(ctx) {
        Ok(exit) | Err(exit) => exit,
    }
}

#[inline(always)]
fn try_judge(ctx: *mut xdp_md) -> Result<Exit, Exit> {
    let packet = Packet::of(ctx);
    let glance = Glance::at(ctx, &packet)?;
    if glance.fragment {
        let frame = glance.frame(ctx, &packet)?;
        return Err(fragment(frame.v6, frame.destination, frame.source));
    }
    let ports = packet.bytes::<4>(glance.transport_at).ok_or(Exit::BadHeader)?;
    let port = u16::from_be(ports.get::<u16, 2>());
    if !is_ours(glance.transport, port) {
        return Err(Exit::NotOurs);
    }
    let court = Court { ctx, control: control()?, case: maps::SCRATCH.get_ptr_mut(0).ok_or(Exit::Missing)? };
    let frame = glance.frame(ctx, &packet)?;
    let tenant = court.open(&packet, frame, port)?;
    forget();
    if court.case().frame.transport == UDP { court.datagram(tenant) } else { court.segment(tenant) }
}

/// A packet for a protected service: what is known of it, and what it is judged by.
pub(crate) struct Case {
    /// Its headers.
    pub(crate) frame: Frame,
    /// What it carries.
    pub(crate) load: Load,
    /// Whether it does not follow its protocol.
    pub(crate) malformed: bool,
    /// Whether its commands are in `scan`.
    pub(crate) scanned: bool,
    /// Whether the heartbeat is stale, and what was pushed does not count.
    pub(crate) stale: bool,
    /// What it costs, in thousandths of a request unit.
    pub(crate) price_mru: u32,
    /// gate's clock.
    pub(crate) now_ns: u64,
    /// What it is judged by.
    pub(crate) plan: Plan,
    /// What its buckets are asked.
    pub(crate) asks: [Ask; 3],
    /// The commands of memcached over UDP.
    pub(crate) scan: Scan,
    /// The way along IPv6's extension headers.
    pub(crate) walk: Walk,
}

/// Where a case is heard: pointers only, which the verifier wants in registers or on the stack.
#[derive(Clone, Copy)]
struct Court {
    ctx: *mut xdp_md,
    control: *mut Control,
    case: *mut Case,
}

impl Court {
    #[inline(always)]
    fn case(&self) -> &Case {
        // SAFETY: this CPU's own scratch, written by `open` before anyone reads it.
        unsafe { &*self.case }
    }

    /// Copies all that is needed. Fails with the exit of a packet that there is nothing to judge about.
    #[inline(always)]
    fn open(&self, packet: &Packet, frame: Frame, port: u16) -> Result<*mut Tenant, Exit> {
        let load = Load::read(packet, &frame);
        // SAFETY: this CPU's own scratch; nothing else refers to it.
        let case = unsafe { &mut *self.case };
        case.frame = frame;
        case.malformed = load.is_err();
        case.scanned = false;
        case.load = load.unwrap_or(Load::NOTHING);
        forget();
        let Case { frame, load, malformed, scanned, scan, plan, .. } = case;
        let source = Source { control: self.control, frame, port };
        let tenant = source.copy(plan, |protocol, prices| {
            if frame.transport != UDP || protocol != Protocol::Memcached as u8 || *malformed {
                return price_of_bytes(prices, load.len);
            }
            // Once, however often the plan has to be copied.
            if !*scanned {
                *scanned = true;
                *malformed = memcached::read(self.ctx, load, scan).is_err();
            }
            scan.price(prices, load.len)
        })?;
        forget();
        // SAFETY: the helper reads a clock.
        case.now_ns = peek!((*self.control).clock).at_jiffies(unsafe { bpf_jiffies64() }).0;
        let age = case.now_ns.saturating_sub(peek!((*self.control).heartbeat_ns));
        case.stale = age > case.plan.stale_after_ns;
        // What was not read has no price.
        case.price_mru = if case.malformed { 0 } else { case.plan.price_mru };
        if case.stale {
            count::event(Event::Stale);
            if case.plan.view_flags & view_flags::STALE_PASS != 0 {
                return Err(Exit::StalePassed);
            }
        } else if case.plan.multiplier != Multiplier::ONE.0 || case.plan.rung != 0 {
            let price = MilliRu(case.price_mru).scaled(Multiplier(case.plan.multiplier));
            case.price_mru = Shed::price(case.plan.rung, price.0);
        }
        Ok(tenant)
    }

    /// A UDP datagram is a request, or several.
    #[inline(always)]
    fn datagram(&self, tenant: *mut Tenant) -> Result<Exit, Exit> {
        let case = self.case();
        if case.plan.tenant_id == 0 {
            return Ok(self.refuse(Reason::UnknownSource, Exit::UnknownSource));
        }
        if case.malformed {
            return Ok(self.refuse(Reason::Malformed, Exit::Malformed));
        }
        let charged = self.charge(tenant);
        let exit = self.pass_or_refuse(charged);
        if !case.scanned {
            return Ok(exit);
        }
        if case.scan.unread() != 0 {
            count::event(Event::UpperBound);
        }
        self.sample(charged.is_err());
        if exit != Exit::RefusedDropped || !case.scan.answerable {
            return Ok(exit);
        }
        Ok(self.answer(tenant, reply::throttled_len(&case.frame), || {
            reply::throttled(self.ctx, &case.frame, case.scan.id)
        }))
    }

    /// A TCP segment is no request; those that carry something are charged all the same.
    #[inline(always)]
    fn segment(&self, tenant: *mut Tenant) -> Result<Exit, Exit> {
        let case = self.case();
        if case.malformed {
            return Ok(self.refuse(Reason::Malformed, Exit::Malformed));
        }
        if case.plan.tenant_id == 0 {
            if case.load.opens() && case.plan.service_flags & service_flags::DROP_UNKNOWN_SYN != 0 {
                return Ok(self.refuse(Reason::UnknownSource, Exit::UnknownSource));
            }
            return Ok(Exit::UnknownPassed);
        }
        if case.plan.tcp_action != TcpAction::None as u8 && !case.stale {
            if case.load.opens() {
                return Ok(self.refuse_syn(tenant));
            }
            if case.load.carries_data() && case.plan.tcp_action == TcpAction::DropData as u8 {
                return Ok(self.refuse(Reason::RejectedUntil, Exit::RefusedDropped));
            }
        }
        if !case.load.carries_data() {
            self.tally().bare(case.frame.len());
            return Ok(Exit::Bare);
        }
        if case.plan.service_flags & service_flags::PROXIED != 0 {
            return Ok(self.second_line(tenant));
        }
        let charged = self.charge(tenant);
        self.sample_segment(charged.is_err());
        Ok(self.pass_or_refuse(charged))
    }

    #[inline(always)]
    fn refuse_syn(&self, tenant: *mut Tenant) -> Exit {
        let case = self.case();
        let exit = self.refuse(Reason::RejectedUntil, Exit::RefusedDropped);
        if exit != Exit::RefusedDropped || case.plan.tcp_action != TcpAction::ResetSyn as u8 {
            return exit;
        }
        self.answer(tenant, reply::reset_len(&case.frame), || reply::reset(self.ctx, &case.frame, &case.load))
    }

    /// Of a proxied service's segments only the bytes count: the daemon charges for what they say.
    #[inline(always)]
    fn second_line(&self, tenant: *mut Tenant) -> Exit {
        // SAFETY: this CPU's own scratch.
        unsafe { (*self.case).price_mru = 0 };
        let fits = self.purse(tenant).takes_coarsely(self.case().load.len);
        self.pass_or_refuse(if fits { Ok(()) } else { Err(Reason::Limit) })
    }

    #[inline(always)]
    fn charge(&self, tenant: *mut Tenant) -> Result<(), Reason> {
        let case = self.case();
        if !case.stale {
            admit::pushed(&case.plan, case.now_ns)?;
        }
        self.purse(tenant).charge(|| self.tally())
    }

    #[inline(always)]
    fn purse(&self, tenant: *mut Tenant) -> Purse {
        Purse { control: self.control, tenant, case: self.case }
    }

    #[inline(always)]
    fn pass_or_refuse(&self, charged: Result<(), Reason>) -> Exit {
        match charged {
            Ok(()) => {
                self.tally().passed(self.case().price_mru, self.case().frame.len());
                Exit::Passed
            }
            Err(reason) => self.refuse(reason, Exit::RefusedDropped),
        }
    }

    /// Refuses, unless that is shadowed; then it passes.
    #[inline(always)]
    fn refuse(&self, reason: Reason, exit: Exit) -> Exit {
        let case = self.case();
        if is_shadowed(case.plan.view_flags, case.plan.enforce, case.frame.source) {
            self.tally().shadowed(reason, case.frame.len());
            return Exit::Shadowed;
        }
        self.tally().refused(reason, case.price_mru);
        exit
    }

    /// Writes an answer of `len` bytes, if this tenant may be answered, and so much.
    #[inline(always)]
    fn answer(&self, tenant: *mut Tenant, len: u32, write: impl FnOnce() -> bool) -> Exit {
        let case = self.case();
        let may = case.plan.tenant_flags & tenant_flags::MAY_REPLY != 0;
        if !may || !reply::is_safe(&Packet::of(self.ctx), &case.frame) {
            return Exit::RefusedDropped;
        }
        if !self.purse(tenant).may_reply(len) {
            count::event(Event::ReplyBudget);
            return Exit::RefusedDropped;
        }
        if !write() {
            count::event(Event::NoRoom);
            return Exit::RefusedDropped;
        }
        self.tally().replied();
        Exit::RefusedReplied
    }

    /// Samples a request's first key, if it is due and the daemon does not see it itself.
    #[inline(always)]
    fn sample(&self, refused: bool) {
        let case = self.case();
        let unseen = refused || case.plan.service_flags & service_flags::PROXIED == 0;
        if case.scan.key.at != 0 && unseen && sample::is_due(case.plan.sample_every) {
            sample::send(self.ctx, case, refused);
        }
    }

    /// Samples the first key of a guarded segment, if it is due and there is one.
    #[inline(always)]
    fn sample_segment(&self, refused: bool) {
        let protocol = self.case().plan.protocol;
        if protocol != Protocol::Opaque as u8 && sample::is_due(self.case().plan.sample_every) {
            // SAFETY: this CPU's own scratch.
            let case = unsafe { &mut *self.case };
            first_line::find(self.ctx, protocol, case.load.at, &mut case.scan.key);
            if case.scan.key.at != 0 {
                sample::send(self.ctx, case, refused);
            }
        }
    }

    #[inline(always)]
    fn tally(&self) -> Tally {
        Tally::of(self.case().plan.tenant_id, peek!((*self.control).tenants))
    }
}

/// What bytes that are not looked into cost.
#[inline(always)]
fn price_of_bytes(prices: *const ServiceState, bytes: u32) -> u32 {
    let prices = ServiceState {
        base_mru: peek!((*prices).base_mru),
        kib_mru: peek!((*prices).kib_mru),
        ..ServiceState::default()
    };
    prices.price(1, 0, bytes)
}

/// The element that every packet reads, once the daemon has made it ready.
#[inline(always)]
fn control() -> Result<*mut Control, Exit> {
    let control = maps::CONTROL.get_ptr_mut(0).ok_or(Exit::Missing)?;
    if peek!((*control).abi_version) != ABI_VERSION || peek!((*control).generation) == 0 {
        return Err(Exit::NotReady);
    }
    Ok(control)
}

/// Whether any protected service may listen on a port. Costs next to nothing for all the others.
#[inline(always)]
fn is_ours(transport: u8, port: u16) -> bool {
    let Some(filter) = maps::PORTS.get_ptr(0) else { return false };
    let (word, bit) = PortFilter::place(port);
    let ports = if transport == UDP { peek!((*filter).udp[word]) } else { peek!((*filter).tcp[word]) };
    ports & bit != 0
}

/// Whether this source's refusals are only counted.
#[inline(never)]
fn is_shadowed(flags: u32, enforce: u32, source: [u64; 2]) -> bool {
    flags & view_flags::SHADOW != 0
        || !Fraction::from_steps(enforce).covers(draw::of_source(&frame::bytes(source)))
}

/// A fragment of a datagram or a segment: it is dropped for the addresses that do not take fragments.
#[inline(never)]
fn fragment(v6: bool, destination: [u64; 2], source: [u64; 2]) -> Exit {
    let control = match control() {
        Ok(control) => control,
        Err(exit) => return exit,
    };
    let bank = bank_of(peek!((*control).generation));
    let dropped = if v6 {
        find_v6(peek!((*control).views[bank].fragments_v6), destination)
    } else {
        let [.., a, b, c, d] = frame::bytes(destination);
        find(peek!((*control).views[bank].fragments_v4), &[a, b, c, d], maps::entry)
    };
    if dropped == 0 {
        return Exit::Fragment;
    }
    let flags = peek!((*control).views[bank].flags);
    let enforce = peek!((*control).views[bank].enforce);
    if is_shadowed(flags, enforce, source) { Exit::Shadowed } else { Exit::FragmentDropped }
}
