use crate::envoy::wire::rls::RateLimitUnit;
use crate::envoy::wire::rls::UInt64Value;
use crate::envoy::wire::rls::rate_limit_descriptor::{Entry, RateLimitOverride};
use crate::envoy::wire::rls::rate_limit_response::RateLimit;
use crate::envoy::wire::rls::rate_limit_response::rate_limit::Unit;

use super::*;
use crate::config::Config;
use crate::control::capacity::{capacities, needs};
use crate::control::decide::Rules;
use crate::control::layout::Layout;
use crate::control::occupied::occupied;
use crate::control::tick::Ticker;
use crate::kernel::{Maps, Sizes};

pub(super) const TEXT: &str = r#"
    [[service]]
    name = "cache"
    protocol = "memcached"
    listen = "127.0.0.1:11211"
    backend = "127.0.0.1:11212"
    price = { base = "0.01 RU", row = "0.01 RU", kib = "0.01 RU" }
    [[tenant]]
    name = "company"
    quota = "12 RU/s"
    burst = "1s"
    [[tenant]]
    name = "team"
    sources = ["10.0.0.0/8"]
    quota = "10 RU/s"
    burst = "1s"
    charge = ["company"]
    [[tenant]]
    name = "named"
    sources = ["10.1.0.0/16"]
    quota = "1000 RU/s"
    [envoy]
    listen = "127.0.0.1:8081"
    [[limit]]
    name = "shop/user=*"
    quota = "10 RU/s"
    burst = "1s"
    max_debt = "0s"
    [[limit]]
    name = "shop/user=alice"
    quota = "50 RU/s"
    burst = "1s"
    [[limit]]
    name = "shop/path=%2Fx"
    quota = "5 RU/s"
    burst = "1s"
    [[limit]]
    name = "shop/tenant=named"
    quota = "3 RU/s"
    burst = "1s"
"#;

const NOW: Nanos = Nanos::from_secs(1_000);

fn quotas() -> Quotas {
    quotas_of(TEXT)
}

pub(super) fn quotas_of(text: &str) -> Quotas {
    let config = Config::parse("test.toml", text).unwrap_or_else(|faults| panic!("{faults}"));
    let room = capacities(&needs(&config), 1_000);
    let tenants = room.tenant_capacity;
    let services = room.service_capacity;
    let blocks = room.block_capacity;
    let sizes = Sizes { tenants, services, blocks, ..Sizes::SMALL };
    let (maps, ownership) = Maps::private(&sizes).unwrap();
    let maps = Arc::new(maps);
    let layout = Layout::build(&config, &occupied(&maps)).unwrap();
    let mut ticker = Ticker::new(Arc::clone(&maps), ownership, layout, Rules::default()).unwrap();
    while ticker.stabilising() {
        ticker.tick(NOW, &[]).unwrap();
    }
    let table = Arc::new(Table::new(Arc::new(config.limits), 1 << 20, true));
    Quotas::new(table, NamedTenants::new(maps, 7), Arc::default())
}

pub(super) fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry = |&(key, value): &(&str, &str)| Entry { key: key.to_owned(), value: value.to_owned() };
    RateLimitDescriptor { entries: entries.iter().map(entry).collect(), ..RateLimitDescriptor::default() }
}

fn hits(hits: u64, entries: &[(&str, &str)]) -> RateLimitDescriptor {
    RateLimitDescriptor { hits_addend: Some(UInt64Value { value: hits }), ..descriptor(entries) }
}

fn request(descriptors: &[RateLimitDescriptor]) -> RateLimitRequest {
    RateLimitRequest { domain: "shop".to_owned(), descriptors: descriptors.to_vec(), hits_addend: 0 }
}

/// The answer to each descriptor: true if it is refused, and what remains.
fn decide(quotas: &Quotas, descriptors: &[RateLimitDescriptor]) -> Vec<(bool, u32)> {
    let response = quotas.decide(&request(descriptors), NOW).unwrap();
    let statuses: Vec<_> = response
        .statuses
        .iter()
        .map(|status| (status.code == Code::OverLimit as i32, status.limit_remaining))
        .collect();
    let is_over = response.overall_code == Code::OverLimit as i32;
    assert_eq!(is_over, statuses.iter().any(|(is_refused, _)| *is_refused));
    statuses
}

