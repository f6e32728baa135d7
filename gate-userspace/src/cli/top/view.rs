//! The views of `gate top`: each view's columns, the most important first, and its rows.

use std::collections::BTreeMap;

use super::reading::{Documents, Span};
use super::rows::Row;
use crate::admin::hotkeys::Key;
use crate::admin::percentiles::Percentiles;
use crate::admin::queues::{Probed, QueryType, Service};
use crate::admin::rates::Rates;
use crate::admin::selection::SortKey;
use crate::admin::tenants::Tenant;
use crate::admin::verdicts::{Refused, SourceList};
use crate::cli::print;
use crate::cli::table::{Cell, Column, number, text};
use crate::cli::tenants::by_hand;

/// One of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum View {
    /// Tenants, with what they ask and are refused.
    Tenants,
    /// Services with a store behind them or a probe.
    Services,
    /// Query types of proxied services.
    Types,
    /// Keys that are asked for most.
    Keys,
    /// Addresses that are refused or unknown most.
    Sources,
}

impl View {
    pub(super) const ALL: [Self; 5] = [Self::Tenants, Self::Services, Self::Types, Self::Keys, Self::Sources];

    /// Its name, as on the command line.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Tenants => "tenants",
            Self::Services => "services",
            Self::Types => "types",
            Self::Keys => "keys",
            Self::Sources => "sources",
        }
    }

    /// The next one.
    pub(super) fn next(self) -> Self {
        Self::ALL[(self as usize + 1) % Self::ALL.len()]
    }

    /// The one before.
    pub(super) fn previous(self) -> Self {
        Self::ALL[(self as usize + Self::ALL.len() - 1) % Self::ALL.len()]
    }

    pub(super) const fn columns(self) -> &'static [Column] {
        match self {
            Self::Tenants => &TENANTS,
            Self::Services => &SERVICES,
            Self::Types => &TYPES,
            Self::Keys => &KEYS,
            Self::Sources => &SOURCES,
        }
    }

    /// The column by which it is sorted unless a key says otherwise.
    pub(super) const fn sorted_by(self) -> usize {
        match self {
            Self::Tenants => 1,
            Self::Services => 0,
            Self::Types => 2,
            Self::Keys | Self::Sources => 1,
        }
    }

    /// The documents that it shows.
    pub(super) const fn documents(self) -> Documents {
        match self {
            Self::Tenants => Documents::Tenants,
            Self::Services | Self::Types => Documents::Queues,
            Self::Keys => Documents::Hotkeys,
            Self::Sources => Documents::Sources,
        }
    }

    /// The key that gate sorts its rows by, for the column with this place; nothing where the rows are sorted here.
    pub(super) fn sort_key(self, column: usize) -> Option<SortKey> {
        if self == Self::Tenants { SORT_KEYS.get(column).copied() } else { None }
    }

    /// Its rows, in gate's own order.
    pub(super) fn rows(self, span: Span<'_>) -> Vec<Row> {
        match self {
            Self::Tenants => {
                let before = span.before.map(|before| {
                    before.tenants.tenants.iter().map(|tenant| (tenant.name.as_str(), tenant)).collect()
                });
                let before: BTreeMap<&str, &Tenant> = before.unwrap_or_default();
                // In the order of the answer.
                let tenants = span.now.tenants.tenants.iter();
                tenants.map(|now| tenant(span, before.get(now.name.as_str()).copied(), now)).collect()
            }
            Self::Services => {
                let queues = &span.now.queues;
                let proxied = queues.services.iter().map(|service| proxied(service, queues.window_s));
                proxied.chain(queues.probed.iter().map(guarded)).collect()
            }
            Self::Types => {
                let queues = &span.now.queues;
                let types = queues.services.iter().flat_map(|service| {
                    service.types.iter().map(|of_type| query_type(&service.name, of_type, queues.window_s))
                });
                types.collect()
            }
            Self::Keys => span.now.hotkeys.keys.iter().map(key).collect(),
            Self::Sources => {
                let SourceList { refused, unknown } = &span.now.sources;
                refused.iter().chain(unknown).map(source).collect()
            }
        }
    }
}

const TENANTS: [Column; 10] = [
    text("tenant"),
    number("refused/s"),
    text("why refused"),
    number("passed/s"),
    number("quota RU/s"),
    number("burst left"),
    number("RU/s"),
    text("tier"),
    text("by hand"),
    number("segments/s"),
];

