//! gate's user space: the daemon, the command line, the policies and the simulator.
//!
//! Where to look:
//!
//! - [`policy`]: every control algorithm. Pure: time and randomness are arguments.
//! - [`sim`]: the discrete-event simulator, which runs those very policies.
//! - [`protocol`]: codecs. Pure: bytes in, events out.
//! - [`bypass`]: ways to guarded services past the XDP program.
//! - [`config`]: TOML in, a valid configuration out, or every fault with its line.
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
//! - [`limits`]: quotas of names that are no tenants, in bounded memory.
//! - [`load`]: the open-loop load generator, and a store to send it to.
//! - [`logging`]: the log on standard error, which holds up nobody.
//! - [`clock`]: the only reader of the clock.
//! - [`system_error`]: errors of the system in words, with a remedy.
//! - [`cli`]: arguments, printing, exit codes.

pub use gate_policy as policy;
pub use gate_protocol as protocol;

pub mod admin;
pub mod bypass;
pub mod cache;
pub mod certificates;
pub mod cli;
pub mod clock;
pub mod config;
pub mod control;
pub mod daemon;
pub(crate) mod descriptors;
pub mod dispatcher;
pub mod envoy;
pub mod explanation;
pub mod fleet;
pub mod kernel;
pub mod limits;
pub mod load;
pub mod logging;

pub mod probe;
pub(crate) mod processing;
pub mod sim;
pub mod system_error;
