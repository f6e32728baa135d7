//! The steps of a packet, from its headers to its exit.

use aya_ebpf::bindings::xdp_md;
use gate_common::abi::{
    Control, Event, Exit, Reason, TcpAction, TracedReply, service_flags, tenant_flags, view_flags,
};

use crate::connection::{self, Connection};
use crate::context::{PacketContext, Scratch, control, cpu_scratch};
use crate::maps::{self, read_once, write_once};
use crate::parse::buffers::Buffers;
use crate::parse::frame::{HeaderPeek, Kind, UDP};
use crate::parse::memcached::Commands;
use crate::parse::transport::Payload;
use crate::parse::{Packet, Reader};
use crate::sample::Verdict;
use crate::shadow::is_shadowed;
use crate::{buckets, counters, fragments, key_buckets, mark, reply, sample};

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
            trace!(ReadAgain);
            parse_buffers(ctx)?;
            let control = control()?;
            let scratch = cpu_scratch()?;
            let transport = read_once!((*scratch).frame.transport);
            let port = read_once!((*scratch).frame.port);
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
    trace!(Headers, peek.transport, peek.v6, peek.kind, peek.transport_at);
    if peek.kind != Kind::Whole {
        let scratch = cpu_scratch()?;
        // SAFETY: this CPU's own scratch.
        peek.parse_into(ctx, packet, unsafe { &raw mut (*scratch).frame })?;
        fragments::check(scratch, peek.kind)?;
    }
    let ports = packet.bytes::<4>(peek.transport_at).ok_or(Exit::BadHeader)?;
    let port = ports.get::<u16, 2>();
    let Some(entry) = ports_entry(peek.transport, port) else { return Err(Exit::NotOurs) };
    trace!(Port, u16::from_be(port), read_once!(*entry) != 0);
    if read_once!(*entry) == 0 {
        return Err(Exit::NotOurs);
    }
    let control = control()?;
    let scratch = cpu_scratch()?;
    // SAFETY: this CPU's own scratch.
    let (frame, payload) = unsafe { (&raw mut (*scratch).frame, &raw mut (*scratch).payload) };
    let end = peek.parse_into(ctx, packet, frame)?;
    if peek.transport_at > end {
        return Err(Exit::BadHeader);
    }
    let read = Payload::parse_into(packet, &peek, end, payload);
    trace!(
        Payload,
        read_once!((*payload).at),
        read_once!((*payload).len),
        if peek.transport == UDP { 0 } else { read_once!((*payload).flags) },
        read_once!((*payload).extent)
    );
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

impl PacketContext {
    /// Processes a UDP datagram, and says of one that passes to a proxied service that it was charged.
    #[inline(always)]
    fn process_and_mark_datagram(&self) -> Result<Exit, Exit> {
        let exit = self.process_datagram()?;
        let proxied = self.plan.service_flags() & service_flags::PROXIED != 0;
        if proxied
            && matches!(exit, Exit::Passed | Exit::Shadowed)
            && read_once!((*self.control).charged_mark) != 0
        {
            mark::charged(self.ctx, self.control);
            trace!(Mark);
        }
        Ok(exit)
    }

    /// Charges a UDP datagram, which holds one request or several.
    #[inline(always)]
    fn process_datagram(&self) -> Result<Exit, Exit> {
        if self.plan.tenant_id == 0 {
            return Ok(self.refuse(Reason::UnknownSource, Exit::UnknownSource));
        }
        let commands = self.scratch().commands;
        let is_unread = commands == Commands::Scanned && self.scratch().scan.unread() != 0;
        // The daemon reads fragmented datagrams whole, and charges for them.
        let is_read_again = self.scratch().payload.is_first_fragment()
            && self.plan.service_flags() & service_flags::PROXIED != 0;
        if self.scratch().payload.is_malformed() || is_unread && !is_read_again {
            let exit = self.refuse_priced(Reason::Malformed, 0, Exit::Malformed);
            if exit == Exit::Shadowed {
                self.note();
            }
            return Ok(exit);
        }
        if is_read_again {
            return Ok(Exit::Fragment);
        }
        let charged = self.charge_datagram(commands);
        let exit = self.exit_for_charge(charged);
        if commands == Commands::NotParsed {
            return Ok(exit);
        }
        if exit != Exit::RefusedDropped {
            self.note();
            self.sample(commands);
            return Ok(exit);
        }
        let scratch = self.scratch();
        if commands == Commands::Scanned && !scratch.scan.wants_reply {
            return Ok(exit);
        }
        Ok(self.reply_with(reply::throttled_len(&scratch.frame), || {
            reply::throttled(self.ctx, &scratch.frame, scratch.scan.id_and_port as u16)
        }))
    }

