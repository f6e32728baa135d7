//! Documents of the admin interface: their names, their schemas and the version of these.

use schemars::{JsonSchema, Schema, schema_for};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::cache::{Caches, Purged, VerifiedCaches};
use super::change::{Done, Order};
use super::health::{Live, Ready};
use super::history::History;
use super::hotkeys::Hotkeys;
use super::listing::Tenants;
use super::members::MemberList;
use super::queues::Queues;
use super::reasons::Reasons;
use super::snapshot::Snapshot;
use super::status::Status;
use super::verdicts::{SourceList, Watched};
use crate::explanation::Explanation;

/// The version of all documents. Raised when a field changes its meaning or goes; new fields leave it as it is.
pub const SCHEMA_VERSION: u32 = 1;

/// A document that `GET /v1/NAME` answers with.
pub trait Document: Serialize + DeserializeOwned + JsonSchema {
    /// Its name in the path, on the command line and in `gate schema`.
    const NAME: &'static str;
}

/// Implements [`Document`].
macro_rules! documents {
    ($($document:ty: $name:literal,)*) => {
        $(impl Document for $document {
            const NAME: &'static str = $name;
        })*
    };
}

documents! {
    Status: "status",
    Tenants: "tenants",
    Hotkeys: "hotkeys",
    Queues: "queues",
    MemberList: "members",
    SourceList: "sources",
    Watched: "watch",
    Explanation: "explain",
    Caches: "cache",
    History: "history",
    Reasons: "reasons",
}

/// A document with the version of its schema.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Versioned<T> {
    /// As [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The document itself; its fields stand beside the version.
    #[serde(flatten)]
    pub document: T,
}

impl<T> Versioned<T> {
    /// Of this version of gate.
    pub const fn new(document: T) -> Self {
        Self { schema_version: SCHEMA_VERSION, document }
    }
}

/// Why a request is not answered with a document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Failure {
    /// The reason, and what would be right.
    pub error: String,
}

/// The schemas that [`schema`] knows.
pub const SCHEMAS: [&str; 19] = [
    "live", "ready", "status", "tenants", "hotkeys", "queues", "explain", "members", "sources", "watch",
    "events", "history", "reasons", "cache", "purge", "verify", "order", "set", "error",
];

/// The JSON schema of a document, of the body of `POST /v1/set` (`order`), of its result (`set`), of a failure
/// (`error`), of an event of `/v1/events` (`events`), or of what its charts showed before (`history`).
#[must_use]
pub fn schema(name: &str) -> Option<Schema> {
    Some(match name {
        "live" => schema_for!(Versioned<Live>),
        "ready" => schema_for!(Versioned<Ready>),
        Status::NAME => schema_for!(Versioned<Status>),
        Tenants::NAME => schema_for!(Versioned<Tenants>),
        Hotkeys::NAME => schema_for!(Versioned<Hotkeys>),
        Queues::NAME => schema_for!(Versioned<Queues>),
        MemberList::NAME => schema_for!(Versioned<MemberList>),
        SourceList::NAME => schema_for!(Versioned<SourceList>),
        Watched::NAME => schema_for!(Versioned<Watched>),
        Explanation::NAME => schema_for!(Versioned<Explanation>),
        Caches::NAME => schema_for!(Versioned<Caches>),
        "purge" => schema_for!(Versioned<Purged>),
        "verify" => schema_for!(Versioned<VerifiedCaches>),
        "events" => schema_for!(Versioned<Snapshot>),
        History::NAME => schema_for!(Versioned<History>),
        Reasons::NAME => schema_for!(Versioned<Reasons>),
        "order" => schema_for!(Order),
        "set" => schema_for!(Versioned<Done>),
        "error" => schema_for!(Versioned<Failure>),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_listed_schema_is_there_and_says_what_fields_mean() {
        for name in SCHEMAS {
            let schema = schema(name).unwrap_or_else(|| panic!("{name}"));
            assert!(schema.as_value().to_string().contains("\"description\""), "{name}");
        }
        assert!(schema("money").is_none());
    }

    #[test]
    fn the_version_stands_beside_the_fields_of_a_document() {
        let text = serde_json::to_string(&Versioned::new(Failure { error: "no".to_owned() })).unwrap();
        assert_eq!(text, r#"{"schema_version":1,"error":"no"}"#);
    }
}
