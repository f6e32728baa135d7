//! The configuration as a whole: what is refused, what is read, and what holds of it.

use std::path::Path;

use gate_common::token_bucket::{self, Rate};
use gate_common::units::MilliRu;
use proptest::prelude::{prop_assert, proptest};

use self::broken::{BROKEN, GOOD};
use super::*;

mod broken;
mod members;

#[test]
fn a_broken_configuration_is_refused_with_its_path_and_line() {
    assert!(Config::parse("gate.toml", GOOD).is_ok());
    for (from, to, expected) in BROKEN.into_iter().flatten() {
        assert!(GOOD.contains(from), "{from:?} is not in the good one");
        let faults = Config::parse("gate.toml", &GOOD.replacen(from, to, 1)).expect_err(to);
        let printed: Vec<_> = faults.to_string().lines().map(str::to_owned).collect();
        let expected: Vec<_> = expected.iter().map(|fault| format!("gate.toml:{fault}")).collect();
        assert_eq!(printed, expected, "{to:?} for {from:?}");
    }
}

#[test]
fn faults_in_different_sections_are_reported_together() {
    let text = GOOD.replace("eth1", "no such/name").replace("memcached", "https").replace("5000", "-5");
    let faults = Config::parse("gate.toml", &text).unwrap_err().faults;
    let paths: Vec<_> = faults.iter().map(|fault| (fault.line, fault.path.as_str())).collect();
    assert_eq!(paths, [(2, "gate.interface"), (5, "service[0].protocol"), (10, "tenant[0].quota")]);
}

#[test]
fn a_syntax_error_hides_no_plain_fault_and_invents_none() {
    // The unclosed string swallows nothing; the tier is wrong whatever it was meant to be. That
    // nobody is called "hostile" now may be the syntax error's doing.
    let text = GOOD
        .replace("name = \"hostile\"", "name = hostile\"")
        .replace("quota = \"5000", "charge = [\"hostile\"]\ntier = \"gold\"\nquota = \"5000");
    let faults = Config::parse("gate.toml", &text).unwrap_err().faults;
    let paths: Vec<_> = faults.iter().map(|fault| (fault.line, fault.path.as_str())).collect();
    assert_eq!(paths, [(11, "tenant[0].tier"), (14, "tenant[1].name")], "{faults:?}");
}

/// The default of `burst`.
const BURST_NS: u64 = 100_000_000;

#[test]
fn what_is_left_out_has_its_documented_default() {
    let config = Config::parse("gate.toml", GOOD).unwrap();
    assert_eq!(
        config.gate,
        Gate {
            interfaces: vec![ListedInterface { name: "eth1".parse().unwrap(), line: 2 }],
            xdp: XdpMode::Auto,
            mode: Mode::Enforce,
            enforce: Fraction::ONE,
            tick: Nanos::from_millis(100),
            algorithm: Algorithm::TokenBucket,
            on_stale: OnStale::Bucket,
            stale_after: Nanos::from_secs(1),
            sample: NonZeroU32::new(64).unwrap(),
            tcp_in_debt: TcpAction::None,
            deep_debt: Nanos::from_secs(10),
            fragments: Fragments::Judge,
            charged_mark: 0x1000,
            prefix_memory: 64 << 20,
            counter_memory: 1 << 30,
            pin_dir: PathBuf::from("/sys/fs/bpf/gate"),
            admin: AdminSocket::Default,
            admin_read: None,
            admin_http: None,
            admin_hosts: Vec::new(),
            admin_token_file: None,
            metrics_tenants: 200,
            drain: Nanos::from_secs(30),
            threads: None,
        }
    );
    assert_eq!(
        config.services,
        [Service {
            name: "cache".to_owned(),
            protocol: Protocol::Memcached,
            listen: vec!["198.18.0.1:11211".parse().unwrap()],
            transports: Transports { udp: true, tcp: true },
            default: None,
            unknown_syn: Action::Pass,
            unknown_syn_rate: Limits { max_debt_ns: 0, ..Limits::new(1_000_000, 1_000_000_000) },
            price: Price { base: MilliRu(500), row: MilliRu(500), kib: MilliRu(1_000), learn: None },
            hot_key_limit: None,
            tcp_price: TcpPrice::Bytes,
            backend: None,
            intercept: None,
            probe: None,
            shedding: Shedding {
                enabled: false,
                ratio: gate_policy::latency_ratio::Settings::default(),
                ladder: gate_policy::shedding::Settings::default(),
            },
        }]
    );
}

