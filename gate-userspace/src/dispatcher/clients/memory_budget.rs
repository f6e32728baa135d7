//! The memory budget of the clients of one service, in all threads: replies that they have not read, and requests that
//! are not decoded yet.
//!
//! **Problem.** What one client may hold is bounded, but ten thousand such bounds are no bound. **Rule.** No tenant holds
//! more than its share of the budget. Above half of that share, or when less than half a share is left of the budget, reads
//! are paused from a client with replies to read. Beyond the share, or beyond all of the budget, empty buffers are freed;
//! then clients are closed until an eighth is free, those first that have been idle for longest, and of them those that
//! hold most (`pipeline/housekeeping.rs`). A tenant beyond its share loses clients of its own only. Clients that read are
//! served all the while.
//!
//! **Counting.** The sums are kept by differences, once for each delivery and not for each byte: the capacity of buffers,
//! not their length. Each thread counts its own clients, and adds to the shared sums in steps of [`STEP`]. So a thread knows
//! what others hold to within `STEP` for each of them. A thread closes clients only if it holds its part of the excess.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use foldhash::fast::RandomState;

use super::slots::TenantCounts;
use crate::dispatcher::settings::Limits;
use crate::dispatcher::tenants::ledger::TenantId;

/// The bytes that the clients of all threads hold.
#[derive(Debug, Default)]
pub(crate) struct SharedMemory {
    all: Arc<AtomicUsize>,
    tenants: TenantCounts,
}

/// The most that may be held, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryLimits {
    /// By all clients.
    pub(crate) all: usize,
    /// By those of one tenant; at most `all`.
    pub(crate) tenant: usize,
}

/// The bytes that one thread's clients hold, and what it knows of the others.
#[derive(Debug)]
pub(crate) struct ClientMemory {
    shared: Arc<SharedMemory>,
    threads: usize,
    limits: Cell<MemoryLimits>,
    all: ThreadBytes,
    /// The tenants whose clients this thread serves.
    tenants: RefCell<HashMap<TenantId, Rc<TenantMemory>, RandomState>>,
    /// True once a tenant has been seen beyond its share.
    is_share_exceeded: Cell<bool>,
}

/// The bytes that one tenant's clients in a thread hold.
#[derive(Debug)]
pub(crate) struct TenantMemory {
    tenant: TenantId,
    bytes: ThreadBytes,
}

/// The bytes that one client holds; nothing once it is dropped.
#[derive(Debug)]
pub(crate) struct MemoryShare {
    memory: Rc<ClientMemory>,
    tenant: RefCell<Rc<TenantMemory>>,
    bytes: Cell<usize>,
}

impl MemoryLimits {
    /// Those of a service; a tenant may hold all only if it is not one of several.
    pub(crate) fn of(limits: &Limits, are_several: bool) -> Self {
        let tenant = if are_several { limits.tenant_memory } else { limits.client_memory };
        Self { all: limits.client_memory, tenant }
    }
}

impl ClientMemory {
    /// The memory of one of so many threads, which has no clients yet.
    pub(crate) fn new(shared: Arc<SharedMemory>, threads: usize, limits: MemoryLimits) -> Self {
        Self {
            all: ThreadBytes::new(Arc::clone(&shared.all)),
            shared,
            threads,
            limits: Cell::new(limits),
            tenants: RefCell::default(),
            is_share_exceeded: Cell::new(false),
        }
    }

    /// Changes the limits.
    pub(crate) fn set_limits(&self, limits: MemoryLimits) {
        self.limits.set(limits);
    }

    /// Finds out if a tenant is beyond its share because of another thread's clients. To be called every 10 ms.
    pub(crate) fn poll(&self) {
        let share = self.limits.get().tenant;
        let is_beyond = |tenant: &Rc<TenantMemory>| tenant.bytes.total() > share;
        let is_exceeded = self.all.total() > share && self.tenants.borrow().values().any(is_beyond);
        self.is_share_exceeded.set(is_exceeded);
    }

    /// Removes tenants without clients here.
    pub(crate) fn release(&self) {
        self.tenants.borrow_mut().retain(|_, tenant| Rc::strong_count(tenant) > 1);
    }

    /// True if all clients hold more than the limit, or a tenant more than its share, as of the last look.
    #[inline]
    pub(crate) fn is_exceeded(&self) -> bool {
        self.is_share_exceeded.get() || self.all.total() > self.limits.get().all
    }

    /// The bytes that this thread is to free of what all clients hold.
    pub(crate) fn excess(&self) -> usize {
        self.all.excess(self.limits.get().all, self.threads)
    }

