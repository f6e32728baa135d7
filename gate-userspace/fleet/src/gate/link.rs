//! A gate's session with one owner: numbers, handles, and the report that is not answered yet.
//!
//! A report is sent again, with the same charges, until it is answered, and the owner charges it once. An owner that does not know the session
//! lost its accounts: a new session begins, in which the names are introduced with the debts that gate knows of.

use gate_common::units::Nanos;

use crate::wire::{
    Answer, Hello, Introduction, OLDEST, Report, Reservation, VERSION, Welcome, column, common_unit, fits,
    pack,
};
use gate_policy::reservations::Wanted;

/// One line of the book in a report.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    /// The line.
    pub(super) line: u32,
    pub(super) charged: u64,
    pub(super) refused: u64,
    pub(super) returned: u64,
    /// `None` if it has to be introduced.
    pub(super) handle: Option<u32>,
    /// For Envoys; `None` if none has any of it.
    pub(super) wanted: Option<Wanted>,
}

/// A session with one owner.
#[derive(Debug)]
pub(super) struct Link {
    session: u64,
    /// The number of the last report that was made.
    number: u64,
    /// By handle: the line; `None` if it was released.
    lines: Vec<Option<u32>>,
    /// Handles without a line.
    forgotten: usize,
    outstanding: Option<Outstanding>,
    /// The end of the time that the last report was about.
    reported: Nanos,
    /// The last answer; `None` if there was none.
    answered: Option<Nanos>,
    gates: u32,
    /// As the owner was told.
    announced: Handover,
}

/// The part of a process in a change from one process of its gate to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Handover {
    /// True if it was started to take over from another one.
    pub(super) takes_over: bool,
    /// True while it serves its clients to their end.
    pub(super) drains: bool,
}

#[derive(Debug)]
struct Outstanding {
    report: Report,
    entries: Vec<Entry>,
}

/// An answer that does not fit the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an answer that does not fit the report")]
pub struct Unfit;

impl Link {
    /// No report yet; what is to be reported has happened since `now`. `gates` are how many there are, until the owner says so.
    pub(super) fn new(session: u64, now: Nanos, gates: u32) -> Self {
        Self {
            session,
            number: 0,
            lines: Vec::new(),
            forgotten: 0,
            outstanding: None,
            reported: now,
            answered: None,
            gates,
            announced: Handover::default(),
        }
    }

    /// The first words on a stream.
    pub(super) fn hello(&mut self, gate: &str, interval: Nanos, handover: Handover) -> Report {
        self.announced = handover;
        let hello = Hello {
            version: VERSION,
            gate: gate.to_owned(),
            session: self.session,
            interval_us: interval.0 / 1_000,
            takes_over: handover.takes_over,
            drains: handover.drains,
            oldest: OLDEST,
        };
        Report { hello: Some(hello), ..Report::default() }
    }

    /// True if the owner was told so in the first words.
    pub(super) fn has_announced(&self, handover: Handover) -> bool {
        self.announced == handover
    }

    /// True if the session goes on after the owner's first words. If not, [`Link::restart`].
    pub(super) fn is_known(&self, welcome: &Welcome) -> bool {
        let before = self.number - u64::from(self.is_waiting());
        (before..=self.number).contains(&welcome.charged)
    }

    /// Notes the last report that was charged in a session whose handles the owner has given up. If it is the one that was not answered, it is
    /// not to be repeated: returns what was in it.
    pub(super) fn end(&mut self, charged: u64) -> Vec<Entry> {
        if charged == self.number { self.take_unanswered() } else { Vec::new() }
    }

    /// Begins another session. Returns what was not answered: the owner that knew of it is no more.
    pub(super) fn restart(&mut self, session: u64) -> Vec<Entry> {
        (self.session, self.number) = (session, 0);
        self.lines.clear();
        self.forgotten = 0;
        self.take_unanswered()
    }

    /// Takes back what was not answered.
    pub(super) fn take_unanswered(&mut self) -> Vec<Entry> {
        self.outstanding.take().map(|outstanding| outstanding.entries).unwrap_or_default()
    }

    /// True if a report is not answered yet.
    pub(super) const fn is_waiting(&self) -> bool {
        self.outstanding.is_some()
    }