#[test]
fn what_a_tenant_leaves_out_has_its_documented_default() {
    let config = Config::parse("gate.toml", GOOD).unwrap();
    assert_eq!(
        config.tenants[1],
        Tenant {
            name: "hostile".to_owned(),
            sources: vec!["198.18.2.1/32".parse().unwrap()],
            quota: Limits::new(2_000_000, BURST_NS),
            tcp_quota: Limits::new(4 * 2_000 * 1_024, BURST_NS),
            syn_rate: Limits { max_debt_ns: 0, ..Limits::new(2_000_000, 1_000_000_000) },
            candidate: None,
            multiplier: Multiplier::ONE,
            refuse: false,
            reply_budget: 1 << 20,
            tier: Tier::Standard,
            cache: true,
            metrics: TenantMetrics::Auto,
            max_connections: None,
            max_outstanding: None,
            charge: Vec::new(),
            part: None,
            users: Vec::new(),
            ids: Vec::new(),
            members: None,
            deny: Deny::default(),
            keys: Keys::Any,
            limits: Vec::new(),
        }
    );
}

#[test]
fn one_interface_or_a_list_of_them_is_read() {
    for (written, expected) in [
        ("\"eth1\"", &[("eth1", 2)][..]),
        ("[\"eth1\"]", &[("eth1", 2)]),
        ("[\n\"eth1\",\n\"eth2\"]", &[("eth1", 3), ("eth2", 4)]),
    ] {
        let text = GOOD.replace("\"eth1\"", written);
        let gate = Config::parse("gate.toml", &text).unwrap().gate;
        let listed: Vec<_> = gate.interfaces.iter().map(|one| (one.name.as_str(), one.line)).collect();
        assert_eq!(listed, expected, "{written}");
        let place = expected.len() - 1;
        let fault = gate.interface_fault(place, "wrong".to_owned()).to_string();
        let (name, line) = expected[place];
        let path = if place == 0 { "gate.interface" } else { "gate.interface[1]" };
        assert_eq!(fault, format!("{line}: {path} = {name:?}: wrong"));
    }
    let text = GOOD.replace("interface = \"eth1\"\n", "");
    assert!(Config::parse("gate.toml", &text).unwrap().gate.interfaces.is_empty());
}

#[test]
fn what_is_written_is_what_is_read() {
    let text = GOOD.replace("eth1", "eth1\"\nmode = \"shadow\"\nenforce = \"25%").replace(
        "quota = \"2000 RU/s\"",
        r#"quota = "unlimited"
candidate = "1500 RU/s"
burst = "1s"
max_debt = "0s"
tcp_quota = "1KiB/s"
syn_rate = "0.5/s"
reply_budget = "0 B/s"
tier = "best-effort"
cache = "off"
multiplier = "1.5"
refuse = "on"
charge = "polite""#,
    );
    let config = Config::parse("gate.toml", &text).unwrap();
    assert_eq!((config.gate.mode, config.gate.enforce), (Mode::Shadow, Fraction::of(1, 4)));
    let tenant = &config.tenants[1];
    assert_eq!(tenant.quota, Limits::UNLIMITED);
    let candidate = Limits { rate: Rate::per_sec(1_500_000), burst_ns: 1_000_000_000, max_debt_ns: 0 };
    assert_eq!(tenant.candidate, Some(candidate));
    // A segment of 64 KiB takes 64 s at 1 KiB/s, and must fit nevertheless.
    assert!(tenant.tcp_quota.max_debt_ns >= 64_000_000_000);
    // One attempt must fit, however seldom they come.
    let seldom = Limits { rate: Rate::per_sec(500), burst_ns: 2_000_000_000, max_debt_ns: 0 };
    assert_eq!(tenant.syn_rate, seldom);
    assert_eq!((tenant.reply_budget, tenant.tier, tenant.cache), (0, Tier::BestEffort, false));
    assert_eq!((tenant.multiplier.0, tenant.refuse), (3 << 15, true));
    assert_eq!(tenant.charge.iter().map(|i| i.get()).collect::<Vec<_>>(), [0]);
}

