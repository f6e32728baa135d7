//! The thread that reports: a connection to each owner.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::MutexGuard;
use std::time::Duration;

use gate_common::abi::Clock;
use gate_common::units::Nanos;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, ClientTlsConfig};
use tonic::{Status, Streaming};

use super::book::{Book, Resumed};
use super::shared::SharedBook;
use crate::dns;
use crate::endpoint::endpoint;
use crate::etcd;
use crate::membership::{DnsName, Membership, Owners};
use crate::wire::{Answer, MAX_MESSAGE, OLDEST, QuotaClient, Report, VERSION};
use gate_system::clock;
use gate_system::system_error::with_causes;

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
    #[error("this gate drains its clients; the stream is made anew")]
    Drains,
    #[error("{0}")]
    Unfit(#[from] super::link::Unfit),
    #[error("it speaks version {0}, which this gate does not")]
    Version(u32),
    #[error("it has ended the stream")]
    Closed,
    #[error("it is no owner any more")]
    Left,
    #[error("it is not on loopback, where reports are neither encrypted nor signed without tls in [fleet]")]
    PlainText,
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
        owners: Owners,
        tls: Option<ClientTlsConfig>,
        clock: Clock,
    ) -> std::io::Result<Self> {
        let (ticks, tick) = watch::channel(());
        let (tls, shown) = watch::channel(tls);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (membership, source) = match owners {
            Owners::Fixed(owners) => (Membership::fixed(owners), None),
            Owners::Dns(name) => {
                let (membership, source) = Membership::new();
                (membership, Some((Found::ByName(name), source)))
            }
            Owners::Etcd(urls) => {
                let (membership, source) = Membership::new();
                (membership, Some((Found::InEtcd(etcd::Members::new(urls, shown.clone())), source)))
            }
        };
        let host = match &source {
            Some((Found::ByName(name), _)) => Some(name.host.clone()),
            Some((Found::InEtcd(_), _)) | None => None,
        };
        let connections = Connections {
            book: book.clone(),
            name: name.to_owned(),
            tls: shown,
            host,
            clock,
            tick,
            membership,
        };
        std::thread::Builder::new().name("gate-fleet".to_owned()).spawn(move || {
            let local = tokio::task::LocalSet::new();
            match source {
                Some((Found::ByName(name), source)) => drop(local.spawn_local(dns::follow(name, source))),
                Some((Found::InEtcd(members), source)) => {
                    drop(local.spawn_local(etcd::follow(members, source)))
                }
                None => {}
            }
            runtime.block_on(local.run_until(connections.run()));
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

/// The place where owners are found that may change.
enum Found {
    ByName(DnsName),
    InEtcd(etcd::Members),
}

/// The connections to all owners, and all that they have in common.
#[derive(Clone)]
struct Connections {
    book: SharedBook,
    name: String,
    tls: watch::Receiver<Option<ClientTlsConfig>>,
    /// The name that owners' certificates are for; `None` if each is for its own address or name.
    host: Option<String>,
    clock: Clock,
    tick: watch::Receiver<()>,
    membership: Membership,
}

impl Connections {
    fn now(&self) -> Nanos {
        self.clock.at_monotonic(clock::monotonic())
    }

    /// Keeps a connection to each present owner, until the gate ends.
    async fn run(mut self) {
        let mut tasks: HashMap<usize, JoinHandle<()>> = HashMap::new();
        let mut tick = self.tick.clone();
        loop {
            let view = self.membership.view();
            let changes =
                self.book.lock().follow(self.now(), &view.addresses(), view.revision, clock::entropy);
            for left in changes.left {
                tasks.remove(&left).inspect(JoinHandle::abort);
            }
            for (owner, address) in changes.joined {
                let connection = Connection { owner, address, shared: self.clone() };
                tasks.insert(owner, tokio::task::spawn_local(connection.run()));
            }
            let end = async { while tick.changed().await.is_ok() {} };
            tokio::select! {
                () = self.membership.changed() => {}
                () = end => return,
            }
        }
    }
}

struct Connection {
    owner: usize,
    address: String,
    shared: Connections,
}

impl Connection {
    /// Connects, again and again, until the gate ends.
    async fn run(mut self) {
        let mut pause = FIRST_PAUSE;
        loop {
            let mut has_answered = false;
            let ended = match self.connect().await {
                Ok(stream) => self.exchange(stream, &mut has_answered).await,
                Err(ended) => ended,
            };
            pause = if has_answered { FIRST_PAUSE } else { pause };
            match ended {
                Ended::Over => return,
                Ended::Forgotten | Ended::Worn | Ended::Drains => {}
                ended if pause == FIRST_PAUSE => {
                    tracing::warn!(owner = self.address, error = %ended, "cannot report to an owner of limits");
                }
                ended => {
                    tracing::debug!(owner = self.address, error = %ended, "cannot report to an owner of limits")
                }
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
            if self.shared.tick.has_changed().is_err() {
                return;
            }
        }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.shared.book.lock()
    }

    async fn connect(&self) -> Result<Stream, Ended> {
        let tls = self.shared.tls.borrow().clone();
        let tls = tls.map(|tls| match &self.shared.host {
            Some(host) => tls.domain_name(host),
            None => tls,
        });
        if tls.is_none() && !is_loopback(&self.address) {
            return Err(Ended::PlainText);
        }
        let endpoint = endpoint(&self.address, tls)?
            .connect_timeout(PATIENCE)
            .http2_keep_alive_interval(PATIENCE)
            .keep_alive_timeout(PATIENCE)
            .keep_alive_while_idle(true);
        let channel: Channel = timeout(PATIENCE, endpoint.connect()).await.map_err(|_| Ended::Silent)??;
        let mut client = QuotaClient::new(channel).max_decoding_message_size(MAX_MESSAGE);
        let (reports, stream) = mpsc::channel(1);
        let hello = self.book().hello(self.owner, &self.shared.name).ok_or(Ended::Left)?;
        reports.send(hello).await.map_err(|_| Ended::Closed)?;
        let answers = timeout(PATIENCE, client.exchange(ReceiverStream::new(stream))).await;
        let mut answers = answers.map_err(|_| Ended::Silent)??.into_inner();
        let first = timeout(PATIENCE, answers.message()).await.map_err(|_| Ended::Silent)??;
        let welcome = first.and_then(|first| first.welcome).ok_or(Ended::Closed)?;
        if !(OLDEST..=VERSION).contains(&welcome.version) {
            return Err(Ended::Version(welcome.version));
        }
        match self.book().resume(self.owner, &welcome, clock::entropy()) {
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

    /// Reports and is answered, until the stream ends. `has_answered` becomes true with the first answer.
    async fn exchange(&mut self, mut stream: Stream, has_answered: &mut bool) -> Ended {
        loop {
            if !self.book().is_waiting(self.owner) {
                if self.shared.tick.changed().await.is_err() {
                    return Ended::Over;
                }
                if self.book().renew(self.owner, clock::entropy) {
                    return Ended::Worn;
                }
                if !self.book().has_announced(self.owner) {
                    return Ended::Drains;
                }
                let report = self.book().report(self.owner, self.shared.now());
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
            self.catch_up(answer.revision).await;
            let answered = self.book().answer(self.owner, self.shared.now(), &answer);
            if let Err(unfit) = answered {
                return unfit.into();
            }
            if !std::mem::replace(has_answered, true) {
                tracing::info!(owner = self.address, "reporting to an owner of limits");
            }
        }
    }

    /// An owner that knows of changes that this gate does not know has etcd read first. Without etcd all goes on.
    async fn catch_up(&self, revision: u64) {
        let membership = &self.shared.membership;
        let view = membership.view();
        if revision <= view.as_of || !view.is_live {
            return;
        }
        if let Some(view) = membership.catch_up(revision, CATCH_UP).await {
            tracing::debug!(revision, as_of = view.as_of, "read etcd again for an owner's sake");
            // Owners that have come or gone are followed before the answer counts.
            tokio::task::yield_now().await;
        }
    }
}

fn is_loopback(address: &str) -> bool {
    address.parse::<SocketAddr>().is_ok_and(|address| address.ip().is_loopback())
}

/// How long a gate waits for etcd when an owner knows more: two ticks.
const CATCH_UP: Duration = Duration::from_millis(200);
/// How long a gate waits for an owner.
const PATIENCE: Duration = Duration::from_secs(1);
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
