//! Counters in the maps: rows of lines, rare counters, and which lines were touched. See [`gate_common::abi`].

use std::mem::offset_of;
use std::sync::atomic::{AtomicU64, Ordering};

use gate_common::abi::{Control, CounterLine, Cpu, RareCounters, Reason, TenantCounters, touched_words};

use super::layer::ByLayer;
use super::maps::Maps;

/// A row of counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The element of its first line.
    pub line: usize,
    /// The element of its first rare counters.
    pub rare: usize,
    /// The first word of its bits.
    pub touched: usize,
}

/// The activity of a tenant, in short.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    /// See [`TenantCounters::passed`].
    pub passed: u64,
    /// See [`TenantCounters::segments`].
    pub segments: u64,
    /// See [`TenantCounters::charged_mru`].
    pub charged_mru: u64,
    /// Requests refused, for whatever reason.
    pub refused: u64,
}

impl Activity {
    /// Requests, whatever became of them.
    #[must_use]
    pub const fn requests(&self) -> u64 {
        self.passed.wrapping_add(self.segments).wrapping_add(self.refused)
    }

    const fn add_line(&mut self, line: &CounterLine) {
        let [first, second] = line.refused;
        self.passed = self.passed.wrapping_add(line.passed);
        self.segments = self.segments.wrapping_add(line.segments);
        self.charged_mru = self.charged_mru.wrapping_add(line.charged_mru);
        self.refused = self.refused.wrapping_add(first).wrapping_add(second);
    }
}

fn is_untouched(words: &[AtomicU64]) -> bool {
    words.iter().all(|word| word.load(Ordering::Relaxed) == 0)
}

impl Maps {
    /// How many rows of counters CPUs may have; they follow the shared one, row 0.
    #[must_use]
    pub fn cpu_rows(&self) -> usize {
        self.control.word(0, offset_of!(Control, cpu_rows)).load(Ordering::Relaxed) as u32 as usize
    }

    pub(super) fn set_cpu_rows(&self, rows: u32) {
        let word = self.control.word(0, offset_of!(Control, cpu_rows));
        let others = word.load(Ordering::Relaxed) & !u64::from(u32::MAX);
        word.store(others | u64::from(rows), Ordering::Relaxed);
    }

