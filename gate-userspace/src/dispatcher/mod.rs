//! The dispatcher: proxied services.
//!
//! One thread per core, each with listening sockets of its own on the same addresses, clients of its own
//! and a few connections of its own to each store. Little is shared between threads: the tenants'
//! buckets in the maps, the admission policy, and what is known of hot keys.
//!
//! ```text
//! client task ──► decode ──► pipeline ──► store connection: gathered, written, answers read
//!      ▲                        │                                   │
//!      └───── replies, in order ◄─── refusals, hits ────────────────┘
//! ```
//!
//! - `pipeline`: every step that a request passes, and the only `impl Service`. Start here. It imports the rooms below;
//!   none of them imports it.
//! - `admission`: charge, admission policy, permit and queue; it knows no protocol.
//! - `clients`: sockets, input and replies; `identity`: who a client is to the store.
//! - `tenants`: prices, quotas, and the commands that are denied; `query_types`: the type of a request.
//! - `hot_cache`: reads of hot keys, answered from memory or by one read for many clients.
//! - `queue`: admission, the queue before the store, and its delay.
//! - `stores`: the connections to the store; `store_silence`: how long it may say nothing.
//! - `tls`: TLS, to clients and to stores.
//! - `wire`: the protocols, memcached and RESP.
//! - `metrics`: counters, written by one thread and read by any.
//! - `hot_restart`: the takeover from a running gate.
//! - `intercepted`: the sockets of services whose stores keep their address; `own_connections`: the connections that gate makes.
//! - `http`: services that speak HTTP, which pass the same admission.
//! - `questions`: what the next request would get.
//! - `worker`, `listen`, `settings`: one thread, its sockets, and the configuration of one service; `shared_service`: what
//!   the threads share of one; `local_addrs`: the machine's own addresses.

