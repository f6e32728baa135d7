//! The running daemon: its loop, its tick, and its end.

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use gate_common::units::Nanos;
use tokio::time::{Interval, MissedTickBehavior};

use super::attached::Attached;
use super::changes::Changes;
use super::draining::Draining;
use super::envoy::EnvoyServer;
use super::error::Error;
use super::neighbour::Neighbour;
use super::options::Options;
use super::service_manager::{ServiceManager, take_over_from_parent};
use super::settings::{now, syn_cookies};
use super::settling::Settling;
use super::signals::Signals;
use super::turn::Turn;
use crate::clock;
use crate::control::board::{Board, Report};
use crate::control::hot_keys::HotKeys;
use crate::control::occupied::{Occupied, occupied};
use crate::control::tick::Ticker;
use crate::control::verdicts::Verdicts;
use crate::control::watch::Watch;
use crate::dispatcher::{self, Dispatcher, ServiceMetrics};
use crate::fleet::gate::reporter::Reporter;
use crate::kernel::owner::{Ownership, Predecessor};
use crate::kernel::{CpuWatch, Heartbeat, Interception, Maps, Migration, Received};
use crate::logging;
use crate::probe::Prober;

/// Why the daemon stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    Requested,
    HandOver,
}

/// A gate that runs.
pub(super) struct Daemon {
    pub(super) options: Options,
    pub(super) tick: Nanos,
    pub(super) maps: Arc<Maps>,
    pub(super) ownership: Ownership,
    /// `None` where there is no XDP: the maps are this process' own then.
    pub(super) attached: Option<Attached>,
    pub(super) cpus: CpuWatch,
    pub(super) ticker: Ticker,
    pub(super) hot_keys: HotKeys,
    /// Sampled verdicts.
    pub(super) verdicts: Verdicts,
    pub(super) reload: bool,
    /// The last change, while threads have yet to take it over.
    pub(super) settling: Settling,
    pub(super) draining: Option<Draining>,
    /// This machine's addresses, as the layout in force knows them.
    pub(super) local: BTreeSet<IpAddr>,
    pub(super) changes: Changes,
    pub(super) watch: Watch,
    pub(super) prober: Option<Prober>,
    /// The results of each tick.
    pub(super) board: Board,
    pub(super) dispatcher: Option<Dispatcher>,
    /// The program that gives stores' connections to gate, if any are intercepted.
    pub(super) interception: Option<Interception>,
    /// The server that Envoys ask.
    pub(super) envoy: Option<EnvoyServer>,
    /// The maps of a gate before this one that still charges there for the clients that it drains.
    pub(super) migrating: Option<(Migration, Predecessor)>,
    /// The numbers of the tenants that the gate before this one had: it may have clients of theirs.
    pub(super) inherited_tenants: HashSet<u32>,
    pub(super) service_manager: ServiceManager,
    /// The right to start, until the gate before this one has been told to hand over.
    pub(super) turn: Option<Turn>,
    /// The gate before this one, if no map names it; it is told to hand over once this one serves.
    pub(super) neighbour: Option<Neighbour>,
    /// Reports to the owners of limits that this gate shares with others.
    pub(super) reporter: Option<Reporter>,
    pub(super) _heartbeat: Heartbeat,
}

impl Daemon {
    /// Serves until it is told to stop.
    pub(super) async fn serve(&mut self, signals: &mut Signals) -> Result<Stop, Error> {
        let mut ticks = every(self.tick.into());
        let mut samples = every(SAMPLES_EVERY);
        let mut looks = every(INTERFACE_EVERY);
        let mut departures = every(dispatcher::LOOK_EVERY);
        loop {
            tokio::select! {
                _ = signals.interrupt.recv() => return Ok(Stop::Requested),
                _ = signals.terminate.recv() => if !self.drain() { return Ok(Stop::Requested) },
                _ = signals.hand_over.recv() => return Ok(Stop::HandOver),
                _ = signals.hang_up.recv() => {
                    logging::reopen_all();
                    self.reload = true;
                }
                _ = signals.upgrade.recv() => self.service_manager.start_successor(),
                Some(order) = self.changes.orders.recv() => self.changes.waiting.push_back(order),
                _ = ticks.tick() => self.on_tick()?,
                _ = samples.tick() => self.drain_samples(),
                _ = looks.tick() => {
                    self.look_after_interfaces();
                    self.look_after_local_addresses()?;
                    self.look_after_migration();
                    self.look_after_interception()?;
                    self.service_manager.check_successor();
                }
                _ = departures.tick(), if self.draining.is_some() => if self.has_drained() { return Ok(Stop::Requested) },
            }
        }
    }

