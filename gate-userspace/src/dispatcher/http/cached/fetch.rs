//! A fetch on behalf of all who ask for the same.
//!
//! A fetch runs in a task of its own: a client that leaves, or reads slowly, holds up nobody who follows. Its body is gathered, up to
//! the longest that is kept; one that is longer passes to the client that leads, as it comes.
//!
//! A fetch carries the fields of the key and the client's address alone. An answer that turns out to be one client's own
//! goes to the client that leads only if its request had no other fields; else that request is made again, with all of them, but
//! for an origin that fails: nothing that it says of the request is another client's.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;

use hyper::body::{Body, Bytes};
use hyper::header::CONTENT_RANGE;
use hyper::http::{request, response};
use hyper::{Response, StatusCode};
use tokio::sync::oneshot;
use tokio::task::yield_now;

use super::asked::{self, Lookup};
use super::serve::Source;
use crate::cache::{
    Cache, CacheEvent, Digest, Fields, Gathered, Holder, Lead, NoRoom, Outcome, Pieces, StaleUse,
    StoredResponse, ToWrite, keyed_request, says_of_keeping,
};
use crate::clock;
use crate::dispatcher::http::answer::Refused;
use crate::dispatcher::http::forward::pass_on;
use crate::dispatcher::http::head::UntilClosed;
use crate::dispatcher::http::reply_body::ReplyBody;
use crate::dispatcher::http::under_way::UnderWay;

/// A kept answer that has to be asked about, with the fields that do.
pub(super) type Stale = (Arc<StoredResponse>, Fields);

/// The kept answer with its body, if it may be given to this request while the origin fails.
pub(super) async fn on_error(
    cache: &Cache,
    stale: Option<&Stale>,
    request: &request::Parts,
) -> Option<(Arc<StoredResponse>, Bytes)> {
    let silent = cache.settings.stale.into();
    let (kept, _) =
        stale.filter(|(kept, _)| kept.may_be_given_on_error(request, silent, clock::realtime()))?;
    let body = cache.body(kept).await?;
    cache.count(CacheEvent::StaleGiven);
    Some((Arc::clone(kept), body))
}

/// True for an answer by which an origin says that it fails, whatever it is asked (RFC 5861, 4).
pub(super) fn is_failure(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::INTERNAL_SERVER_ERROR
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT
    )
}

/// A fetch that this request leads.
pub(super) struct Fetch {
    cache: Arc<Cache>,
    asked: Lookup,
    /// The client's own request, in the place of one for all.
    own: Option<request::Parts>,
    stale: Option<Stale>,
    lead: Lead<StoredResponse>,
    holder: Holder,
}

/// The result for the request that leads.
pub(super) enum Fetched {
    Kept(Arc<StoredResponse>, Bytes, Source),
    /// The store's answer itself, as it comes.
    Passing(Response<ReplyBody>),
    Refused(Refused),
    /// The request has to be made anew: what was kept is gone, or it is not for others.
    Again,
}

/// A body that has been gathered, or not.
pub(in crate::dispatcher::http) enum Gathering {
    Whole(Bytes, Digest, Gathered),
    /// The pieces that have come of one that is too long.
    TooLong(VecDeque<Bytes>, Gathered),
    /// The pieces that have come before there was no more room.
    NoRoom(NoRoom, VecDeque<Bytes>, Gathered),
    BrokenOff,
}

impl Fetch {
    pub(super) fn new(
        cache: Arc<Cache>,
        (asked, own): (Lookup, Option<request::Parts>),
        stale: Option<Stale>,
        lead: Lead<StoredResponse>,
        holder: Holder,
    ) -> Self {
        Self { cache, asked, own, stale, lead, holder }
    }

    /// Fetches by a request that has been admitted.
    pub(super) async fn start(self, under_way: UnderWay) -> Fetched {
        let (sender, receiver) = oneshot::channel();
        tokio::task::spawn_local(async move {
            // The client may have left.
            let _ = sender.send(self.run(under_way).await);
        });
        let failed = || Fetched::Refused(Refused::lost(StatusCode::BAD_GATEWAY));
        receiver.await.unwrap_or_else(|_| failed())
    }

    /// Fetches by a request that has been admitted, for nobody who waits.
    pub(super) fn start_refresh(self, under_way: UnderWay) {
        tokio::task::spawn_local(async move { drop(self.run(under_way).await) });
    }

    async fn run(self, under_way: UnderWay) -> Fetched {
        self.cache.count(CacheEvent::Fetched);
        let own = self.own.clone();
        let Some(mut request) = own.or_else(|| self.asked.to_origin()) else { return Fetched::Again };
        if let Some((_, validators)) = &self.stale {
            request.headers.extend(validators.iter().cloned());
        }
        let result = pass_on(under_way, request, None).await;
        let has_failed = match &result {
            Ok(response) => is_failure(response.status()),
            Err(refused) => !refused.is_for_the_tenant(),
        };
        if has_failed
            && let Some((kept, body)) = on_error(&self.cache, self.stale.as_ref(), &self.asked.request).await
        {
            return Fetched::Kept(kept, body, Source::Stale(StaleUse::OnError));
        }
        let (head, body) = match result {
            Ok(response) => response.into_parts(),
            Err(refused) => return Fetched::Refused(refused),
        };
        match &self.stale {
            Some((stale, _)) if head.status == StatusCode::NOT_MODIFIED => {
                let stale = Arc::clone(stale);
                drop(body);
                self.not_modified(&stale, &head).await
            }
            _ => self.modified(head, body).await,
        }
    }

