//! One thread of the dispatcher: its sockets, its tasks, its chores.

use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use gate_common::units::Nanos;
use nix::sys::socket::{MsgFlags, send};
use tokio::sync::watch;
use tokio::task::LocalSet;
use tokio::time::MissedTickBehavior;

use super::clients::SharedBounds;
use super::clients::client::{CloseCause, ReplySink};
use super::clients::proxy_header::{self, Rejected};
use super::clients::udp;
use super::hot_cache;
use super::hot_restart::{InheritedSockets, Phase};
use super::metrics::{Event, ServiceMetrics};
use super::pipeline::service::{Service, Session, WorkerShared};
use super::pipeline::{datagrams, store_access};
use super::queue::concurrency::SharedLimits;
use super::queue::delay::Delay;
use super::queue::policy::Policy;
use super::settings::Settings;
use super::tenants::ledger::Ledger;
use super::wire::memcached::Memcached;
use super::wire::resp::Resp;
use super::wire::{SessionState, Wire};
use super::{Error, listen};
use crate::clock;
use crate::config::Protocol;
use crate::kernel::Maps;
use crate::policy::read_cost::ReadSizes;

/// The sockets of one service in one thread.
#[derive(Debug, Default)]
struct Listeners {
    streams: Vec<TcpListener>,
    datagrams: Vec<UdpSocket>,
}

impl Listeners {
    /// One socket for each address and transport; with `all`, what else the gate before this one had there as well.
    fn at(settings: &Settings, inherited: &mut InheritedSockets, all: bool) -> Result<Self, Error> {
        let addresses = |on: bool| settings.listen.iter().copied().filter(move |_| on);
        let failed = |address: SocketAddr| {
            move |source| Error::Listen { service: settings.name.clone(), address, source }
        };
        let mut this = Self::default();
        for address in addresses(settings.transports.tcp) {
            let sockets = sockets(|| inherited.tcp(address), || listen::tcp(address), all);
            let sockets = sockets.and_then(|sockets| {
                // Clients' sockets have it from these.
                sockets.iter().try_for_each(listen::keep_alive)?;
                Ok(sockets)
            });
            this.streams.extend(sockets.map_err(failed(address))?);
        }
        for address in addresses(settings.transports.udp) {
            let sockets = sockets(|| inherited.udp(address), || listen::udp(address), all);
            this.datagrams.extend(sockets.map_err(failed(address))?);
        }
        Ok(this)
    }
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

/// What all threads share of the proxied services, in their order.
#[derive(Clone, Debug)]
pub(crate) struct DispatcherShared {
    pub(crate) settings: Vec<Settings>,
    pub(crate) metrics: Vec<ServiceMetrics>,
    pub(crate) policies: Vec<Policy>,
    pub(crate) hot: Vec<hot_cache::SharedHotCache>,
    pub(crate) limits: Vec<(SharedLimits, SharedBounds, Arc<ReadSizes>)>,
    pub(crate) phase: watch::Receiver<Phase>,
}

/// A thread that is ready to start: it has all its sockets.
#[derive(Debug)]
pub(crate) struct WorkerSetup {
    number: usize,
    row: usize,
    maps: Arc<Maps>,
    phase: watch::Receiver<Phase>,
    services: Vec<(Settings, Listeners)>,
    metrics: Vec<ServiceMetrics>,
    policies: Vec<Policy>,
    delays: Vec<Delay>,
    hot: Vec<hot_cache::SharedHotCache>,
    limits: Vec<(SharedLimits, SharedBounds, Arc<ReadSizes>)>,
}

impl WorkerSetup {
    /// Makes its sockets, or has those of the gate before this one. Its counters are in `row` of the maps.
    ///
    /// # Errors
    ///
    /// [`Error::Listen`], [`Error::OutOfRange`].
    pub(crate) fn new(
        number: usize,
        row: usize,
        common: &DispatcherShared,
        maps: &Arc<Maps>,
        inherited: &mut InheritedSockets,
    ) -> Result<Self, Error> {
        let mut listen = |settings: &Settings| {
            let is_last = number + 1 == settings.threads;
            Ok((settings.clone(), Listeners::at(settings, inherited, is_last)?))
        };
        let DispatcherShared { settings, metrics, policies, hot, limits, phase } = common.clone();
        let services: Result<Vec<_>, Error> = settings.iter().map(&mut listen).collect();
        let delays = settings.iter().map(|settings| Delay::new(settings.limits.borrow().codel));
        let (maps, delays) = (Arc::clone(maps), delays.collect::<Result<_, _>>()?);
        Ok(Self { number, row, maps, phase, services: services?, metrics, policies, delays, hot, limits })
    }

