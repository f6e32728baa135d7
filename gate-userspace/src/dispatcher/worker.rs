//! One thread of the dispatcher: its sockets, its tasks, its chores.

use std::cell::RefCell;
use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::LocalSet;
use tokio::time::MissedTickBehavior;

use super::accept::Front;
use super::clients::udp;
use super::hot_restart::{Entrance, Entrances, InheritedSockets, Phase, SocketGroup, wait_for_phase};
use super::http::service::HttpService;
use super::http::{blobs, upkeep};
use super::metrics::verdicts::{VerdictSample, VerdictSampler};
use super::pipeline::service::{Service, WorkerState};
use super::pipeline::{datagrams, store_access};
use super::questions::PendingQuestion;
use super::queue::delay::Delay;
use super::settings::Settings;
use super::shared_service::SharedService;
use super::tenants::ledger::Ledger;
use super::tls::turns::Turns;
use super::wire::memcached::Memcached;
use super::wire::resp::Resp;
use super::wire::{SessionState, Wire};
use super::{Error, accept, listen};
use crate::clock;
use crate::config::Protocol;
use crate::kernel::Maps;

/// The sockets of one service in one thread.
#[derive(Debug, Default)]
struct Listeners {
    streams: Vec<(TcpListener, SocketGroup, Entrance)>,
    datagrams: Vec<(UdpSocket, Entrance)>,
    /// Where a processor fetches originals.
    blobs: Option<TcpListener>,
}

impl Listeners {
    /// One socket for each address and transport; with `all`, what else the gate before this one had there as well. Each is one of
    /// the `entrances`.
    fn at(
        settings: &Settings,
        inherited: &mut InheritedSockets,
        all: bool,
        entrances: &Entrances,
    ) -> Result<Self, Error> {
        let addresses = |on: bool| settings.listen.iter().copied().filter(move |_| on);
        let failed = |address: SocketAddr| {
            move |error| Error::Listen { service: settings.name.clone(), address, error }
        };
        let mut this = Self::default();
        for address in addresses(settings.transports.tcp) {
            let sockets = sockets(|| inherited.tcp(address), || listen::tcp(address), all);
            let sockets = sockets.and_then(|sockets| {
                // Clients' sockets have it from these.
                sockets.iter().try_for_each(listen::keep_alive)?;
                Ok(sockets)
            });
            let group = inherited.group(address);
            let sockets = sockets.map_err(failed(address))?;
            this.streams.extend(sockets.into_iter().map(|socket| (socket, group.clone(), entrances.open())));
        }
        for address in addresses(settings.transports.udp) {
            let sockets = sockets(|| inherited.udp(address), || listen::udp(address), all);
            let sockets = sockets.map_err(failed(address))?;
            this.datagrams.extend(sockets.into_iter().map(|socket| (socket, entrances.open())));
        }
        let process = settings.backend.process.as_ref();
        let blobs = process.map(|process| listen::tcp(process.blobs).map_err(failed(process.blobs)));
        this.blobs = blobs.transpose()?;
        Ok(this)
    }
}

/// Finds out that nobody listens where a service is to.
///
/// # Errors
///
/// [`Error::Listen`], if somebody does.
pub(super) fn check_free(settings: &Settings) -> Result<(), Error> {
    let Settings { listen: addresses, transports, backend, .. } = settings;
    let streams = addresses.iter().filter(|_| transports.tcp);
    let streams = streams.chain(backend.process.iter().map(|process| &process.blobs));
    let datagrams = addresses.iter().filter(|_| transports.udp);
    let taken = |address| move |error| Error::Listen { service: settings.name.clone(), address, error };
    streams.copied().try_for_each(|at| listen::check_tcp_free(at).map_err(taken(at)))?;
    datagrams.copied().try_for_each(|at| listen::check_udp_free(at).map_err(taken(at)))
}

/// One that is inherited, or a new one; and with `all`, whatever else is inherited.
fn sockets<S>(
    mut inherited: impl FnMut() -> Option<S>,
    new: impl FnOnce() -> io::Result<S>,
    all: bool,
) -> io::Result<Vec<S>> {
    let mut sockets = vec![inherited().map_or_else(new, Ok)?];
    while all && let Some(socket) = inherited() {
        sockets.push(socket);
    }
    Ok(sockets)
}

