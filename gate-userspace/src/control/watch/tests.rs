//! The state of a service that outlives a reload.

use super::*;

/// A guarded service with a probe; `shedding` is what else its section says.
fn config(shedding: &str) -> Config {
    let text = format!(
        "[[service]]\nname = \"probed\"\nprotocol = \"memcached\"\nlisten = \"198.18.0.1:11211\"\n\
         probe.every = \"10ms\"\n{shedding}\n\
         [[service]]\nname = \"unseen\"\nprotocol = \"memcached\"\nlisten = \"198.18.0.1:11212\"\n\
         [[tenant]]\nname = \"team\"\nsources = \"10.0.0.0/8\"\nquota = \"1000 RU/s\"\n"
    );
    Config::parse("test.toml", &text).unwrap()
}

/// The snapshot of the probed service after a tick in which its answers took so long.
fn ratio_after(watch: &mut Watch, now: &mut Nanos, latency: Nanos) -> Option<f64> {
    let probed = watch.probed(0).unwrap();
    (0..50).for_each(|_| probed.latencies().record(0, latency));
    *now = now.saturating_add(Nanos::from_millis(100));
    watch.tick(*now, |_| false)[0].ratio
}

#[test]
fn latency_windows_outlive_a_reload_with_the_same_settings() {
    let mut watch = Watch::default();
    let mut now = Nanos::ZERO;
    watch.follow(&config(""), &[], now).unwrap();
    for _ in 0..100 {
        ratio_after(&mut watch, &mut now, Nanos::from_millis(2));
    }
    let probed = watch.probed(0).unwrap();
    watch.follow(&config(""), &[], now).unwrap();
    let slow = ratio_after(&mut watch, &mut now, Nanos::from_millis(20));
    assert!(slow.is_some_and(|ratio| ratio < 0.2), "{slow:?}");
    // Read anew, what is slow is all that is known.
    watch.follow(&config("shedding.short = \"500ms\""), &[], now).unwrap();
    let anew = ratio_after(&mut watch, &mut now, Nanos::from_millis(20));
    assert!(anew.is_some_and(|ratio| ratio > 0.9), "{anew:?}");
    // A probe that is under way goes on leaving there what it finds.
    assert!(Arc::ptr_eq(&probed, &watch.probed(0).unwrap()));
}

#[test]
fn a_service_without_a_source_reports_nothing() {
    let mut watch = Watch::default();
    watch.follow(&config(""), &[], Nanos::ZERO).unwrap();
    assert!(watch.probed(1).is_none());
    assert_eq!(watch.tick(Nanos::from_secs(1), |_| true)[1], UNSEEN);
    let report = &watch.report()[1];
    assert_eq!((report.name.as_str(), report.store_up, report.latency_ratio), ("unseen", None, None));
}

#[test]
fn a_store_that_has_not_answered_yet_is_down() {
    let mut watch = Watch::default();
    watch.follow(&config(""), &[], Nanos::ZERO).unwrap();
    assert!(!watch.tick(Nanos::from_secs(1), |_| false)[0].store_up);
}

#[test]
fn of_two_ratios_the_lower_one_counts() {
    for (one, other, counts) in [
        (None, None, None),
        (Some(0.4), None, Some(0.4)),
        (None, Some(0.4), Some(0.4)),
        (Some(0.4), Some(0.9), Some(0.4)),
        (Some(1.0), Some(0.3), Some(0.3)),
    ] {
        assert_eq!(lower(one, other), counts);
    }
}
