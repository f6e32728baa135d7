//! The settings of one proxied service, as a thread uses them.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use gate_common::units::Nanos;
use tokio::sync::watch;

use super::cluster::Cluster;
use super::in_force::InForce;
use super::local_addrs::LocalAddrs;
use super::metrics::{NodePlace, NodePlaces};
use super::own_connections::OwnConnections;
use super::query_types::QueryTypeTable;
use super::resolver::Resolver;
use super::store_place::{NodeId, StorePlace};
use super::store_silence::{SilenceLimits, StorePause};
use super::tenants::Tenants;
use super::tls::{OriginTls, ServerTls, StoreTls};
use crate::config::{self, StoreAddress};
use crate::policy::placement::{MOST_NODES, Node, Placement, Scheme};
use crate::protocol::query_types::QueryTypes;

/// The settings of a service that may change while it runs. A field has the name of its configuration key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// The number of requests that may wait, all threads together.
    pub(crate) queue_limit: usize,
    /// The bytes that requests may have that wait, all threads together.
    pub(crate) queue_memory: usize,
    /// The time that a request may wait.
    pub(crate) deadline: Option<Nanos>,
    pub(crate) codel: Option<config::Codel>,
    /// The number of known tenants' clients, all threads together.
    pub(crate) max_clients: usize,
    /// The number of clients of a tenant that has no limit of its own: half of `max_clients`.
    pub(crate) tenant_clients: usize,
    /// The number of clients of unknown sources, all threads together.
    pub(crate) max_unknown_clients: usize,
    /// The dedicated connections of one tenant's clients, all threads together.
    pub(crate) max_dedicated: usize,
    /// The time that an unknown client may stay.
    pub(crate) unknown_timeout: Nanos,
    /// The time that another client may send nothing.
    pub(crate) idle_timeout: Option<Nanos>,
    /// The number of one client's requests that may be unanswered.
    pub(crate) max_depth: usize,
    /// Requests whose work depends on how much their keys hold.
    pub(crate) whole_keys: config::WholeKeys,
    /// The bytes of replies that may wait for one client.
    pub(crate) max_output: usize,
    /// The time that a client may take for the rest of a request, or to read.
    pub(crate) client_timeout: Nanos,
    /// The bytes that all clients may hold, all threads together.
    pub(crate) client_memory: usize,
    /// The bytes that one tenant's clients may hold, where there are several tenants.
    pub(crate) tenant_memory: usize,
    /// The length of a request; holds for clients that come after a change.
    pub(crate) max_request: usize,
    /// The time that the store may take to accept a connection or to answer.
    pub(crate) store_timeout: Nanos,
    /// The time that it may be silent while it does something that may take long.
    pub(crate) slow_timeout: Nanos,
    /// The measure that prices follow.
    pub(crate) learn: Option<config::Learn>,
}

impl Limits {
    /// Those of a service.
    pub(crate) fn of(backend: &config::Backend, learn: Option<config::Learn>) -> Self {
        let admission = backend.admission.as_ref();
        Self {
            queue_limit: admission.map_or(0, |admission| admission.queue_limit),
            queue_memory: admission.map_or(0, |admission| admission.queue_memory),
            deadline: admission.and_then(|admission| admission.deadline),
            codel: admission.and_then(|admission| admission.codel),
            max_clients: backend.max_clients,
            tenant_clients: backend.max_clients.div_ceil(2),
            max_unknown_clients: backend.max_unknown_clients,
            max_dedicated: backend.max_dedicated,
            unknown_timeout: backend.unknown_timeout,
            idle_timeout: backend.idle_timeout,
            whole_keys: backend.whole_keys,
            max_depth: backend.max_depth,
            max_output: backend.max_output,
            client_memory: backend.client_memory,
            tenant_memory: backend.tenant_memory(),
            client_timeout: backend.client_timeout,
            max_request: backend.max_request,
            store_timeout: backend.store_timeout,
            slow_timeout: backend.slow_timeout,
            learn,
        }
    }
}

