//! Records: the answers under a key, and how they are written to disk. Pure.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hyper::StatusCode;
use hyper::header::{HOST, HeaderMap, HeaderName, HeaderValue};
use serde::{Deserialize, Serialize};

use super::digest::Digest;
use super::response::{Fields, StoredResponse, keyed_request};

/// The answers of a URL, the latest first: one for each set of values that the fields had on which an answer depends.
#[derive(Clone, Debug, Default)]
pub(crate) struct Record {
    responses: Vec<Arc<StoredResponse>>,
}

impl Record {
    /// The answer to requests with these fields of the key, and of all fields `headers`: of several the one that these select, else
    /// the latest.
    pub(crate) fn get(&self, fields: &Fields, headers: &HeaderMap) -> Option<&Arc<StoredResponse>> {
        let of_key = || self.responses.iter().filter(|response| response.fields == *fields);
        of_key().find(|response| response.is_selected_by(headers)).or_else(|| of_key().next())
    }

    /// The same with another answer, in the place of that to the same request if there is one.
    pub(crate) fn with(&self, response: Arc<StoredResponse>) -> Self {
        let mut responses = self.responses.clone();
        responses.retain(|other| !other.is_to_the_same(&response));
        responses.insert(0, response);
        responses.truncate(MOST);
        Self { responses }
    }

    /// The same without the answers to requests with these fields of the key.
    pub(crate) fn without(&self, fields: &Fields) -> Self {
        let others = self.responses.iter().filter(|response| response.fields != *fields);
        Self { responses: others.cloned().collect() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.responses.is_empty()
    }

    /// The bodies that it names, with their lengths.
    pub(super) fn bodies(&self) -> Vec<(Digest, u64)> {
        let mut bodies: Vec<_> =
            self.responses.iter().map(|response| (response.digest, response.len)).collect();
        bodies.sort_unstable();
        bodies.dedup();
        bodies
    }

    /// The bytes that it takes in memory, about.
    pub(super) fn weight(&self) -> u64 {
        let of = |response: &Arc<StoredResponse>| {
            let of_key = response.fields.iter().map(|(name, value)| (name, value));
            let fields = response.headers.iter().chain(of_key).chain(response.varied());
            let len = fields.map(|(name, value)| name.as_str().len() + value.len() + 64).sum::<usize>();
            // The policy has a copy.
            (1_024 + 2 * len) as u64
        };
        self.responses.iter().map(of).sum()
    }

    /// As it is written. `path` and `host` are of its URL.
    pub(super) fn encode(&self) -> Vec<u8> {
        let responses = self.responses.iter().map(|response| Written::of(response)).collect();
        serde_json::to_vec(&WrittenRecord { responses }).unwrap_or_default()
    }

    /// The record that was written under the key of this URL; `None` if these bytes are none.
    pub(super) fn decode(bytes: &[u8], path: &str, host: &str) -> Option<Self> {
        let written: WrittenRecord = serde_json::from_slice(bytes).ok()?;
        let responses = written.responses.into_iter().filter_map(|one| one.read(path, host).map(Arc::new));
        Some(Self { responses: responses.collect() })
    }
}

#[derive(Serialize, Deserialize)]
struct WrittenRecord {
    responses: Vec<Written>,
}

/// An answer as it is written. Values are bytes, each a character.
#[derive(Serialize, Deserialize)]
struct Written {
    fields: Vec<(String, String)>,
    /// Fields beside those of the key on which the answer depends.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    varied: Vec<(String, String)>,
    status: u16,
    headers: Vec<(String, String)>,
    received_ms: u64,
    digest: String,
    len: u64,
}

impl Written {
    fn of(response: &StoredResponse) -> Self {
        let since_epoch = response.received.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            fields: written(response.fields.iter().map(|(name, value)| (name, value))),
            varied: written(response.varied()),
            status: response.status.as_u16(),
            headers: written(response.headers.iter()),
            received_ms: u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX),
            digest: response.digest.to_string(),
            len: response.len,
        }
    }

    fn read(self, path: &str, host: &str) -> Option<StoredResponse> {
        let fields: Fields = read(self.fields).collect::<Option<_>>()?;
        let mut headers = HeaderMap::new();
        for field in read(self.headers) {
            let (name, value) = field?;
            headers.append(name, value);
        }
        let mut request = keyed_request(path, &HeaderValue::from_str(host).ok()?, &fields)?;
        for field in read(self.varied) {
            let (name, value) = field?;
            request.headers.insert(name, value);
        }
        debug_assert!(request.headers.contains_key(HOST));
        let status = StatusCode::from_u16(self.status).ok()?;
        let received: SystemTime = UNIX_EPOCH.checked_add(Duration::from_millis(self.received_ms))?;
        let body = (Digest::parse(&self.digest)?, self.len);
        StoredResponse::new(&request, fields, (status, headers), received, body)
    }
}

fn written<'f>(fields: impl Iterator<Item = (&'f HeaderName, &'f HeaderValue)>) -> Vec<(String, String)> {
    let text = |value: &HeaderValue| value.as_bytes().iter().map(|&byte| char::from(byte)).collect();
    fields.map(|(name, value)| (name.as_str().to_owned(), text(value))).collect()
}

fn read(fields: Vec<(String, String)>) -> impl Iterator<Item = Option<(HeaderName, HeaderValue)>> {
    fields.into_iter().map(|(name, value)| {
        let bytes: Option<Vec<u8>> = value.chars().map(|c| u8::try_from(c).ok()).collect();
        Some((HeaderName::try_from(name).ok()?, HeaderValue::from_bytes(&bytes?).ok()?))
    })
}

/// The answers of one URL that are kept: a client chooses the values of the fields.
const MOST: usize = 16;
