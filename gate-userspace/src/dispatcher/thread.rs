//! One thread of the dispatcher: its sockets, its tasks, its chores.

use std::cell::RefCell;
use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::socket::{MsgFlags, send};
use tokio::sync::watch;
use tokio::task::LocalSet;
use tokio::time::MissedTickBehavior;

use super::admission::delay::Delay;
use super::admission::policy::Policy;
use super::clients::client::{Client, Outlet};
use super::clients::{datagrams, udp};
use super::figures::ServiceFigures;
use super::hot_cache;
use super::service::{Service, Shared};
use super::settings::Settings;
use super::tenants::ledger::Ledger;
use super::wire::Wire;
use super::wire::memcached::Memcached;
use super::wire::resp::Resp;
use super::{Error, listen};
use crate::clock;
use crate::config::Protocol;
use crate::kernel::Maps;

/// How many threads there are unless the configuration says otherwise.
pub(super) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// The sockets of one service in one thread.
#[derive(Debug, Default)]
struct Listening {
    streams: Vec<TcpListener>,
    datagrams: Vec<UdpSocket>,
}

impl Listening {
    fn at(settings: &Settings) -> Result<Self, Error> {
        let all = |on: bool| settings.listen.iter().copied().filter(move |_| on);
        let failed = |address: SocketAddr| {
            move |source| Error::Listen { service: settings.name.clone(), address, source }
        };
        let stream = |address| listen::tcp(address).map_err(failed(address));
        let datagram = |address| listen::udp(address).map_err(failed(address));
        Ok(Self {
            streams: all(settings.transports.tcp).map(stream).collect::<Result<_, _>>()?,
            datagrams: all(settings.transports.udp).map(datagram).collect::<Result<_, _>>()?,
        })
    }
}

/// What all threads share of the proxied services, in their order.
#[derive(Clone, Debug)]
pub(super) struct Common {
    pub(super) settings: Vec<Settings>,
    pub(super) figures: Vec<ServiceFigures>,
    pub(super) policies: Vec<Policy>,
    pub(super) hot: Vec<hot_cache::Shared>,
}

/// A thread that is ready to start: it has all its sockets.
#[derive(Debug)]
pub(super) struct Plan {
    number: usize,
    row: usize,
    maps: Arc<Maps>,
    stopped: watch::Receiver<bool>,
    services: Vec<(Settings, Listening)>,
    figures: Vec<ServiceFigures>,
    policies: Vec<Policy>,
    delays: Vec<Delay>,
    hot: Vec<hot_cache::Shared>,
}

impl Plan {
    /// Makes its sockets. Its counters are in `row` of the maps.
    ///
    /// # Errors
    ///
    /// [`Error::Listen`], [`Error::OutOfRange`].
    pub(super) fn prepare(
        number: usize,
        row: usize,
        common: &Common,
        maps: &Arc<Maps>,
        stopped: watch::Receiver<bool>,
    ) -> Result<Self, Error> {
        let listen = |settings: &Settings| {
            let served = settings.is_served_by(number);
            let listening = if served { Listening::at(settings)? } else { Listening::default() };
            Ok((settings.clone(), listening))
        };
        let Common { settings, figures, policies, hot } = common.clone();
        let services: Result<Vec<_>, Error> = settings.iter().map(listen).collect();
        let delays = settings.iter().map(|settings| Delay::new(settings.limits.borrow().codel));
        let (maps, delays) = (Arc::clone(maps), delays.collect::<Result<_, _>>()?);
        Ok(Self { number, row, maps, stopped, services: services?, figures, policies, delays, hot })
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
        let Self { number, row, maps, mut stopped, services, figures, policies, delays, hot } = self;
        let names = services.iter().map(|(settings, _)| (settings.service, settings.name.as_str()));
        let ledger = Rc::new(RefCell::new(Ledger::new(maps, row, clock::entropy(), names)));
        let scratch = Rc::new(RefCell::new(vec![0; READ_BYTES].into_boxed_slice()));
        let policies = policies.into_iter().zip(delays).zip(hot);
        for ((settings, listening), (figures, ((policy, delay), hot))) in
            services.into_iter().zip(figures.into_iter().zip(policies))
        {
            if !settings.is_served_by(number) {
                continue;
            }
            let (ledger, scratch) = (Rc::clone(&ledger), Rc::clone(&scratch));
            let shared = Shared { ledger, scratch, number, figures, policy, delay, hot };
            match settings.protocol {
                Protocol::Memcached => serve(Service::<Memcached>::new(settings, shared), listening)?,
                Protocol::Resp => serve(Service::<Resp>::new(settings, shared), listening)?,
                Protocol::Opaque => unreachable!("the configuration refuses it"),
            }
        }
        // Whoever can stop it is gone: that is a stop as well.
        let _ = stopped.wait_for(|&stopped| stopped).await;
        Ok(())
    }
}

/// Starts a service's tasks.
fn serve<W: Wire>(service: Rc<Service<W>>, listening: Listening) -> io::Result<()> {
    service.pools.first().start(&service);
    for listener in listening.streams {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        tokio::task::spawn_local(accept(listener, Rc::clone(&service)));
    }
    for socket in listening.datagrams {
        let socket = Rc::new(udp::Socket::new(socket)?);
        tokio::task::spawn_local(datagrams::listen(socket, Rc::clone(&service)));
    }
    tokio::task::spawn_local(Rc::clone(&service).hear_of_flights());
    tokio::task::spawn_local(chores(service));
    Ok(())
}

async fn accept<W: Wire>(listener: tokio::net::TcpListener, service: Rc<Service<W>>) {
    loop {
        let welcomed = match listener.accept().await {
            Ok((socket, source)) => welcome(socket, source.ip(), &service),
            Err(error) => Err(error),
        };
        if let Err(error) = welcomed {
            // Out of descriptors or memory: it would fail at once again.
            tracing::warn!(service = service.settings.name, %error, "cannot accept a client");
            tokio::time::sleep(PAUSE).await;
        }
    }
}

fn welcome<W: Wire>(
    socket: tokio::net::TcpStream,
    source: std::net::IpAddr,
    service: &Rc<Service<W>>,
) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let (read, write) = socket.into_split();
    let client = Rc::new(Client::new(Outlet::Stream(write), source.to_canonical(), service));
    if service.is_full() || !client.connects(service) {
        // A word before it is closed. It may have left; and nobody waits for it to read.
        let (fd, flags) =
            (client.socket().as_ref().as_raw_fd(), MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL);
        let _ = send(fd, &service.too_many(&client), flags);
        return Ok(());
    }
    service.welcome(&client);
    let service = Rc::clone(service);
    tokio::task::spawn_local(async move {
        let ended = client.serve(read, Rc::clone(&service)).await;
        service.farewell(ended);
    });
    Ok(())
}

/// What has to be done now and then.
async fn chores<W: Wire>(service: Rc<Service<W>>) {
    let mut often = tokio::time::interval(OFTEN);
    often.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut until_release = RELEASE_EVERY;
    loop {
        often.tick().await;
        service.tidy(clock::monotonic());
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
const PAUSE: Duration = Duration::from_millis(50);
/// How exactly the store's timeout is kept.
const OFTEN: Duration = Duration::from_millis(10);
/// Of [`OFTEN`]: the policies' tick.
const TICK: u32 = 10;
/// Of [`OFTEN`]: how long an idle client keeps its buffers.
const RELEASE_EVERY: u32 = 200;
