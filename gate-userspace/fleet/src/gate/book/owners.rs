//! The owners of a book's lines, which come and go.

use std::collections::BTreeMap;

use gate_common::units::Nanos;

use super::{Book, Changes, KnownOwner, Line};
use crate::gate::grant::scaled;
use crate::gate::link::Link;
use crate::rendezvous::owner_of;
use crate::wire::Introduction;
use gate_limits::Name;

impl Book {
    /// The present owners, in the order of their addresses.
    #[must_use]
    pub fn known_owners(&self, now: Nanos) -> Vec<KnownOwner> {
        let mut limits = BTreeMap::<usize, usize>::new();
        for line in self.by_name.values().map(|&place| &self.lines[place as usize]) {
            let owner = line.handle.and(line.owner);
            owner.into_iter().for_each(|owner| *limits.entry(owner).or_default() += 1);
        }
        let known = |(address, number): &(String, usize)| {
            let link = self.links.get(number)?;
            Some(KnownOwner {
                address: address.clone(),
                is_lost: self.is_lost(link, now),
                answered_ago: link.answered().map(|answered| now.saturating_sub(answered)),
                gates: link.gates(),
                limits: limits.get(number).copied().unwrap_or(0),
            })
        };
        self.owners.iter().filter_map(known).collect()
    }

    /// From now on these are the owners, as of a revision. None at all change nothing: nobody could take over. `draw` draws a number
    /// that nobody else draws, for a session.
    pub fn follow(
        &mut self,
        now: Nanos,
        owners: &[String],
        revision: u64,
        mut draw: impl FnMut() -> u64,
    ) -> Changes {
        let mut changes = Changes::default();
        self.revision = revision;
        if owners.is_empty() {
            return changes;
        }
        let gates = self.links.values().map(Link::gates).max().unwrap_or(0);
        let mut before = std::mem::take(&mut self.owners);
        for owner in owners {
            let known = before.iter().position(|(address, _)| address == owner);
            let number = known.map_or(self.next, |place| before.swap_remove(place).1);
            if known.is_none() {
                self.next += 1;
                self.links.insert(number, Link::new(draw(), now, gates));
                changes.joined.push((number, owner.clone()));
            }
            self.owners.push((owner.clone(), number));
        }
        changes.left = before.into_iter().map(|(_, number)| number).collect();
        if changes != Changes::default() {
            self.move_lines(now, &changes.left);
        }
        changes.left.iter().for_each(|number| drop(self.links.remove(number)));
        changes
    }

    /// Gives every line its owner. The links of those who `left` are still there.
    fn move_lines(&mut self, now: Nanos, left: &[usize]) {
        for number in left {
            let unanswered = self.links.get_mut(number).map(Link::take_unanswered);
            self.take_back(unanswered.unwrap_or_default());
        }
        for place in 0..self.lines.len() {
            let owner = self.owner_of(&self.lines[place].name);
            let line = &self.lines[place];
            if line.owner != owner {
                let link = line.owner.and_then(|number| self.links.get(&number));
                let kept_until = link.and_then(Link::answered).map(|answered| self.kept_until(answered));
                let reported = link.map_or(now, Link::reported);
                let line = &mut self.lines[place];
                if line.owner.is_some() && kept_until.is_none_or(|kept_until| now > kept_until) {
                    line.add_debt_until_loss(now, self.settings.interval, reported, kept_until);
                }
                line.charged_before_loss = None;
                line.kept_until = line.kept_until.max(kept_until.unwrap_or_default());
                let from = line.owner.and_then(|number| self.links.get_mut(&number));
                from.zip(line.handle.take()).into_iter().for_each(|(link, handle)| link.forget(handle));
                line.owner = owner;
            }
        }
    }

    /// The number of a name's owner; `None` before the first owner is known.
    pub(super) fn owner_of(&self, name: &Name) -> Option<usize> {
        owner_of(name.as_str(), &self.owners).map(|place| self.owners[place].1)
    }
}

impl Line {
    /// The words by which an owner hears of the name. One that took the bucket for full, where the last owner held gates back, would have
    /// each of them give out the whole limit until they have reported what that came to.
    pub(super) fn introduction(&self, now: Nanos) -> Introduction {
        Introduction { held_back: self.answer.limited.is_some(), ..self.debt.introduction(&self.name, now) }
    }

    /// Of what was counted since the last report, what was charged before the owner was lost is owed, as of that report. Of the rest, which no
    /// owner was there for, only one interval's worth is left: by that the next owner knows how much is asked for.
    fn add_debt_until_loss(
        &mut self,
        now: Nanos,
        interval: Nanos,
        reported: Nanos,
        kept_until: Option<Nanos>,
    ) {
        let debt = self.charged_before_loss.unwrap_or(self.charged).min(self.charged);
        let debt = if kept_until.is_some() { debt } else { 0 };
        if let Some(limit) = self.answer.limit {
            self.debt = self.debt.with(Nanos(limit.rate().time_for(debt)), reported);
        }
        let one_interval = |amount: u64, since: Nanos| {
            scaled(amount, interval.0, now.saturating_sub(since).max(interval).max(Nanos(1)).0)
        };
        self.charged = one_interval(self.charged - debt, kept_until.unwrap_or(reported));
        self.refused = one_interval(self.refused, reported);
    }
}