#[test]
fn the_most_specific_limit_decides_and_unknown_names_pass() {
    let quotas = quotas();
    for (entries, hits_asked, answer) in [
        (&[("user", "bob")][..], 4, (false, 6)),
        (&[("user", "bob")], 7, (true, 6)),
        (&[("user", "alice")], 7, (false, 43)),
        (&[("user", "carol")], 10, (false, 0)),
        (&[("user", "carol"), ("path", "/x")], 1_000, (false, 0)),
        (&[("path", "/x")], 2, (false, 3)),
        (&[("tenant", "team")], 4, (false, 6)),
        (&[("tenant", "team")], 7, (true, 6)),
        // A limit of this name comes before the tenant's quota.
        (&[("tenant", "named")], 2, (false, 1)),
        (&[("tenant", "nobody")], 1_000, (false, 0)),
    ] {
        assert_eq!(decide(&quotas, &[hits(hits_asked, entries)]), [answer], "{entries:?}");
    }
    let count = |event| quotas.counters.of(event);
    assert_eq!((count(Event::Ok), count(Event::OverLimit), count(Event::Unknown)), (8, 2, 2));
    assert_eq!((count(Event::Named), count(Event::Tenant)), (6, 2));
}

#[test]
fn shadow_mode_refuses_no_name_and_no_tenant_and_counts_both() {
    let quotas = quotas_of(&format!("[gate]\nmode = \"shadow\"\n{TEXT}"));
    let lowered = RateLimitOverride { requests_per_unit: 1, unit: RateLimitUnit::Hour as i32 };
    let lowered = |user| RateLimitDescriptor { limit: Some(lowered), ..hits(5, &[("user", user)]) };
    for descriptors in [
        vec![hits(11, &[("user", "bob")])],
        vec![hits(4, &[("user", "bob")]), hits(16, &[("path", "/x")])],
        vec![lowered("alice")],
        vec![hits(100, &[("tenant", "team")])],
    ] {
        let answers = decide(&quotas, &descriptors);
        assert!(answers.iter().all(|(is_refused, _)| !is_refused), "{descriptors:?}: {answers:?}");
    }
    let count = |event| quotas.counters.of(event);
    assert_eq!((count(Event::OverLimit), count(Event::Shadowed)), (0, 3));
}

#[test]
fn a_limit_in_shadow_mode_refuses_nothing_and_the_others_do() {
    let quotas =
        quotas_of(&TEXT.replacen("max_debt = \"0s\"", "max_debt = \"0s\"\n    mode = \"shadow\"", 1));
    let answers = decide(&quotas, &[hits(11, &[("user", "bob")]), hits(3, &[("path", "/x")])]);
    assert_eq!(answers, [(false, 10), (false, 2)]);
    let answers = decide(&quotas, &[hits(11, &[("user", "bob")]), hits(16, &[("path", "/x")])]);
    assert!(matches!(answers[..], [(false, 10), (true, _)]), "{answers:?}");
    let count = |event| quotas.counters.of(event);
    assert_eq!((count(Event::OverLimit), count(Event::Shadowed)), (1, 2));
}

#[test]
fn descriptors_are_charged_all_or_none() {
    let quotas = quotas();
    let bob = || hits(3, &[("user", "bob")]);
    let path = || hits(3, &[("path", "/x")]);
    let team = || hits(3, &[("tenant", "team")]);
    assert_eq!(decide(&quotas, &[team(), bob(), path()]), [(false, 7), (false, 7), (false, 2)]);
    // A limit refuses: neither another limit nor the tenant is charged.
    assert_eq!(decide(&quotas, &[team(), bob(), path()]), [(false, 7), (false, 7), (true, 2)]);
    // A tenant refuses.
    assert_eq!(decide(&quotas, &[bob(), hits(8, &[("tenant", "team")])]), [(false, 7), (true, 7)]);
    // So does one that is charged with it: `company` has 9 left, of 12.
    assert_eq!(decide(&quotas, &[hits(7, &[("tenant", "team")]), bob()]), [(false, 0), (false, 4)]);
    assert_eq!(decide(&quotas, &[hits(3, &[("tenant", "company")])]), [(true, 2)]);
    let mut used = Vec::new();
    quotas.table.take_changes(NOW, |change| used.push((change.name.to_string(), change.counts.used)));
    used.sort();
    assert_eq!(used, [("shop/path=%2Fx".to_owned(), 3_000), ("shop/user=bob".to_owned(), 6_000)]);
}