use std::collections::{BTreeSet, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::thread::JoinHandle;
use std::time::Duration;

use gate_common::abi::Sample;
use tokio::sync::watch;

use crate::cache::Cache;
use crate::clock;
use crate::config::{self, Config};
use crate::kernel::owner::Predecessor;
use crate::kernel::{self, Interception, Maps, Target};
use crate::policy::range::OutOfRange;
use crate::system_error::{in_words, of_new_file, with_causes};

mod accept;
mod admission;
mod clients;
mod cluster;
mod draining;
mod hot_cache;
mod hot_restart;
mod http;
mod identity;
mod in_force;
mod intercepted;
mod joined;
mod learned_reads;
mod limit_refusals;
mod listen;
mod member_counts;
pub(crate) use listen::{check_tcp_free, prefer as prefer_socket, tcp as listen_reusing_port};
mod local_addrs;
mod metrics;
mod node_id;
mod own_connections;
mod pipeline;
mod query_types;
mod questions;
mod queue;
mod request;
mod resolver;
mod scan;
mod settings;
mod shared_service;
mod size_question;
mod slot_map;
mod split;
mod store_place;
mod store_silence;
mod stores;
mod tenants;
mod tls;
mod wire;
mod worker;

use hot_restart::{Entrances, LivePredecessor, Phase};
pub use limit_refusals::LimitRefusals;
use local_addrs::LocalAddrs;
pub use member_counts::{MemberCounts, MemberTotals};
pub use metrics::by_type::{Counts, Timing};
pub use metrics::latency::{LatencyHistogram, LatencySnapshot};
pub use metrics::read_prices::ReadPriceSums;
pub use metrics::refusal_latency::RefusalSnapshot;
pub use metrics::verdicts::{RefusingBucket, VerdictSample};
pub use metrics::{BusyStore, Event, NodePlace, NodeReading, Reached, ServiceMetrics, WorkerMetrics};
pub use questions::Questions;
pub use queue::delay::QueueState;
use settings::{Controls, Settings};
use shared_service::SharedService;
pub use store_place::socket_warnings;
use tenants::Tenants;
pub(crate) use tenants::by_name::NamedTenants;
pub(crate) use tenants::ledger::TenantId;
use tenants::retired::Retired;
pub use tls::certificate_faults;

/// The running threads. Dropping it ends them and every connection.
#[derive(Debug)]
pub struct Dispatcher {
    phase: watch::Sender<Phase>,
    /// The ways in that are open.
    entrances: Entrances,
    threads: Vec<JoinHandle<()>>,
    services: Vec<ServiceMetrics>,
    /// By service: the way to the thread that explains.
    questions: Vec<Questions>,
    /// By service: where its limits, its query types and its policy are changed.
    controls: Vec<Controls>,
    /// By service: what its threads share.
    shared: Vec<SharedService>,
    live_predecessor: Option<LivePredecessor>,
    samples: Receiver<Sample>,
    verdicts: Receiver<VerdictSample>,
    tenants: watch::Sender<Arc<Tenants>>,
    local_addrs: watch::Sender<Arc<LocalAddrs>>,
    /// Numbers of tenants that are gone.
    retired: Retired,
    /// The sockets that intercepted connections are to be given to.
    targets: Vec<Target>,
    /// True if those are the sockets of the gate before this one.
    inherited: bool,
}

/// Why the dispatcher cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An address cannot be listened at.
    #[error(
        "service {service}: cannot listen at {address}: {}{}",
        in_words(error),
        if error.kind() == std::io::ErrorKind::AddrInUse { "; if it is a gate, --takeover takes its place" } else { "" }
    )]
    Listen {
        /// The service's name.
        service: String,
        /// The address.
        address: SocketAddr,
        /// The system's error.
        error: std::io::Error,
    },
    /// An admission policy's parameter that the configuration should not have let through.
    #[error(transparent)]
    OutOfRange(#[from] OutOfRange),
    /// A certificate or a key cannot be used.
    #[error("line {0}")]
    Certificate(config::Fault),
    /// A cache cannot be opened.
    #[error(transparent)]
    Cache(#[from] crate::cache::OpenError),
    /// An access log cannot be opened.
    #[error("service {service}: cannot open its access_log: {}", of_new_file(error))]
    AccessLog {
        /// The service's name.
        service: String,
        /// The system's error.
        error: std::io::Error,
    },
    /// The connections of stores cannot be had.
    #[error("cannot intercept: {}", with_causes(_0))]
    Intercept(#[source] kernel::Error),
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] std::io::Error),
}

