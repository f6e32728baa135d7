//! A store of which the test says what it answers, and what gate says of itself meanwhile.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::proxy::{Listening, PATIENCE};

/// A store of which the test says what it answers, request by request.
#[derive(Debug)]
pub struct Puppet {
    /// Where it listens.
    pub address: SocketAddr,
    heard: Receiver<(TcpStream, Vec<u8>)>,
}

impl Puppet {
    /// One on loopback.
    ///
    /// # Errors
    ///
    /// If it cannot listen.
    pub fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let (sender, heard) = channel();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let sender = sender.clone();
                std::thread::spawn(move || Self::listen(stream, &sender));
            }
        });
        Ok(Self { address, heard })
    }

    fn listen(mut stream: TcpStream, heard: &Sender<(TcpStream, Vec<u8>)>) {
        let mut piece = vec![0; 1 << 16];
        while let Ok(len @ 1..) = stream.read(&mut piece) {
            let Ok(mut answers) = stream.try_clone() else { return };
            // What gate asks by itself, once for each connection and before all else.
            let asked = piece[..len].strip_prefix(b"version\r\n");
            if asked.is_some() && answers.write_all(b"VERSION puppet\r\n").is_err() {
                return;
            }
            let asked = asked.unwrap_or(&piece[..len]);
            if !asked.is_empty() && heard.send((answers, asked.to_vec())).is_err() {
                return;
            }
        }
    }

    /// What it was asked next, and where to answer.
    ///
    /// # Errors
    ///
    /// If it is asked nothing.
    pub fn next(&self) -> Result<(TcpStream, Vec<u8>)> {
        self.next_within(PATIENCE)
    }

    /// [`Puppet::next`], without waiting for longer than this.
    ///
    /// # Errors
    ///
    /// If it is asked nothing.
    pub fn next_within(&self, patience: Duration) -> Result<(TcpStream, Vec<u8>)> {
        self.heard.recv_timeout(patience).context("the store was asked nothing")
    }
}

/// One of the figures that a gate before memcached counts itself.
///
/// # Errors
///
/// If it does not say.
pub fn figure(gate: &Listening, name: &str) -> Result<u64> {
    let said = String::from_utf8(gate.ask(b"stats gate\r\n", b"END\r\n")?)?;
    let line = said.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
    Ok(line.with_context(|| format!("no {name} in {said}"))?.parse()?)
}
