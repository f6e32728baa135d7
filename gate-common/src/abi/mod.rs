//! The layout of every eBPF map: what XDP and the daemon say to each other.
//!
//! All maps but the ring buffer are arrays that the daemon maps into its memory. Integers only,
//! padding spelled out, sizes asserted beside each type. Any change to a size, a meaning or a map
//! raises [`ABI_VERSION`]. A gate takes over maps of its own version alone; from the first release on it has to
//! read those of the release before, too.
//!
//! | map | element | index | written by |
//! |---|---|---|---|
//! | [`maps::CONTROL`] | [`Control`] | 0 | daemon |
//! | [`maps::PORTS`] | [`Ports`] | 0 | daemon |
//! | [`maps::TABLES`] | [`Block`]; the first holds [`KeyBuckets`] | block number | daemon; buckets: XDP |
//! | [`maps::SERVICES`] | [`Service`] | service slot | daemon |
//! | [`maps::TENANT_LINES`] | [`TenantLine`] | tenant id | bucket: both; rest: daemon |
//! | [`maps::TENANTS`] | [`Tenant`] | tenant id | words: both; banks: daemon |
//! | [`maps::COUNTERS`] | [`CounterLine`] | `row * tenants + tenant` | both |
//! | [`maps::RARE_COUNTERS`] | [`RareCounters`] | `row * tenants + tenant` | both |
//! | [`maps::TOUCHED`] | `u64`, a bit for each tenant | `row * touched_words + tenant / 64` | both |
//! | [`maps::CPUS`] | [`Cpu`] | CPU; one more for what older maps counted | XDP; rows: daemon |
//! | [`maps::SAMPLES`] | [`Sample`], [`SampleHead`], [`Measured`] | ring buffer | XDP, egress |
//! | [`maps::PENDING`] | [`Pending`] | [`Pending::slot`] | XDP, egress |
//! | [`maps::TOP_KEYS`] | [`TopKey`] | rank | daemon |
//!
//! **Generations.** What a tick decides is written to the idle bank of a [`Tenant`], a [`Service`]
//! or the [`Control`] element, then [`Control::generation`] is raised by one; its lowest bit names
//! the bank in force. XDP copies what it needs and reads the generation again: no packet is judged
//! by half a plan. Tables are never changed in place: a new configuration writes free blocks and
//! publishes their roots in a [`View`].

mod control;
mod counters;
pub mod draw;
mod exit;
mod hot;
mod intercept;
mod name;
mod pending;
mod reason;
mod sample;
mod service;
mod table;
mod tenant;
mod trace;

pub use control::{AttachMode, Clock, Control, View, view_flags};
pub use counters::{CounterLine, Cpu, EXITS, RareCounters, TenantCounters, touched_words};
pub use exit::{Event, Exit};
pub use hot::{KeyBuckets, TopKey};
pub use intercept::{
    INTERCEPT_PROGRAM, INTERCEPT_VERSION, InterceptCounts, InterceptKey, InterceptState, Intercepted,
    OWN_SOURCE, intercept_flags, intercept_maps,
};
pub use name::Name;
pub use pending::{Measured, MeasuredShare, Pending};
pub use reason::{OtherBucket, Reason};
pub use sample::{Sample, SampleHead, sample_flags};
pub use service::{
    LOCAL_ADDRESS, PROTECTED_ADDRESS, Protocol, QueryClass, Service, ServiceState, Shed, service_flags,
};
pub use table::{Block, Entry, Ports, find, find_v4};
pub use tenant::{TcpAction, Tenant, TenantLine, TenantState, tenant_flags};
pub use trace::{Step, TraceRecord, TracedBucket, TracedCharge, TracedReply, Tracing, trace_maps};

/// Raised with every change to a size, a meaning or a map.
pub const ABI_VERSION: u32 = 7;

/// The name of the XDP program.
pub const PROGRAM: &str = "gate";
/// The name of the program that reads the kernel's clocks for the daemon, by test run.
pub const CLOCK_PROGRAM: &str = "gate_clock";
/// The name of the program that a veth's peer needs, so that replies arrive: it passes everything.
pub const PASS_PROGRAM: &str = "gate_pass";

/// The name of the program behind the XDP program that marks what that has charged.
pub const MARK_PROGRAM: &str = "gate_mark";
/// The name of the program at egress that measures answers.
pub const MEASURE_PROGRAM: &str = "gate_measure";
/// The name of the constant that holds the key of [`Pending::hash`].
pub const PENDING_KEYS: &str = "PENDING_KEYS";
/// The word that the XDP program writes before a packet that it has charged, for [`MARK_PROGRAM`] to read. No client can
/// write it: it is no part of the packet.
pub const CHARGED: u64 = 0x6368_6172_6765_6421;

/// The name of the program's constant that says where a handshake's own number lies in the kernel's request.
pub const SNT_ISN: &str = "SNT_ISN";

/// The name of the program's constant that says how often a compare-and-swap is tried.
pub const ATTEMPTS: &str = "ATTEMPTS";

/// The names of the maps, which are also the names of their pins.
pub mod maps {
    /// One [`super::Control`].
    pub const CONTROL: &str = "CONTROL";
    /// One [`super::Ports`].
    pub const PORTS: &str = "PORTS";
    /// [`super::Block`]s of the port and source tables.
    pub const TABLES: &str = "TABLES";
    /// [`super::Service`]s.
    pub const SERVICES: &str = "SERVICES";
    /// [`super::TenantLine`]s.
    pub const TENANT_LINES: &str = "TENANT_LINES";
    /// [`super::Tenant`]s.
    pub const TENANTS: &str = "TENANTS";
    /// [`super::CounterLine`]s by row and tenant.
    pub const COUNTERS: &str = "COUNTERS";
    /// [`super::RareCounters`] by row and tenant.
    pub const RARE_COUNTERS: &str = "RARE_COUNTERS";
    /// Which lines of [`COUNTERS`] were counted in since the last tick, a bit each.
    pub const TOUCHED: &str = "TOUCHED";
    /// [`super::Cpu`]s.
    pub const CPUS: &str = "CPUS";
    /// [`super::Sample`]s of what passed, [`super::SampleHead`]s of what was refused and [`super::Measured`] answers, a ring
    /// buffer.
    pub const SAMPLES: &str = "SAMPLES";
    /// [`super::Pending`] requests.
    pub const PENDING: &str = "PENDING";
    /// [`super::TopKey`]s.
    pub const TOP_KEYS: &str = "TOP_KEYS";
    /// The reading of [`super::CLOCK_PROGRAM`]: jiffies, then `ktime_get_ns`, two `u64`.
    pub const CLOCK: &str = "CLOCK_READING";
    /// Every pinned map.
    pub const ALL: [&str; 13] = [
        CONTROL,
        PORTS,
        TABLES,
        SERVICES,
        TENANT_LINES,
        TENANTS,
        COUNTERS,
        RARE_COUNTERS,
        TOUCHED,
        CPUS,
        SAMPLES,
        PENDING,
        TOP_KEYS,
    ];
}

/// The bank that a generation puts in force.
#[must_use]
#[inline(always)]
pub const fn bank_of(generation: u64) -> usize {
    (generation & 1) as usize
}
