//! A proxied service's store and clients: the keys that need `backend`.

use std::net::SocketAddr;

use gate_common::units::{Fraction, Nanos};
use ipnet::IpNet;

use super::admission::{Admission, Objective};
use super::cache::{self, Cache};
use super::cluster::{self, Cluster};
use super::http::Http;
use super::identity::StoreLogin;
use super::intercept::is_proxied;
use super::parsers::{SWITCH, number, one_of, overlap, prefix, time};
use super::pool::{self, Pool};
use super::process::{self, Process};
use super::raw::Section;
use super::store_address::{self, StoreAddress};
use super::tls::{self, BackendTls, Tls};
use super::units::{self, Wrong};
use super::values::Protocol;
use super::whole_keys::{self, WholeKeys};
use super::{admission, http, identity, intercept, query_types};
use gate_policy::Tier;
use gate_protocol::query_types::QueryTypes;

/// The store behind a proxied service, and how much clients may ask of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backend {
    /// Where the store listens; of a pool its first node.
    pub address: StoreAddress,
    /// The stores that share the keys; `None` if there is one, at `address`.
    pub pool: Option<Pool>,
    /// The Redis Cluster whose first seed is at `address`; `None` if there is none.
    pub cluster: Option<Cluster>,
    /// Connections that each thread shares among its clients; 1 to 64.
    pub connections: u32,
    /// How long the store may take to accept a connection or to answer; 1 ms to 10 min.
    pub store_timeout: Nanos,
    /// How long it may be silent while it has something to do that may take long; no less than `store_timeout`.
    pub slow_timeout: Nanos,
    /// The longest value, or the longest request but for a line, in bytes; 1 KiB to 512 MiB.
    pub max_request: usize,
    /// Requests whose work depends on how much their keys hold.
    pub whole_keys: WholeKeys,
    /// Requests of one client that may be unanswered before its reads are paused; 1 to 100,000.
    pub max_depth: usize,
    /// Bytes of replies that may wait for one client before it is closed; 64 KiB to 4 GiB.
    pub max_output: usize,
    /// The memory budget of all clients' requests and replies, in bytes.
    pub client_memory: usize,
    /// The part of it that the clients of one tenant may hold, where there are several; 1 % to 100 %.
    pub tenant_memory: Fraction,
    /// Clients that may be connected at once; 1 to 1,000,000.
    pub max_clients: usize,
    /// Clients from unknown sources that may be connected at once beside those; at most 1,000,000.
    pub max_unknown_clients: usize,
    /// Dedicated connections to the store that the clients of one tenant may have at once; 1 to 1,000,000.
    pub max_dedicated: usize,
    /// How long such a client may stay connected without logging in, whatever it sends; 100 ms to 1 h.
    pub unknown_timeout: Nanos,
    /// How long a client may want nothing before it is closed; 1 s to 24 h, `None` for ever.
    pub idle_timeout: Option<Nanos>,
    /// Datagrams whose answers may be incomplete at once; 1 to 1,000,000.
    pub max_datagrams: usize,
    /// How long a client may take to go on with a request, or to read on; 100 ms to 1 h.
    pub client_timeout: Nanos,
    /// The hot cache.
    pub hot_keys: HotKeys,
    /// The query types.
    pub query_types: QueryTypes,
    /// By the places of those: the highest tier that their requests may have.
    pub tiers: Vec<Tier>,
    /// The queue before the store; `None` if requests are passed on as they come.
    pub admission: Option<Admission>,
    /// Pools of connections that each thread may have, one for each identity of its clients; 1 to 4,096.
    pub max_pools: usize,
    /// The store's user for unauthenticated clients; `None` for the store's default.
    pub store_login: Option<StoreLogin>,
    /// The certificate that clients see; `None` if they speak plainly.
    pub tls: Option<Tls>,
    /// The certificate that the store has to show; `None` if gate speaks plainly to it.
    pub backend_tls: Option<BackendTls>,
    /// Where proxies are that say by a header whose connections are; `None` if there are none. 1 to 64, none of them of
    /// length 0.
    pub trusted: Option<Vec<IpNet>>,
    /// The settings of HTTP; `None` for other protocols.
    pub http: Option<Http>,
    /// The cache of answers over HTTP; `None` if there is none.
    pub cache: Option<Cache>,
    /// The processing of originals; `None` if there is none.
    pub process: Option<Process>,
}

impl Backend {
    /// The addresses of its stores, of a cluster those of its seeds.
    #[must_use]
    pub fn addresses(&self) -> Vec<&StoreAddress> {
        match (&self.pool, &self.cluster) {
            (_, Some(cluster)) => cluster.seeds.iter().collect(),
            (Some(pool), None) => pool.nodes.iter().map(|node| &node.address).collect(),
            (None, None) => vec![&self.address],
        }
    }

