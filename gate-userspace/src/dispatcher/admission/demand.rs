//! The demand of a request: what its price is a function of.

use crate::dispatcher::metrics::cost_samples::requested_rows;
use crate::dispatcher::tenants::request_limits::LimitSet;
use crate::policy::key_reads::KeyRead;
use crate::policy::read_cost::RequestedRows;
use crate::protocol::RowsBy;
use crate::protocol::price_class::PriceClass;

/// The demand of a request, known before it runs. Its price is a function of this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Demand {
    /// 0 for more bytes of a request that has been charged already.
    pub(crate) commands: u32,
    pub(crate) rows: u32,
    pub(crate) rows_by: RowsBy,
    pub(crate) bytes: usize,
    /// Its read of whole keys.
    pub(crate) read: KeyRead,
    pub(crate) price_class: PriceClass,
    /// The tenant's limits by what is asked that it counts towards.
    pub(crate) limits: LimitSet,
    /// True for a request that gate answers itself: no store reads rows for it, or takes time.
    pub(crate) is_answered_here: bool,
}

impl Demand {
    /// `bytes` more of a request that has been charged already.
    pub(crate) const fn more(bytes: usize) -> Self {
        Self {
            commands: 0,
            rows: 0,
            rows_by: RowsBy::Request,
            bytes,
            read: KeyRead::NONE,
            price_class: PriceClass::OTHER,
            limits: LimitSet::NONE,
            is_answered_here: false,
        }
    }

    /// A request of so many bytes that gate answers itself.
    pub(crate) const fn answered_here(bytes: usize, limits: LimitSet) -> Self {
        Self { commands: 1, limits, is_answered_here: true, ..Self::more(bytes) }
    }

    /// The rows that it asks for.
    #[inline]
    pub(in crate::dispatcher) const fn requested_rows(&self) -> RequestedRows {
        requested_rows(self.rows, self.rows_by)
    }
}
