//! How many file descriptors a configuration may need.

use super::backend::Backend;
use super::values::Protocol;
use super::{Config, Service};

impl Config {
    /// How many files may have to be open at once: clients, shared connections to stores, listening sockets, and what
    /// gate needs for itself. Dedicated connections of clients come on top.
    #[must_use]
    pub fn descriptors(&self) -> u64 {
        let cores = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let threads = self.gate.threads.map_or_else(cores, std::num::NonZero::get) as u64;
        let proxied = |service: &Service| Some(of_backend(service, service.backend.as_ref()?, threads));
        OWN + threads * BY_THREAD + self.services.iter().filter_map(proxied).sum::<u64>()
    }
}

impl Config {
    /// Lowers the numbers of clients and dedicated connections so that `allowed` descriptors are enough: what is no client's keeps
    /// what it may need, up to half of them, and services share the rest as they would share what they may need.
    pub fn fit_descriptors(&mut self, allowed: u64) {
        let needed = self.descriptors();
        let clients: u64 =
            self.services.iter().filter_map(|service| Some(clients_of(service.backend.as_ref()?))).sum();
        if needed <= allowed || clients == 0 {
            return;
        }
        let of_others = (needed - self.client_descriptors()).min(allowed / 2);
        let room = allowed - of_others;
        for backend in self.services.iter_mut().filter_map(|service| service.backend.as_mut()) {
            let share = |part: u64| (u128::from(room) * u128::from(part) / u128::from(clients)) as u64;
            // Three quarters for clients. A tenant has half of them at most, and then half of the rest for dedicated connections.
            let of_clients = |count: usize| (share(count as u64) * 3 / 4).max(1) as usize;
            backend.max_dedicated =
                backend.max_dedicated.min((share(clients_of(backend)) / 8).max(1) as usize);
            backend.max_clients = backend.max_clients.min(of_clients(backend.max_clients));
            backend.max_unknown_clients =
                backend.max_unknown_clients.min(of_clients(backend.max_unknown_clients));
        }
    }

    /// The descriptors that clients may need, of [`Config::descriptors`].
    fn client_descriptors(&self) -> u64 {
        let of_service = |service: &Service| Some(by_client(service) * clients_of(service.backend.as_ref()?));
        self.services.iter().filter_map(of_service).sum()
    }
}

fn clients_of(backend: &Backend) -> u64 {
    (backend.max_clients + backend.max_unknown_clients) as u64
}

/// The descriptors of one client: over HTTP each request under way has a connection to the store.
fn by_client(service: &Service) -> u64 {
    if service.protocol == Protocol::Http { 2 } else { 1 }
}

fn of_backend(service: &Service, backend: &Backend, threads: u64) -> u64 {
    let clients = by_client(service) * clients_of(backend);
    let listening = (service.listen.len() * 2) as u64;
    // memcached's clients are all the same to it.
    let pools = if service.protocol == Protocol::Resp { backend.max_pools as u64 } else { 1 };
    if service.protocol == Protocol::Http {
        // Each thread keeps some connections.
        return clients + threads * (listening + KEPT_BY_HTTP);
    }
    // A cluster may have as many nodes as there is room for; few have more than this beside its seeds.
    let learned = if backend.cluster.is_some() { LEARNED_NODES } else { 0 };
    let stores = backend.addresses().len() as u64 + learned;
    clients + threads * (listening + stores * (pools * u64::from(backend.connections) + KEPT))
}

/// Maps, pins, standard streams, and the clients of the admin sockets.
const OWN: u64 = 1_024;
/// A runtime's.
const BY_THREAD: u64 = 8;
/// The nodes of a cluster that it is not told of.
const LEARNED_NODES: u64 = 16;
/// Connections to the store that are kept for logins and long requests.
const KEPT: u64 = 16;
/// Connections to an HTTP store that are kept for the next requests.
const KEPT_BY_HTTP: u64 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_and_pools_count_and_guarded_services_do_not() {
        let of = |service: &str| {
            let text = format!(
                "[gate]\nthreads = \"2\"\n[[service]]\nname = \"s\"\nlisten = \"127.0.0.1:1\"\n{service}\n\
                 [[tenant]]\nname = \"t\"\nsources = \"10.0.0.0/8\"\nquota = \"unlimited\""
            );
            Config::parse("test.toml", &text).unwrap_or_else(|faults| panic!("{faults}")).descriptors()
        };
        let backend = "backend = \"127.0.0.1:2\"\nmax_clients = \"100\"\nmax_unknown_clients = \"10\"";
        assert_eq!(of("protocol = \"memcached\""), 1_040);
        assert_eq!(of(&format!("protocol = \"memcached\"\n{backend}")), 1_040 + 110 + 2 * (2 + 5 + 16));
        assert_eq!(
            of(&format!("protocol = \"resp\"\nmax_pools = \"5\"\n{backend}")),
            1_040 + 110 + 2 * (2 + 5 * 5 + 16)
        );
    }
    #[test]
    fn clients_are_divided_by_what_may_be_open() {
        let fitted = |allowed| {
            let services = ["resp", "memcached"].map(|protocol| {
                format!(
                    "[[service]]\nname = \"{protocol}\"\nprotocol = \"{protocol}\"\nlisten = \"127.0.0.1:{0}\"\n\
                     backend = \"127.0.0.1:9\"\nmax_clients = \"{0}\"\nmax_unknown_clients = \"{0}\"\n",
                    if protocol == "resp" { 3_000 } else { 1_000 }
                )
            });
            let text = format!(
                "[gate]\nthreads = \"2\"\n{}[[tenant]]\nname = \"t\"\nsources = \"10.0.0.0/8\"\nquota = \"unlimited\"",
                services.concat()
            );
            let mut config = Config::parse("test.toml", &text).unwrap_or_else(|faults| panic!("{faults}"));
            let needed = config.descriptors();
            config.fit_descriptors(allowed);
            let limits = config.services.iter().filter_map(|service| service.backend.as_ref());
            let limits = limits.map(|of| (of.max_clients, of.max_unknown_clients, of.max_dedicated));
            (needed, limits.collect::<Vec<_>>())
        };
        let (needed, as_configured) = fitted(u64::MAX);
        assert_eq!(as_configured, [(3_000, 3_000, 1_000), (1_000, 1_000, 1_000)]);
        assert_eq!(fitted(needed).1, as_configured);
        // 128 are left to clients; nobody is left without one.
        assert_eq!(fitted(256).1, [(36, 36, 12), (12, 12, 4)]);
        assert_eq!(fitted(8).1, [(1, 1, 1), (1, 1, 1)]);
        for allowed in [16, 64, 256, 1_024, 4_096, needed - 1] {
            let (_, limits) = fitted(allowed);
            // Two tenants with all that they may have, and unknown clients, leave the rest.
            let all: usize =
                limits.iter().map(|(known, unknown, dedicated)| known + unknown + 2 * dedicated).sum();
            assert!(all as u64 <= allowed.max(16), "{allowed}: {limits:?}");
        }
    }
}
