//! The kernel boundary: the only user of aya.
//!
//! - [`object`]: the eBPF object inside this binary.
//! - [`Loaded`]: the object in the kernel, its maps, its test run.
//! - [`Maps`]: the maps, typed and in memory; also opened by whoever only looks. [`Sizes`]: how large they are made.
//! - `arrays`: how one is mapped, after its [`Shape`] is compared. [`PinnedHead`]: what all versions of them share.
//! - [`Cpus`], [`CpuWatch`]: which CPUs there are, and in which row of counters each counts. [`Row`]: where that is.
//! - [`Layer`]: where a request was counted; [`Cleared`]: what counters had before they were cleared.
//! - [`PinDir`]: where maps and link are pinned, so that they outlive the daemon.
//! - [`attach`], [`mark`], [`measure`]: the programs at an interface; [`Peer`]: what a veth's other end needs.
//! - [`interfaces`]: which of several interfaces has which link; [`stacking`]: which of them lie on others.
//! - [`Heartbeat`]: the sign of life that XDP looks for.
//! - [`Interception`]: the program that gives a store's new connections to gate. [`Lifeline`]: the sign of life that it looks for.
//!   [`InterceptionView`]: its state, for whoever only looks.
//! - `tcx`, `clsact`: how programs are attached behind the XDP program. `namespace`: this thread's network namespace.
//! - [`Migration`]: maps that give way to others.
//! - [`owner`]: who may write, and how an old daemon is ended.
//! - [`Trace`]: what the variant of the program that is built for it says of one source's packets.
//! - `requirements`: what a kernel must have, probed before anything is loaded.
//! - [`jiffies`]: how the kernel's clock is measured.

mod arrays;
pub mod attach;
mod attached;
mod btf;
mod cleared;
mod clsact;
mod counters;
mod cpus;
mod error;
mod heartbeat;
mod intercept;
mod intercept_keys;
mod intercept_state;
mod intercept_view;
pub mod interfaces;
pub mod jiffies;
mod layer;
mod link;
mod load;
mod mapped;
mod maps;
pub mod mark;
pub mod measure;
mod migration;
mod namespace;
pub mod object;
mod open;
pub mod owner;
mod peer;
mod pinned_head;
mod pins;
mod requirements;
mod samples;
mod shape;
mod sizes;
pub mod stacking;
mod tcx;
mod trace;
pub mod unsent;

pub use arrays::pinned_shapes;
pub use cleared::{Cleared, LastValues};
pub use counters::{Activity, Row};
pub use cpus::{CpuWatch, Cpus, Rows};
pub use error::{Error, Result};
pub use heartbeat::{Heartbeat, raise_priority};
pub use intercept::{Interception, Standing, Target};
pub use intercept_keys::{loopbacks, own_source};
pub use intercept_state::Lifeline;
pub use intercept_view::{InterceptedAddress, InterceptionView, Lost, Reaches};
pub use layer::{ByLayer, Layer};
pub use load::{Loaded, Runner};
pub use mapped::{Mapped, Words};
pub use maps::{Maps, Port};
pub use migration::Migration;
pub use open::{Opened, open};
pub use peer::Peer;
pub use pinned_head::PinnedHead;
pub use pins::PinDir;
pub use samples::{Received, Samples};
pub use shape::Shape;
pub use sizes::Sizes;
pub use trace::{Missed, Trace};
