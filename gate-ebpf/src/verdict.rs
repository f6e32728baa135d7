//! The steps of a packet, from its headers to its exit.

use aya_ebpf::bindings::xdp_md;
use aya_ebpf::helpers::generated::bpf_jiffies64;
use gate_common::abi::{
    ABI_VERSION, Control, Event, Exit, Protocol, Reason, ServiceState, Shed, TcpAction, TenantLine, bank_of,
    draw, service_flags, tenant_flags, view_flags,
};
use gate_common::units::{Fraction, MilliRu, Multiplier};

use crate::buckets::{Buckets, Charge};
use crate::connection::{self, Connection, Lookup};
use crate::counters::{self, Counters};
use crate::maps::{self, compiler_barrier, read_once, write_once};
use crate::parse::buffers::{Buffers, HeaderCopy};
use crate::parse::extensions::Walk;
use crate::parse::frame::{self, Frame, HeaderPeek, Kind, UDP};
use crate::parse::memcached::Commands;
use crate::parse::scan::CommandScan;
use crate::parse::tags::TagWalk;
use crate::parse::transport::{Extent, Payload};
use crate::parse::{Packet, Reader, first_line, memcached};
use crate::plan::{Plan, PlanReader, SpecialState};
use crate::{buckets, fragments, mark, reply, sample};

/// Processes a packet, and returns its exit. [`Exit::RefusedReplied`]: the packet already holds the reply.
#[inline(always)]
pub(crate) fn process_packet(ctx: *mut xdp_md) -> Exit {
    match try_process_packet(ctx) {
        Ok(exit) | Err(exit) => exit,
    }
}

#[inline(always)]
fn try_process_packet(ctx: *mut xdp_md) -> Result<Exit, Exit> {
    let (entry, control, scratch) = match parse(ctx, &Packet::of(ctx)) {
        // The headers may lie outside the frame's linear part.
        Err(Exit::BadHeader) => {
            parse_buffers(ctx)?;
            let (control, scratch) = (control()?, cpu_scratch()?);
            let (transport, port) =
                (read_once!((*scratch).frame.transport), read_once!((*scratch).frame.port));
            (ports_entry(transport, port).ok_or(Exit::NotOurs)?, control, scratch)
        }
        parsed => parsed?,
    };
    let packet = PacketContext::new(ctx, control, scratch, entry)?;
    if packet.scratch().frame.transport == UDP {
        packet.process_and_mark_datagram()
    } else {
        packet.process_segment()
    }
}

/// Parses the headers of a packet for a protected port into scratch.
///
/// # Errors
///
/// The exit of any other packet; [`Exit::BadHeader`] if the reader does not find a header.
#[inline(always)]
fn parse<R: Reader>(ctx: *mut xdp_md, packet: &R) -> Result<(*const u32, *mut Control, *mut Scratch), Exit> {
    let peek = HeaderPeek::parse(ctx, packet)?;
    if peek.kind != Kind::Whole {
        let scratch = cpu_scratch()?;
        // SAFETY: this CPU's own scratch.
        peek.parse_into(ctx, packet, unsafe { &raw mut (*scratch).frame })?;
        fragments::check(scratch, peek.kind)?;
    }
    let ports = packet.bytes::<4>(peek.transport_at).ok_or(Exit::BadHeader)?;
    let port = ports.get::<u16, 2>();
    let Some(entry) = ports_entry(peek.transport, port) else { return Err(Exit::NotOurs) };
    if read_once!(*entry) == 0 {
        return Err(Exit::NotOurs);
    }
    let (control, scratch) = (control()?, cpu_scratch()?);
    // SAFETY: this CPU's own scratch.
    let (frame, payload) = unsafe { (&raw mut (*scratch).frame, &raw mut (*scratch).payload) };
    let end = peek.parse_into(ctx, packet, frame)?;
    if peek.transport_at > end {
        return Err(Exit::BadHeader);
    }
    let read = Payload::parse_into(packet, &peek, end, payload);
    if R::WHOLE_FRAME {
        write_once!((*frame).port, port);
    } else if read.is_none() && end > Packet::of(ctx).len() {
        return Err(Exit::BadHeader);
    }
    Ok((entry, control, scratch))
}

/// Parses the headers into scratch, from anywhere in the frame.
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