/// The sender of changes to the settings of a running service.
#[derive(Debug)]
pub(crate) struct Controls {
    limits: watch::Sender<Limits>,
    types: watch::Sender<Arc<QueryTypeTable>>,
    tls: Option<watch::Sender<ServerTls>>,
    store_tls: Option<watch::Sender<StoreTls>>,
    origin_tls: Option<watch::Sender<OriginTls>>,
}

impl Controls {
    /// The time that a request may be under way: in the queue, and with the store.
    pub(crate) fn longest_request(&self) -> Nanos {
        let Limits { deadline, store_timeout, slow_timeout, .. } = *self.limits.borrow();
        slow_timeout.saturating_add(deadline.unwrap_or(store_timeout)).saturating_add(AT_LEAST_KEPT)
    }

    /// Puts in force what a configuration says, for a service that has been served since its start with these query types.
    pub(crate) fn follow(&self, backend: &config::Backend, learn: Option<config::Learn>, types: &QueryTypes) {
        self.limits.send_replace(Limits::of(backend, learn));
        self.types.send_replace(Arc::new(QueryTypeTable::of(types, backend)));
    }

    /// Reads the certificates again, for connections that are made from now on.
    /// Returns the faults of those that cannot be used; in their place, what is in use stays.
    pub(crate) fn read_certificates(
        &self,
        protocol: config::Protocol,
        backend: &config::Backend,
    ) -> Vec<config::Fault> {
        let server =
            self.tls.as_ref().zip(backend.tls.as_ref()).map(|(sender, tls)| {
                ServerTls::read(tls, protocol).map(|tls| drop(sender.send_replace(tls)))
            });
        let store = self.store_tls.as_ref().zip(backend.backend_tls.as_ref()).map(|(sender, tls)| {
            StoreTls::read(tls, &backend.address).map(|tls| drop(sender.send_replace(tls)))
        });
        let ca = backend.process.as_ref().and_then(|process| process.origins_ca.as_ref());
        let origins = self
            .origin_tls
            .as_ref()
            .zip(ca)
            .map(|(sender, ca)| OriginTls::read(ca).map(|tls| drop(sender.send_replace(tls))));
        [server, store, origins].into_iter().flatten().filter_map(Result::err).collect()
    }
}

/// One proxied service's settings.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Its place in the configuration.
    pub(crate) service: usize,
    /// Its name.
    pub(crate) name: String,
    /// Its protocol.
    pub(crate) protocol: config::Protocol,
    /// The address that it listens at, and its transports.
    pub(crate) listen: Vec<SocketAddr>,
    pub(crate) transports: config::Transports,
    /// Only of an intercepted service: true once another gate has its listening sockets as well.
    pub(crate) handed_on: Option<Arc<AtomicBool>>,
    /// The store behind it, and its settings.
    pub(crate) backend: config::Backend,
    /// The places of the stores that share the keys, at least one.
    pub(crate) stores: Vec<StorePlace>,
    /// The cluster whose nodes they are; `None` if they are none.
    pub(crate) cluster: Option<Arc<Cluster>>,
    /// The choice of a key's store among them.
    pub(crate) placement: Arc<Placement>,
    /// The way to connect to them, and to whatever else gate asks for the service.
    pub(crate) own_connections: OwnConnections,
    /// The present address of the processor of originals; `None` if there is none.
    pub(crate) processor: Option<Resolver>,
    /// The known causes of silence of each of them.
    pub(crate) pauses: Vec<Arc<StorePause>>,
    /// Users, and denied commands.
    pub(crate) tenants: watch::Receiver<Arc<Tenants>>,
    /// The machine's own addresses.
    pub(crate) local_addrs: watch::Receiver<Arc<LocalAddrs>>,
    /// The number of connections that each thread keeps to the store.
    pub(crate) connections: usize,
    /// The number of requests that may be with the store at once, all threads together; `None` for any number.
    pub(crate) parallelism: Option<config::Parallelism>,
    /// The number of threads that serve it.
    pub(crate) threads: usize,
    /// How far the threads have followed changes.
    pub(crate) in_force: Arc<InForce>,
    /// The settings that may change while it runs.
    pub(crate) limits: watch::Receiver<Limits>,
    /// The classification of requests.
    pub(crate) types: watch::Receiver<Arc<QueryTypeTable>>,
    /// The certificate that clients see; `None` if they speak plainly.
    pub(crate) tls: Option<watch::Receiver<ServerTls>>,
    /// The certificate that the store has to show; `None` if it is spoken to plainly.
    pub(crate) store_tls: Option<watch::Receiver<StoreTls>>,
    /// The certificates that origins over HTTPS are checked with; `None` if there is no such origin.
    pub(crate) origin_tls: Option<watch::Receiver<OriginTls>>,
}

