//! A memcached that takes its time, and does one command after the other.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;

/// A memcached without values that takes `service_time` for every key, one after the other, whoever asks.
///
/// # Errors
///
/// If it cannot listen.
pub fn slow_store(service_time: Duration) -> Result<SocketAddr> {
    slow_store_at("127.0.0.1:0", move |command| service_time * keys(command))
}

/// The same, at this address, where a command takes as long as `cost` says of its words.
///
/// # Errors
///
/// If it cannot listen.
pub fn slow_store_at(
    address: &str,
    cost: impl Fn(&[u8]) -> Duration + Copy + Send + 'static,
) -> Result<SocketAddr> {
    let listener = TcpListener::bind(address)?;
    let address = listener.local_addr()?;
    let turn = Arc::new(Mutex::new(()));
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let turn = Arc::clone(&turn);
            std::thread::spawn(move || serve_slowly(stream, cost, &turn));
        }
    });
    Ok(address)
}

/// How many keys a command names.
#[must_use]
pub fn keys(command: &[u8]) -> u32 {
    command.iter().filter(|&&byte| byte == b' ').count() as u32
}

fn serve_slowly(mut stream: TcpStream, cost: impl Fn(&[u8]) -> Duration, turn: &Mutex<()>) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut received = Vec::new();
    let mut piece = vec![0; 1 << 16];
    loop {
        let len = stream.read(&mut piece).ok().filter(|&len| len > 0)?;
        received.extend_from_slice(&piece[..len]);
        while let Some(end) = received.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = received.drain(..=end).collect();
            let answer: &[u8] = match line.split(|&byte| byte == b' ').next() {
                Some(b"get") => b"END\r\n",
                Some(b"version\r\n") => b"VERSION slow\r\n",
                _ => b"DELETED\r\n",
            };
            if keys(&line) > 0 {
                let _mine = turn.lock().unwrap_or_else(PoisonError::into_inner);
                std::thread::sleep(cost(&line));
            }
            stream.write_all(answer).ok()?;
        }
    }
}