    /// The origin says that what is kept still holds.
    async fn not_modified(self, stale: &Arc<StoredResponse>, head: &response::Parts) -> Fetched {
        let is_excluded = self.is_excluded();
        let kept_under = self.kept_under();
        let Self { cache, asked, lead, own, .. } = self;
        let now = clock::realtime();
        let body = cache.body(stale).await;
        let merged = stale.merged(&head.headers);
        let (Some(body), Some(merged)) = (body, merged) else {
            cache.forget(&asked.key, &asked.fields);
            return Fetched::Again;
        };
        cache.count(CacheEvent::Revalidated);
        let newer = kept_under.and_then(|request| stale.revalidated(&request, head, now));
        let may_be_given = |newer: &StoredResponse| own.is_some() || newer.is_for_all() || !asked.says_more();
        let Some(newer) = newer.filter(may_be_given) else {
            // It holds, and is not to be kept any longer, or not for this client.
            cache.forget(&asked.key, &asked.fields);
            lead.complete(Outcome::NotShared);
            if is_excluded {
                cache.note_unshared(&asked.key, &asked.fields, clock::monotonic());
                return Fetched::Again;
            }
            let mut once = StoredResponse::clone(stale);
            once.headers = merged;
            return Fetched::Kept(Arc::new(once), body, Source::Revalidated);
        };
        let to_write = cache.to_write(stale, &newer, now).await.unwrap_or_else(|| ToWrite::All(body.clone()));
        let newer = Arc::new(newer);
        note_shared(&cache, &asked, &newer);
        keep(&cache, &asked, &newer, to_write, &lead);
        lead.complete(Outcome::Stored(Arc::clone(&newer), body.clone()));
        Fetched::Kept(newer, body, Source::Revalidated)
    }

    /// The origin gives an answer, of which it is to be seen if it may be kept.
    async fn modified(self, head: response::Parts, mut body: ReplyBody) -> Fetched {
        let now = clock::realtime();
        let kept = self.kept_under().and_then(|request| {
            let nothing = (Digest::of(b""), 0);
            let answer = (head.status, head.headers.clone());
            StoredResponse::new(&request, self.asked.fields.clone(), answer, now, nothing)
        });
        let is_bounded = head.extensions.get::<UntilClosed>().is_none();
        // One that was asked for by the client's own request says so itself.
        let is_own = self.own.is_some();
        let may_be_given = |kept: &StoredResponse| is_own || kept.is_for_all() || !self.asked.says_more();
        let Some(mut kept) = kept.filter(|kept| is_bounded && may_be_given(kept)) else {
            return self.pass_to_leader(CacheEvent::NotStored, Response::from_parts(head, body));
        };
        let longest = self.cache.settings.max_object;
        if body.size_hint().lower() > longest {
            return self.pass_to_leader(CacheEvent::TooLong, Response::from_parts(head, body));
        }
        match gather(&self.cache, self.holder, &mut body, longest).await {
            Gathering::Whole(bytes, digest, _gathered) => {
                kept.digest = digest;
                kept.len = bytes.len() as u64;
                let same = self.stale.as_ref().filter(|(stale, _)| stale.digest == digest);
                let to_write = match same {
                    Some((stale, _)) => {
                        self.cache.count(CacheEvent::Unchanged);
                        self.cache.to_write(stale, &kept, now).await
                    }
                    None => None,
                };
                let to_write = to_write.unwrap_or_else(|| ToWrite::All(bytes.clone()));
                let kept = Arc::new(kept);
                note_shared(&self.cache, &self.asked, &kept);
                keep(&self.cache, &self.asked, &kept, to_write, &self.lead);
                self.lead.complete(Outcome::Stored(Arc::clone(&kept), bytes.clone()));
                Fetched::Kept(kept, bytes, Source::Origin)
            }
            Gathering::TooLong(pieces, gathered) => {
                let body = body.after(pieces, gathered);
                self.pass_to_leader(CacheEvent::TooLong, Response::from_parts(head, body))
            }
            Gathering::NoRoom(_, pieces, gathered) => {
                let body = body.after(pieces, gathered);
                self.pass_to_leader(CacheEvent::NoRoom, Response::from_parts(head, body))
            }
            Gathering::BrokenOff => {
                self.cache.count(CacheEvent::BrokenOff);
                Fetched::Refused(Refused::lost(StatusCode::BAD_GATEWAY))
            }
        }
    }

    /// The request that its answer is kept under: as the origin saw it.
    fn kept_under(&self) -> Option<request::Parts> {
        match &self.own {
            Some(own) => Some(asked::keyed(own.clone(), &self.asked.fields)),
            None => request_of(&self.asked),
        }
    }

