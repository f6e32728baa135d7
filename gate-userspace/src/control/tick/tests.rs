//! Ticks on maps that no kernel knows of.

use gate_common::abi::{Service, Shed};

use super::*;
use crate::config::Config;
use crate::control::layout::{capacities, needs};
use crate::kernel::Sizes;
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
const CALM: ServiceSnapshot = ServiceSnapshot { ratio: Some(1.0), queue_stands: false, store_up: true };
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
            cpus: 1,
            tenants: sizes.tenant_capacity,
            services: sizes.service_capacity,
            blocks: sizes.block_capacity,
            samples: 4_096,
        };
        let (maps, ownership) = Maps::private(&sizes).unwrap();
        let maps = Arc::new(maps);
        let layout = Layout::build(&config, &occupied(&maps)).unwrap();
        let ticker = Ticker::new(Arc::clone(&maps), ownership, layout, rules(Settings::default())).unwrap();
        let mut this = Self { ticker, maps, now: Nanos::from_secs(1_000) };
        this.settle();
        this
    }

    fn settle(&mut self) {
        while self.ticker.settling() {
            self.tick(&[]);
        }
    }

    fn tick(&mut self, services: &[ServiceSnapshot]) -> u64 {
        self.now = self.now.saturating_add(TICK);
        self.ticker.tick(self.now, services).unwrap()
    }

    fn reload(&mut self, settings: Settings) {
        let config = Config::parse("test.toml", TWO).unwrap();
        let layout = Layout::build(&config, &occupied(&self.maps)).unwrap();
        self.ticker.install(layout, rules(settings)).unwrap();
        self.settle();
    }

    /// What the bank of a generation says of every slot: what it sheds of the lowest tier, and its stamp.
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
fn what_a_service_sheds_is_in_force_in_all_of_its_slots_and_in_no_other() {
    let mut ticks = Ticks::new();
    assert_eq!(ticks.rungs(), [0; SLOTS_OF_FIRST + 1]);
    for rung in 1..=Shed::REFUSED {
        ticks.tick(&[SLOW, CALM]);
        assert_eq!(ticks.rungs(), [rung, rung, rung, rung, 0]);
    }
}

#[test]
fn what_is_in_force_is_never_written_and_what_stays_is_not_written_again() {
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
fn a_reload_goes_on_with_what_is_shed_unless_the_rules_for_it_are_others() {
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
    let told: Vec<_> = report.services.iter().map(|service| (service.rungs, service.phase)).collect();
    assert_eq!(told, [([0, 0, 0, 1], Some("shedding")), ([0; 4], Some("steady"))]);
    assert_eq!(report.services[0].prices.kib_mru, 1_000);
}
