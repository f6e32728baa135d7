//! `/metrics`: what it counts, for whom, and whether Prometheus takes it.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use gate_tests::daemon::Site;
use gate_tests::fleet::{Owner, section};
use gate_tests::http::{curl, curl_socket};
use gate_tests::memcached::{Connection, Datagrams, Memcached, PORT};
use gate_tests::metrics::Scrape;
use gate_tests::net::SERVER_V4;
use gate_tests::privilege;
use gate_tests::proxy::{Listening, PATIENCE, address, read_until};
use gate_tests::wait::wait_until;
use nix::sys::signal::Signal;
use serde_json::Value;
use xtask::paths;

/// The text that a gate answers at its socket.
fn text(socket: &Path) -> Result<String> {
    let answer = curl_socket(socket, "/metrics", &[])?;
    ensure!(answer.status == 200 && answer.head.contains("text/plain; version=0.0.4"), "{answer:?}");
    Ok(answer.body)
}

fn scrape(gate: &Listening) -> Result<Scrape> {
    Scrape::parse(&text(&gate.files()?.1)?)
}

/// The output of promtool for an input that it takes.
fn promtool(arguments: &[&str], input: &str) -> Result<String> {
    let mut command = Command::new("promtool");
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().context("promtool: `cargo xtask setup` installs it")?;
    child.stdin.take().context("no input")?.write_all(input.as_bytes())?;
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    ensure!(output.status.success(), "{said}");
    Ok(said)
}

/// The names of gate's metrics in a text.
fn named(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("gate_")).collect()
}

fn document(name: &str) -> Result<String> {
    let path = paths::workspace().join("docs").join(name);
    std::fs::read_to_string(&path).with_context(|| path.display().to_string())
}

#[test]
fn promtool_and_the_documents_agree_with_what_is_said() -> Result<()> {
    let store = Listening::memcached()?;
    let tenants =
        "[[tenant]]\nname = \"all\"\nsources = [\"127.0.0.0/8\"]\nquota = \"10 RU/s\"\nburst = \"2s\"\n";
    let metrics = address();
    let limit = "[[limit]]\nname = \"all\"\nquota = \"10 RU/s\"\nburst = \"2s\"\n";
    let owner =
        Owner::start_with(address(), &format!("metrics = \"{metrics}\"\nmetrics_limits = \"10\"\n"), limit)?;
    let fleet = section(&[&owner], "gate-1");
    let gate = Listening::gate_with(&fleet, "memcached", store.address, "hot_keys = {}", tenants)?;
    let mut client = gate.connect()?;
    client.write_all(&b"get planted-key\r\n".repeat(50))?;
    let mut answered = 0;
    while answered < 50 {
        answered += read_until(&mut client, b"\r\n")?.iter().filter(|&&byte| byte == b'\n').count();
    }
    let said = text(&gate.files()?.1)?;
    let wrong = promtool(&["check", "metrics"], &said)?;
    ensure!(wrong.is_empty(), "{wrong}");
    ensure!(!said.contains("planted-key") && !said.contains("127.0.0.1"), "{said}");
    let scraped = Scrape::parse(&said)?;
    let labels = [("service", "store"), ("type", "get")];
    for timing in ["response", "queue", "processing"] {
        let of = |suffix: &str| scraped.sum(&format!("gate_request_{timing}_seconds_{suffix}"), &labels);
        let within = scraped.sum(
            &format!("gate_request_{timing}_seconds_bucket"),
            &[&labels[..], &[("le", "+Inf")]].concat(),
        );
        ensure!(of("count") == within && within > 0.0, "{timing}: {within} of {}", of("count"));
        ensure!(timing == "queue" || of("sum") > 0.0, "{timing}");
    }

    // An owner of limits has some of its own, and of those that are asked for.
    let mut said = String::new();
    wait_until("the owner knows who asks", || {
        said = curl(&[&format!("http://{metrics}/metrics")])?.body;
        Ok(said.contains("gate_quota_limit_left"))
    })?;
    let wrong = promtool(&["check", "metrics"], &said)?;
    ensure!(wrong.is_empty() && !said.contains("127.0.0.1"), "{wrong}\n{said}");
    let of_owner = Scrape::parse(&said)?;

    // Whatever the documents name is said, and whatever is said is documented.
    let listed = document("METRICS.md")?;
    let listed = named(&listed);
    let kinds = scraped.kinds.keys().chain(of_owner.kinds.keys());
    let kinds: BTreeSet<&str> = kinds.map(String::as_str).collect();
    ensure!(listed == kinds, "{:?}", listed.symmetric_difference(&kinds));
    for name in ["grafana.json", "alerts.yml"] {
        let document = document(name)?;
        let is_known = |name: &str| [&scraped, &of_owner].iter().any(|of| of.kind_of(name).is_some());
        let unknown: Vec<_> = named(&document).into_iter().filter(|name| !is_known(name)).collect();
        ensure!(!named(&document).is_empty() && unknown.is_empty(), "{name}: {unknown:?}");
    }
    let alerts = paths::workspace().join("docs/alerts.yml");
    let said = promtool(&["check", "rules", alerts.to_str().context("a strange path")?], "")?;
    ensure!(said.contains("SUCCESS"), "{said}");
    Ok(())
}

