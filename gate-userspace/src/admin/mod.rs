//! The admin sockets: the documents and orders of a running gate, over HTTP/1.1.
//!
//! `GET /v1/NAME` answers with a JSON document, `POST /v1/set` carries out an order; then the connection ends. The
//! socket of `admin` is its owner's alone (mode 0600); that of `admin_read` is its group's as well (mode 0660), and
//! refuses orders. A TCP port (`admin_http`) shows the same, keys against a token alone. They are served by a thread of its own, which reads what others publish: nothing that a client
//! does, or does not do, holds up a tick.
//!
//! - `socket`: the file, who may open it, and whose it is.
//! - `server`: the thread and its clients, a bounded number of them for a bounded time.
//! - `http`, `response`: paths and answers; [`health`]: whether gate lives and is ready.
//! - `tcp`: who may read what over TCP; `metrics`: what Prometheus reads. `page`: the page that a browser gets there; `events`, [`snapshot`]: what it shows; `history`: what its charts showed before.
//! - [`client`]: one request, one answer.
//! - [`document`]: names, schemas and their version.
//! - [`cache`]: the caches of HTTP services; [`fleet`]: the owners of limits.
//! - [`change`]: what may be changed while gate runs.
//! - [`explain`]: what the next request would get.
//! - [`verdicts`]: sampled verdicts, and the sources that are refused most.
//! - [`interception`]: the stores' addresses at which gate gets the connections.
//! - [`price`], [`store`], [`nodes`], [`percentiles`]: prices, stores and times in these documents.
//! - [`observer`]: the window of counters that a document shows.
//! - [`status`], [`tenants`], [`hotkeys`], [`queues`]: the documents, read from the maps or what threads count.
//! - [`members`]: the members of tenants that have spent most.
//! - [`selection`], [`listing`]: the tenants that a query wants, in its order; [`rates`], [`totals`], `survey`: what each does a
//!   second, and all of them together.

use std::path::{Path, PathBuf};

pub mod cache;
pub mod change;
pub mod client;
pub mod document;
mod events;
pub mod explain;
pub mod fleet;
pub mod health;
pub mod history;
pub mod hotkeys;
mod http;
pub mod in_passing;
pub mod interception;
pub mod listing;
pub mod members;
mod metrics;
pub mod nodes;
pub mod observer;
mod page;
pub mod percentiles;
pub mod price;
pub mod queues;
pub mod rates;
pub mod reasons;
mod response;
pub mod selection;
mod server;
pub mod snapshot;
mod socket;
mod sources;
pub mod status;
pub mod store;
mod survey;
mod tcp;
pub mod tenants;
pub mod totals;
pub mod verdicts;

pub use http::Access;
pub use server::{Listeners, Server};
pub use socket::{Audience, Error, Socket, remove_dead};
pub use sources::Sources;
pub use tcp::{Rules, Token};

/// Where the socket of a gate with these pins is, unless its configuration says otherwise.
#[must_use]
pub fn default_path(pin_dir: &Path) -> PathBuf {
    let name = pin_dir.file_name().unwrap_or("gate".as_ref());
    Path::new(DIRECTORY).join(name).with_added_extension("sock")
}

const DIRECTORY: &str = "/run/gate";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pin_directory_has_a_socket_of_its_own() {
        for (pins, socket) in [("/sys/fs/bpf/gate", "gate.sock"), ("/sys/fs/bpf/a.b", "a.b.sock")] {
            assert_eq!(default_path(Path::new(pins)), Path::new("/run/gate").join(socket));
        }
    }
}
