//! Requests that a node of a cluster sends to another, by `MOVED` or `ASK`; and the slots, which are read again then.
//!
//! **Trust.** A client's script can write an error that reads like a redirection. So one leads its own request alone, and only to a node
//! that a node has named to gate itself; it changes no slot, and no other client's way. The script has run then, so it is charged again
//! each time.
//!
//! **Order.** A client's requests about a slot go to one node over one connection, and are redirected in the order of their replies,
//! over one connection as well. Before requests go to a slot's new node directly, its clients have all their replies
//! ([`crate::dispatcher::cluster`]).
//!
//! **Bounds.** A request follows at most `max_redirects`, so circles end. What is not kept follows none: bodies of 64 KiB and more,
//! requests behind 4 MiB that are unanswered, and those whose client does not read. They are answered `TRYAGAIN`, which they can.
//!
//! **Refresh.** The slots are read when the service starts, every 30 s, and when a node says that one is elsewhere or not served, or
//! fails, and when a request is refused since its node is down; not more often than once a second. Slots that cannot be are not taken
//! over: the last ones hold.

use std::rc::Rc;
use std::time::Duration;

use super::redirected_request::RedirectedRequest;
use super::service::{Service, Session};
use crate::clock;
use crate::dispatcher::cluster::Cluster;
use crate::dispatcher::hot_cache::CacheRole;
use crate::dispatcher::identity::Identity;
use crate::dispatcher::metrics::Event;
use crate::dispatcher::request::{InFlight, Target};
use crate::dispatcher::store_place::NodeId;
use crate::dispatcher::stores::dedicated::DedicatedConnection;
use crate::dispatcher::stores::error::StoreError;
use crate::dispatcher::stores::events::{Failure, ReplyProgress, StoreEvents as _};
use crate::dispatcher::wire::{Placed, Wire};
use crate::policy::placement;
use crate::protocol::resp::cluster::Redirection;

/// The place where an error of a node sends a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    node: NodeId,
    /// True if the node takes it for `ASKING` alone.
    asks: bool,
    /// The slot that is said to be there.
    slot: usize,
}

impl<W: Wire> Service<W> {
    /// A node's error sends a request to another. It goes there once this read's replies are processed.
    pub(super) fn redirect(
        &self,
        mut in_flight: InFlight<Rc<Session<W>>, CacheRole>,
        error: &[u8],
        bytes: Option<&[u8]>,
        progress: ReplyProgress,
    ) {
        if let CacheRole::AskSize { .. } = in_flight.cache_role {
            return self.size_answered(&in_flight.client, None);
        }
        // gate's own question, about what its client has been sent elsewhere for.
        let is_own = matches!(in_flight.cache_role, CacheRole::QueryTtl(_));
        let Some(cluster) = self.settings.cluster.as_ref().filter(|_| !is_own) else { return };
        self.metrics.count(Event::Redirected);
        let to = self.follow_map(cluster, in_flight.node, error);
        let bytes = bytes.filter(|_| !progress.is_paused);
        let request = bytes.and_then(|bytes| Some((W::whole(bytes)?.0, bytes)));
        let failure = match (to, request) {
            (Err(astray), _) => astray,
            (Ok(_), _) if in_flight.redirects >= cluster.max_redirects => TOO_MANY,
            (Ok(_), None) => W::AGAIN,
            // No node says that of a request about another slot, or about none.
            (Ok(way), Some((request, bytes))) if slot_of::<W>(&request, bytes) != Ok(Some(way.slot)) => {
                UNREADABLE
            }
            (Ok(Way { node, asks, .. }), Some((request, bytes))) => {
                if W::may_run_code(&request) {
                    self.admission.charge_again(&in_flight.charged, clock::monotonic());
                }
                (in_flight.node, in_flight.redirects) = (node, in_flight.redirects + 1);
                let bytes = bytes.to_vec();
                let redirected = RedirectedRequest { in_flight, request, bytes, asks };
                return self.redirected.borrow_mut().push(redirected);
            }
        };
        self.metrics.count(Event::RedirectFailed);
        self.failed(in_flight, progress, Failure::Astray(failure));
    }

