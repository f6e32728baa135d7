//! The limits of a book that are also assigned to Envoys, for longer than an owner's word holds.
//!
//! **Loss.** Without its owner a limit's part is at most an equal one, and never grows: so the parts of all gates still add up to no more than
//! the limit.

use std::collections::HashMap;

use gate_common::units::Nanos;

use super::{Book, OnLost, Reservation};
use crate::wire::Answer;
use gate_limits::Reserved;
use gate_policy::reservations::Wanted;

impl Book {
    /// Has a part of a limit reserved, or no longer. Returns the part, which may be assigned until the next call and counts as assigned in
    /// reports that are made until then.
    pub fn reserve(&mut self, line: u32, now: Nanos, wanted: Option<Wanted>) -> Reserved {
        let Some(place) = self.lines.get_mut(line as usize) else { return Reserved::Own };
        let Some(wanted) = wanted else {
            place.reservation = None;
            return Reserved::Own;
        };
        let before = place.reservation;
        let (since, part) = before.map_or((now, None), |before| (before.since, before.part));
        let reserved = self.reserved(line, now, since, part);
        let may_assign = if let Reserved::Part { per_sec, .. } = reserved { per_sec } else { 0 };
        let wanted = Wanted { assigned: wanted.assigned.max(may_assign), ..wanted };
        self.lines[line as usize].reservation = Some(Reservation { wanted, since, part });
        reserved
    }

    fn reserved(&self, line: u32, now: Nanos, since: Nanos, part: Option<u64>) -> Reserved {
        let line = &self.lines[line as usize];
        let link = line.owner.and_then(|owner| self.links.get(&owner));
        let is_lost = now > line.kept_until && link.is_none_or(|link| self.is_lost(link, now));
        let is_unknown = !line.answer.is_known && now <= since.saturating_add(UNKNOWN);
        let Some(limit) = line.answer.limit else {
            return if is_unknown { Reserved::Unknown } else { Reserved::Own };
        };
        // As its owner divides it.
        let evenly = limit.limits().evenly();
        let reserved = |per_sec| Reserved::Part { per_sec, burst: Nanos(evenly.burst_ns) };
        match part {
            _ if is_lost && self.settings.on_lost == OnLost::Local => Reserved::Own,
            _ if is_lost => {
                let gates = u64::from(link.map_or(1, |link| link.gates().max(1)));
                reserved(part.unwrap_or(u64::MAX).min(evenly.milli_per_sec() / gates))
            }
            Some(part) => reserved(part),
            None => Reserved::Unknown,
        }
    }

    /// Takes in what an owner has reserved of these lines. Nothing is said of what nothing is reserved of.
    pub(super) fn follow_reserved(
        &mut self,
        owner: usize,
        lines: impl Iterator<Item = u32>,
        answer: &Answer,
    ) {
        let parts: HashMap<u32, u64> =
            answer.reserved.iter().map(|reserved| (reserved.handle, reserved.per_sec)).collect();
        for line in lines {
            let Some(line) = self.lines.get_mut(line as usize).filter(|line| line.owner == Some(owner))
            else {
                continue;
            };
            let Some(reservation) = &mut line.reservation else { continue };
            reservation.part = line.handle.and_then(|handle| parts.get(&handle).copied());
        }
    }
}

/// How long a limit is waited for whose owner says nothing. Then gate's own holds, as for everything that no owner knows.
const UNKNOWN: Nanos = Nanos::from_secs(2);
