//! The reply's part in prices: the sizes that later prices follow, and the charge of its request beyond its price.
//!
//! A request is priced by its expected read ([`super::read_prices`]), and never higher than its tenant's buckets can
//! ever admit, so that no learned price refuses for good a request that passes by the price of its class. With `settle
//! = "debt"` the read beyond its price is charged once it is answered.

use gate_common::units::MilliRu;

use super::Admission;
use super::demand::Demand;
use crate::clock;
use crate::dispatcher::metrics::Event;
use crate::dispatcher::metrics::cost_samples::CostFeatures;
use crate::dispatcher::request::Charged;
use crate::dispatcher::tenants::ledger::{Ledger, TenantId};
use crate::policy::read_cost::{ReadSize, Reply};

impl<T> Admission<T> {
    /// The price of a request that is expected to read so much, where its class costs `class_price`; both as dear as its
    /// tenant's multiplier and `rung` make them.
    pub(in crate::dispatcher) fn learned_price(
        &self,
        ledger: &mut Ledger,
        (tenant, rung): (TenantId, u32),
        class_price: MilliRu,
        demand: &Demand,
        read: ReadSize,
    ) -> MilliRu {
        let Demand { commands, bytes, price_class, .. } = *demand;
        let bytes = bytes.saturating_add(read.more_bytes as usize);
        let learned = ledger.price(self.service, commands, read.rows, bytes, Some(price_class));
        let learned = ledger.apply_multiplier(tenant, learned, rung);
        match learned > class_price {
            true => learned.min(ledger.dearest(tenant).max(class_price)),
            false => learned,
        }
    }

    /// Learns from the reply of `bytes` to a request that came over a connection, and settles its read beyond its price.
    /// Returns the read, and the sum that has been paid for it.
    #[inline]
    pub(in crate::dispatcher) fn record_reply(
        &self,
        charged: &Charged,
        request: &CostFeatures,
        bytes: usize,
    ) -> (CostFeatures, MilliRu) {
        self.answers.set(self.answers.get() + 1);
        // A forged sender would make what another tenant asks for dear.
        if charged.is_datagram {
            return (*request, charged.price);
        }
        let requested = request.requested_rows();
        let reply = Reply { rows: request.reply_rows, bytes: bytes as u64 };
        let Some(read) = self.reads.observe(charged.tenant, (request.class, &charged.read), requested, reply)
        else {
            return (*request, charged.price);
        };
        if charged.read.was_told_wrong(request.reply_rows) {
            self.metrics.count(Event::SizeToldWrong);
        }
        let is_more = read.rows > requested.least || read.more_bytes > 0;
        let bytes = request.bytes.saturating_add(read.more_bytes);
        let read = CostFeatures { rows: read.rows, bytes, ..*request };
        // A coalesced request has no price, and neither has one whose refusal is only counted.
        let settles = is_more && charged.price > MilliRu::ZERO && self.reads.settles();
        let due = if settles { self.settle_read(charged, &read) } else { MilliRu::ZERO };
        (read, charged.price.saturating_add(due))
    }

    /// Charges what a request has read beyond its price.
    fn settle_read(&self, charged: &Charged, read: &CostFeatures) -> MilliRu {
        let ledger = &mut *self.ledger.borrow_mut();
        let cost = ledger.price(self.service, 1, read.rows, read.bytes as usize, Some(read.class));
        let due = ledger.settle(charged.account(), cost, charged.price, clock::monotonic());
        self.metrics.cost_samples.settled(due);
        due
    }
}
