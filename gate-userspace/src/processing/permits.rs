//! Permits for what may run so many at a time, and the queue of those who wait for one.
//!
//! **Problem.** One tenant's processings must not keep the others' waiting. **Rule.** Where there are several tenants, one of
//! them holds half of the permits at most. Tenants take turns, whatever each has in the queue, and a full queue gives up the
//! last of the tenant that has most in it. Who would wait for longer than the objective, by what the last ones took, is refused
//! at once. **Invariants.** No more permits are held than there are; nobody waits who might have one that is free.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gate_common::units::Nanos;
use tokio::sync::oneshot;

/// The permits, and those who wait for one.
#[derive(Debug)]
pub(crate) struct Permits {
    most: usize,
    queue: usize,
    objective: Nanos,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    held: usize,
    /// Of each tenant that holds any.
    held_by: HashMap<u32, usize>,
    /// The number that one tenant may hold.
    share: usize,
    /// Tenants with what they have waiting, the next one first. None of them is empty.
    tenants: VecDeque<(u32, VecDeque<Waiter>)>,
    waiting: usize,
    /// The mean time that one is held.
    mean: Nanos,
}

type Waiter = oneshot::Sender<Result<Permit, NoPermit>>;

/// The right to run. It is given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    permits: Option<Arc<Permits>>,
    tenant: u32,
}

/// Why there is no permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoPermit {
    /// As many wait as may.
    Full,
    /// The wait would be longer than the objective, by so much.
    TooLong(Nanos),
}

impl Permits {
    /// `most` at a time, and `queue` that wait, each for at most `objective` with its own time.
    pub(crate) fn new(most: usize, queue: usize, objective: Nanos) -> Self {
        Self { most, queue, objective, state: Mutex::default() }
    }

    /// Takes a permit for a tenant, which may be the only one, or waits for one.
    ///
    /// # Errors
    ///
    /// [`NoPermit`].
    pub(crate) async fn take(self: &Arc<Self>, tenant: u32, is_only: bool) -> Result<Permit, NoPermit> {
        match self.ask(tenant, is_only)? {
            Answer::Permit(permit) => Ok(permit),
            // Those who wait are answered before the permits end.
            Answer::Waits(answer) => answer.await.unwrap_or(Err(NoPermit::Full)),
        }
    }

    /// Takes a permit for a tenant, which may be the only one, if one is free that it may have.
    pub(crate) fn try_take(self: &Arc<Self>, tenant: u32, is_only: bool) -> Option<Permit> {
        self.take_free(&mut self.lock(), tenant, is_only)
    }

    fn take_free(self: &Arc<Self>, state: &mut State, tenant: u32, is_only: bool) -> Option<Permit> {
        state.share = if is_only { self.most } else { self.most.div_ceil(2) };
        let is_free = state.held < self.most && state.may_hold(tenant);
        is_free.then(|| {
            state.hold(tenant);
            self.permit(tenant)
        })
    }

    fn ask(self: &Arc<Self>, tenant: u32, is_only: bool) -> Result<Answer, NoPermit> {
        let mut guard = self.lock();
        let state = &mut *guard;
        if let Some(permit) = self.take_free(state, tenant, is_only) {
            return Ok(Answer::Permit(permit));
        }
        if state.waiting >= self.queue {
            state.remove_gone();
        }
        self.check_objective(state, tenant)?;
        let own = state.waiting_of(tenant);
        let mut given_up = None;
        if state.waiting >= self.queue {
            let longest = state.tenants.iter_mut().max_by_key(|(_, waiting)| waiting.len());
            let Some((_, waiting)) = longest.filter(|(_, waiting)| waiting.len() > own + 1) else {
                return Err(NoPermit::Full);
            };
            given_up = waiting.pop_back();
            state.waiting -= 1;
        }
        let (sender, answer) = oneshot::channel();
        match state.tenants.iter_mut().find(|(other, _)| *other == tenant) {
            Some((_, waiting)) => waiting.push_back(sender),
            None => state.tenants.push_back((tenant, VecDeque::from([sender]))),
        }
        state.waiting += 1;
        drop(guard);
        if let Some(waiter) = given_up {
            // It may have left.
            let _ = waiter.send(Err(NoPermit::Full));
        }
        Ok(Answer::Waits(answer))
    }

    /// Refuses who would wait for too long: each tenant before it has its turn as often as this one has.
    fn check_objective(&self, state: &State, tenant: u32) -> Result<(), NoPermit> {
        let own = state.waiting_of(tenant);
        let others = state.tenants.iter().filter(|(other, _)| *other != tenant);
        let before: usize = others.map(|(_, waiting)| waiting.len().min(own + 1)).sum::<usize>() + own;
        // The next permit comes free in a share of the time that each is held, and then its own time begins.
        let rounds = (before as u64 + 1).div_ceil(self.most as u64) + 1;
        let expected = Nanos(state.mean.0.saturating_mul(rounds));
        match expected > self.objective {
            true => Err(NoPermit::TooLong(expected.saturating_sub(self.objective))),
            false => Ok(()),
        }
    }

    /// Gives a permit that this tenant has held to the next who waits.
    fn pass_on(self: &Arc<Self>, mut tenant: u32) {
        loop {
            let next = {
                let state = &mut *self.lock();
                state.give_back(tenant);
                let Some((next, waiter)) = state.next() else { return };
                state.hold(next);
                tenant = next;
                waiter
            };
            match next.send(Ok(self.permit(tenant))) {
                Ok(()) => return,
                // It has left.
                Err(Ok(mut unused)) => drop(unused.permits.take()),
                Err(Err(_)) => {}
            }
        }
    }

