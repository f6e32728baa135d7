//! Ticks on maps that no kernel knows of.

use gate_common::abi::{QueryClass, Service, Shed};

use super::*;
use crate::config::Config;
use crate::control::capacity::{capacities, needs};
use crate::control::occupied::occupied;
use crate::kernel::Sizes;
use crate::policy::cost_model::{self, Prices, Shape, Window};
use crate::policy::pricing::{self, CostSamples};
use crate::policy::shedding::Settings;

/// Two services, of which the first has two addresses and both transports.
const TWO: &str = r#"
[[service]]
name = "first"
protocol = "memcached"
listen = ["198.18.0.1:11211", "[fd00::1]:11211"]
probe.every = "10ms"
[[service]]
name = "second"
protocol = "resp"
listen = "198.18.0.1:6379"
probe.every = "10ms"
[[tenant]]
name = "team"
sources = "10.0.0.0/8"
quota = "1000 RU/s"
"#;
const SLOTS_OF_FIRST: usize = 4;
const TICK: Nanos = Nanos::from_millis(100);
const CALM: ServiceSnapshot = ServiceSnapshot {
    ratio: Some(1.0),
    queue_stands: false,
    shares_cut: false,
    store_up: true,
    cost_samples: CostSamples { window: Window::EMPTY, p95: [None; QueryClass::COUNT] },
};
const SLOW: ServiceSnapshot = ServiceSnapshot { ratio: Some(0.45), ..CALM };

/// A ticker, and the time.
struct Ticks {
    ticker: Ticker,
    maps: Arc<Maps>,
    now: Nanos,
}

impl Ticks {
    fn new() -> Self {
        let config = Config::parse("test.toml", TWO).unwrap();
        let sizes = capacities(&needs(&config), 1_000);
        let sizes = Sizes {
            tenants: sizes.tenant_capacity,
            services: sizes.service_capacity,
            blocks: sizes.block_capacity,
            ..Sizes::SMALL
        };
        let (maps, ownership) = Maps::private(&sizes).unwrap();
        let maps = Arc::new(maps);
        let layout = Layout::build(&config, &occupied(&maps)).unwrap();
        let ticker = Ticker::new(Arc::clone(&maps), ownership, layout, rules(Settings::default())).unwrap();
        let mut this = Self { ticker, maps, now: Nanos::from_secs(1_000) };
        this.stabilise();
        this
    }

    fn stabilise(&mut self) {
        while self.ticker.stabilising() {
            self.tick(&[]);
        }
    }

    fn tick(&mut self, services: &[ServiceSnapshot]) -> u64 {
        self.now = self.now.saturating_add(TICK);
        self.ticker.tick(self.now, services).unwrap()
    }

    fn reload(&mut self, settings: Settings) {
        self.install(TWO, rules(settings));
    }

    fn install(&mut self, text: &str, rules: Rules) {
        let config = Config::parse("test.toml", text).unwrap();
        let layout = Layout::build(&config, &occupied(&self.maps)).unwrap();
        self.ticker.install(layout, rules).unwrap();
        self.stabilise();
    }

    /// The prices at each slot: base, row, and the latency of unreadable requests.
    fn prices(&self) -> Vec<[u32; 3]> {
        let view = self.maps.view();
        let slots = view.first_service..view.first_service + view.services;
        let state = |slot: u32| {
            let service = self.maps.services.load_at::<Service>(slot as usize, 0);
            let ServiceState { base_mru, row_mru, latency_mru, .. } =
                service.banks[bank_of(self.maps.generation())];
            [base_mru, row_mru, latency_mru[QueryClass::Unread as usize]]
        };
        slots.map(state).collect()
    }

    /// The state of every slot in the bank of a generation: its shedding of the lowest tier, and its stamp.
    fn bank(&self, generation: u64) -> Vec<(u32, u64)> {
        let view = self.maps.view();
        let slots = view.first_service..view.first_service + view.services;
        let state =
            |slot: u32| self.maps.services.load_at::<Service>(slot as usize, 0).banks[bank_of(generation)];
        slots.map(state).map(|state| (state.shed.rung(3), state.stamp)).collect()
    }

    fn rungs(&self) -> Vec<u32> {
        self.bank(self.maps.generation()).into_iter().map(|(rung, _)| rung).collect()
    }
}

