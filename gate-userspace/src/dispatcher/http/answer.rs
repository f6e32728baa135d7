//! gate's own answers: refusals, and what has become of a request that got no answer of the store.

use gate_common::abi::Reason;
use gate_common::units::Nanos;
use hyper::header::{
    CONNECTION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE,
};
use hyper::{Response, StatusCode, Version};
use percent_encoding::{AsciiSet, CONTROLS, percent_encode};

use super::reply_body::ReplyBody;
use super::service::HttpService;
use crate::dispatcher::tenants::ledger::Account;
use crate::protocol::http::refusal;
use crate::protocol::{Blame, Refusal, Rule};

/// A request that is not passed on, or gets no answer of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) refusal: Refusal,
    /// The status, if it is another than the reason's.
    pub(super) status: Option<StatusCode>,
    /// True if the connection ends with the answer.
    pub(super) closes: bool,
}

impl Refused {
    pub(super) const fn with_status(reason: Reason, status: StatusCode) -> Self {
        Self { refusal: Refusal::of(reason), status: Some(status), closes: true }
    }

    /// True if the store would have taken it.
    pub(super) const fn is_for_the_tenant(&self) -> bool {
        matches!(self.refusal.blame(), Blame::Throttled | Blame::Denied)
    }

    /// The request was sent, and its answer is lost; or it did not come in time.
    pub(super) const fn lost(status: StatusCode) -> Self {
        Self { refusal: Refusal::uncertain(), status: Some(status), closes: false }
    }
}

impl Refused {
    /// True if the store may have done what was asked.
    pub(super) fn is_uncertain(&self) -> bool {
        self.refusal == Refusal::uncertain()
    }
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Self { refusal, status: None, closes: false }
    }
}

impl HttpService {
    /// The answer to a request that is refused.
    pub(super) fn refusal(&self, refused: Refused, version: Version, is_grpc: bool) -> Response<ReplyBody> {
        let Refused { refusal, status, closes } = refused;
        let status = status.unwrap_or_else(|| {
            let status = refusal::status(refusal, self.http().overload_status);
            StatusCode::from_u16(status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE)
        });
        if is_grpc && version == Version::HTTP_2 {
            return refusal_of_grpc(refusal, status);
        }
        let field = self.claims.tenant().filter(|_| refusal.rule == Some(Rule::TenantHeader));
        let mut response =
            Response::new(ReplyBody::whole(refusal::text(refusal, field.map(HeaderName::as_str))));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(REASON, HeaderValue::from_static(refusal.reason.name()));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
        let may_retry = status != StatusCode::REQUEST_TIMEOUT && status != StatusCode::EXPECTATION_FAILED;
        if let Some(after) = refusal::retry_after(refusal).filter(|_| may_retry) {
            headers.insert(RETRY_AFTER, HeaderValue::from(after.seconds));
            headers.insert(RETRY_AFTER_MS, HeaderValue::from(after.millis));
        }
        if let (StatusCode::UNAUTHORIZED, Some(field)) = (status, self.claims.tenant()) {
            let challenge = HeaderValue::try_from(format!("Gate field=\"{field}\""));
            headers.extend(challenge.map(|challenge| (WWW_AUTHENTICATE, challenge)));
        }
        if closes && version != Version::HTTP_2 {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }

    /// Adds what is left of a tenant's quota, if the service says it.
    pub(super) fn add_rate_limit(&self, account: Account<'_>, headers: &mut HeaderMap, now: Nanos) {
        if !self.http().rate_limit_fields {
            return;
        }
        let level = {
            let ledger = &mut *self.ledger.borrow_mut();
            ledger.quota_levels(account, gate_common::units::MilliRu::ZERO, now).next()
        };
        let Some(level) = level.filter(|level| level.tenant == account.0) else { return };
        // In whole request units: per second, and those that are left.
        let each = level.limits.rate.time_for(1_000).max(1);
        let quota = Nanos::from_secs(1).0 / each;
        let left = level.limits.burst_ns.saturating_sub(level.debt.0) / each;
        let full = level.debt.0.div_ceil(Nanos::from_secs(1).0);
        let fields = [
            (RATE_LIMIT_POLICY, format!("\"quota\";q={quota};w=1;qu=\"request-units\"")),
            (RATE_LIMIT, format!("\"quota\";r={left};t={full}")),
        ];
        headers.extend(
            fields.into_iter().filter_map(|(name, text)| Some((name, HeaderValue::from_str(&text).ok()?))),
        );
    }
}

/// The answer to a client of gRPC, in which the head says all: it tries again when it is told to, and not where that helps nothing or
/// could do it twice.
fn refusal_of_grpc(refusal: Refusal, status: StatusCode) -> Response<ReplyBody> {
    let text = refusal::text(refusal, None);
    let message = percent_encode(text.trim_ascii_end(), UNPRINTABLE).to_string();
    let pushback = refusal::retry_after(refusal).map(|after| after.millis);
    let mut response = Response::new(ReplyBody::whole(Vec::new()));
    let headers = response.headers_mut();
    headers.insert(REASON, HeaderValue::from_static(refusal.reason.name()));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(GRPC_STATUS, HeaderValue::from(u16::from(refusal::grpc_status(refusal, status.as_u16()))));
    headers.extend(HeaderValue::try_from(message).ok().map(|message| (GRPC_MESSAGE, message)));
    headers.insert(GRPC_PUSHBACK, pushback.map_or(NEVER, HeaderValue::from));
    response
}

/// All that `grpc-message` encodes.
const UNPRINTABLE: &AsciiSet = &CONTROLS.add(b'%');
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");
/// No try again.
const NEVER: HeaderValue = HeaderValue::from_static("-1");
const REASON: HeaderName = HeaderName::from_static("gate-reason");
const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("gate-retry-after-ms");
const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