    /// The highest tier that requests of a query type may have. One that is not there has no limit.
    #[must_use]
    pub fn tier(&self, query_type: &str) -> Tier {
        self.query_types.place(query_type).map_or(Tier::Critical, |place| self.tiers[place])
    }

    /// The bytes that the clients of one tenant may hold, where there are several tenants.
    #[must_use]
    pub fn tenant_memory(&self) -> usize {
        let share = u128::from(self.tenant_memory.steps());
        ((self.client_memory as u128 * share) >> 16) as usize
    }

    /// The objective of a query type, where there are any: its own, or the default.
    #[must_use]
    pub fn objective(&self, query_type: &str) -> Option<&Objective> {
        let admission = self.admission.as_ref().filter(|admission| admission.has_objectives)?;
        let own = self.query_types.place(query_type).map(|place| &admission.objectives[place]);
        Some(own.unwrap_or(&admission.default_objective))
    }
}

/// The hot cache: how reads of hot keys are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HotKeys {
    /// True if gate answers them.
    pub cache: bool,
    /// How often a second a key must be asked for to become hot; 1 to 1,000,000,000.
    pub threshold: u64,
    /// The longest answer that is kept, or shared by those who wait for it, in bytes; 1 B to 16 MiB.
    pub max_value: usize,
    /// The most memory that each thread keeps answers in, in bytes; 64 KiB to 16 GiB.
    pub memory: u64,
    /// How long an answer is kept; 1 ms to 3 s.
    pub ttl: Nanos,
}

/// The keys that mean nothing without a backend.
const KEYS: [&str; 40] = [
    "tls",
    "backend_tls",
    "proxy_protocol",
    "trusted",
    "hot_keys",
    "query_types",
    "tiers",
    "connections",
    "client_timeout",
    "parallelism",
    "store_timeout",
    "slow_timeout",
    "max_request",
    "max_rows",
    "ask_sizes",
    "unlink",
    "max_depth",
    "max_output",
    "client_memory",
    "tenant_memory",
    "max_clients",
    "max_unknown_clients",
    "max_dedicated",
    "unknown_timeout",
    "idle_timeout",
    "max_datagrams",
    "max_pools",
    "store_user",
    "store_password_file",
    "tenant_header",
    "tier_header",
    "overload_status",
    "rate_limit_fields",
    "websocket",
    "backend_http",
    "access_log",
    "access_log_sample",
    "rows",
    "cache",
    "process",
];

/// Reads a service's backend, if it has one.
pub(super) fn read(section: &mut Section<'_>, protocol: Protocol, listen: &[SocketAddr]) -> Option<Backend> {
    let address = store_address(section, protocol, listen);
    let (cluster, pool) = several_stores(section, protocol, address.as_ref());
    for key in KEYS {
        if section.has(key) && !is_proxied(section) {
            section.fault(key, "means something only beside backend".to_owned());
        }
    }
    let s = section;
    let connections = s.get("connections", number(1, 64)).unwrap_or(5) as u32;
    let store_timeout = s.get("store_timeout", time(TIMEOUT_RANGE)).unwrap_or(Nanos::from_secs(1));
    let slow_timeout = slow_timeout(s, store_timeout);
    let max_request = s.get("max_request", |text| units::size(text, 1 << 10, REDIS_TAKES));
    let max_request =
        max_request.unwrap_or(if protocol == Protocol::Memcached { 2 << 20 } else { REDIS_TAKES });
    let max_depth = s.get("max_depth", number(1, 100_000)).unwrap_or(1_000);
    let max_output = s.get("max_output", |text| units::size(text, 64 << 10, 4 << 30)).unwrap_or(64 << 20);
    let client_memory =
        s.get("client_memory", |text| units::size(text, 1 << 20, 64 << 30)).unwrap_or(1 << 30);
    let tenant_memory = s.get("tenant_memory", memory_share).unwrap_or(Fraction::of(1, 2));
    let max_clients = s.get("max_clients", number(1, 1_000_000)).unwrap_or(10_000);
    let max_unknown_clients = s.get("max_unknown_clients", number(0, 1_000_000)).unwrap_or(UNKNOWN_CLIENTS);
    let max_dedicated = s.get("max_dedicated", number(1, 1_000_000)).unwrap_or(DEDICATED);
    let unknown_timeout = s.get("unknown_timeout", time(CLIENT_RANGE)).unwrap_or(UNKNOWN_TIMEOUT);
    let idle_timeout = s.get("idle_timeout", or_off(time(IDLE_RANGE))).flatten();
    let max_datagrams = s.get("max_datagrams", number(1, 1_000_000)).unwrap_or(1_000);
    let client_timeout = s.get("client_timeout", time(CLIENT_RANGE)).unwrap_or(Nanos::from_secs(60));
    let hot_keys = hot_keys(s.section("hot_keys"));
    let (query_types, names, routes) = query_types::read(s.section("query_types"), protocol);
    let tiers = tiers(s.section("tiers"), &names);
    let admission = admission::read(s, &names);
    let max_pools = s.get("max_pools", number(1, 4_096)).unwrap_or(64) as usize;
    let store_login = identity::store_login(s, protocol);
    let (trusted, proxies) = trusted_proxies(s, protocol);
    let http = http::read(s, protocol, &names, routes, trusted);
    let cache = cache::read(s, protocol, http.as_ref());
    let process = process::read(s);
    let tls = tls::tls(s);
    let backend_tls = tls::backend_tls(s);
    let several = addresses(cluster.as_ref(), pool.as_ref());
    let address = several.first().cloned().or(address);
    let is_own = |address: SocketAddr| listen.iter().any(|&own| overlap(own, address));
    if s.has("backends") && several.iter().any(|address| address.fixed().is_some_and(is_own)) {
        s.fault("backends", "lists an address of the service itself".to_owned());
    }
    check_backend_tls(s, backend_tls.as_ref(), address.as_ref(), pool.as_ref());
    Some(Backend {
        whole_keys: whole_keys::read(s, protocol),
        client_timeout,
        hot_keys,
        query_types,
        tiers,
        admission,
        max_pools,
        store_login,
        trusted: proxies,
        http,
        cache,
        process,
        tls,
        backend_tls,
        address: address?,
        pool,
        cluster,
        connections,
        store_timeout,
        slow_timeout,
        max_request: max_request as usize,
        max_depth: max_depth as usize,
        max_output: max_output as usize,
        client_memory: client_memory as usize,
        tenant_memory,
        max_clients: max_clients as usize,
        max_unknown_clients: max_unknown_clients as usize,
        max_dedicated: max_dedicated as usize,
        unknown_timeout,
        idle_timeout,
        max_datagrams: max_datagrams as usize,
    })
}

