//! The lab's account of each limit, and the claims about them. Pure: readings come in, with their times.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use super::limits::{LIMITS, Limit};
use crate::lab::scenes::percent;
use crate::lab::stage::Seen;

/// The time of a reading in the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Owners and gates find each other, and bursts are spent.
    WarmUp,
    /// A limit's owner decides.
    Steady,
    /// Its owner is gone, or another one has only just begun to decide.
    Takeover,
}

/// All that was given out of one limit.
#[derive(Debug)]
pub(super) struct Account {
    pub(super) limit: Limit,
    /// The client's view at the end.
    pub(super) seen: Seen,
    pub(super) steady: Given,
    pub(super) takeover: Given,
    /// The most in [`WINDOW_SECS`], in RU a second; 0 before so much time has passed.
    pub(super) most_per_sec: f64,
    /// The readings of the last such time, the last before it, and nothing of the warm-up.
    readings: VecDeque<(f64, u64)>,
}

/// RU that were given out in a time.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Given {
    pub(super) seconds: f64,
    ru: u64,
}

/// An owner that was killed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Takeover {
    pub(super) killed: SocketAddr,
    /// The one that decided in its place; `None` if there was none until the first was started again or the run ended.
    pub(super) by: Option<SocketAddr>,
    /// How long nobody decided.
    pub(super) took: Duration,
}

/// All that was measured.
#[derive(Debug)]
pub(super) struct Measurement {
    /// In the order of [`LIMITS`].
    pub(super) accounts: [Account; LIMITS.len()],
    pub(super) takeovers: Vec<Takeover>,
}

impl Account {
    pub(super) fn new(limit: Limit) -> Self {
        Self {
            limit,
            seen: Seen::default(),
            steady: Given::default(),
            takeover: Given::default(),
            most_per_sec: 0.0,
            readings: VecDeque::new(),
        }
    }

    /// Takes in the client's view at `seconds`, at the end of a time in this phase.
    pub(super) fn add(&mut self, seconds: f64, seen: Seen, phase: Phase) {
        self.seen = seen;
        let given = seen.answered;
        if phase == Phase::WarmUp {
            self.readings.clear();
        } else if let Some((before, earlier)) = self.readings.back() {
            let total = if phase == Phase::Steady { &mut self.steady } else { &mut self.takeover };
            total.seconds += seconds - before;
            total.ru += given.saturating_sub(*earlier);
        }
        self.readings.push_back((seconds, given));
        let is_old = |reading: &(f64, u64)| reading.0 <= seconds - WINDOW_SECS;
        while self.readings.get(1).is_some_and(is_old) {
            self.readings.pop_front();
        }
        if let Some((from, earlier)) = self.readings.front().filter(|reading| is_old(reading)) {
            self.most_per_sec = self.most_per_sec.max((given - earlier) as f64 / (seconds - from));
        }
    }

    /// The proportion of the limit that so much is.
    pub(super) fn share(&self, per_sec: f64) -> f64 {
        per_sec / f64::from(self.limit.per_sec)
    }

    /// Requests that were neither answered nor refused.
    pub(super) fn failed(&self) -> u64 {
        self.seen.failed + self.seen.lost
    }

    fn claim(&self) -> Result<(), String> {
        let client = self.limit.client;
        let is_scarce = self.limit.is_scarce();
        if self.failed() > 0 {
            return Err(format!("{} requests of {client} failed", self.failed()));
        }
        let refused = self.seen.refused;
        if !is_scarce && refused > 0 {
            return Err(format!("{refused} requests of {client} were refused, below its limit"));
        }
        let steady = self.share(self.steady.per_sec());
        if is_scarce && self.steady.seconds >= LEAST_SECS && !(0.95..=1.05).contains(&steady) {
            let seconds = self.steady.seconds;
            return Err(format!(
                "{client} had {} of its limit in {seconds:.0} s with an owner",
                percent(steady)
            ));
        }
        let most = self.share(self.most_per_sec);
        if most > 1.05 {
            return Err(format!("{client} had {} of its limit in {WINDOW_SECS:.0} s", percent(most)));
        }
        Ok(())
    }
}

