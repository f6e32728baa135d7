//! The key of a request to go on as a WebSocket, and what the store answers to it (RFC 6455, 4.1). Clients over HTTP/2 have none, so
//! that gate has one for each.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::header::HeaderValue;
use sha1::{Digest as _, Sha1};

use crate::clock;

/// A key.
#[derive(Clone, Debug)]
pub(super) struct Key(String);

impl Key {
    /// A random one.
    pub(super) fn new() -> Self {
        Self(STANDARD.encode(clock::secret()))
    }

    /// The value of `Sec-WebSocket-Key`.
    pub(super) fn sent(&self) -> HeaderValue {
        value(&self.0)
    }

    /// The value of `Sec-WebSocket-Accept` that a store answers.
    pub(super) fn accepted(&self) -> HeaderValue {
        value(&STANDARD.encode(Sha1::new().chain_update(&self.0).chain_update(SUFFIX).finalize()))
    }
}

/// Base64 as the value of a field.
fn value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static(""))
}

const SUFFIX: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_accepted_as_the_rfc_says() {
        let key = Key("dGhlIHNhbXBsZSBub25jZQ==".to_owned());
        assert_eq!(key.accepted(), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        let key = Key::new();
        assert!(key.sent().len() == 24 && key.sent() != Key::new().sent());
    }
}
