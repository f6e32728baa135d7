//! The accounts: one for each name that a gate has introduced and a rule fits.
//!
//! **Locks.** Names are spread over shards, one for each core, whose locks are held for a look-up. An account has a lock of its
//! own, held while one entry of a report is charged. None is held across an `await`.
//!
//! **Memory.** Accounts are bounded in number, and what sessions have of them in bytes (`room`). One more takes the place of one that no session
//! has a handle of and that is idle: its bucket is full and nobody is held back, so that it holds nothing that a new one would not. If there is
//! none, the name gets no account, and what is charged under it counts nowhere.
//!
//! **Without a limit.** An account outlives its rule, with the debt that it had. What gates give out while there is none counts nowhere, and
//! neither does a report that was made before its gate knew of a limit that came back.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use foldhash::fast::FixedState;
use gate_common::units::Nanos;

use super::counters::{Counters, Event};
use super::room::Room;
use gate_limits::{Calendar, Limits, Name, Rule, Rules, WallClock, log_changes};
use gate_policy::fleet_share::{FleetShares, Share, Used};
use gate_policy::reservations::Reservations;

/// All accounts of an owner.
#[derive(Debug)]
pub struct Accounts {
    shards: Box<[Mutex<Shard>]>,
    /// The most accounts of a shard.
    most: usize,
    hasher: FixedState,
    rules: RwLock<Arc<Generation>>,
    /// Why the rules in force are not those that were found last; `None` if they are.
    kept: Mutex<Option<String>>,
    /// See [`WallClock::ahead_ns`].
    ahead_ns: AtomicI64,
    room: Arc<Room>,
    counters: Arc<Counters>,
}

#[derive(Debug, Default)]
struct Shard {
    accounts: HashMap<Name, Arc<Account>>,
    /// Names in the order in which their idleness is looked at.
    order: std::collections::VecDeque<Name>,
}

/// The rules in force, and how many sets of them there were before.
#[derive(Debug)]
pub struct Generation {
    /// Counts from 1.
    pub number: u64,
    /// The rules.
    pub rules: Rules,
    /// False before any limits were known: then that there is no rule means nothing.
    pub is_known: bool,
}

/// The account of one name.
#[derive(Debug)]
pub struct Account {
    /// The name.
    pub name: Name,
    state: Mutex<State>,
}

/// The content of an account.
#[derive(Debug)]
pub struct State {
    /// The policy's.
    pub shares: FleetShares,
    /// The parts that Envoys have.
    pub reservations: Reservations,
    /// The limits, in thousandths of a request unit; `None` since no rule fits any more.
    pub limits: Option<Limits>,
    /// The windows in which it counts, and the present one.
    window: Option<CalendarWindow>,
    /// The generation of rules since which there have been limits.
    limited_since: u64,
    /// The amount that gates may still give back: what they have charged, up to a full bucket and its deepest debt.
    returnable: u64,
    /// Charged in all, in thousandths of a request unit.
    pub charged: u64,
    /// Refused in all, in thousandths of a request unit.
    pub refused: u64,
}

/// The present window of an account.
#[derive(Debug)]
struct CalendarWindow {
    calendar: Arc<Calendar>,
    /// When it began, in Unix time; `None` before anybody has looked.
    begins: Option<i64>,
    ends: Nanos,
}

/// Why a name gets no account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Without {
    /// No rule fits it.
    Rule,
    /// There is no room.
    Room,
}

impl Account {
    /// Its content, as of the last look.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its content at a moment: full, if another window of the calendar has begun since.
    pub fn lock_at(&self, now: Nanos, wall: WallClock) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        state.turn(now, wall);
        state
    }
}

impl State {
    fn new(rule: &Rule, limited_since: u64) -> Self {
        let limits = rule.limits;
        let mut shares = FleetShares::new(limits.rate, Nanos(limits.burst_ns), Nanos(limits.max_debt_ns));
        shares.set_window(Nanos::ZERO, limits.window.is_some());
        Self {
            shares,
            reservations: Reservations::default(),
            limits: Some(limits),
            window: CalendarWindow::of(rule),
            limited_since,
            returnable: 0,
            charged: 0,
            refused: 0,
        }
    }

    /// Puts other limits in force, or none. What has been taken out of the bucket is still out.
    fn follow(&mut self, now: Nanos, rule: Option<&Rule>, generation: u64) {
        let limits = rule.map(|rule| rule.limits);
        let calendar = rule.and_then(|rule| rule.calendar.as_ref());
        if self.window.as_ref().map(|window| &window.calendar) != calendar {
            self.window = rule.and_then(CalendarWindow::of);
        }
        match limits {
            Some(limits) if self.limits != Some(limits) => {
                let max_debt = Nanos(limits.max_debt_ns);
                self.shares.set_window(now, limits.window.is_some());
                self.shares.change(now, limits.rate, Nanos(limits.burst_ns), max_debt);
                if self.limits.is_none() {
                    self.limited_since = generation;
                }
            }
            Some(_) => {}
            // Gates go by their own quotas, whatever they were granted.
            None => self.shares.release_all(),
        }
        self.limits = limits;
    }