    /// The report that is not answered yet, to be sent again: under this revision, as an owner that has registered anew decides none
    /// from before that.
    pub(super) fn again(&mut self, revision: u64) -> Option<&Report> {
        let report = &mut self.outstanding.as_mut()?.report;
        report.revision = revision;
        Some(report)
    }

    /// Makes the next report, under a revision of etcd's. `introduce` introduces a line, which gets this handle.
    pub(super) fn report(
        &mut self,
        now: Nanos,
        revision: u64,
        mut entries: Vec<Entry>,
        mut introduce: impl FnMut(u32, u32) -> Introduction,
    ) -> Report {
        let mut introductions = Vec::new();
        let mut with_handles: Vec<(u32, Entry)> = Vec::with_capacity(entries.len());
        for entry in entries.drain(..) {
            let handle = entry.handle.unwrap_or_else(|| {
                let handle = self.lines.len() as u32;
                self.lines.push(Some(entry.line));
                introductions.push(introduce(entry.line, handle));
                handle
            });
            with_handles.push((handle, entry));
        }
        with_handles.sort_unstable_by_key(|(handle, _)| *handle);
        entries.extend(with_handles.iter().map(|(_, entry)| *entry));
        self.number += 1;
        let reservation = |(handle, entry): &(u32, Entry)| {
            let Wanted { wanted, assigned, lasts } = entry.wanted?;
            Some(Reservation { handle: *handle, wanted, assigned, lasts_us: lasts.0 / 1_000 })
        };
        let amounts = |entry: &Entry| [entry.charged, entry.refused, entry.returned];
        let unit = common_unit(entries.iter().flat_map(amounts));
        let report = Report {
            hello: None,
            number: self.number,
            within_us: now.saturating_sub(self.reported).0 / 1_000,
            introductions,
            handles: pack(with_handles.iter().map(|(handle, _)| *handle)),
            charged: column(entries.iter().map(|entry| entry.charged / unit)),
            refused: column(entries.iter().map(|entry| entry.refused / unit)),
            returned: column(entries.iter().map(|entry| entry.returned / unit)),
            revision,
            reservations: with_handles.iter().filter_map(reservation).collect(),
            unit,
        };
        self.reported = now;
        self.outstanding = Some(Outstanding { report: report.clone(), entries });
        report
    }

    /// Takes in the answer to the report. Returns what was reported, in the order of the answer.
    ///
    /// # Errors
    ///
    /// [`Unfit`].
    pub(super) fn answer(&mut self, now: Nanos, answer: &Answer) -> Result<Vec<Entry>, Unfit> {
        let outstanding = self.outstanding.take_if(|outstanding| {
            let len = outstanding.entries.len();
            let columns = [&answer.per_sec, &answer.burst_ru, &answer.full_in_ms, &answer.nano_per_sec];
            outstanding.report.number == answer.number && columns.into_iter().all(|column| fits(column, len))
        });
        let outstanding = outstanding.ok_or(Unfit)?;
        // An owner that knows no limits is none, until it does.
        if !answer.without_limits {
            self.answered = Some(now);
        }
        self.gates = answer.gates;
        Ok(outstanding.entries)
    }

    /// The line of a handle; `None` if it was released.
    ///
    /// # Errors
    ///
    /// [`Unfit`], if it was never introduced.
    pub(super) fn line(&self, handle: u32) -> Result<Option<u32>, Unfit> {
        self.lines.get(handle as usize).copied().ok_or(Unfit)
    }

    /// Releases a handle. The owner has it until the session ends.
    pub(super) fn forget(&mut self, handle: u32) {
        if let Some(line) = self.lines.get_mut(handle as usize) {
            self.forgotten += usize::from(line.take().is_some());
        }
    }

    /// True if the owner should be rid of the handles that were released.
    pub(super) fn is_worn(&self) -> bool {
        self.forgotten > MOST_FORGOTTEN.max(self.lines.len() / 2)
    }

    /// The end of the time that the last report was about.
    pub(super) const fn reported(&self) -> Nanos {
        self.reported
    }

    /// When it was last answered; `None` if it never was.
    pub(super) const fn answered(&self) -> Option<Nanos> {
        self.answered
    }

    /// How many gates share the limits of this owner, as it said last; 0 if it has not.
    pub(super) const fn gates(&self) -> u32 {
        self.gates
    }
}

/// Handles that may be without a line, however few others there are.
const MOST_FORGOTTEN: usize = 1 << 14;
