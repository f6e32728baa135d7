//! Envoy's question about one request, over and over: gate, beside a server that always says OK and throttlecrab-server, whose gRPC
//! has messages of its own. Each server has a CPU; h2load shares the other with nothing.

use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use gate_tests::proxy::{Listening, address};
use gate_tests::wait::until_up;
use gate_userspace::envoy::wire::rls::RateLimitDescriptor;
use gate_userspace::envoy::wire::rls::rate_limit_descriptor::Entry;
use gate_userspace::envoy::wire::rls::rate_limit_response::Code;
use gate_userspace::envoy::wire::rls::{RateLimitRequest, RateLimitResponse};
use prost::Message;
use serde_json::{Value, json};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Endpoint;
use tonic_prost::ProstCodec;
use xtask::lab::process::ChildProcess;
use xtask::setup::throttlecrab;

use super::{ROUNDS, median, ok_server, on_own_cpu, ran_by};

const EACH: Duration = Duration::from_secs(2);
/// Connections, and requests under way on each: an Envoy's worker threads have one each.
const CONNECTIONS: &str = "4";
const UNDER_WAY: &str = "16";
const ENVOY: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const THROTTLECRAB: &str = "/throttlecrab.RateLimiter/Throttle";
const LIMITS: &str = "[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"unlimited\"\n\
                      [[limit]]\nname = \"shop/path=*\"\nquota = \"1000000 RU/s\"\n\
                      [[limit]]\nname = \"shop/path=%2Frefused\"\nquota = \"0.01 RU/s\"\nburst = \"100s\"\n";

/// A question to throttlecrab-server, by its proto/throttlecrab.proto.
#[derive(Clone, PartialEq, Message)]
struct Throttle {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(int32, tag = "2")]
    max_burst: i32,
    #[prost(int32, tag = "3")]
    count_per_period: i32,
    /// In seconds.
    #[prost(int32, tag = "4")]
    period: i32,
    #[prost(int32, tag = "5")]
    quantity: i32,
}

/// Its answer.
#[derive(Clone, PartialEq, Message)]
struct Throttled {
    #[prost(bool, tag = "1")]
    allowed: bool,
}

/// A server that is asked.
struct Server {
    name: &'static str,
    process: u32,
    /// The beginning of the names of the threads that answer: gate's ticks cost the same whatever is asked.
    threads: &'static str,
    address: SocketAddr,
    path: &'static str,
}

impl Server {
    fn ran(&self) -> Result<Duration> {
        ran_by(self.process, self.threads)
    }
}

pub(super) fn run() -> Result<Value> {
    on_own_cpu(|| ());
    let store = Listening::memcached()?;
    let [at_gate, at_ok, at_throttlecrab] = [(); 3].map(|()| address());
    let start = || anyhow::Ok((gate(&store, at_gate)?, always_ok(at_ok)?, throttlecrab(at_throttlecrab)?));
    let (mut gate, always_ok, throttlecrab) = on_own_cpu(start)?;
    let servers = [
        Server {
            name: "gate",
            process: gate.program().id(),
            threads: "gate-envoy",
            address: at_gate,
            path: ENVOY,
        },
        Server { name: "always OK", process: always_ok.id(), threads: "", address: at_ok, path: ENVOY },
        Server {
            name: "throttlecrab-server",
            process: throttlecrab.id(),
            threads: "",
            address: at_throttlecrab,
            path: THROTTLECRAB,
        },
    ];
    println!("questions of Envoy's about one request; medians of {ROUNDS} rounds of {EACH:?} in turn");
    println!("{:<34} {:>12} {:>16} {:>22}", "", "a second", "a CPU second", "of those of always OK");
    let mut results = Vec::new();
    for (name, passes) in [("passed", true), ("refused", false)] {
        // Who is over the limit is so after some requests.
        let mut answers = [passes; 2];
        for _ in 0..4 {
            answers = ask(at_gate, at_throttlecrab, name)?;
        }
        ensure!(answers == [passes; 2], "{name}: {answers:?}");
        results.push(measure(name, &servers)?);
    }
    Ok(results.into())
}

/// A gate that Envoys ask there, in their domain `shop`.
pub(super) fn gate(store: &Listening, envoys: SocketAddr) -> Result<Listening> {
    let sections = format!("{LIMITS}[envoy]\nlisten = \"{envoys}\"\n");
    Listening::gate_with("threads = \"1\"\n", "memcached", store.address, "", &sections)
}

/// The server that always says OK.
pub(super) fn always_ok(address: SocketAddr) -> Result<ChildProcess> {
    up("a server that says OK", ok_server::command(address)?, address)
}

fn throttlecrab(address: SocketAddr) -> Result<ChildProcess> {
    let mut command = Command::new(throttlecrab::program());
    let host = address.ip().to_string();
    command.args(["--grpc", "--grpc-host", &host, "--grpc-port", &address.port().to_string()]);
    up("throttlecrab-server", command, address)
}

