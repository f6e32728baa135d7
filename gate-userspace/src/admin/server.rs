//! The clients of the admin socket: few at a time, each for a few seconds.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use serde::Serialize;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, copy, sink};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::time::{sleep, timeout};

use super::change::{self, Override, PendingOrder};
use super::queues::{Observer, Queues};
use super::request::{MAX_REQUEST, Reply, Request};
use super::socket::Socket;
use super::{hotkeys, status, tenants};
use crate::clock;
use crate::kernel::Maps;

/// The sources of the documents.
#[derive(Debug)]
pub struct Context {
    /// Where counters, names and states are.
    pub maps: Arc<Maps>,
    /// The readings of the queues.
    pub queues: Observer,
    /// The overrides.
    pub overrides: watch::Receiver<Vec<Override>>,
    /// The interfaces that have vanished.
    pub vanished: watch::Receiver<Vec<String>>,
    /// Where changes are made.
    pub changes: mpsc::Sender<PendingOrder>,
}

/// The thread that answers. Dropping it ends it, and removes the socket.
#[derive(Debug)]
pub struct Server {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    _socket: Socket,
}

impl Server {
    /// Starts answering.
    ///
    /// # Errors
    ///
    /// If there is no room for another thread.
    pub fn start(socket: Socket, context: Context) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = {
            let _entered = runtime.enter();
            UnixListener::from_std(socket.listener()?)?
        };
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new().name("gate-admin".to_owned()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    // Whoever can stop it is gone: that is a stop as well.
                    _ = stopped => {}
                    () = serve(listener, Arc::new(context)) => {}
                }
            });
        })?;
        Ok(Self { stop: Some(stop), thread: Some(thread), _socket: socket })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread of the admin socket has panicked");
        }
    }
}

async fn serve(listener: UnixListener, context: Arc<Context>) {
    let room = Arc::new(Semaphore::new(MAX_CLIENTS));
    let mut looks = tokio::time::interval(LOOK_EVERY);
    loop {
        let accepted = tokio::select! {
            _ = looks.tick() => {
                context.queues.look(clock::monotonic());
                continue;
            }
            // Those who find no room wait to be accepted.
            accepted = accept(&listener, &room) => accepted,
        };
        match accepted {
            Ok((stream, room)) => {
                let context = Arc::clone(&context);
                drop(tokio::spawn(async move {
                    // A client that leaves or dawdles has no answer.
                    let _ = timeout(PATIENCE, converse(stream, &context)).await;
                    drop(room);
                }));
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a client of the admin socket");
                sleep(PAUSE).await;
            }
        }
    }
}

async fn accept(
    listener: &UnixListener,
    room: &Arc<Semaphore>,
) -> io::Result<(UnixStream, tokio::sync::OwnedSemaphorePermit)> {
    let room = Arc::clone(room).acquire_owned().await.map_err(io::Error::other)?;
    Ok((listener.accept().await?.0, room))
}

async fn converse(mut stream: UnixStream, context: &Context) -> io::Result<()> {
    let (read, mut write) = stream.split();
    let mut read = BufReader::new(read);
    let mut line = Vec::new();
    timeout(HEARD_WITHIN, (&mut read).take(MAX_REQUEST + 1).read_until(b'\n', &mut line)).await??;
    let too_long = line.len() as u64 > MAX_REQUEST;
    let reply = if too_long {
        Reply::Error(format!("a request has at most {MAX_REQUEST} bytes"))
    } else {
        match serde_json::from_slice(&line) {
            Ok(request) => answer(request, context).await.unwrap_or_else(Reply::Error),
            Err(error) => Reply::Error(format!("not a request: {error}")),
        }
    };
    timeout(READ_WITHIN, write.write_all(&serde_json::to_vec(&reply)?)).await??;
    write.shutdown().await?;
    if too_long {
        // A client that is still writing would not read the answer if the connection were closed.
        timeout(HEARD_WITHIN, copy(&mut read.take(16 * MAX_REQUEST), &mut sink())).await??;
    }
    Ok(())
}

async fn answer(request: Request, context: &Context) -> Result<Reply, String> {
    let maps = &context.maps;
    match request {
        Request::Status => {
            let overrides = context.overrides.borrow().clone();
            // Private maps do not name their owner.
            let daemon = Some(std::process::id());
            let status = status::Status::read(maps).with(&context.queues.report());
            let vanished = context.vanished.borrow().clone();
            document(&status::Status { overrides, daemon, vanished, ..status })
        }
        Request::Tenants => document(&tenants::read(maps, &context.overrides.borrow())),
        Request::Hotkeys => document(&hotkeys::read(maps)),
        Request::Queues => {
            let overrides = context.overrides.borrow().clone();
            document(&Queues::read(&context.queues, &overrides, clock::monotonic()))
        }
        Request::Change(order) => document(&change::ask(&context.changes, order).await?),
    }
}

fn document(document: &impl Serialize) -> Result<Reply, String> {
    serde_json::to_value(document).map(Reply::Ok).map_err(|error| error.to_string())
}

/// Answered at once; others wait.
const MAX_CLIENTS: usize = 16;
/// How long a question may take to arrive.
const HEARD_WITHIN: Duration = Duration::from_secs(2);
/// How long an answer may take to be read.
const READ_WITHIN: Duration = Duration::from_secs(5);
/// How long a client may stay. A change waits for a tick, of 10 s at most.
const PATIENCE: Duration = Duration::from_secs(35);
const PAUSE: Duration = Duration::from_millis(50);
/// A document covers the last one or two of these.
const LOOK_EVERY: Duration = Duration::from_secs(10);