/// Reads the stores of a service that has several: a cluster, which may be told by one at `address`, or a pool.
fn several_stores(
    section: &mut Section<'_>,
    protocol: Protocol,
    address: Option<&StoreAddress>,
) -> (Option<Cluster>, Option<Pool>) {
    let items = pool::addresses(section);
    if cluster::is_on(section) {
        return (cluster::read(section, protocol, address, items), None);
    }
    cluster::read(section, protocol, None, Vec::new());
    (None, pool::read(section, items, protocol))
}

/// The addresses of several stores.
fn addresses(cluster: Option<&Cluster>, pool: Option<&Pool>) -> Vec<StoreAddress> {
    let seeds = cluster.map_or(&[][..], |cluster| &cluster.seeds);
    let nodes = pool.map_or(&[][..], |pool| &pool.nodes);
    nodes.iter().map(|node| &node.address).chain(seeds).cloned().collect()
}

/// Reads the address of a store, which a service that listens at `listen` can be proxied to.
fn store_address(
    section: &mut Section<'_>,
    protocol: Protocol,
    listen: &[SocketAddr],
) -> Option<StoreAddress> {
    let address = section.get("backend", store_address::read);
    if is_proxied(section) && protocol == Protocol::Opaque {
        section.fault(
            if section.has("backend") { "backend" } else { "intercept" },
            "what is opaque cannot be proxied; protocol = \"memcached\", \"resp\" or \"http\" can".to_owned(),
        );
    }
    let is_intercepted = intercept::is_on(section);
    if let Some(address) = address.as_ref().and_then(StoreAddress::fixed) {
        if !is_intercepted && listen.iter().any(|&own| overlap(own, address)) {
            section.fault("backend", "is an address of the service itself".to_owned());
        }
        if address.ip().is_unspecified() {
            section.fault("backend", "must be the store's own address, e.g. \"127.0.0.1:11212\"".to_owned());
        }
    }
    if is_intercepted && !section.has("backend") { intercept::store(listen) } else { address }
}

/// Checks that a certificate can be asked for of each store, by one name.
fn check_backend_tls(
    s: &Section<'_>,
    tls: Option<&BackendTls>,
    address: Option<&StoreAddress>,
    pool: Option<&Pool>,
) {
    let Some(tls) = tls else { return };
    let nodes = pool.map_or(&[][..], |pool| &pool.nodes);
    let addresses = address.into_iter().chain(nodes.iter().map(|node| &node.address));
    if addresses.into_iter().any(|address| matches!(address, StoreAddress::Unix(_))) {
        let message = "means nothing beside a Unix socket, on which gate speaks plainly; leave it out";
        s.fault("backend_tls", message.to_owned());
    } else if pool.is_some() && tls.name.is_none() {
        s.fault(
            "backend_tls",
            "needs the name that the certificates of all backends are for: say name".to_owned(),
        );
    }
}

