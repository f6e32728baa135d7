//! A configuration as settings of the daemon's parts.

use gate_common::token_bucket::Limits;
use gate_common::units::Nanos;

use super::error::Error;
use crate::config::{self, Config};
use crate::control::decide::{Learning, Rules};
use crate::control::hot_keys::{HOT_PER_SEC, LIMIT_PER_HOT};
use crate::control::watch::{Watch, is_measured};
use crate::kernel::{Cpus, Maps, Sizes};
use crate::policy::Tier;
use crate::probe::Prober;
use crate::{clock, control, descriptors, dispatcher};

/// How large new maps are made for a configuration.
pub(super) fn sizes(config: &Config) -> Result<Sizes, Error> {
    Ok(control::sizes::sizes(config, &Cpus::of_machine()?, dispatcher::cores())?)
}

/// Has as many files open as a configuration may need, and lowers its numbers of clients where that is not allowed.
pub(super) fn fit_descriptors(config: &mut Config) {
    let allowed = descriptors::provide(config.descriptors());
    config.fit_descriptors(allowed);
}

pub(super) fn rules(config: &Config) -> Rules {
    let settings = |service: &config::Service| {
        let config::Shedding { enabled, ladder, .. } = &service.shedding;
        enabled.then(|| *ladder)
    };
    let learning = |service: &config::Service| {
        let slow_below = service.shedding.ladder.shed_below[Tier::BestEffort.index()];
        let settles = service.price.learn.is_some_and(|learn| learn.settle == config::Settle::Debt);
        service.price.learning().map(|pricing| Learning { pricing, slow_below, settles })
    };
    Rules {
        tcp_in_debt: config.gate.tcp_in_debt,
        deep_debt: config.gate.deep_debt,
        rejection_rate: config.gate.algorithm == config::Algorithm::RejectionRate,
        shedding: config.services.iter().map(settings).collect(),
        tiers: config.services.iter().map(|service| config.tiers_at(service)).collect(),
        learning: config.services.iter().map(learning).collect(),
    }
}

/// Asks the services that have a probe.
pub(super) fn prober(config: &Config, watch: &Watch) -> Result<Option<Prober>, Error> {
    let services = config.services.iter().enumerate();
    let probed = services.filter_map(|(place, service)| Some((service, watch.probed(place)?)));
    Prober::start(probed).map_err(|source| Error::System { what: "starting the probes", source })
}

/// True if any service is measured in passing.
pub(super) fn measures_answers(config: &Config) -> bool {
    config.services.iter().any(is_measured)
}

/// How often a second a key must be asked for to be hot, by service.
pub(super) fn hot_per_sec(config: &Config) -> impl Iterator<Item = (String, u64)> {
    config.services.iter().map(|service| {
        let threshold = service.backend.as_ref().map(|backend| backend.hot_keys.threshold);
        let milli_limit = service.hot_key_limit.and_then(|limit| limit.rate.units_per_sec());
        let of_limit = milli_limit.map(|milli| milli / 1_000 / LIMIT_PER_HOT);
        (service.name.clone(), threshold.or(of_limit).unwrap_or(HOT_PER_SEC))
    })
}

/// The limits of each hot key at the interface, by service.
pub(super) fn hot_key_limits(config: &Config) -> impl Iterator<Item = Option<Limits>> {
    config.services.iter().map(|service| service.hot_key_limit)
}

pub(super) fn now(maps: &Maps) -> Nanos {
    maps.clock().at_monotonic(clock::monotonic())
}

/// True if the kernel answers SYNs with cookies where a listening socket's queue is full (`net.ipv4.tcp_syncookies`, which holds
/// for IPv6 as well).
pub(super) fn syn_cookies() -> bool {
    let setting = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_syncookies");
    setting.is_ok_and(|setting| setting.trim() != "0")
}