/// State of the packet in process that does not fit registers and stack, or that several functions read.
pub(crate) struct Scratch {
    /// The headers.
    pub(crate) frame: Frame,
    /// The payload.
    pub(crate) payload: Payload,
    /// The payload's commands.
    commands: Commands,
    /// The exit of a packet without a plan. It lies in memory: a register would be undefined where the loop of the plan's
    /// reader begins, and the verifier refuses to spill an undefined register.
    pub(crate) exit: Exit,
    /// The slot of the packet's service, in memory for the same reason.
    pub(crate) service_slot: u32,
    /// The price, in thousandths of a request unit, before any multiplier. Not set for unknown sources.
    price_mru: u32,
    /// [`gate_common::abi::Service::id`], for a sample. The next two are for samples as well.
    pub(crate) service_id: u32,
    /// The tenant that is charged.
    pub(crate) tenant_id: u32,
    /// One in this many requests is sampled.
    pub(crate) sample_every: u32,
    /// What the tenant has beside its line.
    pub(crate) special: SpecialState,
    /// The charges to the tenant's buckets.
    pub(crate) charges: [Charge; 3],
    /// The commands of memcached over UDP.
    pub(crate) scan: CommandScan,
    /// What a look-up of a connection takes.
    pub(crate) lookup: Lookup,
    /// The walk along IPv6's extension headers.
    pub(crate) walk: Walk,
    /// The walk along VLAN tags.
    pub(crate) tags: TagWalk,
    /// A copy of a header that lies outside the linear part of the frame.
    pub(crate) header_copy: HeaderCopy,
}

/// A packet for a protected service, with its plan.
struct PacketContext {
    ctx: *mut xdp_md,
    control: *mut Control,
    scratch: *mut Scratch,
    plan: Plan,
    line: *mut TenantLine,
    counters: Counters,
    now_ns: u64,
    /// True if the heartbeat is stale: pushed refusals are ignored.
    stale: bool,
    /// The price, in thousandths of a request unit.
    price_mru: u32,
}

impl PacketContext {
    /// Copies the plan and prices the packet.
    ///
    /// # Errors
    ///
    /// The exit of a packet that no bucket is charged for.
    #[inline(always)]
    fn new(
        ctx: *mut xdp_md,
        control: *mut Control,
        at: *mut Scratch,
        entry: *const u32,
    ) -> Result<Self, Exit> {
        // SAFETY: this CPU's own scratch; nothing else refers to it while a packet is processed.
        let Scratch { frame, payload, commands, price_mru, scan, .. } = unsafe { &mut *at };
        *commands = Commands::NotParsed;
        compiler_barrier();
        let reader = PlanReader { control, scratch: at, entry };
        let (plan, line) = reader.read(|service, prices| {
            let is_udp = frame.transport == UDP;
            let has_commands = service.protocol() == Protocol::Memcached as u8
                && !payload.is_malformed()
                && (is_udp || service.flags() & service_flags::PRICED_BY_LINES != 0 && payload.len != 0);
            let len = if is_udp { payload.len } else { payload.max_len() };
            let price = if !has_commands {
                price_of_bytes(prices, len)
            } else {
                // Parsed once, however often the plan is copied.
                if *commands == Commands::NotParsed {
                    match memcached::parse(ctx, frame, payload, scan) {
                        Ok(parsed) => *commands = parsed,
                        Err(_) => payload.extent = Extent::Malformed,
                    }
                }
                match *commands {
                    Commands::NotParsed => 0,
                    Commands::SingleGet => memcached::price_of_single_get(prices, payload.len),
                    Commands::Scanned => scan.price(prices, len),
                }
            };
            write_once!(*price_mru, price);
        })?;
        compiler_barrier();
        // SAFETY: the helper reads a clock.
        let now_ns = read_once!((*control).clock).at_jiffies(unsafe { bpf_jiffies64() }).0;
        let heartbeat_ns = read_once!((*control).heartbeat_ns);
        let stale = now_ns > heartbeat_ns && now_ns - heartbeat_ns > plan.stale_after_ns;
        // A malformed payload has no price.
        let mut price_mru =
            if plan.tenant_id == 0 || payload.is_malformed() { 0 } else { read_once!(*price_mru) };
        if stale {
            counters::count_event(Event::Stale);
            if plan.view_flags() & view_flags::STALE_PASS != 0 {
                return Err(Exit::StalePassed);
            }
        } else if !plan.is_ordinary() {
            let price = MilliRu(price_mru).scaled(Multiplier(plan.multiplier()));
            price_mru = Shed::price(plan.rung(), price.0);
        }
        // Looked up before any compare-and-swap: later instructions wait for it.
        let counters = Counters::new(plan.tenant_id);
        Ok(Self { ctx, control, scratch: at, plan, line, counters, now_ns, stale, price_mru })
    }

