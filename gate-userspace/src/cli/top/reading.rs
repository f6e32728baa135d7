//! One reading of a running gate: all documents at one time.

use gate_common::units::Nanos;

use crate::admin::client::Error;
use crate::admin::hotkeys::Hotkeys;
use crate::admin::queues::Queues;
use crate::admin::status::Status;
use crate::admin::tenants::Tenants;
use crate::admin::verdicts::SourceList;
use crate::cli::pins::Source;
use crate::clock;

/// The documents of a running gate, asked for one after the other.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    /// When they were asked for.
    pub(super) at: Nanos,
    pub(super) status: Status,
    pub(super) tenants: Tenants,
    pub(super) queues: Queues,
    pub(super) hotkeys: Hotkeys,
    pub(super) sources: SourceList,
}

/// A reading, or why there is none.
pub(super) type ReadResult = Result<Reading, Error>;

/// Asks for all documents.
///
/// # Errors
///
/// [`Error`].
pub(super) fn ask(source: &Source) -> ReadResult {
    let at = clock::monotonic();
    Ok(Reading {
        at,
        status: source.ask()?,
        tenants: source.ask()?,
        queues: source.ask()?,
        hotkeys: source.ask()?,
        sources: source.ask()?,
    })
}

/// Two readings of one gate, by which rates are computed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span<'a> {
    pub(super) before: Option<&'a Reading>,
    pub(super) now: &'a Reading,
}

impl Span<'_> {
    /// How much a counter rises in a second; nothing with one reading, or if it fell, as when gate was started anew.
    pub(super) fn rate(&self, before: Option<f64>, now: f64) -> Option<f64> {
        let secs = self.now.at.saturating_sub(self.before?.at).0 as f64 / 1e9;
        let risen = now - before?;
        (secs > 0.0 && risen >= 0.0).then(|| risen / secs)
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::empty;
    use super::*;

    #[test]
    fn rates_need_two_readings_and_a_counter_that_did_not_fall() {
        let before = empty(1);
        let now = empty(3);
        let span = Span { before: Some(&before), now: &now };
        for (was, is, rate) in [
            (Some(10.0), 30.0, Some(10.0)),
            (Some(10.0), 10.0, Some(0.0)),
            (Some(10.0), 9.0, None),
            (None, 9.0, None),
        ] {
            assert_eq!(span.rate(was, is), rate, "{was:?} {is}");
        }
        assert_eq!(Span { before: None, now: &now }.rate(Some(1.0), 2.0), None);
        assert_eq!(Span { before: Some(&now), now: &now }.rate(Some(1.0), 2.0), None, "no time between them");
    }
}
