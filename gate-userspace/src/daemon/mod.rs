//! `gate run`: the maps, the program at the interface, the control loop, until it is told to stop.
//!
//! | told by | does |
//! |---|---|
//! | SIGINT | detaches, removes every pin, ends |
//! | SIGTERM | accepts no more clients, serves those that it has for `drain` at most, then as SIGINT; a second one ends that |
//! | SIGHUP | reads the configuration again; a faulty one changes nothing |
//! | the admin socket | shows what is known, changes what may be changed |
//! | [`HAND_OVER`](crate::kernel::owner::HAND_OVER) | ends and leaves all in place, for the gate that takes over |

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gate_common::abi::{ABI_VERSION, AttachMode};
use gate_common::units::Nanos;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Interval, MissedTickBehavior};

use crate::admin;
use crate::clock;
use crate::config::{self, Config};
use crate::control;
use crate::control::board::Board;
use crate::control::decide::{Learning, Rules};
use crate::control::hot_keys::{HOT_PER_SEC, HotKeys};
use crate::control::layout::{self, Layout, Misfit};
use crate::control::tick::{self, Lost, Ticker, occupied};
use crate::control::watch::Watch;
use crate::dispatcher::{self, Dispatcher, ServiceMetrics};
use crate::kernel::attach::{self, attach, mode_name};
use crate::kernel::mark;
use crate::kernel::owner::{self, Ownership, Predecessor, Previous};
use crate::kernel::{self, CpuWatch, Cpus, Heartbeat, Loaded, Maps, Migration, Opened, PinDir, Sizes};
use crate::policy::Tier;
use crate::policy::range::OutOfRange;
use crate::probe::Prober;

mod changes;
mod descriptors;
mod draining;

use changes::Changes;
use draining::Draining;

/// The options of the command line.
#[derive(Clone, Debug)]
pub struct Options {
    /// The configuration.
    pub config: PathBuf,
    /// The interface, instead of the configuration's.
    pub interface: Option<String>,
    /// The pin directory, instead of the configuration's.
    pub pin_dir: Option<PathBuf>,
    /// End a gate that runs already, and take over from it.
    pub takeover: bool,
}