/// The keys that gate sorts tenants by, for each column.
const SORT_KEYS: [SortKey; TENANTS.len()] = [
    SortKey::Name,
    SortKey::RefusedRate,
    SortKey::Reason,
    SortKey::PassedRate,
    SortKey::Quota,
    SortKey::BurstLeft,
    SortKey::ChargedRate,
    SortKey::Tier,
    SortKey::ByHand,
    SortKey::SegmentsRate,
];

const SERVICES: [Column; 9] = [
    text("service"),
    text("store"),
    number("answered/s"),
    number("refused/s"),
    number("waiting"),
    number("at most"),
    number("ratio"),
    number("clients"),
    text("shedding"),
];

const TYPES: [Column; 9] = [
    text("type"),
    text("service"),
    number("answered/s"),
    text("ms, of objective"),
    number("accepted"),
    number("p50 ms"),
    number("p99 ms"),
    number("store p50"),
    number("waiting"),
];

const KEYS: [Column; 5] = [text("key"), number("asked"), number("error"), text("service"), text("hot")];

const SOURCES: [Column; 6] =
    [text("source"), number("refused"), number("error"), text("reason"), text("tenant"), text("service")];

fn tenant(span: Span<'_>, before: Option<&Tenant>, now: &Tenant) -> Row {
    let rate = |rate: fn(&Rates) -> f64| now.rates.as_ref().map(rate);
    let refused = rate(|rates| rates.refused);
    let by_reason = now.refused.iter().filter_map(|(reason, &count)| {
        // A reason of which there was nothing before began at zero.
        let was = before.map(|before| before.refused.get(reason).map_or(0.0, |&count| count as f64));
        let rate = span.rate(was, count as f64)?;
        (rate > 0.0).then_some((reason, rate))
    });
    let mut by_reason: Vec<_> = by_reason.collect();
    by_reason.sort_by(|one, another| another.1.total_cmp(&one.1));
    let why = by_reason.into_iter().map(|(reason, rate)| format!("{reason} {}", print::amount(rate)));
    let passed = rate(|rates| rates.passed);
    let segments = rate(|rates| rates.segments);
    let charged = rate(|rates| rates.charged_ru);
    let quota = now.quota_ru_per_sec;
    let quota = Cell { text: quota.map_or_else(|| "unlimited".to_owned(), print::amount), number: quota };
    let cells = vec![
        Cell::text(&now.name),
        Cell::number(refused, print::amount),
        Cell::text(first_two(&why.collect::<Vec<_>>())),
        Cell::number(passed, print::amount),
        quota,
        Cell::number(Some(now.burst_left), percent),
        Cell::number(charged, print::amount),
        Cell::text(now.tier.clone()),
        Cell::text(by_hand(now)),
        Cell::number(segments, print::amount),
    ];
    Row { key: now.name.clone(), cells, stands_out: refused.is_some_and(|rate| rate > 0.0) }
}

/// The first two of these, and how many more there are: a row's details have all.
fn first_two(all: &[String]) -> String {
    match all {
        [first, second, rest @ ..] if !rest.is_empty() => format!("{first}, {second}, {} more", rest.len()),
        all => all.join(", "),
    }
}

fn proxied(service: &Service, window_s: f64) -> Row {
    let Service { name, store, types, tiers, .. } = service;
    let is_down = store.as_ref().is_some_and(|store| store.up == Some(false));
    let of_types = |count: fn(&QueryType) -> u64| {
        let all = types.iter().map(count).sum::<u64>() as f64;
        Cell::number(Some(all / window_s).filter(|rate| rate.is_finite()), print::amount)
    };
    let waiting: u64 = tiers.iter().map(|tier| tier.waiting).sum();
    let cells = vec![
        Cell::text(name),
        Cell::text(store.as_ref().map(print::store).unwrap_or_default()),
        of_types(|of_type| of_type.answered),
        of_types(|of_type| of_type.refused),
        Cell::number(Some(waiting as f64), print::amount),
        Cell::number(service.parallelism.map(|limit| limit as f64), print::amount),
        Cell::number(service.latency_ratio, |ratio| format!("{ratio:.2}")),
        Cell::number(store.as_ref().map(|store| store.clients as f64), print::amount),
        Cell::text(service.shedding.clone().unwrap_or_default()),
    ];
    let is_shed = service.shedding.as_deref() == Some("sharing")
        || tiers.iter().any(|tier| tier.rung > 0 || tier.stands);
    Row { key: name.clone(), cells, stands_out: is_down || is_shed }
}

