//! A fake store, whose answers the test writes, and gate's own counters.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use anyhow::{Context as _, Result};
use gate_userspace::admin::client;
use gate_userspace::admin::queues::Queues;

use crate::proxy::{Listening, PATIENCE};

/// A store whose answers the test writes, request by request.
#[derive(Debug)]
pub struct FakeStore {
    /// The address that it listens at.
    pub address: SocketAddr,
    received: Receiver<(TcpStream, Vec<u8>)>,
}

impl FakeStore {
    /// Starts one on loopback.
    ///
    /// # Errors
    ///
    /// If it cannot listen.
    pub fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let (sender, received) = channel();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let sender = sender.clone();
                std::thread::spawn(move || Self::serve(stream, &sender));
            }
        });
        Ok(Self { address, received })
    }

    fn serve(mut stream: TcpStream, received: &Sender<(TcpStream, Vec<u8>)>) {
        let mut piece = vec![0; 1 << 16];
        while let Ok(len @ 1..) = stream.read(&mut piece) {
            let Ok(mut answers) = stream.try_clone() else { return };
            // gate's own first request on each connection.
            let request = piece[..len].strip_prefix(b"version\r\n");
            if request.is_some() && answers.write_all(b"VERSION fake\r\n").is_err() {
                return;
            }
            let request = request.unwrap_or(&piece[..len]);
            if !request.is_empty() && received.send((answers, request.to_vec())).is_err() {
                return;
            }
        }
    }

    /// The next request, and the connection to answer on.
    ///
    /// # Errors
    ///
    /// If no request comes.
    pub fn next(&self) -> Result<(TcpStream, Vec<u8>)> {
        self.next_within(PATIENCE)
    }

    /// [`FakeStore::next`], without waiting for longer than this.
    ///
    /// # Errors
    ///
    /// If no request comes.
    pub fn next_within(&self, patience: Duration) -> Result<(TcpStream, Vec<u8>)> {
        self.received.recv_timeout(patience).context("the store was asked nothing")
    }
}

/// One of the counters of a gate's first service, as of now.
///
/// # Errors
///
/// If there is no such counter.
pub fn counter(gate: &Listening, name: &str) -> Result<u64> {
    let (_, socket) = gate.files()?;
    let queues: Queues = client::read(&socket)?;
    let service = queues.services.first().context("it has no service")?;
    service.events.get(name).copied().with_context(|| format!("no {name} in {:?}", service.events))
}
