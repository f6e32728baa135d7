//! The admin sockets of the daemon.

use std::borrow::Cow;
use std::net::TcpListener;
use std::sync::Arc;

use super::error::Error;
use super::intercept;
use super::process::Daemon;
use crate::admin::observer::Observer;
use crate::admin::rates::Readings;
use crate::admin::status::ListensAt;
use crate::admin::{self, Access, Audience, Listeners, Rules, Server, Socket, Sources, Token};
use crate::clock;
use crate::config::{AdminSocket, Config, EnvoyAddress};
use crate::dispatcher::{Dispatcher, check_tcp_free, listen_reusing_port};
use crate::fleet::gate::reporter::Reporter;
use crate::system_error::with_causes;

impl Daemon {
    /// Opens the admin sockets, unless they are off.
    pub(super) fn listen_to_admin(&mut self, port: Option<TcpListener>) -> Result<(), Error> {
        let config = self.changes.config();
        let mut listeners = Listeners::default();
        let mut listens = Vec::new();
        let mut note = |key, address| listens.push(ListensAt { key: Cow::Borrowed(key), address });
        if let Some(socket) = self.admin_socket(&config)? {
            tracing::info!(socket = %socket.path().display(), "listening to `gate queues` and `gate set`");
            note("admin", socket.path().display().to_string());
            listeners.sockets.push((socket, Access::Owner));
        }
        if let Some(path) = &config.gate.admin_read {
            let socket = Socket::open(path, Audience::Group, self.options.takeover)?;
            tracing::info!(socket = %socket.path().display(), "listening to readers");
            note("admin_read", path.display().to_string());
            listeners.sockets.push((socket, Access::Read));
        }
        if let Some(listener) = port {
            let token = token(&config)?;
            let hosts = config.gate.admin_hosts.clone();
            listeners.port = Some((listener, Rules { hosts, token }));
        }
        config.gate.admin_http.iter().for_each(|address| note("admin_http", address.to_string()));
        config.envoy.iter().for_each(|envoy| note("envoy", address_of(&envoy.listen)));
        if listeners.is_empty() {
            return Ok(());
        }
        let services = self.services().to_vec();
        let sources = Sources {
            maps: Arc::clone(&self.maps),
            queues: Observer::new(
                services,
                self.board.clone(),
                self.changes.config.subscribe(),
                clock::monotonic(),
            ),
            verdicts: self.verdicts.clone(),
            questions: self.dispatcher.as_ref().map_or_else(Vec::new, |served| served.questions().to_vec()),
            caches: self.dispatcher.as_ref().map_or_else(Vec::new, Dispatcher::caches),
            limits: self.dispatcher.as_ref().map(Dispatcher::limit_refusals),
            members: self.dispatcher.as_ref().map(Dispatcher::member_counts),
            envoy: self
                .envoy
                .as_ref()
                .map(|envoy| (Arc::clone(&envoy.table), Arc::clone(&envoy.counters), envoy.named)),
            fleet: self.reporter.as_ref().map(Reporter::book),
            readings: Readings::default(),
            overrides: self.changes.overrides.subscribe(),
            vanished: self.changes.vanished.subscribe(),
            listens,
            later: self.changes.later.subscribe(),
            accepting: self.changes.accepting.subscribe(),
            attached: config.services.iter().any(|service| service.backend.is_none()),
            intercepts_at: self
                .interception
                .is_some()
                .then(|| intercept::pins(&self.options, &config).to_path_buf()),
            tick: self.tick,
            changes: self.changes.sender.clone(),
        };
        let server = Server::start(listeners, sources)
            .map_err(|source| Error::System { what: "starting the admin sockets", source })?;
        self.changes.server = Some(server);
        Ok(())
    }

    /// The owner's socket; `None` if it is off, or cannot be made where nobody asked for one.
    fn admin_socket(&self, config: &Config) -> Result<Option<Socket>, Error> {
        let open = |path| Socket::open(path, Audience::Owner, self.options.takeover);
        let pins = self.options.pin_dir.as_ref().unwrap_or(&config.gate.pin_dir);
        match &config.gate.admin {
            AdminSocket::Off => Ok(None),
            AdminSocket::At(path) => Ok(Some(open(path)?)),
            AdminSocket::Default => Ok(open(&admin::default_path(pins)).map_or_else(
                |error| {
                    // Not everyone may write there.
                    tracing::warn!(
                        error = with_causes(&error),
                        "no admin socket; `admin` in the section [gate] chooses another place"
                    );
                    None
                },
                Some,
            )),
        }
    }
}

/// The TCP port of `admin_http`. A gate that takes over listens beside the old one, which accepts what waits before it
/// closes its own.
pub(super) fn port(config: &Config, takes_over: bool) -> Result<Option<TcpListener>, Error> {
    let Some(address) = config.gate.admin_http else { return Ok(None) };
    let failed = |error| Error::AdminPort { address, error };
    if !takes_over {
        // Two gates of one user could share the port, and nobody would know whom they ask.
        check_tcp_free(address).map_err(failed)?;
    }
    let listener = listen_reusing_port(address).map_err(failed)?;
    tracing::info!(%address, "listening to readers over TCP");
    Ok(Some(listener))
}

fn address_of(listen: &EnvoyAddress) -> String {
    match listen {
        EnvoyAddress::Tcp(address) => address.to_string(),
        EnvoyAddress::Unix(path) => path.display().to_string(),
    }
}

/// The token that the configuration names; `None` if it names none. To be read before another gate ends, too.
pub(super) fn token(config: &Config) -> Result<Option<Token>, Error> {
    let Some(path) = &config.gate.admin_token_file else { return Ok(None) };
    Token::read(path).map(Some).map_err(|why| Error::AdminToken { path: path.clone(), why })
}
