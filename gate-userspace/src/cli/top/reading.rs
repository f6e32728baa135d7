//! One reading of a running gate: the documents that the screen shows, at one time.

use gate_common::units::Nanos;

use crate::admin::client::Error;
use crate::admin::hotkeys::Hotkeys;
use crate::admin::listing::Tenants;
use crate::admin::queues::Queues;
use crate::admin::selection::Selection;
use crate::admin::status::Status;
use crate::admin::tenants::Tenant;
use crate::admin::verdicts::SourceList;
use crate::cli::pins::Source;
use crate::clock;

/// The documents that a view shows beside tenants and status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Documents {
    /// None: it shows tenants.
    Tenants,
    Queues,
    Hotkeys,
    Sources,
}

/// The wishes of the screen: only what it shows is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) documents: Documents,
    /// The part of the tenants that may be in sight; none but their sums in other views.
    pub(super) tenants: Selection,
    /// The tenant of which all is shown.
    pub(super) detail: Option<String>,
}

/// The documents of a running gate, asked for one after the other. Those that the view does not show are empty.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    /// When they were asked for.
    pub(super) at: Nanos,
    /// For what.
    pub(super) of: Wanted,
    pub(super) status: Status,
    pub(super) tenants: Tenants,
    /// The tenant of [`Wanted::detail`]; nothing if it is gone.
    pub(super) detail: Option<Tenant>,
    pub(super) queues: Queues,
    pub(super) hotkeys: Hotkeys,
    pub(super) sources: SourceList,
}

/// A reading, or why there is none.
pub(super) type ReadResult = Result<Reading, Error>;

/// Asks for what is wanted.
///
/// # Errors
///
/// [`Error`].
pub(super) fn ask(source: &Source, wanted: &Wanted) -> ReadResult {
    let at = clock::monotonic();
    let of_detail = |tenant: &String| {
        let one = Selection { tenant: Some(tenant.clone()), ..Selection::default() };
        source.tenants(&one).map(|found| found.tenants.into_iter().next())
    };
    let shows = |documents| wanted.documents == documents;
    Ok(Reading {
        at,
        of: wanted.clone(),
        status: source.ask()?,
        tenants: source.tenants(&wanted.tenants)?,
        detail: wanted.detail.as_ref().map(of_detail).transpose()?.flatten(),
        queues: if shows(Documents::Queues) { source.ask()? } else { Queues::default() },
        hotkeys: if shows(Documents::Hotkeys) { source.ask()? } else { Hotkeys::default() },
        sources: if shows(Documents::Sources) { source.ask()? } else { SourceList::default() },
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
        let before = empty(1, Documents::Tenants);
        let now = empty(3, Documents::Tenants);
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