fn rules(settings: Settings) -> Rules {
    Rules { shedding: vec![Some(settings); 2], ..Rules::default() }
}

#[test]
fn shedding_is_in_force_in_all_slots_of_a_service_alone() {
    let mut ticks = Ticks::new();
    assert_eq!(ticks.rungs(), [0; SLOTS_OF_FIRST + 1]);
    for rung in 1..=Shed::REFUSED {
        ticks.tick(&[SLOW, CALM]);
        assert_eq!(ticks.rungs(), [rung, rung, rung, rung, 0]);
    }
}

#[test]
fn state_in_force_is_never_written_nor_unchanged_state_again() {
    let mut ticks = Ticks::new();
    let in_force = ticks.maps.generation();
    let before = ticks.bank(in_force);
    let first = ticks.tick(&[SLOW, CALM]);
    assert_eq!(ticks.bank(in_force), before, "the bank that packets were judged by");
    assert!(ticks.bank(first)[..SLOTS_OF_FIRST].iter().all(|&slot| slot == (1, first)));
    // Between the thresholds everything stays: the other bank follows, and then there is nothing to write.
    let between = ServiceSnapshot { ratio: Some(0.65), ..CALM };
    let second = ticks.tick(&[between, CALM]);
    assert!(ticks.bank(second)[..SLOTS_OF_FIRST].iter().all(|&slot| slot == (1, second)));
    let [after_first, after_second] = [first, second].map(|generation| ticks.bank(generation));
    for _ in 0..4 {
        ticks.tick(&[between, CALM]);
    }
    assert_eq!([ticks.bank(first), ticks.bank(second)], [after_first, after_second]);
}

#[test]
fn shedding_outlives_a_reload_with_the_same_rules() {
    let mut ticks = Ticks::new();
    ticks.tick(&[SLOW, CALM]);
    ticks.tick(&[SLOW, CALM]);
    ticks.reload(Settings::default());
    assert_eq!(ticks.rungs(), [2, 2, 2, 2, 0]);
    ticks.reload(Settings { restore_above: 0.9, ..Settings::default() });
    assert_eq!(ticks.rungs(), [0; SLOTS_OF_FIRST + 1]);
}

#[test]
fn the_report_says_what_is_in_force() {
    let mut ticks = Ticks::new();
    let generation = ticks.tick(&[SLOW, CALM]);
    let named = |name: &str| ServiceReport { name: name.to_owned(), ..ServiceReport::default() };
    let report = ticks.ticker.report(generation, vec![named("first"), named("second")]);
    let reported: Vec<_> = report.services.iter().map(|service| (service.rungs, service.phase)).collect();
    assert_eq!(reported, [([0, 0, 0, 1], Some("shedding")), ([0; 4], Some("steady"))]);
    assert_eq!(report.services[0].prices.kib_mru, 1_000);
    assert_eq!(report.services[0].treated_for, [None, None, None, Some(Nanos::ZERO)]);
    // A tier that nobody has is none to be told of.
    ticks.ticker.rules.tiers = vec![[true, true, true, false]; 2];
    let report = ticks.ticker.report(generation, vec![named("first"), named("second")]);
    assert_eq!((report.services[0].rungs, report.services[0].treated_for), ([0; 4], [None; 4]));
}

/// As configured, but for the range.
fn learning(range: f64) -> Option<Learning> {
    let mru = gate_common::units::MilliRu;
    let prices = Prices { base: mru(500), row: mru(500), kib: mru(1_000), latency: mru(0) };
    let learning = cost_model::Learning { range, ..cost_model::Learning::default() };
    Some(Learning { pricing: pricing::Settings { prices, learning }, slow_below: 0.5, settles: false })
}

/// A tick in which a second key cost next to nothing, and other requests took long.
fn with_cost_samples() -> ServiceSnapshot {
    let mut cost_samples = CostSamples::default();
    let took = Nanos::from_micros(100);
    let shape = |rows, expected_milli| Shape { rows, bytes: 30, expected_milli };
    for _ in 0..20 {
        cost_samples.window.observe_reference(shape(1, 1_000), took);
        cost_samples.window.observe(shape(50, 1_000), took);
        cost_samples.window.observe(shape(1, 9_000), Nanos(9 * took.0));
    }
    cost_samples.p95[QueryClass::Get as usize] = Some(took);
    cost_samples.p95[QueryClass::Other as usize] = Some(Nanos(9 * took.0));
    ServiceSnapshot { cost_samples, ..CALM }
}

