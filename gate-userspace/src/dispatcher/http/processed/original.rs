//! The original of a URL: kept, or downloaded once for all who want it.

use std::rc::Rc;
use std::sync::Arc;

use hyper::StatusCode;
use hyper::body::Bytes;
use hyper::header::{CACHE_CONTROL, HeaderMap, HeaderValue, PRAGMA};
use hyper::http::{request, response};
use tokio::sync::oneshot;

use super::download::{self, Downloaded};
use super::upstream_body::Whole;
use super::work::Work;
use crate::cache::{
    Cache, CacheEvent, Digest, Fields, Freshness, Holder, Joined, Key, Lead, Outcome, StoredResponse,
    ToWrite, forbids_keeping, keyed_request,
};
use crate::clock;
use crate::dispatcher::http::answer::Refused;
use crate::dispatcher::http::cached::HitCharge;
use crate::dispatcher::http::cached::serve::Source;
use crate::dispatcher::http::service::HttpService;
use crate::processing::Processing;
use crate::processing::target::Url;

/// The original of a URL.
#[derive(Debug)]
pub(super) struct Original {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) digest: Digest,
    pub(super) len: u64,
    /// In seconds.
    pub(super) age: u64,
    pub(super) source: Source,
    /// The bytes, if they have just been downloaded.
    pub(super) body: Option<Whole>,
    /// True if what is made of it may be kept.
    pub(super) may_keep: bool,
}

/// A download on behalf of all who want an original.
struct Download {
    service: Rc<HttpService>,
    processing: Arc<Processing>,
    cache: Arc<Cache>,
    url: Url,
    key: Key,
    /// The one that is kept and has to be asked about, with the fields that do.
    stale: Option<(Arc<StoredResponse>, Fields)>,
    /// `None` if nothing is kept.
    lead: Option<Lead<StoredResponse>>,
    is_shared: bool,
    holder: Holder,
}

impl Work<'_> {
    /// The original; `None` if it has to be looked for again.
    ///
    /// # Errors
    ///
    /// The refusal that the client is told.
    pub(super) async fn original(&self, charge: &mut HitCharge<'_>) -> Result<Option<Original>, Refused> {
        let url = &self.target.url;
        let key = Key::of_original(&url.origin(), &url.path, &self.tenant);
        if !self.is_shared {
            return self.download(key, None, None, charge).await;
        }
        let in_memory = self.cache.record_in_memory(&key);
        let source = if in_memory.is_some() { Source::Memory } else { Source::Disk };
        let record = match in_memory {
            Some(record) => Some(record),
            None => self.cache.record(&key).await,
        };
        let kept = record.and_then(|record| record.get(&Vec::new(), &HeaderMap::new()).cloned());
        let seen = kept.clone();
        let request = self.request(&key);
        let freshness = kept.as_ref().zip(request.as_ref());
        let freshness = freshness.map(|(kept, request)| kept.freshness(request, clock::realtime()));
        let stale = match (kept, freshness) {
            (Some(kept), Some(Freshness::Fresh)) => {
                self.cache.touch(&key, &kept, clock::realtime());
                return Ok(Some(Original::kept(&kept, source)));
            }
            (Some(kept), Some(Freshness::Stale(validators))) => Some((kept, validators)),
            _ => None,
        };
        self.cache.count(if stale.is_some() { CacheEvent::Stale } else { CacheEvent::Miss });
        if self.takes_only_kept() {
            return Ok(None);
        }
        let rank = self.asking.rank();
        match self.cache.join_unless_unshared(&key, &Vec::new(), rank, clock::monotonic()) {
            None => self.download(key, None, None, charge).await,
            // Another has brought it since it was looked for.
            Some(Joined::Leader(_)) if self.is_newer(&key, seen.as_ref()) => Ok(None),
            Some(Joined::Leader(lead)) => self.download(key, stale, Some(lead), charge).await,
            Some(Joined::Follower(outcome)) => match self.asking.follow(outcome).await {
                Some(Outcome::Stored(kept, _)) => {
                    self.cache.count(CacheEvent::Followed);
                    Ok(Some(Original::kept(&kept, Source::Followed)))
                }
                Some(Outcome::NotShared) => self.download(key, None, None, charge).await,
                Some(Outcome::Failed) | None => Ok(None),
            },
        }
    }

    /// True if memory has another original under a key than the one that was seen there.
    fn is_newer(&self, key: &Key, seen: Option<&Arc<StoredResponse>>) -> bool {
        let record = self.cache.record_in_memory(key);
        let kept = record.and_then(|record| record.get(&Vec::new(), &HeaderMap::new()).cloned());
        kept.is_some_and(|kept| seen.is_none_or(|seen| !Arc::ptr_eq(seen, &kept)))
    }

    /// Downloads it, for itself or for all.
    pub(super) async fn download(
        &self,
        key: Key,
        stale: Option<(Arc<StoredResponse>, Fields)>,
        lead: Option<Lead<StoredResponse>>,
        charge: &mut HitCharge<'_>,
    ) -> Result<Option<Original>, Refused> {
        let permit = self.permit(&self.processing.downloads, self.processing.settings.timeout).await?;
        charge.charge_in_full()?;
        let service = Rc::clone(&self.asking.service);
        let offer = self.asking.offer.clone();
        let download = Download {
            service: Rc::clone(&service),
            processing: Arc::clone(&self.processing),
            cache: Arc::clone(&self.cache),
            url: self.target.url.clone(),
            key,
            stale,
            lead,
            is_shared: self.is_shared,
            holder: self.asking.holder(),
        };
        let price = self.processing.settings.price;
        let (sender, receiver) = oneshot::channel();
        // It goes on if its client leaves, who pays for it all the same.
        tokio::task::spawn_local(async move {
            let begun = clock::monotonic();
            let result = download.run().await;
            drop(permit);
            let original = result.as_ref().ok().and_then(Option::as_ref);
            let bytes =
                original.filter(|original| original.body.is_some()).map_or(0, |original| original.len);
            service.charge_work(&offer, bytes, clock::monotonic().saturating_sub(begun), price);
            let _ = sender.send(result);
        });
        let result = receiver.await.unwrap_or_else(|_| Err(unusable()));
        result.inspect_err(|refused| self.count_no_room(refused))
    }

    /// The request by which it is judged whether what is kept is fresh: with what the client says of that.
    fn request(&self, key: &Key) -> Option<request::Parts> {
        let mut request = request_of(key)?;
        for name in [CACHE_CONTROL, PRAGMA] {
            request.headers.extend(self.fields.get(&name).map(|value| (name, value.clone())));
        }
        Some(request)
    }
}