    /// The tenants of whose memory this thread is to free a part, with the bytes to free.
    pub(crate) fn tenant_excesses(&self) -> Vec<(TenantId, usize)> {
        self.is_share_exceeded.set(false);
        let share = self.limits.get().tenant;
        let tenants = self.tenants.borrow();
        let excess = |tenant: &Rc<TenantMemory>| (tenant.tenant, tenant.bytes.excess(share, self.threads));
        tenants.values().map(excess).filter(|&(_, excess)| excess > 0).collect()
    }

    fn of_tenant(&self, tenant: TenantId) -> Rc<TenantMemory> {
        let new = || {
            let bytes = ThreadBytes::new(self.shared.tenants.of(tenant));
            Rc::new(TenantMemory { tenant, bytes })
        };
        Rc::clone(self.tenants.borrow_mut().entry(tenant).or_insert_with(new))
    }
}

impl MemoryShare {
    /// The share of one more client, which holds nothing.
    pub(crate) fn new(memory: &Rc<ClientMemory>, tenant: TenantId) -> Self {
        let of_tenant = RefCell::new(memory.of_tenant(tenant));
        Self { memory: Rc::clone(memory), tenant: of_tenant, bytes: Cell::new(0) }
    }

    /// The bytes that the client holds.
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.get()
    }

    /// The bytes that its tenant's clients hold.
    pub(crate) fn of_tenant(&self) -> usize {
        self.tenant.borrow().bytes.total()
    }

    /// Moves its bytes to this tenant.
    pub(crate) fn charge_to(&self, tenant: TenantId) {
        let charged = &mut *self.tenant.borrow_mut();
        if charged.tenant != tenant {
            let bytes = self.bytes.get();
            charged.bytes.change(bytes, 0);
            *charged = self.memory.of_tenant(tenant);
            charged.bytes.change(0, bytes);
        }
    }

    /// True if so little is left that its replies should not gather.
    #[inline]
    pub(crate) fn is_tight(&self) -> bool {
        let MemoryLimits { all, tenant } = self.memory.limits.get();
        self.memory.all.total() > all - tenant / 2 || self.tenant.borrow().bytes.total() > tenant / 2
    }

    /// True if its tenant, or all clients, hold more than the limit.
    pub(crate) fn is_exceeded(&self) -> bool {
        let MemoryLimits { all, tenant } = self.memory.limits.get();
        self.memory.all.total() > all || self.tenant.borrow().bytes.total() > tenant
    }

    /// Counts `bytes` as what the client holds now.
    #[inline]
    pub(crate) fn note(&self, bytes: usize) {
        let before = self.bytes.replace(bytes);
        if bytes == before {
            return;
        }
        self.memory.all.change(before, bytes);
        let tenant = self.tenant.borrow();
        tenant.bytes.change(before, bytes);
        if bytes > before && tenant.bytes.total() > self.memory.limits.get().tenant {
            self.memory.is_share_exceeded.set(true);
        }
    }
}

impl Drop for MemoryShare {
    fn drop(&mut self) {
        self.note(0);
    }
}

/// One thread's part in a count of bytes that all threads share.
#[derive(Debug)]
struct ThreadBytes {
    shared: Arc<AtomicUsize>,
    own: Cell<usize>,
    /// The part of `own` that `shared` contains.
    published: Cell<usize>,
}

impl ThreadBytes {
    fn new(shared: Arc<AtomicUsize>) -> Self {
        Self { shared, own: Cell::new(0), published: Cell::new(0) }
    }

    /// Replaces `before` of its bytes by `after`.
    #[inline]
    fn change(&self, before: usize, after: usize) {
        self.own.set(self.own.get() - before + after);
        if self.own.get().abs_diff(self.published.get()) >= STEP {
            self.publish();
        }
    }

    /// The bytes of all threads, to within [`STEP`] for each of the others.
    #[inline]
    fn total(&self) -> usize {
        // Others may have taken theirs away between: what this thread has published stays in.
        (self.shared.load(Ordering::Relaxed) - self.published.get()) + self.own.get()
    }

    fn publish(&self) {
        let own = self.own.get();
        let change = own.wrapping_sub(self.published.replace(own));
        self.shared.fetch_add(change, Ordering::Relaxed);
    }

    /// The bytes that this one of so many threads is to free, if all may hold `limit`: so much that an eighth of that
    /// is free, and no more than this thread has beyond its part. Nothing, if other threads hold more.
    fn excess(&self, limit: usize, threads: usize) -> usize {
        let total = self.total();
        let own = self.own.get();
        if total <= limit || own.saturating_add(STEP) < total / threads {
            return 0;
        }
        let enough = limit - limit / 8;
        (total - enough).min(own.saturating_sub(enough / threads))
    }
}

