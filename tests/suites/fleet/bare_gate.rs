//! A gate that reports what a test wants, and nothing by itself.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result};
use gate_tests::proxy::PATIENCE;
use gate_userspace::fleet::wire::{Answer, Hello, Introduction, QuotaClient, Report, VERSION};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

/// A stream of reports. Its connection ends when dropped.
pub(crate) struct BareGate {
    runtime: Runtime,
    reports: mpsc::Sender<Report>,
    answers: Streaming<Answer>,
}

/// The first words of a gate with this name.
pub(crate) fn hello(gate: &str) -> Hello {
    Hello { version: VERSION, gate: gate.to_owned(), session: 7, interval_us: 100_000, ..Hello::default() }
}

/// A first report, of one charge under a new name, in thousandths of a request unit.
pub(crate) fn first(name: &str, charged: u64) -> Report {
    let introductions =
        vec![Introduction { name: name.to_owned(), full_in_us: 0, ..Introduction::default() }];
    Report { introductions, ..next(1, 0, charged) }
}

/// A report of one charge, under a handle.
pub(crate) fn next(number: u64, handle: u32, charged: u64) -> Report {
    Report {
        number,
        within_us: 100_000,
        handles: vec![handle],
        charged: vec![charged],
        refused: vec![0],
        ..Report::default()
    }
}

impl BareGate {
    /// Connects and says so. The owner's refusal is the inner error.
    pub(crate) fn connect(owner: SocketAddr, hello: Hello) -> Result<Result<Self, Status>> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let url = format!("http://{owner}");
        let connected = runtime.block_on(async {
            let mut client = QuotaClient::connect(url).await?;
            let (reports, stream) = mpsc::channel(1);
            reports.send(Report { hello: Some(hello), ..Report::default() }).await?;
            let answers = match client.exchange(ReceiverStream::new(stream)).await {
                Ok(answers) => answers.into_inner(),
                Err(status) => return Ok(Err(status)),
            };
            anyhow::Ok(Ok((reports, answers)))
        });
        let (reports, answers) = match connected? {
            Ok(stream) => stream,
            Err(status) => return Ok(Err(status)),
        };
        let mut gate = Self { runtime, reports, answers };
        Ok(gate.answer()?.map(|_| gate))
    }

    /// Reports without waiting for the answer.
    pub(crate) fn send(&mut self, report: Report) -> Result<()> {
        Ok(self.runtime.block_on(self.reports.send(report))?)
    }

    /// True if a report is taken from it in this time, though it does not read what it is answered.
    pub(crate) fn send_within(&mut self, report: Report, time: Duration) -> Result<bool> {
        let sent = self.runtime.block_on(async { timeout(time, self.reports.send(report)).await });
        Ok(matches!(sent, Ok(Ok(()))))
    }

    /// Goes on for this time, and closes its connection whatever is under way.
    pub(crate) fn leave_in(self, time: Duration) {
        self.runtime.block_on(async { tokio::time::sleep(time).await });
    }

    /// The next answer, or why there is none.
    pub(crate) fn answer(&mut self) -> Result<Result<Answer, Status>> {
        let message = self.runtime.block_on(async { timeout(PATIENCE, self.answers.message()).await });
        Ok(match message.context("no answer in time")? {
            Ok(answer) => Ok(answer.context("the stream has ended")?),
            Err(status) => Err(status),
        })
    }

    /// Reports, and waits for the answer.
    pub(crate) fn exchange(&mut self, report: Report) -> Result<Result<Answer, Status>> {
        self.send(report)?;
        self.answer()
    }
}