impl Given {
    /// RU a second; 0 in no time.
    pub(super) fn per_sec(&self) -> f64 {
        if self.seconds > 0.0 { self.ru as f64 / self.seconds } else { 0.0 }
    }
}

impl Takeover {
    fn claim(&self) -> Result<(), String> {
        let Self { killed, by, took } = self;
        let seconds = took.as_secs_f64();
        match by {
            None => Err(format!("{seconds:.1} s after {killed} was killed no other owner decided")),
            Some(by) if *took > LONGEST_TAKEOVER => Err(format!(
                "{by} decided only {seconds:.1} s after {killed} was killed, which may take {:.1} s",
                LONGEST_TAKEOVER.as_secs_f64()
            )),
            Some(_) => Ok(()),
        }
    }
}

impl Measurement {
    /// The claims that do not hold, of what has been measured: no request failed; a client that asks for less than its limit was
    /// never refused; the others had 95 to 105 % of theirs while an owner decided, and never more than 105 % in any 10 s; a takeover
    /// took the lease, two ticks and what a busy machine needs.
    ///
    /// In a run that `is_whole` all of that has to be measured.
    pub(super) fn claim(&self, is_whole: bool) -> Result<(), String> {
        let accounts = self.accounts.iter().map(Account::claim);
        let takeovers = self.takeovers.iter().map(Takeover::claim);
        let mut broken: Vec<_> = accounts.chain(takeovers).filter_map(Result::err).collect();
        if is_whole && self.takeovers.is_empty() {
            broken.push("no owner was replaced".to_owned());
        }
        if is_whole && !self.is_enough() {
            broken.push(format!("an owner decided for {:.0} s only", self.accounts[0].steady.seconds));
        }
        if broken.is_empty() { Ok(()) } else { Err(broken.join("\n  ")) }
    }

    /// Notes that no other owner has decided so long after one was killed, if that is too long.
    pub(super) fn add_unfinished(&mut self, killed: SocketAddr, took: Duration) {
        if took > LONGEST_TAKEOVER {
            self.takeovers.push(Takeover { killed, by: None, took });
        }
    }

    /// True if a claim says something.
    pub(super) fn is_enough(&self) -> bool {
        self.accounts[0].steady.seconds >= LEAST_SECS
    }
}

/// No limit is exceeded in any time of this length.
pub(super) const WINDOW_SECS: f64 = 10.0;
/// Clients' counters are up to 100 ms old, which matters in less time than this.
const LEAST_SECS: f64 = 3.0;
/// An owner's lease, the time in which etcd notices that it is over, two ticks, and time for a busy machine.
const LONGEST_TAKEOVER: Duration = Duration::from_millis(3_000 + 500 + 200 + 1_000);

#[cfg(test)]
mod tests {
    use super::super::limits::{ENVOYS, GREEDY, POLITE};
    use super::*;

    /// An account of a client that had, of its limit, so much in the warm-up, with an owner and during a takeover, so many seconds
    /// each.
    fn account(limit: Limit, shares: [(f64, f64); 3]) -> Account {
        let mut account = Account::new(limit);
        let mut seconds = 0.0;
        let mut answered = 0.0;
        for (phase, (share, time)) in [Phase::WarmUp, Phase::Steady, Phase::Takeover].into_iter().zip(shares)
        {
            for _ in 0..(time * 5.0) as u32 {
                seconds += 0.2;
                answered += 0.2 * share * f64::from(limit.per_sec);
                account.add(seconds, Seen { answered: answered as u64, ..Seen::default() }, phase);
            }
        }
        account
    }

    fn measurement(greedy: [(f64, f64); 3]) -> Measurement {
        let accounts = [
            account(GREEDY, greedy),
            account(POLITE, [(0.5, 2.0), (0.5, 20.0), (0.5, 5.0)]),
            account(ENVOYS, [(1.0, 2.0), (1.0, 20.0), (0.3, 5.0)]),
        ];
        Measurement { accounts, takeovers: vec![takeover(true, 3_500)] }
    }

