//! Reads of whole keys, priced by the key: a key that is known to be large is expected to have its size, any other what
//! unknown keys of the tenant have had.
//!
//! **Problem.** Only the store knows how much `HGETALL` or `SUNION` reads. With one mean for all reads of a kind a tenant
//! pays for large keys by reading small ones, and a price says nothing of the key.
//!
//! **Source.** Weighted Space-Saving (Metwally, Agrawal, El Abbadi 2005), as in [`super::space_saving`], over the keys
//! whose reads are large. The weight of a key is the sum of what was read of it, and halves every `HALVING`. A full
//! sketch gives the counter of the lightest key, and its weight, to the new one.
//!
//! **Deviation.** A counter also keeps the size of its key, as the last reply showed it. That is no estimate, and a new
//! key inherits none of it.
//!
//! **Shares.** Each tenant has a sketch of [`CAPACITY`] keys, which its own replies alone fill. So no tenant pushes out
//! another's keys, nor moves what another is expected to read. A tenant that reads nothing but large keys pushes out its
//! own: what is not known is expected to be as the unknown ones before, whose mean these raise.
//!
//! **Size classes.** A learned mean is of a tenant, a kind of command and a size class as it was known
//! before the request ran. So a large key that is known does not make small ones dear, and does not hide among them.
//!
//! **Invariants.** No more memory than [`CAPACITY`] keys for each tenant that has read such keys, taken at its first read.
//! For requests for one key one after another, the charge lags behind what was read by one reply. A mean
//! follows as [`super::read_cost`] says. Time is an argument; an earlier `now` than the last halves nothing.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use gate_common::units::Nanos;

use super::read_cost::{ROW_BYTES, ReadSize, Reply, RequestedRows, moved, whole};

/// A request that reads keys whose size only the store knows, and what is known of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyRead {
    /// The hash of its key; zero if it has several, or if its rows do not follow from the size of the key.
    pub key: u32,
    /// The rows that it reads, if they are known.
    pub rows: u32,
    /// The elements that the key has beyond those that the reply shows.
    pub beyond: u32,
    /// The kind of command, below [`KINDS`]; zero for requests that are no such reads.
    pub kind: u8,
    /// The values in the reply for each element; zero if the reply does not tell how many elements the key has.
    pub values: u8,
    /// Where `rows` are known from.
    pub known: Known,
}

/// Where the size of a key is known from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Known {
    /// Nowhere.
    #[default]
    Unknown,
    /// An earlier reply.
    Seen,
    /// The store, which was asked before the request.
    Asked,
}

impl KeyRead {
    /// A request that is no such read.
    pub const NONE: Self = Self { key: 0, rows: 0, beyond: 0, kind: 0, values: 0, known: Known::Unknown };

    /// True for a request that is no such read.
    #[must_use]
    #[inline]
    pub const fn is_none(&self) -> bool {
        self.kind == 0
    }

    /// True if a reply of so many rows shows that the store's answer about the size was wrong: keys grow, but not so fast.
    #[must_use]
    pub const fn was_told_wrong(&self, rows: u32) -> bool {
        matches!(self.known, Known::Asked) && rows > self.rows.saturating_mul(2).saturating_add(LARGE_ROWS)
    }
}

/// The number of kinds of commands that are told apart, the one for no such read included.
pub const KINDS: usize = 16;

/// A class of sizes, as they are known before a request runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SizeClass {
    Unknown,
    Small,
    Medium,
    Large,
}

impl SizeClass {
    const COUNT: usize = 4;

    const fn of(read: &KeyRead) -> Self {
        match read.known {
            Known::Unknown => Self::Unknown,
            Known::Seen | Known::Asked if read.rows < LARGE_ROWS => Self::Small,
            Known::Seen | Known::Asked if read.rows < 100 * LARGE_ROWS => Self::Medium,
            Known::Seen | Known::Asked => Self::Large,
        }
    }
}

/// The size of a large key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SeenKey {
    /// The elements that it had when it was read last.
    pub elements: u32,
    /// True if the store has told too small a size of it: what was read counts, and not what the store says.
    pub is_understated: bool,
}

/// The reads of keys of each tenant of a service. See the [module](self).
#[derive(Debug)]
pub struct KeyReads {
    tenants: Box<[OnceLock<Box<Mutex<TenantReads>>>]>,
}

impl KeyReads {
    /// Nothing is known of so many tenants, whose numbers are below that.
    #[must_use]
    pub fn new(tenants: usize) -> Self {
        Self { tenants: (0..tenants).map(|_| OnceLock::new()).collect() }
    }

    /// The size of a tenant's key, if it is among the large ones that are known.
    #[must_use]
    pub fn seen(&self, tenant: u32, key: u32, now: Nanos) -> Option<SeenKey> {
        let reads = &mut *self.known(tenant)?;
        reads.sketch.age(now);
        let counter = reads.sketch.find(key)?;
        Some(SeenKey { elements: counter.elements, is_understated: counter.is_understated })
    }

