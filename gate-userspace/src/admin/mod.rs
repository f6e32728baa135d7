//! The admin socket: the documents and orders of a running gate, for its owner.
//!
//! A client connects, sends one [`Request`], a line of JSON, and gets one [`Reply`], a JSON document; then the
//! connection ends. The socket is its owner's alone (mode 0600). It is served by a thread of its own, which
//! reads what others publish: nothing that a client does, or does not do, holds up a tick.
//!
//! - `socket`: the file, who may open it, and whose it is.
//! - `server`: clients, a bounded number of them for a bounded time.
//! - [`client`]: one question, one answer.
//! - [`change`]: what may be changed while gate runs.
//! - [`price`]: prices in these documents.
//! - [`status`], [`tenants`], [`hotkeys`], [`queues`]: the documents, read from the maps or what threads count.

use std::path::{Path, PathBuf};

pub mod change;
pub mod client;
pub mod hotkeys;
pub mod price;
pub mod queues;
mod request;
mod server;
mod socket;
pub mod status;
pub mod tenants;

pub use request::{Reply, Request};
pub use server::{Context, Server};
pub use socket::{Error, Socket, remove_dead};

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
