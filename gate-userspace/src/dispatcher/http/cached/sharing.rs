//! The way of a request to the origin: its own, whole, or a fetch that is shared.
//!
//! **Problem.** An answer may depend on any field of a request, and only the answer says on which. **Rule.** A request goes as its
//! own, with all its fields, until an answer has been seen that may be given to all who ask for the same. From then on one
//! fetch at a time is made for all of them, with the fields of the key and the address of the client that leads. A request
//! that says nothing beside its key is such a fetch from the beginning, which nobody waits for. With `keep_own` a fetch is the
//! leading client's own request, always: the origin never sees a request that no client has made.

use std::sync::Arc;

use gate_common::units::Nanos;
use hyper::body::Bytes;
use hyper::http::request::Parts;
use hyper::{Method, Response, StatusCode};
use tokio::sync::watch;
use tokio::time::timeout;

use super::asked::Lookup;
use super::fetch::{self, Fetch, Fetched, Stale};
use super::serve::{self, Source};
use super::{Asking, HitCharge};
use crate::cache::{Cache, CacheEvent, Freshness, Joined, Outcome, StaleUse, StoredResponse};
use crate::clock;
use crate::dispatcher::http::answer::Refused;
use crate::dispatcher::http::reply_body::ReplyBody;

impl Asking {
    /// Has the origin answer a request that no kept answer is for.
    pub(super) async fn share(
        &self,
        cache: &Arc<Cache>,
        parts: Parts,
        asked: Lookup,
        mut stale: Option<Stale>,
        mut charge: HitCharge<'_>,
    ) -> Result<Response<ReplyBody>, Refused> {
        // A HEAD fetches no body for others.
        let may_fetch = parts.method == Method::GET && !asked.has_precondition();
        for _ in 0..ATTEMPTS {
            let now = clock::monotonic();
            let (is_alone, joined) =
                if may_fetch { self.join(cache, &asked, stale.as_ref(), now) } else { (false, None) };
            match joined {
                None => break,
                Some(Joined::Leader(lead)) => {
                    charge.give_back();
                    let under_way = match self.service.admit(&self.client, &self.offer, now) {
                        Ok(under_way) => under_way,
                        Err(refused) => return self.stale_or(cache, &asked, stale, refused).await,
                    };
                    let is_own = is_alone || cache.settings.keep_own;
                    let own = (is_own && asked.says_more()).then(|| asked.own_request(parts.clone()));
                    let fetch = Fetch::new(
                        Arc::clone(cache),
                        (asked.clone(), own),
                        stale.take(),
                        lead,
                        self.holder(),
                    );
                    match fetch.start(under_way).await {
                        Fetched::Kept(kept, body, source) => {
                            return serve::respond(&asked, &kept, &body, source);
                        }
                        Fetched::Passing(response) => return Ok(response),
                        Fetched::Refused(refused) => return Err(refused),
                        Fetched::Again => {}
                    }
                }
                Some(Joined::Follower(outcome)) => match self.follow(outcome).await {
                    Some(Outcome::Stored(kept, body)) => {
                        if charge.is_held()
                            && kept.freshness(&asked.request, clock::realtime()) == Freshness::Fresh
                        {
                            cache.count(CacheEvent::Followed);
                            return charge.give(&asked, &kept, &body, Source::Followed);
                        }
                        break;
                    }
                    Some(Outcome::Failed) if charge.is_held() => {
                        if let Some((kept, body)) =
                            fetch::on_error(cache, stale.as_ref(), &asked.request).await
                        {
                            return charge.give(&asked, &kept, &body, Source::Stale(StaleUse::OnError));
                        }
                    }
                    Some(Outcome::Failed) => {}
                    Some(Outcome::NotShared) | None => break,
                },
            }
        }
        charge.give_back();
        drop(charge);
        self.ask_whole(cache, parts, &asked, stale).await
    }

    /// Its part in a fetch of what is kept, and true if nobody follows it; `None` if it has to go as its own.
    fn join(
        &self,
        cache: &Cache,
        asked: &Lookup,
        stale: Option<&Stale>,
        now: Nanos,
    ) -> (bool, Option<Joined<StoredResponse>>) {
        let kept = stale.map(|(kept, _)| &**kept);
        let is_shareable = cache.is_shareable(&asked.key, &asked.fields, kept, now);
        if is_shareable {
            return (false, Some(cache.join(&asked.key, &asked.fields, self.rank())));
        }
        let may_keep = cache.settings.keep_own || !asked.says_more();
        (true, may_keep.then(|| Joined::Leader(cache.fetch_alone(&asked.key, &asked.fields))))
    }

