//! The body of an answer of an origin or the processor, gathered whole.

use std::sync::Arc;

use gate_common::abi::Reason;
use hyper::StatusCode;
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::http::response;

use crate::cache::{Cache, CacheEvent, Digest, Gathered, Holder, NoRoom};
use crate::dispatcher::http::answer::Refused;
use crate::dispatcher::http::cached::fetch::{Gathering, gather as gather_pieces};
use crate::dispatcher::http::head::UntilClosed;
use crate::protocol::Refusal;

/// A body that is all there, and counts for the memory of its cache as long as it is held.
#[derive(Debug)]
pub(super) struct Whole {
    pub(super) bytes: Bytes,
    pub(super) digest: Digest,
    _gathered: Gathered,
}

/// Gathers the body of an answer with this head.
///
/// # Errors
///
/// If it breaks off, is longer than may be kept, or could be a part of one.
pub(super) async fn gather(
    cache: &Arc<Cache>,
    holder: Holder,
    head: &response::Parts,
    body: &mut Incoming,
) -> Result<Whole, Refused> {
    let longest = cache.settings.max_object;
    let too_long = || {
        cache.count(CacheEvent::TooLong);
        let status = StatusCode::UNPROCESSABLE_ENTITY;
        Err(Refused { closes: false, ..Refused::with_status(Reason::TooLarge, status) })
    };
    // One that ends with its connection may be a part.
    if head.extensions.get::<UntilClosed>().is_some() {
        cache.count(CacheEvent::BrokenOff);
        return Err(Refused::lost(StatusCode::BAD_GATEWAY));
    }
    if body.size_hint().lower() > longest {
        return too_long();
    }
    match gather_pieces(cache, holder, body, longest).await {
        Gathering::Whole(bytes, digest, gathered) => Ok(Whole { bytes, digest, _gathered: gathered }),
        Gathering::TooLong(..) => too_long(),
        Gathering::NoRoom(why, ..) => {
            cache.count(CacheEvent::NoRoom);
            Err(Refusal::of(match why {
                NoRoom::Tenant => Reason::Limit,
                NoRoom::All => Reason::QueueFull,
            })
            .into())
        }
        Gathering::BrokenOff => {
            cache.count(CacheEvent::BrokenOff);
            Err(Refused::lost(StatusCode::BAD_GATEWAY))
        }
    }
}
