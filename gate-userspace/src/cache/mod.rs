//! A cache by content: answers are found by what was asked, and their bodies kept once by what they are.
//!
//! ```text
//! key ──► record: heads, times, digests ──► body, named by its SHA-256
//!         memory, then redb (index.rs)       memory, then a file (blobs.rs)
//! ```
//!
//! - [`Cache`]: looks up, inserts and removes. Start here.
//! - `response`: an answer without its body, and what RFC 9111 lets be done with it. Pure.
//! - `record`: what is kept under a key, and how it is written. Pure.
//! - `processed`: what a processor made of a body, without the bytes. Pure.
//! - `key`: what was asked, of which host, and on whose behalf. Pure.
//! - `memory`: records and bodies in memory, bounded by bytes.
//! - `flights`: one fetch for all who ask for the same.
//! - `pieces`: a body that comes in pieces. Pure. `gathered`: the memory that such bodies take.
//! - `disk`: the part on disk. `writer`: the thread that writes. `directory`: its lock, and what is open of it.
//! - `index`: the database. `blobs`: the files.
//! - `removals`: keys whose removal has not reached the disk. `unwritten`: what is on its way there.
//! - `room`: whether the file system has room for it. `counters`, `digest`.
//!
//! **Invariants.** A body is given only if it has its digest: files are checked when they are read, so that neither a crash nor
//! a damaged disk changes an answer. A file is there before the record that names it, and goes after it. The database and the
//! files are touched by threads that serve no client. What is removed is not found again, whatever the disk still has.

mod blobs;
mod counters;
mod digest;
mod directory;
mod disk;
mod flights;
mod gathered;
mod index;
mod key;
mod memory;
mod pieces;
mod processed;
mod record;
mod removals;
mod response;
mod room;
mod store;
mod unwritten;
mod writer;

pub use counters::{CacheEvent, Counters};
pub use digest::Digest;
pub(crate) use flights::{Joined, Lead, Outcome};
pub(crate) use gathered::{Gathered, Holder, NoRoom};
pub use index::Usage;
pub(crate) use key::Key;
pub(crate) use pieces::Pieces;
pub(crate) use processed::Processed;
pub(crate) use record::Record;
pub(crate) use response::{
    CDN_CACHE_CONTROL, Fields, Freshness, StaleUse, StoredResponse, forbids_keeping, keyed_request,
    lower_case, says_of_freshness, says_of_keeping,
};
pub use room::room_warnings;
pub use store::{Cache, OpenError, Verified};
pub(crate) use store::{SCHEMES, ToWrite};
