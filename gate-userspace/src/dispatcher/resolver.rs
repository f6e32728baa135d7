//! The addresses of a store that is configured by name.
//!
//! **Problem.** A name stands for other addresses after a failover, and a look-up can take seconds. **Rule.** A thread
//! of its own looks the name up when a connection is to be made and every 30 s, and publishes the answer. A connection
//! attempt takes the addresses that are known, and waits only for the first answer. Addresses are tried in the system's
//! order. A failing resolution changes nothing. A connection to an address that the name no longer stands for ends when
//! nothing is outstanding on it.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::time::Duration;

use tokio::sync::watch;

use crate::config::NetworkAddress;

/// The address of a service's store.
#[derive(Clone, Debug)]
pub(crate) enum Resolver {
    /// A fixed address.
    Fixed(SocketAddr),
    /// The addresses of a name.
    Named(NamedStore),
}

/// A store that is known by name.
#[derive(Clone, Debug)]
pub(crate) struct NamedStore {
    known: watch::Receiver<Known>,
    /// Requests a look-up.
    ask: SyncSender<()>,
}

/// The present knowledge of a name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Known {
    /// The addresses in the order in which they are tried; empty before the first answer.
    addresses: Vec<SocketAddr>,
    /// True once there has been an answer, good or bad.
    has_answer: bool,
    /// True if the last answer was bad.
    failing: bool,
}

/// The change that an answer brings.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Transition {
    /// The name stands for other addresses than before, if it stood for any.
    Changed,
    /// The name cannot be resolved any more, or has never been.
    Failed(String),
    /// The name can be resolved again, to the same addresses.
    Recovered,
}

impl Resolver {
    /// The resolver of a service that listens at `own`.
    pub(crate) fn start(service: &str, store: &NetworkAddress, own: &[SocketAddr]) -> Self {
        let (host, port) = match store {
            NetworkAddress::Fixed(address) => return Self::Fixed(*address),
            NetworkAddress::Named { host, port } => (host.clone(), *port),
        };
        // One order is enough: whoever orders is content with the next answer.
        let (ask, requests) = mpsc::sync_channel(1);
        let (publish, known) = watch::channel(Known::default());
        let service = service.to_owned();
        let own = own.to_vec();
        let name = format!("{host}:{port}");
        let resolving = move || {
            while !publish.is_closed() {
                let answer = resolve(&host, port, &own);
                publish.send_modify(|known| {
                    if let Some(transition) = known.take(answer) {
                        log_transition(&service, &name, known, &transition);
                    }
                });
                std::thread::sleep(AT_MOST_EVERY);
                if let Err(RecvTimeoutError::Disconnected) = requests.recv_timeout(EVERY) {
                    return;
                }
            }
        };
        if let Err(error) = std::thread::Builder::new().name("gate-resolver".to_owned()).spawn(resolving) {
            tracing::error!(%error, "cannot resolve the names of stores");
        }
        Self::Named(NamedStore { known, ask })
    }

    /// Addresses to connect to, in this order; none if the name has never been resolved.
    pub(crate) async fn addresses(&self) -> Vec<SocketAddr> {
        match self {
            Self::Fixed(address) => vec![*address],
            Self::Named(NamedStore { known, ask }) => {
                // It is full if somebody else has just asked.
                let _ = ask.try_send(());
                let mut known = known.clone();
                let known = known.wait_for(|known| known.has_answer).await;
                known.map_or_else(|_| Vec::new(), |known| known.addresses.clone())
            }
        }
    }

    /// True if the store still has this address, as far as is known.
    pub(crate) fn is_current(&self, address: SocketAddr) -> bool {
        match self {
            Self::Fixed(_) => true,
            Self::Named(NamedStore { known, .. }) => known.borrow().stands_for(address),
        }
    }

    /// Waits until the store no longer has this address.
    pub(crate) async fn has_moved(&self, address: SocketAddr) {
        if let Self::Named(NamedStore { known, .. }) = self
            && known.clone().wait_for(|known| !known.stands_for(address)).await.is_ok()
        {
            return;
        }
        std::future::pending().await
    }
}

