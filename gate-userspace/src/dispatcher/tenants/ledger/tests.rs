use std::sync::atomic::Ordering;

use super::*;
use crate::config::Config;
use crate::control::capacity::{capacities, needs};
use crate::control::decide::Rules;
use crate::control::layout::Layout;
use crate::control::occupied::occupied;
use crate::control::tick::Ticker;
use crate::kernel::Sizes;

const TWO_LEVELS: &str = r#"
    [[service]]
    name = "cache"
    protocol = "memcached"
    listen = "127.0.0.1:11211"
    backend = "127.0.0.1:11212"
    price = { base = "1 RU", row = "1 RU", kib = "1 RU" }
    [[tenant]]
    name = "company"
    quota = "32 RU/s"
    burst = "1s"
    [[tenant]]
    name = "team"
    sources = ["10.0.0.0/8", "fd00::/16"]
    quota = "21 RU/s"
    burst = "1s"
    charge = ["company"]
    tier = "critical"
    [[tenant]]
    name = "other"
    sources = ["10.1.0.0/16"]
    quota = "21 RU/s"
    burst = "1s"
    charge = ["company"]
"#;

/// Any time will do, as long as it is late enough.
const NOW: Nanos = Nanos::from_secs(1_000);
const TEN: MilliRu = MilliRu(10_000);

/// The ticker of a configuration, which has not ticked, and its maps.
pub(super) fn ticker_of(text: &str) -> (Arc<Maps>, Ticker) {
    let config = Config::parse("test.toml", text).unwrap_or_else(|faults| panic!("{faults}"));
    let room = capacities(&needs(&config), 1_000);
    let tenants = room.tenant_capacity;
    let services = room.service_capacity;
    let blocks = room.block_capacity;
    let sizes = Sizes { tenants, services, blocks, ..Sizes::SMALL };
    let (maps, ownership) = Maps::private(&sizes).unwrap();
    let maps = Arc::new(maps);
    let layout = Layout::build(&config, &occupied(&maps)).unwrap();
    let ticker = Ticker::new(Arc::clone(&maps), ownership, layout, Rules::default()).unwrap();
    (maps, ticker)
}

fn ledger() -> Ledger {
    let (maps, mut ticker) = ticker_of(TWO_LEVELS);
    while ticker.stabilising() {
        ticker.tick(NOW, &[]).unwrap();
    }
    Ledger::new(maps, 2, 7, [(0, "cache")])
}

#[test]
fn a_source_is_charged_to_the_longest_prefix_that_names_it() {
    let ledger = ledger();
    for (source, id) in
        [("10.2.3.4", 2), ("10.1.3.4", 3), ("fd00::7", 2), ("::ffff:10.2.3.4", 2), ("11.0.0.1", 0)]
    {
        assert_eq!(ledger.tenant_of(source.parse().unwrap(), 0), TenantId(id), "{source}");
    }
}

#[test]
fn a_request_costs_its_base_its_rows_and_its_bytes() {
    let ledger = ledger();
    assert_eq!(ledger.price(0, 1, 3, 2_048, Some(PriceClass::GET)), MilliRu(6_000));
    assert_eq!(ledger.price(0, 0, 0, 512, Some(PriceClass::GET)), MilliRu(500));
}

#[test]
fn all_that_are_charged_are_charged_or_none() {
    let mut ledger = ledger();
    let team = TenantId(2);
    let other = TenantId(3);
    assert_eq!(ledger.tier(team), Tier::Critical);
    for _ in 0..2 {
        assert_eq!(ledger.charge((team, None), (TEN, TEN), 0, NOW, false), Charge::Passed(TEN));
    }
    // The team has spent its burst; the company has some left.
    let refused = |charge| match charge {
        Charge::Refused { refusal: Refusal { reason: Reason::Quota, retry_after, .. }, bucket } => {
            (retry_after, bucket)
        }
        charge => panic!("{charge:?}"),
    };
    assert_eq!(refused(ledger.charge((team, None), (TEN, TEN), 0, NOW, false)).1, team);
    assert_eq!(ledger.charge((other, None), (TEN, TEN), 0, NOW, false), Charge::Passed(TEN));
    // Now the company has not enough: the other's own bucket gets back what was taken.
    let (retry_after, bucket) = refused(ledger.charge((other, None), (TEN, TEN), 0, NOW, false));
    assert!(retry_after > Nanos::ZERO && bucket == TenantId(1), "{bucket:?}");
    let counted = |tenant: TenantId| {
        let counters = ledger.maps.tenant_counters(tenant.0 as usize);
        (counters.refused[Reason::Quota.index()], counters.quota_refused)
    };
    assert_eq!([team, other].map(counted), [(1, [0; 3]), (1, [1, 0, 0])]);
    ledger.refund((team, None), TEN);
    assert_eq!(ledger.charge((other, None), (TEN, TEN), 0, NOW, false), Charge::Passed(TEN));
}

