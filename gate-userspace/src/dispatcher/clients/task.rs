//! A client's task: it reads and decodes, and writes what is left over, until the client has gone.

use std::io::ErrorKind;
use std::os::fd::AsRawFd as _;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use nix::sys::socket::{Shutdown, shutdown};
use tokio::io::{AsyncRead as _, ReadBuf};
use tokio::net::tcp::OwnedReadHalf;

use super::client::{Client, Ended, Moving, Talk};
use super::large::Large;
use super::replies::Replies;
use crate::clock;
use crate::dispatcher::service::Service;
use crate::dispatcher::wire::Wire;
use crate::dispatcher::wire::buffer::Buffer;

impl<W: Wire> Client<W> {
    /// Serves it to its end, and says why that came.
    pub(in crate::dispatcher) async fn serve(
        self: Rc<Self>,
        mut socket: OwnedReadHalf,
        service: Rc<Service<W>>,
    ) -> Ended {
        let ended = loop {
            match std::future::poll_fn(|cx| self.poll(cx, &mut socket, &service)).await {
                Pause::Ended(ended) => break ended,
                // In boxes: few clients need their room.
                Pause::Changing => {
                    let to = Box::pin(self.change(&service)).await;
                    self.go_on(to);
                }
                Pause::Passing(large) => match Box::pin(self.pass_on(*large, &mut socket, &service)).await {
                    Ok(()) => self.go_on(Moving::No),
                    Err(ended) => break ended,
                },
                Pause::Leaving => break Box::pin(self.serve_alone(&mut socket, &service)).await,
            }
        };
        self.dead.set(Some(ended));
        // Requests that the store has not answered hold the socket open. It may have been closed by the client.
        let _ = shutdown(socket.as_ref().as_raw_fd(), Shutdown::Both);
        drop((self.share.take(), self.slot.take()));
        // So would they hold this.
        let talk = &mut *self.talk.borrow_mut();
        (talk.input, talk.replies) = (Buffer::default(), Replies::new(W::refuse));
        self.beside.set(0);
        self.note_held(talk);
        ended
    }

    /// Writes what is ready, and lets the client's task go on if it waited for that.
    pub(in crate::dispatcher) fn deliver(self: &Rc<Self>, service: &Service<W>) {
        if let Some(sender) = self.datagram() {
            return self.answer_datagram(sender, service);
        }
        let mut talk = self.talk.borrow_mut();
        let written = self.write(&mut talk.replies.output, service);
        if talk.replies.waiting() > service.limits.get().output {
            self.dead.set(Some(Ended::SlowReader));
        }
        self.note_open(talk.replies.outstanding());
        self.note_held(&talk);
        let resumes = if talk.ending || talk.moving != Moving::No {
            self.has_earlier_replies(&talk.replies)
        } else {
            talk.parked && service.has_room(self, &talk.replies)
        };
        if written != Written::All || resumes || self.is_gone() {
            drop(talk);
            self.wake();
        }
    }

    /// What it has sent behind a request that is done with is looked at, here or where it goes.
    fn go_on(&self, to: Moving) {
        let talk = &mut *self.talk.borrow_mut();
        talk.moving = to;
        talk.stalled = true;
    }

    /// A request of its may go to the store; its body is to be passed on.
    pub(in crate::dispatcher) fn let_go(&self, large: Large<W>) {
        *self.large.borrow_mut() = Some(Box::new(large));
        self.wake();
    }

    /// Whether it has all its replies, but for that to a request that may go to the store: which is its last.
    fn has_earlier_replies(&self, replies: &Replies) -> bool {
        replies.outstanding() == usize::from(self.large.borrow().is_some())
    }

    pub(in crate::dispatcher) fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    fn poll(
        self: &Rc<Self>,
        cx: &mut Context<'_>,
        socket: &mut OwnedReadHalf,
        service: &Service<W>,
    ) -> Poll<Pause<W>> {
        loop {
            if let Poll::Ready(ended) = self.poll_ended(cx) {
                return Poll::Ready(Pause::Ended(ended));
            }
            let written = {
                let talk = &mut *self.talk.borrow_mut();
                let written = self.write(&mut talk.replies.output, service);
                self.note_held(talk);
                written
            };
            let blocked = match written {
                Written::All => false,
                Written::Some => true,
                Written::Broken => return Poll::Ready(Pause::Ended(Ended::Left)),
            };
            if blocked && let Poll::Ready(ready) = socket.as_ref().poll_write_ready(cx) {
                if ready.is_err() {
                    return Poll::Ready(Pause::Ended(Ended::Left));
                }
                continue;
            }
            let mut talk = self.talk.borrow_mut();
            let all_said = !blocked && self.has_earlier_replies(&talk.replies);
            if all_said && let Some(large) = self.large.take() {
                return Poll::Ready(Pause::Passing(large));
            }
            if talk.ending {
                return if all_said { Poll::Ready(Pause::Ended(Ended::Left)) } else { Poll::Pending };
            }
            if all_said && talk.moving == Moving::Large {
                // It was refused while it waited.
                (talk.moving, talk.stalled) = (Moving::No, true);
            }
            let moves = talk.moving != Moving::No;
            if moves && all_said {
                let changing = talk.moving == Moving::Change;
                return Poll::Ready(if changing { Pause::Changing } else { Pause::Leaving });
            }
            talk.parked = moves || !service.has_room(self, &talk.replies);
            if talk.parked {
                return Poll::Pending;
            }
            let stalled = talk.stalled;
            drop(talk);
            if stalled {
                self.resume(service);
            } else {
                std::task::ready!(self.poll_read(cx, socket, service));
            }
        }
    }