impl Dispatcher {
    /// Starts serving the services of `config` that have a backend; `None` if none has. The maps hold a
    /// layout of this configuration, and rows of counters for threads. From a
    /// `predecessor` that still has clients it takes over the sockets. `takes_over` waits for another gate to leave its caches.
    /// The `interception` is there if a service needs it; it is not in force yet when this returns.
    ///
    /// # Errors
    ///
    /// [`Error`]; then nothing runs.
    pub fn start(
        config: &Config,
        maps: &Arc<Maps>,
        predecessor: Option<Predecessor>,
        takes_over: bool,
        interception: Option<&Interception>,
    ) -> Result<Option<Self>, Error> {
        let first_row = 1 + maps.cpu_rows();
        let rows = (maps.rows() - first_row).max(1);
        let count = config.gate.threads.map_or_else(|| cores() as usize, std::num::NonZero::get).min(rows);
        let tenants = Tenants::after(&Tenants::default(), config, &maps.tenant_ids());
        let (tenants, known) = watch::channel(Arc::new(tenants));
        let (local_addrs, addresses) = watch::channel(Arc::new(LocalAddrs::now()));
        let settings = Settings::of(config, count, &known, &addresses).map_err(Error::Certificate)?;
        let (mut settings, controls): (Vec<_>, Vec<_>) = settings.into_iter().unzip();
        if settings.is_empty() {
            return Ok(None);
        }
        if !takes_over {
            let proxied = config.services.iter().filter(|service| service.backend.is_some());
            // An intercepted service has one owner, and listens nowhere that is configured.
            let own = settings.iter().zip(proxied).filter(|(_, service)| service.intercept.is_none());
            own.into_iter().try_for_each(|(settings, _)| worker::check_free(settings))?;
        }
        let reserved = intercepted::Reserved::listen_there(config, &mut settings, interception)?;
        // Before anything that takes time: the gate before this one closes its own soon.
        let mut inherited = intercepted::inherited(predecessor.as_ref(), interception, &reserved);
        let has_inherited = inherited.has_any();
        let logins = settings.iter().filter_map(|settings| settings.backend.store_login.as_ref());
        logins.for_each(|login| identity::warn_if_readable(&login.store_password_file));
        let keys = settings.iter().filter_map(|settings| settings.backend.tls.as_ref());
        keys.for_each(|tls| identity::warn_if_readable(&tls.key.path));
        let (to_samples, samples) = hot_cache::hot_set::samples();
        let (to_verdicts, verdicts) = metrics::verdicts::verdicts();
        let mut shared =
            SharedService::all(settings, count, maps.tenants.len(), &to_samples, clock::monotonic())?;
        shared.iter_mut().try_for_each(|service| service.open_cache(takes_over))?;
        for service in &mut shared {
            service
                .open_access_log()
                .map_err(|error| Error::AccessLog { service: service.settings.name.clone(), error })?;
        }
        let live_predecessor = predecessor
            .map(|predecessor| LivePredecessor::new(predecessor, shared.iter().map(|service| &service.hot)));
        let (phase, following) = watch::channel(Phase::Serving);
        let entrances = Entrances::default();
        let common = worker::DispatcherShared {
            services: shared,
            verdicts: to_verdicts,
            phase: following,
            entrances: entrances.clone(),
        };
        let prepare =
            |number| worker::WorkerSetup::new(number, first_row + number, &common, maps, &mut inherited);
        let plans: Vec<_> = (0..count).map(prepare).collect::<Result<_, _>>()?;
        let streams = plans.iter().take(1).flat_map(worker::WorkerSetup::streams);
        let targets = intercepted::targets(config, streams).map_err(Error::Intercept)?;
        let shared = common.services;
        let mut this = Self {
            phase,
            entrances,
            threads: Vec::new(),
            services: shared.iter().map(|service| service.metrics.clone()).collect(),
            questions: shared.iter().map(|service| service.questions.clone()).collect(),
            controls,
            shared,
            live_predecessor,
            samples,
            verdicts,
            tenants,
            local_addrs,
            retired: Retired::default(),
            targets,
            inherited: has_inherited,
        };
        for plan in plans {
            this.threads.push(plan.start().map_err(Error::Thread)?);
        }
        Ok(Some(this))
    }

    /// Puts in force what may change while it runs: [`Config::from_next_start`] lists the rest. The maps hold a
    /// layout of this configuration.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`] for what the configuration should not have let through.
    pub fn follow(&self, config: &Config, maps: &Maps) -> Result<(), OutOfRange> {
        let tenants = Tenants::after(&self.tenants.borrow(), config, &maps.tenant_ids());
        let before = self.tenants.send_replace(Arc::new(tenants));
        let now = self.tenants.borrow().clone();
        self.retired.follow(&before, &now);
        for (tenant, _) in before.gone_since(&now) {
            self.shared.iter().for_each(|service| service.learned_reads.forget(tenant));
        }
        drop(before);
        for (SharedService { metrics, policy, .. }, controls) in self.shared.iter().zip(&self.controls) {
            let named = config.services.iter().find(|service| service.name == metrics.name);
            let Some((service, backend)) =
                named.and_then(|service| Some((service, service.backend.as_ref()?)))
            else {
                continue;
            };
            controls.follow(backend, service.price.learn, &metrics.types);
            for fault in controls.read_certificates(service.protocol, backend) {
                tracing::error!("the certificate in use stays: line {fault}");
            }
            policy.follow(backend, &metrics.types)?;
        }
        self.shared.iter().for_each(|service| service.settings.in_force.changed());
        Ok(())
    }

    /// True if each thread judges by what was put in force last.
    #[must_use]
    pub fn is_followed(&self) -> bool {
        self.shared.iter().all(|service| service.settings.in_force.is_everywhere())
    }