impl Drop for ThreadBytes {
    fn drop(&mut self) {
        self.publish();
    }
}

/// The bytes by which a thread's count may differ from what the others know. Small beside the least `client_memory`,
/// large beside most replies.
const STEP: usize = 16 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: MemoryLimits = MemoryLimits { all: 1 << 20, tenant: 512 << 10 };
    const ONE: TenantId = TenantId(1);
    const OTHER: TenantId = TenantId(2);

    fn threads(count: usize) -> Vec<Rc<ClientMemory>> {
        let shared = Arc::<SharedMemory>::default();
        (0..count).map(|_| Rc::new(ClientMemory::new(Arc::clone(&shared), count, LIMITS))).collect()
    }

    #[test]
    fn the_total_is_the_sum_of_the_shares_until_they_are_dropped() {
        let memory = &threads(1)[0];
        let one = MemoryShare::new(memory, ONE);
        let other = MemoryShare::new(memory, OTHER);
        for (first, second) in [(10, 0), (5, 7), (0, 7), (100_000, 1)] {
            one.note(first);
            other.note(second);
            assert_eq!(memory.all.total(), first + second);
            assert_eq!(one.tenant.borrow().bytes.total(), first);
        }
        drop(one);
        assert_eq!(memory.all.total(), 1);
        drop(other);
        assert_eq!(memory.all.total(), 0);
        memory.release();
        assert!(memory.tenants.borrow().is_empty());
    }

    #[test]
    fn threads_know_of_each_other_to_within_a_step() {
        let threads = threads(3);
        let clients: Vec<_> = threads.iter().map(|memory| MemoryShare::new(memory, ONE)).collect();
        let mut bytes = [0; 3];
        for round in 0..1_000 {
            let thread = round % 3;
            bytes[thread] = round * 7_919 % 50_000;
            clients[thread].note(bytes[thread]);
            let held: usize = bytes.iter().sum();
            for memory in &threads {
                assert!(memory.all.total().abs_diff(held) < 2 * STEP, "{bytes:?}");
            }
        }
        drop(clients);
        threads.iter().for_each(|memory| memory.release());
        assert!(threads.iter().all(|memory| memory.all.total() < 2 * STEP));
    }

    #[test]
    fn a_tenant_beyond_its_share_leaves_others_theirs() {
        let memory = &threads(1)[0];
        let greedy = MemoryShare::new(memory, ONE);
        let other = MemoryShare::new(memory, OTHER);
        greedy.note(LIMITS.tenant / 2 + 1);
        assert!(greedy.is_tight() && !other.is_tight() && !memory.is_exceeded());
        greedy.note(LIMITS.tenant + 1);
        other.note(LIMITS.tenant / 4);
        assert!(memory.is_exceeded() && greedy.is_exceeded() && !other.is_exceeded());
        let least = LIMITS.tenant / 8;
        assert_eq!((memory.tenant_excesses(), memory.excess()), (vec![(ONE, least + 1)], 0));
        assert!(!memory.is_exceeded(), "it has been looked after");
        memory.poll();
        assert!(memory.is_exceeded(), "nothing has been done");
        greedy.note(LIMITS.tenant);
        memory.poll();
        assert!(!memory.is_exceeded() && greedy.is_tight() && !other.is_tight());
        other.note(LIMITS.tenant / 2);
        assert!(!other.is_tight());
        greedy.note(LIMITS.tenant + 1);
        assert!(other.is_tight(), "less than half a share is left");
    }

    #[test]
    fn what_becomes_anothers_counts_there() {
        let memory = &threads(1)[0];
        let client = MemoryShare::new(memory, ONE);
        client.note(100_000);
        client.charge_to(OTHER);
        let held = |tenant| memory.of_tenant(tenant).bytes.total();
        assert_eq!((held(ONE), held(OTHER), memory.all.total()), (0, 100_000, 100_000));
    }

    #[test]
    fn the_thread_that_holds_most_frees_it() {
        let threads = threads(2);
        let [large, small] = [0, 1].map(|thread| MemoryShare::new(&threads[thread], ONE));
        large.note(LIMITS.tenant);
        small.note(2 * STEP);
        let excess = |thread: usize| threads[thread].tenant_excesses();
        assert!(excess(1).is_empty());
        assert_eq!(excess(0), [(ONE, LIMITS.tenant / 8 + 2 * STEP)]);
        small.note(LIMITS.tenant);
        let part = LIMITS.tenant - LIMITS.tenant / 16 * 7;
        assert_eq!((excess(0), excess(1)), (vec![(ONE, part)], vec![(ONE, part)]), "each its part");
    }
}
