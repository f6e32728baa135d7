//! The maps of ABI version 5, as far as a later gate reads them.
//!
//! The shapes are copies of what that version had, so that nothing here changes with [`gate_common::abi`].

#![allow(unsafe_code, reason = "says which of its shapes are words")]

use std::mem::offset_of;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use gate_common::abi::{self, Name, TopKey};

use super::arrays::{array, data_of_pin, require_pins};
use super::carry_over::{Bucket, CarryOver};
use super::error::{Error, Result};
use super::mapped::{Mapped, words};
use super::owner::ControlHead;

/// The version.
pub(super) const VERSION: u32 = 5;

/// The maps that hold what a tenant takes along.
#[derive(Debug)]
pub(super) struct Maps {
    control: Mapped<Control>,
    tenant_lines: Mapped<TenantLine>,
    tenants: Mapped<Tenant>,
    /// Index `row * tenants + tenant`.
    counters: Mapped<CounterLine>,
    /// Index `row * tenants + tenant`, with fewer rows.
    rare_counters: Mapped<RareCounters>,
    cpus: Mapped<Cpu>,
    top_keys: Mapped<TopKey>,
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
            tenant_lines: array(TENANT_LINES, true, data)?,
            tenants: array(TENANTS, true, data)?,
            counters: array(COUNTERS, true, data)?,
            rare_counters: array(RARE_COUNTERS, true, data)?,
            cpus: array(CPUS, true, data)?,
            top_keys: array(TOP_KEYS, true, data)?,
        };
        let not_whole = |map| Err(Error::NotWhole { directory: directory.to_owned(), map });
        let tenants = this.tenants.len();
        match this.control.load(0) {
            control if control.tenants as usize != tenants => not_whole(TENANTS),
            _ if this.tenant_lines.len() != tenants => not_whole(TENANT_LINES),
            _ if !this.counters.len().is_multiple_of(tenants) => not_whole(COUNTERS),
            _ if !this.rare_counters.len().is_multiple_of(tenants) => not_whole(RARE_COUNTERS),
            _ => Ok(this),
        }
    }

    /// The last of the rows that CPUs count in; those of threads follow.
    fn last_cpu_row(&self) -> usize {
        self.control.word(0, offset_of!(Control, cpu_rows)).load(Ordering::Relaxed) as u32 as usize
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
            Bucket::Quota => return self.tenant_lines.word(tenant, offset_of!(TenantLine, quota_tat)),
            Bucket::Tcp => offset_of!(Tenant, tcp_tat),
            Bucket::Reply => offset_of!(Tenant, reply_tat),
            Bucket::Candidate => offset_of!(Tenant, candidate_tat),
        };
        self.tenants.word(tenant, offset)
    }

    fn syn_bucket(&self, tenant: usize) -> Option<&AtomicU64> {
        Some(self.tenants.word(tenant, offset_of!(Tenant, syn_tat)))
    }

    fn tenant_counters(&self, tenant: usize) -> abi::TenantCounters {
        let tenants = self.tenants.len();
        let mut sum = abi::TenantCounters::default();
        for row in 0..self.counters.len() / tenants {
            let line = self.counters.load(row * tenants + tenant);
            sum.replied += line.replied;
            if row <= self.last_cpu_row() {
                sum.add_line(tenant as u32, &line.into());
            } else {
                sum.add_thread_line(tenant as u32, &line.into());
            }
        }
        for row in 0..self.rare_counters.len() / tenants {
            sum.add(&self.rare_counters.load(row * tenants + tenant).into());
        }
        sum
    }

    fn cpu_counters(&self) -> abi::Cpu {
        let mut sum = abi::Cpu::EMPTY;
        for cpu in 0..self.cpus.len() {
            let Cpu { exits, events, .. } = self.cpus.load(cpu);
            // Their numbers are the same today.
            sum.add(&abi::Cpu { exits, events, ..abi::Cpu::EMPTY });
        }
        sum
    }

    fn top_keys(&self) -> Vec<TopKey> {
        (0..self.top_keys.len()).map(|rank| self.top_keys.load(rank)).collect()
    }
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Control {
    abi_version: u32,
    cpus: u32,
    tenants: u32,
    owner_pid: u32,
    head: [u64; 10],
    cpu_rows: u32,
    more_interfaces: [u32; 7],
    views: [[u64; 8]; 2],
}

const _: () = assert!(size_of::<Control>() == 256 && offset_of!(Control, cpu_rows) == 96);

#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct TenantLine {
    quota_tat: u64,
    banks: [u64; 7],
}

const _: () = assert!(size_of::<TenantLine>() == 64);

#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Tenant {
    tcp_tat: u64,
    reply_tat: u64,
    candidate_tat: u64,
    syn_tat: u64,
    reserved: [u64; 4],
    banks: [[u64; 24]; 2],
    name: Name,
    reserved_end: [u64; 2],
}

const _: () = assert!(size_of::<Tenant>() == 512 && size_of::<Name>() == 48);

#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct CounterLine {
    /// Segments among them.
    passed: u64,
    charged_mru: u64,
    passed_bytes: u64,
    refused: [u64; 2],
    refused_mru: u64,
    replied: u64,
    bare_or_asked: u64,
}

const _: () = assert!(size_of::<CounterLine>() == 64);

impl From<CounterLine> for abi::CounterLine {
    /// All but `replied`, which has no place in it.
    fn from(old: CounterLine) -> Self {
        Self {
            passed: old.passed,
            charged_mru: old.charged_mru,
            passed_bytes: old.passed_bytes,
            refused: old.refused,
            refused_mru: old.refused_mru,
            segments: 0,
            bare_or_asked: old.bare_or_asked,
        }
    }
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct RareCounters {
    refused: [u64; REASONS],
    shadowed: [u64; REASONS],
    candidate_refused: u64,
    asked_mru: u64,
}

const _: () = assert!(size_of::<RareCounters>() == 304);

impl From<RareCounters> for abi::TenantCounters {
    fn from(old: RareCounters) -> Self {
        let mut this =
            Self { candidate_refused: old.candidate_refused, asked_mru: old.asked_mru, ..Self::default() };
        // Their numbers are the same today.
        this.refused[..REASONS].copy_from_slice(&old.refused);
        this.shadowed[..REASONS].copy_from_slice(&old.shadowed);
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
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<Cpu>() == 448);

words!(Control, TenantLine, Tenant, CounterLine, RareCounters, Cpu);

const CONTROL: &str = "CONTROL";
const TENANT_LINES: &str = "TENANT_LINES";
const TENANTS: &str = "TENANTS";
const COUNTERS: &str = "COUNTERS";
const RARE_COUNTERS: &str = "RARE_COUNTERS";
const CPUS: &str = "CPUS";
const TOP_KEYS: &str = "TOP_KEYS";
/// Its pins.
pub(super) const PINS: [&str; 12] = [
    CONTROL,
    "PORTS",
    "TABLES",
    "SERVICES",
    TENANT_LINES,
    TENANTS,
    COUNTERS,
    RARE_COUNTERS,
    "TOUCHED",
    CPUS,
    "SAMPLES",
    TOP_KEYS,
];

/// How many reasons there were.
const REASONS: usize = 18;