#[test]
fn alerts_name_who_is_refused_and_who_would_be() -> Result<()> {
    let alerts = paths::workspace().join("docs/alerts.yml");
    let mut tests = format!("rule_files: [{alerts:?}]\nevaluation_interval: 1m\ntests:\n");
    // The requests a minute, beside 60,000 that pass, that are refused, and that would be without shadow mode.
    for (refused, shadowed, fires) in
        [(54_000, 0, true), (0, 54_000, true), (5_000, 5_000, false), (10_000, 10_000, true)]
    {
        let series = |family: &str, reason: &str, count: u64| {
            format!(
                "      - series: gate_tenant_{family}_requests_total{{instance=\"i\",tenant=\"a\",layer=\"proxy\"{reason}}}\n        \
                 values: 0+{count}x40\n"
            )
        };
        let by_quota = ",reason=\"quota\"";
        let firing = "ALERTS{alertname=\"GateTenantOverQuota\",alertstate=\"firing\",instance=\"i\",severity=\"info\",tenant=\"a\"}";
        let expected = format!("exp_samples: [{{labels: '{firing}', value: 1}}]");
        tests += &format!(
            "  - interval: 1m\n    input_series:\n{}{}{}    promql_expr_test:\n      \
             - expr: ALERTS{{alertname=\"GateTenantOverQuota\"}}\n        eval_time: 30m\n        {}\n",
            series("passed", "", 60_000),
            series("refused", by_quota, refused),
            series("shadowed", by_quota, shadowed),
            if fires { &expected } else { "exp_samples: []" },
        );
    }
    let said = promtool(&["test", "rules", "/dev/stdin"], &tests)?;
    ensure!(said.contains("SUCCESS"), "{said}");
    Ok(())
}

/// The sums of a scrape are what `gate tenants` counts, tenant by tenant.
fn agrees(scraped: &Scrape, tenants: &Value) -> Result<()> {
    let tenants = tenants.as_array().context("no tenants")?;
    for tenant in tenants {
        let name = tenant["name"].as_str().context("no name")?;
        let sum = |family: &str, more: &[(&str, &str)]| {
            scraped.sum(&format!("gate_tenant_{family}_total"), &[&[("tenant", name)], more].concat())
        };
        let counted = |value: &Value| value.as_f64().unwrap_or(0.0);
        ensure!(sum("passed_requests", &[]) == counted(&tenant["passed"]), "{name} passed: {tenant}");
        ensure!(sum("passed_segments", &[]) == counted(&tenant["segments"]), "{name} segments: {tenant}");
        let charged = sum("charged_request_units", &[]);
        ensure!(
            (charged - counted(&tenant["charged_ru"])).abs() < 1e-6,
            "{name} charged {charged}: {tenant}"
        );
        let by_candidate = sum("candidate_refused_requests", &[]);
        ensure!(by_candidate == counted(&tenant["candidate_refused"]), "{name} candidate: {tenant}");
        for (family, field) in [("refused_requests", "refused"), ("shadowed_requests", "shadowed")] {
            let by_reason = tenant[field].as_object().context("no reasons")?;
            let all: f64 = by_reason.values().map(counted).sum();
            ensure!(sum(family, &[]) == all, "{name} {field}: {tenant}");
            for (reason, count) in by_reason {
                ensure!(sum(family, &[("reason", reason)]) == counted(count), "{name} {reason}: {tenant}");
            }
        }
        for (kind, bucket) in [("quota", "own"), ("charge", "charge"), ("limit", "limit")] {
            let by_bucket = tenant["quota_refused"].as_array().context("no buckets")?.iter();
            let all: f64 =
                by_bucket.filter(|refused| refused["kind"] == kind).map(|of| counted(&of["count"])).sum();
            ensure!(sum("quota_refused_requests", &[("bucket", bucket)]) == all, "{name} {bucket}: {tenant}");
        }
        let quota = scraped.sum("gate_tenant_quota_request_units_per_second", &[("tenant", name)]);
        // What stands for many has no quota.
        ensure!(name == "other" || quota == counted(&tenant["quota_ru_per_sec"]), "{name}: {quota}");
    }
    Ok(())
}