    /// Tells whoever waits for it that gate serves now.
    pub(super) fn announce(&mut self) {
        self.service_manager.ready();
        match self.neighbour.take() {
            Some(neighbour) => neighbour.hand_over(),
            None if self.attached.is_none() => {
                if let Err(error) = take_over_from_parent() {
                    tracing::warn!(%error, "cannot ask the old gate to leave");
                }
            }
            None => {}
        }
        self.turn = None;
    }

    fn on_tick(&mut self) -> Result<(), Error> {
        let started = clock::monotonic();
        if self.settling.look(self.dispatcher.as_ref(), &self.service_manager) && !self.ticker.stabilising() {
            self.change()?;
            // Where there are no threads it is settled.
            self.settling.look(self.dispatcher.as_ref(), &self.service_manager);
        }
        let now = now(&self.maps);
        let services = self.watch.tick(now, |service| self.ticker.is_overloaded(service));
        let generation = self.ticker.tick(now, &services)?;
        self.watch.pace(&self.maps, now, self.attached.as_ref().is_some_and(Attached::is_measuring));
        self.ticker.log_transitions(|| self.watch.report());
        self.envoy.iter_mut().for_each(|envoy| envoy.exchange(now));
        self.reporter.iter().for_each(Reporter::tick);
        if let Err(error) = self.cpus.tick(&self.maps) {
            // CPUs that have come since count in the row that all share.
            tracing::debug!(error = &error as &dyn std::error::Error, "reading which CPUs are online");
        }
        self.watch.expect(|service| Some((self.ticker.expected(service)?, self.ticker.measure(service))));
        self.attached.iter_mut().for_each(Attached::look_after_mark);
        let report = self.ticker.report(generation, self.watch.report());
        let at = clock::monotonic();
        self.service_manager.on_tick(at);
        self.board.publish(Report { at, took: at.saturating_sub(started), ..report });
        self.drain_samples();
        self.hot_keys.tick(&self.maps);
        self.verdicts.tick();
        if let Some(dispatcher) = &mut self.dispatcher {
            dispatcher.publish_hot_keys(self.hot_keys.hot());
            dispatcher.check_predecessor();
        }
        Ok(())
    }

    /// Begins to drain; false if there is nothing to wait for, or it was told so before.
    fn drain(&mut self) -> bool {
        let Some(dispatcher) = self.dispatcher.as_ref().filter(|dispatcher| dispatcher.is_serving()) else {
            return false;
        };
        if self.draining.is_some() {
            tracing::warn!(left = dispatcher.clients(), "told to end again: ending with clients left");
            return false;
        }
        // Before the sockets close: new connections reach the stores, whatever becomes of those of a gate that is lost.
        self.end_interception();
        let drain = self.changes.config().gate.drain;
        self.draining = self.dispatcher.as_ref().and_then(|dispatcher| Draining::start(dispatcher, drain));
        if self.draining.is_some() {
            self.changes.accepting.send_replace(false);
            self.service_manager.stopping();
        }
        self.draining.is_some()
    }

    /// True if all clients have left, or may be left.
    fn has_drained(&self) -> bool {
        self.draining.zip(self.dispatcher.as_ref()).is_some_and(|(draining, of)| draining.is_over(of))
    }

