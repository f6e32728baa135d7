//! From a packet to its exit.

use aya_ebpf::bindings::xdp_md;
use aya_ebpf::helpers::generated::bpf_jiffies64;
use gate_common::abi::{
    ABI_VERSION, Control, Event, Exit, Protocol, Reason, ServiceState, Shed, TcpAction, Tenant, draw,
    service_flags, tenant_flags, view_flags,
};
use gate_common::units::{Fraction, MilliRu, Multiplier};

use crate::admit::{Ask, Purse};
use crate::count::{self, Tally};
use crate::maps::{self, forget, peek, poke};
use crate::parse::buffers::{Buffers, HeaderCopy};
use crate::parse::extensions::Walk;
use crate::parse::frame::{self, Frame, Glance, Kind, UDP};
use crate::parse::scan::Scan;
use crate::parse::tags::TagWalk;
use crate::parse::transport::{Extent, Load};
use crate::parse::{Packet, Reader, first_line, memcached};
use crate::plan::{Plan, Source};
use crate::{admit, fragments, reply, sample};

/// Judges a packet: how it leaves. A reply is already written when this says so.
#[inline(always)]
pub(crate) fn judge(ctx: *mut xdp_md) -> Exit {
    match try_judge(ctx) {
        Ok(exit) | Err(exit) => exit,
    }
}

#[inline(always)]
fn try_judge(ctx: *mut xdp_md) -> Result<Exit, Exit> {
    let (entry, control, case) = match parse(ctx, &Packet::of(ctx)) {
        // Perhaps only the frame's linear part does not hold them.
        Err(Exit::BadHeader) => {
            parse_buffers(ctx)?;
            let (control, case) = (control()?, scratch()?);
            let (transport, port) = (peek!((*case).frame.transport), peek!((*case).frame.port));
            (ports_entry(transport, port).ok_or(Exit::NotOurs)?, control, case)
        }
        parsed => parsed?,
    };
    let court = Court::open(ctx, control, case, entry)?;
    if court.case().frame.transport == UDP { court.datagram() } else { court.segment() }
}

/// Reads the headers to scratch: what a packet for a protected port is judged by. [`Exit::BadHeader`] stands for whatever
/// the reader does not find.
///
/// # Errors
///
/// How any other packet leaves.
#[inline(always)]
fn parse<R: Reader>(ctx: *mut xdp_md, packet: &R) -> Result<(*const u32, *mut Control, *mut Case), Exit> {
    let glance = Glance::at(ctx, packet)?;
    if glance.kind != Kind::Whole {
        let case = scratch()?;
        // SAFETY: this CPU's own scratch; so below.
        glance.file(ctx, packet, unsafe { &raw mut (*case).frame })?;
        fragments::check(case, glance.kind)?;
    }
    let ports = packet.bytes::<4>(glance.transport_at).ok_or(Exit::BadHeader)?;
    let port = ports.get::<u16, 2>();
    let Some(entry) = ports_entry(glance.transport, port) else { return Err(Exit::NotOurs) };
    if peek!(*entry) == 0 {
        return Err(Exit::NotOurs);
    }
    let (control, case) = (control()?, scratch()?);
    // SAFETY: as above.
    let (frame, load) = unsafe { (&raw mut (*case).frame, &raw mut (*case).load) };
    let end = glance.file(ctx, packet, frame)?;
    if glance.transport_at > end {
        return Err(Exit::BadHeader);
    }
    let read = Load::file(packet, &glance, end, load);
    if R::WHOLE_FRAME {
        poke!((*frame).port, port);
    } else if read.is_none() && end > Packet::of(ctx).len() {
        return Err(Exit::BadHeader);
    }
    Ok((entry, control, case))
}

/// Reads the headers to scratch, from wherever in the frame they lie.
///
/// # Errors
///
/// As [`parse`].
#[inline(never)]
fn parse_buffers(ctx: *mut xdp_md) -> Result<(), Exit> {
    match parse(ctx, &Buffers(ctx)) {
        Ok(_) => Ok(()),
        Err(Exit::TooManyHeaders) => Err(fragments::too_many_tags(ctx)),
        Err(exit) => Err(exit),
    }
}

