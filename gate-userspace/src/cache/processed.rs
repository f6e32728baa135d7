//! The result of processing a body, or the refusal of it, without the bytes. Pure.
//!
//! A result depends on the body and the spec alone, so it holds for ever; a refusal holds for a while.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hyper::StatusCode;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use serde::{Deserialize, Serialize};

use super::digest::Digest;

/// The result of processing a body, or the refusal of it.
#[derive(Clone, Debug)]
pub(crate) struct Processed {
    /// 200, or the 4xx by which the processor refused the content.
    pub(crate) status: StatusCode,
    /// Those that say what the body is.
    pub(crate) headers: HeaderMap,
    pub(crate) digest: Digest,
    pub(crate) len: u64,
    /// Until when it holds; `None` for ever.
    until: Option<SystemTime>,
    /// When its use was noted, in seconds since 1970.
    noted: Arc<AtomicU64>,
}

impl Processed {
    pub(crate) fn new(
        status: StatusCode,
        headers: HeaderMap,
        (digest, len): (Digest, u64),
        until: Option<SystemTime>,
        now: SystemTime,
    ) -> Self {
        Self { status, headers, digest, len, until, noted: Arc::new(secs(now).into()) }
    }

    /// True unless its time is over.
    pub(crate) fn holds(&self, now: SystemTime) -> bool {
        self.until.is_none_or(|until| now < until)
    }

    /// The time for which it still holds; `None` for ever.
    pub(crate) fn left(&self, now: SystemTime) -> Option<Duration> {
        self.until.map(|until| until.duration_since(now).unwrap_or_default())
    }

    /// True if its use has not been noted for so long; it is now.
    pub(super) fn is_use_due(&self, now: SystemTime, every: Duration) -> bool {
        let is_due = secs(now).saturating_sub(self.noted.load(Relaxed)) >= every.as_secs();
        if is_due {
            self.noted.store(secs(now), Relaxed);
        }
        is_due
    }

    /// The bytes that it takes in memory, about.
    pub(super) fn weight(&self) -> u64 {
        let fields = self.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 64);
        (256 + fields.sum::<usize>()) as u64
    }

    /// As it is written.
    pub(super) fn encode(&self) -> Vec<u8> {
        let text = |value: &HeaderValue| value.as_bytes().iter().map(|&byte| char::from(byte)).collect();
        let written = Written {
            status: self.status.as_u16(),
            headers: self
                .headers
                .iter()
                .map(|(name, value)| (name.as_str().to_owned(), text(value)))
                .collect(),
            digest: self.digest.to_string(),
            len: self.len,
            until: self.until.map(secs),
        };
        serde_json::to_vec(&written).unwrap_or_default()
    }

    /// The one that was written, at `now`; `None` if these bytes are none.
    pub(super) fn decode(bytes: &[u8], now: SystemTime) -> Option<Self> {
        let Written { status, headers, digest, len, until } = serde_json::from_slice(bytes).ok()?;
        let mut fields = HeaderMap::new();
        for (name, value) in headers {
            let value: Option<Vec<u8>> = value.chars().map(|c| u8::try_from(c).ok()).collect();
            fields.append(HeaderName::try_from(name).ok()?, HeaderValue::from_bytes(&value?).ok()?);
        }
        let until = match until {
            Some(secs) => Some(UNIX_EPOCH.checked_add(Duration::from_secs(secs))?),
            None => None,
        };
        let body = (Digest::parse(&digest)?, len);
        Some(Self::new(StatusCode::from_u16(status).ok()?, fields, body, until, now))
    }
}

/// As it is written. Values are bytes, each a character.
#[derive(Serialize, Deserialize)]
struct Written {
    status: u16,
    headers: Vec<(String, String)>,
    digest: String,
    len: u64,
    /// In seconds since 1970.
    until: Option<u64>,
}

fn secs(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use hyper::header::CONTENT_TYPE;

    use super::*;

    #[test]
    fn it_is_read_as_it_was_written() {
        let now = UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_bytes(b"image/\xff").unwrap());
        let until = now + Duration::from_secs(60);
        for (status, until) in [(StatusCode::OK, None), (StatusCode::UNSUPPORTED_MEDIA_TYPE, Some(until))] {
            let processed = Processed::new(status, headers.clone(), (Digest::of(b"x"), 1), until, now);
            let read = Processed::decode(&processed.encode(), now).unwrap();
            assert_eq!(
                (read.status, &read.headers, read.digest, read.len),
                (status, &headers, Digest::of(b"x"), 1)
            );
            assert_eq!(read.until, until);
            assert!(read.holds(now) && read.holds(now + Duration::from_secs(59)));
            assert_eq!(read.holds(now + Duration::from_secs(60)), until.is_none());
        }
        assert!(Processed::decode(b"{}", now).is_none());
    }
}
