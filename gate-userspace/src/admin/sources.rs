//! Where the documents are read, and where changes are made.

use std::path::PathBuf;
use std::sync::Arc;

use gate_common::units::Nanos;
use tokio::sync::{mpsc, watch};

use super::cache::ByService;
use super::change::{Override, PendingOrder};
use super::fleet::FleetOwner;
use super::interception::Interception;
use super::listing::{self, Tenants};
use super::observer::Observer;
use super::rates::Readings;
use super::selection::Selection;
use super::status::{Interface, ListensAt, Status};
use super::tenants::{self, Tenant};
use crate::clock;
use crate::control::verdicts::Verdicts;
use crate::dispatcher::{LimitRefusals, MemberCounts, Questions};
use crate::envoy::Counters;
use crate::fleet::gate::shared::SharedBook;
use crate::kernel::Maps;
use crate::limits::Table;
use crate::logging;

/// The sources of the documents.
#[derive(Debug)]
pub struct Sources {
    /// Where counters, names and states are.
    pub maps: Arc<Maps>,
    /// The readings of the queues.
    pub queues: Observer,
    /// The sampled verdicts.
    pub verdicts: Verdicts,
    /// The ways to ask what the next request to a proxied service would get.
    pub questions: Vec<Questions>,
    /// The caches of HTTP services.
    pub caches: ByService,
    /// The refusals by tenants' limits; `None` where nothing is proxied.
    pub limits: Option<LimitRefusals>,
    /// The counts of tenants' members, if a service is proxied.
    pub members: Option<MemberCounts>,
    /// The named limits and the counters of the server that Envoys ask; `None` without one.
    pub envoy: Option<(Arc<Table>, Arc<Counters>, usize)>,
    /// The book of the limits that are shared with other gates; `None` without `[fleet]`.
    pub fleet: Option<SharedBook>,
    /// The readings that rates are made of.
    pub readings: Readings,
    /// The overrides.
    pub overrides: watch::Receiver<Vec<Override>>,
    /// The interfaces that have vanished, or where the program is no longer.
    pub vanished: watch::Receiver<Vec<String>>,
    /// The places where it listens, the addresses of its services aside.
    pub listens: Vec<ListensAt>,
    /// The keys whose values count from the next start only.
    pub later: watch::Receiver<Vec<String>>,
    /// True while listeners of proxied services are open.
    pub accepting: watch::Receiver<bool>,
    /// True if the program has to be attached.
    pub attached: bool,
    /// Where interception is pinned, if a service is intercepted.
    pub intercepts_at: Option<PathBuf>,
    /// The interval of ticks.
    pub tick: Nanos,
    /// Where changes are made.
    pub changes: mpsc::Sender<PendingOrder>,
}

impl Sources {
    /// The tenants that are selected, with what has been set of them and the names of limits.
    pub(super) fn tenants(&self, wanted: &Selection) -> Tenants {
        let overrides = self.overrides.borrow().clone();
        let mut listed =
            listing::read(&self.maps, wanted, &overrides, Some(&self.readings), clock::monotonic());
        self.name_limits(&mut listed.tenants);
        listed
    }

    /// Those with these numbers, likewise.
    pub(super) fn tenants_of(&self, ids: impl Iterator<Item = u32>, overrides: &[Override]) -> Vec<Tenant> {
        let mut tenants = tenants::read_some(&self.maps, ids, overrides);
        self.name_limits(&mut tenants);
        tenants
    }

    fn name_limits(&self, tenants: &mut [Tenant]) {
        if let Some(limits) = &self.limits {
            tenants.iter_mut().for_each(|tenant| tenant.name_limits(|id, name| limits.of(id, name)));
        }
    }

    /// The status, with what only the daemon knows.
    pub(super) fn status(&self) -> Status {
        let overrides = self.overrides.borrow().clone();
        // Private maps do not name their owner.
        let daemon = Some(std::process::id());
        let vanished = self.vanished.borrow().clone();
        let stores = self.queues.stores(clock::monotonic());
        let is_detached =
            |interface: &Interface| interface.name.as_ref().is_some_and(|name| vanished.contains(name));
        let status =
            Status::read(&self.maps).without(is_detached).with(&self.queues.report()).with_stores(&stores);
        let log_lines_lost = logging::lost().total();
        Status {
            overrides,
            daemon,
            vanished,
            listens: self.listens.clone(),
            later: self.later.borrow().clone(),
            fleet: self.owners(),
            interception: self.interception(),
            log_lines_lost,
            ..status
        }
    }

    /// The stores' addresses at which gate gets the connections, if there are any.
    pub(super) fn interception(&self) -> Option<Interception> {
        Interception::read(self.intercepts_at.as_ref()?)
    }

    /// The owners of limits that are shared with other gates.
    pub(super) fn owners(&self) -> Vec<FleetOwner> {
        let now = self.maps.clock().at_monotonic(clock::monotonic());
        self.fleet.as_ref().map_or_else(Vec::new, |book| FleetOwner::read(book, now))
    }
}