    fn takeover(is_replaced: bool, millis: u64) -> Takeover {
        let [killed, by] = ["127.0.0.1:1", "127.0.0.1:2"].map(|address| address.parse().unwrap());
        Takeover { killed, by: is_replaced.then_some(by), took: Duration::from_millis(millis) }
    }

    const GOOD: [(f64, f64); 3] = [(3.0, 2.0), (1.0, 20.0), (0.9, 5.0)];

    #[track_caller]
    fn check(measurement: &Measurement, is_whole: bool, broken: Option<&str>) {
        let claim = measurement.claim(is_whole).err();
        assert_eq!(claim.is_some(), broken.is_some(), "{claim:?}");
        assert!(claim.as_deref().unwrap_or_default().contains(broken.unwrap_or_default()), "{claim:?}");
    }

    #[test]
    fn a_limit_is_given_out_whole_and_no_more() {
        for (greedy, broken) in [
            (GOOD, None),
            // Without a limit, and with half of it.
            ([(3.0, 2.0), (3.0, 20.0), (1.0, 5.0)], Some("greedy had 300.0 % of its limit in 20 s")),
            ([(3.0, 2.0), (0.5, 20.0), (1.0, 5.0)], Some("greedy had 50.0 %")),
            // Only while there is no owner, for 5 of 10 s (of 10.2: floating-point sums are not exact).
            ([(3.0, 2.0), (1.0, 20.0), (1.2, 5.0)], Some("greedy had 109.8 % of its limit in 10 s")),
        ] {
            check(&measurement(greedy), true, broken);
        }
    }

    #[test]
    fn a_run_that_was_interrupted_claims_only_what_it_measured() {
        // Too short for a claim about an owner, or about 10 s.
        let short = measurement([(3.0, 2.0), (0.0, 2.0), (2.0, 5.0)]);
        check(&short, false, None);
        check(&short, true, Some("an owner decided for 2 s only"));
        assert!(!short.is_enough());
        let mut unkilled = measurement(GOOD);
        unkilled.takeovers.clear();
        check(&unkilled, false, None);
        check(&unkilled, true, Some("no owner was replaced"));
        assert!(unkilled.is_enough());
    }

    #[test]
    fn no_request_fails_and_below_a_limit_none_is_refused() {
        for (client, seen, broken) in [
            (0, Seen { refused: 100, ..Seen::default() }, None),
            (1, Seen { refused: 1, ..Seen::default() }, Some("1 requests of polite were refused")),
            (0, Seen { lost: 1, ..Seen::default() }, Some("1 requests of greedy failed")),
            (2, Seen { failed: 2, ..Seen::default() }, Some("2 requests of Envoy failed")),
        ] {
            let mut measurement = measurement(GOOD);
            measurement.accounts[client].seen = seen;
            check(&measurement, true, broken);
        }
    }

    #[test]
    fn another_owner_decides_when_the_lease_is_over() {
        for (is_replaced, millis, broken) in [
            (true, 3_500, None),
            (true, 6_000, Some("127.0.0.1:2 decided only 6.0 s after 127.0.0.1:1 was killed")),
            (false, 6_000, Some("6.0 s after 127.0.0.1:1 was killed no other owner decided")),
        ] {
            let mut measurement = measurement(GOOD);
            measurement.takeovers.push(takeover(is_replaced, millis));
            check(&measurement, true, broken);
        }
        // Whatever else does not hold, it is said.
        let mut other = measurement([(1.0, 2.0), (0.5, 20.0), (0.5, 5.0)]);
        other.takeovers.push(takeover(false, 6_000));
        check(&other, true, Some("no other owner decided"));
        check(&other, true, Some("of its limit in 20 s with an owner"));
        // A run that ends meanwhile says nothing of it.
        let mut measurement = measurement(GOOD);
        let killed = measurement.takeovers[0].killed;
        measurement.add_unfinished(killed, Duration::from_secs(4));
        assert_eq!(measurement.takeovers.len(), 1);
        measurement.add_unfinished(killed, Duration::from_secs(5));
        check(&measurement, true, Some("no other owner decided"));
    }
}