    /// Whether somebody else has ended it; who does so wakes the task.
    pub(in crate::dispatcher) fn poll_ended(&self, cx: &Context<'_>) -> Poll<Ended> {
        if self.waker.borrow().as_ref().is_none_or(|waker| !waker.will_wake(cx.waker())) {
            *self.waker.borrow_mut() = Some(cx.waker().clone());
        }
        self.dead.get().map_or(Poll::Pending, Poll::Ready)
    }

    /// Reads once, and takes in what came.
    fn poll_read(
        self: &Rc<Self>,
        cx: &mut Context<'_>,
        socket: &mut OwnedReadHalf,
        service: &Service<W>,
    ) -> Poll<()> {
        let scratch = &mut *service.scratch.borrow_mut();
        let mut bytes = ReadBuf::new(scratch);
        match std::task::ready!(Pin::new(socket).poll_read(cx, &mut bytes)) {
            Ok(()) if bytes.filled().is_empty() => {
                self.left.set(true);
                self.talk.borrow_mut().ending = true;
            }
            Ok(()) => self.take_in(service, bytes.filled()),
            Err(_) => self.dead.set(Some(Ended::Left)),
        }
        Poll::Ready(())
    }

    fn take_in(self: &Rc<Self>, service: &Service<W>, bytes: &[u8]) {
        self.moved.set(true);
        let talk = &mut *self.talk.borrow_mut();
        if talk.input.is_empty() {
            let taken = service.requests(self, talk, bytes);
            self.has_finished_a_request();
            talk.input.push(&bytes[taken..]);
            return;
        }
        talk.input.push(bytes);
        if talk.input.len() >= talk.want {
            self.decode_input(service, talk);
        }
    }

    /// Goes on with what was read before there was no room.
    fn resume(self: &Rc<Self>, service: &Service<W>) {
        let talk = &mut *self.talk.borrow_mut();
        talk.stalled = false;
        self.decode_input(service, talk);
    }

    fn decode_input(self: &Rc<Self>, service: &Service<W>, talk: &mut Talk<W>) {
        let mut input = std::mem::take(&mut talk.input);
        let taken = service.requests(self, talk, input.bytes());
        if taken > 0 {
            self.has_finished_a_request();
        }
        input.consume(taken);
        talk.input = input;
    }

    /// Writes what is ready, as far as there is room for it.
    fn write(&self, output: &mut Buffer, service: &Service<W>) -> Written {
        let written = self.flush(output);
        match written {
            Written::All => self.unwritten.are_written(&service.figures.refusals, clock::monotonic),
            Written::Some => self.unwritten.are_held_back(&service.figures.refusals),
            Written::Broken => self.unwritten.are_lost(),
        }
        written
    }

    /// Writes what there is, as far as there is room for it.
    pub(in crate::dispatcher) fn flush(&self, output: &mut Buffer) -> Written {
        while !output.is_empty() {
            match self.socket().try_write(output.bytes()) {
                Ok(len) => {
                    self.moved.set(true);
                    output.consume(len);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Written::Some,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => {
                    self.dead.set(Some(Ended::Left));
                    return Written::Broken;
                }
            }
        }
        Written::All
    }
}

/// Why a client's task stops waiting for its sockets.
#[derive(Debug)]
enum Pause<W: Wire> {
    /// It is over.
    Ended(Ended),
    /// A request of its goes to the store, with its body.
    Passing(Box<Large<W>>),
    /// It is about to become someone else.
    Changing,
    /// From here on it has a connection to the store of its own.
    Leaving,
}

/// What became of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::dispatcher) enum Written {
    /// It is with the kernel.
    All,
    /// The socket is full.
    Some,
    /// There is nobody to write to.
    Broken,
}
