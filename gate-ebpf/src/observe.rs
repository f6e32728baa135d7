//! Samples and notes of what passes.

use gate_common::abi::{Protocol, bank_of, service_flags};

use crate::context::PacketContext;
use crate::maps::read_once;
use crate::parse::first_line;
use crate::parse::memcached::{self, Commands};
use crate::{in_passing, sample};

impl PacketContext {
    /// Notes a datagram that passes, so that its answer is measured, if it is one of those that are.
    #[inline(always)]
    pub(crate) fn note(&self) {
        let measured = self.plan.measured();
        if measured.0 == 0 {
            return;
        }
        let hash = in_passing::hash(self.scratch());
        if measured.covers(hash) {
            in_passing::note(self.scratch, hash);
        }
    }

    /// Samples a datagram's first key if one is due and the daemon does not see the request itself.
    #[inline(always)]
    pub(crate) fn sample(&self, commands: Commands) {
        let unseen = self.plan.service_flags() & service_flags::PROXIED == 0;
        let has_key = commands == Commands::SingleGet || self.scratch().scan.key.at != 0;
        if !has_key || !unseen {
            return;
        }
        let every = self.sample_every();
        if !sample::is_due(every) {
            return;
        }
        if commands == Commands::SingleGet {
            // SAFETY: this CPU's own scratch.
            unsafe { (*self.scratch).scan.key = memcached::key_of_single_get(&self.scratch().payload) };
        }
        self.send_sample(every);
    }

    /// Samples the first key of a guarded segment if one is due and there is a key.
    #[inline(always)]
    pub(crate) fn sample_segment(&self) {
        let protocol = self.plan.protocol();
        if protocol == Protocol::Opaque as u8 {
            return;
        }
        let every = self.sample_every();
        if sample::is_due(every) {
            // SAFETY: this CPU's own scratch.
            let key = unsafe { &mut (*self.scratch).scan.key };
            first_line::find_key(
                self.ctx,
                protocol,
                self.scratch().payload.at,
                self.scratch().payload.end(),
                key,
            );
            if self.scratch().scan.key.at != 0 {
                self.send_sample(every);
            }
        }
    }

    /// One in this many requests is sampled. Read apart from the plan: which generation's it is does not matter.
    #[inline(always)]
    fn sample_every(&self) -> u32 {
        let bank = bank_of(read_once!((*self.control).generation));
        read_once!((*self.control).views[bank].sample_every)
    }

    #[inline(always)]
    fn send_sample(&self, every: u32) {
        // SAFETY: this CPU's own scratch.
        let scratch = unsafe { &mut *self.scratch };
        scratch.service_id = self.plan.service_id();
        scratch.tenant_id = self.plan.tenant_id;
        scratch.sample_every = every;
        sample::send(self.ctx, scratch);
    }
}