#[test]
fn query_types_have_the_tiers_and_objectives_of_their_names() {
    let service = r#"backend = "127.0.0.1:11212"
parallelism = "4"
query_types = { slow = ["incr"], scan = ["decr"], fast = ["GETS", "mg"] }
tiers = { slow = "batch", set = "standard" }
objectives = { fast = { p50 = "1ms" }, default = { p50 = "5ms" } }
listen"#;
    let config = Config::parse("gate.toml", &GOOD.replacen("listen", service, 1)).unwrap();
    let backend = config.services[0].backend.as_ref().unwrap();
    for (name, tier, ms) in [
        ("fast", Tier::Critical, 1),
        ("slow", Tier::Batch, 5),
        ("set", Tier::Standard, 5),
        ("get", Tier::Critical, 5),
        ("not there", Tier::Critical, 5),
    ] {
        assert_eq!(backend.tier(name), tier, "{name}");
        assert_eq!(backend.objective(name), Some(&vec![(50, Nanos::from_millis(ms))]), "{name}");
    }
    let types = &backend.query_types;
    assert_eq!(types.names().skip(types.len() - 3).collect::<Vec<_>>(), ["unknown", "fast", "slow"]);
}

#[test]
fn objectives_bind_where_they_are_configured() {
    let of = |service: &str| {
        let service = format!("backend = \"127.0.0.1:11212\"\n{service}\nlisten");
        let config = Config::parse("gate.toml", &GOOD.replacen("listen", &service, 1)).unwrap();
        let backend = config.services[0].backend.clone().unwrap();
        let has_objective = backend.objective("get").is_some();
        backend.admission.map(|admission| {
            let Admission { parallelism, policies, codel, queue_limit, .. } = admission;
            assert_eq!(has_objective, codel.is_some());
            (parallelism, policies.len(), has_objective, queue_limit)
        })
    };
    let auto = Parallelism::Auto;
    assert_eq!(of(""), Some((auto, 0, false, 100_000)));
    assert_eq!(of("parallelism = \"auto\"\ndeadline = \"1s\""), Some((auto, 0, false, 100_000)));
    assert_eq!(of("objectives.get.p50 = \"1ms\""), Some((auto, 1, true, 100_000)));
    assert_eq!(of("admission = [\"bouncer\", \"max-queue-length\"]"), Some((auto, 2, true, 100_000)));
    assert_eq!(of("codel.target = \"1ms\"\nqueue_limit = \"7\""), Some((auto, 1, true, 7)));
    assert_eq!(of("parallelism = \"4\""), Some((Parallelism::Fixed(4), 1, true, 10_000)));
    assert_eq!(of("parallelism = \"off\""), None);
}

#[test]
fn thirty_two_query_types_of_ones_own_fit_and_one_more_does_not() {
    let all: Vec<_> = gate_protocol::resp::names().take(33).collect();
    let types = |count: usize| {
        let types = all[..count].iter().enumerate().map(|(i, name)| format!("type{i:02} = [\"{name}\"]\n"));
        let types =
            format!("backend = \"127.0.0.1:6379\"\n[service.query_types]\n{}", types.collect::<String>());
        let text = GOOD.replacen("[[tenant]]", &(types + "[[tenant]]"), 1);
        Config::parse("gate.toml", &text.replacen("\"memcached\"", "\"resp\"", 1))
    };
    assert!(types(32).is_ok());
    let faults = types(33).unwrap_err().to_string();
    let said = format!(
        "gate.toml:41: service[0].query_types.type32 = [\"{}\"]: is one too many: 32 may have names of their own",
        all[32]
    );
    assert_eq!(faults, said);
}

#[test]
fn ten_thousand_tenants_fit_and_one_more_does_not() {
    let mut text = GOOD.to_owned();
    for i in 2..10_000 {
        let high = i >> 8;
        let low = i & 255;
        text += &format!(
            "[[tenant]]\nname = \"t{i}\"\nsources = \"10.{high}.{low}.0/24\"\nquota = \"1000 RU/s\"\n"
        );
    }
    assert_eq!(Config::parse("gate.toml", &text).unwrap().tenants.len(), 10_000);
    text += "[[tenant]]\nname = \"last\"\nsources = \"11.0.0.1\"\nquota = \"1000 RU/s\"\n";
    let faults = Config::parse("gate.toml", &text).unwrap_err().faults;
    assert_eq!(faults.len(), 1);
    assert_eq!(faults[0].path, "tenant[10000].name");
}

