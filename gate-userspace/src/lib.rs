//! gate's user space: the daemon and the command line, and the crates beside them.
//!
//! Crates of their own, each in a folder beside `src`:
//!
//! - [`policy`]: every control algorithm. Pure: time and randomness are arguments.
//! - [`protocol`]: codecs. Pure: bytes in, events out.
//! - [`config`]: TOML in, a valid configuration out, or every fault with its line.
//! - [`limits`]: quotas of names that are no tenants, in bounded memory.
//! - [`fleet`]: one quota for a fleet of gates.
//! - `lab`: the simulator ([`sim`]), which runs the very policies; the load generator and a store to send its load to ([`load`]).
//! - `system`: the only reader of the clock ([`clock`]); errors of the system in words, with a remedy ([`system_error`]).
//!
//! Rooms:
//!
//! - [`bypass`]: ways to guarded services past the XDP program.
//! - [`control`]: what every tick reads, decides and writes.
//! - [`daemon`]: `gate run`.
//! - `descriptors`: the files that may be open.
//! - [`admin`]: what a running gate can be asked and told over its socket.
//! - [`probe`]: asks guarded services how they are.
//! - [`dispatcher`]: proxied services, from a client's bytes to the store and back.
//! - [`cache`]: answers over HTTP, found by what was asked and kept once by what they are.
//! - `processing`: what threads share of the processing of originals: permits, names of blobs.
//! - [`certificates`]: certificates and keys in the files that a configuration names.
//! - [`envoy`]: the server that Envoys ask whether a request may pass.
//! - [`explanation`]: what the next request would get, as data.
//! - [`kernel`]: the eBPF object, its maps and links; the only user of aya.
//! - [`logging`]: the log on standard error, which holds up nobody.
//! - [`cli`]: arguments, printing, exit codes.

pub use gate_config as config;
pub use gate_fleet as fleet;
pub use gate_lab::{load, sim};
pub use gate_limits as limits;
pub use gate_policy as policy;
pub use gate_protocol as protocol;
pub use gate_system::{clock, mounts, system_error};

pub mod admin;
pub mod bypass;
pub mod cache;
pub mod certificates;
pub mod cli;
pub mod control;
pub mod daemon;
pub(crate) mod descriptors;
pub mod dispatcher;
pub mod envoy;
pub mod explanation;
pub mod kernel;
pub mod logging;

pub mod probe;
pub(crate) mod processing;
