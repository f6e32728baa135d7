//! Tests wait for events with a deadline (`gate_tests::wait`). Where one passes time instead, it is listed here with the reason.
//!
//! The list shrinks: a place that is gone has to leave it.

use std::collections::BTreeMap;
use std::fs;

use super::source::{code, sources, workspace};

/// Where tests lie that run as processes.
const ROOMS: [&str; 3] = ["gate-userspace/tests", "tests/suites", "tests/support"];

/// How a thread or a task passes time.
const CALLS: [&str; 2] = ["sleep(", "park_timeout("];

const PACED: &str = "asks, or looks, at a fixed rate";
const SLOW: &str = "plays a peer that takes its time";
const LOOKS: &str = "looks again at something that nobody announces, up to a deadline";
const FORCED: &str = "moves an event to different moments of what runs beside it";

/// Files with the number of their calls, and the reason.
const ALLOWED: [(&str, usize, &str); 29] = [
    ("tests/suites/daemon/admin_hostile.rs", 2, LOOKS),
    ("tests/suites/daemon/browser.rs", 2, LOOKS),
    ("tests/suites/daemon/closed_loop.rs", 1, SLOW),
    ("tests/suites/daemon/intercept_outages.rs", 1, PACED),
    ("tests/suites/daemon/misleading.rs", 2, SLOW),
    ("tests/suites/fleet/bare_gate.rs", 1, SLOW),
    ("tests/suites/fleet/envoys.rs", 1, PACED),
    ("tests/suites/fleet/kills.rs", 1, PACED),
    ("tests/suites/fleet/lossy.rs", 3, PACED),
    ("tests/suites/fleet/partitions.rs", 1, PACED),
    ("tests/suites/fleet/shares.rs", 1, PACED),
    ("tests/suites/interface/connections.rs", 2, PACED),
    ("tests/suites/interface/key_limits.rs", 1, PACED),
    ("tests/suites/interface/limits.rs", 1, LOOKS),
    ("tests/suites/interface/replies.rs", 2, LOOKS),
    ("tests/suites/proxy/http/cache_faults.rs", 1, SLOW),
    ("tests/suites/proxy/http/hostile.rs", 1, SLOW),
    ("tests/suites/proxy/http/processed/thrice.rs", 3, PACED),
    ("tests/suites/proxy/isolation/hung_store.rs", 1, SLOW),
    ("tests/suites/proxy/isolation/slow_requests.rs", 1, SLOW),
    ("tests/suites/proxy/isolation/slow_writers.rs", 1, SLOW),
    ("tests/suites/proxy/modes.rs", 1, SLOW),
    ("tests/suites/proxy/overload.rs", 1, PACED),
    ("tests/suites/proxy/sessions.rs", 1, FORCED),
    ("tests/suites/proxy/sessions/random.rs", 2, FORCED),
    ("tests/support/fleet_site.rs", 1, PACED),
    ("tests/support/flood.rs", 1, PACED),
    ("tests/support/slow_store.rs", 1, SLOW),
    ("tests/support/wait.rs", 1, LOOKS),
];

#[test]
fn tests_pass_time_in_the_listed_places_alone() {
    let mut found = BTreeMap::new();
    for file in ROOMS.iter().flat_map(|room| sources(&workspace().join(room))) {
        let text = code(&fs::read_to_string(&file).unwrap());
        let calls: usize = CALLS.iter().map(|call| text.matches(call).count()).sum();
        if calls > 0 {
            found.insert(file.strip_prefix(workspace()).unwrap().display().to_string(), calls);
        }
    }
    let allowed = ALLOWED.map(|(file, calls, _)| (file.to_owned(), calls));
    assert_eq!(found, BTreeMap::from(allowed), "wait for the event instead (gate_tests::wait)");
}