impl Download {
    async fn run(self) -> Result<Option<Original>, Refused> {
        let nothing = Vec::new();
        let validators = self.stale.as_ref().map_or(&nothing, |(_, validators)| validators);
        let held = (&self.cache, self.holder);
        let downloaded =
            download::download(&self.service, &self.processing, held, &self.url, validators).await?;
        match downloaded {
            Downloaded::NotModified(head) => Ok(self.not_modified(&head).await),
            Downloaded::Whole(head, whole) => self.modified(head, whole).await.map(Some),
        }
    }

    /// The one that is kept still holds; `None` if it is gone meanwhile, or is not to be kept any longer. What was made of it may be
    /// all that is wanted, so its bytes are not read here.
    async fn not_modified(self, head: &response::Parts) -> Option<Original> {
        let Self { cache, key, stale, lead, .. } = self;
        let (stale, _) = stale?;
        let now = clock::realtime();
        let newer = request_of(&key).and_then(|request| stale.revalidated(&request, head, now));
        let to_write = match &newer {
            Some(newer) => cache.to_write(&stale, newer, now).await,
            None => None,
        };
        let (Some(newer), Some(to_write)) = (newer.map(Arc::new), to_write) else {
            cache.forget(&key, &Vec::new());
            return None;
        };
        cache.count(CacheEvent::Revalidated);
        keep(&cache, &key, &newer, to_write, lead);
        Some(Original::kept(&newer, Source::Revalidated))
    }

    /// The origin gives an answer.
    async fn modified(self, head: response::Parts, whole: Whole) -> Result<Original, Refused> {
        let Self { cache, key, stale, lead, is_shared, .. } = self;
        if head.status != StatusCode::OK && !head.status.is_client_error() {
            return Err(unusable());
        }
        let body = (whole.digest, whole.bytes.len() as u64);
        let now = clock::realtime();
        let kept = request_of(&key).and_then(|request| {
            let answer = (head.status, head.headers.clone());
            StoredResponse::new(&request, Vec::new(), answer, now, body)
        });
        let same = stale.as_ref().filter(|(stale, _)| stale.digest == whole.digest);
        if same.is_some() {
            cache.count(CacheEvent::Unchanged);
        }
        let to_write = match same.zip(kept.as_ref()) {
            Some(((stale, _), kept)) => cache.to_write(stale, kept, now).await,
            None => None,
        };
        let original = |source, whole| Original {
            status: head.status,
            may_keep: is_shared && !forbids_keeping(&head.headers),
            headers: head.headers,
            digest: body.0,
            len: body.1,
            age: 0,
            source,
            body: Some(whole),
        };
        match (kept.map(Arc::new), lead) {
            (Some(kept), Some(lead)) => {
                let to_write = to_write.unwrap_or_else(|| ToWrite::All(whole.bytes.clone()));
                keep(&cache, &key, &kept, to_write, Some(lead));
                Ok(original(Source::Origin, whole))
            }
            (_, lead) => {
                if is_shared {
                    cache.count(CacheEvent::NotStored);
                    if stale.is_some() {
                        cache.forget(&key, &Vec::new());
                    }
                    cache.note_unshared(&key, &Vec::new(), clock::monotonic());
                }
                lead.into_iter().for_each(|lead| lead.complete(Outcome::NotShared));
                Ok(original(Source::Bypassed, whole))
            }
        }
    }
}

impl Original {
    /// The one that is kept.
    fn kept(kept: &StoredResponse, source: Source) -> Self {
        Self {
            status: kept.status,
            headers: kept.headers.clone(),
            digest: kept.digest,
            len: kept.len,
            age: kept.age(clock::realtime()),
            source,
            body: None,
            may_keep: true,
        }
    }
}

/// Keeps an original, unless it has been removed since it was asked for, and gives it to those who wait for it: without its bytes,
/// which they look for if they need them.
fn keep(
    cache: &Cache,
    key: &Key,
    kept: &Arc<StoredResponse>,
    to_write: ToWrite,
    lead: Option<Lead<StoredResponse>>,
) {
    let Some(lead) = lead else { return };
    if !lead.is_outdated() {
        cache.insert(key, kept, to_write, clock::realtime());
        // Another thread may have removed it meanwhile.
        if lead.is_outdated() {
            cache.forget(key, &Vec::new());
        }
    }
    lead.complete(Outcome::Stored(Arc::clone(kept), Bytes::new()));
}

/// The request that an original is kept under.
fn request_of(key: &Key) -> Option<request::Parts> {
    keyed_request(key.path(), &HeaderValue::from_str(key.host()).ok()?, &Vec::new())
}

fn unusable() -> Refused {
    Refused::lost(StatusCode::BAD_GATEWAY)
}