    /// Processes a UDP datagram, and says of one that passes to a proxied service that it was charged.
    #[inline(always)]
    fn process_and_mark_datagram(&self) -> Result<Exit, Exit> {
        let exit = self.process_datagram()?;
        let proxied = self.plan.service_flags() & service_flags::PROXIED != 0;
        if proxied
            && matches!(exit, Exit::Passed | Exit::Shadowed)
            && read_once!((*self.control).charged_mark) != 0
        {
            mark::charged(self.ctx);
        }
        Ok(exit)
    }

    /// Charges a UDP datagram, which holds one request or several.
    #[inline(always)]
    fn process_datagram(&self) -> Result<Exit, Exit> {
        if self.plan.tenant_id == 0 {
            return Ok(self.refuse(Reason::UnknownSource, Exit::UnknownSource));
        }
        if self.scratch().payload.is_malformed() {
            return Ok(self.refuse(Reason::Malformed, Exit::Malformed));
        }
        if self.scratch().payload.is_first_fragment()
            && self.plan.service_flags() & service_flags::PROXIED != 0
        {
            // The daemon charges for fragmented datagrams.
            return Ok(Exit::Fragment);
        }
        let charged = self.charge();
        let exit = self.exit_for_charge(charged);
        let commands = self.scratch().commands;
        if commands == Commands::NotParsed {
            return Ok(exit);
        }
        if commands == Commands::Scanned && self.scratch().scan.unread() != 0 {
            counters::count_event(Event::UpperBound);
        }
        if exit != Exit::RefusedDropped {
            self.sample(commands);
            return Ok(exit);
        }
        let scratch = self.scratch();
        if commands == Commands::Scanned && !scratch.scan.wants_reply {
            return Ok(exit);
        }
        Ok(self.reply_with(reply::throttled_len(&scratch.frame), || {
            reply::throttled(self.ctx, &scratch.frame, scratch.scan.id)
        }))
    }

    /// Charges a TCP segment that carries data.
    #[inline(always)]
    fn process_segment(&self) -> Result<Exit, Exit> {
        let (plan, payload) = (&self.plan, &self.scratch().payload);
        if self.scratch().payload.is_malformed() {
            return Ok(self.refuse(Reason::Malformed, Exit::Malformed));
        }
        if plan.tenant_id == 0 {
            if !payload.is_connection_attempt() {
                return Ok(Exit::UnknownPassed);
            }
            if plan.service_flags() & service_flags::DROP_UNKNOWN_SYN != 0 {
                return Ok(self.refuse(Reason::UnknownSource, Exit::UnknownSource));
            }
            if !self.buckets().check_unknown_syn_bucket(self.scratch().service_slot) {
                return Ok(self.refuse(Reason::SynRate, Exit::SynRate));
            }
            return Ok(Exit::UnknownPassed);
        }
        if plan.tcp_action() != TcpAction::None as u8 && !self.stale {
            if payload.is_connection_attempt() {
                return Ok(self.refuse_syn());
            }
            if payload.carries_data() && plan.tcp_action() == TcpAction::DropData as u8 {
                return Ok(self.refuse(Reason::RejectedUntil, Exit::RefusedDropped));
            }
        }
        if payload.is_connection_attempt() && !self.buckets().check_syn_bucket() {
            return Ok(self.refuse_priced(Reason::SynRate, 0, Exit::SynRate));
        }
        if !payload.carries_data() {
            self.counters.count_bare(self.scratch().frame.len());
            return Ok(Exit::Bare);
        }
        match connection::find(self.ctx, self.control, self.scratch, self.now_ns, self.is_half_spent()) {
            Connection::Open => {}
            Connection::Closed => {
                self.counters.count_bare(self.scratch().frame.len());
                return Ok(Exit::Bare);
            }
            Connection::Missing => {
                return Ok(self.refuse_priced(Reason::NoConnection, 0, Exit::NoConnection));
            }
        }
        if plan.service_flags() & service_flags::PROXIED != 0 {
            return Ok(self.pass_within_tcp_bucket());
        }
        let charged = self.charge();
        let exit = self.exit_for_charge(charged);
        if exit != Exit::RefusedDropped {
            self.sample_segment();
        }
        Ok(exit)
    }

