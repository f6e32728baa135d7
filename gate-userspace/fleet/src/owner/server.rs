//! The owner's streams: each gate's reports, answered one by one.

use std::fmt::Display;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use gate_common::units::Nanos;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Response, Status, Streaming};

use super::accounts::{self, Accounts};
use super::connection::Peer;
use super::counters::{Counters, Event};
use super::gates::{Comer, Denied, Gates};
use super::lease::Lease;
use super::session::Session;
use crate::wire::{
    Account, Answer, Counter, Gate, Hello, MAX_MESSAGE, OLDEST, Quota, QuotaServer, Report, ResetReply,
    ResetRequest, Share, ShowReply, ShowRequest, VERSION, Welcome, common_version, encoded,
};
use gate_limits::{Limits, Name, WallClock};
use gate_system::clock;

/// The accounts and gates that all streams share.
#[derive(Debug)]
pub struct Owner {
    accounts: Arc<Accounts>,
    counters: Arc<Counters>,
    gates: Gates,
    /// `None` without etcd.
    lease: Option<Lease>,
}

/// The service, as tonic wants it.
#[derive(Clone, Debug)]
struct Service(Arc<Owner>);

type Answers = Pin<Box<dyn Stream<Item = Result<Answer, Status>> + Send>>;

impl Owner {
    /// An owner with these accounts, which decides while its lease is alive, if it needs one.
    #[must_use]
    pub fn new(accounts: Arc<Accounts>, counters: Arc<Counters>, lease: Option<Lease>) -> Arc<Self> {
        accounts.set_clock(WallClock::at(clock::monotonic(), clock::unix_millis()));
        Arc::new(Self { accounts, counters, gates: Gates::default(), lease })
    }

    /// Gives back what gates were granted that have left, and in time forgets them. To be called several times a second.
    pub fn release_left(&self) {
        let now = clock::monotonic();
        self.accounts.set_clock(WallClock::at(now, clock::unix_millis()));
        self.gates.release_left(now);
    }

    /// The service for a server of tonic's.
    pub(super) fn service(self: &Arc<Self>) -> QuotaServer<impl Quota + use<>> {
        QuotaServer::new(Service(Arc::clone(self))).max_decoding_message_size(MAX_MESSAGE)
    }

    /// True if it would decide a report, as far as it knows without asking etcd.
    pub(super) fn decides(&self) -> bool {
        self.lease.as_ref().is_none_or(Lease::decides)
    }

    pub(super) const fn accounts(&self) -> &Arc<Accounts> {
        &self.accounts
    }

    pub(super) const fn gates(&self) -> &Gates {
        &self.gates
    }

    /// The counters of events.
    pub(super) const fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Counts what was done to a peer, and says so now and then.
    pub(super) fn warn(&self, event: Event, peer: SocketAddr, why: &dyn Display) {
        if self.counters.is_due(event, clock::monotonic()) {
            let event = event.name();
            tracing::warn!(event, %peer, %why, "refused a peer; said once a second at most");
        }
    }

    /// Counts what ends the stream of a gate, and says so now and then.
    fn refuse(&self, event: Event, gate: &str, why: &dyn Display) {
        if self.counters.is_due(event, clock::monotonic()) {
            tracing::warn!(event = event.name(), gate, %why, "refused a report; said once a second at most");
        }
    }

    fn turn_away(&self, peer: &Peer, status: Status) -> Status {
        self.warn(Event::TurnedAway, peer.address, &status.message());
        status
    }

    fn begin(&self, peer: &Peer, hello: &Hello) -> Result<Session, Status> {
        if common_version(hello.version, hello.oldest).is_none() {
            let theirs = hello.version;
            let message = format!(
                "this owner speaks versions {OLDEST} to {VERSION}, the gate version {theirs}: upgrade the older one"
            );
            return Err(Status::failed_precondition(message));
        }
        let name = &hello.gate;
        if !(1..=MOST_NAME).contains(&name.len()) || name.chars().any(char::is_control) {
            return Err(Status::invalid_argument("a gate needs a name of at most 256 bytes"));
        }
        if !peer.is(name) {
            let message = format!("the certificate is not for {name:?}, as the gate calls itself");
            return Err(Status::permission_denied(message));
        }
        let interval = Nanos::from_micros(hello.interval_us.clamp(LEAST_INTERVAL_US, MOST_INTERVAL_US));
        let Hello { session: id, takes_over, drains, .. } = *hello;
        let comer = Comer { name, id, interval, takes_over, drains };
        self.gates.take(clock::monotonic(), comer).map_err(|denied| match denied {
            Denied::Connected => {
                Status::already_exists(format!("a gate named {name:?} is connected: name one otherwise"))
            }
            Denied::TooMany => Status::resource_exhausted("too many gates"),
        })
    }