    /// Starts it.
    ///
    /// # Errors
    ///
    /// If there is no room for another thread.
    pub(crate) fn start(self) -> io::Result<JoinHandle<()>> {
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
        let Self { number, row, maps, mut phase, services, metrics, policies, delays, hot, limits } = self;
        let names = services.iter().map(|(settings, _)| (settings.service, settings.name.as_str()));
        let ledger = Rc::new(RefCell::new(Ledger::new(maps, row, clock::entropy(), names)));
        let scratch = Rc::new(RefCell::new(vec![0; READ_BYTES].into_boxed_slice()));
        let policies = policies.into_iter().zip(delays).zip(hot).zip(limits);
        for ((settings, listening), (metrics, (((policy, delay), hot), (limits, bounds, read_sizes)))) in
            services.into_iter().zip(metrics.into_iter().zip(policies))
        {
            let ledger = Rc::clone(&ledger);
            let scratch = Rc::clone(&scratch);
            let shared = WorkerShared {
                ledger,
                scratch,
                number,
                metrics,
                policy,
                delay,
                hot,
                limits,
                bounds,
                read_sizes,
            };
            match settings.protocol {
                Protocol::Memcached => serve(Service::<Memcached>::new(settings, shared), listening, &phase)?,
                Protocol::Resp => serve(Service::<Resp>::new(settings, shared), listening, &phase)?,
                Protocol::Opaque => unreachable!("the configuration refuses it"),
            }
        }
        wait_for_phase(&mut phase, Phase::Draining).await;
        ledger.borrow_mut().count_in_shared_row();
        wait_for_phase(&mut phase, Phase::Stopped).await;
        Ok(())
    }
}

/// Waits until that has come; whoever can say so is gone: that is the last of all.
async fn wait_for_phase(phase: &mut watch::Receiver<Phase>, wanted: Phase) {
    let _ = phase.wait_for(|&phase| phase >= wanted).await;
}

/// Starts a service's tasks.
fn serve<W: Wire>(
    service: Rc<Service<W>>,
    listening: Listeners,
    phase: &watch::Receiver<Phase>,
) -> io::Result<()> {
    service.pools.first().start(&service);
    let until = |wanted| {
        let mut phase = phase.clone();
        async move { wait_for_phase(&mut phase, wanted).await }
    };
    for listener in listening.streams {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let accepting = accept(listener, Rc::clone(&service));
        let closing = until(Phase::NotAccepting);
        tokio::task::spawn_local(async {
            tokio::select! { () = accepting => {}, () = closing => {} }
        });
    }
    for socket in listening.datagrams {
        let socket = Rc::new(udp::Socket::new(socket)?);
        let hearing = datagrams::listen(socket, Rc::clone(&service));
        let closing = until(Phase::NotAccepting);
        tokio::task::spawn_local(async {
            tokio::select! { () = hearing => {}, () = closing => {} }
        });
    }
    tokio::task::spawn_local(leave(Rc::clone(&service), until(Phase::ClosingIdle)));
    tokio::task::spawn_local(Rc::clone(&service).receive_completions());
    tokio::task::spawn_local(Rc::clone(&service).receive_permits());
    if W::Session::HAS_USERS && service.is_first {
        tokio::task::spawn_local(store_access::watch(Rc::clone(&service)));
    }
    tokio::task::spawn_local(housekeeping(service));
    Ok(())
}

async fn accept<W: Wire>(listener: tokio::net::TcpListener, service: Rc<Service<W>>) {
    loop {
        let welcomed = match listener.accept().await {
            Ok((socket, source)) => begin(socket, source.ip().to_canonical(), &service),
            Err(error) => Err(error),
        };
        if let Err(error) = welcomed {
            // Out of descriptors or memory: it would fail at once again.
            if is_due(&LAST_WARNING, clock::monotonic()) {
                tracing::warn!(service = service.settings.name, %error, "cannot accept clients; said once a minute");
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Whether something that is said once a minute should be said again.
fn is_due(last: &AtomicU64, now: Nanos) -> bool {
    let before = last.load(Ordering::Relaxed);
    let is_due = before == 0 || now.saturating_sub(Nanos(before)) >= WARN_EVERY;
    is_due && last.compare_exchange(before, now.0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
}

/// Finds out whose a connection is, and serves it.
fn begin<W: Wire>(
    mut socket: tokio::net::TcpStream,
    source: IpAddr,
    service: &Rc<Service<W>>,
) -> io::Result<()> {
    let Some(trusted) = &service.settings.backend.trusted else {
        return register(socket, source, service, false);
    };
    if !trusted.iter().any(|prefix| prefix.contains(&source)) {
        return register(socket, source, service, true);
    }
    if service.is_full() {
        service.metrics.count(Event::TurnedAway);
        return Ok(());
    }
    let pending = service.pending_headers.add();
    let service = Rc::clone(service);
    tokio::task::spawn_local(async move {
        let read = proxy_header::read(&mut socket).await;
        drop(pending);
        match read {
            // If it is gone already, there is nobody to tell.
            Ok(client) => drop(register(socket, client.unwrap_or(source), &service, false)),
            Err(Rejected::Nothing) => {}
            Err(why) => reject_header(&service, source, &why),
        }
    });
    Ok(())
}

/// Counts a connection that is closed for its header, and says so now and then.
fn reject_header<W: Wire>(service: &Service<W>, source: IpAddr, why: &Rejected) {
    service.metrics.count(Event::HeaderRejected);
    if is_due(&LAST_REJECTED, clock::monotonic()) {
        let service = &service.settings.name;
        tracing::warn!(service, %source, %why, "closed a connection; said once a minute");
    }
}

/// Takes a client in; `may_have_header` if it may begin with a header that nobody has read.
fn register<W: Wire>(
    socket: tokio::net::TcpStream,
    source: IpAddr,
    service: &Rc<Service<W>>,
    may_have_header: bool,
) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let (mut read, write) = socket.into_split();
    let client = Rc::new(Session::new(ReplySink::Stream(write), source, service));
    if service.is_full() || !client.acquire_connection(service) {
        // A word before it is closed. It may have left; and nobody waits for it to read.
        let fd = client.socket().as_ref().as_raw_fd();
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        let _ = send(fd, &service.refuse_connection(&client), flags);
        return Ok(());
    }
    service.register(&client);
    let service = Rc::clone(service);
    tokio::task::spawn_local(async move {
        if may_have_header {
            let has_header = tokio::select! {
                has_header = proxy_header::begins_with_one(&mut read) => has_header,
                _ = std::future::poll_fn(|cx| client.poll_ended(cx)) => false,
            };
            if has_header {
                reject_header(&service, source, &Rejected::Untrusted);
                client.end(CloseCause::ClientLeft);
            }
        }
        let ended = client.serve(read, Rc::clone(&service)).await;
        service.unregister(ended);
    });
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

/// What has to be done now and then.
async fn housekeeping<W: Wire>(service: Rc<Service<W>>) {
    let mut often = tokio::time::interval(OFTEN);
    often.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut until_release = RELEASE_EVERY;
    loop {
        often.tick().await;
        service.housekeeping(clock::monotonic());
        store_access::follow(&service);
        if W::Session::HAS_USERS && !service.in_cluster.get() && service.lines.wants_ready() {
            let service = Rc::clone(&service);
            tokio::task::spawn_local(async move { service.lines.prepare(&service.settings).await });
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

/// What is read from a socket in one go.
const READ_BYTES: usize = 256 << 10;
/// All threads' clients fail alike.
static LAST_WARNING: AtomicU64 = AtomicU64::new(0);
static LAST_REJECTED: AtomicU64 = AtomicU64::new(0);
const WARN_EVERY: Nanos = Nanos::from_secs(60);
const PAUSE: Duration = Duration::from_millis(50);
/// How exactly the store's timeout is kept.
const OFTEN: Duration = Duration::from_millis(10);
/// Of [`OFTEN`]: the policies' tick.
const TICK: u32 = 10;
/// Of [`OFTEN`]: how long an idle client keeps its buffers.
const RELEASE_EVERY: u32 = 200;