    fn permit(self: &Arc<Self>, tenant: u32) -> Permit {
        Permit { permits: Some(Arc::clone(self)), tenant }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Answer {
    Permit(Permit),
    Waits(oneshot::Receiver<Result<Permit, NoPermit>>),
}

impl State {
    fn waiting_of(&self, tenant: u32) -> usize {
        self.tenants.iter().find(|(other, _)| *other == tenant).map_or(0, |(_, waiting)| waiting.len())
    }

    fn may_hold(&self, tenant: u32) -> bool {
        self.held_by.get(&tenant).is_none_or(|&held| held < self.share)
    }

    fn hold(&mut self, tenant: u32) {
        self.held += 1;
        *self.held_by.entry(tenant).or_default() += 1;
    }

    fn give_back(&mut self, tenant: u32) {
        self.held -= 1;
        if let Some(held) = self.held_by.get_mut(&tenant) {
            *held -= 1;
            if *held == 0 {
                self.held_by.remove(&tenant);
            }
        }
    }

    /// The next who waits and may hold one more; its tenant's next turn comes after all others'.
    fn next(&mut self) -> Option<(u32, Waiter)> {
        let place = self.tenants.iter().position(|(tenant, _)| self.may_hold(*tenant))?;
        let (tenant, mut waiting) = self.tenants.remove(place)?;
        let next = waiting.pop_front()?;
        self.waiting -= 1;
        if !waiting.is_empty() {
            self.tenants.push_back((tenant, waiting));
        }
        Some((tenant, next))
    }

    /// Removes those who have left.
    fn remove_gone(&mut self) {
        for (_, waiting) in &mut self.tenants {
            waiting.retain(|waiter| !waiter.is_closed());
        }
        self.tenants.retain(|(_, waiting)| !waiting.is_empty());
        self.waiting = self.tenants.iter().map(|(_, waiting)| waiting.len()).sum();
    }
}

impl Permit {
    /// Notes how long it was used.
    pub(crate) fn took(&self, time: Nanos) {
        if let Some(permits) = &self.permits {
            let mean = &mut permits.lock().mean;
            *mean = match mean.0 {
                0 => time,
                before => Nanos(before - before / SMOOTHING + time.0 / SMOOTHING),
            };
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(permits) = self.permits.take() {
            permits.pass_on(self.tenant);
        }
    }
}

/// The last so many, about, make the mean.
const SMOOTHING: u64 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn held(asked: Result<Answer, NoPermit>) -> Permit {
        match asked {
            Ok(Answer::Permit(permit)) => permit,
            _ => panic!("there is one"),
        }
    }

    fn waits(asked: Result<Answer, NoPermit>) -> oneshot::Receiver<Result<Permit, NoPermit>> {
        match asked {
            Ok(Answer::Waits(answer)) => answer,
            _ => panic!("there is none"),
        }
    }

    #[test]
    fn tenants_take_turns_whatever_each_has_waiting() {
        let permits = Arc::new(Permits::new(1, 10, Nanos::MAX));
        let first = held(permits.ask(1, true));
        let mut many: Vec<_> = (0..3).map(|_| waits(permits.ask(1, true))).collect();
        let mut one = waits(permits.ask(2, true));
        drop(first);
        let second = many[0].try_recv().unwrap().unwrap();
        assert!(one.try_recv().is_err());
        drop(second);
        let third = one.try_recv().unwrap().unwrap();
        assert!(many[1].try_recv().is_err());
        // Who has left is passed over.
        drop(many.remove(1));
        drop(third);
        let last = many[1].try_recv().unwrap().unwrap();
        drop(last);
        assert_eq!(permits.lock().held, 0);
        assert_eq!(permits.lock().waiting, 0);
        drop(held(permits.ask(3, true)));
    }

    #[test]
    fn one_of_several_tenants_holds_half_of_the_permits() {
        let permits = Arc::new(Permits::new(3, 10, Nanos::MAX));
        let mut mine: Vec<_> = (0..2).map(|_| held(permits.ask(1, false))).collect();
        let mut waits_for_own = waits(permits.ask(1, false));
        let other = held(permits.ask(2, false));
        drop(other);
        assert!(waits_for_own.try_recv().is_err(), "a free one is left to others");
        drop(mine.pop());
        assert!(waits_for_own.try_recv().unwrap().is_ok());
    }

    #[test]
    fn a_full_queue_gives_up_the_last_of_who_has_most() {
        let permits = Arc::new(Permits::new(1, 3, Nanos::MAX));
        let _held = held(permits.ask(1, true));
        let mut many: Vec<_> = (0..3).map(|_| waits(permits.ask(1, true))).collect();
        assert!(matches!(permits.ask(1, true), Err(NoPermit::Full)));
        let _other = waits(permits.ask(2, true));
        assert_eq!(many[2].try_recv().unwrap().unwrap_err(), NoPermit::Full);
        assert!(many[0].try_recv().is_err() && many[1].try_recv().is_err());
        // It has one of three, and one more would be as many as the first has.
        assert!(matches!(permits.ask(2, true), Err(NoPermit::Full)));
        drop(many.remove(0));
        let _more = waits(permits.ask(2, true));
    }

    #[test]
    fn who_would_wait_beyond_the_objective_is_refused() {
        let permits = Arc::new(Permits::new(2, 100, Nanos::from_millis(35)));
        let both = [held(permits.ask(1, true)), held(permits.ask(1, true))];
        both[0].took(Nanos::from_millis(10));
        let mut waiting: Vec<_> = (0..4).map(|_| waits(permits.ask(1, true))).collect();
        assert!(matches!(permits.ask(1, true), Err(NoPermit::TooLong(Nanos(5_000_000)))));
        // Another tenant's turn comes sooner.
        waiting.push(waits(permits.ask(2, true)));
        drop(both);
    }
}
