//! All that the program knows while it handles one packet: the packet, its plan, its price.

use aya_ebpf::bindings::xdp_md;
use aya_ebpf::helpers::generated::bpf_jiffies64;
use gate_common::abi::{
    ABI_VERSION, Control, Event, Exit, Protocol, Shed, TenantLine, service_flags, view_flags,
};
use gate_common::units::{MilliRu, Multiplier};

use crate::buckets::{Buckets, Charge};
use crate::connection::Lookup;
use crate::counters::{self, Counters};
use crate::key_buckets::KeyScratch;
use crate::maps::{self, compiler_barrier, read_once, write_once};
use crate::parse::buffers::HeaderCopy;
use crate::parse::extensions::Walk;
use crate::parse::frame::{Frame, UDP};
use crate::parse::memcached::{self, Commands};
use crate::parse::scan::CommandScan;
use crate::parse::tags::TagWalk;
use crate::parse::transport::{Extent, Payload};
use crate::plan::{Plan, PlanReader, SpecialState, price_of_bytes};

/// A packet for a protected service, with its plan.
pub(crate) struct PacketContext {
    pub(crate) ctx: *mut xdp_md,
    pub(crate) control: *mut Control,
    pub(crate) scratch: *mut Scratch,
    pub(crate) plan: Plan,
    pub(crate) line: *mut TenantLine,
    pub(crate) counters: Counters,
    pub(crate) now_ns: u64,
    /// True if the heartbeat is stale: pushed refusals are ignored.
    pub(crate) stale: bool,
    /// The price, in thousandths of a request unit.
    pub(crate) price_mru: u32,
}

impl PacketContext {
    /// Copies the plan and prices the packet.
    ///
    /// # Errors
    ///
    /// The exit of a packet that no bucket is charged for.
    #[inline(always)]
    pub(crate) fn new(
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
        trace!(Service, read_once!((*at).service_slot), read_once!((*control).generation));
        trace!(Tenant, plan.tenant_id);
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
        trace!(
            Price,
            read_once!((*at).commands),
            if plan.tenant_id == 0 { 0 } else { read_once!((*at).price_mru) },
            price_mru,
            stale
        );
        // Looked up before any compare-and-swap: later instructions wait for it.
        let counters = Counters::new(plan.tenant_id);
        Ok(Self { ctx, control, scratch: at, plan, line, counters, now_ns, stale, price_mru })
    }

    /// The buckets that the packet is charged to.
    #[inline(always)]
    pub(crate) fn buckets(&self) -> Buckets {
        // SAFETY: this CPU's own scratch.
        let (lacking, charges) =
            unsafe { (&raw mut (*self.scratch).lacking, &raw mut (*self.scratch).charges) };
        Buckets {
            control: self.control,
            tenant: self.plan.tenant_id,
            line: self.line,
            now_ns: self.now_ns,
            lacking,
            charges,
        }
    }

    /// The scratch of this CPU.
    #[inline(always)]
    pub(crate) fn scratch(&self) -> &Scratch {
        // SAFETY: this CPU's own scratch; nothing else refers to it while a packet is processed.
        unsafe { &*self.scratch }
    }
}

/// State of the packet in process that does not fit registers and stack, or that several functions read.
pub(crate) struct Scratch {
    /// The headers.
    pub(crate) frame: Frame,
    /// The payload.
    pub(crate) payload: Payload,
    /// The payload's commands.
    pub(crate) commands: Commands,
    /// The exit of a packet without a plan. It lies in memory: a register would be undefined where the loop of the plan's
    /// reader begins, and the verifier refuses to spill an undefined register.
    pub(crate) exit: Exit,
    /// The slot of the packet's service, in memory for the same reason.
    pub(crate) service_slot: u32,
    /// The price, in thousandths of a request unit, before any multiplier. Not set for unknown sources.
    pub(crate) price_mru: u32,
    /// [`gate_common::abi::Service::id`], for a sample. The next two are for samples as well.
    pub(crate) service_id: u32,
    /// The tenant that is charged.
    pub(crate) tenant_id: u32,
    /// One in this many requests is sampled.
    pub(crate) sample_every: u32,
    /// The tenant's state beside its line.
    pub(crate) special: SpecialState,
    /// The key that may have a bucket.
    pub(crate) key: KeyScratch,
    /// The bucket beside the tenant's own that lacked the price, see [`Buckets::lacking`].
    pub(crate) lacking: u32,
    /// The charges to the tenant's buckets.
    pub(crate) charges: [Charge; 3],
    /// The commands of memcached over UDP.
    pub(crate) scan: CommandScan,
    /// The arguments of a connection's look-up.
    pub(crate) lookup: Lookup,
    /// The walk along IPv6's extension headers.
    pub(crate) walk: Walk,
    /// The walk along VLAN tags.
    pub(crate) tags: TagWalk,
    /// A copy of a header that lies outside the linear part of the frame.
    pub(crate) header_copy: HeaderCopy,
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
pub(crate) fn cpu_scratch() -> Result<*mut Scratch, Exit> {
    maps::SCRATCH.get_ptr_mut(0).ok_or(Exit::Missing)
}
