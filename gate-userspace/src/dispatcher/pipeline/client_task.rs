//! A client's task: it reads and decodes, and writes what is left over, until the client has gone.

use std::rc::Rc;
use std::task::{Context, Poll};

use tokio::io::ReadBuf;

use super::service::{Service, Session};
use super::streamed_request::StreamedRequest;
use crate::clock;
use crate::dispatcher::clients::client::{CloseCause, RESUME_OUTPUT, WriteStatus};
use crate::dispatcher::clients::conversation::{ConnectionMode, Conversation};
use crate::dispatcher::clients::replies::Replies;
use crate::dispatcher::clients::stream::ClientReader;
use crate::dispatcher::clients::task_budget::{TaskBudget, let_others_go_first};
use crate::dispatcher::wire::Wire;
use crate::dispatcher::wire::buffer::Buffer;

impl<W: Wire> Session<W> {
    /// Serves it to its end, and says why that came.
    pub(crate) async fn serve(
        self: Rc<Self>,
        mut socket: ClientReader,
        service: Rc<Service<W>>,
    ) -> CloseCause {
        let ended = tokio::select! {
            biased;
            ended = self.converse(&mut socket, &service) => ended,
            // Whatever its requests wait for.
            () = self.socket().lost() => CloseCause::ClientLeft,
        };
        self.dead.set(Some(ended));
        self.resume_store();
        // Requests that the store has not answered hold the client, and not its socket.
        self.socket().close();
        self.socket().release();
        drop(socket);
        service.note_leaver(&self);
        drop((self.share.take(), self.slot.take(), self.dedicated_slot.take()));
        let conversation = &mut *self.conversation.borrow_mut();
        (conversation.input, conversation.replies) = (Buffer::default(), Replies::new(W::refuse));
        self.other_bytes.set(0);
        self.update_memory(conversation);
        ended
    }

    async fn converse(self: &Rc<Self>, socket: &mut ClientReader, service: &Rc<Service<W>>) -> CloseCause {
        loop {
            match std::future::poll_fn(|cx| self.poll(cx, socket, service)).await {
                TaskEvent::Closed(ended) => return ended,
                // In boxes: few clients need their room.
                TaskEvent::Login => {
                    tokio::select! {
                        to = Box::pin(self.change(service)) => self.resume_in(to),
                        ended = std::future::poll_fn(|cx| self.poll_ended(cx)) => return ended,
                    }
                }
                TaskEvent::Streaming(large) => {
                    match Box::pin(self.stream_request(*large, socket, service)).await {
                        Ok(()) => self.resume_in(ConnectionMode::Shared),
                        Err(ended) => return ended,
                    }
                }
                TaskEvent::Dedicated => match Box::pin(self.serve_dedicated(socket, service)).await {
                    Ok(()) => self.resume_in(ConnectionMode::Shared),
                    Err(ended) => return ended,
                },
            }
        }
    }

    /// Writes what is ready, and lets the client's task go on if it waited for that.
    pub(crate) fn flush_pending(self: &Rc<Self>, service: &Service<W>) {
        if let Some(sender) = self.datagram() {
            return self.answer_datagram(sender, service);
        }
        let closes = service.closes_idle.get();
        if closes {
            self.socket().hold_back(true);
        }
        let mut conversation = self.conversation.borrow_mut();
        let written = self.write(&mut conversation.replies.output, service);
        if conversation.replies.waiting() > service.limits.get().max_output && !self.stuck_for().is_zero() {
            self.dead.set(Some(CloseCause::SlowReader));
            conversation.replies.discard();
        }
        self.set_outstanding(conversation.replies.outstanding());
        self.update_memory(&conversation);
        self.resume_store_if_read(&conversation.replies);
        let resumes = if conversation.closing || conversation.next_mode != ConnectionMode::Shared {
            self.has_outstanding_replies(&conversation.replies)
        } else {
            conversation.awaits_output && service.has_room(self, &conversation.replies)
        };
        drop(conversation);
        if closes {
            self.end_if_idle();
            self.socket().hold_back(false);
        }
        if written != WriteStatus::Complete || resumes || self.is_gone() {
            self.wake();
        }
    }

    /// Lets store connections be read once the client has read what was ready for it.
    fn resume_store_if_read(&self, replies: &Replies) {
        if self.holds_up_store.get() && replies.output.len() <= RESUME_OUTPUT {
            self.resume_store();
        }
    }

    /// Lets the store connection be read that waited for this client.
    fn resume_store(&self) {
        if self.holds_up_store.replace(false) {
            self.resume_stores();
        }
    }

    /// Continues with the input behind a request that has ended, in mode `to`.
    fn resume_in(&self, to: ConnectionMode) {
        let conversation = &mut *self.conversation.borrow_mut();
        conversation.next_mode = to;
        conversation.decode_paused = true;
    }

    /// A request may go to the store; its body is to be streamed.
    pub(crate) fn start_streaming(&self, large: StreamedRequest<W>) {
        *self.streaming.borrow_mut() = Some(Box::new(large));
        self.wake();
    }

    /// True if it has all its replies, except the one to a streamed request, which is the last.
    fn has_outstanding_replies(&self, replies: &Replies) -> bool {
        replies.outstanding() == usize::from(self.streaming.borrow().is_some())
    }