/// What is known of a packet and does not fit registers and stack, or is read by functions of their own.
pub(crate) struct Case {
    /// Its headers.
    pub(crate) frame: Frame,
    /// What it carries.
    pub(crate) load: Load,
    /// Whether its commands are in `scan`.
    scanned: bool,
    /// How it leaves if there is no plan for it.
    exit: Exit,
    /// [`gate_common::abi::Service::id`], for a sample; so below.
    pub(crate) service_id: u32,
    /// Who is charged.
    pub(crate) tenant_id: u32,
    /// One in this many requests is sampled.
    pub(crate) sample_every: u32,
    /// What its buckets are asked.
    pub(crate) asks: [Ask; 3],
    /// The commands of memcached over UDP.
    pub(crate) scan: Scan,
    /// The way along IPv6's extension headers.
    pub(crate) walk: Walk,
    /// The way along VLAN tags.
    pub(crate) tags: TagWalk,
    /// A header that lies outside the linear part of the frame.
    pub(crate) header_copy: HeaderCopy,
}

/// Where a case is heard, and by what.
struct Court {
    ctx: *mut xdp_md,
    control: *mut Control,
    case: *mut Case,
    plan: Plan,
    tenant: *mut Tenant,
    tally: Tally,
    now_ns: u64,
    /// Whether the heartbeat is stale, and what was pushed does not count.
    stale: bool,
    /// What it costs, in thousandths of a request unit.
    price_mru: u32,
}

impl Court {
    /// Copies all that is needed. Fails with the exit of a packet that there is nothing to judge about.
    #[inline(always)]
    fn open(ctx: *mut xdp_md, control: *mut Control, at: *mut Case, entry: *const u32) -> Result<Self, Exit> {
        // SAFETY: this CPU's own scratch; nobody else refers to it while a packet is judged.
        let Case { frame, load, scanned, scan, exit, .. } = unsafe { &mut *at };
        *scanned = false;
        forget();
        let source = Source { control, frame, entry, exit };
        let (plan, tenant) = source.copy(|protocol, prices| {
            if frame.transport != UDP {
                return price_of_bytes(prices, load.max_len());
            }
            if protocol != Protocol::Memcached as u8 || load.is_malformed() {
                return price_of_bytes(prices, load.len);
            }
            // Once, however often the plan has to be copied.
            if !*scanned {
                *scanned = true;
                if memcached::read(ctx, frame, load, scan).is_err() {
                    load.extent = Extent::Malformed;
                }
            }
            scan.price(prices, load.len)
        })?;
        forget();
        // SAFETY: the helper reads a clock.
        let now_ns = peek!((*control).clock).at_jiffies(unsafe { bpf_jiffies64() }).0;
        let age = now_ns.saturating_sub(peek!((*control).heartbeat_ns));
        let stale = age > plan.stale_after_ns;
        // What was not read has no price.
        let mut price_mru = if load.is_malformed() { 0 } else { plan.price_mru };
        if stale {
            count::event(Event::Stale);
            if plan.view_flags() & view_flags::STALE_PASS != 0 {
                return Err(Exit::StalePassed);
            }
        } else if !plan.is_plain() {
            let price = MilliRu(price_mru).scaled(Multiplier(plan.multiplier()));
            price_mru = Shed::price(plan.rung(), price.0);
        }
        // Before any compare-and-swap: what follows one has to wait for it.
        let tally = Tally::of(plan.tenant_id, peek!((*control).tenants));
        Ok(Self { ctx, control, case: at, plan, tenant, tally, now_ns, stale, price_mru })
    }

