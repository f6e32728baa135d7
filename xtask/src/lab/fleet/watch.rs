//! The run: clients ask, an owner is killed and started again, and all is measured.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::limits::{GREEDY, LIMITS};
use super::measurement::{Account, Measurement, Phase, Takeover};
use super::programs::{Fleet, GATES, OWNERS, owners};
use super::report::{Summary, View};
use super::schedule::Schedule;
use super::traffic::{Counts, Traffic};
use crate::lab::chart::Chart;
use crate::lab::report::grouped;

/// A run.
#[derive(Debug)]
pub(super) struct Watch {
    gate: PathBuf,
    traffic: Traffic,
    began: Instant,
    duration: Option<Duration>,
    schedule: Schedule,
    state: State,
    /// The owner that decides about `greedy`, as last seen.
    decides: Option<usize>,
    /// Since when the same one has; `None` while owners change.
    decided_from: Option<Duration>,
    /// When owners are asked next.
    look_at: Duration,
    measurement: Measurement,
    view: View,
}

/// The owners. Times count from the beginning of the run.
#[derive(Debug, Clone, Copy)]
enum State {
    /// All are there; the one that decides is killed then.
    Whole { kill_at: Option<Duration> },
    /// One was killed, and no other decides yet.
    Lost { owner: usize, killed: Instant, back_at: Duration },
    /// Another decides.
    Replaced { owner: usize, back_at: Duration },
    /// The killed one was started again, and does not decide yet.
    Returned { owner: usize, started: Instant },
    /// None has decided in the place of the killed one.
    Failed,
}

impl Watch {
    /// Has the clients ask, for as long as this or until [`Watch::end`].
    ///
    /// # Errors
    ///
    /// If they cannot be started.
    pub(super) fn begin(gate: &Path, duration: Option<Duration>) -> Result<Self> {
        let schedule = Schedule::new(duration);
        let accounts = LIMITS.map(Account::new);
        Ok(Self {
            gate: gate.to_owned(),
            traffic: Traffic::start(gate)?,
            began: Instant::now(),
            duration,
            schedule,
            state: State::Whole { kill_at: Some(schedule.first) },
            decides: None,
            decided_from: None,
            look_at: Duration::ZERO,
            measurement: Measurement { accounts, takeovers: Vec::new() },
            view: View::default(),
        })
    }