    /// The way that an error of `from` says. The slots are read again.
    ///
    /// # Errors
    ///
    /// The reply to the client, if it cannot go there.
    pub(super) fn follow_map(
        &self,
        cluster: &Cluster,
        from: NodeId,
        error: &[u8],
    ) -> Result<Way, &'static [u8]> {
        cluster.ask_refresh();
        let Some(Redirection { asks, slot, host, port }) = W::redirection(error) else {
            return Err(UNREADABLE);
        };
        let ip = self.settings.address(from).fixed().map(|address| address.ip());
        // A node that is new is known once the slots have been read.
        let node = cluster.known_node_at(host, port, ip).ok_or(W::AGAIN)?;
        Ok(Way { node, asks, slot: slot.into() })
    }

    /// Sends the requests that nodes have sent to others.
    pub(super) fn follow_redirections(&self) {
        if self.redirected.borrow().is_empty() {
            return;
        }
        let now = clock::monotonic();
        for redirected in std::mem::take(&mut *self.redirected.borrow_mut()) {
            let RedirectedRequest { in_flight, request, bytes, asks } = redirected;
            let progress = ReplyProgress { is_started: false, is_paused: false };
            let store = in_flight.client.store(in_flight.node);
            if let Err(refusal) = store.accepts(now) {
                let retry_after = refusal.retry_after;
                self.failed(in_flight, progress, Failure::Unsent { retry_after });
                continue;
            }
            let asking = W::whole(W::ASKING).map(|(asking, _)| asking).filter(|_| asks);
            if let Some(asking) = asking {
                store.send(asking_for(&in_flight), &asking, W::ASKING, (None, None), now);
            }
            let slow = self.begin_slow(in_flight.node, &request, now);
            store.send(in_flight, &request, &bytes, (None, slow), now);
        }
    }

    /// Asks for the slots of its cluster, if it has one: a node is not there, and another may have its slots.
    pub(super) fn ask_for_slots(&self) {
        self.settings.cluster.iter().for_each(|cluster| cluster.ask_refresh());
    }

    /// Reads the slots of its cluster, for ever.
    pub(crate) async fn follow_slots(self: Rc<Self>) {
        let Some(cluster) = self.settings.cluster.clone() else { return };
        let mut is_failing = false;
        let mut first = 0;
        loop {
            let read = self.read_slots(&cluster, &mut first).await;
            match &read {
                Ok(true) => {
                    let (slots, nodes) = cluster.slots().size();
                    self.metrics.count(Event::SlotsChanged);
                    tracing::info!(
                        service = self.settings.name,
                        slots,
                        nodes,
                        "the cluster's slots have changed"
                    );
                }
                Ok(false) => {}
                Err((node, error)) => {
                    self.metrics.count(Event::SlotsUnknown);
                    if !is_failing {
                        let service = &self.settings.name;
                        tracing::warn!(service, %node, %error, "no node says the cluster's slots: the last ones hold");
                    }
                }
            }
            is_failing = read.is_err();
            tokio::time::sleep(AT_MOST_EVERY).await;
            if !is_failing {
                tokio::select! {
                    () = cluster.refresh_wanted() => {}
                    () = tokio::time::sleep(EVERY) => {}
                }
            }
        }
    }

    /// Reads the slots from the first node that says any that can be; not from the same as before at first, and from those that are
    /// known to be down at last. True if they are others.
    ///
    /// # Errors
    ///
    /// The last node, and its failure.
    async fn read_slots(&self, cluster: &Cluster, first: &mut usize) -> Result<bool, (String, StoreError)> {
        let used = *cluster.used().borrow();
        *first += 1;
        let mut failed = (String::new(), StoreError::Unresolved);
        let now = clock::monotonic();
        let in_turn = (0..used).map(|place| NodeId::at((*first + place) % used));
        // One that is silent would take all of `store_timeout`.
        let is_down = |node: &NodeId| self.service_metrics.stores[node.index()].is_down(now);
        let (down, up): (Vec<_>, Vec<_>) = in_turn.partition(is_down);
        for node in up.into_iter().chain(down) {
            let Some(address) = cluster.address(node) else { continue };
            let read = async {
                let settings = &self.settings;
                let identity = Identity::default();
                let mut node = DedicatedConnection::open_answering(settings, node, Some(&identity)).await?;
                let (shards, from) = node.shards(settings).await?;
                let adopted =
                    cluster.adopt(&shards, from, |change| self.hot.marker().while_keys_move(change));
                adopted.map_err(|error| StoreError::BadSlots(error.to_string()))
            };
            match read.await {
                Ok(differs) => return Ok(differs),
                Err(error) => failed = (address.to_string(), error),
            }
        }
        Err(failed)
    }
}

/// The slot of a cluster that a request is about; `None` if it is about none.
///
/// # Errors
///
/// If no node alone answers it.
#[inline]
pub(super) fn slot_of<W: Wire>(request: &W::Request, bytes: &[u8]) -> Result<Option<usize>, Target> {
    match W::placed(request, bytes) {
        Placed::AtKeys { .. } => {
            let mut slots = W::keys(request, bytes).map(placement::slot);
            let first = slots.next();
            if slots.any(|slot| Some(slot) != first) {
                return Err(Target::CrossSlot);
            }
            Ok(first)
        }
        Placed::Anywhere => Ok(W::slot(request, bytes)),
        Placed::Everywhere(_) | Placed::InTurn | Placed::Nowhere => Err(Target::Nowhere),
    }
}

/// The `ASKING` ahead of a request: gate's own question, whose answer no client gets.
fn asking_for<C: Clone>(in_flight: &InFlight<C, CacheRole>) -> InFlight<C, CacheRole> {
    let InFlight { node, seq, features, .. } = *in_flight;
    InFlight {
        client: in_flight.client.clone(),
        node,
        seq,
        charged: in_flight.charged.clone(),
        features,
        silent: true,
        redirects: 0,
        cache_role: CacheRole::QueryTtl(None),
    }
}

/// The least time between two readings, and the most.
const AT_MOST_EVERY: Duration = Duration::from_secs(1);
const EVERY: Duration = Duration::from_secs(30);
const TOO_MANY: &[u8] =
    b"-ERR the cluster's nodes send this on to each other; gate follows no more often than max_redirects says\r\n";
const UNREADABLE: &[u8] = b"-ERR a node of the cluster sends this to a place that cannot be read\r\n";