    /// True if the client has said more than the origin was told.
    fn is_excluded(&self) -> bool {
        self.own.is_none() && self.asked.says_more()
    }

    /// Passes an answer to the client that leads, unless it may depend on what that says beside the key. What was kept before it
    /// no longer holds, unless the origin has failed.
    fn pass_to_leader(self, why: CacheEvent, response: Response<ReplyBody>) -> Fetched {
        let is_ones_own = why == CacheEvent::NotStored && self.is_excluded();
        // Others may wait for it by now.
        let is_waited_for = why == CacheEvent::NotStored
            && self.own.is_some()
            && self.cache.is_shareable(&self.asked.key, &self.asked.fields, None, clock::monotonic());
        let Self { cache, asked, stale, lead, .. } = self;
        cache.count(why);
        let status = response.status();
        if stale.is_some() && !status.is_server_error() {
            cache.forget(&asked.key, &asked.fields);
        }
        let is_overloaded = is_failure(status) && status != StatusCode::INTERNAL_SERVER_ERROR
            || status == StatusCode::TOO_MANY_REQUESTS;
        // Another time there may be room, or an answer.
        if why == CacheEvent::TooLong || (is_ones_own || is_waited_for) && !is_overloaded {
            cache.note_unshared(&asked.key, &asked.fields, clock::monotonic());
        }
        lead.complete(Outcome::NotShared);
        // One that fails is not asked again at once.
        let is_for_others = is_ones_own && !is_overloaded && !status.is_server_error();
        if is_for_others { Fetched::Again } else { Fetched::Passing(response) }
    }
}

/// Notes that answers to what is asked may be shared, if this one may.
fn note_shared(cache: &Cache, asked: &Lookup, kept: &StoredResponse) {
    if kept.is_shareable() {
        cache.note_shared(&asked.key, &asked.fields, clock::monotonic());
    }
}

/// The same of an answer to a client's own request, by its head. A 206 and a 304 say it of the whole answer.
pub(super) fn note_if_shared(cache: &Cache, asked: &Lookup, head: &Response<ReplyBody>) {
    if !says_of_keeping(head.headers()) {
        return;
    }
    let status = match head.status() {
        StatusCode::PARTIAL_CONTENT | StatusCode::NOT_MODIFIED => StatusCode::OK,
        status => status,
    };
    let mut headers = head.headers().clone();
    headers.remove(CONTENT_RANGE);
    let is_bounded = head.extensions().get::<UntilClosed>().is_none();
    let kept = request_of(asked).filter(|_| is_bounded).and_then(|request| {
        let nothing = (Digest::of(b""), 0);
        StoredResponse::new(&request, asked.fields.clone(), (status, headers), clock::realtime(), nothing)
    });
    kept.iter().for_each(|kept| note_shared(cache, asked, kept));
}

/// Keeps an answer, unless what it answers has been changed since it was asked for.
fn keep(
    cache: &Cache,
    asked: &Lookup,
    kept: &Arc<StoredResponse>,
    to_write: ToWrite,
    lead: &Lead<StoredResponse>,
) {
    if lead.is_outdated() {
        return;
    }
    cache.insert(&asked.key, kept, to_write, clock::realtime());
    // Another thread may have said so meanwhile.
    if lead.is_outdated() {
        cache.invalidate(&asked.key);
    }
}

/// Gathers a body of at most `longest` bytes.
pub(in crate::dispatcher::http) async fn gather<B: Body<Data = Bytes> + Unpin>(
    cache: &Arc<Cache>,
    holder: Holder,
    body: &mut B,
    longest: u64,
) -> Gathering {
    let mut gathered = cache.gathered(holder);
    let mut pieces = Pieces::default();
    let mut until_yield = YIELD_EVERY;
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await {
        let Ok(frame) = frame else { return Gathering::BrokenOff };
        // Trailers are not kept.
        let Ok(piece) = frame.into_data() else { continue };
        let room = gathered.add(piece.len() as u64);
        until_yield = until_yield.saturating_sub(piece.len());
        pieces.push(piece);
        if pieces.len() > longest {
            return Gathering::TooLong(pieces.into_pieces(), gathered);
        }
        if let Err(why) = room {
            return Gathering::NoRoom(why, pieces.into_pieces(), gathered);
        }
        if until_yield == 0 {
            until_yield = YIELD_EVERY;
            yield_now().await;
        }
    }
    match cache.join_pieces(pieces).await {
        Some((bytes, digest)) => Gathering::Whole(bytes, digest, gathered),
        None => Gathering::BrokenOff,
    }
}

/// The request that the answer is kept under.
fn request_of(asked: &Lookup) -> Option<request::Parts> {
    keyed_request(asked.key.path(), asked.request.headers.get(hyper::header::HOST)?, &asked.fields)
}

/// The bytes of a body between two looks at what has come for others: while a body comes quickly, its tasks wake each other, and the
/// runtime looks after some 60 of their steps otherwise.
const YIELD_EVERY: usize = 64 << 10;
