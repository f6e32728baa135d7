//! Requests to the admin socket, and replies.

use serde::{Deserialize, Serialize};

use super::change::Order;

/// A request, a line of JSON such as `{"ask":"status"}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "kebab-case")]
pub enum Request {
    /// A [`Status`](super::status::Status).
    Status,
    /// Every [`Tenant`](super::tenants::Tenant).
    Tenants,
    /// Every [`Key`](super::hotkeys::Key).
    Hotkeys,
    /// [`Queues`](super::queues::Queues).
    Queues,
    /// A change, or its dry run.
    Change(Order),
}

/// A reply: `{"ok": ...}` with the document, or `{"error": "..."}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    /// The document.
    Ok(serde_json::Value),
    /// Why there is none.
    Error(String),
}

/// Longer requests are refused.
pub(super) const MAX_REQUEST: u64 = 64 << 10;