    /// Passes a request on as its own. The origin is asked about a kept answer by it, if there is one.
    async fn ask_whole(
        &self,
        cache: &Cache,
        parts: Parts,
        asked: &Lookup,
        stale: Option<Stale>,
    ) -> Result<Response<ReplyBody>, Refused> {
        // A HEAD has no range, whatever the origin makes of one.
        let may_ask = parts.method == Method::GET && !asked.has_precondition();
        let validators = stale.as_ref().filter(|_| may_ask).map(|(_, validators)| validators);
        let Some(validators) = validators.filter(|validators| !validators.is_empty()) else {
            let result = self.pass(parts, None).await;
            return self.whole_answer(cache, asked, stale, result).await;
        };
        let mut request = asked.own_request(parts.clone());
        request.headers.extend(validators.iter().cloned());
        let result = self.pass(request, None).await;
        let Some((kept, _)) = stale.as_ref().filter(|_| is_not_modified(&result)) else {
            return self.whole_answer(cache, asked, stale, result).await;
        };
        // It is this client's answer. What its request says beside the key may show in the fields, which are not kept.
        let merged = result.ok().and_then(|response| kept.merged(response.headers()));
        let (Some(headers), Some(body)) = (merged, cache.body(kept).await) else {
            cache.forget(&asked.key, &asked.fields);
            return self.pass(parts, None).await;
        };
        cache.count(CacheEvent::Revalidated);
        let mut once = StoredResponse::clone(kept);
        once.headers = headers;
        serve::respond(asked, &once, &body, Source::Revalidated)
    }

    /// The answer to a client's own request, or the kept one if the origin fails.
    async fn whole_answer(
        &self,
        cache: &Cache,
        asked: &Lookup,
        stale: Option<Stale>,
        result: Result<Response<ReplyBody>, Refused>,
    ) -> Result<Response<ReplyBody>, Refused> {
        match result {
            Ok(response) if fetch::is_failure(response.status()) => {
                match fetch::on_error(cache, stale.as_ref(), &asked.request).await {
                    Some((kept, body)) => {
                        serve::respond(asked, &kept, &body, Source::Stale(StaleUse::OnError))
                    }
                    None => Ok(response),
                }
            }
            Ok(response) => {
                fetch::note_if_shared(cache, asked, &response);
                Ok(response)
            }
            Err(refused) => self.stale_or(cache, asked, stale, refused).await,
        }
    }

    /// The kept answer, charged as a hit, if the origin is why a request is refused.
    async fn stale_or(
        &self,
        cache: &Cache,
        asked: &Lookup,
        stale: Option<Stale>,
        refused: Refused,
    ) -> Result<Response<ReplyBody>, Refused> {
        if refused.is_for_the_tenant() {
            return Err(refused);
        }
        let Some((kept, body)) = fetch::on_error(cache, stale.as_ref(), &asked.request).await else {
            return Err(refused);
        };
        self.charge_hit()?.give(asked, &kept, &body, Source::Stale(StaleUse::OnError))
    }

    /// The body of a stale answer that may be given while the origin is asked.
    pub(super) async fn body_while_revalidating(
        &self,
        cache: &Cache,
        asked: &Lookup,
        (kept, _): &Stale,
    ) -> Option<Bytes> {
        let may_be = kept.may_be_stale(&asked.request, StaleUse::WhileRevalidating, clock::realtime());
        let is_shared =
            may_be && cache.is_shareable(&asked.key, &asked.fields, Some(&**kept), clock::monotonic());
        if is_shared { cache.body(kept).await } else { None }
    }

    /// Has the origin be asked about a stale answer, unless that is under way. Its tenant pays for it, and without the quota the
    /// answer stays stale.
    pub(super) fn refresh(&self, cache: &Arc<Cache>, parts: Parts, asked: Lookup, stale: Stale) {
        let Joined::Leader(lead) = cache.join(&asked.key, &asked.fields, self.rank()) else { return };
        if let Ok(under_way) = self.service.admit(&self.client, &self.offer, clock::monotonic()) {
            let is_own = cache.settings.keep_own && asked.says_more();
            let own = is_own.then(|| asked.own_request(parts));
            let fetch = Fetch::new(Arc::clone(cache), (asked, own), Some(stale), lead, self.holder());
            fetch.start_refresh(under_way);
        }
    }

    /// Waits for a leader, as long as a request may take.
    pub(in crate::dispatcher::http) async fn follow<T>(
        &self,
        mut outcome: watch::Receiver<Option<Outcome<T>>>,
    ) -> Option<Outcome<T>> {
        let limits = self.service.limits.get();
        let patience = limits.slow_timeout.saturating_add(limits.store_timeout);
        let done = timeout(patience.into(), outcome.wait_for(Option::is_some)).await;
        done.ok()?.ok()?.clone()
    }
}

fn is_not_modified(result: &Result<Response<ReplyBody>, Refused>) -> bool {
    result.as_ref().is_ok_and(|response| response.status() == StatusCode::NOT_MODIFIED)
}

/// How often a request leads or follows before it is passed on by itself.
const ATTEMPTS: usize = 3;