    async fn answer(&self, name: &str, session: &mut Session, report: &Report) -> Result<Answer, Status> {
        let revision = match &self.lease {
            Some(lease) => lease.check(report.revision).await.map_err(|undecided| {
                self.refuse(Event::Undecided, name, &undecided);
                Status::unavailable(undecided.to_string())
            })?,
            None => 0,
        };
        let now = clock::monotonic();
        if !report.introductions.is_empty() && self.accounts.room().is_scarce() {
            self.gates.end_left();
        }
        let answer = session.report(&self.accounts, &self.counters, now, report);
        let answer = answer.map_err(|fault| {
            self.refuse(Event::Fault, name, &fault);
            let code = if fault.ends_session() { Code::ResourceExhausted } else { Code::InvalidArgument };
            Status::new(code, fault.to_string())
        })?;
        self.gates.seen(now, name, session);
        Ok(Answer { gates: self.gates.sharing() as u32, revision, ..answer })
    }

    fn show(&self, request: &ShowRequest) -> ShowReply {
        let now = clock::monotonic();
        let known = self.gates.known();
        let gate = |number| known.iter().find(|gate| gate.number == number).map(|gate| gate.name.clone());
        let mut all = self.accounts.all();
        let total = all.len() as u64;
        all.retain(|account| account.name.as_str().starts_with(&request.prefix));
        let most = request.limit.clamp(1, MOST_SHOWN) as usize;
        if request.most_used {
            keep_most_used(&mut all, most, now);
        } else {
            all.sort_unstable_by(|a, b| a.name.as_str().cmp(b.name.as_str()));
        }
        let rules = self.accounts.rules();
        let shown = all.iter().take(most).map(|account| {
            let state = account.lock_at(now, self.accounts.wall());
            let rule = rules.rules.find(&account.name).map(|rule| rule.pattern.as_str().to_owned());
            let limits = state.limits.map(Limits::evenly);
            Account {
                name: account.name.as_str().to_owned(),
                rule: rule.unwrap_or_default(),
                per_sec: limits.map_or(0, |limits| encoded(limits.rate).0),
                nano_per_sec: limits.map_or(0, |limits| encoded(limits.rate).1),
                burst_us: limits.map_or(0, |limits| limits.burst_ns / 1_000),
                level: state.shares.left(now),
                held_back: state.shares.is_held_back(now),
                demand_per_sec: state.shares.demand(now),
                charged: state.charged,
                refused: state.refused,
                shares: state
                    .shares
                    .gates(now)
                    .map(|(number, demand_per_sec, granted)| Share {
                        gate: gate(number).unwrap_or_default(),
                        demand_per_sec,
                        granted_ppm: (granted * 1e6) as u32,
                    })
                    .collect(),
            }
        });
        let accounts = shown.collect();
        let gates = known.iter().map(|gate| Gate {
            name: gate.name.clone(),
            connected: gate.is_connected,
            number: gate.charged,
            limits: gate.names as u64,
        });
        let counters = Event::ALL
            .map(|event| Counter { name: event.name().to_owned(), count: self.counters.get(event) });
        let kept = self.accounts.kept().unwrap_or_default();
        ShowReply { accounts, total, gates: gates.collect(), counters: counters.into(), kept }
    }

    /// Fills the bucket of one account, for somebody on the owner's own machine: who is elsewhere may be a gate, and could have no limit so.
    fn reset(&self, peer: &Peer, request: &ResetRequest) -> Result<ResetReply, Status> {
        if !peer.is_local {
            return Err(Status::permission_denied("an account is reset from the owner's own machine only"));
        }
        let ResetRequest { name, operator, why } = request;
        if [operator, why].into_iter().any(|text| !(1..=MOST_NAME).contains(&text.len())) {
            return Err(Status::invalid_argument(
                "it takes who asks for it and why, in at most 256 bytes each",
            ));
        }
        let name =
            Name::parse(name).map_err(|error| Status::invalid_argument(format!("the name {error}")))?;
        let Some(account) = self.accounts.find(&name) else { return Ok(ResetReply::default()) };
        let now = clock::monotonic();
        let level = account.lock_at(now, self.accounts.wall()).reset(now);
        self.counters.count(Event::Reset);
        tracing::warn!(limit = name.as_str(), left = level, ?operator, ?why, peer = %peer.address, "an account was reset");
        Ok(ResetReply { is_known: true, level })
    }
}

/// Keeps so many accounts, in order: those that gates are asked for most at present, then those with the most charges and refusals.
pub(super) fn keep_most_used(all: &mut Vec<Arc<accounts::Account>>, most: usize, now: Nanos) {
    let used = |account: &Arc<accounts::Account>| {
        let state = account.lock();
        (state.shares.demand(now), state.charged.saturating_add(state.refused))
    };
    let mut by_use: Vec<_> = all.drain(..).map(|account| (used(&account), account)).collect();
    let order = |(a, one): &(_, Arc<accounts::Account>), (b, other): &(_, Arc<accounts::Account>)| {
        Ord::cmp(b, a).then_with(|| one.name.cmp(&other.name))
    };
    if by_use.len() > most {
        by_use.select_nth_unstable_by(most, order);
        by_use.truncate(most);
    }
    by_use.sort_unstable_by(order);
    all.extend(by_use.into_iter().map(|(_, account)| account));
}