    /// True if a bucket that the segment would be charged to is half spent, or only connections are charged.
    #[inline(always)]
    fn is_half_spent(&self) -> bool {
        let plan = &self.plan;
        plan.view_flags() & view_flags::CONNECTIONS_ONLY != 0
            || if plan.service_flags() & service_flags::PROXIED != 0 {
                self.buckets().is_tcp_bucket_half_spent()
            } else {
                self.buckets().is_quota_half_spent(plan)
            }
    }

    #[inline(always)]
    fn refuse_syn(&self) -> Exit {
        let exit = self.refuse(Reason::RejectedUntil, Exit::RefusedDropped);
        if exit != Exit::RefusedDropped || self.plan.tcp_action() != TcpAction::ResetSyn as u8 {
            return exit;
        }
        let Scratch { frame, payload, .. } = self.scratch();
        self.reply_with(reply::reset_len(frame), || reply::reset(self.ctx, frame, payload))
    }

    /// Charges a segment of a proxied service to the TCP bucket by its bytes. The daemon charges for the requests in it.
    #[inline(always)]
    fn pass_within_tcp_bucket(&self) -> Exit {
        let fits = self.buckets().check_tcp_bucket(self.scratch().payload.len);
        self.exit_for_priced_charge(if fits { Ok(()) } else { Err(Reason::Limit) }, 0)
    }

    #[inline(always)]
    fn charge(&self) -> Result<(), Reason> {
        if !self.stale {
            buckets::check_pushed(&self.plan, self.now_ns)?;
        }
        self.buckets().charge(&self.plan, self.price_mru, self.counters)
    }

    #[inline(always)]
    fn buckets(&self) -> Buckets {
        // SAFETY: this CPU's own scratch.
        let charges = unsafe { &raw mut (*self.scratch).charges };
        Buckets {
            control: self.control,
            tenant: self.plan.tenant_id,
            line: self.line,
            now_ns: self.now_ns,
            charges,
        }
    }

    #[inline(always)]
    fn scratch(&self) -> &Scratch {
        // SAFETY: as in `new`.
        unsafe { &*self.scratch }
    }

    #[inline(always)]
    fn exit_for_charge(&self, charged: Result<(), Reason>) -> Exit {
        self.exit_for_priced_charge(charged, self.price_mru)
    }

    #[inline(always)]
    fn exit_for_priced_charge(&self, charged: Result<(), Reason>, price_mru: u32) -> Exit {
        match charged {
            Ok(()) => {
                self.counters.count_passed(price_mru, self.scratch().frame.len());
                Exit::Passed
            }
            Err(reason) => self.refuse_priced(reason, price_mru, Exit::RefusedDropped),
        }
    }

    /// Counts a refusal, and returns `exit`, or [`Exit::Shadowed`] if refusals of this source are only counted.
    #[inline(always)]
    fn refuse(&self, reason: Reason, exit: Exit) -> Exit {
        self.refuse_priced(reason, self.price_mru, exit)
    }

    #[inline(always)]
    fn refuse_priced(&self, reason: Reason, price_mru: u32, exit: Exit) -> Exit {
        if is_shadowed(self.plan.view_flags(), self.plan.enforce(), self.scratch().frame.source) {
            self.counters.count_shadowed(reason, self.scratch().frame.len());
            return Exit::Shadowed;
        }
        self.counters.count_refused(reason, price_mru);
        exit
    }

    /// Writes a reply of `len` bytes if the tenant may get one and its budget for replies covers it.
    #[inline(always)]
    fn reply_with(&self, len: u32, write: impl FnOnce() -> bool) -> Exit {
        let may = self.plan.tenant_flags() & tenant_flags::MAY_REPLY != 0;
        if !may || !reply::may_reply_to_source(self.ctx, &self.scratch().frame) {
            return Exit::RefusedDropped;
        }
        if !self.buckets().check_reply_budget(len) {
            counters::count_event(Event::ReplyBudget);
            return Exit::RefusedDropped;
        }
        if !write() {
            counters::count_event(Event::NoRoom);
            return Exit::RefusedDropped;
        }
        self.counters.count_replied();
        Exit::RefusedReplied
    }