    /// Charges what a gate gave out, of which this becomes a `debt`, and takes back what it gave back. `known` are the rules that the gate knew.
    /// Without a limit, or by a gate that did not know of it, it counts nowhere.
    pub fn report(&mut self, gate: u32, now: Nanos, used: Used, (debt, returned): (Used, u64), known: u64) {
        let Some(limits) = self.limits.filter(|_| known >= self.limited_since) else { return };
        self.charged = self.charged.saturating_add(used.charged);
        self.refused = self.refused.saturating_add(used.refused);
        let returned = returned.min(self.returnable);
        if returned > 0 {
            self.shares.give_back(now, returned);
        }
        let most = limits.dearest();
        self.returnable = (self.returnable - returned).saturating_add(debt.charged).min(most);
        self.shares.report(gate, now, debt);
    }

    /// Fills the bucket where another window has begun. A clock that was set back has the account count on in the earlier window.
    fn turn(&mut self, now: Nanos, wall: WallClock) {
        let Some(window) = &mut self.window else { return };
        let Some((begins, ends)) = wall.window_after(window.begins, &window.calendar, now) else { return };
        let is_new = window.begins.replace(begins).is_some_and(|before| begins > before);
        window.ends = ends;
        if is_new {
            self.reset(now);
        }
    }

    /// When the window began that it counts in, in Unix time; `None` of one that fills evenly.
    pub fn window_begins(&self) -> Option<i64> {
        self.window.as_ref().and_then(|window| window.begins)
    }

    /// The time until the window ends that it counts in; zero of one that fills evenly.
    pub fn window_left(&self, now: Nanos) -> Nanos {
        self.window.as_ref().map_or(Nanos::ZERO, |window| window.ends.saturating_sub(now).max(Nanos(1)))
    }

    /// Takes over a debt that a gate knows of from another owner; `window_left` is the time until the window ends that it is of, zero of none.
    /// One of another window than the present is over, or nobody's yet.
    pub fn take_over_debt(&mut self, now: Nanos, full_in: Nanos, window_left: Nanos) {
        let is_present = window_left == Nanos::ZERO
            || self.limits.and_then(|limits| limits.window).is_some_and(|period| {
                // The same end, but for what clocks differ and a report takes.
                self.window_left(now).0.abs_diff(window_left.0) < period.length().0 / 2
            });
        if is_present {
            self.shares.add_debt(now, full_in);
        }
    }

    /// Fills the bucket. Returns what was in it, below zero in debt.
    pub fn reset(&mut self, now: Nanos) -> i64 {
        let left = self.shares.left(now);
        self.shares.reset();
        self.returnable = 0;
        left
    }

    /// True if it holds nothing that a new one would not.
    fn is_idle(&self, now: Nanos) -> bool {
        self.shares.is_idle(now) && self.reservations.is_empty(now)
    }

    /// The share of a gate that has just reported; the whole of no limit.
    pub fn share(&mut self, gate: u32, now: Nanos) -> Share {
        if self.limits.is_some() { self.shares.share(gate, now) } else { Share::Whole }
    }

    /// The time until the bucket is full; nothing without a limit.
    pub fn full_in(&self, now: Nanos) -> Nanos {
        if self.limits.is_some() { self.shares.full_in(now) } else { Nanos::ZERO }
    }
}

impl CalendarWindow {
    fn of(rule: &Rule) -> Option<Self> {
        rule.calendar.clone().map(|calendar| Self { calendar, begins: None, ends: Nanos::ZERO })
    }
}

impl Accounts {
    /// None yet, and never more than `most`. Without any rule no limits are known yet.
    #[must_use]
    pub fn new(rules: Rules, most: usize, shards: usize, counters: Arc<Counters>) -> Self {
        let shards = shards.max(1);
        Self {
            shards: (0..shards).map(|_| Mutex::default()).collect(),
            most: most.div_ceil(shards).max(1),
            hasher: FixedState::default(),
            rules: RwLock::new(Arc::new(Generation { number: 1, is_known: !rules.list().is_empty(), rules })),
            kept: Mutex::default(),
            ahead_ns: AtomicI64::new(0),
            room: Room::new(most.saturating_mul(ROOM_BYTES)),
            counters,
        }
    }