fn guarded(service: &Probed) -> Row {
    let Probed { name, up, latency_ratio, shedding, rungs, .. } = service;
    let mut cells = vec![Cell::default(); SERVICES.len()];
    cells[0] = Cell::text(name);
    cells[1] = Cell::text(if *up { "guarded" } else { "guarded, no answer" });
    cells[6] = Cell::number(*latency_ratio, |ratio| format!("{ratio:.2}"));
    cells[8] = Cell::text(shedding.clone().unwrap_or_default());
    Row { key: name.clone(), cells, stands_out: !up || rungs.iter().any(|&rung| rung > 0) }
}

fn query_type(service: &str, of_type: &QueryType, window_s: f64) -> Row {
    let ms = |times: Option<Percentiles>, which: fn(&Percentiles) -> f64| {
        Cell::number(times.as_ref().map(which), |ms| format!("{ms:.2}"))
    };
    // The same percentile on both sides.
    let objective = of_type.objective_ms.iter().map(|(percentile, limit)| {
        match of_type.response_ms.and_then(|times| times.at(percentile)) {
            Some(ms) => format!("{percentile} {ms:.1} of {limit}"),
            None => format!("{percentile} of {limit}"),
        }
    });
    let answered = Some(of_type.answered as f64 / window_s).filter(|rate| rate.is_finite());
    let cells = vec![
        Cell::text(of_type.name.clone()),
        Cell::text(service),
        Cell::number(answered, print::amount),
        Cell::text(objective.collect::<Vec<_>>().join(", ")),
        Cell::number(of_type.accepted, percent),
        ms(of_type.response_ms, |times| times.p50),
        ms(of_type.response_ms, |times| times.p99),
        ms(of_type.processing_ms, |times| times.p50),
        Cell::number(Some(of_type.waiting as f64), print::amount),
    ];
    let stands_out = of_type.accepted.is_some_and(|accepted| accepted < 1.0);
    Row { key: format!("{service} {}", of_type.name), cells, stands_out }
}

fn key(key: &Key) -> Row {
    let hot = match key {
        Key { limited: true, .. } => "hot, limited",
        Key { hot: true, .. } => "hot",
        _ => "",
    };
    let cells = vec![
        Cell::text(&key.key),
        Cell::number(Some(key.estimate as f64), print::amount),
        Cell::number(Some(key.error as f64), print::amount),
        Cell::text(&key.service),
        Cell::text(hot),
    ];
    Row { key: format!("{} {}", key.service, key.key), cells, stands_out: key.hot }
}

/// The name of a source's row: an address may be refused for several reasons, and at several services.
pub(super) fn source_key(refused: &Refused) -> String {
    format!("{} {} {}", refused.source, refused.service, refused.reason)
}

fn source(refused: &Refused) -> Row {
    let cells = vec![
        Cell::text(&refused.source),
        Cell::count(refused.estimate),
        Cell::count(refused.error),
        Cell::text(&refused.reason),
        Cell::text(refused.tenant.as_deref().unwrap_or("nobody")),
        Cell::text(&refused.service),
    ];
    Row { key: source_key(refused), cells, stands_out: refused.tenant.is_none() }
}

