//! A new connection to the store: made, set up for its client, and asked one thing at a time.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::identity::{Greeting, Identity};
use super::settings::Settings;
use super::store::Broken;
use super::wire::Garbage;
use crate::protocol::resp::{Kind, Part, Replies, error_code};

/// A connection that nobody shares yet.
#[derive(Debug)]
pub(super) struct Line {
    socket: TcpStream,
    patience: Duration,
    replies: Replies,
    heard: Vec<u8>,
}

impl Line {
    /// A new connection of a client that is `identity`.
    ///
    /// # Errors
    ///
    /// If it cannot be had in time, or the store does not accept the identity ([`Broken::Refused`]).
    pub(super) async fn open(settings: &Settings, identity: &Identity) -> Result<Self, Broken> {
        let patience = settings.store_timeout().into();
        let greeting = identity.greeting(settings.backend.login.as_ref())?;
        let connecting = TcpStream::connect(settings.backend.address);
        let socket = timeout(patience, connecting).await.map_err(|_| Broken::Overdue)??;
        socket.set_nodelay(true)?;
        let mut this = Self { socket, patience, replies: Replies::new(LONGEST), heard: Vec::new() };
        timeout(patience, this.greet(&greeting)).await.map_err(|_| Broken::Overdue)??;
        Ok(this)
    }

    /// Sends one request; what is answered, whole.
    ///
    /// # Errors
    ///
    /// If no answer comes in time.
    pub(super) async fn ask(&mut self, request: &[u8]) -> Result<Vec<u8>, Broken> {
        let patience = self.patience;
        let asking = async {
            self.socket.write_all(request).await?;
            self.reply().await
        };
        timeout(patience, asking).await.map_err(|_| Broken::Overdue)?
    }

    /// The connection, of which nothing is outstanding.
    pub(super) fn into_socket(self) -> TcpStream {
        self.socket
    }

    async fn greet(&mut self, greeting: &Greeting) -> Result<(), Broken> {
        if greeting.requests == 0 {
            return Ok(());
        }
        self.socket.write_all(greeting.bytes.bytes()).await?;
        for left in (0..greeting.requests).rev() {
            let reply = self.reply().await?;
            // That a connection cannot be named harms nobody.
            if error_code(&reply).is_some() && !(greeting.named && left == 0) {
                return Err(refused(reply));
            }
        }
        Ok(())
    }

    async fn reply(&mut self) -> Result<Vec<u8>, Broken> {
        loop {
            let part = self.replies.next(&self.heard).map_err(|garbage| Garbage(garbage.to_string()))?;
            match part {
                Part::More { .. } => {
                    if self.socket.read_buf(&mut self.heard).await? == 0 {
                        return Err(Broken::Closed);
                    }
                }
                Part::Reply { len, kind: Kind::Push, last: true } => drop(self.heard.drain(..len)),
                Part::Reply { len, last: true, .. } => return Ok(self.heard.drain(..len).collect()),
                Part::Reply { .. } | Part::Body { .. } => {
                    return Err(Garbage("an answer that is too long".to_owned()).into());
                }
            }
        }
    }
}

/// What an error in answer to a greeting means: that the store is not ready now, or that this is no way to greet it.
fn refused(reply: Vec<u8>) -> Broken {
    let passing = matches!(error_code(&reply), Some(b"LOADING" | b"MASTERDOWN" | b"BUSY" | b"TRYAGAIN"));
    if passing || reply.starts_with(b"-ERR max number of clients") {
        return Broken::Unwell(String::from_utf8_lossy(&reply).into_owned());
    }
    Broken::Refused(reply)
}

/// Answers to what is asked here are short.
const LONGEST: usize = 64 << 10;
