//! Gates that report as fast as they are answered.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use gate_userspace::fleet::wire::{
    Answer, Hello, Introduction, QuotaClient, Report, VERSION, column, common_unit,
};
use prost::Message as _;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;
use tokio::task::LocalSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::lasts;

/// Gates that all report the same names.
pub(super) struct Gates {
    runtime: Runtime,
    gates: Vec<Gate>,
}

struct Gate {
    reports: mpsc::Sender<Report>,
    answers: Streaming<Answer>,
    number: u64,
    names: usize,
    amounts: Amounts,
    /// The last report without names, and its answer.
    bytes: [usize; 2],
}

/// The amounts of which gates report.
#[derive(Clone, Copy)]
pub(super) struct Amounts {
    /// Requests that are refused for each that is charged.
    pub(super) refused: u64,
    /// The price that the bytes of a request add, at most, in thousandths of a request unit.
    pub(super) bytes: u64,
}

impl Gates {
    /// Connects them.
    pub(super) fn connect(owner: SocketAddr, count: usize, names: usize, amounts: Amounts) -> Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let gates = runtime.block_on(async {
            let mut gates = Vec::new();
            for number in 0..count {
                gates.push(Gate::connect(owner, number, names, amounts).await?);
            }
            anyhow::Ok(gates)
        })?;
        Ok(Self { runtime, gates })
    }

    /// All report for this time, at once. Returns how many entries.
    pub(super) fn report_for(&mut self, time: Duration) -> Result<u64> {
        self.run(Some(time))
    }

    /// All report once, one after the other.
    pub(super) fn report_once(&mut self) -> Result<u64> {
        self.run(None)
    }

    fn run(&mut self, time: Option<Duration>) -> Result<u64> {
        let from = Instant::now();
        let gates = std::mem::take(&mut self.gates);
        let local = LocalSet::new();
        let tasks: Vec<_> = gates
            .into_iter()
            .map(|mut gate| {
                local.spawn_local(async move {
                    let mut entries = 0;
                    loop {
                        gate.report().await?;
                        entries += gate.names as u64;
                        if time.is_none_or(|time| !lasts(from, time)) {
                            return anyhow::Ok((gate, entries));
                        }
                    }
                })
            })
            .collect();
        let mut entries = 0;
        for task in tasks {
            let (gate, more) = self.runtime.block_on(local.run_until(task))??;
            self.gates.push(gate);
            entries += more;
        }
        Ok(entries)
    }

    /// The bytes of an entry of a report, and of its answer.
    pub(super) fn bytes_of_an_entry(&self) -> [f64; 2] {
        self.gates[0].bytes.map(|bytes| bytes as f64 / self.gates[0].names as f64)
    }
}

impl Gate {
    async fn connect(owner: SocketAddr, number: usize, names: usize, amounts: Amounts) -> Result<Self> {
        let client = QuotaClient::connect(format!("http://{owner}")).await?;
        // As gates do.
        let mut client = client.max_decoding_message_size(MAX_MESSAGE);
        let (reports, stream) = mpsc::channel(1);
        let hello = Hello {
            version: VERSION,
            gate: format!("gate-{number}"),
            session: 7,
            interval_us: 100_000,
            ..Hello::default()
        };
        reports.send(Report { hello: Some(hello), ..Report::default() }).await?;
        let mut answers = client.exchange(ReceiverStream::new(stream)).await?.into_inner();
        answers.message().await?.context("no first words")?;
        Ok(Self { reports, answers, number: 0, names, amounts, bytes: [0; 2] })
    }

    /// A request or some for every name, and introduces those that are new.
    async fn report(&mut self) -> Result<()> {
        self.number += 1;
        let is_first = self.number == 1;
        let names = if is_first { self.names } else { 0 };
        let introduce = |name| Introduction {
            name: format!("shop/user={name:07}"),
            full_in_us: 0,
            ..Introduction::default()
        };
        // Each handle as its distance from the last one.
        let mut handles = vec![1; self.names];
        handles[0] = 0;
        let amount = |name: usize| cost(name) + self.amounts.bytes * (name as u64 % 13);
        let charged: Vec<u64> = (0..self.names).map(amount).collect();
        let refused: Vec<u64> = charged.iter().map(|charged| charged * self.amounts.refused).collect();
        // As gates do.
        let all = charged.iter().chain(&refused).copied();
        let unit = common_unit(all);
        let report = Report {
            number: self.number,
            within_us: 100_000,
            introductions: (0..names).map(introduce).collect(),
            handles,
            charged: column(charged.iter().map(|charged| charged / unit)),
            refused: column(refused.iter().map(|refused| refused / unit)),
            unit,
            ..Report::default()
        };
        if !is_first {
            self.bytes[0] = report.encoded_len();
        }
        self.reports.send(report).await?;
        let answer = self.answers.message().await?.context("the stream has ended")?;
        if answer.number != self.number {
            bail!("an answer to report {} for report {}", answer.number, self.number);
        }
        self.bytes[1] = if is_first { 0 } else { answer.encoded_len() };
        Ok(())
    }
}

/// The cost of what a name was given, in thousandths of a request unit: from 1 to 40 requests.
pub(super) fn cost(name: usize) -> u64 {
    (name as u64 * 7_919 % 40 + 1) * 1_000
}

/// The largest answer that is read, in bytes.
const MAX_MESSAGE: usize = 64 << 20;