    /// The numbers of tenants that are gone, which a connection or a request may still refer to.
    #[must_use]
    pub fn tenants_in_use(&self) -> HashSet<u32> {
        let longest = self.controls.iter().map(Controls::longest_request).max().unwrap_or_default();
        self.retired.in_use(clock::monotonic(), longest)
    }

    /// True if the predecessor still has clients, as far as is known.
    #[must_use]
    pub fn has_predecessor(&self) -> bool {
        self.live_predecessor.is_some()
    }

    /// Looks which addresses are the machine's own, and takes over which interfaces lie `above` those that the XDP program is at.
    /// To be called now and then, where it is attached.
    pub fn refresh_local_addrs(&self, above: &BTreeSet<u32>) {
        let local_addrs = LocalAddrs::now().with_above(above);
        self.local_addrs.send_if_modified(|known| {
            let changes = **known != local_addrs;
            if changes {
                *known = Arc::new(local_addrs);
            }
            changes
        });
    }

    /// The metrics of each proxied service.
    #[must_use]
    pub fn services(&self) -> &[ServiceMetrics] {
        &self.services
    }

    /// The ways to ask what the next request to each service would get.
    #[must_use]
    pub fn questions(&self) -> &[Questions] {
        &self.questions
    }

    /// The caches of HTTP services, by their names.
    #[must_use]
    pub fn caches(&self) -> Vec<(String, Arc<Cache>)> {
        let with_cache =
            |service: &SharedService| Some((service.metrics.name.clone(), service.cache.clone()?));
        self.shared.iter().filter_map(with_cache).collect()
    }

    /// The refusals by tenants' limits.
    #[must_use]
    pub fn limit_refusals(&self) -> LimitRefusals {
        LimitRefusals::new(self.tenants.subscribe())
    }

    /// The counts of tenants' members.
    #[must_use]
    pub fn member_counts(&self) -> MemberCounts {
        MemberCounts::new(self.tenants.subscribe())
    }

    /// Hands the samples of keys that the threads have taken to `each`, at most `most`.
    pub fn drain_samples(&self, most: usize, each: impl FnMut(Sample)) {
        self.samples.try_iter().take(most).for_each(each);
    }

    /// The verdicts that the threads have sampled, at most `most`.
    pub fn drain_verdicts(&self, most: usize) -> impl Iterator<Item = VerdictSample> {
        self.verdicts.try_iter().take(most)
    }

    /// Says which keys are hot, each with its service's name.
    pub fn publish_hot_keys<'k>(&self, hot: impl Iterator<Item = (&'k str, &'k [u8])> + Clone) {
        for service in &self.shared {
            let own = hot.clone().filter(|(name, _)| *name == service.metrics.name);
            service.hot.hot_set_publisher.publish(own.map(|(_, key)| key));
        }
    }

    /// Looks whether the gate before this one still has clients. To be called now and then.
    pub fn check_predecessor(&mut self) {
        if self.live_predecessor.take_if(|live_predecessor| live_predecessor.is_gone()).is_some() {
            tracing::info!("the predecessor has ended");
        }
    }

    /// Clients that are connected.
    #[must_use]
    pub fn clients(&self) -> u64 {
        self.services.iter().flat_map(|service| service.threads.iter()).map(|thread| thread.connected()).sum()
    }
}

/// The number of threads that serve unless the configuration says so.
#[must_use]
pub fn cores() -> u32 {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get) as u32
}

impl Drop for Dispatcher {
    fn drop(&mut self) {
        self.phase.send_replace(Phase::Stopped);
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the dispatcher has panicked");
            }
        }
        self.shared.iter().filter_map(|service| service.cache.as_ref()).for_each(|cache| cache.close());
    }
}

/// For requests that are under way when patience ends.
pub const LAST_WAIT: Duration = Duration::from_secs(5);
/// The interval at which it is checked that all clients have left.
pub const LOOK_EVERY: Duration = Duration::from_millis(20);
