//! A client that has been accepted: its slot, and its task.

use std::io;
use std::os::fd::AsRawFd as _;
use std::rc::Rc;

use nix::sys::socket::{MsgFlags, send};

use super::service::{Service, Session};
use crate::dispatcher::accept::{Accepted, Front, reject_header};
use crate::dispatcher::clients::client::{CloseCause, ReplySink};
use crate::dispatcher::clients::proxy_header::{self, PendingHeaders, Rejected};
use crate::dispatcher::metrics::WorkerMetrics;
use crate::dispatcher::settings::Settings;
use crate::dispatcher::wire::Wire;

impl<W: Wire> Front for Service<W> {
    fn settings(&self) -> &Settings {
        &self.settings
    }

    fn metrics(&self) -> &WorkerMetrics {
        &self.metrics
    }

    fn is_full(&self) -> bool {
        Self::is_full(self)
    }

    fn pending_headers(&self) -> &PendingHeaders {
        &self.pending_headers
    }

    fn take_in(self: &Rc<Self>, client: Accepted) -> io::Result<()> {
        let Accepted { socket, source, may_have_header } = client;
        socket.set_nodelay(true)?;
        let (mut read, write) = socket.into_split();
        let client = Rc::new(Session::new(ReplySink::Stream(write), source, self));
        if Self::is_full(self) || !client.acquire_connection(self) {
            // A word before it is closed. It may have left; and nobody waits for it to read.
            let fd = client.socket().as_ref().as_raw_fd();
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
            let _ = send(fd, &self.refuse_connection(&client), flags);
            return Ok(());
        }
        self.register(&client);
        let service = Rc::clone(self);
        tokio::task::spawn_local(async move {
            if may_have_header {
                let has_header = tokio::select! {
                    has_header = proxy_header::begins_with_one(&mut read) => has_header,
                    _ = std::future::poll_fn(|cx| client.poll_ended(cx)) => false,
                };
                if has_header {
                    reject_header(&*service, source, &Rejected::Untrusted);
                    client.end(CloseCause::ClientLeft);
                }
            }
            let ended = client.serve(read, Rc::clone(&service)).await;
            service.unregister(ended);
        });
        Ok(())
    }
}
