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
//! - `pipeline`: what a request passes, in order. Start here.
//! - `clients`: their sockets, their requests and replies; `identity`: who they are to the store.
//! - `tenants`: who is charged, prices, quotas, what is denied; `types`: of which query type a request is.
//! - `hot_cache`: reads of hot keys, which need not go to the store.
//! - `admission`: which requests may wait for the store, which is next, and which have waited too long.
//! - `stores`: the connections to the store.
//! - `wire`: what is needed of a protocol, memcached and RESP.
//! - `figures`: what is observed, counted by one thread and read by any.
//! - `service`, `thread`, `listen`, `settings`: what they stand on.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::thread::JoinHandle;

use gate_common::abi::Sample;
use tokio::sync::watch;

use crate::clock;
use crate::config::Config;
use crate::control::tick::occupied;
use crate::kernel::Maps;
use crate::policy::range::OutOfRange;

mod admission;
mod clients;
mod figures;
mod hot_cache;
mod identity;
mod listen;
mod pipeline;
mod service;
mod settings;
mod stores;
mod tenants;
mod thread;
mod types;
mod wire;

use admission::policy::Policy;
use clients::own::Own;
pub use clients::refusals::Refusals;
pub use figures::counts::{Counts, Timing};
pub use figures::latency::{Latencies, Reading};
pub use figures::{Event, Figures, QueueState, ServiceFigures};
use hot_cache::keys::Announcer;
use settings::{Controls, Settings};
use tenants::Tenants;

/// The running threads. Dropping it ends them and every connection.
#[derive(Debug)]
pub struct Dispatcher {
    stop: watch::Sender<bool>,
    threads: Vec<JoinHandle<()>>,
    services: Vec<ServiceFigures>,
    /// By service: where its limits, its query types and its policy are changed.
    controls: Vec<Controls>,
    policies: Vec<Policy>,
    /// By service: where its hot keys are announced.
    announcers: Vec<Arc<Announcer>>,
    samples: Receiver<Sample>,
    tenants: watch::Sender<Arc<Tenants>>,
    own: watch::Sender<Arc<Own>>,
}

/// Why the dispatcher cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An address cannot be listened at.
    #[error("service {service}: cannot listen at {address}: {source}")]
    Listen {
        /// The service's name.
        service: String,
        /// The address.
        address: SocketAddr,
        /// What the system says.
        source: std::io::Error,
    },
    /// An admission policy's parameter that the configuration should not have let through.
    #[error(transparent)]
    OutOfRange(#[from] OutOfRange),
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] std::io::Error),
}

impl Dispatcher {
    /// Starts serving the services of `config` that have a backend; `None` if none has. The maps hold a
    /// layout of this configuration, and a row of counters for each thread from `first_row` on.
    ///
    /// # Errors
    ///
    /// [`Error`]; then nothing runs.
    pub fn start(config: &Config, maps: &Arc<Maps>, first_row: usize) -> Result<Option<Self>, Error> {
        // The last row is nobody's.
        let rows = maps.cpus.len().saturating_sub(first_row + 1).max(1);
        let count = config.gate.threads.map_or_else(thread::cores, std::num::NonZero::get).min(rows);
        let tenants = Tenants::after(&Tenants::default(), config, &occupied(maps).tenants);
        let (tenants, known) = watch::channel(Arc::new(tenants));
        let (own, addresses) = watch::channel(Arc::new(Own::now()));
        let settings = Settings::of(config, count, &known, &addresses);
        let (settings, controls): (Vec<_>, Vec<_>) = settings.into_iter().unzip();
        if settings.is_empty() {
            return Ok(None);
        }
        let logins = settings.iter().filter_map(|settings| settings.backend.login.as_ref());
        logins.for_each(|login| identity::warn_of_readers(&login.password_file));
        let now = clock::monotonic();
        let policy = |settings: &Settings| Policy::new(settings.backend.admission.as_ref(), now);
        let policies: Vec<Policy> = settings.iter().map(policy).collect::<Result<_, _>>()?;
        let figures = settings.iter().zip(&policies);
        let figures = figures.map(|(settings, policy)| {
            let types = settings.backend.query_types.clone();
            ServiceFigures::new(settings.name.clone(), count, types, policy.clone())
        });
        let services: Vec<ServiceFigures> = figures.collect();
        let (to_samples, samples) = hot_cache::keys::samples();
        let hot = hot_cache::Shared::of(&settings, count, &to_samples);
        let announcers = hot.iter().map(|hot| Arc::clone(&hot.announcer)).collect();
        let (stop, stopped) = watch::channel(false);
        let (figures, kept) = (services.clone(), policies.clone());
        let common = thread::Common { settings, figures, policies: kept, hot };
        let prepare =
            |number| thread::Plan::prepare(number, first_row + number, &common, maps, stopped.clone());
        let plans: Vec<_> = (0..count).map(prepare).collect::<Result<_, _>>()?;
        let threads = Vec::new();
        let mut this =
            Self { stop, threads, services, controls, policies, announcers, samples, tenants, own };
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
        let tenants = Tenants::after(&self.tenants.borrow(), config, &occupied(maps).tenants);
        self.tenants.send_replace(Arc::new(tenants));
        let changed = self.services.iter().zip(&self.controls).zip(&self.policies);
        for ((figures, controls), policy) in changed {
            let named = config.services.iter().find(|service| service.name == figures.name);
            let Some(backend) = named.and_then(|service| service.backend.as_ref()) else { continue };
            controls.follow(backend, figures.threads.len(), &figures.types);
            policy.follow(backend, &figures.types)?;
        }
        Ok(())
    }

    /// Looks which addresses are the machine's own. To be called now and then, where the XDP program is attached.
    pub fn look_after_addresses(&self) {
        let own = Own::now();
        self.own.send_if_modified(|known| {
            let changes = **known != own;
            if changes {
                *known = Arc::new(own);
            }
            changes
        });
    }

    /// What happened at each proxied service.
    #[must_use]
    pub fn services(&self) -> &[ServiceFigures] {
        &self.services
    }

    /// Hands the samples of keys that the threads have taken to `each`, at most `most`.
    pub fn drain_samples(&self, most: usize, each: impl FnMut(Sample)) {
        self.samples.try_iter().take(most).for_each(each);
    }

    /// Says which keys are hot, each with its service's name.
    pub fn announce<'k>(&self, hot: impl Iterator<Item = (&'k str, &'k [u8])> + Clone) {
        for (service, announcer) in self.services.iter().zip(&self.announcers) {
            let own = hot.clone().filter(|(name, _)| *name == service.name);
            announcer.announce(own.map(|(_, key)| key));
        }
    }
}

impl Drop for Dispatcher {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the dispatcher has panicked");
            }
        }
    }
}
