//! Full load by a tenant with almost no quota: the latency of its refusals.
//!
//! gate measures its own time, from when a request was decoded until the refusal was written; what the client
//! says includes its sockets, the wait for gate's turn on the processor, and all that was sent together.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;

use super::{
    Answer, Args, CONNECTIONS, Field, Gate, Load, MEMCACHED, NUMBERS, REDIS, at, gate_config, paths, start,
};

/// The requests and their store.
pub(super) struct Refused {
    pub(super) name: String,
    store: usize,
    load: Load,
}

/// Unpipelined and pipelined, for both stores. A miss is one line, as a refusal is.
pub(super) fn loads() -> Vec<Refused> {
    let mut loads = Vec::new();
    for (store, name, request) in [
        (REDIS, "redis", "*2\r\n$3\r\nGET\r\n$10\r\nbench:none\r\n"),
        (MEMCACHED, "memcached", "get bench:none\r\n"),
    ] {
        for pipelined in [1, 16] {
            let request = request.into();
            let answer = Answer::Line;
            let load = Load {
                connections: CONNECTIONS,
                pipelined,
                request,
                numbers: NUMBERS,
                every_other: None,
                answer,
                pause: Duration::ZERO,
            };
            loads.push(Refused { name: format!("{name} refusals x{pipelined}"), store, load });
        }
    }
    loads
}

/// One load, the medians of its rounds.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    load: String,
    /// Answers a second, almost all of them refusals.
    per_sec: f64,
    /// The client's measurement.
    p50_us: f64,
    p99_us: f64,
    /// From decoded to written.
    written_p50_us: f64,
    written_p99_us: f64,
    written_max_us: f64,
    /// The share of the refusals that were behind another's answer, and not timed.
    held_back: f64,
}

impl Row {
    pub(super) fn line(&self) -> String {
        format!(
            "{:<28} {:<13} {:>10.0}/s  p50 {:>7.0} us  p99 {:>7.0} us  decoded to written: p50 {:>5.0} us  p99 {:>5.0} us  max {:>6.0} us  held back {:.2}%",
            self.load,
            "gate",
            self.per_sec,
            self.p50_us,
            self.p99_us,
            self.written_p50_us,
            self.written_p99_us,
            self.written_max_us,
            self.held_back * 100.0
        )
    }
}

/// Runs a load as often as is asked for, each time against a new gate, whose figures are about nothing else.
pub(super) fn measure(refused: &Refused, field: &mut Field, args: &Args) -> Result<Row> {
    let rounds = (0..args.rounds).map(|_| round(refused, field, args.each()));
    let mut rounds = rounds.collect::<Result<Vec<_>>>()?;
    let mut of = |field: fn(&Row) -> f64| {
        rounds.sort_by(|one, other| field(one).total_cmp(&field(other)));
        field(&rounds[rounds.len() / 2])
    };
    Ok(Row {
        load: refused.name.clone(),
        per_sec: of(|row| row.per_sec),
        p50_us: of(|row| row.p50_us),
        p99_us: of(|row| row.p99_us),
        written_p50_us: of(|row| row.written_p50_us),
        written_p99_us: of(|row| row.written_p99_us),
        written_max_us: of(|row| row.written_max_us),
        held_back: of(|row| row.held_back),
    })
}

fn round(refused: &Refused, field: &mut Field, lasts: Duration) -> Result<Row> {
    let own: [SocketAddr; 2] = [at(13), at(14)];
    let stores = [REDIS, MEMCACHED].map(|store| field.targets[store][0].address);
    let socket = std::env::temp_dir().join(format!("gate-bench-{}.sock", std::process::id()));
    let config =
        gate_config(own, stores, &GATE).replacen("admin = \"off\"", &format!("admin = {socket:?}"), 1);
    let file = field.file("refusals", &config)?;
    let mut command = Command::new(paths::gate());
    command.arg("run").arg("--config").arg(file);
    // Ends with this round.
    let _gate = start("gate", command, &own)?;
    let outcome = refused.load.run(own[refused.store], lasts).with_context(|| refused.name.clone())?;
    let name = ["redis", "memcached"][refused.store];
    let mut command = Command::new(paths::gate());
    let output = command.args(["queues", name, "--json", "--socket"]).arg(&socket).output()?;
    ensure!(output.status.success(), "gate queues: {}", String::from_utf8_lossy(&output.stderr));
    let queues: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let refusals = &queues["services"][0]["refusals"];
    let number = |value: &serde_json::Value| value.as_f64().with_context(|| refusals.to_string());
    let micros = |which: &str| Ok::<_, anyhow::Error>(number(&refusals["written_ms"][which])? * 1e3);
    let written = number(&refusals["written"])?;
    let held_back = number(&refusals["held_back"])?;
    let [p50_us, p99_us, _] = outcome.micros;
    Ok(Row {
        load: refused.name.clone(),
        per_sec: outcome.per_sec,
        p50_us,
        p99_us,
        written_p50_us: micros("p50")?,
        written_p99_us: micros("p99")?,
        written_max_us: micros("max")?,
        held_back: held_back / (written + held_back),
    })
}

/// A hundredth of what is asked, or less.
const GATE: Gate = Gate::new("500 RU/s", "hot_keys.cache = \"off\"\n");
