//! The server that Envoys ask.

use std::io;
use std::sync::Arc;

use gate_common::units::Nanos;

use super::error::Error;
use crate::admin::{Audience, Socket};
use crate::clock;
use crate::config::{Config, EnvoyAddress};
use crate::dispatcher::{check_tcp_free, listen_reusing_port};
use crate::envoy::{Counters, Listener, Server};
use crate::fleet::gate::names::{NAME_BYTES, SharedNames, Times};
use crate::fleet::gate::shared::SharedBook;
use crate::kernel::Maps;
use crate::limits::{Table, WallClock, log_changes};

/// The server, and what others read of it.
pub(super) struct EnvoyServer {
    pub(super) table: Arc<Table>,
    pub(super) counters: Arc<Counters>,
    /// How many limits `/metrics` names.
    pub(super) named: usize,
    /// The names that it shares with other gates, and the book that they are in.
    shared: Option<(SharedNames, SharedBook)>,
    _server: Server,
    /// The file of a Unix socket.
    _socket: Option<Socket>,
}

impl EnvoyServer {
    /// Starts the server that the configuration names, if it names one. A gate that takes over listens beside the old one, or
    /// puts its socket in the place of that one's. With a book, named limits are shared with other gates.
    pub(super) fn start(
        config: &Config,
        maps: &Arc<Maps>,
        takes_over: bool,
        book: Option<SharedBook>,
    ) -> Result<Option<Self>, Error> {
        let Some(envoy) = &config.envoy else { return Ok(None) };
        let failed =
            |source| Error::System { what: "listening to Envoys (`listen` in the section [envoy])", source };
        let (listener, socket) = match &envoy.listen {
            EnvoyAddress::Tcp(address) => {
                if !takes_over {
                    // Two gates of one user could share the port, and each would have its own buckets.
                    check_tcp_free(*address).map_err(failed)?;
                }
                tracing::info!(%address, "listening to Envoys");
                (Listener::Tcp(listen_reusing_port(*address).map_err(failed)?), None)
            }
            EnvoyAddress::Unix(path) => {
                let socket = Socket::open(path, Audience::Group, takes_over)?;
                tracing::info!(socket = %path.display(), "listening to Envoys");
                (Listener::Unix(socket.listener().map_err(failed)?), Some(socket))
            }
        };
        let memory = usize::try_from(envoy.memory).unwrap_or(usize::MAX);
        let table = Arc::new(Table::new(Arc::new(config.limits.clone()), memory, book.is_some()));
        table.set_clock(WallClock::at(clock::monotonic(), clock::unix_millis()));
        let counters = Arc::<Counters>::default();
        let started: io::Result<_> =
            Server::start(listener, Arc::clone(maps), Arc::clone(&table), Arc::clone(&counters));
        let shared = book.map(|book| (SharedNames::new(Arc::clone(&table), memory / NAME_BYTES), book));
        let named = envoy.metrics_limits as usize;
        Ok(Some(Self { table, counters, named, shared, _server: started.map_err(failed)?, _socket: socket }))
    }

    /// Brings what names were charged to their limits' owners, and what these have said to the names; `now` is on gate's clock.
    pub(super) fn exchange(&mut self, now: Nanos) {
        let monotonic = clock::monotonic();
        self.table.set_clock(WallClock::at(monotonic, clock::unix_millis()));
        if let Some((names, book)) = &mut self.shared {
            names.exchange(&mut book.lock(), Times { gate: now, monotonic });
        }
    }

    /// Puts the limits of another configuration in force.
    pub(super) fn follow(&self, config: &Config) {
        log_changes(&self.table.rules(), &config.limits, "another configuration");
        self.table.set_rules(Arc::new(config.limits.clone()), clock::monotonic());
    }
}
