//! The demand of tenants since the last tick, read from the counters that were touched since.
//!
//! The cost is that of the lines that were touched, not of all that there are. Each line is read once more at the tick after:
//! see [`gate_common::abi::CounterLine`] on why.

use std::mem::offset_of;
use std::sync::atomic::Ordering;

use gate_common::abi::{CounterLine, RareCounters};

use crate::kernel::Maps;

/// The demand of each tenant between the last two readings.
#[derive(Debug, Default)]
pub struct Demand {
    /// By line: charges and refused prices, and charges alone, as of its last reading.
    offered: Vec<(u64, u64)>,
    /// By line of the shared row, and then of the threads' rows: the price of requests over connections as of its last
    /// reading.
    requested: Vec<u64>,
    /// By word of the bits: which were set at the last reading.
    again: Vec<u64>,
    /// By tenant.
    since: Vec<Since>,
}

/// The demand of a tenant between two readings, in thousandths of a request unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Since {
    /// Charges and refused prices.
    pub offered_mru: u64,
    /// Charges alone.
    pub charged_mru: u64,
    /// The price of requests over its connections, refused or not.
    pub asked_mru: u64,
}

impl Demand {
    /// Reads every counter, from which on it counts.
    #[must_use]
    pub fn new(maps: &Maps) -> Self {
        let rows = maps.rows();
        let tenants = maps.tenants.len();
        let mut this = Self {
            offered: vec![(0, 0); rows * tenants],
            requested: vec![0; (rows - maps.cpu_rows()) * tenants],
            again: vec![0; maps.touched.len()],
            since: vec![Since::default(); tenants],
        };
        let cpu_rows = maps.cpu_rows();
        for row in 0..rows {
            for tenant in 0..tenants {
                this.read_line(maps, cpu_rows, row, tenant);
            }
        }
        this.since.fill(Since::default());
        this
    }

    /// Reads what was touched since the last time; returns how many lines that were.
    pub fn read(&mut self, maps: &Maps) -> usize {
        let rows = maps.rows();
        let cpu_rows = maps.cpu_rows();
        let words = maps.touched.len() / maps.rows();
        self.since.fill(Since::default());
        let mut lines = 0;
        for row in 0..rows {
            for place in 0..words {
                let word = maps.touched.word(row * words + place, 0);
                // Cleared before the lines are read: what is counted from now on sets its bit again.
                let touched = match word.load(Ordering::Relaxed) {
                    0 => 0,
                    _ => word.swap(0, Ordering::AcqRel),
                };
                let mut left = touched | std::mem::replace(&mut self.again[row * words + place], touched);
                lines += left.count_ones() as usize;
                while left != 0 {
                    self.read_line(maps, cpu_rows, row, place * 64 + left.trailing_zeros() as usize);
                    left &= left - 1;
                }
            }
        }
        lines
    }

    /// A tenant's demand between the readings.
    #[must_use]
    pub fn since(&self, tenant: u32) -> Since {
        self.since.get(tenant as usize).copied().unwrap_or_default()
    }

    /// Counts from zero for a tenant whose counters were cleared.
    pub fn forget(&mut self, tenant: u32) {
        let tenants = self.since.len();
        let its = |len: usize| (tenant as usize..len).step_by(tenants);
        its(self.offered.len()).for_each(|line| self.offered[line] = (0, 0));
        its(self.requested.len()).for_each(|line| self.requested[line] = 0);
    }

    #[inline]
    fn read_line(&mut self, maps: &Maps, cpu_rows: usize, row: usize, tenant: usize) {
        // A bit that stands for no tenant.
        let Some(since) = self.since.get_mut(tenant) else { return };
        let line = row * maps.tenants.len() + tenant;
        let count = |offset| maps.counters.word(line, offset).load(Ordering::Relaxed);
        let charged = count(offset_of!(CounterLine, charged_mru));
        let offered = charged.wrapping_add(count(offset_of!(CounterLine, refused_mru)));
        let before = std::mem::replace(&mut self.offered[line], (offered, charged));
        since.offered_mru = since.offered_mru.wrapping_add(offered.wrapping_sub(before.0));
        since.charged_mru = since.charged_mru.wrapping_add(charged.wrapping_sub(before.1));
        let (requested, place) = match row {
            0 => {
                let offset = offset_of!(RareCounters, asked_mru);
                (maps.rare_counters.word(tenant, offset).load(Ordering::Relaxed), tenant)
            }
            row if row <= cpu_rows => return,
            row => (
                count(offset_of!(CounterLine, bare_or_asked)),
                (row - cpu_rows) * maps.tenants.len() + tenant,
            ),
        };
        let before = std::mem::replace(&mut self.requested[place], requested);
        since.asked_mru = since.asked_mru.wrapping_add(requested.wrapping_sub(before));
    }
}