fn up(name: &'static str, command: Command, address: SocketAddr) -> Result<ChildProcess> {
    let mut server = ChildProcess::start(name, command)?;
    until_up(&mut server, name, || Ok(TcpStream::connect(address).is_ok()))?;
    Ok(server)
}

/// All servers in turn.
fn measure(name: &str, servers: &[Server]) -> Result<Value> {
    let mut rates: Vec<[Vec<f64>; 2]> = servers.iter().map(|_| [const { Vec::new() }; 2]).collect();
    for _ in 0..ROUNDS {
        for (server, rates) in servers.iter().zip(&mut rates) {
            let body = if server.path == ENVOY { framed(&question(name)) } else { framed(&throttle(name)) };
            let before = server.ran()?;
            let done = h2load(server, &body)? as f64;
            rates[0].push(done / EACH.as_secs_f64());
            rates[1].push(done / (server.ran()? - before).as_secs_f64());
        }
    }
    let rates: Vec<[f64; 2]> = rates.into_iter().map(|rates| rates.map(median)).collect();
    let mut results = Vec::new();
    for (server, [per_sec, per_cpu_s]) in servers.iter().zip(&rates) {
        let ratio = per_cpu_s / rates[1][1];
        let label = format!("{name}, by {}", server.name);
        println!("{label:<34} {per_sec:>12.0} {per_cpu_s:>16.0} {ratio:>22.2}");
        results.push(json!({
            "server": server.name, "per_sec": per_sec, "per_cpu_s": per_cpu_s, "of_always_ok": ratio,
        }));
    }
    Ok(json!({ "questions": name, "servers": results }))
}

/// Asks a server for a while, as fast as it answers. Returns how many answers there were.
fn h2load(server: &Server, body: &[u8]) -> Result<u64> {
    let file = std::env::temp_dir().join(format!("gate-bench-question-{}", std::process::id()));
    std::fs::write(&file, body)?;
    let mut command = Command::new("h2load");
    command.args(["-D", &EACH.as_secs().to_string(), "-c", CONNECTIONS, "-m", UNDER_WAY, "-d"]).arg(&file);
    command.args(["-H", "content-type: application/grpc", "-H", "te: trailers"]);
    let output = command.arg(format!("http://{}{}", server.address, server.path)).output()?;
    std::fs::remove_file(&file)?;
    let said = String::from_utf8(output.stdout)?;
    let line =
        said.lines().find_map(|line| line.strip_prefix("requests: ")).context("h2load says nothing")?;
    let count = |what| {
        let mut words = line.split(", ").filter_map(|part| part.split_once(' '));
        words.find(|(_, its)| *its == what).and_then(|(count, _)| count.parse::<u64>().ok())
    };
    ensure!(count("failed") == Some(0) && count("errored") == Some(0), "{line}");
    count("succeeded").with_context(|| line.to_owned())
}

/// The answers of gate and of throttlecrab-server: true if the request may pass.
fn ask(gate: SocketAddr, throttlecrab: SocketAddr, name: &str) -> Result<[bool; 2]> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let response: RateLimitResponse = unary(gate, ENVOY, question(name)).await?;
        let throttled: Throttled = unary(throttlecrab, THROTTLECRAB, throttle(name)).await?;
        Ok([response.overall_code == Code::Ok as i32, throttled.allowed])
    })
}

async fn unary<Q, A>(server: SocketAddr, path: &'static str, question: Q) -> Result<A>
where
    Q: Message + Default + 'static,
    A: Message + Default + 'static,
{
    let channel = Endpoint::from_shared(format!("http://{server}"))?.connect().await?;
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await?;
    let codec = ProstCodec::<Q, A>::default();
    let path = PathAndQuery::from_static(path);
    Ok(client.unary(tonic::Request::new(question), path, codec).await?.into_inner())
}

/// A message with what gRPC puts before it: not compressed, and its length.
fn framed(message: &impl Message) -> Vec<u8> {
    let bytes = message.encode_to_vec();
    let mut frame = vec![0];
    frame.extend((bytes.len() as u32).to_be_bytes());
    frame.extend(bytes);
    frame
}

fn question(name: &str) -> RateLimitRequest {
    let entry = Entry { key: "path".to_owned(), value: format!("/{name}") };
    let descriptor = RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() };
    RateLimitRequest { domain: "shop".to_owned(), descriptors: vec![descriptor], hits_addend: 0 }
}

fn throttle(name: &str) -> Throttle {
    let is_refused = name == "refused";
    let [count, period] = if is_refused { [2, 3_600] } else { [1_000_000, 1] };
    Throttle { key: format!("/{name}"), max_burst: count, count_per_period: count, period, quantity: 1 }
}
