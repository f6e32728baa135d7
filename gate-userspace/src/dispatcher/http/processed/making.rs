//! The processing of an original that nobody else has processed.
//!
//! Requests of one tenant for the same wait for a permit together, as one. Whoever has a permit then finds what another has made
//! meanwhile, follows the one that is making it, or makes it. So nobody waits in another tenant's queue, and nothing is made
//! twice.

use std::rc::Rc;
use std::sync::Arc;

use hyper::StatusCode;
use hyper::body::Bytes;
use hyper::header::HeaderMap;
use tokio::sync::{oneshot, watch};

use super::original::Original;
use super::processor;
use super::upstream_body::Whole;
use super::work::Work;
use crate::cache::{Cache, CacheEvent, Holder, Joined, Key, Lead, Outcome, Processed};
use crate::clock;
use crate::dispatcher::http::admitted::Offer;
use crate::dispatcher::http::answer::Refused;
use crate::dispatcher::http::cached::HitCharge;
use crate::dispatcher::http::cached::serve::Source;
use crate::dispatcher::http::service::HttpService;
use crate::processing::Processing;
use crate::processing::permits::Permit;

/// The result of a processing for a request.
pub(super) enum Made {
    Whole(Arc<Processed>, Bytes, Source),
    /// The request has to begin anew: another's work has failed, or the original is gone.
    Again,
}

/// The duty to process.
struct Making {
    service: Rc<HttpService>,
    processing: Arc<Processing>,
    cache: Arc<Cache>,
    holder: Holder,
    offer: Offer,
    spec: String,
    original: Bytes,
    /// Its bytes count as long as they are needed.
    _whole: Option<Whole>,
    headers: HeaderMap,
    permit: Permit,
    /// Under which key it is kept, and who waits for it; `None` if it is for this request alone.
    kept: Option<(Key, [Lead<Processed>; 2])>,
}

