//! The changes since the start.

use std::collections::VecDeque;
use std::hash::BuildHasher as _;
use std::sync::Arc;

use foldhash::fast::FixedState;
use tokio::sync::{mpsc, watch};

use crate::admin::Server;
use crate::admin::change::{Override, PendingOrder};
use crate::config::Config;

/// The changes since the start, and the server that accepts more.
pub(super) struct Changes {
    pub(super) overrides: watch::Sender<Vec<Override>>,
    pub(super) config: watch::Sender<Arc<Config>>,
    /// The interfaces that have vanished since, by name.
    pub(super) vanished: watch::Sender<Vec<String>>,
    /// The keys whose values count from the next start only, as of the last change.
    pub(super) later: watch::Sender<Vec<String>>,
    /// True until new clients of proxied services are no longer accepted.
    pub(super) accepting: watch::Sender<bool>,
    /// The configuration of the start.
    pub(super) started: Arc<Config>,
    /// The file whose values are in force, as [`fingerprint`] has it.
    pub(super) file: u64,
    /// Orders that come; for its tick each waits in `waiting`.
    pub(super) orders: mpsc::Receiver<PendingOrder>,
    pub(super) waiting: VecDeque<PendingOrder>,
    pub(super) sender: mpsc::Sender<PendingOrder>,
    pub(super) server: Option<Server>,
}

impl Changes {
    /// Nothing has been changed.
    pub(super) fn new(config: Arc<Config>) -> Self {
        let (sender, orders) = mpsc::channel(MOST_ORDERS);
        Self {
            overrides: watch::Sender::default(),
            config: watch::Sender::new(Arc::clone(&config)),
            vanished: watch::Sender::default(),
            later: watch::Sender::default(),
            accepting: watch::Sender::new(true),
            started: config,
            file: 0,
            orders,
            waiting: VecDeque::new(),
            sender,
            server: None,
        }
    }

    /// The configuration in force.
    pub(super) fn config(&self) -> Arc<Config> {
        self.config.borrow().clone()
    }
}

/// A number that another text hardly has.
pub(super) fn fingerprint(text: &str) -> u64 {
    FixedState::default().hash_one(text)
}

/// Orders that may wait for their tick.
const MOST_ORDERS: usize = 16;
