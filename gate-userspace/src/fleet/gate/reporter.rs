//! The thread that reports: a connection to each owner.

use std::time::Duration;

use gate_common::abi::Clock;
use gate_common::units::Nanos;
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, ClientTlsConfig};
use tonic::{Status, Streaming};

use super::book::Resumed;
use super::shared::SharedBook;
use crate::clock;
use crate::fleet::endpoint::{endpoint, with_causes};
use crate::fleet::wire::{Answer, MAX_MESSAGE, QuotaClient, Report};

/// The running thread. It ends with this.
#[derive(Debug)]
pub struct Reporter {
    ticks: watch::Sender<()>,
    book: SharedBook,
    tls: watch::Sender<Option<ClientTlsConfig>>,
}

/// A stream to one owner.
struct Stream {
    reports: mpsc::Sender<Report>,
    answers: Streaming<Answer>,
}

/// Why a stream ends.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("{}", with_causes(.0))]
    Transport(#[from] tonic::transport::Error),
    #[error("{}", with_causes(.0))]
    Status(#[from] Status),
    #[error("no answer in time")]
    Silent,
    #[error("the owner does not know this gate's session; another one begins")]
    Forgotten,
    #[error("many names are no longer in use; another session begins")]
    Worn,
    #[error("{0}")]
    Unfit(#[from] super::link::Unfit),
    #[error("it has ended the stream")]
    Closed,
    #[error("this gate ends")]
    Over,
}

impl Reporter {
    /// Starts the thread; `name` is this gate's among all gates. Without `tls` it speaks in plain text.
    ///
    /// # Errors
    ///
    /// The system's, of a thread or its runtime.
    pub fn start(
        book: &SharedBook,
        name: &str,
        tls: Option<ClientTlsConfig>,
        clock: Clock,
    ) -> std::io::Result<Self> {
        let (ticks, tick) = watch::channel(());
        let (tls, shown) = watch::channel(tls);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let owners = book.lock().settings().owners.clone();
        let connections: Vec<_> = owners
            .into_iter()
            .enumerate()
            .map(|(owner, address)| Connection {
                owner,
                address,
                name: name.to_owned(),
                tls: shown.clone(),
                book: book.clone(),
                clock,
                tick: tick.clone(),
            })
            .collect();
        std::thread::Builder::new().name("gate-fleet".to_owned()).spawn(move || {
            let local = tokio::task::LocalSet::new();
            for connection in connections {
                local.spawn_local(connection.run());
            }
            runtime.block_on(local);
        })?;
        Ok(Self { ticks, book: book.clone(), tls })
    }

    /// The book that is reported from.
    #[must_use]
    pub fn book(&self) -> SharedBook {
        self.book.clone()
    }

    /// Shows another certificate, and trusts others, on connections that are made from now on.
    pub fn follow_tls(&self, tls: ClientTlsConfig) {
        self.tls.send_replace(Some(tls));
    }

    /// A tick is over: there may be something to report.
    pub fn tick(&self) {
        self.ticks.send_replace(());
    }
}

struct Connection {
    owner: usize,
    address: String,
    name: String,
    tls: watch::Receiver<Option<ClientTlsConfig>>,
    book: SharedBook,
    clock: Clock,
    tick: watch::Receiver<()>,
}

impl Connection {
    /// Connects, again and again, until the gate ends.
    async fn run(mut self) {
        let mut pause = FIRST_PAUSE;
        let mut was_connected = false;
        loop {
            let ended = match self.connect().await {
                Ok(stream) => {
                    tracing::info!(owner = self.address, "reporting to an owner of limits");
                    (pause, was_connected) = (FIRST_PAUSE, true);
                    self.exchange(stream).await
                }
                Err(ended) => ended,
            };
            match ended {
                Ended::Over => return,
                Ended::Forgotten | Ended::Worn => {}
                ended if was_connected || pause == FIRST_PAUSE => {
                    tracing::warn!(owner = self.address, error = %ended, "cannot report to an owner of limits");
                }
                ended => {
                    tracing::debug!(owner = self.address, error = %ended, "cannot report to an owner of limits")
                }
            }
            was_connected = false;
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
            if self.tick.has_changed().is_err() {
                return;
            }
        }
    }

    fn now(&self) -> Nanos {
        self.clock.at_monotonic(clock::monotonic())
    }

    async fn connect(&self) -> Result<Stream, Ended> {
        let tls = self.tls.borrow().clone();
        let endpoint = endpoint(&self.address, tls)?
            .connect_timeout(PATIENCE)
            .http2_keep_alive_interval(PATIENCE)
            .keep_alive_timeout(PATIENCE)
            .keep_alive_while_idle(true);
        let channel: Channel = timeout(PATIENCE, endpoint.connect()).await.map_err(|_| Ended::Silent)??;
        let mut client = QuotaClient::new(channel).max_decoding_message_size(MAX_MESSAGE);
        let (reports, stream) = mpsc::channel(1);
        let hello = self.book.lock().hello(self.owner, &self.name);
        reports.send(hello).await.map_err(|_| Ended::Closed)?;
        let answers = timeout(PATIENCE, client.exchange(ReceiverStream::new(stream))).await;
        let mut answers = answers.map_err(|_| Ended::Silent)??.into_inner();
        let first = timeout(PATIENCE, answers.message()).await.map_err(|_| Ended::Silent)??;
        let welcome = first.and_then(|first| first.welcome).ok_or(Ended::Closed)?;
        match self.book.lock().resume(self.owner, &welcome, clock::entropy()) {
            Resumed::Anew => Err(Ended::Forgotten),
            Resumed::Known(again) => {
                let again = again.into_iter();
                again.for_each(|report| {
                    // There is room: the first message has been answered.
                    let _ = reports.try_send(report);
                });
                Ok(Stream { reports, answers })
            }
        }
    }

    async fn exchange(&mut self, mut stream: Stream) -> Ended {
        loop {
            if !self.book.lock().is_waiting(self.owner) {
                if self.tick.changed().await.is_err() {
                    return Ended::Over;
                }
                if self.book.lock().renew(self.owner, clock::entropy) {
                    return Ended::Worn;
                }
                let report = self.book.lock().report(self.owner, self.now());
                if let Some(report) = report
                    && stream.reports.send(report).await.is_err()
                {
                    return Ended::Closed;
                }
            }
            let answer = match timeout(PATIENCE, stream.answers.message()).await {
                Err(_) => return Ended::Silent,
                Ok(Err(status)) => return status.into(),
                Ok(Ok(None)) => return Ended::Closed,
                Ok(Ok(Some(answer))) => answer,
            };
            let answered = self.book.lock().answer(self.owner, self.now(), &answer);
            if let Err(unfit) = answered {
                return unfit.into();
            }
        }
    }
}

/// How long a gate waits for an owner.
const PATIENCE: Duration = Duration::from_secs(1);
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