impl Work<'_> {
    /// Has an original be processed.
    ///
    /// # Errors
    ///
    /// The refusal that the client is told.
    pub(super) async fn make(
        &self,
        key: &Key,
        original: &mut Original,
        charge: &mut HitCharge<'_>,
    ) -> Result<Made, Refused> {
        if !original.may_keep {
            let permit = self.turn(original).await?;
            charge.charge_in_full()?;
            return self.process(original, permit, None, charge).await;
        }
        let rank = self.asking.rank();
        let turn = match self.cache.join_processing(&self.key_of_turn(original), rank) {
            Joined::Follower(outcome) => return Ok(self.followed(outcome).await),
            Joined::Leader(turn) => turn,
        };
        let permit = self.turn(original).await?;
        if let Some((processed, body, source)) = self.kept(key, original).await {
            turn.complete(Outcome::Stored(Arc::clone(&processed), body.clone()));
            return Ok(Made::Whole(processed, body, source));
        }
        match self.cache.join_processing(key, rank) {
            Joined::Leader(lead) => {
                charge.charge_in_full()?;
                self.process(original, permit, Some((key.clone(), [lead, turn])), charge).await
            }
            Joined::Follower(outcome) => {
                drop(permit);
                let made = self.followed(outcome).await;
                if let Made::Whole(processed, body, _) = &made {
                    turn.complete(Outcome::Stored(Arc::clone(processed), body.clone()));
                }
                Ok(made)
            }
        }
    }

    /// The result that is kept under a key, with its body.
    pub(super) async fn kept(
        &self,
        key: &Key,
        original: &Original,
    ) -> Option<(Arc<Processed>, Bytes, Source)> {
        if !original.may_keep {
            return None;
        }
        let now = clock::realtime();
        let in_memory = self.cache.processed_in_memory(key, now);
        let is_in_memory = in_memory.is_some();
        let processed = match in_memory {
            Some(processed) => processed,
            None => self.cache.processed(key, now).await?,
        };
        let body = self.cache.body_in_memory(&processed.digest);
        let is_in_memory = is_in_memory && body.is_some();
        let body = match body {
            Some(body) => body,
            None => self.cache.body_of(processed.digest, processed.len).await?,
        };
        self.cache.touch_processed(key, &processed, now);
        let source = match original.source {
            Source::Memory if !is_in_memory => Source::Disk,
            source => source,
        };
        if matches!(source, Source::Memory | Source::Disk) {
            self.cache.count(source.event());
        }
        Some((processed, body, source))
    }

    /// The key by which a tenant's requests for the same wait together.
    fn key_of_turn(&self, original: &Original) -> Key {
        let tenant = self.asking.offer.origin.tenant.0;
        Key::of_processed(&original.digest, &self.target.spec, &format!("turn of {tenant}"))
    }

    /// Takes a permit of the processor, or waits for one, without the bytes of the original: what waits takes no memory.
    async fn turn(&self, original: &mut Original) -> Result<Permit, Refused> {
        let permits = &self.processing.permits;
        let is_only = !self.asking.service.tenants.borrow().are_several();
        if let Some(permit) = permits.try_take(self.asking.offer.origin.tenant.0, is_only) {
            return Ok(permit);
        }
        original.body = None;
        self.permit(permits, self.processing.settings.objective).await
    }

    async fn followed(&self, outcome: watch::Receiver<Option<Outcome<Processed>>>) -> Made {
        match self.asking.follow(outcome).await {
            Some(Outcome::Stored(processed, body)) => {
                self.cache.count(CacheEvent::Followed);
                Made::Whole(processed, body, Source::Followed)
            }
            Some(Outcome::NotShared | Outcome::Failed) | None => Made::Again,
        }
    }

    /// The bytes of an original: those that have just come, those that are kept, or, of one that is not kept, downloaded once more.
    async fn bytes(
        &self,
        original: &mut Original,
        charge: &mut HitCharge<'_>,
    ) -> Result<Option<(Bytes, Option<Whole>)>, Refused> {
        let url = &self.target.url;
        let key = Key::of_original(&url.origin(), &url.path, &self.tenant);
        if original.body.is_none() && original.source == Source::Bypassed {
            let newer = self.download(key.clone(), None, None, charge).await?;
            let newer =
                newer.filter(|newer| newer.status == StatusCode::OK && newer.digest == original.digest);
            original.body = newer.and_then(|newer| newer.body);
        }
        if let Some(whole) = original.body.take() {
            return Ok(Some((whole.bytes.clone(), Some(whole))));
        }
        let bytes = self.cache.body_of(original.digest, original.len).await;
        if bytes.is_none() {
            self.cache.forget(&key, &Vec::new());
        }
        Ok(bytes.map(|bytes| (bytes, None)))
    }

    async fn process(
        &self,
        original: &mut Original,
        permit: Permit,
        kept: Option<(Key, [Lead<Processed>; 2])>,
        charge: &mut HitCharge<'_>,
    ) -> Result<Made, Refused> {
        let Some((bytes, whole)) = self.bytes(original, charge).await? else { return Ok(Made::Again) };
        let making = Making {
            service: Rc::clone(&self.asking.service),
            processing: Arc::clone(&self.processing),
            cache: Arc::clone(&self.cache),
            holder: self.asking.holder(),
            offer: self.asking.offer.clone(),
            spec: self.target.spec.clone(),
            original: bytes,
            _whole: whole,
            headers: original.headers.clone(),
            permit,
            kept,
        };
        let (sender, receiver) = oneshot::channel();
        // It goes on if its client leaves, who pays for it all the same.
        tokio::task::spawn_local(async move {
            let _ = sender.send(making.run().await);
        });
        let failed = || Refused::lost(StatusCode::BAD_GATEWAY);
        let result = receiver.await.unwrap_or_else(|_| Err(failed()));
        let (processed, body, source) = result.inspect_err(|refused| self.count_no_room(refused))?;
        Ok(Made::Whole(processed, body, source))
    }
}

impl Making {
    async fn run(self) -> Result<(Arc<Processed>, Bytes, Source), Refused> {
        let Self { service, processing, cache, holder, offer, spec, original, headers, permit, kept, _whole } =
            self;
        let begun = clock::monotonic();
        let len = original.len() as u64;
        let held = (&cache, holder);
        let answer =
            processor::process(&service, &processing, held, &spec, (original, &headers), permit).await;
        let received = answer.as_ref().map_or(0, |(_, body)| body.len() as u64);
        let took = clock::monotonic().saturating_sub(begun);
        service.charge_work(&offer, len + received, took, processing.settings.price);
        let (processed, body) = answer?;
        let processed = Arc::new(processed);
        let Some((key, leads)) = kept else { return Ok((processed, body, Source::Bypassed)) };
        let now = clock::realtime();
        let [lead, _] = &leads;
        if !lead.is_outdated() && processed.holds(now) {
            cache.insert_processed(&key, &processed, &body, now);
            // Another thread may have removed it meanwhile.
            if lead.is_outdated() {
                cache.forget_processed(&key);
            }
        }
        for lead in leads {
            lead.complete(Outcome::Stored(Arc::clone(&processed), body.clone()));
        }
        Ok((processed, body, Source::Origin))
    }
}
