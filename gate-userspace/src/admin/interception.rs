//! The stores' addresses at which gate gets the connections, in documents.

use std::borrow::Cow;
use std::path::Path;

use gate_common::units::Nanos;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::kernel::{self, InterceptionView, Lost, Reaches};

/// The interception of a gate, which may be gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Interception {
    /// True if the program that gives connections to gate is attached.
    pub attached: bool,
    /// The time since it was attached; nothing if it is not.
    pub attached_ms_ago: Option<u64>,
    /// The process id of the gate that owns it; nothing if that is gone.
    pub owner: Option<u32>,
    /// The age of the owner's last heartbeat; nothing if there was none.
    pub heartbeat_age_ms: Option<u64>,
    /// The age from which on a heartbeat is stale.
    pub stale_after_ms: u64,
    /// The addresses, in the order of their services.
    pub addresses: Vec<InterceptedAddress>,
}

/// An address of a store whose connections gate is to get.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InterceptedAddress {
    /// The service's name.
    pub service: String,
    /// The address and the port; `0.0.0.0` and `[::]` are all of a family.
    pub address: String,
    /// True if connections from the machine itself are intercepted as well.
    pub local: bool,
    /// The end of new connections while gate is lost: `pass` or `refuse`.
    pub on_lost: Cow<'static, str>,
    /// The end of a client's next connection: `gate`, `store` or `nobody`.
    pub reaches: Cow<'static, str>,
    /// The reason if that is not gate: `not attached`, `gate is gone` or `heartbeat is stale`.
    pub why: Option<Cow<'static, str>>,
    /// New connections that gate got since the address has been intercepted.
    pub to_gate: u64,
    /// New connections that reached the store because no gate lived.
    pub to_store: u64,
    /// New connections that were refused because no gate lived.
    pub refused: u64,
}

impl Interception {
    /// The one that is pinned below `directory`, if there is one that may be read.
    #[must_use]
    pub fn read(directory: &Path) -> Option<Self> {
        Some(Self::of(&InterceptionView::read(directory)?, clock::monotonic()))
    }

    fn of(view: &InterceptionView, now: Nanos) -> Self {
        let ms_ago = |then: Nanos| now.saturating_sub(then).0 / 1_000_000;
        Self {
            attached: view.is_attached,
            attached_ms_ago: view.is_attached.then(|| ms_ago(view.attached_at)),
            owner: view.owner,
            heartbeat_age_ms: (view.heartbeat != Nanos::ZERO).then(|| ms_ago(view.heartbeat)),
            stale_after_ms: view.stale_after.0 / 1_000_000,
            addresses: view
                .addresses
                .iter()
                .map(|address| InterceptedAddress::of(address, view.reaches(address, now)))
                .collect(),
        }
    }

    /// True if a gate owns it and shows that it lives.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.owner.is_some() && self.heartbeat_age_ms.is_some_and(|age| age <= self.stale_after_ms)
    }

    /// The addresses of a service.
    pub fn addresses_of<'s>(&'s self, service: &'s str) -> impl Iterator<Item = &'s InterceptedAddress> {
        self.addresses.iter().filter(move |address| address.service == service)
    }
}

impl InterceptedAddress {
    fn of(address: &kernel::InterceptedAddress, reaches: Reaches) -> Self {
        let (reaches, why) = match reaches {
            Reaches::Gate => ("gate", None),
            Reaches::Store(lost) => ("store", Some(why(lost))),
            Reaches::Nobody(lost) => ("nobody", Some(why(lost))),
        };
        Self {
            service: address.service.clone(),
            address: address.address.to_string(),
            local: address.local,
            on_lost: if address.refuses { "refuse" } else { "pass" }.into(),
            reaches: reaches.into(),
            why: why.map(Cow::Borrowed),
            to_gate: address.given,
            to_store: address.passed,
            refused: address.refused,
        }
    }

    /// The end of a client's next connection, and the reason, in words.
    #[must_use]
    pub fn in_words(&self) -> String {
        let end = match &*self.reaches {
            "gate" => "reach gate",
            "store" => "reach the store",
            _ => "are refused",
        };
        self.why.as_ref().map_or_else(|| end.to_owned(), |why| format!("{end}: {why}"))
    }
}

const fn why(lost: Lost) -> &'static str {
    match lost {
        Lost::NotAttached => "not attached",
        Lost::Gone => "gate is gone",
        Lost::Stale => "heartbeat is stale",
    }
}
