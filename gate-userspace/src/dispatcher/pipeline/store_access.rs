//! The store's access for unauthenticated clients.
//!
//! **Problem.** A password that is set while the store runs (`CONFIG SET requirepass`, `ACL SETUSER default`) holds for new
//! connections alone. gate's shared connections are old ones: a client that comes later would go on over them without the
//! password. **Rule.** One thread asks twice a second, as a new client would, on a connection kept for this: `RESET` makes
//! it a new one to the store, `PING` tells whether a password is wanted. When one is wanted that was not before,
//! clients that come from then on get new shared connections, on which the store itself refuses what they ask.
//!
//! **Who is connected goes on**, as with the store itself: over the shared connections that are there. What needs a
//! new connection (a long request, a dedicated connection, another database) is refused to them as well.

use std::rc::Rc;
use std::time::Duration;

use super::service::Service;
use crate::dispatcher::identity::Identity;
use crate::dispatcher::settings::Settings;
use crate::dispatcher::store_place::NodeId;
use crate::dispatcher::stores::dedicated::{DedicatedConnection, STATUS};
use crate::dispatcher::stores::error::StoreError;
use crate::dispatcher::wire::Wire;

/// The store's access, as far as it is known.
#[derive(Debug, Default)]
struct Access {
    line: Option<DedicatedConnection>,
    seen: Seen,
}

/// The store's reply to the last unauthenticated client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Seen {
    /// Not asked yet.
    #[default]
    Nothing,
    /// The store was not reachable.
    Unreachable,
    /// Accepted.
    Open,
    /// The store asked for a password.
    Closed,
}

/// Looks again and again, for all threads.
pub(crate) async fn watch<W: Wire>(service: Rc<Service<W>>) {
    let mut access = Access::default();
    loop {
        if access.has_closed(&service.settings).await {
            let service_name = &service.settings.name;
            tracing::info!(service = service_name, "the store wants a password of new clients");
            service.pools.scopes().close();
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Takes note of what has been seen. To be called often, in each thread.
pub(crate) fn follow<W: Wire>(service: &Rc<Service<W>>) {
    if service.pools.follow_access(service) {
        service.clear_lines();
    }
}

impl Access {
    /// True if the store wants a password, and did not when it was asked before. It may have changed while it was not
    /// reachable.
    async fn has_closed(&mut self, settings: &Settings) -> bool {
        let now = match self.lets_in(settings).await {
            Some(true) => Seen::Open,
            Some(false) => Seen::Closed,
            None if self.seen == Seen::Closed => Seen::Closed,
            None => Seen::Unreachable,
        };
        let before = std::mem::replace(&mut self.seen, now);
        now == Seen::Closed && matches!(before, Seen::Open | Seen::Unreachable)
    }

    /// Asks as a new unauthenticated client: true if it is accepted, `None` if the store is not reachable.
    async fn lets_in(&mut self, settings: &Settings) -> Option<bool> {
        let unauthenticated = Identity::default();
        let unauthenticated = Some(&unauthenticated);
        let line = match self.line.take() {
            Some(line) => match line.anew(settings, unauthenticated).await {
                Err(StoreError::Refused(_)) => return Some(false),
                Err(_) => DedicatedConnection::open(settings, NodeId::FIRST, unauthenticated).await,
                line => line,
            },
            None => DedicatedConnection::open(settings, NodeId::FIRST, unauthenticated).await,
        };
        match line {
            Ok(mut line) => {
                let answer = line.ask(settings, b"PING\r\n", STATUS).await.ok()?;
                self.line = Some(line);
                Some(!answer.starts_with(b"-NOAUTH"))
            }
            Err(StoreError::Refused(_)) => Some(false),
            Err(_) => None,
        }
    }
}

/// New clients are to be refused within a second.
const LOOK_EVERY: Duration = Duration::from_millis(400);
