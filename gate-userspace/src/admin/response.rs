//! Responses that carry a document.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::document::{Failure, Versioned};

/// A failure, with its reason.
pub(super) fn failed(status: StatusCode, error: &str) -> Response {
    json(status, &Versioned::new(Failure { error: error.to_owned() }))
}

/// A document, with its status.
pub(super) fn json(status: StatusCode, document: &impl Serialize) -> Response {
    let mut text = match serde_json::to_vec(document) {
        Ok(text) => text,
        Err(error) => return (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    };
    text.push(b'\n');
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("application/json")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (header::SERVER, HeaderValue::from_static(SERVER)),
    ];
    (status, headers, text).into_response()
}

/// A text of this type.
pub(super) fn text(content_type: &'static str, text: String) -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(content_type)),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (header::SERVER, HeaderValue::from_static(SERVER)),
    ];
    (StatusCode::OK, headers, text).into_response()
}

const SERVER: &str = concat!("gate/", env!("CARGO_PKG_VERSION"));
