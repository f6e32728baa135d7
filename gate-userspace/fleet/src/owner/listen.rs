//! The owner's port: who may connect, and how many at once.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::time::{interval, sleep};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use tonic_health::ServingStatus;
use tonic_health::server::{HealthReporter, health_reporter};

use super::connection::{Connection, End, Peer};
use super::counters::Event;
use super::handshake::{Refused, begin};
use super::places::{Bounds, Places};
use super::server::Owner;

/// A port to be served.
#[derive(Debug)]
pub struct Port {
    /// Where gates connect.
    pub listener: TcpListener,
    /// How many may.
    pub bounds: Bounds,
    /// The certificates that peers are shown, and have to show, on connections from now on; `None` for plain text.
    pub tls: watch::Receiver<Option<Arc<ServerConfig>>>,
}

/// Serves until `until` is ready; then streams are ended.
///
/// # Errors
///
/// The listening socket's, or tonic's.
pub async fn serve(
    owner: &Arc<Owner>,
    port: Port,
    until: impl Future<Output = ()>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    port.listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(port.listener)?;
    let (begun, connections) = mpsc::channel(1);
    let places = Places::new(port.bounds);
    let accepting = async {
        loop {
            match listener.accept().await {
                Ok((socket, address)) => {
                    let tls = port.tls.borrow().clone();
                    take_in(owner, &places, (socket, address), tls, &begun);
                }
                Err(error) => {
                    owner.warn(Event::CannotAccept, address_of(&listener), &error);
                    sleep(ACCEPT_BACKOFF).await;
                }
            }
        }
    };
    let (health, health_service) = health_reporter();
    // Before anybody can ask: nobody has said anything yet, which is taken for good health.
    let mut decided = owner.decides();
    say_health(&health, decided).await;
    let server = Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE))
        .http2_max_header_list_size(MAX_HEADERS)
        .http2_max_pending_accept_reset_streams(Some(MAX_RESETS))
        .max_concurrent_streams(MOST_STREAMS)
        .add_service(owner.service())
        .add_service(health_service)
        .serve_with_incoming(ReceiverStream::new(connections));
    let releasing = async {
        let mut releases = interval(RELEASE_EVERY);
        loop {
            releases.tick().await;
            owner.release_left();
            let decides = owner.decides();
            if std::mem::replace(&mut decided, decides) != decides {
                say_health(&health, decides).await;
            }
        }
    };
    tokio::select! {
        served = server => Ok(served?),
        () = accepting => Ok(()),
        () = releasing => Ok(()),
        () = until => Ok(()),
    }
}

/// Says to who asks by `grpc.health.v1` if this owner decides.
async fn say_health(health: &HealthReporter, decides: bool) {
    let status = if decides { ServingStatus::Serving } else { ServingStatus::NotServing };
    for service in ["", QUOTA_SERVICE] {
        health.set_service_status(service, status).await;
    }
}

type Begun = mpsc::Sender<std::io::Result<Connection>>;

/// Has a connection begin, if there is room for it.
fn take_in(
    owner: &Arc<Owner>,
    places: &Arc<Places>,
    (socket, address): (TcpStream, SocketAddr),
    tls: Option<Arc<ServerConfig>>,
    begun: &Begun,
) {
    let Some(entered) = places.enter(address.ip()) else {
        owner.warn(Event::NoRoom, address, &"there are as many connections as there may be");
        return;
    };
    if entered.made_room {
        owner.counters().count(Event::GaveWay);
    }
    let mut end = End {
        closed: entered.closed,
        idle_until: Some(Box::pin(sleep(IDLE))),
        place: entered.place.clone(),
        counters: Arc::clone(owner.counters()),
    };
    let owner = Arc::clone(owner);
    let begun = begun.clone();
    let is_local =
        address.ip().is_loopback() || socket.local_addr().is_ok_and(|own| own.ip() == address.ip());
    tokio::spawn(async move {
        let result = tokio::select! {
            result = begin(socket, tls) => result,
            () = &mut end => return,
        };
        match result {
            Ok((socket, certificate)) => {
                let peer = Peer { address, is_local, certificate, place: entered.place };
                // It fails at the end of the owner alone.
                let _ = begun.send(Ok(Connection { socket, peer, end })).await;
            }
            Err(Refused::Left) => {}
            Err(why) => owner.warn(Event::TlsFailed, address, &why),
        }
    });
}

fn address_of(listener: &tokio::net::TcpListener) -> SocketAddr {
    listener.local_addr().unwrap_or_else(|_| SocketAddr::from(([0, 0, 0, 0], 0)))
}

/// The name of the service of owners.
const QUOTA_SERVICE: &str = "gate.quota.v1.Quota";
/// How long a connection may be without a gate that reports: time for its handshake, its first words, or what people ask.
const IDLE: Duration = Duration::from_secs(5);
const KEEPALIVE: Duration = Duration::from_secs(2);
/// The most streams of one connection: a gate needs one.
const MOST_STREAMS: u32 = 2;
const MAX_HEADERS: u32 = 16 << 10;
/// Requests that a connection may take back before they were looked at.
const MAX_RESETS: usize = 16;
const RELEASE_EVERY: Duration = Duration::from_millis(250);
const ACCEPT_BACKOFF: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use tonic::transport::Endpoint;
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_client::HealthClient;

    use super::*;
    use crate::membership::Membership;
    use crate::owner::accounts::Accounts;
    use crate::owner::counters::Counters;
    use crate::owner::lease::Lease;
    use gate_limits::Rules;

    /// The health that an owner tells of its service and as a whole.
    async fn health(has_lease_to_lose: bool) -> [i32; 2] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let counters = Arc::new(Counters::default());
        let accounts = Arc::new(Accounts::new(Rules::default(), 10, 1, Arc::clone(&counters)));
        let (membership, _source) = Membership::new();
        let lease = has_lease_to_lose.then(|| Lease::new(address, membership).0);
        let owner = Owner::new(accounts, counters, lease);
        let port = Port { listener, bounds: Bounds { all: 10, per_source: 10 }, tls: watch::channel(None).1 };
        let mut told = [0; 2];
        let asking = async {
            let channel =
                Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
            let mut client = HealthClient::new(channel);
            for (told, service) in told.iter_mut().zip(["", QUOTA_SERVICE]) {
                let request = HealthCheckRequest { service: service.to_owned() };
                *told = client.check(request).await.unwrap().into_inner().status;
            }
        };
        serve(&owner, port, asking).await.unwrap();
        told
    }

    #[tokio::test]
    async fn an_owner_is_healthy_while_it_decides() {
        assert_eq!(health(false).await, [ServingStatus::Serving as i32; 2]);
        assert_eq!(health(true).await, [ServingStatus::NotServing as i32; 2]);
    }
}