fn percent(share: f64) -> String {
    format!("{:.0}%", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::super::fixture::empty;
    use super::super::reading::Reading;
    use super::*;

    fn acme(passed: u64, quota: u64, slo: Option<u64>, rates: Option<Rates>) -> Tenant {
        let mut refused = serde_json::Map::new();
        refused.insert("quota".to_owned(), quota.into());
        if let Some(slo) = slo {
            refused.insert("slo".to_owned(), slo.into());
        }
        let tenant = serde_json::json!({
            "id": 1, "name": "acme", "tier": "default", "quota_ru_per_sec": 1000.0, "burst_ms": 200.0,
            "burst_left": 0.25, "debt_ms": 0.0, "price_multiplier": 1.0, "rejection_rate": 0.0, "passed": passed,
            "passed_bytes": 0, "charged_ru": passed, "refused_ru": 0.0, "refused": refused, "shadowed": {},
            "replied": 0, "candidate_refused": 0, "rates": rates,
        });
        serde_json::from_value(tenant).unwrap()
    }

    fn with_tenant(secs: u64, tenant: Tenant) -> Reading {
        let mut reading = empty(secs, Documents::Tenants);
        reading.tenants.tenants.push(tenant);
        reading
    }

    fn texts(row: &Row) -> Vec<&str> {
        row.cells.iter().map(|cell| cell.text.as_str()).collect()
    }

    #[test]
    fn a_tenants_row_has_rates_and_the_reasons_of_the_last_moment() {
        let before = with_tenant(1, acme(100, 50, None, None));
        let rates = Rates { passed: 100.0, segments: 0.0, charged_ru: 100.0, refused: 10.0 };
        let now = with_tenant(3, acme(300, 50, Some(20), Some(rates)));
        let rows = View::Tenants.rows(Span { before: Some(&before), now: &now });
        assert_eq!(
            texts(&rows[0]),
            ["acme", "10", "slo 10", "100", "1,000", "25%", "100", "default", "", "0"]
        );
        assert!(rows[0].stands_out);
        let rows = View::Tenants.rows(Span { before: None, now: &before });
        assert_eq!(texts(&rows[0])[..4], ["acme", "", "", ""]);
        let reasons = ["a 3", "b 2", "c 1"].map(str::to_owned);
        assert_eq!([2, 3].map(|count| first_two(&reasons[..count])), ["a 3, b 2", "a 3, b 2, 1 more"]);
        assert!(!rows[0].stands_out);
    }

    #[test]
    fn every_row_has_a_cell_for_each_column() {
        let mut now = with_tenant(1, acme(1, 1, None, None));
        let probed = Probed {
            name: "guarded".to_owned(),
            up: false,
            latency_ratio: Some(0.5),
            p95_ms: None,
            failures: 3,
            shedding: None,
            rungs: [0; 4],
            rungs_for_s: [None; 4],
            overrides: BTreeMap::new(),
        };
        now.queues.probed.push(probed);
        let of_type = serde_json::json!({
            "name": "get", "waiting": 3, "offered": 20, "refused": 10, "answered": 10, "accepted": 0.5, "wait_ms": null,
            "processing_ms": null, "response_ms": {"p50": 1.0, "p90": 2.0, "p99": 3.0}, "objective_ms": {"p50": 18.0, "p95": 30.0},
        });
        let service = serde_json::json!({
            "name": "proxied", "store": {"up": false, "for_s": 3.0, "connections": 2, "clients": 4}, "latency_ratio": 0.9,
            "shedding": "steady", "price": {"base": 0.5, "row": 0.0, "kib": 0.0}, "tiers": [], "types": [of_type], "events": {},
        });
        now.queues.services.push(serde_json::from_value(service).unwrap());
        now.hotkeys.keys.push(Key {
            rank: 1,
            service: "guarded".to_owned(),
            key: "user:1".to_owned(),
            estimate: 1_000,
            error: 10,
            hot: true,
            limited: false,
        });
        now.sources.unknown.push(Refused {
            source: "198.18.7.7".to_owned(),
            service: "proxied".to_owned(),
            tenant: None,
            reason: "unknown-source".to_owned(),
            estimate: 1_200,
            error: 3,
        });
        let span = Span { before: None, now: &now };
        for view in View::ALL {
            let rows = view.rows(span);
            assert!(!rows.is_empty(), "{view:?}");
            for row in rows {
                assert_eq!(row.cells.len(), view.columns().len(), "{row:?}");
            }
        }
        let services = View::Services.rows(span);
        assert_eq!(texts(&services[0])[..5], ["proxied", "down for 3 s", "1", "1", "0"]);
        assert!(services.iter().all(|row| row.stands_out), "both stores are down");
        let types = View::Types.rows(span);
        assert_eq!(
            texts(&types[0]),
            ["get", "proxied", "1", "p50 1.0 of 18, p95 of 30", "50%", "1.00", "3.00", "", "3"]
        );
        let sources = View::Sources.rows(span);
        assert_eq!(texts(&sources[0]), ["198.18.7.7", "1,200", "3", "unknown-source", "nobody", "proxied"]);
    }

    #[test]
    fn views_follow_each_other_in_a_circle() {
        for (place, view) in View::ALL.into_iter().enumerate() {
            assert_eq!(view.next().previous(), view);
            assert_eq!(view as usize, place);
            assert!(view.sorted_by() < view.columns().len());
        }
        assert_eq!(View::Sources.next(), View::Tenants);
    }
}