proptest! {
    #[test]
    fn no_document_makes_it_panic_and_every_fault_has_a_line(
        cut in 0..GOOD.len(),
        length in 0..40_usize,
        text in "(\\[|\\]|\"|=|\n|,|\\{|\\}|[a-z0-9.µ#'-]){0,20}",
    ) {
        let mut broken = GOOD.to_owned();
        broken.replace_range(cut..(cut + length).min(GOOD.len()), &text);
        if let Err(faults) = Config::parse("gate.toml", &broken) {
            let lines = broken.split('\n').count();
            prop_assert!(!faults.faults.is_empty());
            prop_assert!(faults.faults.iter().all(|fault| (1..=lines).contains(&fault.line)), "{faults}");
        }
    }

    #[test]
    fn an_accepted_tenant_can_send_a_full_frame(
        quota in 1_u64..10_000_000_000, burst_us in 4_000_u64..1_000_000, price_milli in 0_u32..100_000,
    ) {
        let quota = format!("quota = \"{}.{:03} RU/s\"\nburst = \"{burst_us}us\"", quota / 1000, quota % 1000);
        let price = format!("price.row = \"{}.{:03} RU\"\nlisten", price_milli / 1000, price_milli % 1000);
        let text = GOOD.replace("quota = \"5000 RU/s\"", &quota).replace("listen", &price);
        if let Ok(config) = Config::parse("gate.toml", &text) {
            let Price { base, row, kib, .. } = config.services[0].price;
            let cost = base.0 + row.0 + (kib.0 * 1_500).div_ceil(1_024);
            let full = token_bucket::take(0, 1 << 40, cost, &config.tenants[0].quota);
            prop_assert!(matches!(full, token_bucket::Take::Admit { .. }), "{full:?}");
        }
    }
}

#[test]
fn the_denials_that_are_recommended_are_known() {
    let text = std::fs::read_to_string(Path::new(DOCS).join("CONFIGURATION.md")).unwrap();
    let lists: Vec<_> = text.split("deny = [").skip(1).filter_map(|rest| rest.split(']').next()).collect();
    assert_eq!(lists.len(), 3);
    for list in lists {
        let config = GOOD.replace("quota = \"2000", &format!("deny = [{list}]\nquota = \"2000"));
        Config::parse("gate.toml", &config).unwrap_or_else(|faults| panic!("{faults}"));
    }
}

/// The repository's documentation of the configuration.
const DOCS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs");

#[test]
fn the_documented_example_is_valid() {
    let config = Config::read(&Path::new(DOCS).join("gate.toml")).unwrap();
    assert_eq!((config.services.len(), config.tenants.len()), (9, 12));
}

/// The keys that have a row in a table of `text`, the documentation.
fn documented(text: &str) -> Vec<&str> {
    let mut keys: Vec<_> =
        text.lines().filter_map(|line| Some(line.strip_prefix("| `")?.split_once('`')?.0)).collect();
    keys.retain(|word| word.chars().all(|c| c.is_ascii_lowercase() || c == '_'));
    keys.retain(|word| !["ns", "us", "ms"].contains(word));
    keys
}

#[test]
fn the_documented_example_shows_every_key() {
    let read = |file: &str| std::fs::read_to_string(Path::new(DOCS).join(file)).unwrap();
    let text = read("CONFIGURATION.md");
    let examples = read("gate.toml") + &read("tls.toml");
    let written = examples.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n");
    let is_shown = |key: &str| {
        let begins = |at: usize| written[..at].ends_with(['\n', ' ', '{']);
        written.match_indices(&format!("{key} = ")).any(|(at, _)| begins(at))
            || written.contains(&format!("\n[service.{key}]\n"))
    };
    let missing: Vec<_> = documented(&text).into_iter().filter(|key| !is_shown(key)).collect();
    assert!(missing.is_empty(), "docs/gate.toml and tls.toml do not show {missing:?}");
}

#[test]
fn every_key_is_documented_and_every_documented_key_is_known() {
    let text = std::fs::read_to_string(Path::new(DOCS).join("CONFIGURATION.md")).unwrap();
    let mut documented = documented(&text);

    // A key that none is near to is answered with all that are known in its section.
    let alien = "qqqqqqqqqqqqqq = \"1\"\n";
    let broken = GOOD
        .replace("[gate]\n", &format!("[gate]\n{alien}"))
        .replace(
            "listen",
            &format!("price.{alien}hot_keys.{alien}cache.{alien}process.{alien}shedding.{alien}probe.{alien}{alien}listen"),
        )
        .replace("name = \"polite\"", &format!("{alien}name = \"polite\""))
        + &format!("[[limit]]\n{alien}[envoy]\n{alien}[fleet]\n{alien}");
    let faults = Config::parse("gate.toml", &broken).unwrap_err().faults;
    let mut known: Vec<_> = faults
        .iter()
        .filter_map(|fault| Some(fault.message.split_once("known here: ")?.1))
        .flat_map(|keys| keys.split(", "))
        .collect();
    documented.sort_unstable();
    known.sort_unstable();
    assert_eq!(documented, known);
}