    /// The rules in force.
    #[must_use]
    pub fn rules(&self) -> Arc<Generation> {
        Arc::clone(&self.rules.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts other rules in force, and logs what has changed and by whom: what has been taken out of buckets is still out.
    pub fn follow(&self, now: Nanos, rules: Rules, by: &str) {
        {
            let mut current = self.rules.write().unwrap_or_else(PoisonError::into_inner);
            log_changes(&current.rules, &rules, by);
            *current = Arc::new(Generation { number: current.number + 1, rules, is_known: true });
        }
        self.keep(None);
        let generation = self.rules();
        for account in self.all() {
            let rule = generation.rules.find(&account.name);
            account.lock_at(now, self.wall()).follow(now, rule, generation.number);
        }
    }

    /// Sets the clock on the wall, by which windows of the calendar begin, if it differs by more than some milliseconds.
    pub fn set_clock(&self, wall: WallClock) {
        wall.keep_in(&self.ahead_ns);
    }

    /// The clock on the wall.
    pub fn wall(&self) -> WallClock {
        WallClock { ahead_ns: self.ahead_ns.load(Ordering::Relaxed) }
    }

    /// Notes why the rules in force stay, although others were looked for; `None` if they are what was found.
    pub fn keep(&self, why: Option<String>) {
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    /// Why the rules in force are not those that were found last; `None` if they are.
    #[must_use]
    pub fn kept(&self) -> Option<String> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The room of sessions.
    pub(super) const fn room(&self) -> &Arc<Room> {
        &self.room
    }

    /// Counts a name for which there is no room.
    pub(super) fn refuse_for_room(&self) {
        self.counters.count(Event::NameWithoutRoom);
    }

    /// The account of a name, if it has one.
    pub(super) fn find(&self, name: &Name) -> Option<Arc<Account>> {
        self.shard(name).accounts.get(name).cloned()
    }

    /// The account of a name, made if it is not there.
    ///
    /// # Errors
    ///
    /// [`Without`].
    pub fn account(&self, now: Nanos, name: &Name) -> Result<Arc<Account>, Without> {
        let shard = &mut *self.shard(name);
        if let Some(account) = shard.accounts.get(name) {
            return Ok(Arc::clone(account));
        }
        let generation = self.rules();
        let Some(rule) = generation.rules.find(name) else {
            self.counters.count(Event::NameWithoutRule);
            return Err(Without::Rule);
        };
        if shard.accounts.len() >= self.most && !shard.evict(now, self.wall()) {
            self.refuse_for_room();
            return Err(Without::Room);
        }
        let state = Mutex::new(State::new(rule, generation.number));
        let account = Arc::new(Account { name: name.clone(), state });
        shard.accounts.insert(name.clone(), Arc::clone(&account));
        shard.order.push_back(name.clone());
        Ok(account)
    }

    /// Gives back what gates were granted of names that have moved to other owners: they report those there. Should a name come back, a gate
    /// that nobody asks for it any more would have its grant for good.
    pub fn release_moved(&self, is_own: impl Fn(&Name) -> bool) {
        for account in self.all() {
            let mut state = account.lock();
            if !state.shares.is_released() && !is_own(&account.name) {
                state.shares.release_all();
            }
        }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).accounts.len()).sum()
    }

    /// How many there may be.
    pub(super) const fn most(&self) -> usize {
        self.most * self.shards.len()
    }

    /// All accounts, in no order.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Account>> {
        let mut all = Vec::new();
        for shard in &self.shards {
            all.extend(lock(shard).accounts.values().cloned());
        }
        all
    }

    fn shard(&self, name: &Name) -> MutexGuard<'_, Shard> {
        let hash = self.hasher.hash_one(name.as_str());
        lock(&self.shards[hash as usize % self.shards.len()])
    }
}

impl Shard {
    /// Makes room for one more; looks at a few names each time.
    fn evict(&mut self, now: Nanos, wall: WallClock) -> bool {
        for _ in 0..LOOKS.min(self.order.len()) {
            let Some(name) = self.order.pop_front() else { return false };
            let is_idle = self.accounts.get(&name).is_some_and(|account| {
                Arc::strong_count(account) == 1 && account.lock_at(now, wall).is_idle(now)
            });
            if is_idle {
                self.accounts.remove(&name);
                return true;
            }
            self.order.push_back(name);
        }
        false
    }
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The memory that an account takes with a name of usual length, and with it one gate's handle, in bytes.
pub const ACCOUNT_BYTES: usize = 512;
/// The part of that which is the room of sessions.
const ROOM_BYTES: usize = 128;
/// Idle accounts are looked for among so many at a time.
const LOOKS: usize = 16;
