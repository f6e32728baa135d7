//! The demand of a request, and its charge: prices, limits, and what is known of the keys that it reads.

use gate_common::units::Nanos;

use super::service::{Service, Session};
use crate::dispatcher::admission::demand::Demand;
use crate::dispatcher::request::{Charged, Decoded, RequestClass};
use crate::dispatcher::tenants::ledger::{Ledger, TenantId};
use crate::dispatcher::tenants::request_limits::LimitSet;
use crate::dispatcher::wire::Wire;
use crate::policy::admission::QueryType;
use crate::policy::key_reads::KeyRead;
use crate::protocol::{Refusal, RequestMeta};

impl<W: Wire> Service<W> {
    /// Classifies and charges a request.
    #[inline(always)]
    pub(super) fn charge(
        &self,
        decoded: Decoded<'_, W, Session<W>>,
        ledger: &mut Ledger,
        now: Nanos,
    ) -> Result<Charged, Refusal> {
        let Decoded { client, tenant, request, bytes, .. } = decoded;
        let class = self.types.borrow().classify::<W>(request, bytes);
        let demand = self.demand_told(decoded, class);
        if self.too_many_rows(&demand) {
            self.refuse_rows(decoded, &demand, ledger)?;
        }
        self.admission.charge(ledger, client.payer(tenant), demand, class, now)
    }

    /// The demand of a request, with the size that the store has told of what it reads.
    #[inline]
    pub(super) fn demand_told(&self, decoded: Decoded<'_, W, Session<W>>, class: RequestClass) -> Demand {
        let Decoded { client, tenant, request, bytes, told, .. } = decoded;
        let mut demand = self.demand(client, (tenant, class), request, bytes);
        if told.is_some() {
            demand.read = self.told_read(demand.read, told, (tenant, request, bytes));
        }
        demand
    }

    /// The demand of a tenant's request: its rows, its length, body included, and the limits that it counts towards.
    #[inline]
    pub(super) fn demand(
        &self,
        client: &Session<W>,
        (tenant, class): (TenantId, RequestClass),
        request: &W::Request,
        bytes: &[u8],
    ) -> Demand {
        let limits = match self.tenants.borrow().limits_of(tenant) {
            None => LimitSet::NONE,
            Some(limits) => {
                let command = QueryType(W::query_type(limits.commands(), request, bytes) as u16);
                limits.of(self.types.borrow().name(class.query_type), command)
            }
        };
        let frees_later = W::frees(request) && self.frees_later(client);
        Demand { limits, read: self.key_read(tenant, request, bytes, frees_later), ..demand::<W>(request) }
    }
}

/// The demand of a request, its tenant's limits aside.
#[inline]
fn demand<W: Wire>(request: &W::Request) -> Demand {
    let &RequestMeta { rows, rows_by, bytes, class, .. } = W::meta(request);
    Demand {
        commands: 1,
        rows,
        rows_by,
        bytes: usize::try_from(bytes).unwrap_or(usize::MAX),
        read: KeyRead::NONE,
        price_class: W::price_class(class),
        limits: LimitSet::NONE,
        is_answered_here: false,
    }
}