#[test]
fn a_status_has_the_limit_what_remains_and_when_it_is_back() {
    let quotas = quotas();
    let answer =
        |hits_asked| quotas.decide(&request(&[hits(hits_asked, &[("user", "bob")])]), NOW).unwrap().statuses;
    let limit = RateLimit { requests_per_unit: 10, unit: Unit::Second as i32, name: String::new() };
    let passed = &answer(6)[0];
    assert_eq!((passed.current_limit.as_ref(), passed.limit_remaining), (Some(&limit), 4));
    assert_eq!(passed.duration_until_reset.unwrap().seconds, 1);
    let refused = &answer(9)[0];
    assert_eq!((refused.current_limit.as_ref(), refused.limit_remaining), (Some(&limit), 4));
    assert_eq!(refused.duration_until_reset.unwrap().seconds, 1);
    // It never fits: when the bucket is full is all that can be said.
    assert_eq!(answer(11)[0].duration_until_reset.unwrap().seconds, 1);
    let unknown = quotas.decide(&request(&[descriptor(&[("x", "y")])]), NOW).unwrap();
    assert_eq!(
        (unknown.statuses[0].current_limit.clone(), unknown.statuses[0].duration_until_reset),
        (None, None)
    );
}

#[test]
fn zero_hits_ask_and_negative_ones_give_back() {
    let quotas = quotas();
    let bob = [("user", "bob")];
    let back = |count, entries| RateLimitDescriptor { is_negative_hits: true, ..hits(count, entries) };
    assert_eq!(decide(&quotas, &[hits(10, &bob)]), [(false, 0)]);
    assert_eq!(decide(&quotas, &[hits(0, &bob)]), [(true, 0)]);
    assert_eq!(decide(&quotas, &[back(4, &bob)]), [(false, 4)]);
    assert_eq!(decide(&quotas, &[hits(0, &bob)]), [(false, 4)]);
    assert_eq!(decide(&quotas, &[hits(0, &bob)]), [(false, 4)], "a question takes nothing");
    assert_eq!(decide(&quotas, &[back(1_000, &bob)]), [(false, 10)], "never more than the burst");
    let team = [("tenant", "team")];
    assert_eq!(decide(&quotas, &[hits(10, &team)]), [(false, 0)]);
    assert_eq!(decide(&quotas, &[hits(0, &team)]), [(true, 0)]);
    assert_eq!(decide(&quotas, &[back(4, &team)]), [(false, 4)]);
    // What another descriptor refuses gives nothing back.
    assert_eq!(decide(&quotas, &[hits(5, &team), back(1, &bob)])[0], (true, 4));
}

#[test]
fn an_override_only_lowers() {
    let quotas = quotas();
    let with = |count, entries: &[(&str, &str)]| {
        let limit = RateLimitOverride { requests_per_unit: count, unit: RateLimitUnit::Minute as i32 };
        RateLimitDescriptor { limit: Some(limit), ..descriptor(entries) }
    };
    let passed = |descriptor: &RateLimitDescriptor| {
        (0..100).filter(|_| !decide(&quotas, std::slice::from_ref(descriptor))[0].0).count()
    };
    assert_eq!(passed(&with(3, &[("user", "bob")])), 3);
    assert_eq!(passed(&with(6_000, &[("user", "carol")])), 10, "its own limit is lower");
    assert_eq!(passed(&with(3, &[("tenant", "team")])), 3);
    assert_eq!(passed(&with(3, &[("nobody", "knows")])), 3);
    assert_eq!(passed(&with(0, &[("nobody", "knows")])), 0);
    // The refused took nothing of the name's own bucket.
    assert_eq!(decide(&quotas, &[hits(7, &[("user", "bob")])]), [(false, 0)]);
}

#[test]
fn requests_that_break_a_rule_are_told_which() {
    let quotas = quotas();
    let one = descriptor(&[("user", "bob")]);
    let deep: Vec<_> = (0..=Name::MAX_ENTRIES).map(|_| ("a", "b")).collect();
    let no_unit = RateLimitDescriptor { limit: Some(RateLimitOverride::default()), ..one.clone() };
    let at = |error| Invalid::Name { place: 1, error };
    for (request, invalid) in [
        (RateLimitRequest { domain: String::new(), ..request(std::slice::from_ref(&one)) }, Invalid::Domain),
        (request(&[]), Invalid::NoDescriptor),
        (request(&vec![one.clone(); MAX_DESCRIPTORS + 1]), Invalid::Descriptors),
        (request(&[one.clone(), descriptor(&deep)]), at(NameError::TooManyEntries)),
        (request(&[one.clone(), descriptor(&[("", "x")])]), at(NameError::Empty)),
        (request(&[one.clone(), descriptor(&[(&"k".repeat(300), "x")])]), at(NameError::TooLong)),
        (request(&[no_unit]), Invalid::Unit { place: 0 }),
    ] {
        assert_eq!(quotas.decide(&request, NOW), Err(invalid));
    }
    assert_eq!(quotas.counters.of(Event::Invalid), 7);
    assert_eq!(decide(&quotas, &[hits(10, &[("user", "bob")])]), [(false, 0)], "nothing was charged");
}