const ONE_RU: &str = "price = { base = \"1 RU\", row = \"0 RU\", kib = \"0 RU\" }";

#[test]
fn sums_over_layers_and_reasons_are_what_tenants_says() -> Result<()> {
    if !privilege::root("metrics::sums_over_layers_and_reasons_are_what_tenants_says") {
        return Ok(());
    }
    const PROXIED: u16 = 11_311;
    let site = Site::new(&format!(
        "[gate]\nalgorithm = \"token-bucket\"\n\
         [[service]]\nname = \"cache\"\nprotocol = \"memcached\"\nlisten = \"{SERVER_V4}:{PORT}\"\n{ONE_RU}\n\
         [[service]]\nname = \"proxied\"\nprotocol = \"memcached\"\nlisten = \"{SERVER_V4}:{PROXIED}\"\n\
         backend = \"{SERVER_V4}:{PORT}\"\n{ONE_RU}\nshedding = {{ enabled = \"off\" }}\n\
         [[tenant]]\nname = \"over\"\nsources = \"198.18.1.1\"\nquota = \"1 RU/s\"\nburst = \"20s\"\ncandidate = \"1 RU/s\"\ndeny = [\"touch\"]\n\
         [[tenant]]\nname = \"other\"\nsources = \"198.18.1.2\"\nquota = \"1000 RU/s\"\n\
         [[tenant]]\nname = \"silent\"\nsources = \"198.18.1.3\"\nquota = \"1000 RU/s\"\nmetrics = \"on\"\n"
    ))?;
    let sources: [IpAddr; 3] = [[198, 18, 1, 1], [198, 18, 1, 2], [198, 18, 9, 9]].map(IpAddr::from);
    sources.iter().try_for_each(|&source| site.net.add_client_address(source))?;
    let _store = Memcached::start(&site.net)?;
    let _gate = site.start(&[])?;
    let _peer = site.peer()?;
    for &source in &sources[..2] {
        let server = SocketAddr::new(SERVER_V4.parse()?, PROXIED);
        let mut connection = Connection::to(&site.net, source, server)?;
        let mut datagrams = Datagrams::open(&site.net, source)?;
        for _ in 0..15 {
            connection.ask("get a\r\n")?;
            datagrams.ask("get a\r\n")?;
        }
        for _ in 0..5 {
            connection.ask("touch a 0\r\n")?;
        }
    }
    Datagrams::open(&site.net, sources[2])?.send(b"get a\r\n")?;
    let socket = gate_userspace::admin::default_path(site.pins());
    let unknown = [("layer", "xdp"), ("reason", "unknown-source")];
    wait_until("the stranger is counted", || {
        Ok(Scrape::parse(&text(&socket)?)?.sum("gate_unknown_refused_requests_total", &unknown) == 1.0)
    })?;
    let scraped = Scrape::parse(&text(&socket)?)?;
    agrees(&scraped, &site.json(&["tenants"])?["tenants"])?;
    let over = |layer, reason| {
        let labels = [("tenant", "over"), ("layer", layer), ("reason", reason)];
        scraped.sum("gate_tenant_refused_requests_total", &labels)
    };
    // Each layer has its own, those that are counted in rows that several share as well.
    ensure!(over("xdp", "quota") > 0.0 && over("proxy", "quota") > 0.0, "{scraped:?}");
    ensure!(over("proxy", "unsupported") == 5.0 && over("xdp", "unsupported") == 0.0, "{scraped:?}");
    let by_candidate = scraped.sum("gate_tenant_candidate_refused_requests_total", &[("tenant", "over")]);
    ensure!(by_candidate > 0.0, "{scraped:?}");
    ensure!(scraped.sum("gate_packets_total", &[("exit", "refused-replied")]) > 0.0, "{scraped:?}");
    ensure!(scraped.sum("gate_metrics_tenants", &[]) == 2.0, "`other` is not promoted: {scraped:?}");
    Ok(())
}

/// The tenants that change their names at a reload. Of all reloads together they are fewer than there are tenants: the
/// numbers of those that have gone are kept for a while.
const CHANGED: usize = 190;
/// Dearer than a bucket ever admits.
const MANY_KEYS: &str = "get a b c d e f g h i j k l m n o p q r s t u v w x y z\r\n";

/// How many tenants there are, and how many reloads.
struct Size {
    tenants: usize,
    reloads: usize,
}

/// The full size with `GATE_LONG=1`.
fn size() -> Size {
    let is_long = std::env::var_os("GATE_LONG").is_some();
    if is_long { Size { tenants: 10_000, reloads: 50 } } else { Size { tenants: 1_000, reloads: 5 } }
}

/// Tenants of one address each, of which some have other names than before.
struct Crowd {
    /// By tenant: which of its names it has.
    names: Vec<bool>,
    sent: u64,
}