/// Why the daemon could not start, or ended by itself.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration cannot be read or is wrong.
    #[error(transparent)]
    Config(#[from] config::Error),
    /// Neither the command line nor the configuration names an interface.
    #[error(
        "no interface: say `interface = \"eth1\"` in the section [gate] of the configuration, or --interface eth1"
    )]
    NoInterface,
    /// The maps would take more memory than is allowed.
    #[error(transparent)]
    Exceeded(#[from] control::sizes::Exceeded),
    /// The configuration does not fit the maps.
    #[error(transparent)]
    Misfit(#[from] Misfit),
    /// Something at the kernel boundary.
    #[error(transparent)]
    Kernel(#[from] kernel::Error),
    /// A guarded service would be left bare without XDP.
    #[error("without XDP every guarded service would be left unprotected")]
    Bare(#[source] kernel::Error),
    /// Another daemon took the maps.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// Proxied services cannot be served.
    #[error(transparent)]
    Dispatcher(#[from] dispatcher::Error),
    /// A parameter that the configuration should not have let through.
    #[error(transparent)]
    OutOfRange(#[from] OutOfRange),
    /// The admin socket cannot be had.
    #[error(transparent)]
    Admin(#[from] admin::Error),
    /// An order that makes no sense.
    #[error("{0}")]
    Order(String),
    /// A key that cannot be set.
    #[error(transparent)]
    Override(#[from] config::Wrong),
    /// The configuration cannot be written.
    #[error("cannot write {}", path.display())]
    Save {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// Signals or threads could not be set up.
    #[error("{what}")]
    System {
        /// The action that failed.
        what: &'static str,
        /// The kernel's error.
        source: std::io::Error,
    },
}

impl From<tick::Error> for Error {
    fn from(error: tick::Error) -> Self {
        match error {
            tick::Error::Lost(lost) => lost.into(),
            tick::Error::OutOfRange(out_of_range) => out_of_range.into(),
        }
    }
}

/// Runs until it is told to stop.
///
/// # Errors
///
/// [`Error`]. Whatever was attached and pinned by this call is then removed again, unless another gate owns
/// it.
pub async fn run(options: Options) -> Result<(), Error> {
    let mut signals = Signals::new()?;
    let mut daemon = Daemon::start(options)?;
    let outcome = daemon.serve(&mut signals).await;
    let leave_in_place = matches!(outcome, Ok(Stop::HandOver) | Err(Error::Lost(_)));
    let pins = daemon.attached.as_ref().map(|attached| attached.pins.clone());
    match outcome {
        Ok(Stop::HandOver) => daemon.hand_over(&mut signals).await,
        _ => drop(daemon),
    }
    if let Some(pins) = pins.filter(|_| !leave_in_place) {
        PinDir::remove(pins.path())?;
        tracing::info!("detached");
    }
    outcome.map(|_| ())
}

/// Why the daemon stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    Asked,
    HandOver,
}

struct Daemon {
    options: Options,
    tick: Nanos,
    maps: Arc<Maps>,
    ownership: Ownership,
    /// `None` where there is no XDP: the maps are this process' own then.
    attached: Option<Attached>,
    cpus: CpuWatch,
    ticker: Ticker,
    hot_keys: HotKeys,
    reload: bool,
    draining: Option<Draining>,
    changes: Changes,
    watch: Watch,
    prober: Option<Prober>,
    /// The results of each tick.
    board: Board,
    dispatcher: Option<Dispatcher>,
    /// The maps of a gate before this one that still charges there for the clients that it drains.
    migrating: Option<(Migration, Predecessor)>,
    /// The numbers of the tenants that the gate before this one had: it may have clients of theirs.
    inherited_tenants: HashSet<u32>,
    _heartbeat: Heartbeat,
}

/// The program at its interface.
struct Attached {
    xdp: attach::Mode,
    interface: String,
    pins: PinDir,
    loaded: Loaded,
    interface_lost: bool,
    /// The bit of the mark that charged datagrams get; none if zero.
    mark: u32,
    /// How many datagrams could not be marked before this gate.
    unmarked: u64,
}

impl Daemon {
    fn start(options: Options) -> Result<Self, Error> {
        let config = Config::read(&options.config)?;
        config.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
        descriptors::provide(&config);
        let xdp = match config.gate.xdp {
            config::XdpMode::Auto => attach::Mode::Auto,
            config::XdpMode::Native => attach::Mode::Native,
            config::XdpMode::Generic => attach::Mode::Generic,
            config::XdpMode::Off => return Self::in_user_space(options, &config),
        };
        let named = || config.gate.interface.as_ref().map(|name| name.as_str().to_owned());
        let interface = options.interface.clone().or_else(named).ok_or(Error::NoInterface)?;
        nix::net::if_::if_nametoindex(interface.as_str())
            .map_err(|_| kernel::Error::NoInterface { interface: interface.clone() })?;
        let sizes = sizes(&config)?;
        let directory = options.pin_dir.as_ref().unwrap_or(&config.gate.pin_dir);
        let opened = PinDir::make(directory)
            .and_then(|pins| Ok((kernel::open(&pins, &sizes, options.takeover)?, pins)));
        let (opened, pins) = match opened {
            Err(error) if error.rules_out_xdp() => return Self::without_xdp(options, &config, error),
            opened => opened?,
        };
        let fresh = opened.fresh;
        let started = Self::with_xdp(options, &config, xdp, interface, pins.clone(), opened);
        if fresh && started.is_err() {
            // Nothing was there before this call.
            PinDir::remove(pins.path())?;
        }
        started
    }

    /// Takes the maps, writes the first plan, and then puts the program in place.
    fn with_xdp(
        options: Options,
        config: &Config,
        xdp: attach::Mode,
        interface: String,
        pins: PinDir,
        opened: Opened,
    ) -> Result<Self, Error> {
        let maps = Arc::clone(&opened.maps);
        // Before the old gate ends: what does not fit must not leave nobody in charge.
        attach::check(&maps, &interface, &pins)?;
        let occupied = occupied(&maps);
        let layout = Layout::build(config, &occupied)?;
        let (ownership, previous) = opened.take()?;
        let predecessor = match &previous {
            Previous::Relieved(predecessor) => Some(predecessor.clone()),
            _ => None,
        };
        let mut daemon = Self::serving(options, config, (maps, ownership), layout, predecessor.clone())?;
        daemon.inherited_tenants = occupied.tenants.into_values().collect();
        announce_ownership(previous);
        let (mut loaded, migration) = opened.into_loaded()?;
        let mode = attach(&mut loaded, &interface, xdp, &pins)?;
        if let Some(migration) = &migration {
            migration.complete(&loaded.maps)?;
            announce_migration(migration.from_version());
        }
        daemon.migrating = migration.zip(predecessor);
        let proxies_datagrams =
            config.services.iter().any(|service| service.backend.is_some() && service.transports.udp);
        let mark = if proxies_datagrams { config.gate.charged_mark } else { 0 };
        let unmarked = mark::unmarked(&loaded.maps);
        let mut attached = Attached { xdp, interface, pins, loaded, interface_lost: false, mark, unmarked };
        attached.mark_charged();
        announce_attached(&attached.interface, mode, xdp, &attached.pins);
        daemon.attached = Some(attached);
        Ok(daemon)
    }

    /// Without eBPF guarded services would be unprotected, which is an error; proxied ones can do without.
    fn without_xdp(options: Options, config: &Config, error: kernel::Error) -> Result<Self, Error> {
        if config.services.iter().any(|service| service.backend.is_none()) {
            return Err(Error::Bare(error));
        }
        tracing::warn!(error = &error as &dyn std::error::Error, "continuing without XDP");
        Self::in_user_space(options, config)
    }

    fn in_user_space(options: Options, config: &Config) -> Result<Self, Error> {
        let (maps, ownership) = Maps::private(&sizes(config)?)?;
        let layout = Layout::build(config, &occupied(&maps))?;
        let started = Self::serving(options, config, (Arc::new(maps), ownership), layout, None)?;
        tracing::info!("running without XDP");
        Ok(started)
    }

    fn serving(
        options: Options,
        config: &Config,
        (maps, ownership): (Arc<Maps>, Ownership),
        layout: Layout,
        predecessor: Option<Predecessor>,
    ) -> Result<Self, Error> {
        let mut ticker = Ticker::new(Arc::clone(&maps), ownership, layout, rules(config))?;
        // Both banks hold the plan before the first packet is judged by it.
        while ticker.stabilising() {
            ticker.tick(now(&maps), &[])?;
        }
        let heartbeat = Heartbeat::start(Arc::clone(&maps), ownership, config.gate.stale_after)
            .map_err(|source| Error::System { what: "starting the heartbeat", source })?;
        let mut cpus = CpuWatch::new()?;
        cpus.tick(&maps)?;
        let dispatcher = Dispatcher::start(config, &maps, predecessor)?;
        let mut hot_keys = HotKeys::new(config.gate.tick, clock::entropy())?;
        hot_keys.follow(hot_per_sec(config))?;
        let mut watch = Watch::default();
        watch.follow(config, dispatcher.as_ref().map_or(&[], Dispatcher::services), now(&maps))?;
        let prober = prober(config, &watch)?;
        let mut daemon = Self {
            options,
            tick: config.gate.tick,
            maps,
            ownership,
            attached: None,
            cpus,
            ticker,
            hot_keys,
            reload: false,
            draining: None,
            watch,
            prober,
            changes: Changes::new(Arc::new(config.clone())),
            board: Board::default(),
            dispatcher,
            migrating: None,
            inherited_tenants: HashSet::new(),
            _heartbeat: heartbeat,
        };
        daemon.listen_to_admin()?;
        Ok(daemon)
    }

    async fn serve(&mut self, signals: &mut Signals) -> Result<Stop, Error> {
        let mut ticks = every(self.tick.into());
        let mut samples = every(SAMPLES_EVERY);
        let mut looks = every(INTERFACE_EVERY);
        let mut departures = every(dispatcher::LOOK_EVERY);
        loop {
            tokio::select! {
                _ = signals.interrupt.recv() => return Ok(Stop::Asked),
                _ = signals.terminate.recv() => if !self.drain() { return Ok(Stop::Asked) },
                _ = signals.hand_over.recv() => return Ok(Stop::HandOver),
                _ = signals.hang_up.recv() => self.reload = true,
                Some(asked) = self.changes.orders.recv() => self.changes.waiting.push_back(asked),
                _ = ticks.tick() => self.on_tick()?,
                _ = samples.tick() => self.drain_samples(),
                _ = looks.tick() => {
                    self.look_after_interfaces();
                    self.look_after_migration();
                }
                _ = departures.tick(), if self.draining.is_some() => if self.has_drained() { return Ok(Stop::Asked) },
            }
        }
    }

    fn on_tick(&mut self) -> Result<(), Error> {
        if !self.ticker.stabilising() {
            self.change()?;
        }
        let now = now(&self.maps);
        let services = self.watch.tick(now, |service| self.ticker.is_overloaded(service));
        let generation = self.ticker.tick(now, &services)?;
        if let Err(error) = self.cpus.tick(&self.maps) {
            // CPUs that have come since count in the row that all share.
            tracing::debug!(error = &error as &dyn std::error::Error, "reading which CPUs are online");
        }
        self.watch.expect(|service| Some((self.ticker.expected(service)?, self.ticker.measure(service))));
        self.attached.iter_mut().for_each(Attached::look_after_mark);
        self.board.publish(self.ticker.report(generation, self.watch.report()));
        self.drain_samples();
        self.hot_keys.tick(&self.maps);
        if let Some(dispatcher) = &mut self.dispatcher {
            dispatcher.publish_hot_keys(self.hot_keys.hot());
            dispatcher.check_predecessor();
        }
        Ok(())
    }

    /// Stops ruling, since another gate takes over, and serves the clients that are here to their end.
    async fn hand_over(self, signals: &mut Signals) {
        let drain = self.changes.config().gate.drain;
        let Self { maps, ownership, dispatcher, changes, prober, ticker, _heartbeat, .. } = self;
        let Some(dispatcher) = dispatcher else { return };
        dispatcher.start_draining();
        // From here on only the dispatcher writes to the maps: to buckets, which all may change, and counters.
        drop((ticker, _heartbeat));
        ownership.give_up(&*maps);
        // And nobody is listened to but its clients.
        drop((changes, prober));
        let clients = dispatcher.clients();
        tracing::info!(clients, at_most = %drain, "draining: another gate owns the maps; serving open connections");
        tokio::select! {
            _ = signals.interrupt.recv() => {}
            _ = signals.terminate.recv() => {}
            () = dispatcher.drain(drain) => {}
        }
        match dispatcher.clients() {
            0 => tracing::info!("drained"),
            left => tracing::warn!(left, "drain timeout: closing open connections"),
        }
    }

    /// Only where the program is attached does it matter by which interface something came.
    fn look_after_interfaces(&mut self) {
        let Some(attached) = &mut self.attached else { return };
        attached.look_after_interface();
        self.dispatcher.iter().for_each(Dispatcher::refresh_local_addrs);
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
            attached.loaded.samples.drain(MOST_SAMPLES, |sample| hot_keys.count(sample));
        }
        if let Some(dispatcher) = &self.dispatcher {
            dispatcher.drain_samples(MOST_SAMPLES, |sample| hot_keys.count(&sample));
        }
    }

    /// The parts of the maps in use, with the numbers of tenants that are gone but may still be referred to.
    fn occupied(&self) -> layout::Occupied {
        let mut occupied = occupied(&self.maps);
        if let Some(dispatcher) = &self.dispatcher {
            occupied.reserved = dispatcher.tenants_in_use();
            if dispatcher.has_predecessor() {
                occupied.reserved.extend(&self.inherited_tenants);
            }
        }
        occupied
    }

    /// The metrics of the proxied services.
    fn services(&self) -> &[ServiceMetrics] {
        self.dispatcher.as_ref().map_or(&[], Dispatcher::services)
    }
}

impl Attached {
    /// Lets what is charged be marked. Where that cannot be, the daemon goes by the interface.
    fn mark_charged(&mut self) {
        if let Err(error) = mark::attach(&mut self.loaded, &self.interface, self.mark, &self.pins) {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "charged datagrams are not marked: what comes in by the interface counts as charged"
            );
        }
    }

    /// Some drivers have no room for what the mark is made of.
    fn look_after_mark(&mut self) {
        let maps = &self.loaded.maps;
        if maps.charged_mark() != 0 && mark::unmarked(maps) > self.unmarked {
            maps.mark_nothing();
            tracing::warn!(
                interface = self.interface,
                "the driver has no metadata, so charged datagrams are not marked: what comes in by the interface \
                 counts as charged"
            );
        }
    }

    /// An interface that vanished takes its program with it; when one of that name is back, the program
    /// is attached anew.
    fn look_after_interface(&mut self) {
        let attached = self.loaded.maps.attached();
        if attached.is_some_and(|(index, _)| attach::interface_name(index).is_some()) {
            return;
        }
        if !self.interface_lost {
            self.interface_lost = true;
            tracing::error!(
                interface = self.interface,
                "the interface has vanished, and the program with it"
            );
        }
        match attach(&mut self.loaded, &self.interface, self.xdp, &self.pins) {
            Ok(mode) => {
                self.interface_lost = false;
                self.mark_charged();
                tracing::info!(interface = self.interface, mode = mode_name(mode), "attached again");
            }
            Err(error) => tracing::debug!(error = &error as &dyn std::error::Error, "not attached again"),
        }
    }
}

/// The signals that the daemon knows.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
    hand_over: Signal,
}

impl Signals {
    fn new() -> Result<Self, Error> {
        let on = |kind| signal(kind).map_err(|source| Error::System { what: "handling signals", source });
        Ok(Self {
            interrupt: on(SignalKind::interrupt())?,
            terminate: on(SignalKind::terminate())?,
            hang_up: on(SignalKind::hangup())?,
            hand_over: on(SignalKind::from_raw(owner::HAND_OVER as i32))?,
        })
    }
}

/// How large new maps are made for a configuration.
fn sizes(config: &Config) -> Result<Sizes, Error> {
    Ok(control::sizes::sizes(config, &Cpus::of_machine()?, dispatcher::cores())?)
}

fn rules(config: &Config) -> Rules {
    let settings = |service: &config::Service| {
        let config::Shedding { enabled, ladder, .. } = &service.shedding;
        enabled.then(|| *ladder)
    };
    let learning = |service: &config::Service| {
        let slow_below = service.shedding.ladder.shed_below[Tier::BestEffort.index()];
        let settles = service.price.learn.is_some_and(|learn| learn.settle == config::Settle::Debt);
        service.price.learning().map(|pricing| Learning { pricing, slow_below, settles })
    };
    Rules {
        tcp_in_debt: config.gate.tcp_in_debt,
        deep_debt: config.gate.deep_debt,
        rejection_rate: config.gate.algorithm == config::Algorithm::RejectionRate,
        shedding: config.services.iter().map(settings).collect(),
        learning: config.services.iter().map(learning).collect(),
    }
}

/// Asks the services that have a probe.
fn prober(config: &Config, watch: &Watch) -> Result<Option<Prober>, Error> {
    let services = config.services.iter().enumerate();
    let probed = services.filter_map(|(place, service)| Some((service, watch.probed(place)?)));
    Prober::start(probed).map_err(|source| Error::System { what: "starting the probes", source })
}

/// How often a second a key must be asked for to be hot, by service.
fn hot_per_sec(config: &Config) -> impl Iterator<Item = (String, u64)> {
    config.services.iter().map(|service| {
        let threshold = service.backend.as_ref().map(|backend| backend.hot_keys.threshold);
        (service.name.clone(), threshold.unwrap_or(HOT_PER_SEC))
    })
}

fn now(maps: &Maps) -> Nanos {
    maps.clock().at_monotonic(clock::monotonic())
}

fn announce_ownership(previous: Previous) {
    match previous {
        Previous::None => {}
        Previous::Gone(pid) => tracing::info!(pid, "took over the maps of a gate that is gone"),
        Previous::Left(pid) | Previous::Relieved(Predecessor { pid, .. }) => {
            tracing::info!(pid, "took over from a running gate");
        }
        Previous::Killed(pid) => {
            tracing::warn!(pid, "took over from a gate that did not answer and was killed");
        }
    }
}

fn announce_migration(from_version: u32) {
    if from_version == ABI_VERSION {
        tracing::info!("the maps were too small, larger ones took their place");
    } else {
        tracing::info!(
            from_version,
            to_version = ABI_VERSION,
            "the maps were an older gate's, new ones took their place"
        );
    }
}

fn announce_attached(interface: &str, mode: AttachMode, asked: attach::Mode, pins: &PinDir) {
    if mode == AttachMode::Generic && asked == attach::Mode::Auto {
        tracing::warn!(interface, "the driver has no XDP: attached in generic mode, which is slower");
    }
    tracing::info!(interface, mode = mode_name(mode), pins = %pins.path().display(), "attached");
}

fn every(period: Duration) -> Interval {
    let mut interval = tokio::time::interval(period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

const SAMPLES_EVERY: Duration = Duration::from_millis(20);
/// So that a flood of samples does not hold up a tick.
const MOST_SAMPLES: usize = 8_192;
const INTERFACE_EVERY: Duration = Duration::from_secs(1);
