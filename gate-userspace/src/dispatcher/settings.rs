//! What the configuration says of one proxied service, as a thread uses it.

use std::net::SocketAddr;
use std::sync::Arc;

use gate_common::units::Nanos;
use tokio::sync::watch;

use super::tenants::Tenants;
use crate::config;
use crate::policy::Tier;
use crate::protocol::Class;

/// What may change of a service while it runs, as a thread uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// How many requests of each thread may wait, and for how long.
    pub(super) queue: usize,
    pub(super) deadline: Option<Nanos>,
    pub(super) codel: Option<config::Codel>,
    /// By class: the highest tier that its requests may have.
    pub(super) tiers: [Tier; Class::ALL.len()],
    /// How many clients each thread may have.
    pub(super) clients: usize,
    /// How many replies and bytes of them may wait for one client, and how long it may dawdle.
    pub(super) depth: usize,
    pub(super) output: usize,
    pub(super) client_timeout: Nanos,
    /// How long a request may be; holds for clients that come after.
    pub(super) request: usize,
    /// How long the store may take to accept a connection or to answer.
    pub(super) store_timeout: Nanos,
}

impl Limits {
    /// Those of a service, for each of so many threads.
    pub(super) fn of(backend: &config::Backend, threads: usize) -> Self {
        let admission = backend.admission.as_ref();
        Self {
            queue: admission.map_or(0, |admission| admission.queue_limit.div_ceil(threads)),
            deadline: admission.and_then(|admission| admission.deadline),
            codel: admission.and_then(|admission| admission.codel),
            tiers: backend.tiers,
            clients: backend.max_clients.div_ceil(threads),
            depth: backend.depth,
            output: backend.max_output,
            client_timeout: backend.client_timeout,
            request: backend.max_request,
            store_timeout: backend.timeout,
        }
    }
}

/// One proxied service's settings.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// Its place in the configuration.
    pub(super) service: usize,
    /// Its name.
    pub(super) name: String,
    /// How it is spoken to.
    pub(super) protocol: config::Protocol,
    /// Where it listens, and for what.
    pub(super) listen: Vec<SocketAddr>,
    pub(super) transports: config::Transports,
    /// The store behind it, and how it is treated.
    pub(super) backend: config::Backend,
    /// Users, and denied commands.
    pub(super) tenants: Arc<Tenants>,
    /// How many connections each thread keeps to the store.
    pub(super) connections: usize,
    /// How many requests of each thread may be with the store at once.
    pub(super) places: usize,
    /// What may change while it runs.
    pub(super) limits: watch::Receiver<Limits>,
    /// How many datagrams of each thread may be under way.
    pub(super) max_datagrams: usize,
}

impl Settings {
    /// Those of the services that are proxied, for each of so many threads; and where their limits are changed.
    pub(super) fn of(
        config: &config::Config,
        threads: usize,
        tenants: &Arc<Tenants>,
    ) -> Vec<(Self, watch::Sender<Limits>)> {
        let proxied = config.services.iter().enumerate();
        proxied
            .filter_map(|(service, settings)| {
                let backend = settings.backend.clone()?;
                let admission = backend.admission.as_ref();
                let (sender, limits) = watch::channel(Limits::of(&backend, threads));
                let settings = Self {
                    limits,
                    places: admission
                        .map_or(usize::MAX, |admission| (admission.parallelism as usize).div_ceil(threads)),
                    tenants: Arc::clone(tenants),
                    service,
                    name: settings.name.clone(),
                    protocol: settings.protocol,
                    listen: settings.listen.clone(),
                    transports: settings.transports,
                    connections: backend.connections as usize,
                    max_datagrams: backend.max_datagrams.div_ceil(threads),
                    backend,
                };
                Some((settings, sender))
            })
            .collect()
    }

    /// How long a new client's requests may be.
    pub(super) fn max_request(&self) -> usize {
        self.limits.borrow().request
    }

    /// How long the store may take to answer.
    pub(super) fn store_timeout(&self) -> Nanos {
        self.limits.borrow().store_timeout
    }
}
