//! Debts that outlive a restart of all owners and gates: a file, written once a minute and when the owner ends.
//!
//! **Problem.** An owner that starts anew is told of debts by the gates. When all of them have ended as well, a day that was used up would begin
//! anew.
//!
//! **Rule.** Kept is what is owed by accounts of windows, and of limits whose burst takes [`LONG`] or longer. When it is read again, what has come
//! in meanwhile has been paid, and a window's debt holds while that window lasts. A larger debt that a gate knows of counts.
//!
//! **Loss.** What was given out since the file was written last.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gate_common::units::Nanos;
use tokio::time::{interval, sleep};

use super::accounts::Accounts;
use gate_limits::Name;
use gate_system::clock;
use gate_system::system_error::in_words;

/// The file, and what it says until that is in force.
#[derive(Debug)]
pub struct Kept {
    path: PathBuf,
    unread: Option<Saved>,
}

/// A file's text, and the Unix time at which it was written, in seconds.
#[derive(Debug)]
struct Saved {
    at: u64,
    text: String,
}

impl Kept {
    /// Reads the file at a path, if there is one.
    ///
    /// # Errors
    ///
    /// The system's; or the file holds something else, and is not to be written over.
    pub fn read(path: PathBuf) -> io::Result<Self> {
        let unread = match std::fs::read_to_string(&path) {
            Ok(text) if text.is_empty() => None,
            Ok(text) => Some(Saved::of(text).ok_or_else(|| io::Error::other(NO_DEBTS))?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        Ok(Self { path, unread })
    }

    /// Puts in force what it says, once limits are known.
    pub fn restore(&mut self, accounts: &Accounts) {
        if !accounts.rules().is_known {
            return;
        }
        let Some(saved) = self.unread.take() else { return };
        let path = self.path.display();
        match saved.restore(accounts, clock::monotonic(), clock::unix_secs()) {
            (debts, 0) => tracing::info!(debts, %path, "debts from before the start hold again"),
            (debts, faulty) => {
                tracing::warn!(debts, faulty, %path, "debts from before the start hold again, but for faulty lines");
            }
        }
    }

    /// Puts it in force, and then writes it once a minute, until this is dropped.
    pub async fn follow(&mut self, accounts: &Arc<Accounts>) {
        let mut looks = interval(LOOK_EVERY);
        while self.unread.is_some() {
            looks.tick().await;
            self.restore(accounts);
        }
        loop {
            sleep(WRITE_EVERY).await;
            let path = self.path.clone();
            let accounts = Arc::clone(accounts);
            // Fails only if it panics.
            let _ = tokio::task::spawn_blocking(move || write_or_warn(&path, &accounts)).await;
        }
    }

    /// Writes it for the last time; what was never in force stays.
    pub fn end(self, accounts: &Accounts) {
        if self.unread.is_none() {
            write_or_warn(&self.path, accounts);
        }
    }
}

fn write_or_warn(path: &Path, accounts: &Accounts) {
    let text = saved(accounts, clock::monotonic(), clock::unix_secs());
    if let Err(error) = write(path, &text) {
        tracing::error!(path = %path.display(), error = in_words(&error), "cannot write the file of debts");
    }
}

/// Writes a whole file in the place of the one that is there.
fn write(path: &Path, text: &str) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let beside = beside(path);
    let mut file =
        std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&beside, path)
}

/// The file that takes the place of another one when it is whole.
fn beside(path: &Path) -> PathBuf {
    path.with_added_extension("new")
}

/// The debts of all accounts: a line each, with the milliseconds until the bucket is full, the beginning of its window or `-`, and the name.
fn saved(accounts: &Accounts, now: Nanos, unix_secs: u64) -> String {
    let mut text = format!("{HEAD}{unix_secs}\n");
    let wall = accounts.wall();
    for account in accounts.all() {
        let state = account.lock_at(now, wall);
        let is_long = state.limits.is_some_and(|limits| limits.window.is_some() || limits.burst_ns >= LONG.0);
        let full_in = state.full_in(now).0.div_ceil(1_000_000);
        if is_long && full_in > 0 {
            let window = state.window_begins().map_or("-".to_owned(), |begins| begins.to_string());
            let _ = writeln!(text, "{full_in} {window} {}", account.name);
        }
    }
    text
}

impl Saved {
    /// The text that [`saved`] makes; `None` if it is something else.
    fn of(text: String) -> Option<Self> {
        let at = text.lines().next()?.strip_prefix(HEAD)?.parse().ok()?;
        Some(Self { at, text })
    }

    /// Puts debts in force. Returns how many, and how many lines are none.
    fn restore(&self, accounts: &Accounts, now: Nanos, unix_secs: u64) -> (usize, usize) {
        let since = Nanos::from_secs(unix_secs.saturating_sub(self.at));
        let wall = accounts.wall();
        let mut debts = 0;
        let mut faulty = 0;
        for line in self.text.lines().skip(1) {
            let Some((full_in, window, name)) = parsed(line) else {
                faulty += 1;
                continue;
            };
            // One that no limit fits any more owes nothing.
            let Ok(account) = accounts.account(now, &name) else { continue };
            let mut state = account.lock_at(now, wall);
            let full_in = match (window, state.window_begins()) {
                (None, None) => full_in.saturating_sub(since),
                (Some(saved), Some(present)) if saved == present => full_in,
                // Another window has begun since, or the limit counts otherwise by now.
                (None | Some(_), None | Some(_)) => continue,
            };
            if full_in > Nanos::ZERO {
                state.shares.add_debt(now, full_in);
                debts += 1;
            }
        }
        (debts, faulty)
    }
}