impl Known {
    /// Takes an answer. Returns the change that it brings, if any.
    fn take(&mut self, answer: Result<Vec<SocketAddr>, String>) -> Option<Transition> {
        self.has_answer = true;
        match answer {
            Err(why) => (!std::mem::replace(&mut self.failing, true)).then_some(Transition::Failed(why)),
            Ok(addresses) => {
                let was_failing = std::mem::replace(&mut self.failing, false);
                let mut sorted = [&addresses, &self.addresses].map(Clone::clone);
                sorted.iter_mut().for_each(|addresses| addresses.sort_unstable());
                // Another order of the same is no news, but is followed.
                self.addresses = addresses;
                match sorted[0] != sorted[1] {
                    true => Some(Transition::Changed),
                    false => was_failing.then_some(Transition::Recovered),
                }
            }
        }
    }

    fn stands_for(&self, address: SocketAddr) -> bool {
        self.addresses.is_empty() || self.addresses.contains(&address)
    }
}

/// Looks a name up in the system, which may take long.
fn resolve(host: &str, port: u16, own: &[SocketAddr]) -> Result<Vec<SocketAddr>, String> {
    let mut addresses: Vec<SocketAddr> = Vec::new();
    for address in (host, port).to_socket_addrs().map_err(|error| error.to_string())? {
        let address = SocketAddr::new(address.ip().to_canonical(), address.port());
        let is_store = !address.ip().is_unspecified() && !own.iter().any(|own| reaches(*own, address));
        if is_store && !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    if addresses.is_empty() {
        return Err("it stands for no address but those of the service itself".to_owned());
    }
    Ok(addresses)
}

/// True if a connection to `address` reaches a socket that listens at `own`, as far as the configuration tells.
pub(crate) fn reaches(own: SocketAddr, address: SocketAddr) -> bool {
    own.port() == address.port()
        && (own.ip() == address.ip() || own.ip().is_unspecified() && address.ip().is_loopback())
}

fn log_transition(service: &str, name: &str, known: &Known, transition: &Transition) {
    let addresses: Vec<String> = known.addresses.iter().map(ToString::to_string).collect();
    let addresses = addresses.join(", ");
    match transition {
        Transition::Changed => tracing::info!(service, name, addresses, "the store's name is resolved"),
        Transition::Recovered => {
            tracing::info!(service, name, addresses, "the store's name is resolved again")
        }
        Transition::Failed(why) if known.addresses.is_empty() => {
            tracing::warn!(service, name, why, "the store's name cannot be resolved");
        }
        Transition::Failed(why) => {
            tracing::warn!(
                service,
                name,
                why,
                addresses,
                "the store's name cannot be resolved; its last addresses hold"
            );
        }
    }
}

/// The interval at which the name is looked up while no connection is made.
const EVERY: Duration = Duration::from_secs(30);
/// The least time between two look-ups, however many connections fail.
const AT_MOST_EVERY: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use super::*;

    fn at(addresses: &[&str]) -> Vec<SocketAddr> {
        addresses.iter().map(|address| address.parse().unwrap()).collect()
    }

    #[test]
    fn only_changes_are_reported_and_the_last_addresses_hold() {
        let one = at(&["127.0.0.1:1"]);
        let both = at(&["127.0.0.1:1", "127.0.0.2:1"]);
        let turned = at(&["127.0.0.2:1", "127.0.0.1:1"]);
        let failed = |why: &str| Some(Transition::Failed(why.to_owned()));
        let mut known = Known::default();
        for (answer, transition, addresses) in [
            (Err("a"), failed("a"), &[][..]),
            (Err("b"), None, &[]),
            (Ok(&one), Some(Transition::Changed), &one),
            (Ok(&one), None, &one),
            (Err("c"), failed("c"), &one),
            (Err("d"), None, &one),
            (Ok(&one), Some(Transition::Recovered), &one),
            (Ok(&both), Some(Transition::Changed), &both),
            (Ok(&turned), None, &turned),
        ] {
            assert_eq!(known.take(answer.cloned().map_err(str::to_owned)), transition);
            assert_eq!((&known.addresses[..], known.has_answer), (addresses, true));
        }
        assert!(known.stands_for(one[0]) && !known.stands_for("127.0.0.3:1".parse().unwrap()));
    }

    #[test]
    fn a_name_never_leads_to_the_service_itself() {
        let own = at(&["127.0.0.1:7"]);
        assert_eq!(resolve("127.0.0.1", 8, &own), Ok(at(&["127.0.0.1:8"])));
        assert!(resolve("127.0.0.1", 7, &own).is_err());
        assert!(resolve("0.0.0.0", 8, &own).is_err());
        assert!(resolve("127.0.0.9", 7, &at(&["0.0.0.0:7"])).is_err());
    }
}
