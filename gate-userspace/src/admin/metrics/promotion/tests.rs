//! Tenants come, are counted, go, and come back.

use proptest::prelude::{Strategy, any, prop, prop_assert, proptest};

use super::*;
use crate::kernel::Sizes;

const NUMBERS: usize = 12;

/// Maps without a configuration: a test gives names, and counts.
struct Site {
    maps: Maps,
    promotion: Promotion,
    named: HashSet<Name>,
}

impl Site {
    fn new(named: &[&str]) -> Self {
        let tenants = NUMBERS as u32;
        let (maps, _) = Maps::private(&Sizes {
            cpus: 1,
            cpu_rows: 1,
            thread_rows: 1,
            tenants,
            services: 4,
            blocks: 16,
            samples: 4_096,
        })
        .unwrap();
        let named = named.iter().map(|name| Name::new(name).unwrap()).collect();
        Self { promotion: Promotion::new(&maps), maps, named }
    }

    fn name(&self, number: usize, name: &str) {
        self.maps.tenants.store_at(number, offset_of!(Tenant, name), &Name::new(name).unwrap());
    }

    /// A number goes to another tenant.
    fn replace(&self, number: usize, name: &str) {
        self.maps.clear_tenant_counters(number);
        self.name(number, name);
    }

    fn count(&self, number: usize, passed: u64) {
        self.maps.count_shared(number, &TenantCounters { passed, ..TenantCounters::default() });
    }

    /// The requests of `other` that have passed, and those of promoted tenants.
    fn read(&mut self, most: usize) -> (u64, Vec<(String, u64)>) {
        let reading = self.promotion.read(&self.maps, &self.named, most);
        let passed = |counters: &ByLayer| counters.iter().map(|layer| layer.passed).sum();
        let own = |own: &Own| (own.name.as_str().to_owned(), passed(&own.counters));
        (passed(&reading.other), reading.promoted.iter().map(own).collect())
    }
}

fn own(own: &[(&str, u64)]) -> Vec<(String, u64)> {
    own.iter().map(|&(name, passed)| (name.to_owned(), passed)).collect()
}

#[test]
fn the_busiest_are_promoted_and_named_tenants_before_them() {
    let mut site = Site::new(&["quiet", "absent"]);
    for (number, name) in [(1, "small"), (2, "large"), (3, "quiet"), (4, "larger"), (5, OTHER)] {
        site.name(number, name);
    }
    for (number, passed) in [(1, 1), (2, 2), (4, 3), (5, 100)] {
        site.count(number, passed);
    }
    // One place is kept for a named tenant that has not come.
    assert_eq!(site.read(4), (101, own(&[("quiet", 0), ("larger", 3), ("large", 2)])));
    site.name(6, "absent");
    (1..=6).for_each(|number| site.count(number, 10));
    let all = [("quiet", 10), ("larger", 13), ("large", 12), ("absent", 10)];
    assert_eq!(site.read(4), (121, own(&all)));
    // Counted from now on, where it had been counted elsewhere before.
    site.count(1, 7);
    assert_eq!(site.read(5), (128, own(&[&all[..], &[("small", 0)]].concat())));
    site.count(1, 5);
    assert_eq!(site.read(5), (128, own(&[&all[..], &[("small", 5)]].concat())));
}

#[test]
fn a_tenant_that_is_named_when_all_places_are_taken_waits() {
    let mut site = Site::new(&[]);
    for (number, name) in [(1, "a"), (2, "b"), (3, "late")] {
        site.name(number, name);
        site.count(number, 10 - number as u64);
    }
    let full = [("a", 9), ("b", 8)];
    assert_eq!(site.read(2), (7, own(&full)));
    // The others stay promoted: their counters would end otherwise.
    site.named = [Name::new("late").unwrap()].into();
    site.count(3, 1);
    assert_eq!(site.read(2), (8, own(&full)));
    // Before any other, when a reload makes room.
    site.name(4, "busier");
    site.count(4, 1_000);
    assert_eq!(site.read(3), (1_008, own(&[&full[..], &[("late", 0)]].concat())));
}

#[test]
fn a_tenant_that_comes_back_goes_on_from_where_it_was() {
    let mut site = Site::new(&[]);
    site.name(1, "a");
    site.count(1, 5);
    assert_eq!(site.read(1), (0, own(&[("a", 5)])));
    // Its number goes to another tenant, for which there is no room.
    site.count(1, 1);
    site.replace(1, "b");
    site.count(1, 20);
    assert_eq!(site.read(1), (20, own(&[("a", 6)])));
    site.name(2, "a");
    site.count(2, 4);
    assert_eq!(site.read(1), (20, own(&[("a", 10)])));
    // What nobody has seen is kept as well.
    site.name(3, "c");
    site.count(3, 30);
    site.replace(3, "d");
    site.replace(1, "");
    assert_eq!(site.read(1), (50, own(&[("a", 10)])));
}

/// Events of a number: so many requests, another name, or a scrape.
fn steps() -> impl Strategy<Value = Vec<(usize, u8, u64, bool)>> {
    prop::collection::vec((1..NUMBERS, any::<u8>(), 0..1_000_u64, any::<bool>()), 1..120)
}

proptest! {
    #[test]
    fn no_sum_falls_and_all_sums_are_what_was_counted(steps in steps(), most in 0_usize..6) {
        let mut site = Site::new(&["t1", "t20"]);
        let mut counted = 0;
        let mut before = (0_u64, Vec::<(String, u64)>::new());
        for (number, name, passed, scrapes) in steps {
            let name = format!("t{}", name % 32);
            let held = name_of(&site.maps, number);
            let is_taken = (1..NUMBERS).any(|other| name_of(&site.maps, other).as_str() == name);
            if (held == Name::EMPTY || passed % 7 == 0) && !is_taken {
                site.replace(number, &name);
            }
            site.count(number, passed);
            counted += passed;
            if !scrapes {
                continue;
            }
            let now = site.read(most);
            prop_assert!(now.1.len() <= most && now.0 >= before.0, "{now:?} after {before:?}");
            let pairs = now.1.iter().zip(&before.1);
            prop_assert!(pairs.clone().all(|(now, before)| now.0 == before.0 && now.1 >= before.1));
            prop_assert!(now.1.len() >= before.1.len());
            // What has come since the last place was given is shown the next time at the latest.
            let shown = now.0 + now.1.iter().map(|(_, passed)| passed).sum::<u64>();
            prop_assert!(shown == counted, "{shown} of {counted}");
            before = now;
        }
    }
}