    /// A UDP datagram is a request, or several.
    #[inline(always)]
    fn datagram(&self) -> Result<Exit, Exit> {
        if self.plan.tenant_id == 0 {
            return Ok(self.refuse(Reason::UnknownSource, Exit::UnknownSource));
        }
        if self.case().load.is_malformed() {
            return Ok(self.refuse(Reason::Malformed, Exit::Malformed));
        }
        if self.case().load.is_first_fragment() && self.plan.service_flags() & service_flags::PROXIED != 0 {
            // The daemon charges for datagrams that were fragmented.
            return Ok(Exit::Fragment);
        }
        let charged = self.charge();
        let exit = self.pass_or_refuse(charged);
        if !self.case().scanned {
            return Ok(exit);
        }
        if self.case().scan.unread() != 0 {
            count::event(Event::UpperBound);
        }
        self.sample(charged.is_err());
        let case = self.case();
        if exit != Exit::RefusedDropped || !case.scan.answerable {
            return Ok(exit);
        }
        Ok(self.answer(reply::throttled_len(&case.frame), || {
            reply::throttled(self.ctx, &case.frame, case.scan.id)
        }))
    }

    /// A TCP segment is no request; those that carry something are charged all the same.
    #[inline(always)]
    fn segment(&self) -> Result<Exit, Exit> {
        let (plan, load) = (&self.plan, &self.case().load);
        if self.case().load.is_malformed() {
            return Ok(self.refuse(Reason::Malformed, Exit::Malformed));
        }
        if plan.tenant_id == 0 {
            if load.opens() && plan.service_flags() & service_flags::DROP_UNKNOWN_SYN != 0 {
                return Ok(self.refuse(Reason::UnknownSource, Exit::UnknownSource));
            }
            return Ok(Exit::UnknownPassed);
        }
        if plan.tcp_action() != TcpAction::None as u8 && !self.stale {
            if load.opens() {
                return Ok(self.refuse_syn());
            }
            if load.carries_data() && plan.tcp_action() == TcpAction::DropData as u8 {
                return Ok(self.refuse(Reason::RejectedUntil, Exit::RefusedDropped));
            }
        }
        if !load.carries_data() {
            self.tally.bare(self.case().frame.len());
            return Ok(Exit::Bare);
        }
        if plan.service_flags() & service_flags::PROXIED != 0 {
            return Ok(self.second_line());
        }
        let charged = self.charge();
        self.sample_segment(charged.is_err());
        Ok(self.pass_or_refuse(charged))
    }

    #[inline(always)]
    fn refuse_syn(&self) -> Exit {
        let exit = self.refuse(Reason::RejectedUntil, Exit::RefusedDropped);
        if exit != Exit::RefusedDropped || self.plan.tcp_action() != TcpAction::ResetSyn as u8 {
            return exit;
        }
        let Case { frame, load, .. } = self.case();
        self.answer(reply::reset_len(frame), || reply::reset(self.ctx, frame, load))
    }

    /// Of a proxied service's segments only the bytes count: the daemon charges for what they say.
    #[inline(always)]
    fn second_line(&self) -> Exit {
        let fits = self.purse().takes_coarsely(self.case().load.len);
        self.settle(if fits { Ok(()) } else { Err(Reason::Limit) }, 0)
    }

    #[inline(always)]
    fn charge(&self) -> Result<(), Reason> {
        if !self.stale {
            admit::pushed(&self.plan, self.now_ns)?;
        }
        self.purse().charge(&self.plan, self.price_mru, self.tally)
    }

    #[inline(always)]
    fn purse(&self) -> Purse {
        // SAFETY: this CPU's own scratch.
        let asks = unsafe { &raw mut (*self.case).asks };
        Purse { control: self.control, tenant: self.tenant, now_ns: self.now_ns, asks }
    }

    #[inline(always)]
    fn case(&self) -> &Case {
        // SAFETY: as in `open`.
        unsafe { &*self.case }
    }

    #[inline(always)]
    fn pass_or_refuse(&self, charged: Result<(), Reason>) -> Exit {
        self.settle(charged, self.price_mru)
    }

    #[inline(always)]
    fn settle(&self, charged: Result<(), Reason>, price_mru: u32) -> Exit {
        match charged {
            Ok(()) => {
                self.tally.passed(price_mru, self.case().frame.len());
                Exit::Passed
            }
            Err(reason) => self.refuse_priced(reason, price_mru, Exit::RefusedDropped),
        }
    }

