//! 10,000 tenants with 100,000 source prefixes: found, kept within the memory that is allowed, changed at once.

use std::fmt::Write as _;
use std::net::SocketAddr;

use gate_tests::daemon::{PATIENCE, Site};
use gate_tests::flood::{Flood, Sink};
use gate_tests::privilege;
use gate_tests::wait::until;
use gate_userspace::kernel::Maps;
use nix::sys::signal::Signal;

const TENANTS: usize = 10_000;
/// Ten prefixes each: a /28 that the client can send from, and nine elsewhere, as long as real ones are.
const SERVICE: &str =
    "[[service]]\nname = \"cache\"\nprotocol = \"memcached\"\nlisten = \"198.18.0.1:11211\"\n";

/// `gate` settings, and every tenant with its prefixes; `quota` is everyone's.
fn config(settings: &str, quota: &str) -> String {
    let mut text = format!("[gate]\n{settings}\n{SERVICE}");
    for tenant in 0..TENANTS {
        write!(
            text,
            "[[tenant]]\nname = \"t{tenant}\"\nquota = \"{quota}\"\nsources = [\"{}/28\"",
            home(tenant)
        )
        .unwrap();
        for n in 0..9 {
            // Spread over 20.0.0.0/8 to 28.0.0.0/8, lengths 24 to 32.
            let place = (tenant * 1_664_525 + n * 40_503) % (1 << 16);
            let length = 24 + n;
            let low = (tenant % 256) & !((1 << (8 - n)) - 1);
            write!(text, ", \"{}.{}.{}.{low}/{length}\"", 20 + n, place >> 8, place & 255).unwrap();
        }
        text.push_str("]\n");
    }
    text
}

/// Where a tenant is at home: a sixteenth of a /24 in 198.19.0.0/16 for the first 4,096, else in 30.0.0.0/8.
fn home(tenant: usize) -> String {
    let net = tenant / 16;
    let low = tenant % 16 * 16;
    if tenant < 4_096 {
        format!("198.19.{net}.{low}")
    } else {
        format!("30.{}.{}.{low}", net >> 8, net & 255)
    }
}

/// The document without prefixes that two tenants would share.
fn distinct(text: &str) -> String {
    let mut seen = std::collections::HashSet::new();
    let mut kept = String::with_capacity(text.len());
    for line in text.lines() {
        let Some(list) = line.strip_prefix("sources = [").and_then(|rest| rest.strip_suffix(']')) else {
            kept.push_str(line);
            kept.push('\n');
            continue;
        };
        let sources: Vec<&str> = list.split(", ").filter(|source| seen.insert(source.to_string())).collect();
        writeln!(kept, "sources = [{}]", sources.join(", ")).unwrap();
    }
    kept
}

fn passed(maps: &Maps, id: usize) -> u64 {
    maps.tenant_counters(id).passed
}

#[test]
fn ten_thousand_tenants_are_distinguished_and_changed_at_once() {
    if !privilege::root("scale::ten_thousand_tenants_are_distinguished_and_changed_at_once") {
        return;
    }
    let text = distinct(&config("prefix_memory = \"256MiB\"", "1000 RU/s"));
    let prefixes = text.matches('/').count() - TENANTS;
    assert!(prefixes > 95_000, "{prefixes} prefixes");
    let site = Site::new(&text).unwrap();
    let mut gate = site.start(&[]).unwrap();
    assert_eq!(site.json(&["status"]).unwrap()["tenants"], TENANTS);

    let maps = Maps::pinned(site.pins(), false).unwrap();
    let target: SocketAddr = "198.18.0.1:11211".parse().unwrap();
    let sink = Sink::start(&site.net, target).unwrap();
    let asked = [0_usize, 15, 16, 255, 4_095];
    let sources: Vec<_> = asked.iter().map(|&tenant| home(tenant).parse().unwrap()).collect();
    let flood = Flood::start(&site.net, &sources, target, 1_000).unwrap();
    until("every tenant is found", PATIENCE, || asked.iter().all(|&tenant| passed(&maps, tenant + 1) > 0));
    assert_eq!(passed(&maps, 2), 0, "a tenant that sent nothing was charged");

    site.configure(&text.replace("1000 RU/s", "2000 RU/s")).unwrap();
    gate.signal(Signal::SIGHUP).unwrap();
    gate.wait_for("read again", PATIENCE).unwrap();
    let tenants = site.json(&["tenants"]).unwrap()["tenants"].take();
    assert!(tenants.as_array().unwrap().iter().all(|tenant| tenant["quota_ru_per_sec"] == 2_000.0));
    let sent = flood.stop();
    until("all that was sent arrives", PATIENCE, || sink.received() >= sent);
    gate.end().unwrap();
    assert_eq!(site.anything_left().unwrap(), None);
}

#[test]
fn prefixes_beyond_the_memory_that_is_allowed_are_refused() {
    if !privilege::root("scale::prefixes_beyond_the_memory_that_is_allowed_are_refused") {
        return;
    }
    let site = Site::new(&distinct(&config("prefix_memory = \"1MiB\"", "1000 RU/s"))).unwrap();
    let refusal = site.refusal(site.command(gate_tests::net::SERVER_INTERFACE)).unwrap();
    assert!(refusal.contains("KiB of tables, prefix_memory allows 1024 KiB"), "{refusal}");
    assert_eq!(site.anything_left().unwrap(), None);
}