#[test]
fn a_long_value_is_limited_as_any_other() {
    let quotas = quotas();
    let long = "x".repeat(100_000);
    let passed = (0..20).filter(|_| !decide(&quotas, &[descriptor(&[("user", &long)])])[0].0).count();
    assert_eq!(passed, 10);
    assert_eq!(quotas.counters.of(Event::Hashed), 20);
}

proptest::proptest! {
    /// Whatever is asked: an answer or an error, and no bucket gives out more than its burst at one time.
    #[test]
    fn no_request_panics_or_gets_more_than_the_burst(
        asked in proptest::collection::vec(
            proptest::collection::vec(
                ("(user|path|tenant|)", "(bob|alice|team|/x|%|\\*|)", proptest::option::of(0..12_u64), proptest::bool::ANY),
                0..4,
            ),
            0..40,
        ),
    ) {
        let quotas = quotas();
        for descriptors in asked {
            let descriptors: Vec<_> = descriptors
                .iter()
                .map(|(key, value, count, with_limit)| RateLimitDescriptor {
                    hits_addend: count.map(|value| UInt64Value { value }),
                    limit: with_limit.then_some(RateLimitOverride { requests_per_unit: 2, unit: 1 }),
                    ..descriptor(&[(key, value)])
                })
                .collect();
            let _ = quotas.decide(&request(&descriptors), NOW);
        }
        let mut used = Vec::new();
        quotas.table.take_changes(NOW, |change| used.push((change.standing.limits, change.counts.used)));
        for (limits, used) in used {
            proptest::prop_assert!(used <= limits.dearest(), "{used} of {limits:?}");
        }
    }
}

#[test]
fn all_limits_of_a_name_are_charged_and_the_strictest_is_shown() {
    let more = r#"
        [[limit]]
        name = "two/user=*"
        quota = "10 RU/s"
        burst = "1s"
        max_debt = "0s"
        [[limit]]
        name = "two/user=*"
        label = "daily"
        quota = "12/day"
        [[limit]]
        name = "two/user=bob"
        label = "daily"
        quota = "0"
        [[limit]]
        name = "two/path=*"
        label = "hourly"
        quota = "3/hour"
    "#;
    let quotas = quotas_of(&(TEXT.to_owned() + more));
    let ask = |hits: u64, entries: &[(&str, &str)], now: Nanos| {
        let descriptors = vec![super::tests::hits(hits, entries)];
        let request = RateLimitRequest { domain: "two".to_owned(), descriptors, hits_addend: 0 };
        let status = quotas.decide(&request, now).unwrap().statuses.remove(0);
        let limit = status.current_limit.unwrap_or_default();
        let wait = status.duration_until_reset.map(|wait| wait.seconds);
        (status.code == Code::OverLimit as i32, limit.name, status.limit_remaining, wait)
    };
    let alice = &[("user", "alice")];
    let of = |is_over, name: &str, remaining, wait| (is_over, name.to_owned(), remaining, Some(wait));
    // Ten of both; less remains of the second's.
    assert_eq!(ask(8, alice, NOW), of(false, "", 2, 1));
    let later = NOW.saturating_add(Nanos::from_secs(1));
    assert_eq!(ask(3, alice, later), of(false, "daily", 1, 79_200));
    // The day's refuses, for hours, and nothing is taken of the second's seven.
    assert_eq!(ask(2, alice, later), of(true, "daily", 1, 7_200));
    assert_eq!(ask(0, alice, later), of(false, "daily", 1, 79_200));
    // Both refuse: the one that lasts longer is shown.
    assert_eq!(ask(9, alice, later), of(true, "daily", 1, 57_600));
    assert_eq!(ask(1, alice, later), of(false, "daily", 0, 86_400));
    // A label's most specific limit holds, and a limit with a label may be the only one.
    assert!(ask(1, &[("user", "bob")], later).0);
    assert_eq!(ask(3, &[("path", "/x")], later), of(false, "hourly", 0, 3_601));
    assert_eq!(ask(1, &[("path", "/x")], later), of(true, "hourly", 0, 1_201));
    // What is given back is given back to all.
    let given = RateLimitDescriptor { is_negative_hits: true, ..super::tests::hits(5, alice) };
    let request = RateLimitRequest { domain: "two".to_owned(), descriptors: vec![given], hits_addend: 0 };
    assert_eq!(quotas.decide(&request, later).unwrap().statuses[0].code, Code::Ok as i32);
    assert_eq!(ask(0, alice, later), of(false, "daily", 5, 50_400));
    // A long value leaves neither limit.
    let long = "y".repeat(400);
    assert_eq!(ask(10, &[("user", &long)], later).1, "");
    assert_eq!(ask(1, &[("path", &long)], later), of(false, "hourly", 2, 1_201));
}