/// The state that all threads share.
#[derive(Debug)]
pub(super) struct DispatcherShared {
    /// The proxied services, in their order.
    pub(super) services: Vec<SharedService>,
    /// Where sampled verdicts go.
    pub(super) verdicts: SyncSender<VerdictSample>,
    /// The phase that the dispatcher has reached.
    pub(super) phase: watch::Receiver<Phase>,
    /// The ways in that are open, in all threads.
    pub(super) entrances: Entrances,
}

/// A thread that is ready to start: it has all its sockets.
#[derive(Debug)]
pub(super) struct WorkerSetup {
    number: usize,
    row: usize,
    maps: Arc<Maps>,
    verdicts: SyncSender<VerdictSample>,
    phase: watch::Receiver<Phase>,
    services: Vec<ServiceSetup>,
}

/// One service in a thread that is ready to start.
#[derive(Debug)]
struct ServiceSetup {
    shared: SharedService,
    listeners: Listeners,
    delay: Delay,
}

impl WorkerSetup {
    /// Makes its sockets, or has those of the gate before this one. Its counters are in `row` of the maps.
    ///
    /// # Errors
    ///
    /// [`Error::Listen`], [`Error::OutOfRange`].
    pub(super) fn new(
        number: usize,
        row: usize,
        common: &DispatcherShared,
        maps: &Arc<Maps>,
        inherited: &mut InheritedSockets,
    ) -> Result<Self, Error> {
        let mut prepare = |shared: &SharedService| {
            let settings = &shared.settings;
            let is_last = number + 1 == settings.threads;
            let listeners = Listeners::at(settings, inherited, is_last, &common.entrances)?;
            let delay = Delay::new(settings.limits.borrow().codel)?;
            Ok::<_, Error>(ServiceSetup { shared: shared.clone(), listeners, delay })
        };
        let services = common.services.iter().map(&mut prepare).collect::<Result<_, _>>()?;
        let maps = Arc::clone(maps);
        let verdicts = common.verdicts.clone();
        Ok(Self { number, row, maps, verdicts, phase: common.phase.clone(), services })
    }

    /// The sockets at which it listens for connections, each with its service's place in the configuration.
    pub(super) fn streams(&self) -> impl Iterator<Item = (usize, &TcpListener)> {
        self.services.iter().flat_map(|ServiceSetup { shared, listeners, .. }| {
            listeners.streams.iter().map(|(listener, ..)| (shared.settings.service, listener))
        })
    }

    /// Starts it.
    ///
    /// # Errors
    ///
    /// If there is no room for another thread.
    pub(super) fn start(self) -> io::Result<JoinHandle<()>> {
        let name = format!("gate-{}", self.number);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new().name(name).spawn(move || {
            let local = LocalSet::new();
            if let Err(error) = local.block_on(&runtime, self.run()) {
                tracing::error!(%error, "a thread of the dispatcher has ended");
            }
        })
    }

    async fn run(self) -> io::Result<()> {
        let Self { number, row, maps, verdicts, mut phase, services } = self;
        let settings = services.iter().map(|service| &service.shared.settings);
        let names = settings.map(|settings| (settings.service, settings.name.as_str()));
        let ledger = Rc::new(RefCell::new(Ledger::new(maps, row, clock::entropy(), names)));
        let scratch = Rc::new(RefCell::new(vec![0; READ_BYTES].into_boxed_slice()));
        let turns = Turns::default();
        tokio::task::spawn_local(turns.clone().run_rounds());
        for (index, ServiceSetup { shared, listeners, delay }) in services.into_iter().enumerate() {
            // The first thread explains.
            let asked = (number == 0).then(|| shared.questions.receiver()).flatten();
            let ledger = Rc::clone(&ledger);
            let scratch = Rc::clone(&scratch);
            let verdicts = VerdictSampler::new(verdicts.clone(), index);
            let turns = turns.clone();
            if shared.settings.protocol == Protocol::Http {
                let service = HttpService::new(shared, number, &ledger, &turns, delay, verdicts);
                if let Some(blobs) = listeners.blobs {
                    let blobs = tokio::net::TcpListener::from_std(blobs)?;
                    tokio::task::spawn_local(blobs::serve(Rc::clone(&service), blobs));
                }
                accept_clients(&service, listeners.streams, &phase)?;
                upkeep::start(&service, asked, &phase);
                continue;
            }
            let worker = WorkerState { number, ledger, scratch, turns, delay, verdicts };
            match shared.settings.protocol {
                Protocol::Memcached => {
                    serve(Service::<Memcached>::new(shared, worker), listeners, asked, &phase)?
                }
                Protocol::Resp => serve(Service::<Resp>::new(shared, worker), listeners, asked, &phase)?,
                Protocol::Opaque | Protocol::Http => {
                    unreachable!("the configuration refuses it, or it is above")
                }
            }
        }
        wait_for_phase(&mut phase, Phase::Draining).await;
        ledger.borrow_mut().count_in_shared_row();
        wait_for_phase(&mut phase, Phase::Stopped).await;
        Ok(())
    }
}

