//! Streams of usage reports: each Envoy is sent the share of a limit that it may give out by itself.
//!
//! A stream's first report says its domain. A bucket's identifier is a name, whose entries stand in the order of their keys. The requests that an Envoy
//! has let through are charged to the name's bucket afterwards, so that whoever asks about single requests gets the rest.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gate_common::units::{NANOS_PER_SEC, Nanos};
use tokio::sync::{mpsc, watch};
use tokio::time::{interval, timeout};
use tonic::codegen::tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Response, Status, Streaming};

use super::counters::{Counters, Event};
use super::decide::Quotas;
use super::descriptor::{name_of, price};
use super::shares::{Action, AllShares, Shares, StreamId, Tokens, Usage, Whole};
use super::wire::rlqs::rate_limit_quota_response::BucketAction;
use super::wire::rlqs::rate_limit_quota_response::bucket_action::{
    AbandonAction, BucketAction as Assigned, QuotaAssignmentAction,
};
use super::wire::rlqs::rate_limit_quota_service_server::RateLimitQuotaService;
use super::wire::rlqs::rate_limit_quota_usage_reports::BucketQuotaUsage;
use super::wire::rlqs::rate_limit_strategy::{BlanketRule, Strategy};
use super::wire::rlqs::{
    BucketId, Duration, RateLimitQuotaResponse, RateLimitQuotaUsageReports, RateLimitStrategy, TokenBucket,
    UInt32Value,
};
use crate::clock;
use crate::limits::{Charge, Limits, Name, Reserved};
use crate::policy::rate::Rate;

/// `envoy.service.rate_limit_quota.v3.RateLimitQuotaService`.
#[derive(Debug)]
pub(super) struct Streams {
    shared: Arc<Shared>,
    stopped: watch::Receiver<()>,
}

/// The state that all streams share.
#[derive(Debug)]
struct Shared {
    quotas: Arc<Quotas>,
    counters: Arc<Counters>,
    next: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    shares: AllShares,
    open: HashMap<StreamId, Open>,
}

/// A stream that is open.
#[derive(Debug)]
struct Open {
    to: mpsc::Sender<Result<RateLimitQuotaResponse, Status>>,
    /// The names that it reports, as it spells them.
    names: HashMap<Name, BucketId>,
}

impl Streams {
    pub(super) fn new(quotas: Arc<Quotas>, counters: Arc<Counters>, stopped: watch::Receiver<()>) -> Self {
        let shared = Arc::new(Shared { quotas, counters, next: AtomicU64::new(0), state: Mutex::default() });
        Self { shared, stopped }
    }

    /// Sends assignments whenever other parts of limits are reserved, until the server is stopped.
    pub(super) fn follow_reserved(&self) -> impl Future<Output = ()> + use<> {
        let shared = Arc::clone(&self.shared);
        let mut stopped = self.stopped.clone();
        async move {
            let mut looks = interval(FOLLOW_EVERY);
            loop {
                tokio::select! {
                    _ = looks.tick() => shared.follow_reserved(clock::monotonic()),
                    _ = stopped.changed() => return,
                }
            }
        }
    }
}

#[tonic::async_trait]
impl RateLimitQuotaService for Streams {
    type StreamRateLimitQuotasStream = ReceiverStream<Result<RateLimitQuotaResponse, Status>>;

    async fn stream_rate_limit_quotas(
        &self,
        request: Request<Streaming<RateLimitQuotaUsageReports>>,
    ) -> Result<Response<Self::StreamRateLimitQuotasStream>, Status> {
        let (to, responses) = mpsc::channel(MAX_UNREAD);
        let Some(stream) = self.shared.open(to.clone()) else {
            self.shared.counters.count(Event::StreamRefused);
            return Err(Status::resource_exhausted(format!("there may be {MAX_STREAMS} streams")));
        };
        let shared = Arc::clone(&self.shared);
        let mut stopped = self.stopped.clone();
        tokio::spawn(async move {
            let reports = request.into_inner();
            let end = tokio::select! {
                end = stream.serve(reports, &shared) => end,
                () = to.closed() => None,
                _ = stopped.changed() => None,
            };
            if let Some(status) = end {
                // Whoever reads nothing does not read this either.
                let _ = to.try_send(Err(status));
            }
        });
        Ok(Response::new(ReceiverStream::new(responses)))
    }
}