    fn poll(
        self: &Rc<Self>,
        cx: &mut Context<'_>,
        socket: &mut ClientReader,
        service: &Service<W>,
    ) -> Poll<TaskEvent<W>> {
        self.conversation.borrow_mut().budget = TaskBudget::new();
        loop {
            if let Poll::Ready(ended) = self.poll_ended(cx) {
                return Poll::Ready(TaskEvent::Closed(ended));
            }
            let blocked = match self.write_replies(service) {
                WriteStatus::Complete => false,
                WriteStatus::Blocked => true,
                WriteStatus::StoreError => return Poll::Ready(TaskEvent::Closed(CloseCause::ClientLeft)),
            };
            if blocked && let Poll::Ready(ready) = socket.poll_write_ready(cx) {
                if ready.is_err() {
                    return Poll::Ready(TaskEvent::Closed(CloseCause::ClientLeft));
                }
                continue;
            }
            let mut conversation = self.conversation.borrow_mut();
            let all_said = !blocked && self.has_outstanding_replies(&conversation.replies);
            if all_said && let Some(large) = self.streaming.take() {
                return Poll::Ready(TaskEvent::Streaming(large));
            }
            if conversation.closing {
                return if all_said {
                    Poll::Ready(TaskEvent::Closed(CloseCause::ClientLeft))
                } else {
                    Poll::Pending
                };
            }
            if all_said && conversation.next_mode == ConnectionMode::Streaming {
                // The request was refused while it waited.
                (conversation.next_mode, conversation.decode_paused) = (ConnectionMode::Shared, true);
            }
            let moves = conversation.next_mode != ConnectionMode::Shared;
            if moves && all_said {
                let changing = conversation.next_mode == ConnectionMode::Login;
                return Poll::Ready(if changing { TaskEvent::Login } else { TaskEvent::Dedicated });
            }
            conversation.awaits_output = moves || !service.has_room(self, &conversation.replies);
            if conversation.awaits_output {
                return Poll::Pending;
            }
            if conversation.budget.is_spent() {
                return let_others_go_first(cx);
            }
            if service.holds(self) {
                return Poll::Pending;
            }
            let decode_paused = conversation.decode_paused;
            drop(conversation);
            if decode_paused {
                self.resume(service);
            } else if self.poll_read(cx, socket, service).is_pending() {
                if !self.is_session_refused() {
                    return Poll::Pending;
                }
                self.conversation.borrow_mut().closing = true;
            }
        }
    }

    /// Writes the replies that are ready, as far as the socket takes them.
    fn write_replies(&self, service: &Service<W>) -> WriteStatus {
        let conversation = &mut *self.conversation.borrow_mut();
        let written = self.write(&mut conversation.replies.output, service);
        self.update_memory(conversation);
        self.resume_store_if_read(&conversation.replies);
        written
    }

    /// Reads once, and decodes.
    fn poll_read(
        self: &Rc<Self>,
        cx: &mut Context<'_>,
        socket: &mut ClientReader,
        service: &Service<W>,
    ) -> Poll<()> {
        let scratch = &mut *service.scratch.borrow_mut();
        let mut bytes = ReadBuf::new(scratch);
        match std::task::ready!(socket.poll_read(cx, &mut bytes)) {
            Ok(()) if bytes.filled().is_empty() => {
                self.conversation.borrow_mut().closing = true;
            }
            Ok(()) => self.on_input(service, bytes.filled()),
            Err(_) => self.dead.set(Some(CloseCause::ClientLeft)),
        }
        Poll::Ready(())
    }

    fn on_input(self: &Rc<Self>, service: &Service<W>, bytes: &[u8]) {
        self.has_progress.set(true);
        let conversation = &mut *self.conversation.borrow_mut();
        if conversation.input.is_empty() {
            let taken = service.requests(self, conversation, bytes);
            self.has_finished_a_request();
            conversation.input.push(&bytes[taken..]);
            return;
        }
        conversation.input.push(bytes);
        if conversation.input.len() >= conversation.want {
            self.decode_input(service, conversation);
        }
    }

    /// Goes on with what was read before there was no room.
    fn resume(self: &Rc<Self>, service: &Service<W>) {
        let conversation = &mut *self.conversation.borrow_mut();
        conversation.decode_paused = false;
        self.decode_input(service, conversation);
    }

    fn decode_input(self: &Rc<Self>, service: &Service<W>, conversation: &mut Conversation<W>) {
        let mut input = std::mem::take(&mut conversation.input);
        let taken = service.requests(self, conversation, input.bytes());
        if taken > 0 {
            self.has_finished_a_request();
        }
        input.consume(taken);
        conversation.input = input;
    }

    /// Writes what is ready, as far as there is room for it.
    fn write(&self, output: &mut Buffer, service: &Service<W>) -> WriteStatus {
        let written = self.flush(output);
        match written {
            WriteStatus::Complete => {
                self.pending_refusals.on_written(&service.metrics.refusals, clock::monotonic)
            }
            WriteStatus::Blocked => self.pending_refusals.on_held_back(&service.metrics.refusals),
            WriteStatus::StoreError => self.pending_refusals.discard(),
        }
        written
    }
}

/// The reason why a client's task stops waiting for its sockets.
#[derive(Debug)]
enum TaskEvent<W: Wire> {
    /// The connection has ended.
    Closed(CloseCause),
    /// A request is streamed to the store.
    Streaming(Box<StreamedRequest<W>>),
    /// A request may change its identity.
    Login,
    /// The next request needs a dedicated connection.
    Dedicated,
}