    /// True if a tenant's reads of this kind were large lately.
    #[must_use]
    pub fn were_large(&self, tenant: u32, kind: u8, now: Nanos) -> bool {
        let last = self.known(tenant).and_then(|reads| reads.last_large[usize::from(kind) % KINDS]);
        last.is_some_and(|last| now.saturating_sub(last) < REMEMBERED)
    }

    /// The expected size of what a request reads.
    #[must_use]
    pub fn expected(&self, tenant: u32, read: &KeyRead, requested: RequestedRows) -> ReadSize {
        let is_known = read.known != Known::Unknown;
        let rows = if is_known { read.rows.max(at_least(requested)) } else { requested.rows };
        let Some(reads) = self.known(tenant) else { return ReadSize { rows, more_bytes: 0 } };
        let mean = reads.mean(read);
        if !is_known {
            let rows = if requested.is_open && mean.rows > 0.0 {
                whole(mean.rows).max(requested.least)
            } else {
                rows
            };
            return ReadSize { rows, more_bytes: mean.more_bytes(rows) };
        }
        let more_bytes = match reads.sketch.find(read.key) {
            Some(counter) => whole(counter.more_per_row * rows as f32),
            None => mean.more_bytes(rows),
        };
        ReadSize { rows, more_bytes }
    }

    /// Learns from the reply to a request. Returns what the request read.
    pub fn observe(
        &self,
        tenant: u32,
        read: &KeyRead,
        requested: RequestedRows,
        reply: Reply,
        now: Nanos,
    ) -> ReadSize {
        let is_known = read.known != Known::Unknown;
        let rows = match is_known {
            // The reply shows all.
            true if requested.is_open && requested.least <= 1 => reply.rows.max(1),
            true => reply.rows.max(read.rows).max(at_least(requested)),
            false if requested.is_open => reply.rows.max(requested.least).max(1),
            false => requested.rows.max(1),
        };
        let included = u64::from(rows.max(reply.rows)) * ROW_BYTES;
        let more_bytes = u32::try_from(reply.bytes.saturating_sub(included)).unwrap_or(u32::MAX);
        let size = ReadSize { rows, more_bytes };
        let Some(mut reads) = self.tenant(tenant) else { return size };
        reads.mean_mut(read).observe(size, requested.is_open && !is_known);
        if is_large(size) {
            reads.last_large[usize::from(read.kind) % KINDS] = Some(now);
        }
        if read.key != 0 && read.values > 0 {
            reads.sketch.age(now);
            let shown = reply.rows.div_ceil(u32::from(read.values));
            let told_wrong = (read.known == Known::Asked).then(|| read.was_told_wrong(reply.rows));
            match reply.rows {
                // The key holds nothing.
                0 if reply.bytes <= EMPTY_BYTES && read.beyond == 0 => reads.sketch.forget(read.key),
                // An error, or a range that the key does not have: neither says how much it holds.
                0 => {}
                _ => reads.sketch.observe(read.key, shown.saturating_add(read.beyond), size, told_wrong),
            }
        }
        size
    }

    /// Forgets a tenant: its number is another's from now on.
    pub fn forget(&self, tenant: u32) {
        if let Some(mut reads) = self.known(tenant) {
            *reads = TenantReads::default();
        }
    }

    fn known(&self, tenant: u32) -> Option<MutexGuard<'_, TenantReads>> {
        Some(lock(self.tenants.get(tenant as usize)?.get()?))
    }

    fn tenant(&self, tenant: u32) -> Option<MutexGuard<'_, TenantReads>> {
        Some(lock(self.tenants.get(tenant as usize)?.get_or_init(Box::default)))
    }
}

/// The rows that a request reads at least: those that it states. What it leaves open is a guess.
const fn at_least(requested: RequestedRows) -> u32 {
    if requested.is_open { 1 } else { requested.rows }
}

/// Nothing panics while it is held, and each change leaves it as it should be.
fn lock(reads: &Mutex<TenantReads>) -> MutexGuard<'_, TenantReads> {
    reads.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_large(size: ReadSize) -> bool {
    size.rows >= LARGE_ROWS || size.more_bytes >= LARGE_BYTES
}

/// One tenant's reads.
#[derive(Debug, Default)]
struct TenantReads {
    means: [[Mean; SizeClass::COUNT]; KINDS],
    /// By kind: when a reply was large last.
    last_large: [Option<Nanos>; KINDS],
    sketch: Sketch,
}

impl TenantReads {
    fn mean(&self, read: &KeyRead) -> Mean {
        self.means[usize::from(read.kind) % KINDS][SizeClass::of(read) as usize]
    }

    fn mean_mut(&mut self, read: &KeyRead) -> &mut Mean {
        &mut self.means[usize::from(read.kind) % KINDS][SizeClass::of(read) as usize]
    }
}