/// A stream's place, which goes with it.
struct Place {
    id: StreamId,
    shared: Arc<Shared>,
}

impl Place {
    /// Reads reports until there are no more; returns why the stream is ended, if the peer has not ended it.
    async fn serve(
        &self,
        mut reports: Streaming<RateLimitQuotaUsageReports>,
        shared: &Shared,
    ) -> Option<Status> {
        let mut domain = String::new();
        loop {
            let report = match timeout(SILENCE.into(), reports.message()).await {
                Err(_) => {
                    shared.counters.count(Event::Idle);
                    return Some(Status::deadline_exceeded("nothing was reported for 10 minutes"));
                }
                Ok(Ok(Some(report))) => report,
                // Too large, or no report at all.
                Ok(Err(status)) if matches!(status.code(), Code::OutOfRange | Code::Internal) => {
                    shared.counters.count(Event::Invalid);
                    return Some(status);
                }
                Ok(_) => return None,
            };
            if let Err(wrong) = follow(&mut domain, &report) {
                shared.counters.count(Event::Invalid);
                return Some(Status::invalid_argument(wrong));
            }
            let now = clock::monotonic();
            if let Err(status) = shared.take_over(self.id, &domain, report.bucket_quota_usages, now) {
                return Some(status);
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.shared.close(self.id);
    }
}

/// The first report says the domain, and later ones no other.
fn follow(domain: &mut String, report: &RateLimitQuotaUsageReports) -> Result<(), String> {
    if report.bucket_quota_usages.len() > MAX_NAMES {
        return Err(format!("a report has more than {MAX_NAMES} buckets"));
    }
    match (domain.is_empty(), report.domain.is_empty()) {
        (true, true) => Err("the first report has no domain".to_owned()),
        (false, false) if *domain != report.domain => Err("the domain of a stream cannot change".to_owned()),
        (true, false) => {
            domain.clone_from(&report.domain);
            Ok(())
        }
        _ => Ok(()),
    }
}

impl Shared {
    fn open(self: &Arc<Self>, to: mpsc::Sender<Result<RateLimitQuotaResponse, Status>>) -> Option<Place> {
        let id = StreamId(self.next.fetch_add(1, Ordering::Relaxed));
        let mut state = self.state();
        if state.open.len() >= MAX_STREAMS {
            return None;
        }
        state.open.insert(id, Open { to, names: HashMap::new() });
        self.counters.streams.store(state.open.len() as u64, Ordering::Relaxed);
        Some(Place { id, shared: Arc::clone(self) })
    }

    fn close(&self, id: StreamId) {
        let mut state = self.state();
        if let Some(open) = state.open.remove(&id) {
            state.shares.leave(id, open.names.keys(), clock::monotonic());
        }
        self.counters.streams.store(state.open.len() as u64, Ordering::Relaxed);
    }

    /// Takes a report over, and sends assignments to those whose share changes.
    fn take_over(
        &self,
        id: StreamId,
        domain: &str,
        usages: Vec<BucketQuotaUsage>,
        now: Nanos,
    ) -> Result<(), Status> {
        let mut state = self.state();
        if !state.open.contains_key(&id) {
            return Err(Status::resource_exhausted("the assignments of this stream are not read"));
        }
        let mut actions: HashMap<StreamId, Vec<(Name, Action)>> = HashMap::new();
        for usage in usages {
            let Some(name) = self.name(&mut state, id, domain, usage.bucket_id)? else { continue };
            self.counters.count(Event::Report);
            let elapsed = usage.time_elapsed.map_or(Nanos::ZERO, nanos);
            self.charge(&name, usage.num_requests_allowed, now);
            let usage =
                Usage { allowed: usage.num_requests_allowed, denied: usage.num_requests_denied, elapsed };
            let Some(shares) = state.shares.of(&name, now) else {
                self.counters.count(Event::BucketRefused);
                continue;
            };
            for (to, action) in
                self.divide(&name, shares, now, |shares, whole| shares.report(id, usage, whole, now))
            {
                actions.entry(to).or_default().push((name.clone(), action));
            }
        }
        for (to, actions) in actions {
            self.send(&mut state, to, actions);
        }
        Ok(())
    }

    /// Sends assignments of names of whose limits another part is reserved.
    fn follow_reserved(&self, now: Nanos) {
        let Some(reservations) = self.quotas.table.reservations() else { return };
        let changed = reservations.take_changed();
        if changed.is_empty() {
            return;
        }
        let mut state = self.state();
        let mut actions: HashMap<StreamId, Vec<(Name, Action)>> = HashMap::new();
        for name in changed {
            let Some(shares) = state.shares.get_mut(&name) else { continue };
            for (to, action) in self.divide(&name, shares, now, |shares, whole| shares.follow(whole, now)) {
                actions.entry(to).or_default().push((name.clone(), action));
            }
        }
        for (to, actions) in actions {
            self.send(&mut state, to, actions);
        }
    }

    /// Divides a name's limit, or the part of it that is reserved for this gate.
    fn divide(
        &self,
        name: &Name,
        shares: &mut Shares,
        now: Nanos,
        divide: impl FnOnce(&mut Shares, Whole) -> Vec<(StreamId, Action)>,
    ) -> Vec<(StreamId, Action)> {
        let table = &self.quotas.table;
        let rules = table.rules();
        let rule = rules.find(name);
        if self.quotas.is_shadowed() || rule.is_some_and(|rule| rule.is_shadow) {
            return divide(shares, Whole::Unlimited);
        }
        // A window's share is a bucket that fills evenly.
        let own = rule.map(|rule| rule.limits.evenly());
        let Some((reservations, own)) = table.reservations().zip(own) else {
            let standing = table.standing(name, now);
            let whole =
                standing.map_or(Whole::Unlimited, |standing| Whole::Limited(standing.limits.evenly()));
            return divide(shares, whole);
        };
        reservations.assign(name, |reserved| {
            let whole = match reserved {
                Reserved::Unknown => Whole::Unknown,
                Reserved::Own => Whole::Limited(own),
                Reserved::Part { per_sec, burst } => Whole::Limited(part_of(own, per_sec, burst)),
            };
            (divide(shares, whole), shares.assigned(own.rate.units_per_sec().unwrap_or(u64::MAX), now))
        })
    }

    /// The name of a bucket, which the stream reports from now on; `None` if it is one too many.
    fn name(
        &self,
        state: &mut State,
        id: StreamId,
        domain: &str,
        bucket: Option<BucketId>,
    ) -> Result<Option<Name>, Status> {
        let invalid = |what: String| {
            self.counters.count(Event::Invalid);
            Status::invalid_argument(what)
        };
        let bucket = bucket.filter(|id| !id.bucket.is_empty());
        let bucket = bucket.ok_or_else(|| invalid("a usage has no bucket".to_owned()))?;
        let mut entries: Vec<_> =
            bucket.bucket.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        entries.sort_unstable();
        let (name, was_hashed) = name_of(domain, entries.into_iter(), None, &self.quotas.table.rules())
            .map_err(|error| invalid(format!("a bucket {error}")))?;
        if was_hashed {
            self.counters.count(Event::Hashed);
        }
        let Some(open) = state.open.get_mut(&id) else { return Ok(None) };
        if !open.names.contains_key(&name) {
            if open.names.len() >= MAX_NAMES {
                self.counters.count(Event::BucketRefused);
                return Ok(None);
            }
            open.names.insert(name.clone(), bucket);
        }
        Ok(Some(name))
    }

    /// Charges what an Envoy has let through.
    fn charge(&self, name: &Name, allowed: u64, now: Nanos) {
        let table = &self.quotas.table;
        let charge = Charge { name, cost: price(1), is_question: true, limits: None };
        let _ = table.charge(&[charge], now);
        if allowed > 0 {
            table.settle(name, price(allowed), now);
        }
    }

    fn send(&self, state: &mut State, to: StreamId, actions: Vec<(Name, Action)>) {
        let Some(open) = state.open.get_mut(&to) else { return };
        let mut message = RateLimitQuotaResponse::default();
        for (name, action) in actions {
            let bucket_id = if action == Action::Abandon {
                self.counters.count(Event::Abandoned);
                open.names.remove(&name)
            } else {
                self.counters.count(Event::Assignment);
                open.names.get(&name).cloned()
            };
            let bucket_action = Some(assigned(action));
            message.bucket_action.push(BucketAction { bucket_id, bucket_action });
        }
        if open.to.try_send(Ok(message)).is_err() {
            // It reads nothing: its shares run out, and are others' then.
            self.counters.count(Event::Unread);
            if let Some(open) = state.open.remove(&to) {
                state.shares.leave(to, open.names.keys(), clock::monotonic());
            }
        }
    }

    /// Nothing panics while it is held.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An action in Envoy's terms.
fn assigned(action: Action) -> Assigned {
    let assign = |ttl: Nanos, strategy| {
        Assigned::QuotaAssignmentAction(QuotaAssignmentAction {
            assignment_time_to_live: Some(seconds(ttl.0 / NANOS_PER_SEC)),
            rate_limit_strategy: Some(RateLimitStrategy { strategy: Some(strategy) }),
        })
    };
    match action {
        Action::Abandon => Assigned::AbandonAction(AbandonAction {}),
        Action::AllowAll { ttl } => assign(ttl, Strategy::BlanketRule(BlanketRule::AllowAll as i32)),
        Action::Assign { tokens: Tokens { per_fill: 0, .. }, ttl } => {
            assign(ttl, Strategy::BlanketRule(BlanketRule::DenyAll as i32))
        }
        Action::Assign { tokens: Tokens { most, per_fill, fill_secs }, ttl } => {
            let bucket = TokenBucket {
                max_tokens: most,
                tokens_per_fill: Some(UInt32Value { value: per_fill }),
                fill_interval: Some(seconds(u64::from(fill_secs))),
            };
            assign(ttl, Strategy::TokenBucket(bucket))
        }
    }
}

/// A part of a limit that gates share, within gate's own.
fn part_of(own: Limits, per_sec: u64, burst: Nanos) -> Limits {
    let rate = own.rate.min(Rate::per_sec(per_sec));
    Limits { rate, burst_ns: own.burst_ns.min(burst.0), ..own }
}

fn seconds(seconds: u64) -> Duration {
    Duration { seconds: i64::try_from(seconds).unwrap_or(i64::MAX), nanos: 0 }
}

/// A time that a peer says; one below zero is none.
fn nanos(time: Duration) -> Nanos {
    let seconds = u64::try_from(time.seconds).unwrap_or(0);
    let nanos = u64::try_from(time.nanos).unwrap_or(0);
    Nanos::from_secs(seconds).saturating_add(Nanos(nanos))
}

/// Streams at a time.
const MAX_STREAMS: usize = 256;
/// Names that a stream may report.
const MAX_NAMES: usize = 1_000;
/// Assignments that may wait to be read.
const MAX_UNREAD: usize = 64;
/// How often it is looked for parts that have changed: once a tick, as they do.
const FOLLOW_EVERY: std::time::Duration = std::time::Duration::from_millis(100);
/// A stream without a report for this long is ended.
const SILENCE: Nanos = Nanos::from_secs(600);