    /// How many rows of counters there are: the shared one, those of CPUs, and those of the dispatcher's threads.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.counters.len() / self.tenants.len()
    }

    /// A row.
    #[must_use]
    pub fn row(&self, row: usize) -> Row {
        let tenants = self.tenants.len();
        Row {
            line: row * tenants,
            rare: self.rare_row(row) * tenants,
            touched: row * touched_words(tenants as u32) as usize,
        }
    }

    /// The row of rare counters that a row shares with others of its layer: threads have the last one.
    pub(super) fn rare_row(&self, row: usize) -> usize {
        let of_cpus = self.rare_rows_of_cpus();
        if row <= self.cpu_rows() { row % of_cpus } else { self.rare_rows() - 1 }
    }

    /// How many rows of rare counters there are.
    pub(super) fn rare_rows(&self) -> usize {
        self.rare_counters.len() / self.tenants.len()
    }

    fn rare_rows_of_cpus(&self) -> usize {
        let threads_have_one = self.rows() > 1 + self.cpu_rows();
        (self.rare_rows() - usize::from(threads_have_one)).max(1)
    }

    /// A tenant's counters, all rows together.
    #[must_use]
    pub fn tenant_counters(&self, tenant: usize) -> TenantCounters {
        let [mut sum, proxy] = self.counters_by_layer(tenant);
        sum.add(&proxy);
        sum
    }

    /// A tenant's counters by layer, all rows of each together.
    #[must_use]
    pub fn counters_by_layer(&self, tenant: usize) -> ByLayer {
        let [mut xdp, mut proxy] = ByLayer::default();
        let cpu_rows = self.cpu_rows();
        for row in 0..self.rows() {
            let line = self.counters.load(row * self.tenants.len() + tenant);
            if row <= cpu_rows {
                xdp.add_line(tenant as u32, &line);
            } else {
                proxy.add_thread_line(tenant as u32, &line);
            }
        }
        let of_cpus = self.rare_rows_of_cpus();
        for row in 0..self.rare_rows() {
            let rare = self.rare_counters.load(row * self.tenants.len() + tenant);
            if row < of_cpus { &mut xdp } else { &mut proxy }.add_rare(&rare);
        }
        [xdp, proxy]
    }

    /// Adds a tenant's counters to these sums by layer, and returns them in short. Most tenants have counted nothing of most kinds:
    /// so this takes a small part of the time of [`Maps::counters_by_layer`].
    pub fn sum_counters(&self, tenant: usize, sums: &mut ByLayer) -> Activity {
        let [xdp, proxy] = sums;
        let mut activity = Activity::default();
        let cpu_rows = self.cpu_rows();
        for row in 0..self.rows() {
            let element = row * self.tenants.len() + tenant;
            if is_untouched(self.counters.words(element)) {
                continue;
            }
            let line = self.counters.load(element);
            activity.add_line(&line);
            if row <= cpu_rows {
                xdp.add_line(tenant as u32, &line);
            } else {
                proxy.add_thread_line(tenant as u32, &line);
            }
        }
        let of_cpus = self.rare_rows_of_cpus();
        for row in 0..self.rare_rows() {
            let element = row * self.tenants.len() + tenant;
            if is_untouched(self.rare_counters.words(element)) {
                continue;
            }
            let rare = self.rare_counters.load(element);
            activity.refused =
                rare.refused.iter().fold(activity.refused, |sum, more| sum.wrapping_add(*more));
            if row < of_cpus { &mut *xdp } else { &mut *proxy }.add_rare(&rare);
        }
        activity
    }

    /// Forgets what was counted of a tenant, once it has been noted in [`Maps::cleared`].
    pub fn clear_tenant_counters(&self, tenant: usize) {
        self.cleared.note(tenant as u32, || self.counters_by_layer(tenant));
        for line in (tenant..self.counters.len()).step_by(self.tenants.len()) {
            self.counters.store(line, &CounterLine::default());
        }
        for rare in (tenant..self.rare_counters.len()).step_by(self.tenants.len()) {
            self.rare_counters.store(rare, &RareCounters::default());
        }
    }

    /// Counts so much more of a tenant, in the shared row.
    pub fn count_shared(&self, tenant: usize, more: &TenantCounters) {
        let (line, rare) = more.split(tenant as u32);
        let to_line = |offset, more: u64| {
            if more != 0 {
                self.counters.word(tenant, offset).fetch_add(more, Ordering::Relaxed);
            }
        };
        to_line(offset_of!(CounterLine, passed), line.passed);
        to_line(offset_of!(CounterLine, charged_mru), line.charged_mru);
        to_line(offset_of!(CounterLine, passed_bytes), line.passed_bytes);
        to_line(offset_of!(CounterLine, refused), line.refused[0]);
        to_line(offset_of!(CounterLine, refused) + 8, line.refused[1]);
        to_line(offset_of!(CounterLine, refused_mru), line.refused_mru);
        to_line(offset_of!(CounterLine, segments), line.segments);
        to_line(offset_of!(CounterLine, bare_or_asked), line.bare_or_asked);
        let to_rare = |offset, more: u64| {
            if more != 0 {
                self.rare_counters.word(tenant, offset).fetch_add(more, Ordering::Relaxed);
            }
        };
        for reason in 0..Reason::COUNT {
            to_rare(offset_of!(RareCounters, refused) + 8 * reason, rare.refused[reason]);
            to_rare(offset_of!(RareCounters, shadowed) + 8 * reason, rare.shadowed[reason]);
        }
        for (bucket, &more) in rare.quota_refused.iter().enumerate() {
            to_rare(offset_of!(RareCounters, quota_refused) + 8 * bucket, more);
        }
        to_rare(offset_of!(RareCounters, candidate_refused), rare.candidate_refused);
        to_rare(offset_of!(RareCounters, asked_mru), rare.asked_mru);
        to_rare(offset_of!(RareCounters, replied), rare.replied);
        self.touch(0, tenant);
    }

    /// Tells the next tick that a tenant was counted in the row whose bits begin at `first`. To be called after counting.
    #[inline]
    pub fn touch(&self, first: usize, tenant: usize) {
        let word = self.touched.word(first + tenant / 64, 0);
        let bit = 1 << (tenant % 64);
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// The CPUs' own counters, all together.
    #[must_use]
    pub fn cpu_counters(&self) -> Cpu {
        let mut sum = Cpu::EMPTY;
        for cpu in 0..self.cpus.len() {
            sum.add(&self.cpus.load(cpu));
        }
        sum
    }
}
