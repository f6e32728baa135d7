//! A request for a spec of an original, and what its steps have in common.

use std::sync::Arc;

use gate_common::abi::Reason;
use gate_common::units::Nanos;
use hyper::header::{CACHE_CONTROL, HeaderMap};
use tokio::time::timeout;

use crate::cache::{Cache, CacheEvent};
use crate::dispatcher::http::answer::Refused;
use crate::dispatcher::http::cached::Asking;
use crate::processing::Processing;
use crate::processing::permits::{NoPermit, Permit, Permits};
use crate::processing::target::Target;
use crate::protocol::Refusal;

/// A request for a spec of an original.
pub(super) struct Work<'a> {
    pub(super) asking: &'a Asking,
    pub(super) processing: Arc<Processing>,
    pub(super) cache: Arc<Cache>,
    pub(super) target: Target,
    /// The fields of the client's request.
    pub(super) fields: HeaderMap,
    pub(super) is_head: bool,
    /// False if nothing is looked up or kept for it.
    pub(super) is_shared: bool,
    /// The name of its tenant, if tenants share nothing.
    pub(super) tenant: String,
}

impl Work<'_> {
    /// Takes a permit, or waits for one, at most so long.
    pub(super) async fn permit(&self, permits: &Arc<Permits>, patience: Nanos) -> Result<Permit, Refused> {
        let service = &self.asking.service;
        let is_only = !service.tenants.borrow().are_several();
        let taking = permits.take(self.asking.offer.origin.tenant.0, is_only);
        let refusal = match timeout(patience.into(), taking).await {
            Ok(Ok(permit)) => return Ok(permit),
            Ok(Err(NoPermit::Full)) => Refusal::of(Reason::QueueFull),
            Ok(Err(NoPermit::TooLong(by))) => Refusal::after(Reason::Slo, by),
            Err(_) => Refusal::of(Reason::Deadline),
        };
        self.cache.count(CacheEvent::ProcessRefused);
        service.admission.count_refusal(self.asking.offer.origin.tenant, refusal.reason);
        Err(refusal.into())
    }

    /// Counts the refusal of a body for which there is no room.
    pub(super) fn count_no_room(&self, refused: &Refused) {
        let reason = refused.refusal.reason;
        if matches!(reason, Reason::Limit | Reason::QueueFull) {
            self.asking.service.admission.count_refusal(self.asking.offer.origin.tenant, reason);
        }
    }

    /// True if the request wants what is kept, or nothing.
    pub(super) fn takes_only_kept(&self) -> bool {
        let values = self.fields.get_all(CACHE_CONTROL).into_iter();
        let mut said = values.flat_map(|value| value.as_bytes().split(|&byte| byte == b','));
        said.any(|directive| directive.trim_ascii().eq_ignore_ascii_case(b"only-if-cached"))
    }
}
