//! What the configuration says of one proxied service, as a thread uses it.

use std::net::SocketAddr;
use std::sync::Arc;

use gate_common::units::Nanos;

use super::tenants::Tenants;
use crate::config;

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
    /// How many requests of each thread may be with the store at once, and how many may wait.
    pub(super) places: usize,
    pub(super) queue_limit: usize,
    /// How many clients each thread may have.
    pub(super) max_clients: usize,
    /// How many datagrams of each thread may be under way.
    pub(super) max_datagrams: usize,
}

impl Settings {
    /// Those of the services that are proxied, for each of so many threads.
    pub(super) fn of(config: &config::Config, threads: usize, tenants: &Arc<Tenants>) -> Vec<Self> {
        let proxied = config.services.iter().enumerate();
        proxied
            .filter_map(|(service, settings)| {
                let backend = settings.backend.clone()?;
                let admission = backend.admission.as_ref();
                Some(Self {
                    places: admission
                        .map_or(usize::MAX, |admission| (admission.parallelism as usize).div_ceil(threads)),
                    queue_limit: admission.map_or(0, |admission| admission.queue_limit.div_ceil(threads)),
                    tenants: Arc::clone(tenants),
                    service,
                    name: settings.name.clone(),
                    protocol: settings.protocol,
                    listen: settings.listen.clone(),
                    transports: settings.transports,
                    connections: backend.connections as usize,
                    max_clients: backend.max_clients.div_ceil(threads),
                    max_datagrams: backend.max_datagrams.div_ceil(threads),
                    backend,
                })
            })
            .collect()
    }

    /// How long the store may take to answer.
    pub(super) fn store_timeout(&self) -> Nanos {
        self.backend.timeout
    }
}