/// Starts a service's tasks.
fn serve<W: Wire>(
    service: Rc<Service<W>>,
    listeners: Listeners,
    asked: Option<mpsc::Receiver<PendingQuestion>>,
    phase: &watch::Receiver<Phase>,
) -> io::Result<()> {
    if let Some(asked) = asked {
        tokio::task::spawn_local(Rc::clone(&service).answer_questions(asked));
    }
    service.pools.first().start(&service);
    let until = |wanted| {
        let mut phase = phase.clone();
        async move { wait_for_phase(&mut phase, wanted).await }
    };
    accept_clients(&service, listeners.streams, phase)?;
    for (socket, entrance) in listeners.datagrams {
        let socket = Rc::new(udp::Socket::new(socket)?);
        tokio::task::spawn_local(datagrams::serve(socket, entrance, Rc::clone(&service), phase.clone()));
    }
    tokio::task::spawn_local(leave(Rc::clone(&service), until(Phase::ClosingIdle)));
    tokio::task::spawn_local(Rc::clone(&service).receive_completions());
    tokio::task::spawn_local(Rc::clone(&service).receive_permits());
    if W::Session::HAS_USERS && service.is_first {
        tokio::task::spawn_local(store_access::watch(Rc::clone(&service)));
        tokio::task::spawn_local(Rc::clone(&service).follow_slots());
    }
    tokio::task::spawn_local(housekeeping(service));
    Ok(())
}

/// Accepts a service's clients.
fn accept_clients<F: Front>(
    service: &Rc<F>,
    streams: Vec<(TcpListener, SocketGroup, Entrance)>,
    phase: &watch::Receiver<Phase>,
) -> io::Result<()> {
    for (listener, group, entrance) in streams {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let service = Rc::clone(service);
        tokio::task::spawn_local(accept::listen_for_clients(
            listener,
            group,
            entrance,
            service,
            phase.clone(),
        ));
    }
    Ok(())
}

/// Closes the connections of clients that want nothing, once it is `time`.
async fn leave<W: Wire>(service: Rc<Service<W>>, time: impl Future<Output = ()>) {
    time.await;
    loop {
        service.close_idle_clients();
        tokio::time::sleep(OFTEN).await;
    }
}

/// Runs the periodic work of a service.
async fn housekeeping<W: Wire>(service: Rc<Service<W>>) {
    let mut often = tokio::time::interval(OFTEN);
    often.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut until_release = RELEASE_EVERY;
    loop {
        often.tick().await;
        service.housekeeping(clock::monotonic());
        store_access::follow(&service);
        if W::Session::HAS_USERS && !service.in_cluster.get() && service.lines().wants_ready() {
            let service = Rc::clone(&service);
            tokio::task::spawn_local(async move {
                let lines = service.lines();
                lines.prepare(&service.settings).await;
            });
        }
        until_release -= 1;
        if until_release.is_multiple_of(TICK) {
            service.tick(clock::monotonic());
        }
        if until_release == 0 {
            until_release = RELEASE_EVERY;
            service.release(RELEASE_EVERY * OFTEN);
        }
    }
}

/// The bytes that one read from a socket takes at most.
const READ_BYTES: usize = 256 << 10;
/// The precision of the store's timeout.
const OFTEN: Duration = Duration::from_millis(10);
/// Of [`OFTEN`]: the policies' tick.
const TICK: u32 = 10;
/// Of [`OFTEN`]: the time that an idle client keeps its buffers.
const RELEASE_EVERY: u32 = 200;