#[test]
fn users_and_denied_commands_are_read() {
    let hash = "0".repeat(62) + "Ff";
    let text = GOOD.replace(
        "sources = [\"198.18.2.1\"]",
        &format!("users = [\"alice\", \"bob #{hash} #{hash}\"]\ndeny = [\"flushall\", \"Config Set\"]"),
    );
    let text = text.replace("\"memcached\"", "\"resp\"\nbackend = \"127.0.0.1:6379\"");
    let config = Config::parse("gate.toml", &text).unwrap();
    let tenant = &config.tenants[1];
    let mut hash = [0; 32];
    hash[31] = 255;
    let user = |name: &str, hashes| User { name: name.to_owned(), hashes };
    assert_eq!(tenant.users, [user("alice", vec![]), user("bob", vec![hash, hash])]);
    let mut deny = Deny::default();
    assert!(deny.add("FLUSHALL") && deny.add("config set"));
    assert_eq!((&tenant.deny, &config.tenants[0].deny), (&deny, &Deny::default()));
}

#[test]
fn a_part_has_prefixes_and_what_is_said_of_the_whole_by_hand() {
    let part = |multiplier: &str| {
        GOOD.replace("quota = \"5000", "refuse = \"on\"\nmultiplier = \"4\"\nquota = \"5000")
            .replace(
                "sources = [\"198.18.2.1\"]",
                &format!(
                    "part_of = \"polite\"\nkey_prefixes = [\"web:\", \"\\u0000\"]\nmultiplier = \"{multiplier}\""
                ),
            )
            .replace("\"memcached\"", "\"resp\"\nbackend = \"127.0.0.1:6379\"")
    };
    for (multiplier, counts) in [("1", 4), ("7", 7)] {
        let config =
            Config::parse("gate.toml", &part(multiplier)).unwrap_or_else(|faults| panic!("{faults}"));
        let Part { part_of, key_prefixes } = config.tenants[1].part.as_ref().unwrap();
        assert_eq!((part_of.get(), &key_prefixes[..]), (0, &["web:".to_owned(), "\0".to_owned()][..]));
        assert_eq!(config.tenants[0].part, None);
        let Tenant { multiplier, refuse, .. } = config.tenants[1];
        assert_eq!((multiplier, refuse), (Multiplier::from_int(counts), true));
    }
    // The whole's connections have room for what its part is asked, unless they are limited.
    for (said, bytes) in
        [("", Some(4 * 7_000 * 1_024)), ("tcp_quota = \"1MiB/s\"\n", Some(1 << 20)), ("unlimited", None)]
    {
        let text = match said {
            "unlimited" => part("1").replace("2000 RU/s", "unlimited"),
            said => part("1").replace("refuse", &format!("{said}refuse")),
        };
        let config = Config::parse("gate.toml", &text).unwrap_or_else(|faults| panic!("{faults}"));
        let rate = bytes.map_or(Rate::UNLIMITED, Rate::per_sec);
        assert_eq!(config.tenants[0].tcp_quota.rate, rate, "{said}");
    }
    // As many as there may be, and one more.
    for (count, fits) in [(256, true), (257, false)] {
        let prefixes: Vec<_> = (0..count).map(|number| format!("\"{number}:\"")).collect();
        let text = part("1").replace("\"web:\", \"\\u0000\"", &prefixes.join(", "));
        assert_eq!(Config::parse("gate.toml", &text).is_ok(), fits, "{count}");
    }
}

#[test]
fn a_proxied_service_has_a_user_at_the_store() {
    let backend = "protocol = \"resp\"\nbackend = \"127.0.0.1:6379\"\nmax_pools = \"7\"\n\
                   store_user = \"gate\"\nstore_password_file = \"/etc/gate/password\"\n";
    let text = GOOD.replace("protocol = \"memcached\"\n", backend);
    let config = Config::parse("gate.toml", &text).unwrap();
    let backend = config.services[0].backend.as_ref().unwrap();
    let store_login = StoreLogin {
        store_user: Some("gate".to_owned()),
        store_password_file: PathBuf::from("/etc/gate/password"),
    };
    assert_eq!((backend.max_pools, &backend.store_login), (7, &Some(store_login)));
}