    /// Charges a TCP segment that carries data.
    #[inline(always)]
    fn process_segment(&self) -> Result<Exit, Exit> {
        let plan = &self.plan;
        let payload = &self.scratch().payload;
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
            if !self.buckets().check_unknown_syn_bucket(self.scratch().service_slot)
                && !self.is_answered_by_cookie()
            {
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
        if payload.is_connection_attempt()
            && !self.buckets().check_syn_bucket()
            && !self.is_answered_by_cookie()
        {
            return Ok(self.refuse_priced(Reason::SynRate, 0, Exit::SynRate));
        }
        if !payload.carries_data() {
            self.counters.count_bare(self.scratch().frame.len());
            return Ok(Exit::Bare);
        }
        let found = connection::find(self.ctx, self.control, self.scratch, self.now_ns, self.is_half_spent());
        trace!(Connection, found);
        match found {
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
        if self.scratch().commands == Commands::Scanned && self.scratch().scan.unread() != 0 {
            counters::count_event(Event::UpperBound);
        }
        if exit != Exit::RefusedDropped {
            self.sample_segment();
        }
        Ok(exit)
    }

    /// True, and counted, if a SYN beyond its rate passes since the kernel answers it with a cookie where a queue is full: the
    /// SYN's source may be forged, and dropping it would lock out whoever has that address.
    #[inline(always)]
    fn is_answered_by_cookie(&self) -> bool {
        // What the verifier learnt of the flags would keep it from merging paths.
        let flags = maps::opaque_value(self.plan.view_flags().into()) as u32;
        let answered = flags & view_flags::SYN_COOKIES != 0;
        if answered {
            counters::count_event(Event::SynBeyondRate);
        }
        answered
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
            let pushed = buckets::check_pushed(&self.plan, self.now_ns);
            trace!(Pushed, pushed.map_or_else(|reason| reason as u64 + 1, |()| 0));
            pushed?;
        }
        match self.buckets().charge(&self.plan, self.price_mru, self.counters) {
            Err(Reason::TooLarge) if self.is_too_dear_for_now() => Err(Reason::Penalty),
            charged => charged,
        }
    }

    /// True if only multiplier and rung make a price too large for the tenant's own bucket: they pass. The price that a
    /// parent's bucket admits is not asked for.
    #[inline(always)]
    fn is_too_dear_for_now(&self) -> bool {
        let plan = &self.plan;
        let asked = read_once!((*self.scratch).price_mru);
        asked < self.price_mru
            && (plan.tenant_flags() & tenant_flags::UNLIMITED != 0 || plan.quota.ever_admits(asked))
    }

    /// Charges a datagram to the bucket of its first key, if that is hot, and to the tenant: to both or none.
    #[inline(always)]
    fn charge_datagram(&self, commands: Commands) -> Result<(), Reason> {
        let limits_keys = self.plan.service_flags() & service_flags::LIMITS_KEYS != 0;
        if limits_keys
            && !key_buckets::charge(self.ctx, self.scratch, &self.plan, self.now_ns, commands, self.stale)
        {
            return Err(Reason::HotKey);
        }
        let charged = self.charge();
        if limits_keys && charged.is_err() {
            key_buckets::refund(self.scratch);
        }
        charged
    }

    #[inline(always)]
    fn exit_for_charge(&self, charged: Result<(), Reason>) -> Exit {
        self.exit_for_priced_charge(charged, self.price_mru)
    }

    #[inline(always)]
    fn exit_for_priced_charge(&self, charged: Result<(), Reason>, price_mru: u32) -> Exit {
        match charged {
            Ok(()) => {
                let frame = &self.scratch().frame;
                if frame.transport == UDP {
                    self.counters.count_passed(price_mru, frame.len());
                } else {
                    self.counters.count_segment(price_mru, frame.len());
                }
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
        let frame = &self.scratch().frame;
        if is_shadowed(self.plan.view_flags(), self.plan.enforce(), frame.source) {
            self.counters.count_shadowed(reason, frame.transport != UDP, frame.len());
            trace!(Refusal, reason, 1, u32::MAX);
            return Exit::Shadowed;
        }
        self.counters.count_refused(reason, price_mru);
        let mut other_bucket = u32::MAX;
        if matches!(reason, Reason::Quota) && self.plan.parents() != 0 {
            other_bucket = read_once!((*self.scratch).lacking);
            self.counters.count_other_bucket(other_bucket);
        }
        trace!(Refusal, reason, 0, other_bucket);
        let ids = u64::from(self.plan.tenant_id) << 32 | u64::from(self.plan.service_id());
        sample::sample_refusal(self.control, self.scratch(), ids, Verdict::refused(reason, other_bucket));
        exit
    }

    /// Writes a reply of `len` bytes if the tenant may get one and its budget for replies covers it.
    #[inline(always)]
    fn reply_with(&self, len: u32, write: impl FnOnce() -> bool) -> Exit {
        let may = self.plan.tenant_flags() & tenant_flags::MAY_REPLY != 0;
        if !may || !reply::may_reply_to_source(self.ctx, &self.scratch().frame) {
            trace!(Reply, TracedReply::NotAllowed);
            return Exit::RefusedDropped;
        }
        if !self.buckets().check_reply_budget(len) {
            counters::count_event(Event::ReplyBudget);
            trace!(Reply, TracedReply::NoBudget);
            return Exit::RefusedDropped;
        }
        if !write() {
            counters::count_event(Event::NoRoom);
            trace!(Reply, TracedReply::NoRoom);
            return Exit::RefusedDropped;
        }
        self.counters.count_replied();
        trace!(Reply, TracedReply::Written);
        Exit::RefusedReplied
    }
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