    /// Shows a line a second, until the end, a signal, or an owner that nothing replaces. False after a signal.
    ///
    /// # Errors
    ///
    /// If a program ends by itself, or no owner ever decides.
    pub(super) fn run(&mut self, fleet: &mut Fleet, stop: &Receiver<i32>) -> Result<bool> {
        let mut shown = Duration::ZERO;
        let mut read = Duration::ZERO;
        loop {
            match stop.recv_timeout(LOOK_EVERY) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(_) | Err(RecvTimeoutError::Disconnected) => return Ok(false),
            }
            fleet.check()?;
            self.traffic.move_on(&self.gate)?;
            self.act(fleet)?;
            let now = self.began.elapsed();
            if now >= read + READ_EVERY {
                read = now;
                let counts = self.traffic.read()?;
                self.measure(now, &counts);
                if now >= shown + SHOW_EVERY {
                    shown += SHOW_EVERY;
                    self.view.show(&counts, self.decides.map(|owner| owners()[owner]));
                }
            }
            if matches!(self.state, State::Failed) || self.duration.is_some_and(|duration| now >= duration) {
                return Ok(true);
            }
        }
    }

    /// Ends the clients; the result, and its picture.
    ///
    /// # Errors
    ///
    /// If one fails at its end.
    pub(super) fn end(mut self) -> Result<(Summary, Chart)> {
        if let State::Lost { owner, killed, .. } = self.state {
            self.measurement.add_unfinished(owners()[owner], killed.elapsed());
        }
        let counts = self.traffic.end()?;
        for (account, seen) in self.measurement.accounts.iter_mut().zip(counts.by_limit()) {
            account.seen = seen;
        }
        let mut chart = self.view.chart;
        chart.title = "fleet".to_owned();
        Ok((Summary { measurement: self.measurement, seconds: counts.seconds }, chart))
    }

    /// Asks the owners, if it is time, and goes on to the next state.
    fn act(&mut self, fleet: &mut Fleet) -> Result<()> {
        let now = self.began.elapsed();
        if now < self.look_at {
            return Ok(());
        }
        let charged = fleet.charged_since(GREEDY.name)?;
        self.decides = (0..OWNERS)
            .filter(|owner| charged[*owner] > 0.0)
            .max_by(|a, b| charged[*a].total_cmp(&charged[*b]));
        let is_changing = matches!(self.state, State::Returned { .. });
        if self.decides.is_some() && !is_changing {
            self.decided_from.get_or_insert(now);
        }
        let is_late = self.decided_from.is_none() && now > FIRST_DECISION;
        ensure!(
            !(is_late && matches!(self.state, State::Whole { .. })),
            "no owner decides within {FIRST_DECISION:?}"
        );
        self.state = match (self.state, self.decides) {
            // Whole => Lost: it is time.
            (State::Whole { kill_at: Some(kill_at) }, Some(owner)) if now >= kill_at => {
                self.kill(fleet, owner)?
            }
            // Lost => Replaced: another owner is given the reports.
            (State::Lost { owner, killed, back_at }, Some(by)) => self.replaced(owner, by, killed, back_at),
            // Lost => Failed: none has been, although the lease is over.
            (State::Lost { owner, killed, back_at }, None) if now >= back_at => {
                self.measurement.add_unfinished(owners()[owner], killed.elapsed());
                State::Failed
            }
            // Replaced => Returned: it is time.
            (State::Replaced { owner, back_at }, _) if now >= back_at => self.start_again(fleet, owner)?,
            // Returned => Whole: it is given the reports again.
            (State::Returned { owner, started }, _) if charged[owner] > 0.0 => self.returned(owner, started),
            (state, _) => state,
        };
        let is_urgent = self.decided_from.is_none();
        self.look_at = now + if is_urgent { LOOK_URGENTLY_EVERY } else { SHOW_EVERY };
        Ok(())
    }

    fn kill(&mut self, fleet: &mut Fleet, owner: usize) -> Result<State> {
        let now = self.began.elapsed();
        let killed = Instant::now();
        fleet.kill_owner(owner)?;
        self.decides = None;
        self.decided_from = None;
        let share = grouped(u64::from(GREEDY.per_sec) / GATES as u64);
        let text = format!(
            "owner {} killed: gates keep to on_lost, {share} RU/s of greedy each, until another decides",
            owners()[owner]
        );
        self.show(now, Some("owner killed"), &text);
        Ok(State::Lost { owner, killed, back_at: now + self.schedule.gone })
    }

    fn replaced(&mut self, owner: usize, by: usize, killed: Instant, back_at: Duration) -> State {
        let took = killed.elapsed();
        let [killed, by] = [owner, by].map(|owner| owners()[owner]);
        let text = format!("owner {by} decides, {:.1} s after the other was killed", took.as_secs_f64());
        self.show(self.began.elapsed(), Some("another decides"), &text);
        self.measurement.takeovers.push(Takeover { killed, by: Some(by), took });
        State::Replaced { owner, back_at }
    }

    fn start_again(&mut self, fleet: &mut Fleet, owner: usize) -> Result<State> {
        let text = format!("owner {} started again", owners()[owner]);
        self.show(self.began.elapsed(), Some("started again"), &text);
        fleet.start_owner_again(owner)?;
        self.decided_from = None;
        Ok(State::Returned { owner, started: Instant::now() })
    }

    fn returned(&mut self, owner: usize, started: Instant) -> State {
        let now = self.began.elapsed();
        let seconds = started.elapsed().as_secs_f64();
        let text = format!("owner {} decides again, {seconds:.1} s after it had registered", owners()[owner]);
        self.show(now, None, &text);
        self.decided_from = Some(now);
        State::Whole { kill_at: self.schedule.next(now) }
    }

    /// Prints an event, and draws it as the beginning of a phase.
    fn show(&mut self, now: Duration, phase: Option<&str>, text: &str) {
        self.view.event(now.as_secs_f64(), text);
        phase.into_iter().for_each(|phase| self.view.phase(now.as_secs_f64(), phase));
    }

    fn measure(&mut self, now: Duration, counts: &Counts) {
        let has_begun = !self.measurement.takeovers.is_empty() || matches!(self.state, State::Lost { .. });
        let phase = match self.decided_from {
            Some(from) if now >= from + STABILISE => Phase::Steady,
            _ if has_begun => Phase::Takeover,
            _ => Phase::WarmUp,
        };
        for (account, seen) in self.measurement.accounts.iter_mut().zip(counts.by_limit()) {
            account.add(counts.seconds, seen, phase);
        }
    }
}

const LOOK_EVERY: Duration = Duration::from_millis(50);
const READ_EVERY: Duration = Duration::from_millis(200);
const SHOW_EVERY: Duration = Duration::from_secs(1);
/// How often owners are asked when a change is waited for.
const LOOK_URGENTLY_EVERY: Duration = Duration::from_millis(100);
/// From the first decision of an owner until its effect is measured: bursts are spent, and gates keep to their shares.
const STABILISE: Duration = Duration::from_secs(2);
/// Gates find the owners in a fraction of that.
const FIRST_DECISION: Duration = Duration::from_secs(10);