    /// Refuses, unless that is shadowed; then it passes.
    #[inline(always)]
    fn refuse(&self, reason: Reason, exit: Exit) -> Exit {
        self.refuse_priced(reason, self.price_mru, exit)
    }

    #[inline(always)]
    fn refuse_priced(&self, reason: Reason, price_mru: u32, exit: Exit) -> Exit {
        if is_shadowed(self.plan.view_flags(), self.plan.enforce(), self.case().frame.source) {
            self.tally.shadowed(reason, self.case().frame.len());
            return Exit::Shadowed;
        }
        self.tally.refused(reason, price_mru);
        exit
    }

    /// Writes an answer of `len` bytes, if this tenant may be answered, and so much.
    #[inline(always)]
    fn answer(&self, len: u32, write: impl FnOnce() -> bool) -> Exit {
        let may = self.plan.tenant_flags() & tenant_flags::MAY_REPLY != 0;
        if !may || !reply::is_safe(self.ctx, &self.case().frame) {
            return Exit::RefusedDropped;
        }
        if !self.purse().may_reply(len) {
            count::event(Event::ReplyBudget);
            return Exit::RefusedDropped;
        }
        if !write() {
            count::event(Event::NoRoom);
            return Exit::RefusedDropped;
        }
        self.tally.replied();
        Exit::RefusedReplied
    }

    /// Samples a request's first key, if it is due and the daemon does not see it itself.
    #[inline(always)]
    fn sample(&self, refused: bool) {
        let unseen = refused || self.plan.service_flags() & service_flags::PROXIED == 0;
        if self.case().scan.key.at != 0 && unseen && sample::is_due(self.plan.sample_every) {
            self.send_sample(refused);
        }
    }

    /// Samples the first key of a guarded segment, if it is due and there is one.
    #[inline(always)]
    fn sample_segment(&self, refused: bool) {
        let protocol = self.plan.protocol();
        if protocol != Protocol::Opaque as u8 && sample::is_due(self.plan.sample_every) {
            // SAFETY: as in `open`.
            let key = unsafe { &mut (*self.case).scan.key };
            first_line::find(self.ctx, protocol, self.case().load.at, self.case().load.end(), key);
            if self.case().scan.key.at != 0 {
                self.send_sample(refused);
            }
        }
    }

    #[inline(always)]
    fn send_sample(&self, refused: bool) {
        // SAFETY: as in `open`.
        let case = unsafe { &mut *self.case };
        case.service_id = self.plan.service_id();
        case.tenant_id = self.plan.tenant_id;
        case.sample_every = self.plan.sample_every;
        sample::send(self.ctx, case, refused);
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
pub(crate) fn control() -> Result<*mut Control, Exit> {
    let control = maps::CONTROL.get_ptr_mut(0).ok_or(Exit::Missing)?;
    if peek!((*control).abi_version) != ABI_VERSION || peek!((*control).generation) == 0 {
        return Err(Exit::NotReady);
    }
    Ok(control)
}

/// This CPU's own scratch.
#[inline(always)]
fn scratch() -> Result<*mut Case, Exit> {
    maps::SCRATCH.get_ptr_mut(0).ok_or(Exit::Missing)
}

/// The entry of a port, given as it lies in the packet.
#[inline(always)]
fn ports_entry(transport: u8, port: u16) -> Option<*const u32> {
    let ports = maps::PORTS.get_ptr(0)?;
    // SAFETY: parts of the map's element; the place is below 65,536, since it has 16 bits.
    unsafe {
        let table = if transport == UDP { &raw const (*ports).udp } else { &raw const (*ports).tcp };
        Some(table.cast::<u32>().add(port.into()))
    }
}

/// Whether this source's refusals are only counted.
#[inline(always)]
pub(crate) fn is_shadowed(flags: u32, enforce: u32, source: [u64; 2]) -> bool {
    flags & view_flags::SHADOW != 0 || enforce < Fraction::ONE.steps() && is_spared(enforce, source)
}

/// Whether a share of sources does not hold this one.
#[inline(never)]
fn is_spared(share: u32, source: [u64; 2]) -> bool {
    !Fraction::from_steps(share).covers(draw::of_source(&frame::bytes(source)))
}
