//! A server of HTTP/1.1 whose answers a test writes, byte by byte.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Result, ensure};

use crate::proxy::address;

/// A server that answers until the test ends.
#[derive(Clone, Debug)]
pub struct HttpServer {
    /// Where it listens.
    pub address: SocketAddr,
    heads: Arc<Mutex<Vec<String>>>,
}

impl HttpServer {
    /// One that answers each head with these bytes, and closes the connection after what says so. `None` says nothing, and keeps
    /// the connection open.
    ///
    /// # Errors
    ///
    /// If it cannot listen.
    pub fn start(answer: impl Fn(&str) -> Option<Vec<u8>> + Send + Sync + 'static) -> Result<Self> {
        let listener = TcpListener::bind(address())?;
        let this = Self { address: listener.local_addr()?, heads: Arc::default() };
        let heads = Arc::clone(&this.heads);
        let answer = Arc::new(answer);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let heads = Arc::clone(&heads);
                let answer = Arc::clone(&answer);
                // A client that leaves ends it.
                std::thread::spawn(move || drop(serve(stream, &heads, &*answer)));
            }
        });
        Ok(this)
    }

    /// The heads that it has got since this was asked last.
    #[must_use]
    pub fn asked(&self) -> Vec<String> {
        std::mem::take(&mut *self.heads.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn serve(
    mut stream: TcpStream,
    heads: &Mutex<Vec<String>>,
    answer: &dyn Fn(&str) -> Option<Vec<u8>>,
) -> Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            ensure!(reader.read_line(&mut head)? > 0, "the end");
        }
        heads.lock().unwrap_or_else(PoisonError::into_inner).push(head.clone());
        let Some(bytes) = answer(&head) else {
            // Until the other end gives up.
            let mut rest = String::new();
            reader.read_line(&mut rest)?;
            return Ok(());
        };
        stream.write_all(&bytes)?;
        if bytes.windows(17).any(|part| part == b"connection: close") {
            return Ok(());
        }
    }
}

/// An answer with this status, these fields and this body.
#[must_use]
pub fn whole(status: u16, fields: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 {status} Status\r\n{fields}content-length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

/// The target of a request.
#[must_use]
pub fn target(head: &str) -> &str {
    head.split(' ').nth(1).unwrap_or_default()
}
