//! The start of the daemon, with the program at interfaces or without.

use std::collections::{BTreeSet, HashSet};
use std::net::TcpListener;
use std::sync::Arc;

use super::attached::{Attached, announce_attached};
use super::changes::{Changes, fingerprint};
use super::envoy::EnvoyServer;
use super::error::Error;
use super::inherited::inherit;
use super::neighbour::Neighbour;
use super::options::Options;
use super::process::Daemon;
use super::service_manager::ServiceManager;
use super::settings::{
    fit_descriptors, hot_key_limits, hot_per_sec, measures_answers, now, prober, rules, sizes, syn_cookies,
};
use super::settling::Settling;
use super::trace;
use super::turn::Turn;
use super::{admin, fleet, intercept, interfaces, local, neighbour};
use crate::bypass;
use crate::clock;
use crate::config::{self, Config};
use crate::control::board::Board;
use crate::control::hot_keys::HotKeys;
use crate::control::layout::Layout;
use crate::control::occupied::{Occupied, occupied};
use crate::control::tick::Ticker;
use crate::control::verdicts::Verdicts;
use crate::control::watch::Watch;
use crate::dispatcher::{Dispatcher, certificate_faults};
use crate::fleet::gate::reporter::Reporter;
use crate::kernel::attach;
use crate::kernel::interfaces::{assign, attach_all};
use crate::kernel::owner::{Ownership, Predecessor, Previous};
use crate::kernel::{self, CpuWatch, Heartbeat, Interception, Maps, Opened, PinDir};
use crate::mounts::hiding_namespace;
use crate::system_error::with_causes;

impl Daemon {
    /// Starts as the configuration says.
    pub(super) fn start(options: Options) -> Result<Self, Error> {
        let text = config::read_text(&options.config)?;
        let config = Config::parse_with(&options.config, &text, &[])?;
        let turn =
            neighbour::socket(&options, &config).map(|socket| Turn::take(&socket)).transpose()?.flatten();
        let (config, overrides) = inherit(&options, &text, config);
        let mut started = Self::start_with(options, config)?;
        started.changes.overrides.send_replace(overrides);
        started.changes.file = fingerprint(&text);
        started.turn = turn;
        Ok(started)
    }

    fn start_with(options: Options, mut config: Config) -> Result<Self, Error> {
        // As below, before another gate ends.
        let faults = certificate_faults(&config);
        if !faults.is_empty() {
            let file = options.config.display().to_string();
            return Err(config::Error::from(config::Faults { file, faults }).into());
        }
        config.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
        fit_descriptors(&mut config);
        // Before another gate ends: a port that is taken must not leave nobody in charge.
        admin::token(&config)?;
        let port = admin::port(&config, options.takeover)?;
        let xdp = match config.gate.xdp {
            config::XdpMode::Auto => attach::Mode::Auto,
            config::XdpMode::Native => attach::Mode::Native,
            config::XdpMode::Generic => attach::Mode::Generic,
            config::XdpMode::Off if options.trace.is_some() => return Err(Error::Trace { source: None }),
            config::XdpMode::Off => return Self::in_user_space(options, &config, port),
        };
        let names = interfaces::checked(&options, &config, &[])?;
        bypass::warnings(&config, &names).iter().for_each(|warning| tracing::warn!("{warning}"));
        let sizes = sizes(&config)?;
        let directory = options.pin_dir.as_ref().unwrap_or(&config.gate.pin_dir);
        if let Some(name) = hiding_namespace().filter(|_| directory.starts_with("/sys")) {
            tracing::warn!(
                "`ip netns exec` has mounted a /sys for this process alone, which ends with it, and the pins in it: nothing is judged after \
                 a crash, and no other command finds them; start it by `nsenter --net=/run/netns/{name} gate run ...`"
            );
        }
        let opened = PinDir::make(directory)
            .and_then(|pins| Ok((kernel::open(&pins, &sizes, options.takeover, options.trace)?, pins)));
        let (opened, pins) = match opened {
            Err(error) if error.rules_out_xdp() && options.trace.is_some() => {
                return Err(Error::Trace { source: Some(error) });
            }
            Err(error) if error.rules_out_xdp() => return Self::without_xdp(options, &config, port, error),
            opened => opened?,
        };
        let fresh = opened.fresh;
        let started = Self::with_xdp(options, &config, port, (xdp, &names), pins.clone(), opened);
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
        port: Option<TcpListener>,
        (xdp, names): (attach::Mode, &[String]),
        pins: PinDir,
        opened: Opened,
    ) -> Result<Self, Error> {
        let maps = Arc::clone(&opened.maps);
        // Before the old gate ends: what does not fit must not leave nobody in charge.
        let interfaces = assign(&maps, names, &pins)?;
        let local = local::addresses();
        let occupied = Occupied { local: local.clone(), syn_cookies: syn_cookies(), ..occupied(&maps) };
        let layout = Layout::build(config, &occupied)?;
        let interception = intercept::open(&options, config)?;
        let (ownership, previous) = opened.take()?;
        let predecessor = match &previous {
            Previous::Draining(predecessor) => Some(predecessor.clone()),
            _ => None,
        };
        let neighbour = match previous {
            Previous::None | Previous::Gone(_) => Neighbour::find(&options, config)?,
            Previous::Left(_) | Previous::Draining(_) | Previous::Killed(_) => None,
        };
        let mut daemon = Self::serving(
            options,
            config,
            port,
            (maps, ownership),
            layout,
            predecessor.clone(),
            interception,
        )?;
        daemon.neighbour = neighbour;
        daemon.local = local;
        daemon.inherited_tenants = occupied.tenants.into_values().collect();
        announce_ownership(previous);
        let (mut loaded, migration) = opened.into_loaded()?;
        let modes = attach_all(&mut loaded, &interfaces, xdp, &pins)?;
        if let Some(migration) = &migration {
            migration.complete(&loaded.maps)?;
            tracing::info!("the maps were too small, larger ones took their place");
        }
        daemon.migrating = migration.zip(predecessor);
        if let Some(trace) = loaded.trace.take() {
            trace::start(trace, Arc::clone(&daemon.maps))?;
        }
        let proxies_datagrams =
            config.services.iter().any(|service| service.backend.is_some() && service.transports.udp);
        let mark = if proxies_datagrams { config.gate.charged_mark } else { 0 };
        let attached = Attached::new(xdp, interfaces, pins, loaded, mark, measures_answers(config));
        for (interface, mode) in attached.interfaces.iter().zip(modes) {
            announce_attached(&interface.name, mode, xdp, &attached.pins);
        }
        daemon.attached = Some(attached);
        Ok(daemon)
    }

