//! Charges of requests that wait until their tenant can pay, where a refusal would change what other requests do.

use gate_common::abi::Reason;
use gate_common::units::Nanos;
use tokio::time::sleep;

use super::demand::Demand;
use super::{Admission, Quote};
use crate::clock;
use crate::dispatcher::request::{Charged, Payer, RequestClass};
use crate::protocol::Refusal;

impl<T> Admission<T> {
    /// [`Admission::charge`], for a request that may wait until its tenant can pay.
    ///
    /// # Errors
    ///
    /// A refusal, which is counted.
    pub(crate) fn try_charge(
        &self,
        payer: Payer,
        demand: Demand,
        class: RequestClass,
    ) -> Result<Charged, Refusal> {
        let ledger = &mut *self.ledger.borrow_mut();
        ledger.refresh();
        self.charge(ledger, payer, demand, class, clock::monotonic())
    }

    /// Charges a request that was refused so, once its tenant can pay. `payer` is asked before each attempt, since a
    /// client's tenant may change while it waits.
    ///
    /// # Errors
    ///
    /// A refusal that waiting does not change.
    pub(crate) async fn charge_when_affordable(
        &self,
        payer: impl Fn() -> Payer,
        demand: Demand,
        class: RequestClass,
        mut refusal: Refusal,
    ) -> Result<Charged, Refusal> {
        loop {
            match refusal.reason {
                Reason::TooLarge
                | Reason::UnknownSource
                | Reason::Unsupported
                | Reason::Fragment
                | Reason::Malformed
                | Reason::SynRate
                | Reason::NoConnection => return Err(refusal),
                Reason::Penalty => sleep(ONE_TICK.into()).await,
                Reason::Quota
                | Reason::RejectedUntil
                | Reason::RejectionRate
                | Reason::Limit
                | Reason::Slo
                | Reason::QueueDelay
                | Reason::QueueFull
                | Reason::Deadline
                | Reason::HotKey
                | Reason::StoreDown => sleep(until_next_look(refusal.retry_after).into()).await,
            }
            // It counted towards the debt at first.
            let payer = Payer { counts_for_deep_debt: false, ..payer() };
            match self.try_charge(payer, demand, class) {
                Ok(charged) => return Ok(charged),
                Err(again) => refusal = again,
            }
        }
    }

    /// Charges `bytes` of a stream of a client, in the direction of either, which is slowed rather than refused: they may pass while
    /// its tenant is not refused requests and owes nothing beyond its burst.
    ///
    /// # Errors
    ///
    /// The time to wait before the next attempt; at least 1 ms.
    pub(crate) fn charge_stream(
        &self,
        payer: &Payer,
        bytes: usize,
        class: RequestClass,
    ) -> Result<(), Nanos> {
        let ledger = &mut *self.ledger.borrow_mut();
        let now = clock::monotonic();
        ledger.refresh();
        let Quote { asked, price, rung, .. } = self.quote(ledger, payer, &Demand::more(bytes), class);
        let wait = ledger.wait_for_stream(payer.account(), rung, now);
        if wait > Nanos::ZERO && !payer.shadow {
            return Err(until_next_look(wait));
        }
        if payer.counts_for_deep_debt {
            ledger.count_demand(payer.tenant, asked);
        }
        ledger.charge_debt(payer.account(), price, now);
        ledger.count_charged(payer.tenant, price);
        Ok(())
    }

    /// Charges a request that is not refused for what its tenant has spent: what that cannot pay is debt. Waits while the debt is as
    /// large as it may be, so that such requests cost nobody more than the quota. `payer` is asked before each attempt.
    pub(crate) async fn charge_debt(&self, payer: impl Fn() -> Payer, demand: Demand, class: RequestClass) {
        let mut is_first = true;
        loop {
            let wait = {
                let ledger = &mut *self.ledger.borrow_mut();
                ledger.refresh();
                let now = clock::monotonic();
                let payer = payer();
                let asked = self.quote(ledger, &payer, &demand, class).asked;
                if payer.counts_for_deep_debt && std::mem::take(&mut is_first) {
                    ledger.count_demand(payer.tenant, asked);
                }
                // A tier that is shed pays no more for what is not refused.
                let price = ledger.apply_multiplier(payer.tenant, asked, 0);
                let wait = ledger.wait_for_debt(payer.account(), price, now);
                if wait == Nanos::ZERO || payer.shadow {
                    ledger.charge_debt(payer.account(), price, now);
                    ledger.count_passed(payer.tenant, price);
                    return;
                }
                wait
            };
            sleep(until_next_look(wait).into()).await;
        }
    }
}

/// The time until what waits is looked at again: what a tenant may have changes with any tick, whatever its bucket says now.
fn until_next_look(wait: Nanos) -> Nanos {
    wait.clamp(MIN_WAIT, ONE_TICK)
}

/// A penalty has no known end: decisions are made this often, unless configured otherwise.
const ONE_TICK: Nanos = Nanos::from_millis(100);
/// The shortest time between two attempts to charge a request that waits.
const MIN_WAIT: Nanos = Nanos::from_millis(1);
