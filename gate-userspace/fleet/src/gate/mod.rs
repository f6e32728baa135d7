//! A gate's side: what it gave out is reported to each limit's owner once a tick, and what it is told holds until the next one.
//!
//! - [`book`]: what there is to report, and what gate was told. The control loop and the connections meet there.
//! - [`grant`]: what it may give out of a limit; `debt`: what is owed of it.
//! - [`names`]: the named limits that it shares.
//! - [`link`]: the session with one owner.
//! - [`shared`]: a book that both share.
//! - [`reporter`]: the thread with a connection to each owner.

pub mod book;
mod debt;
pub mod grant;
pub mod link;
pub mod names;
pub mod reporter;
pub mod shared;