    /// Stops writing the maps, since another gate takes over, and serves open connections for at most `drain`.
    pub(super) async fn hand_over(self, signals: &mut Signals) {
        let drain = self.changes.config().gate.drain;
        let Self {
            maps,
            ownership,
            attached,
            dispatcher,
            envoy,
            changes,
            prober,
            mut ticker,
            interception,
            reporter,
            mut watch,
            tick,
            _heartbeat,
            ..
        } = self;
        // It has the listening sockets open, and the other gate's are in force.
        let handed_on = interception.as_ref().is_some_and(Interception::is_handed_on);
        drop(interception);
        // Where there is no XDP the other gate does not know of this one's sockets.
        let other_sockets = attached.is_none();
        // Envoys are answered until the successor surely listens at the same place.
        let envoy = std::thread::spawn(move || {
            std::thread::sleep(SUCCESSOR_LISTENS);
            drop(envoy);
        });
        let Some(dispatcher) = dispatcher else {
            drop(envoy.join());
            return;
        };
        dispatcher.start_draining();
        // Maps of its own are nobody else's: what its clients meet is still to be decided there, and the parts of limits that they use to be
        // reported and followed, beside the successor. In those that they share only the dispatcher writes from here on, to buckets and
        // counters: the successor decides, and reports.
        let own = other_sockets.then_some((reporter, _heartbeat));
        own.iter()
            .filter_map(|(reporter, _)| reporter.as_ref())
            .for_each(|reporter| reporter.book().lock().drain());
        ownership.give_up(&*maps);
        let deciding = async {
            let Some((reporter, _)) = &own else { return std::future::pending().await };
            let mut ticks = every(tick.into());
            loop {
                ticks.tick().await;
                let now = now(&maps);
                let services = watch.tick(now, |service| ticker.is_overloaded(service));
                if ticker.tick(now, &services).is_err() {
                    return std::future::pending().await;
                }
                ticker.log_transitions(|| watch.report());
                reporter.iter().for_each(Reporter::tick);
            }
        };
        // Nothing else is served but its clients.
        drop((changes, prober));
        let clients = dispatcher.clients();
        tracing::info!(clients, at_most = %drain, "draining: another gate has taken over; serving open connections");
        tokio::select! {
            _ = signals.interrupt.recv() => {}
            _ = signals.terminate.recv() => {}
            () = dispatcher.drain(drain, other_sockets, handed_on) => {}
            () = deciding => {}
        }
        match dispatcher.clients() {
            0 => tracing::info!("drained"),
            left => tracing::warn!(left, "drain timeout: closing open connections"),
        }
        drop(envoy.join());
    }

    /// Only where the program is attached does it matter by which interface something came.
    fn look_after_interfaces(&mut self) {
        // The gate that takes the maps may have changed the links already.
        let Some(attached) = self.attached.as_mut().filter(|_| self.ownership.holds(&*self.maps)) else {
            return;
        };
        attached.look_after_interfaces();
        let vanished = attached.vanished();
        self.changes.vanished.send_if_modified(|before| {
            let modified = *before != vanished;
            *before = vanished;
            modified
        });
        let above = attached.above();
        self.dispatcher.iter().for_each(|dispatcher| dispatcher.refresh_local_addrs(&above));
    }

    /// Brings over what the gate before this one charges and counts in maps of its own.
    fn look_after_migration(&mut self) {
        let Some((migration, predecessor)) = &self.migrating else { return };
        // What it has counted is complete only once it has gone.
        let gone = predecessor.is_gone().unwrap_or(false);
        migration.carry_over(&self.maps);
        if gone {
            self.migrating = None;
        }
    }

    fn drain_samples(&mut self) {
        let hot_keys = &mut self.hot_keys;
        if let Some(attached) = &mut self.attached {
            let mut heads = Vec::new();
            let mut answers = Vec::new();
            attached.loaded.samples.drain(MOST_SAMPLES, |received| match received {
                Received::Request(sample) => {
                    if sample.head.reason().is_none() {
                        hot_keys.count(sample);
                    }
                    heads.push(sample.head);
                }
                Received::Answer(answer) => answers.push(answer),
            });
            let maps = &self.maps;
            self.watch.record(maps, &answers);
            self.verdicts.record_packets(&heads, clock::monotonic(), |tenant| maps.parents(tenant));
        }
        if let Some(dispatcher) = &self.dispatcher {
            dispatcher.drain_samples(MOST_SAMPLES, |sample| hot_keys.count(&sample));
            self.verdicts.record(dispatcher.drain_verdicts(MOST_SAMPLES));
        }
    }

    /// The parts of the maps in use, with the numbers of tenants that are gone but may still be referred to.
    pub(super) fn occupied(&self) -> Occupied {
        let local = self.local.clone();
        let mut occupied = Occupied { local, syn_cookies: syn_cookies(), ..occupied(&self.maps) };
        if let Some(dispatcher) = &self.dispatcher {
            occupied.reserved = dispatcher.tenants_in_use();
            if dispatcher.has_predecessor() {
                occupied.reserved.extend(&self.inherited_tenants);
            }
        }
        occupied
    }

    /// The metrics of the proxied services.
    pub(super) fn services(&self) -> &[ServiceMetrics] {
        self.dispatcher.as_ref().map_or(&[], Dispatcher::services)
    }
}

fn every(period: Duration) -> Interval {
    let mut interval = tokio::time::interval(period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

/// Longer than it takes from the maps to the listeners.
const SUCCESSOR_LISTENS: Duration = Duration::from_secs(1);
const SAMPLES_EVERY: Duration = Duration::from_millis(20);
/// So that a flood of samples does not hold up a tick.
const MOST_SAMPLES: usize = 8_192;
const INTERFACE_EVERY: Duration = Duration::from_secs(1);
