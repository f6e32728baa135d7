//! Which requests may wait for the store, which is next, and which have waited too long.
//!
//! - [`policy`]: what all threads of a service ask before a request may wait.
//! - [`queue`], [`waiting`]: those that wait for a place, and how they join and leave.
//! - [`delay`]: how long they wait, and whether that is too long.

pub(super) mod delay;
pub(super) mod dispatch;
pub(super) mod policy;
pub(super) mod queue;