/// A tenant that may hold nothing could not be answered.
fn memory_share(text: &str) -> Result<Fraction, Wrong> {
    let share = units::percentage(text)?;
    if share < Fraction::of(1, 100) { Err("must be from 1% to 100%".to_owned()) } else { Ok(share) }
}

/// The sources that may say whose a request or a connection is; and again, if they say so by a header of the connection.
fn trusted_proxies(s: &mut Section<'_>, protocol: Protocol) -> (Vec<IpNet>, Option<Vec<IpNet>>) {
    let is_on = s.get("proxy_protocol", one_of(&SWITCH)).unwrap_or(s.has("proxy_protocol"));
    let items = s.list("trusted", prefix);
    if is_on && !s.has("trusted") {
        let message = "leaves nobody who may say whose a connection is; write trusted as well, e.g. trusted = \
                       [\"198.18.3.0/24\"]";
        s.fault("proxy_protocol", message.to_owned());
    }
    if !is_on && s.has("trusted") && protocol != Protocol::Http {
        s.fault("trusted", "means something only beside proxy_protocol = \"on\"".to_owned());
    }
    let mut trusted = Vec::new();
    for item in items {
        if item.value.prefix_len() == 0 {
            item.fault("would let anyone say who it is; name the proxies' own addresses");
        } else if trusted.len() == MAX_PROXIES {
            item.fault(format!("is one too many: there may be {MAX_PROXIES}"));
        } else {
            trusted.push(item.value);
        }
    }
    let proxies = is_on.then(|| trusted.clone());
    (trusted, proxies)
}

fn hot_keys(mut section: Section<'_>) -> HotKeys {
    let s = &mut section;
    let hot_keys = HotKeys {
        cache: s.get("cache", one_of(&SWITCH)).unwrap_or(true),
        threshold: s.get("threshold", number(1, 1_000_000_000)).unwrap_or(1_000),
        max_value: s.get("max_value", |text| units::size(text, 1, 16 << 20)).unwrap_or(64 << 10) as usize,
        memory: s.get("memory", |text| units::size(text, 64 << 10, 16 << 30)).unwrap_or(16 << 20),
        ttl: s.get("ttl", time(KEPT_RANGE)).unwrap_or(KEPT_RANGE.1),
    };
    section.finish();
    hot_keys
}

/// The highest tier of each of `names`.
fn tiers<'d>(mut section: Section<'d>, names: &[&'d str]) -> Vec<Tier> {
    let tiers = Tier::ALL.map(|tier| (tier.name(), tier));
    let highest = names.iter().map(|name| section.get(name, one_of(&tiers)).unwrap_or(Tier::Critical));
    let highest = highest.collect();
    section.finish();
    highest
}

/// As `store_timeout`, if that is more than its default.
fn slow_timeout(s: &mut Section<'_>, timeout: Nanos) -> Nanos {
    let Some(slow) = s.get("slow_timeout", time(TIMEOUT_RANGE)) else {
        return Nanos::from_secs(10).max(timeout);
    };
    if slow < timeout {
        s.fault("slow_timeout", format!("must be at least store_timeout ({timeout})"));
    }
    slow
}

/// A parser of `off`, or of the values that `read` parses.
fn or_off<T>(read: impl Fn(&str) -> Result<T, Wrong>) -> impl Fn(&str) -> Result<Option<T>, Wrong> {
    move |text| {
        if text == "off" {
            Ok(None)
        } else {
            read(text).map(Some).map_err(|wrong| format!("{wrong}, or off"))
        }
    }
}

/// Enough for clients of Redis that are about to log in, and nothing beside what tenants have.
const UNKNOWN_CLIENTS: u64 = 256;
/// A tenth of the connections that Redis takes unless it is told otherwise.
const DEDICATED: u64 = 1_000;
/// A login takes milliseconds, and a slow network a few seconds.
const UNKNOWN_TIMEOUT: Nanos = Nanos::from_secs(10);
const IDLE_RANGE: (Nanos, Nanos) = (Nanos::from_secs(1), Nanos::from_secs(86_400));
/// Redis' own limit of a value (`proto-max-bulk-len`). What is long is passed on in pieces, so gate's memory does not bound it.
const REDIS_TAKES: u64 = 512 << 20;
/// Looked through for each connection.
const MAX_PROXIES: usize = 64;

/// A write that does not pass gate is seen this much later at most.
const KEPT_RANGE: (Nanos, Nanos) = (Nanos::from_millis(1), Nanos::from_secs(3));
const CLIENT_RANGE: (Nanos, Nanos) = (Nanos::from_millis(100), Nanos::from_secs(3_600));
const TIMEOUT_RANGE: (Nanos, Nanos) = (Nanos::from_millis(1), Nanos::from_secs(600));
