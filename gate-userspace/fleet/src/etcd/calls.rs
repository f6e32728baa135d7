//! A client of one member: the calls of etcd's API that gate makes, each answered within [`PATIENCE`].

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataValue;
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, ClientTlsConfig, Endpoint};
use tonic::{Request, Response, Status, Streaming};

use super::api::{
    KvClient, LeaseClient, LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest, PutRequest,
    PutResponse, RangeRequest, RangeResponse, TxnRequest, TxnResponse, WatchClient, WatchCreateRequest,
    WatchRequest, WatchResponse,
};
use super::error::Error;

/// A client of one member. All its calls go over one connection, which the first one makes.
#[derive(Debug)]
pub(super) struct Client {
    kv: KvClient<Led>,
    lease: LeaseClient<Led>,
    watch: WatchClient<Led>,
}

/// A connection whose calls are refused by a member without a leader, which would answer with what was.
type Led = InterceptedService<Channel, RequireLeader>;

impl Client {
    /// A client of the member at this URL; in plain text without `tls`.
    ///
    /// # Errors
    ///
    /// [`Error::Endpoint`].
    pub(super) fn new(url: &str, tls: Option<ClientTlsConfig>) -> Result<Self, Error> {
        let endpoint = Endpoint::from_shared(url.to_owned());
        let endpoint = endpoint.and_then(|endpoint| match tls {
            None => Ok(endpoint),
            Some(tls) => endpoint.tls_config(tls),
        });
        // Without HTTP/2's pings: etcd ends connections on which they come more often than every 5 s.
        let channel = endpoint.map_err(Error::Endpoint)?.connect_timeout(PATIENCE).connect_lazy();
        let led = InterceptedService::new(channel, RequireLeader);
        Ok(Self {
            kv: KvClient::new(led.clone()),
            lease: LeaseClient::new(led.clone()),
            watch: WatchClient::new(led),
        })
    }

    /// Reads keys.
    pub(super) async fn range(&mut self, request: RangeRequest) -> Result<RangeResponse, Error> {
        within(self.kv.range(request)).await
    }

    /// Writes a key.
    pub(super) async fn put(&mut self, request: PutRequest) -> Result<PutResponse, Error> {
        within(self.kv.put(request)).await
    }

    /// Writes keys if conditions hold.
    pub(super) async fn txn(&mut self, request: TxnRequest) -> Result<TxnResponse, Error> {
        within(self.kv.txn(request)).await
    }

    /// Grants a lease of so many seconds. Returns its number.
    pub(super) async fn grant(&mut self, seconds: i64) -> Result<i64, Error> {
        Ok(within(self.lease.lease_grant(LeaseGrantRequest { ttl: seconds })).await?.id)
    }

    /// Begins a lease's time anew.
    ///
    /// # Errors
    ///
    /// [`Error::LeaseOver`] if there is none of this number any more; or another.
    pub(super) async fn keep_alive(&mut self, lease: i64) -> Result<(), Error> {
        let request = tokio_stream::once(LeaseKeepAliveRequest { id: lease });
        let answer = async {
            let mut answers = self.lease.lease_keep_alive(request).await?.into_inner();
            Ok(Response::new(answers.message().await?))
        };
        match within(answer).await? {
            Some(answer) if answer.ttl > 0 => Ok(()),
            Some(_) => Err(Error::LeaseOver),
            None => Err(Error::Ended("no answer about the lease".to_owned())),
        }
    }

    /// Ends a lease, and the keys that hang on it.
    pub(super) async fn revoke(&mut self, lease: i64) -> Result<(), Error> {
        within(self.lease.lease_revoke(LeaseRevokeRequest { id: lease })).await.map(drop)
    }

    /// Follows changes.
    pub(super) async fn watch(&mut self, request: WatchCreateRequest) -> Result<Changes, Error> {
        let (requests, receiver) = mpsc::channel(1);
        let first = WatchRequest { create_request: Some(request) };
        requests.try_send(first).expect("a channel with room, whose other end is here");
        let messages = within(self.watch.watch(ReceiverStream::new(receiver))).await?;
        Ok(Changes { messages, _requests: requests })
    }
}

/// Changes as they happen.
#[derive(Debug)]
pub(super) struct Changes {
    messages: Streaming<WatchResponse>,
    /// Ends the call when dropped.
    _requests: mpsc::Sender<WatchRequest>,
}

impl Changes {
    /// Waits for the next ones.
    ///
    /// # Errors
    ///
    /// [`Error::Ended`] if there are none to come; or another.
    pub(super) async fn next(&mut self) -> Result<WatchResponse, Error> {
        let ended = |reason: &str| Err(Error::Ended(reason.to_owned()));
        match self.messages.message().await.map_err(Error::Etcd)? {
            None => ended("no reason"),
            Some(message) if message.canceled => ended(&message.cancel_reason),
            Some(message) => Ok(message),
        }
    }
}

/// Has a member without a leader refuse a call.
#[derive(Clone, Copy, Debug)]
struct RequireLeader;

impl Interceptor for RequireLeader {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        Ok(request)
    }
}

/// Waits for an answer.
async fn within<T>(answer: impl Future<Output = Result<Response<T>, Status>>) -> Result<T, Error> {
    let answer = timeout(PATIENCE, answer).await.map_err(|_| Error::Silent)?;
    Ok(answer.map_err(Error::Etcd)?.into_inner())
}

/// How long etcd is waited for.
pub(super) const PATIENCE: Duration = Duration::from_millis(500);