impl Settings {
    /// Those of the services that are proxied, for each of so many threads; and where that is changed which may.
    ///
    /// # Errors
    ///
    /// The fault of a certificate or a key.
    pub(crate) fn of(
        config: &config::Config,
        threads: usize,
        tenants: &watch::Receiver<Arc<Tenants>>,
        local_addrs: &watch::Receiver<Arc<LocalAddrs>>,
    ) -> Result<Vec<(Self, Controls)>, config::Fault> {
        let proxied = config.services.iter().enumerate();
        let own_connections = OwnConnections::of(config);
        let mut shared_pauses = HashMap::new();
        proxied
            .filter_map(|(service, settings)| Some((service, settings, settings.backend.clone()?)))
            .map(|(service, settings, backend)| {
                let tls = backend.tls.as_ref();
                let tls = tls.map(|tls| ServerTls::read(tls, settings.protocol)).transpose()?;
                let (to_tls, tls) = tls.map(watch::channel).unzip();
                let store_tls = backend.backend_tls.as_ref();
                let store_tls = store_tls.map(|tls| StoreTls::read(tls, &backend.address)).transpose()?;
                let (to_store_tls, store_tls) = store_tls.map(watch::channel).unzip();
                let ca = backend.process.as_ref().and_then(|process| process.origins_ca.as_ref());
                let (to_origin_tls, origin_tls) =
                    ca.map(OriginTls::read).transpose()?.map(watch::channel).unzip();
                let (to_limits, limits) = watch::channel(Limits::of(&backend, settings.price.learn));
                let (to_types, types) =
                    watch::channel(Arc::new(QueryTypeTable::of(&backend.query_types, &backend)));
                let cluster = backend.cluster.as_ref();
                let cluster =
                    cluster.map(|cluster| Arc::new(Cluster::new(&settings.name, cluster, &settings.listen)));
                let settings = Self {
                    limits,
                    types,
                    tls,
                    store_tls,
                    origin_tls,
                    parallelism: backend.admission.as_ref().map(|admission| admission.parallelism),
                    threads,
                    in_force: Arc::new(InForce::new(threads)),
                    tenants: tenants.clone(),
                    local_addrs: local_addrs.clone(),
                    service,
                    pauses: pauses(&backend, &mut shared_pauses),
                    processor: backend
                        .process
                        .as_ref()
                        .map(|process| Resolver::start(&settings.name, &process.by.address, &[])),
                    own_connections: own_connections.clone(),
                    stores: match &cluster {
                        Some(cluster) => NodeId::all(MOST_NODES)
                            .map(|node| StorePlace::Node(Arc::clone(cluster), node))
                            .collect(),
                        None => backend
                            .addresses()
                            .into_iter()
                            .map(|address| StorePlace::start(&settings.name, address, &settings.listen))
                            .collect(),
                    },
                    cluster,
                    placement: Arc::new(placement(&backend)),
                    name: settings.name.clone(),
                    protocol: settings.protocol,
                    listen: settings.listen.clone(),
                    transports: settings.transports,
                    handed_on: None,
                    connections: backend.connections as usize,
                    backend,
                };
                let controls = Controls {
                    limits: to_limits,
                    types: to_types,
                    tls: to_tls,
                    store_tls: to_store_tls,
                    origin_tls: to_origin_tls,
                };
                Ok((settings, controls))
            })
            .collect()
    }

