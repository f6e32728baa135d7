//! The check that every bucket admits a full Ethernet frame: no TCP connection survives without that.

use std::collections::HashMap;

use gate_common::token_bucket::Limits;
use gate_common::units::{MilliRu, Multiplier, Nanos};

use super::price::FRAME_BYTES;
use super::raw::Section;
use super::{Service, Tenant};

/// The highest price of a request for one row that fills an Ethernet frame.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Frame {
    price: MilliRu,
    /// True if learning may raise the price above the configured one.
    learned: bool,
}

impl Frame {
    pub(super) fn of(service: &Service) -> Self {
        Self { price: service.price.of_frame(), learned: service.price.learning().is_some() }
    }

    const fn scaled(self, factor: Multiplier) -> Self {
        Self { price: self.price.scaled(factor), ..self }
    }
}

/// Why a bucket would refuse a full frame for good, if it would: no TCP connection survives that.
pub(super) fn never_admits(limits: &Limits, frame: Frame) -> Option<String> {
    let takes = Nanos(limits.rate.time_for(frame.price.0));
    if takes.0 <= limits.burst_ns.saturating_add(limits.max_debt_ns) {
        return None;
    }
    let burst = Nanos(limits.burst_ns);
    let max_debt = Nanos(limits.max_debt_ns);
    Some(format!(
        "would refuse a full frame of {FRAME_BYTES} bytes for good: at {}{} it takes {takes} at this rate, \
         and burst ({burst}) and max_debt ({max_debt}) together allow less; raise one of the three",
        frame.price,
        if frame.learned { ", which prices may come to learn," } else { "" },
    ))
}

/// Reports multipliers at which a bucket that is charged would refuse a full frame for good.
pub(super) fn dearer_frames_fit(sections: &[Section<'_>], tenants: &[Tenant], frame: Frame) {
    let mut parts: HashMap<usize, Vec<&Tenant>> = HashMap::new();
    for tenant in tenants {
        tenant.part.iter().for_each(|part| parts.entry(part.part_of.0).or_default().push(tenant));
    }
    let all = sections.iter().zip(tenants).enumerate();
    for (place, (section, tenant)) in all.filter(|(_, (_, tenant))| tenant.multiplier > Multiplier::ONE) {
        let dearer = [tenant].into_iter().chain(parts.get(&place).into_iter().flatten().copied());
        let charged = dearer.flat_map(|dearer| {
            [dearer].into_iter().chain(dearer.charge.iter().map(|index| &tenants[index.0]))
        });
        let fits = |charged: &Tenant, factor| never_admits(&charged.quota, frame.scaled(factor)).is_none();
        // Without a multiplier the quota would be at fault.
        let too_small = |charged: &&Tenant| {
            section.is_sound() && !fits(charged, tenant.multiplier) && fits(charged, Multiplier::ONE)
        };
        let Some(charged) = charged.into_iter().find(too_small) else { continue };
        let most = (1..64).rev().find(|&factor| fits(charged, Multiplier::from_int(factor))).unwrap_or(1);
        section.fault(
            "multiplier",
            format!(
                "would refuse a full frame of {FRAME_BYTES} bytes for good: {} is more than burst and max_debt of {} \
                 together allow; up to \"{most}\" fits, and refuse = \"on\" refuses everything",
                frame.scaled(tenant.multiplier).price,
                charged.name,
            ),
        );
    }
}