impl Crowd {
    fn sections(&self) -> String {
        let mut text = String::new();
        for (number, second) in self.names.iter().enumerate() {
            let name = if *second { "b" } else { "a" };
            // The last has metrics of its own, though others come first by their numbers.
            let metrics = if number + 1 == self.names.len() { "metrics = \"on\"\n" } else { "" };
            let _ = write!(
                text,
                "[[tenant]]\nname = \"{name}{number}\"\nsources = \"{}\"\nquota = \"1 RU/s\"\nburst = \"2s\"\n\
                 deny = [\"touch\"]\n{metrics}",
                source(number)
            );
        }
        text
    }

    /// Has a tenant ask for what is refused for three reasons.
    fn ask(&mut self, tenant: usize, service: SocketAddr) -> Result<()> {
        let requests = ["get a\r\n", "get a\r\n", "get a\r\n", "touch a 0\r\n", MANY_KEYS];
        Datagrams::to(source(tenant), service)?.ask(&requests.concat())?;
        self.sent += requests.len() as u64;
        Ok(())
    }
}

fn source(tenant: usize) -> IpAddr {
    Ipv4Addr::new(127, 1, (tenant >> 8) as u8, tenant as u8).into()
}

#[test]
fn all_tenants_fit_and_no_counter_falls_over_reloads() -> Result<()> {
    let Size { tenants: all, reloads } = size();
    let store = Listening::memcached()?;
    let second = address();
    let price = "price = { base = \"0.5 RU\", row = \"0.5 RU\", kib = \"0 RU\", learn = \"off\" }";
    let both = format!("transports = [\"udp\", \"tcp\"]\n{price}");
    let another = format!(
        "[[service]]\nname = \"second\"\nprotocol = \"memcached\"\nlisten = \"{second}\"\nbackend = \"{}\"\n{both}\n",
        store.address
    );
    let mut crowd = Crowd { names: vec![false; all], sent: 0 };
    let section = "threads = \"2\"\nmetrics_tenants = \"200\"";
    let tenants = format!("{another}{}", crowd.sections());
    let mut gate = Listening::gate_with(section, "memcached", store.address, &both, &tenants)?;
    for tenant in 0..all {
        crowd.ask(tenant, gate.address)?;
        crowd.ask(tenant, second)?;
    }
    let mut before = checked(&gate, &crowd)?;
    let config = gate.files()?.0.to_owned();
    let text = std::fs::read_to_string(&config)?;
    let head = text.split_once("[[tenant]]").context("no tenants")?.0;
    for reload in 0..reloads {
        // Some get a name that they had before, and some one that is new.
        let changed = (0..CHANGED).map(|n| (reload * 131 + n * 31) % all).chain([all - 1]);
        let changed: Vec<_> = changed.collect();
        changed.iter().for_each(|&tenant| crowd.names[tenant] = !crowd.names[tenant]);
        std::fs::write(&config, format!("{head}{}", crowd.sections()))?;
        gate.signal(Signal::SIGHUP)?;
        gate.program().wait_for("read again", PATIENCE)?;
        for &tenant in &changed {
            crowd.ask(tenant, if reload % 2 == 0 { gate.address } else { second })?;
        }
        let now = checked(&gate, &crowd)?;
        ensure!(now.fallen_since(&before).is_none(), "reload {reload}: {:?}", now.fallen_since(&before));
        before = now;
    }
    Ok(())
}

/// A scrape, after a look at how much it is, and whether all that was asked is in it.
fn checked(gate: &Listening, crowd: &Crowd) -> Result<Scrape> {
    let scraped = scrape(gate)?;
    ensure!(scraped.series.len() <= 5_000, "{} series", scraped.series.len());
    let all =
        ["passed", "refused"].map(|what| scraped.sum(&format!("gate_tenant_{what}_requests_total"), &[]));
    ensure!(all[0] + all[1] == crowd.sent as f64, "{all:?} of {}", crowd.sent);
    ensure!(
        scraped.sum("gate_metrics_tenants", &[]) == 200.0,
        "{}",
        scraped.sum("gate_metrics_tenants", &[])
    );
    let reasons = scraped.series.keys().filter(|series| series.name == "gate_tenant_refused_requests_total");
    let reasons: BTreeSet<_> = reasons.filter_map(|series| series.labels.get("reason")).collect();
    ensure!(reasons.len() == 3, "{reasons:?}");
    let last = format!("a{}", crowd.names.len() - 1);
    let last = scraped.sum("gate_tenant_passed_requests_total", &[("tenant", &last)]);
    ensure!(last > 0.0, "the tenant that is to have series has none");
    Ok(scraped)
}