/// The moving means of a kind of command and size class.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    /// The rows of requests whose rows were not known; zero if there was none.
    rows: f32,
    /// Bytes beyond those that rows may have, and rows, of a reply. No rows if there was no reply.
    more: f32,
    per_rows: f32,
}

impl Mean {
    fn observe(&mut self, size: ReadSize, rows_were_open: bool) {
        let rows = size.rows as f32;
        let more = size.more_bytes as f32;
        let next = |mean: f32, value, is_first| if is_first { value } else { moved(mean, value) };
        let is_first = self.per_rows == 0.0;
        (self.more, self.per_rows) = (next(self.more, more, is_first), next(self.per_rows, rows, is_first));
        if rows_were_open {
            self.rows = next(self.rows, rows, self.rows == 0.0);
        }
    }

    fn more_bytes(self, rows: u32) -> u32 {
        if self.more > 0.0 { whole(self.more / self.per_rows * rows as f32) } else { 0 }
    }
}

/// The large keys of one tenant.
#[derive(Debug, Default)]
struct Sketch {
    /// The hashes of the keys, beside the counters: they are looked through.
    keys: Vec<u32>,
    counters: Vec<Counter>,
    halved: Nanos,
}

/// A large key.
#[derive(Clone, Copy, Debug)]
struct Counter {
    /// The rows that were read of it, halved again and again, and those that it has inherited.
    weight: u32,
    elements: u32,
    /// Bytes beyond those that a row may have.
    more_per_row: f32,
    is_understated: bool,
}

impl Sketch {
    fn place(&self, key: u32) -> Option<usize> {
        self.keys.iter().position(|&other| other == key)
    }

    fn find(&self, key: u32) -> Option<&Counter> {
        self.counters.get(self.place(key)?)
    }

    /// A key holds nothing any more.
    fn forget(&mut self, key: u32) {
        if let Some(place) = self.place(key) {
            self.remove(place);
        }
    }

    /// A reply has shown that a key has so many elements, and whether the store has told wrong before, if it was asked.
    fn observe(&mut self, key: u32, elements: u32, size: ReadSize, told_wrong: Option<bool>) {
        let place = self.place(key);
        let was_understated = place.is_some_and(|place| self.counters[place].is_understated);
        let mut counter = Counter {
            weight: size.rows.saturating_add(size.more_bytes / ROW_BYTES as u32),
            elements,
            more_per_row: size.more_bytes as f32 / size.rows.max(1) as f32,
            is_understated: told_wrong.unwrap_or(was_understated),
        };
        if let Some(place) = place {
            counter.weight = counter.weight.saturating_add(self.counters[place].weight);
            // A key that is known stays known, also once it is small: the charge for it lags by one reply.
            self.counters[place] = counter;
        } else if !is_large(size) {
        } else if self.keys.len() < CAPACITY {
            self.keys.push(key);
            self.counters.push(counter);
        } else if let Some(lightest) = self.lightest() {
            counter.weight = counter.weight.saturating_add(self.counters[lightest].weight);
            (self.keys[lightest], self.counters[lightest]) = (key, counter);
        }
    }

    fn lightest(&self) -> Option<usize> {
        (0..self.counters.len()).min_by_key(|&place| self.counters[place].weight)
    }

    fn remove(&mut self, place: usize) {
        self.keys.swap_remove(place);
        self.counters.swap_remove(place);
    }

    /// Halves the weights, as often as it is time for. A key without weight leaves.
    fn age(&mut self, now: Nanos) {
        let times = now.saturating_sub(self.halved).0 / HALVING.0;
        if times == 0 {
            return;
        }
        self.halved = now;
        let halved = |weight: u32| weight.checked_shr(u32::try_from(times).unwrap_or(u32::MAX)).unwrap_or(0);
        for place in (0..self.counters.len()).rev() {
            self.counters[place].weight = halved(self.counters[place].weight);
            if self.counters[place].weight == 0 {
                self.remove(place);
            }
        }
    }
}

/// A read of so many rows is large: it takes Redis some 100 microseconds, 100 times as long as the read of one.
pub const LARGE_ROWS: u32 = 1_000;
/// A read of so many bytes beyond what rows may have is large as well.
const LARGE_BYTES: u32 = 1 << 20;
/// The longest reply without a row that is no error: an empty array, set or map, or the number of keys that were removed.
const EMPTY_BYTES: u64 = 4;
/// The keys that are known of one tenant: 3 KiB.
pub const CAPACITY: usize = 128;
/// A key of a thousand rows that is not read any more is forgotten after ten times as long, one of a million after twenty.
const HALVING: Nanos = Nanos::from_secs(60);
/// For so long a kind of command counts as one that reads much.
const REMEMBERED: Nanos = Nanos::from_secs(600);

#[cfg(test)]
mod tests;
