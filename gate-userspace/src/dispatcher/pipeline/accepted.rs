//! A client that has been accepted: its slot, and its task.

use std::io;
use std::rc::Rc;

use gate_common::abi::Reason;

use super::service::{Service, Session};
use crate::dispatcher::accept::{Accepted, Front, reject_handshake, reject_header};
use crate::dispatcher::clients::client::{CloseCause, ReplySink};
use crate::dispatcher::clients::handshake::{self, HandshakeError};
use crate::dispatcher::clients::proxy_header::{self, PendingHeaders, Rejected};
use crate::dispatcher::clients::stream::{self, ClientReader};
use crate::dispatcher::metrics::WorkerMetrics;
use crate::dispatcher::settings::Settings;
use crate::dispatcher::tls::turns::Party;
use crate::dispatcher::wire::Wire;
use crate::protocol::Refusal;

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
        let (mut read, write) = match &self.settings.tls {
            None => stream::plain(socket),
            Some(tls) => stream::secure(tls.borrow().accept(socket)?),
        };
        let client = Rc::new(Session::new(ReplySink::Stream(write), source, self));
        if Self::is_full(self) || !client.acquire_connection(self) {
            let word = self.refuse_connection(&client);
            // Before a handshake there are no words for a client that speaks TLS.
            if let ClientReader::Plain(_) = read {
                client.socket().say_plainly(&word);
            }
            return Ok(());
        }
        self.register(&client);
        let service = Rc::clone(self);
        tokio::task::spawn_local(async move {
            if may_have_header || matches!(read, ClientReader::Tls(_)) {
                // In a box: it is over soon.
                let opening = Box::pin(open(&mut read, &client, &service));
                tokio::select! {
                    () = opening => {}
                    _ = std::future::poll_fn(|cx| client.poll_ended(cx)) => {}
                }
            }
            let ended = client.serve(read, Rc::clone(&service)).await;
            service.unregister(ended);
        });
        Ok(())
    }
}

/// Waits for what comes before a client's first request: its TLS handshake, or the header that it may not send. A client that
/// does not get so far is ended.
async fn open<W: Wire>(read: &mut ClientReader, client: &Session<W>, service: &Service<W>) {
    match read {
        ClientReader::Plain(read) => {
            if proxy_header::begins_with_one(read).await {
                reject_header(service, client.source, &Rejected::Untrusted);
                client.end(CloseCause::ClientLeft);
            }
        }
        ClientReader::Tls(socket) => {
            let patience = service.limits.get().unknown_timeout.into();
            let party = Party::new(Some(client.tenant.get()), client.source);
            let turns = (&service.turns, party);
            match handshake::complete(socket, turns, &service.metrics, patience).await {
                Ok(()) => client.update_memory(&client.conversation.borrow()),
                Err(why) => end_handshake(client, service, &why),
            }
        }
    }
}

/// Ends a client that does not speak TLS where it has to.
fn end_handshake<W: Wire>(client: &Session<W>, service: &Service<W>, why: &HandshakeError) {
    if let HandshakeError::Plain = why {
        let mut word = Vec::new();
        W::refuse(Refusal::of(Reason::Unsupported), &mut word);
        client.socket().say_plainly(&word);
    }
    client.end(CloseCause::ClientLeft);
    reject_handshake(service, client.source, why);
}
