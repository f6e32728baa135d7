//! gRPC through an HTTP service, by tonic's client and server, and HTTP/2 to a store.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use gate_tests::fake_store::{FakeStore, counter};
use gate_tests::proxy::{Listening, PATIENCE, address};
use gate_tests::tls::Authority;
use gate_tests::wait::wait_until;
use gate_userspace::envoy::wire::rlqs::rate_limit_quota_response::BucketAction;
use gate_userspace::envoy::wire::rlqs::rate_limit_quota_service_client::RateLimitQuotaServiceClient;
use gate_userspace::envoy::wire::rlqs::rate_limit_quota_service_server::{
    RateLimitQuotaService, RateLimitQuotaServiceServer,
};
use gate_userspace::envoy::wire::rlqs::{BucketId, RateLimitQuotaResponse, RateLimitQuotaUsageReports};
use gate_userspace::envoy::wire::rls::rate_limit_service_client::RateLimitServiceClient;
use gate_userspace::envoy::wire::rls::rate_limit_service_server::{RateLimitService, RateLimitServiceServer};
use gate_userspace::envoy::wire::rls::{RateLimitRequest, RateLimitResponse};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Server};
use tonic::{Code, Request, Response, Status, Streaming};

use super::{OPEN, client, respond};
use crate::tls::{backend_tls, tls};

/// Gives back what it gets: the code of a request is its `hits_addend`, those of a stream carry a text.
struct Echo;

#[tonic::async_trait]
impl RateLimitService for Echo {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let trailers = request.metadata().get("te").map(|value| value.to_str().unwrap_or("none").to_owned());
        let request = request.into_inner();
        if request.domain == "fail" {
            let mut status = Status::data_loss("of its own: 100 % lost");
            status.metadata_mut().insert("x-te", trailers.unwrap_or_default().parse().expect("plain text"));
            return Err(status);
        }
        Ok(Response::new(RateLimitResponse {
            overall_code: request.hits_addend as i32,
            ..Default::default()
        }))
    }
}

#[tonic::async_trait]
impl RateLimitQuotaService for Echo {
    type StreamRateLimitQuotasStream = ReceiverStream<Result<RateLimitQuotaResponse, Status>>;