    /// Without eBPF guarded services would be unprotected, which is an error; proxied ones can do without.
    fn without_xdp(
        options: Options,
        config: &Config,
        port: Option<TcpListener>,
        error: kernel::Error,
    ) -> Result<Self, Error> {
        if config.services.iter().any(|service| service.backend.is_none()) {
            return Err(Error::Bare(error));
        }
        tracing::warn!(error = with_causes(&error), "continuing without XDP");
        Self::in_user_space(options, config, port)
    }

    fn in_user_space(options: Options, config: &Config, port: Option<TcpListener>) -> Result<Self, Error> {
        let (maps, ownership) = Maps::private(&sizes(config)?)?;
        let layout = Layout::build(config, &occupied(&maps))?;
        let neighbour = Neighbour::find(&options, config)?;
        let interception = intercept::open(&options, config)?;
        let maps = (Arc::new(maps), ownership);
        let mut started = Self::serving(options, config, port, maps, layout, None, interception)?;
        started.neighbour = neighbour;
        tracing::info!("running without XDP");
        Ok(started)
    }

    fn serving(
        options: Options,
        config: &Config,
        port: Option<TcpListener>,
        (maps, ownership): (Arc<Maps>, Ownership),
        layout: Layout,
        predecessor: Option<Predecessor>,
        interception: Option<Interception>,
    ) -> Result<Self, Error> {
        let mut ticker = Ticker::new(Arc::clone(&maps), ownership, layout, rules(config))?;
        // Both banks hold the plan before the first packet is judged by it.
        while ticker.stabilising() {
            ticker.tick(now(&maps), &[])?;
        }
        let reporter = fleet::join(config, &maps, &mut ticker, options.takeover)?;
        let lifeline = interception.as_ref().map(Interception::lifeline);
        let heartbeat = Heartbeat::start(Arc::clone(&maps), ownership, config.gate.stale_after, lifeline)
            .map_err(|source| Error::System { what: "starting the heartbeat", source })?;
        let mut cpus = CpuWatch::new()?;
        cpus.tick(&maps)?;
        let dispatcher =
            Dispatcher::start(config, &maps, predecessor, options.takeover, interception.as_ref())?;
        let envoy =
            EnvoyServer::start(config, &maps, options.takeover, reporter.as_ref().map(Reporter::book))?;
        let mut hot_keys = HotKeys::new(config.gate.tick, clock::entropy())?;
        hot_keys.follow(hot_per_sec(config))?;
        hot_keys.limit(hot_key_limits(config));
        let proxied = dispatcher.as_ref().map_or(&[][..], Dispatcher::services);
        let proxied = proxied.iter().map(|service| service.name.clone());
        let verdicts = Verdicts::new(config.gate.tick, clock::entropy(), proxied)?;
        verdicts.follow(config.services.iter().map(|service| service.name.as_str()));
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
            verdicts,
            reload: false,
            settling: Settling::default(),
            draining: None,
            local: BTreeSet::new(),
            watch,
            prober,
            changes: Changes::new(Arc::new(config.clone())),
            board: Board::default(),
            dispatcher,
            interception,
            envoy,
            migrating: None,
            inherited_tenants: HashSet::new(),
            service_manager: ServiceManager::from_environment(),
            turn: None,
            neighbour: None,
            reporter,
            _heartbeat: heartbeat,
        };
        daemon.listen_to_admin(port)?;
        // Last: where this one cannot start after all, connections still go where they went before.
        daemon.intercept()?;
        Ok(daemon)
    }
}

fn announce_ownership(previous: Previous) {
    match previous {
        Previous::None => {}
        Previous::Gone(pid) => tracing::info!(pid, "took over the maps of a gate that is gone"),
        Previous::Left(pid) | Previous::Draining(Predecessor { pid, .. }) => {
            tracing::info!(pid, "took over from a running gate");
        }
        Previous::Killed(pid) => {
            tracing::warn!(pid, "took over from a gate that did not answer and was killed");
        }
    }
}