fn parsed(line: &str) -> Option<(Nanos, Option<i64>, Name)> {
    let mut fields = line.splitn(3, ' ');
    let full_in = Nanos(fields.next()?.parse::<u64>().ok()?.saturating_mul(1_000_000));
    let window = match fields.next()? {
        "-" => None,
        begins => Some(begins.parse().ok()?),
    };
    Some((full_in, window, Name::parse(fields.next()?).ok()?))
}

/// The fault of a file that holds something else.
const NO_DEBTS: &str =
    "it holds something else than the debts of an owner of this version; name another file, or remove it";
/// Begins the first line; behind it is the Unix time at which the file was written, in seconds.
const HEAD: &str = "gate's debts, version 1, at ";
/// A burst that takes less time is paid, or given out anew, within the time of a restart.
const LONG: Nanos = Nanos::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(100);
const WRITE_EVERY: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::owner::counters::Counters;
    use gate_limits::{Calendar, Limits, Pattern, Period, Rule, Rules, WallClock};

    const HOUR: u64 = 3_600;
    const NOW: Nanos = Nanos::from_secs(1_000);
    /// A whole hour in UTC.
    const UNIX: u64 = 1_774_731_600;

    fn accounts(now: Nanos, unix_secs: u64) -> Accounts {
        let mut rules = Rules::default();
        let calendar = Arc::new(Calendar::new(Period::Hour, Calendar::zone("UTC").unwrap()));
        let window = Limits::in_window(10_000, Period::Hour);
        let limits = [
            ("window/*", window),
            ("even/*", Limits::requests_in(10, Nanos::from_secs(HOUR))),
            ("short/*", Limits::new(10_000, 1_000_000_000)),
        ];
        for (name, limits) in limits {
            let pattern = Pattern::parse(&name.replace("/*", "/user=*")).unwrap();
            let calendar = limits.window.map(|_| Arc::clone(&calendar));
            rules.add(Rule { calendar, ..Rule::new(pattern, limits) }).unwrap();
        }
        let accounts = Accounts::new(rules, 100, 2, Arc::new(Counters::default()));
        accounts.set_clock(WallClock::at(now, unix_secs * 1_000));
        accounts
    }

    fn left(accounts: &Accounts, name: &str, now: Nanos) -> i64 {
        let account = accounts.account(now, &Name::parse(name).unwrap()).unwrap();
        account.lock_at(now, accounts.wall()).shares.left(now)
    }

    #[test]
    fn debts_hold_again_less_what_has_been_paid_meanwhile() {
        let before = accounts(NOW, UNIX);
        for name in ["window/user=a", "even/user=b", "short/user=c"] {
            let account = before.account(NOW, &Name::parse(name).unwrap()).unwrap();
            let mut state = account.lock_at(NOW, before.wall());
            let used = gate_policy::fleet_share::Used {
                within: Nanos::from_millis(100),
                charged: 6_000,
                refused: 0,
            };
            state.shares.report(1, NOW, used);
        }
        let _ = left(&before, "even/user=idle", NOW);
        let text = saved(&before, NOW, UNIX);
        assert_eq!(text.lines().count(), 3, "{text}");
        let text = Saved::of(text).unwrap();
        // Half an hour later, on a machine that has just started.
        let now = Nanos::from_secs(5);
        let half = accounts(now, UNIX + HOUR / 2);
        assert_eq!(text.restore(&half, now, UNIX + HOUR / 2), (2, 0));
        assert_eq!(left(&half, "window/user=a", now), 4_000);
        let evenly = left(&half, "even/user=b", now);
        assert!((8_990..=9_010).contains(&evenly), "{evenly}");
        // In the next hour the window's debt is none, and that of the other is paid.
        let next = accounts(now, UNIX + HOUR);
        assert_eq!(text.restore(&next, now, UNIX + HOUR), (0, 0));
        assert_eq!(left(&next, "window/user=a", now), 10_000);
        // A gate that knows more is believed.
        let told = half.account(now, &Name::parse("window/user=a").unwrap()).unwrap();
        told.lock_at(now, half.wall()).shares.add_debt(now, Nanos::from_secs(9));
        assert_eq!(text.restore(&half, now, UNIX + HOUR / 2), (2, 0));
        assert_eq!(left(&half, "window/user=a", now), 1_000);
    }

    #[test]
    fn files_of_one_stem_are_written_beside_each_other() {
        let beside = ["debts.a", "debts.b", "debts"].map(|path| beside(Path::new(path)));
        assert_eq!(beside, ["debts.a.new", "debts.b.new", "debts.new"].map(PathBuf::from));
    }

    #[test]
    fn a_file_of_something_else_is_not_written_over() {
        let path = std::env::temp_dir().join(format!("gate-debts-{}", std::process::id()));
        for (text, is_taken) in [("root:x:0:0\n", false), ("", true), (&*format!("{HEAD}5\n"), true)] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(Kept::read(path.clone()).is_ok(), is_taken, "{text}");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(Kept::read(path).unwrap().unread.is_none());
    }

    #[test]
    fn a_faulty_file_does_no_harm() {
        let accounts = accounts(NOW, UNIX);
        for text in ["", "nonsense", "gate's debts, version 2, at 5\n", "gate's debts, version 1, at x\n"] {
            assert!(Saved::of(text.to_owned()).is_none(), "{text}");
        }
        let text = format!(
            "{HEAD}{UNIX}\n18446744073709551615 - even/user=a\nx - even/user=b\n5\n\n7 - unknown/user=c\n9 99 window/user=d\n8 - no=name\n"
        );
        assert_eq!(Saved::of(text).unwrap().restore(&accounts, NOW, UNIX), (1, 4));
        // Debts have the bounds that they always have.
        assert!(left(&accounts, "even/user=a", NOW) >= -10_000);
    }
}