    async fn stream_rate_limit_quotas(
        &self,
        request: Request<Streaming<RateLimitQuotaUsageReports>>,
    ) -> Result<Response<Self::StreamRateLimitQuotasStream>, Status> {
        let mut asked = request.into_inner();
        let (answers, stream) = mpsc::channel(1);
        tokio::spawn(async move {
            while let Some(Ok(request)) = asked.next().await {
                let answer = match request.domain.as_str() {
                    "quiet" => continue,
                    "fail" => Err(Status::data_loss("behind a message")),
                    domain => Ok(answer_of(domain)),
                };
                if answers.send(answer).await.is_err() {
                    break;
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

/// The message of a stream that carries `text` to the store.
fn question_of(text: &str) -> RateLimitQuotaUsageReports {
    RateLimitQuotaUsageReports { domain: text.to_owned(), ..Default::default() }
}

/// The message of a stream that carries `text` back, in the name of a bucket.
fn answer_of(text: &str) -> RateLimitQuotaResponse {
    let bucket_id = BucketId { bucket: [(text.to_owned(), String::new())].into() };
    RateLimitQuotaResponse {
        bucket_action: vec![BucketAction { bucket_id: Some(bucket_id), bucket_action: None }],
    }
}

/// The text that it carries.
fn text_of(answer: RateLimitQuotaResponse) -> String {
    let buckets = answer.bucket_action.into_iter().filter_map(|action| action.bucket_id);
    buckets.flat_map(|id| id.bucket.into_keys()).collect()
}

/// A runtime with a server on it.
struct Store {
    runtime: Runtime,
    address: SocketAddr,
}

impl Store {
    fn start() -> Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))?;
        let address = listener.local_addr()?;
        let server = Server::builder()
            .add_service(RateLimitServiceServer::new(Echo))
            .add_service(RateLimitQuotaServiceServer::new(Echo));
        runtime.spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        Ok(Self { runtime, address })
    }

    fn connect(&self, gate: &Listening) -> Result<Channel> {
        self.connect_as(gate, "127.0.0.1")
    }

    /// A client at this address.
    fn connect_as(&self, gate: &Listening, source: &str) -> Result<Channel> {
        let endpoint = Channel::from_shared(format!("http://{}", gate.address))?;
        let endpoint = endpoint.local_address(Some(source.parse()?)).timeout(PATIENCE);
        self.runtime.block_on(async { Ok(endpoint.connect().await?) })
    }

    fn ask(&self, channel: &Channel, domain: &str, hits_addend: u32) -> Result<i32, Box<Status>> {
        let mut client = RateLimitServiceClient::new(channel.clone());
        let request = RateLimitRequest { domain: domain.to_owned(), hits_addend, ..Default::default() };
        let answer = self.runtime.block_on(client.should_rate_limit(request));
        answer.map(|answer| answer.into_inner().overall_code).map_err(Box::new)
    }
}

/// A stream in both directions.
struct Stream {
    requests: mpsc::Sender<RateLimitQuotaUsageReports>,
    answers: Streaming<RateLimitQuotaResponse>,
}

impl Stream {
    fn begin(store: &Store, channel: &Channel) -> Result<Self> {
        store.runtime.block_on(async {
            let mut client = RateLimitQuotaServiceClient::new(channel.clone());
            let (requests, stream) = mpsc::channel(1);
            let begun = client.stream_rate_limit_quotas(ReceiverStream::new(stream));
            let answers = timeout(PATIENCE, begun).await.context("it does not begin")??.into_inner();
            Ok(Self { requests, answers })
        })
    }

    /// The answer to a message, `None` at the end.
    fn exchange(&mut self, store: &Store, message: &str) -> Result<Result<Option<String>, Status>> {
        store.runtime.block_on(async {
            self.requests.send(question_of(message)).await?;
            let answer = timeout(PATIENCE, self.answers.message()).await.context("no answer")?;
            Ok(answer.map(|answer| answer.map(text_of)))
        })
    }
}

fn gate_before(store: SocketAddr, service: &str, tenants: &str) -> Result<Listening> {
    let service = format!("backend_http = \"h2\"\n{service}");
    Listening::gate_with("tick = \"10ms\"\nthreads = \"1\"", "http", store, &service, tenants)
}

#[test]
fn calls_and_streams_of_grpc_pass_both_ways() -> Result<()> {
    let store = Store::start()?;
    let gate = gate_before(store.address, "", OPEN)?;
    let channel = store.connect(&gate)?;
    ensure!(store.ask(&channel, "a", 7).is_ok_and(|code| code == 7));
    let Err(status) = store.ask(&channel, "fail", 0) else { anyhow::bail!("it has not failed") };
    ensure!((status.code(), status.message()) == (Code::DataLoss, "of its own: 100 % lost"), "{status:?}");
    ensure!(status.metadata().get("x-te") == Some(&MetadataValue::from_static("trailers")), "{status:?}");
    let mut stream = Stream::begin(&store, &channel)?;
    let mut other = Stream::begin(&store, &channel)?;
    let long = "x".repeat(300_000);
    for message in ["one", "two", &long, "three"] {
        ensure!(stream.exchange(&store, message)?.is_ok_and(|answer| answer.as_deref() == Some(message)));
        ensure!(other.exchange(&store, message)?.is_ok_and(|answer| answer.as_deref() == Some(message)));
    }
    // The status of a stream that has begun is a trailer.
    let Err(status) = stream.exchange(&store, "fail")? else { anyhow::bail!("it has not failed") };
    ensure!((status.code(), status.message()) == (Code::DataLoss, "behind a message"), "{status:?}");
    // The client's end reaches the store, which ends its side.
    let Stream { requests, mut answers } = other;
    drop(requests);
    let end = store.runtime.block_on(async { timeout(PATIENCE, answers.message()).await })??;
    ensure!(end.is_none(), "{end:?}");
    ensure!(counter(&gate, "store-connected")? == 1, "one tenant's requests are beside each other");
    Ok(())
}

#[test]
fn a_stream_of_short_messages_outlives_client_timeout() -> Result<()> {
    let store = Store::start()?;
    let gate = gate_before(store.address, "client_timeout = \"1s\"\nslow_timeout = \"20s\"", OPEN)?;
    let channel = store.connect(&gate)?;
    let mut stream = Stream::begin(&store, &channel)?;
    let began = std::time::Instant::now();
    while began.elapsed() < Duration::from_millis(2_500) {
        let unanswered = async {
            stream.requests.send(question_of("quiet")).await?;
            anyhow::Ok(timeout(Duration::from_millis(200), stream.answers.message()).await.is_err())
        };
        ensure!(store.runtime.block_on(unanswered)?, "it ends, or says something unasked");
    }
    ensure!(stream.exchange(&store, "a")?.is_ok_and(|answer| answer.as_deref() == Some("a")));
    Ok(())
}

#[test]
fn refusals_of_grpc_say_when_to_try_again() -> Result<()> {
    const TENANTS: &str = "[[tenant]]\nname = \"poor\"\nsources = [\"127.0.0.8\"]\nquota = \"1 RU/s\"\nburst = \"5s\"\n\
                           [[tenant]]\nname = \"all\"\nsources = [\"127.0.0.1\"]\nquota = \"unlimited\"\n";
    let store = Store::start()?;
    let gate = gate_before(store.address, "price = { learn = \"off\" }", TENANTS)?;
    let refused = |status: &Status, code, reason: &str| {
        let field = |name: &str| status.metadata().get(name).and_then(|value| value.to_str().ok());
        let pushback = field("grpc-retry-pushback-ms").and_then(|value| value.parse::<i64>().ok());
        let is_right = status.code() == code && field("gate-reason") == Some(reason);
        (is_right && status.message().contains(reason)).then_some(pushback.unwrap_or_default())
    };
    let poor = store.connect_as(&gate, "127.0.0.8")?;
    let status = (0..20).find_map(|_| store.ask(&poor, "a", 1).err()).context("never refused")?;
    ensure!(refused(&status, Code::ResourceExhausted, "quota").is_some_and(|wait| wait > 0), "{status:?}");
    let nobody = store.connect_as(&gate, "127.0.0.9")?;
    let Err(status) = store.ask(&nobody, "a", 1) else { anyhow::bail!("nobody is served") };
    ensure!(refused(&status, Code::PermissionDenied, "unknown-source") == Some(-1), "{status:?}");
    // The head says all, and nothing follows.
    let mut curl = Command::new("curl");
    curl.args([
        "-sS",
        "-i",
        "--noproxy",
        "*",
        "--max-time",
        "20",
        "--http2-prior-knowledge",
        "--interface",
        "127.0.0.9",
    ]);
    // Without a body: curl takes the end of a stream that it still sends on for an error, and says nothing of the answer.
    curl.args(["-X", "POST", "-H", "content-type: application/grpc+proto"]);
    let output = curl.arg(format!("http://{}/", gate.address)).output()?;
    let shown = String::from_utf8(output.stdout.clone())?;
    ensure!(shown.starts_with("HTTP/2 200") && shown.contains("grpc-status: 7\r\n"), "{output:?}");
    ensure!(shown.ends_with("\r\n\r\n"), "{shown}");
    // Others are answered as ever.
    let mut plain = super::client_from(&gate, 9)?;
    ensure!(plain.ask("GET /", "content-type: application/grpc\r\n")?.status == 403);
    let rich = store.connect(&gate)?;
    ensure!(store.ask(&rich, "a", 3).is_ok_and(|code| code == 3));
    let away = gate_before(address(), "", OPEN)?;
    let channel = store.connect(&away)?;
    let Err(status) = store.ask(&channel, "a", 1) else { anyhow::bail!("there is no store") };
    ensure!(refused(&status, Code::Unavailable, "store-down").is_some_and(|wait| wait > 0), "{status:?}");
    Ok(())
}

#[test]
fn each_tenant_has_connections_of_its_own_over_http2() -> Result<()> {
    const TENANTS: &str = "[[tenant]]\nname = \"one\"\nsources = [\"127.0.0.1\"]\nquota = \"unlimited\"\n\
                           [[tenant]]\nname = \"two\"\nsources = [\"127.0.0.2\"]\nquota = \"unlimited\"\n";
    let store = Store::start()?;
    let gate = gate_before(store.address, "parallelism = \"100\"", TENANTS)?;
    let one = store.connect_as(&gate, "127.0.0.1")?;
    let two = store.connect_as(&gate, "127.0.0.2")?;
    let mut streams = Vec::new();
    for _ in 0..32 {
        streams.push(Stream::begin(&store, &one)?);
    }
    ensure!(counter(&gate, "store-connected")? == 1);
    ensure!(store.ask(&two, "a", 1).is_ok());
    ensure!(counter(&gate, "store-connected")? == 2);
    ensure!(store.ask(&one, "a", 1).is_ok());
    ensure!(counter(&gate, "store-connected")? == 3, "one connection has so many requests");
    streams.clear();
    wait_until("idle connections are not closed", || {
        let status = gate.json(&["queues"])?;
        Ok(status["services"][0]["store"]["connections"] == 0)
    })
}

#[test]
fn ordinary_requests_pass_over_http2_to_a_store() -> Result<()> {
    let authority = Authority::new()?;
    let of_store = authority.issue("store", "DNS:store.example", 30)?;
    for (service_of_store, service) in
        [(String::new(), String::new()), (tls(&of_store), backend_tls(&authority.ca(), "store.example"))]
    {
        // Another gate is the store: it speaks HTTP/2.
        let store = FakeStore::start()?;
        let second = Listening::gate_with("tick = \"10ms\"", "http", store.address, &service_of_store, OPEN)?;
        let first = gate_before(second.address, &service, OPEN)?;
        let client = &mut client(&first)?;
        client.send(b"POST /a?b HTTP/1.1\r\nhost: there:81\r\ntransfer-encoding: chunked\r\ntrailer: x\r\n\r\n2\r\nab\r\n0\r\nx: 1\r\n\r\n")?;
        let (mut connection, mut request) = store.next()?;
        // Its body may come in pieces.
        while !String::from_utf8_lossy(&request).contains("\r\n2\r\nab\r\n0\r\n")
            || !request.ends_with(b"\r\n\r\n")
        {
            request.extend_from_slice(&store.next()?.1);
        }
        let request = String::from_utf8(request)?.to_lowercase();
        ensure!(request.starts_with("post /a?b http/1.1\r\n"), "{request}");
        ensure!(request.contains("\r\nhost: there:81\r\n"), "{request}");
        respond(&mut connection, "ok")?;
        ensure!(client.reply(false)?.text() == "ok");
        client.send(b"HEAD / HTTP/1.1\r\nhost: a\r\n\r\n")?;
        respond(&mut store.next()?.0, "")?;
        ensure!(client.reply(true)?.status == 200);
        ensure!(counter(&first, "store-connected")? == 1);
    }
    // A store that does not choose HTTP/2 in its handshake, and one that does not speak it.
    let store = FakeStore::start()?;
    let gate = gate_before(store.address, "store_timeout = \"1s\"\nslow_timeout = \"1s\"", OPEN)?;
    let reply = client(&gate)?.ask("GET /", "")?;
    ensure!([502, 503, 504].contains(&reply.status), "{reply:?}");
    Ok(())
}
