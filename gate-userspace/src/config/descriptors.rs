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

fn of_backend(service: &Service, backend: &Backend, threads: u64) -> u64 {
    let clients = (backend.max_clients + backend.max_unknown_clients) as u64;
    let listening = (service.listen.len() * 2) as u64;
    // memcached's clients are all the same to it.
    let pools = if service.protocol == Protocol::Resp { backend.max_pools as u64 } else { 1 };
    if service.protocol == Protocol::Http {
        // Each request under way has a connection of its own, and each thread keeps some.
        return 2 * clients + threads * (listening + KEPT_BY_HTTP);
    }
    clients + threads * (listening + pools * u64::from(backend.connections) + KEPT)
}

/// Maps, pins, standard streams, and the clients of the admin sockets.
const OWN: u64 = 1_024;
/// A runtime's.
const BY_THREAD: u64 = 8;
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
        assert_eq!(of(&format!("protocol = \"memcached\"\n{backend}")), 1_040 + 110 + 2 * (2 + 3 + 16));
        assert_eq!(
            of(&format!("protocol = \"resp\"\nmax_pools = \"5\"\n{backend}")),
            1_040 + 110 + 2 * (2 + 5 * 3 + 16)
        );
    }
}
