//! The maps of ABI version 4, as far as a later gate reads them.
//!
//! The shapes are copies of what that version had, so that nothing here changes with [`gate_common::abi`].

#![allow(unsafe_code, reason = "says which of its shapes are words")]

use std::mem::offset_of;
use std::path::Path;
use std::sync::atomic::AtomicU64;

use gate_common::abi::{self, Event, Exit, Name, Reason};

use super::arrays::{array, data_of_pin, require_pins};
use super::carry_over::{Bucket, CarryOver};
use super::error::{Error, Result};
use super::mapped::{Mapped, words};
use super::owner::ControlHead;

/// The version.
pub(super) const VERSION: u32 = 4;

/// The maps that hold what a tenant takes along.
#[derive(Debug)]
pub(super) struct Maps {
    control: Mapped<Control>,
    tenants: Mapped<Tenant>,
    /// Index `cpu * tenants + tenant`.
    counters: Mapped<TenantCounters>,
    cpus: Mapped<Cpu>,
}

impl Maps {
    /// Maps those pinned in `directory`, which are of this version.
    ///
    /// # Errors
    ///
    /// [`Error::NotWhole`], [`Error::Shape`].
    pub(super) fn pinned(directory: &Path) -> Result<Self> {
        require_pins(directory, &PINS)?;
        let data = |name: &str| data_of_pin(directory, name);
        let this = Self {
            control: array(CONTROL, true, data)?,
            tenants: array(TENANTS, true, data)?,
            counters: array(COUNTERS, true, data)?,
            cpus: array(CPUS, true, data)?,
        };
        let not_whole = |map| Err(Error::NotWhole { directory: directory.to_owned(), map });
        match this.control.load(0) {
            control if control.tenants as usize != this.tenants.len() => not_whole(TENANTS),
            _ if this.counters.len() != this.cpus.len() * this.tenants.len() => not_whole(COUNTERS),
            _ => Ok(this),
        }
    }
}

impl ControlHead for Maps {
    fn head(&self, offset: usize) -> &AtomicU64 {
        self.control.word(0, offset)
    }
}

impl CarryOver for Maps {
    fn pins(&self) -> &'static [&'static str] {
        &PINS
    }

    fn tenants(&self) -> usize {
        self.tenants.len()
    }

    fn name(&self, tenant: usize) -> Name {
        self.tenants.load_at(tenant, offset_of!(Tenant, name))
    }

    fn bucket(&self, tenant: usize, bucket: Bucket) -> &AtomicU64 {
        let offset = match bucket {
            Bucket::Quota => offset_of!(Tenant, quota_tat),
            Bucket::Tcp => offset_of!(Tenant, tcp_tat),
            Bucket::Reply => offset_of!(Tenant, reply_tat),
            Bucket::Candidate => offset_of!(Tenant, candidate_tat),
        };
        self.tenants.word(tenant, offset)
    }

    fn tenant_counters(&self, tenant: usize) -> abi::TenantCounters {
        let mut sum = abi::TenantCounters::default();
        for row in 0..self.cpus.len() {
            sum.add(&self.counters.load(row * self.tenants.len() + tenant).into());
        }
        sum
    }

    fn cpu_counters(&self) -> abi::Cpu {
        let mut sum = abi::Cpu::EMPTY;
        for row in 0..self.cpus.len() {
            sum.add(&self.cpus.load(row).into());
        }
        sum
    }
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Control {
    abi_version: u32,
    cpus: u32,
    tenants: u32,
    owner_pid: u32,
    head: [u64; 14],
    views: [[u64; 8]; 2],
}

const _: () = assert!(size_of::<Control>() == 256);

#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Tenant {
    quota_tat: u64,
    tcp_tat: u64,
    reply_tat: u64,
    candidate_tat: u64,
    reserved: [u64; 4],
    banks: [[u64; 24]; 2],
    name: Name,
    reserved_end: [u64; 2],
}

const _: () = assert!(size_of::<Tenant>() == 512 && size_of::<Name>() == 48);

#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct TenantCounters {
    passed: u64,
    charged_mru: u64,
    refused_mru: u64,
    replied: u64,
    candidate_refused: u64,
    bare: u64,
    passed_bytes: u64,
    asked_mru: u64,
    refused: [u64; REASONS.len()],
    shadowed: [u64; REASONS.len()],
}

const _: () = assert!(size_of::<TenantCounters>() == 320);

impl From<TenantCounters> for abi::TenantCounters {
    fn from(old: TenantCounters) -> Self {
        let mut this = Self {
            passed: old.passed,
            charged_mru: old.charged_mru,
            refused_mru: old.refused_mru,
            replied: old.replied,
            candidate_refused: old.candidate_refused,
            bare: old.bare,
            passed_bytes: old.passed_bytes,
            asked_mru: old.asked_mru,
            ..Self::default()
        };
        for (number, reason) in REASONS.into_iter().enumerate() {
            this.refused[reason.index()] = old.refused[number];
            this.shadowed[reason.index()] = old.shadowed[number];
        }
        this
    }
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Cpu {
    exits: [u64; 32],
    events: [u64; 14],
    draw: u64,
    until_sample: u64,
}

const _: () = assert!(size_of::<Cpu>() == 384);

impl From<Cpu> for abi::Cpu {
    fn from(old: Cpu) -> Self {
        let mut this = Self::EMPTY;
        for (count, exit) in old.exits.into_iter().zip(EXITS) {
            this.exits[exit.index()] = count;
        }
        for (count, event) in old.events.into_iter().zip(EVENTS) {
            this.events[event.index()] = count;
        }
        this
    }
}

words!(Control, Tenant, TenantCounters, Cpu);

const CONTROL: &str = "CONTROL";
const TENANTS: &str = "TENANTS";
const COUNTERS: &str = "COUNTERS";
const CPUS: &str = "CPUS";
/// Its pins.
pub(super) const PINS: [&str; 9] =
    [CONTROL, "PORTS", "TABLES", "SERVICES", TENANTS, COUNTERS, CPUS, "SAMPLES", "TOP_KEYS"];

/// The reasons by their numbers.
const REASONS: [Reason; 16] = [
    Reason::Quota,
    Reason::RejectedUntil,
    Reason::RejectionRate,
    Reason::Penalty,
    Reason::Limit,
    Reason::Slo,
    Reason::QueueDelay,
    Reason::QueueFull,
    Reason::Deadline,
    Reason::HotKey,
    Reason::StoreDown,
    Reason::UnknownSource,
    Reason::TooLarge,
    Reason::Unsupported,
    Reason::Fragment,
    Reason::Malformed,
];

/// The exits by their numbers.
const EXITS: [Exit; 17] = [
    Exit::NotIp,
    Exit::NotTransport,
    Exit::NotOurs,
    Exit::NotReady,
    Exit::Fragment,
    Exit::BadHeader,
    Exit::Malformed,
    Exit::UnknownSource,
    Exit::UnknownPassed,
    Exit::Passed,
    Exit::Shadowed,
    Exit::Bare,
    Exit::RefusedDropped,
    Exit::RefusedReplied,
    Exit::StalePassed,
    Exit::Missing,
    Exit::FragmentDropped,
];

/// The events by their numbers.
const EVENTS: [Event; 9] = [
    Event::Sampled,
    Event::SampleLost,
    Event::Contended,
    Event::Retried,
    Event::Torn,
    Event::ReplyBudget,
    Event::NoRoom,
    Event::UpperBound,
    Event::Stale,
];