#[test]
fn learned_prices_hold_in_all_slots_of_a_service_alone() {
    let mut ticks = Ticks::new();
    let configured = [500, 500, 0];
    let rules = Rules { learning: vec![learning(10.0), None], ..rules(Settings::default()) };
    ticks.install(TWO, rules);
    assert_eq!(ticks.prices(), [configured; SLOTS_OF_FIRST + 1]);
    assert!(ticks.ticker.expected(0).is_some() && ticks.ticker.expected(1).is_none());
    for _ in 0..50 {
        ticks.tick(&[with_cost_samples(), with_cost_samples()]);
    }
    let prices = ticks.prices();
    let (first, second) = prices.split_at(SLOTS_OF_FIRST);
    assert!(first.iter().all(|prices| prices == &first[0]), "{first:?}");
    assert!(first[0][1] < 250 && first[0][2] > 250, "{first:?}");
    assert_eq!(second, [configured]);

    let generation = ticks.tick(&[]);
    let named = |name: &str| ServiceReport { name: name.to_owned(), ..ServiceReport::default() };
    let report = ticks.ticker.report(generation, vec![named("first"), named("second")]);
    let [first, second] = &report.services[..] else { panic!("two services") };
    assert_eq!([first.prices.base_mru, first.prices.row_mru, first.prices.latency_mru[7]], prices[0]);
    let learned = first.prices.learned.unwrap();
    assert!(learned.of_latency_mru > 0 && learned.reference_ns == Some(100_000), "{learned:?}");
    assert_eq!((second.prices.base_mru, second.prices.learned), (500, None));
}

#[test]
fn only_services_with_settlement_are_measured() {
    let mut ticks = Ticks::new();
    let with = |settles| {
        let learning = learning(10.0).map(|learning| Learning { settles, ..learning });
        Rules { learning: vec![learning, None], ..rules(Settings::default()) }
    };
    ticks.install(TWO, with(false));
    for _ in 0..50 {
        ticks.tick(&[with_cost_samples(), with_cost_samples()]);
    }
    assert_eq!([0, 1, 2].map(|service| ticks.ticker.measure(service)), [None; 3]);
    let learned = ticks.prices();
    ticks.install(TWO, with(true));
    assert_eq!(ticks.prices(), learned);
    let measured = [0, 1, 2].map(|service| ticks.ticker.measure(service).map(|measure| measure.reference));
    assert_eq!(measured, [Some(Nanos::from_micros(100)), None, None]);
    ticks.tick(&[SLOW, CALM]);
    assert_eq!(ticks.ticker.measure(0), None);
}

#[test]
fn learned_prices_outlive_a_reload_with_the_same_settings() {
    let mut ticks = Ticks::new();
    let with = |learning| Rules { learning, ..rules(Settings::default()) };
    ticks.install(TWO, with(vec![learning(10.0), None]));
    for _ in 0..50 {
        ticks.tick(&[with_cost_samples()]);
    }
    let learned = ticks.prices()[0];
    ticks.install(TWO, with(vec![learning(10.0), learning(10.0)]));
    assert_eq!((ticks.prices()[0], ticks.prices()[SLOTS_OF_FIRST]), (learned, [500, 500, 0]));
    // In another place of the file.
    let (before, second) = TWO.split_once("[[service]]\nname = \"second\"").unwrap();
    let (second, tenants) = second.split_once("[[tenant]]").unwrap();
    let swapped = format!("[[service]]\nname = \"second\"{second}{before}[[tenant]]{tenants}");
    ticks.install(&swapped, with(vec![learning(10.0), learning(10.0)]));
    assert_eq!((ticks.prices()[0], ticks.prices()[1]), ([500, 500, 0], learned));
    ticks.install(&swapped, with(vec![None, learning(20.0)]));
    assert_eq!(ticks.prices(), [[500, 500, 0]; SLOTS_OF_FIRST + 1]);
}