    /// True if a store of this service may be one of the other's: the seeds of a cluster may be any of its nodes.
    pub(crate) fn may_share_a_store(&self, other: &Self) -> bool {
        let of_other = other.backend.addresses();
        let are_clusters = self.cluster.is_some() && other.cluster.is_some();
        are_clusters || self.backend.addresses().iter().any(|address| of_other.contains(address))
    }

    /// The place of a store.
    pub(crate) fn store(&self, node: NodeId) -> &StorePlace {
        &self.stores[node.index()]
    }

    /// The known causes of a store's silence.
    pub(crate) fn pause(&self, node: NodeId) -> &StorePause {
        &self.pauses[node.index()]
    }

    /// The configured address of a store; of a cluster's node that which the cluster says.
    pub(crate) fn address(&self, node: NodeId) -> StoreAddress {
        let of_cluster = self.cluster.as_ref().and_then(|cluster| cluster.address(node));
        let of_pool = || Some(self.backend.pool.as_ref()?.nodes[node.index()].address.clone());
        of_cluster.or_else(of_pool).unwrap_or_else(|| self.backend.address.clone())
    }

    /// The places of its stores, where they are several.
    pub(crate) fn node_places(&self) -> NodePlaces {
        if let Some(cluster) = self.cluster.clone() {
            return NodePlaces::new(move |number| {
                let node = NodeId::at(number);
                let address = cluster.address(node)?.to_string();
                Some(NodePlace { address, slots: Some(cluster.slots().slots_of(node)) })
            });
        }
        let Some(pool) = self.backend.pool.clone() else { return NodePlaces::default() };
        NodePlaces::new(move |number| {
            let address = pool.nodes.get(number)?.address.to_string();
            Some(NodePlace { address, slots: None })
        })
    }

    /// The store of a key.
    #[inline]
    pub(crate) fn node_of(&self, key: &[u8]) -> NodeId {
        NodeId::at(self.placement.node(key))
    }

    /// The length that a new client's requests may have.
    pub(crate) fn max_request(&self) -> usize {
        self.limits.borrow().max_request
    }

    /// The time that the store may take to answer.
    pub(crate) fn store_timeout(&self) -> Nanos {
        self.limits.borrow().store_timeout
    }

    /// The limits of a store's silence.
    pub(crate) fn silence_limits(&self, node: NodeId) -> SilenceLimits {
        let Limits { store_timeout, slow_timeout, .. } = *self.limits.borrow();
        SilenceLimits { timeout: store_timeout, slow: slow_timeout, paused_until: self.pause(node).until() }
    }
}

/// The known causes of silence of each of a service's stores. Services before the same store share them; where a node of a cluster is,
/// each service knows by itself.
fn pauses(
    backend: &config::Backend,
    shared: &mut HashMap<StoreAddress, Arc<StorePause>>,
) -> Vec<Arc<StorePause>> {
    if backend.cluster.is_some() {
        return NodeId::all(MOST_NODES).map(|_| Arc::default()).collect();
    }
    let mut pause = |address: &StoreAddress| Arc::clone(shared.entry(address.clone()).or_default());
    backend.addresses().into_iter().map(&mut pause).collect()
}

/// The places of keys in a service's pool; all are at the only store where there is none.
fn placement(backend: &config::Backend) -> Placement {
    match &backend.pool {
        Some(pool) => pool.placement(),
        None => Placement::new(Scheme::Rendezvous, &[Node { name: String::new(), weight: 1 }]),
    }
}

/// A store connection is given up a little later than its timeout.
const AT_LEAST_KEPT: Nanos = Nanos::from_secs(10);