#[tonic::async_trait]
impl Quota for Service {
    type ExchangeStream = Answers;

    async fn exchange(&self, request: Request<Streaming<Report>>) -> Result<Response<Answers>, Status> {
        let owner = Arc::clone(&self.0);
        let peer = request.extensions().get::<Peer>().cloned();
        let peer = peer.ok_or_else(|| Status::internal("a connection without a peer"))?;
        let mut reports = request.into_inner();
        let turn_away = |status| owner.turn_away(&peer, status);
        let first = timeout(PATIENCE, reports.message()).await;
        let first = first.map_err(|_| turn_away(Status::deadline_exceeded("no word from the gate")))??;
        let Some(hello) = first.and_then(|first| first.hello) else {
            return Err(turn_away(Status::invalid_argument("the first message says who reports")));
        };
        let session = owner.begin(&peer, &hello).map_err(turn_away)?;
        peer.place.keep();
        owner.counters.count(Event::Connected);
        tracing::info!(gate = hello.gate, peer = %peer.address, resumed = session.charged > 0, "a gate reports");
        let (answers, stream) = mpsc::channel(1);
        let stream_session = StreamSession {
            owner: Arc::clone(&owner),
            name: hello.gate.clone(),
            session: Some(session),
            is_over: false,
        };
        tokio::spawn(async move {
            if stream_session.serve(hello, reports, answers).await.is_err() {
                owner.warn(Event::Unread, peer.address, &"it does not read what it is answered");
            }
            // Time for the last answer. Who has more to report connects anew.
            sleep(LAST_ANSWER).await;
            peer.place.close();
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    async fn show(&self, request: Request<ShowRequest>) -> Result<Response<ShowReply>, Status> {
        Ok(Response::new(self.0.show(request.get_ref())))
    }

    async fn reset(&self, request: Request<ResetRequest>) -> Result<Response<ResetReply>, Status> {
        let peer = request.extensions().get::<Peer>().cloned();
        let peer = peer.ok_or_else(|| Status::internal("a connection without a peer"))?;
        self.0.reset(&peer, request.get_ref()).map(Response::new)
    }
}

/// A session while a stream has it.
struct StreamSession {
    owner: Arc<Owner>,
    name: String,
    session: Option<Session>,
    /// True once the session has met its end.
    is_over: bool,
}

/// A gate does not read its answers.
struct Unread;

impl StreamSession {
    async fn serve(
        mut self,
        hello: Hello,
        mut reports: Streaming<Report>,
        answers: mpsc::Sender<Result<Answer, Status>>,
    ) -> Result<(), Unread> {
        let Some(session) = &mut self.session else { return Ok(()) };
        let version = common_version(hello.version, hello.oldest).unwrap_or(VERSION);
        let welcome = Welcome { version, charged: session.charged, ended: session.ended };
        let mut answer = Ok(Answer { welcome: Some(welcome), ..Answer::default() });
        let interval = Duration::from_micros(hello.interval_us.min(MOST_INTERVAL_US));
        loop {
            let has_ended = answer.is_err();
            // Who does not read its answers is not waited for.
            match timeout(PATIENCE, answers.send(answer)).await {
                Ok(Ok(())) if !has_ended => {}
                Ok(_) => return Ok(()),
                Err(_) => return Err(Unread),
            }
            let report = match timeout(session.release_after().into(), reports.message()).await {
                Ok(report) => report,
                Err(_) => {
                    session.release();
                    match timeout(PATIENCE.max(interval * 20), reports.message()).await {
                        Ok(report) => report,
                        Err(_) => return Ok(()),
                    }
                }
            };
            answer = match report {
                Ok(Some(report)) => {
                    let answer = self.owner.answer(&self.name, session, &report).await;
                    self.is_over =
                        answer.as_ref().is_err_and(|status| status.code() == Code::ResourceExhausted);
                    answer
                }
                Err(status) if is_message(&status) => {
                    self.owner.refuse(Event::Fault, &self.name, &status.message());
                    Err(status)
                }
                Ok(None) | Err(_) => return Ok(()),
            };
        }
    }
}

/// True if a message came that cannot be read: too long, or none of these.
fn is_message(status: &Status) -> bool {
    matches!(status.code(), Code::OutOfRange | Code::Internal)
}

impl Drop for StreamSession {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            self.owner.gates.put_back(clock::monotonic(), &self.name, session, self.is_over);
            tracing::info!(gate = self.name, "a gate no longer reports");
        }
    }
}

/// The longest time that a gate may take for its first word, or to read an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long the last answer of a stream may take to be read, until its connection is closed.
const LAST_ANSWER: Duration = Duration::from_secs(1);
const LEAST_INTERVAL_US: u64 = 1_000;
const MOST_INTERVAL_US: u64 = 10_000_000;
const MOST_NAME: usize = 256;
/// The most accounts of one answer.
const MOST_SHOWN: u32 = 10_000;