    /// Samples a datagram's first key if one is due and the daemon does not see the request itself.
    #[inline(always)]
    fn sample(&self, commands: Commands) {
        let unseen = self.plan.service_flags() & service_flags::PROXIED == 0;
        let has_key = commands == Commands::SingleGet || self.scratch().scan.key.at != 0;
        if !has_key || !unseen {
            return;
        }
        let every = self.sample_every();
        if !sample::is_due(every) {
            return;
        }
        if commands == Commands::SingleGet {
            // SAFETY: as in `new`.
            unsafe { (*self.scratch).scan.key = memcached::key_of_single_get(&self.scratch().payload) };
        }
        self.send_sample(every);
    }

    /// Samples the first key of a guarded segment if one is due and there is a key.
    #[inline(always)]
    fn sample_segment(&self) {
        let protocol = self.plan.protocol();
        if protocol == Protocol::Opaque as u8 {
            return;
        }
        let every = self.sample_every();
        if sample::is_due(every) {
            // SAFETY: as in `new`.
            let key = unsafe { &mut (*self.scratch).scan.key };
            first_line::find_key(
                self.ctx,
                protocol,
                self.scratch().payload.at,
                self.scratch().payload.end(),
                key,
            );
            if self.scratch().scan.key.at != 0 {
                self.send_sample(every);
            }
        }
    }

    /// One in this many requests is sampled. Read apart from the plan: which generation's it is does not matter.
    #[inline(always)]
    fn sample_every(&self) -> u32 {
        let bank = bank_of(read_once!((*self.control).generation));
        read_once!((*self.control).views[bank].sample_every)
    }

    #[inline(always)]
    fn send_sample(&self, every: u32) {
        // SAFETY: as in `new`.
        let scratch = unsafe { &mut *self.scratch };
        scratch.service_id = self.plan.service_id();
        scratch.tenant_id = self.plan.tenant_id;
        scratch.sample_every = every;
        sample::send(self.ctx, scratch);
    }
}

/// The price of bytes whose commands are not parsed.
#[inline(always)]
fn price_of_bytes(prices: *const ServiceState, bytes: u32) -> u32 {
    let prices = ServiceState {
        base_mru: read_once!((*prices).base_mru),
        kib_mru: read_once!((*prices).kib_mru),
        ..ServiceState::default()
    };
    prices.price(1, 0, bytes)
}

/// The element that every packet reads.
///
/// # Errors
///
/// [`Exit::Missing`], or [`Exit::NotReady`] until the daemon has filled it.
#[inline(always)]
pub(crate) fn control() -> Result<*mut Control, Exit> {
    let control = maps::CONTROL.get_ptr_mut(0).ok_or(Exit::Missing)?;
    if read_once!((*control).abi_version) != ABI_VERSION || read_once!((*control).generation) == 0 {
        return Err(Exit::NotReady);
    }
    Ok(control)
}

/// This CPU's own scratch.
#[inline(always)]
fn cpu_scratch() -> Result<*mut Scratch, Exit> {
    maps::SCRATCH.get_ptr_mut(0).ok_or(Exit::Missing)
}

/// The entry of a port in network order.
#[inline(always)]
fn ports_entry(transport: u8, port: u16) -> Option<*const u32> {
    let ports = maps::PORTS.get_ptr(0)?;
    // SAFETY: parts of the map's element; the index has 16 bits and is below 65,536.
    unsafe {
        let table = if transport == UDP { &raw const (*ports).udp } else { &raw const (*ports).tcp };
        Some(table.cast::<u32>().add(port.into()))
    }
}

/// True if this source's refusals are only counted.
#[inline(always)]
pub(crate) fn is_shadowed(flags: u32, enforce: u32, source: [u64; 2]) -> bool {
    flags & view_flags::SHADOW != 0 || enforce < Fraction::ONE.steps() && is_outside_share(enforce, source)
}

/// True if a share of sources does not include this one.
#[inline(never)]
fn is_outside_share(share: u32, source: [u64; 2]) -> bool {
    !Fraction::from_steps(share).covers(draw::of_source(&frame::bytes(source)))
}
