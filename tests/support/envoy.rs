//! A real Envoy on loopback that asks a gate, before a backend of its own.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Result;
use xtask::lab::fleet::envoy::{EnvoyPlace, start};
use xtask::lab::process::ChildProcess;

use crate::http::{Answer, curl};
use crate::proxy::address;

pub use xtask::lab::fleet::envoy::Filter;

/// A running Envoy; ends when dropped.
#[derive(Debug)]
pub struct Envoy {
    /// Where it listens.
    pub address: SocketAddr,
    _program: ChildProcess,
}

impl Envoy {
    /// One that asks the gate at `gate`, an address or the path of a Unix socket.
    ///
    /// # Errors
    ///
    /// If it is not there (`cargo xtask setup` fetches it), or does not come up.
    pub fn start(gate: &str, filter: Filter) -> Result<Self> {
        let address = address();
        let place = EnvoyPlace {
            address,
            backend: SocketAddr::new(address.ip(), address.port() + 1),
            config: std::env::temp_dir().join(format!("envoy-{}-{}.yaml", std::process::id(), address.ip())),
            number: std::process::id() * 64 + PLACES.fetch_add(1, Ordering::Relaxed) % 64,
        };
        let started = start(&place, gate, filter);
        // It lies in the directory for temporary files.
        let _ = std::fs::remove_file(&place.config);
        Ok(Self { address, _program: started? })
    }

    /// Its answer to a request with one field more.
    ///
    /// # Errors
    ///
    /// If it gives none.
    pub fn ask(&self, field: &str) -> Result<Answer> {
        curl(&["-H", field, &format!("http://{}/", self.address)])
    }
}

/// Each Envoy of a machine needs a number of its own.
static PLACES: AtomicU32 = AtomicU32::new(0);