/// How long a bucket takes to be full again.
fn debt(ledger: &Ledger, tenant: u32) -> Nanos {
    let word = ledger.maps.quota_tat(tenant as usize);
    Nanos(word.load(Ordering::Relaxed).saturating_sub(ledger.at(NOW).0))
}

#[test]
fn a_settlement_is_charged_to_all_up_to_the_largest_debt() {
    let mut ledger = ledger();
    let company = 1;
    let team = 2;
    let close = |debt: Nanos, micros: u64| debt.0.abs_diff(micros * 1_000) < 1_000;
    assert_eq!(ledger.charge((TenantId(team), None), (TEN, TEN), 0, NOW, false), Charge::Passed(TEN));
    // It was dearer by 11 request units: all of the team's burst, and 21 of the company's 32.
    let cost = MilliRu(21_000);
    assert_eq!(ledger.settle((TenantId(team), None), cost, TEN, NOW), MilliRu(11_000));
    let after = [team, company].map(|tenant| debt(&ledger, tenant));
    assert!(close(after[0], 1_000_000) && close(after[1], 656_250), "{after:?}");
    // What was cheaper than its price stays as it is.
    assert_eq!(ledger.settle((TenantId(team), None), TEN, cost, NOW), MilliRu::ZERO);
    assert_eq!([team, company].map(|tenant| debt(&ledger, tenant)), after);
    // The burst and twice as much.
    assert_eq!(ledger.settle((TenantId(team), None), MilliRu::MAX, TEN, NOW), MilliRu(u32::MAX - 10_000));
    assert_eq!([team, company].map(|tenant| debt(&ledger, tenant)), [Nanos::from_secs(3); 2]);
    assert_eq!(ledger.maps.tenant_counters(team as usize).charged_mru, u64::from(u32::MAX) + 1_000);
}

#[test]
fn what_a_service_sheds_is_dearer_or_refused() {
    let mut ledger = ledger();
    let one = MilliRu(1_000);
    let dear = ledger.apply_multiplier(TenantId(2), one, 2);
    assert_eq!(
        ledger.charge((TenantId(2), None), (one, dear), 2, NOW, false),
        Charge::Passed(MilliRu(4_000))
    );
    let refused = ledger.charge((TenantId(2), None), (one, one), Shed::REFUSED, NOW, false);
    let bucket = TenantId::UNKNOWN;
    assert_eq!(refused, Charge::Refused { refusal: Refusal::of(Reason::Penalty), bucket });
}

#[test]
fn what_only_a_multiplier_makes_too_dear_is_refused_for_a_while() {
    let mut ledger = ledger();
    let team = TenantId(2);
    let dearest = ledger.dearest(team);
    let mut refused = |asked: MilliRu, rung| {
        let price = ledger.apply_multiplier(team, asked, rung);
        match ledger.charge((team, None), (asked, price), rung, NOW, false) {
            Charge::Refused { refusal, .. } => Some((refusal.reason, refusal.retry_after > Nanos::ZERO)),
            Charge::Passed(_) => None,
        }
    };
    for rung in 0..Shed::REFUSED {
        assert_eq!(refused(MilliRu(dearest.0 + 1), rung), Some((Reason::TooLarge, false)), "at rung {rung}");
    }
    for rung in 1..Shed::REFUSED {
        assert_eq!(refused(dearest, rung), Some((Reason::Penalty, true)), "at rung {rung}");
    }
    assert_eq!(refused(dearest, 0), None);
}

#[test]
fn what_is_shadowed_passes_uncharged_and_is_counted() {
    let mut ledger = ledger();
    let huge = MilliRu(1_000_000);
    assert!(matches!(
        ledger.charge((TenantId(2), None), (huge, huge), 0, NOW, false),
        Charge::Refused { refusal: Refusal { reason: Reason::TooLarge, .. }, bucket: TenantId::UNKNOWN }
    ));
    assert_eq!(ledger.charge((TenantId(2), None), (huge, huge), 0, NOW, true), Charge::Passed(MilliRu::ZERO));
    assert_eq!(
        ledger.charge((TenantId::UNKNOWN, None), (TEN, TEN), 0, NOW, true),
        Charge::Passed(MilliRu::ZERO)
    );
    let counters = ledger.maps.tenant_counters(2);
    assert_eq!(counters.refused[Reason::TooLarge.index()], 1);
    assert_eq!(counters.shadowed[Reason::TooLarge.index()], 1);
}
