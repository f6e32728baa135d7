//! Timeouts of a client: it is stuck, slow to write its request, idle, or does not log in.

use std::time::Duration;

use super::client::{Client, CloseCause};
use crate::dispatcher::settings::Limits;
use crate::dispatcher::wire::Wire;

impl<W: Wire> Client<W> {
    /// Gives back memory that an idle client does not need, and ends one that is stuck for too long, or takes too long
    /// for one request, or is idle or unknown for too long. To be called every `interval`.
    pub(crate) fn check_timeout(&self, interval: Duration, limits: &Limits) {
        let patience = Duration::from(limits.client_timeout);
        if self.has_no_business(interval, limits) {
            return self.end(CloseCause::Idle);
        }
        if self.is_slow_to_write(interval, patience) {
            return self.end(CloseCause::SlowWriter);
        }
        if self.has_progress.replace(false) {
            self.stuck_for.set(Duration::ZERO);
            return;
        }
        self.release();
        let conversation = self.conversation.borrow();
        if conversation.replies.waiting() > limits.max_output {
            return self.end(CloseCause::SlowReader);
        }
        let is_reading = !conversation.replies.output.is_empty();
        let is_writing = !conversation.input.is_empty() && !conversation.awaits_output;
        if !is_reading && !is_writing {
            return;
        }
        self.stuck_for.set(self.stuck_for.get() + interval);
        if self.stuck_for.get() > patience {
            self.end(if is_reading { CloseCause::SlowReader } else { CloseCause::SlowWriter });
        }
    }

    /// True if it has had no request for too long, or has not logged in in time.
    fn has_no_business(&self, interval: Duration, limits: &Limits) -> bool {
        let is_unauthenticated = self.is_unauthenticated() && !self.shadow;
        let is_idle = || !self.has_progress.get() && !self.awaits_store.get() && self.is_idle();
        let quiet =
            if is_unauthenticated || is_idle() { self.quiet.get() + interval } else { Duration::ZERO };
        self.quiet.set(quiet);
        let patience = if is_unauthenticated { Some(limits.unknown_timeout) } else { limits.idle_timeout };
        patience.is_some_and(|patience| quiet > Duration::from(patience))
    }

    /// True if the request that it is sending has been unfinished for longer than `patience`, however often a byte of
    /// it comes.
    fn is_slow_to_write(&self, interval: Duration, patience: Duration) -> bool {
        let is_writing = {
            let conversation = self.conversation.borrow();
            !conversation.input.is_empty() && !conversation.awaits_output && !conversation.decode_paused
        };
        let before = self.unfinished.get();
        self.unfinished.set(is_writing.then(|| before.map_or(Duration::ZERO, |before| before + interval)));
        self.unfinished.get().is_some_and(|unfinished| unfinished > patience)
    }

    /// A request has been taken out of its input.
    #[inline]
    pub(crate) fn has_finished_a_request(&self) {
        self.unfinished.set(None);
    }

    /// The time for which it has neither read nor gone on, as of the last look.
    pub(crate) fn stuck_for(&self) -> Duration {
        self.stuck_for.get()
    }

    /// Ends the connection because of the memory that it holds. Its replies are freed at once: its task may have its turn
    /// only after much more has been read from the store.
    pub(crate) fn close_stuck(&self) {
        let conversation = &mut *self.conversation.borrow_mut();
        let reads = conversation.replies.waiting() == 0;
        self.end(if reads { CloseCause::SlowWriter } else { CloseCause::SlowReader });
        conversation.replies.discard();
        self.update_memory(conversation);
    }
}
