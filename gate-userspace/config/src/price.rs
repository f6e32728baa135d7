//! The prices of a service, what they follow, and within which bounds.

use gate_common::units::MilliRu;

use super::intercept::is_proxied;
use super::parsers::{number, one_of};
use super::raw::Section;
use super::units;
use gate_policy::cost_model::{self, Prices};
use gate_policy::pricing;

/// The price of a request before it runs: `base + row * rows + kib * KiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Price {
    /// For the request itself.
    pub base: MilliRu,
    /// For each row, that is, each key.
    pub row: MilliRu,
    /// For each 1,024 bytes, in proportion.
    pub kib: MilliRu,
    /// The measurements that prices follow; `None` if prices stay as they are. Never without a backend.
    pub learn: Option<Learn>,
}

/// The measurements that prices follow: the rows and bytes of replies, and latencies too where `range` is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Learn {
    /// By latency each becomes so many times dearer or cheaper at most, and expected latency adds at most as much as the
    /// dearest `base` and `row` together; 1 to 1,000. `None` if latencies move no price.
    pub range: Option<u32>,
    /// The settlement of a request that has cost more than it was charged.
    pub settle: Settle,
}

/// The settlement of a request that has cost more than it was charged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Settle {
    /// Nothing: the next one's price has learned from it.
    #[default]
    Next,
    /// The difference is charged at once, as debt if need be.
    Debt,
}

impl Price {
    /// How it follows latencies, if it does.
    #[must_use]
    pub fn learning(&self) -> Option<pricing::Settings> {
        let Self { base, row, kib, learn } = *self;
        let range = f64::from(learn?.range?);
        let learning = cost_model::Learning { range, ..cost_model::Learning::default() };
        Some(pricing::Settings { prices: Prices { base, row, kib, latency: MilliRu::ZERO }, learning })
    }

    /// The price of a request for one row, without its bytes.
    pub(super) fn of_row(&self) -> MilliRu {
        self.base.saturating_add(self.row)
    }

    /// The highest price of a request for one row that fills an Ethernet frame.
    pub(super) fn of_frame(&self) -> MilliRu {
        // At most 1,000,000 RU times 1,500: far from overflow.
        let bytes = MilliRu((u64::from(self.kib.0) * FRAME_BYTES).div_ceil(1_024) as u32);
        let command = self.base.saturating_add(self.row);
        let configured = command.saturating_add(bytes);
        self.learn
            .and_then(|learn| learn.range)
            .map_or(configured, |range| MilliRu(configured.saturating_add(command).0.saturating_mul(range)))
    }
}

/// Reads a service's price.
pub(super) fn read(section: &mut Section<'_>) -> Price {
    let proxied = is_proxied(section);
    let mut s = section.section("price");
    let mut price = Price {
        base: s.get("base", units::price).unwrap_or(MilliRu(500)),
        row: s.get("row", units::price).unwrap_or(MilliRu(500)),
        kib: s.get("kib", units::price).unwrap_or(MilliRu::ONE_RU),
        learn: None,
    };
    let choices = [("rows", Learning::Rows), ("on", Learning::On), ("off", Learning::Off)];
    let default = if proxied { Learning::Rows } else { Learning::Off };
    let learns = s.get("learn", one_of(&choices)).unwrap_or(default);
    let range = s.get("range", number(1, 1_000)).unwrap_or(10) as u32;
    if s.has("range") && (!s.has("learn") || learns == Learning::Rows) {
        s.fault(
            "range",
            "means something only beside learn = \"on\": rows and bytes cost as much as ever".to_owned(),
        );
    }
    let settle =
        s.get("settle", one_of(&[("next", Settle::Next), ("debt", Settle::Debt)])).unwrap_or_default();
    if s.has("settle") && !s.has("learn") && !proxied {
        let message = "means something only beside learn: without it nobody knows what a request has cost";
        s.fault("settle", message.to_owned());
    }
    if learns != Learning::Off && !proxied {
        let message =
            "means something only beside backend: gate learns from the replies to what it passes on";
        s.fault("learn", message.to_owned());
    }
    if learns == Learning::On && s.is_sound() && f64::from(price.base.0) < cost_model::LOWEST_BASE * 1e3 {
        s.fault("base", "must be at least 0.01 RU where prices learn: no request is free".to_owned());
    }
    let range = (learns == Learning::On).then_some(range);
    price.learn = (learns != Learning::Off && proxied).then_some(Learn { range, settle });
    s.finish();
    price
}

/// The values of `learn`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Learning {
    Rows,
    On,
    Off,
}

/// The payload of one Ethernet frame.
pub(super) const FRAME_BYTES: u64 = 1_500;
