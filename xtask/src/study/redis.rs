//! Redis itself with five commands of different cost. How long they take is the machine's: it is measured first, with the
//! capacity, and the objective follows from it.

use std::borrow::Cow;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::{PATIENCE, QueryType, Store, Study, address, policies, started};
use crate::lab::process::{ChildProcess, bound_command};

/// The commands, the cheapest first, and their shares in percent.
const TYPES: [QueryType; 5] = [
    QueryType { name: "get", weight: 30, command: &["GET", "study:value"] },
    QueryType { name: "lrange", weight: 20, command: &["LRANGE", "study:list", "0", "499"] },
    QueryType { name: "sintercard", weight: 20, command: &["SINTERCARD", "2", "study:set:a", "study:set:b"] },
    QueryType { name: "sort", weight: 15, command: &["SORT", "study:list", "LIMIT", "0", "10"] },
    QueryType {
        name: "zunionstore",
        weight: 15,
        command: &["ZUNIONSTORE", "study:out", "2", "study:sorted:a", "study:sorted:b"],
    },
];
/// The rows of each list and set.
const ROWS: usize = 5_000;
/// The relation of the embedded store's objectives to the time of its dearest type.
const OBJECTIVE_OF_DEAREST: [f64; 2] = [6.0, 16.0];
/// For how long the capacity is measured.
const MEASURED: Duration = Duration::from_secs(3);
/// Requests that are sent together then, in the proportions of the mix.
const BATCH: usize = 100;

/// The study on Redis: starts one, and measures what the commands take and how many of the mix it serves.
///
/// # Errors
///
/// If Redis is not there, or fails.
pub fn study() -> Result<Study> {
    let address = address(22_101);
    let store = start(address)?;
    let (capacity, mean_us) = measure(address)?;
    drop(store);
    let dearest_ms = mean_us[TYPES.len() - 1] / 1e3;
    // To the millisecond, and none below what a busy machine adds.
    let objective_ms = OBJECTIVE_OF_DEAREST.map(|times| (times * dearest_ms).round().max(10.0));
    Ok(Study {
        name: "redis",
        types: TYPES.to_vec(),
        mean_us,
        dearest: "zunionstore",
        objective_ms,
        capacity,
        policies: policies(objective_ms[0], capacity),
        store: Store::Redis,
    })
}

/// Starts a Redis, with the data that the commands read.
pub(super) fn start(address: SocketAddr) -> Result<ChildProcess> {
    let mut command: Command = bound_command("redis-server");
    command.args(["--bind", &address.ip().to_string(), "--port", &address.port().to_string()]);
    command.args(["--save", "", "--appendonly", "no"]);
    let store = started("redis-server", command, address)?;
    let mut requests = String::from("SET study:value v\r\n");
    for row in 0..ROWS {
        // A multiplier without a common factor puts the numbers out of order.
        let number = row * 2_731 % ROWS;
        requests += &format!(
            "RPUSH study:list {number}\r\nSADD study:set:a m{row}\r\nSADD study:set:b m{}\r\n\
             ZADD study:sorted:a {number} m{row}\r\nZADD study:sorted:b {row} m{}\r\n",
            row + ROWS / 2,
            row + ROWS / 2,
        );
    }
    Connection::open(address)?.ask(&requests)?;
    Ok(store)
}

/// Requests of the mix a second over one connection, and the mean time of each command in microseconds, as Redis counts it.
fn measure(address: SocketAddr) -> Result<(f64, Vec<f64>)> {
    let mut connection = Connection::open(address)?;
    let weights: u32 = TYPES.iter().map(|of| of.weight).sum();
    let batch: String = TYPES
        .iter()
        .map(|of| {
            let line = format!("{}\r\n", of.command.join(" "));
            line.repeat(BATCH * of.weight as usize / weights as usize)
        })
        .collect();
    connection.ask(&batch)?;
    connection.ask("CONFIG RESETSTAT\r\n")?;
    let began = Instant::now();
    let mut served = 0;
    while began.elapsed() < MEASURED {
        connection.ask(&batch)?;
        served += BATCH;
    }
    let capacity = served as f64 / began.elapsed().as_secs_f64();
    let stats = connection.ask("INFO commandstats\r\n")?;
    let mean = |of: &QueryType| -> Result<f64> {
        let line = format!("cmdstat_{}:", of.command[0].to_ascii_lowercase());
        let found = stats.lines().find_map(|said| said.strip_prefix(&line)?.split("usec_per_call=").nth(1));
        let number = found.and_then(|rest| rest.split(',').next()).with_context(|| format!("no {line}"))?;
        Ok(number.parse()?)
    };
    Ok((capacity, TYPES.iter().map(mean).collect::<Result<_>>()?))
}

/// Inline commands, and all that comes back.
struct Connection(TcpStream);

impl Connection {
    fn open(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self(stream))
    }

    /// Sends commands, a line each, and returns all replies to them.
    fn ask(&mut self, commands: &str) -> Result<String> {
        let mut sender = self.0.try_clone()?;
        std::thread::scope(|scope| {
            // Replies are read meanwhile: they may be more than the sockets hold.
            let sent = scope.spawn(move || {
                sender.write_all(commands.as_bytes())?;
                sender.write_all(format!("ECHO {END}\r\n").as_bytes())
            });
            let mut said = Vec::new();
            let mut piece = vec![0; 1 << 16];
            let end = format!("\r\n{END}\r\n");
            while !said.ends_with(end.as_bytes()) {
                let len = self.0.read(&mut piece).context("Redis does not answer")?;
                ensure!(len > 0, "Redis has closed the connection");
                said.extend_from_slice(&piece[..len]);
            }
            sent.join().expect("it does not panic")?;
            Ok(String::from_utf8_lossy(&said).into_owned())
        })
    }
}

/// The last reply of several.
const END: &str = "end-of-replies";

/// A sentence about the store.
pub(super) fn about() -> Cow<'static, str> {
    format!(
        "Redis as Debian has it. Lists and sets have {ROWS} rows. Times are Redis' own (`INFO commandstats`), the capacity is what one \
         connection is served of the mix, {BATCH} requests in one go."
    )
    .into()
}
