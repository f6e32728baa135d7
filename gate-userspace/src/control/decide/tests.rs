//! Decisions, in virtual time.

use gate_common::abi::QueryClass;
use gate_common::token_bucket::{Limits, Take, take};
use gate_common::units::MilliRu;

use gate_common::units::Multiplier;

use super::*;
use crate::policy::cost_model::{self, Prices, Shape};
use crate::policy::latency_ratio::{self, LatencyRatio};
use crate::policy::rate::Rate;

const NOW: Nanos = Nanos::from_secs(1_000);
const TICK: Nanos = Nanos::from_millis(100);
const BURST: u64 = 100_000_000;

fn rules(rejection_rate: bool) -> Rules {
    Rules { rejection_rate, ..Rules::default() }
}

fn decided(rules: &Rules, tenant: TenantSnapshot) -> TenantState {
    let quota = Limits::new(1_000_000, BURST);
    let mut states = [TenantState { quota, ..TenantState::default() }];
    let snapshot = Snapshot { now: NOW, interval: TICK, tenants: &[tenant], services: &[] };
    decide(rules, &snapshot, &mut Memory::default(), &mut states);
    states[0]
}

#[test]
fn a_tenant_in_debt_stays_away_until_it_is_paid() {
    for (debt_ns, until) in [(0, 0), (BURST, 0), (BURST + 1, NOW.0 + 1), (3 * BURST, NOW.0 + 2 * BURST)] {
        let tenant = TenantSnapshot { quota_tat: NOW.0 + debt_ns, ..TenantSnapshot::default() };
        assert_eq!(decided(&rules(false), tenant).reject_until_ns, until, "owing {debt_ns} ns");
    }
}

#[test]
fn nothing_of_all_members_is_held_against_the_next_one() {
    let tcp_in_debt = TcpAction::DropData;
    let rules = Rules { tcp_in_debt, deep_debt: Nanos::from_secs(1), ..rules(true) };
    let whole = TenantSnapshot {
        quota_tat: NOW.0 + 30 * BURST,
        offered_mru: 1_000_000_000,
        asked_mru: 1_000_000_000,
        ..TenantSnapshot::default()
    };
    let told = |tenant: TenantSnapshot| {
        let base = TenantState { quota: Limits::new(1_000_000, BURST), ..TenantState::default() };
        let mut states = [base];
        let mut memory = Memory { debts: vec![DeepDebt::default()], ..Memory::default() };
        for _ in 0..2 {
            states = [base];
            let snapshot = Snapshot { now: NOW, interval: TICK, tenants: &[tenant], services: &[] };
            decide(&rules, &snapshot, &mut memory, &mut states);
        }
        let [state] = states;
        (state.reject_until_ns > 0, state.rejection_rate > 0, state.tcp_action > 0)
    };
    assert_eq!(told(whole), (true, true, true));
    assert_eq!(told(TenantSnapshot { has_members: true, ..whole }), (false, false, false));
}

#[test]
fn staying_away_never_refuses_what_the_bucket_admits() {
    for debt_ns in [BURST + 1, BURST + 777, 2 * BURST, 3 * BURST] {
        let tat = NOW.0 + debt_ns;
        let state = decided(&rules(false), TenantSnapshot { quota_tat: tat, ..TenantSnapshot::default() });
        let last_refused = state.reject_until_ns - 1;
        assert!(
            !matches!(take(tat, last_refused, 1, &state.quota), Take::Admit { .. }),
            "owing {debt_ns} ns"
        );
    }
}

#[test]
fn a_tenant_is_held_to_the_part_that_gate_may_give_out() {
    let grant = |per_sec, burst| Grant {
        rate: Rate::per_sec(per_sec),
        burst,
        max_debt: 200_000,
        reject_for: Nanos::ZERO,
        window: None,
    };
    let quota = Limits::new(1_000_000, BURST);
    for (grant, expected) in [
        (grant(2_000_000, 100_000), quota),
        (grant(1_000_000, 200_000), quota),
        // A smaller burst holds at the quota's own rate as well.
        (grant(2_000_000, 1_000), Limits { max_debt_ns: 2 * BURST, ..Limits::new(1_000_000, BURST / 100) }),
        // A quarter of the rate takes four times as long for the same burst and debt.
        (grant(250_000, 100_000), Limits { max_debt_ns: 8 * BURST, ..Limits::new(250_000, 4 * BURST) }),
        (grant(250_000, 25_000), Limits { max_debt_ns: 8 * BURST, ..Limits::new(250_000, BURST) }),
        // Never a larger burst than its own.
        (grant(500_000, 500_000), Limits { max_debt_ns: 4 * BURST, ..Limits::new(500_000, 2 * BURST) }),
    ] {
        let tenant = TenantSnapshot { grant: Some(grant), ..TenantSnapshot::default() };
        assert_eq!(decided(&rules(false), tenant).quota, expected, "{grant:?}");
    }
    let rejected = Grant { reject_for: Nanos::from_millis(300), ..grant(1, 1_000) };
    let tenant = TenantSnapshot { grant: Some(rejected), ..TenantSnapshot::default() };
    assert_eq!(decided(&rules(false), tenant).reject_until_ns, NOW.0 + 300_000_000);
}

#[test]
fn a_part_next_to_nothing_makes_nobody_deep_in_debt() {
    let rules = Rules { tcp_in_debt: TcpAction::DropData, ..rules(false) };
    let grant = Grant {
        rate: Rate::per_sec(1),
        burst: 1_000,
        max_debt: 1_000,
        reject_for: Nanos::ZERO,
        window: None,
    };
    let tenant = TenantSnapshot { asked_mru: 2_000, grant: Some(grant), ..TenantSnapshot::default() };
    let mut states = [TenantState { quota: Limits::new(1_000_000, BURST), ..TenantState::default() }];
    let mut memory = Memory { debts: vec![DeepDebt::default()], ..Memory::default() };
    for tick in 0..200 {
        let now = NOW.saturating_add(Nanos(tick * TICK.0));
        let snapshot = Snapshot { now, interval: TICK, tenants: &[tenant], services: &[] };
        states[0].quota = Limits::new(1_000_000, BURST);
        decide(&rules, &snapshot, &mut memory, &mut states);
        assert_eq!(states[0].tcp_action, TcpAction::None as u8);
    }
}

#[test]
fn what_the_operator_says_of_a_tenant_stays_whatever_is_decided() {
    let quota = Limits::new(1_000_000, BURST);
    let multiplier = Multiplier::from_int(4).0;
    let in_trouble = TenantSnapshot {
        quota_tat: NOW.0 + 3 * BURST,
        offered_mru: 400_000,
        asked_mru: 400_000,
        ..TenantSnapshot::default()
    };
    for tenant in [TenantSnapshot::default(), in_trouble] {
        for (flags, may_reject) in [(0, true), (tenant_flags::PENALTY | tenant_flags::CANDIDATE, false)] {
            let before = TenantState { quota, multiplier, flags, ..TenantState::default() };
            let snapshot = Snapshot { now: NOW, interval: TICK, tenants: &[tenant], services: &[] };
            let mut states = [before];
            decide(&rules(true), &snapshot, &mut Memory::default(), &mut states);
            let TenantState { reject_until_ns, rejection_rate, .. } = states[0];
            assert_eq!((states[0].multiplier, states[0].flags), (multiplier, flags));
            // Whose refusals are to read `penalty` is not refused for anything else.
            let rejects = reject_until_ns > 0 && rejection_rate > 0;
            assert_eq!(rejects, may_reject && tenant == in_trouble, "{tenant:?}, {flags}");
            assert!(rejects || (reject_until_ns, rejection_rate) == (0, 0));
        }
    }
}

#[test]
fn the_rejection_rate_is_the_share_over_the_limit() {
    // 1,000 RU/s in 100 ms: 100 RU.
    for (offered_mru, steps) in [(0, 0), (100_000, 0), (200_000, 32_768), (400_000, 49_152)] {
        let tenant = TenantSnapshot { offered_mru, ..TenantSnapshot::default() };
        assert_eq!(decided(&rules(true), tenant).rejection_rate, steps, "{offered_mru}");
        assert_eq!(decided(&rules(false), tenant).rejection_rate, 0);
    }
}

#[test]
fn only_requests_over_connections_cost_new_connections() {
    let rules = Rules { tcp_in_debt: TcpAction::ResetSyn, ..Rules::default() };
    let quota = Limits::new(1_000_000, BURST);
    let deep = |tenant: TenantSnapshot, ticks: usize| {
        let mut memory = Memory { debts: vec![DeepDebt::default()], ..Memory::default() };
        let snapshot = Snapshot { now: NOW, interval: TICK, tenants: &[tenant], services: &[] };
        (0..ticks).any(|_| {
            let mut states = [TenantState { quota, ..TenantState::default() }];
            decide(&rules, &snapshot, &mut memory, &mut states);
            states[0].tcp_action == TcpAction::ResetSyn as u8
        })
    };
    // 100 RU a tick: its quota; twice as much; and all that can be forged.
    let asking =
        |asked_mru| TenantSnapshot { asked_mru, offered_mru: asked_mru, ..TenantSnapshot::default() };
    let forged = TenantSnapshot { quota_tat: u64::MAX, offered_mru: u64::MAX, ..TenantSnapshot::default() };
    for (tenant, ticks, is_deep) in [
        (asking(100_000), 100_000, false),
        (asking(200_000), 100, false),
        (asking(200_000), 101, true),
        (asking(u64::MAX), 1, true),
        (forged, 1_000, false),
    ] {
        assert_eq!(deep(tenant, ticks), is_deep, "{tenant:?} for {ticks} ticks");
    }
}

const PRICES: Prices =
    Prices { base: MilliRu(1_000), row: MilliRu(100), kib: MilliRu(0), latency: MilliRu(0) };
/// The configured state of the service's slots.
const CONFIGURED: ServiceState = ServiceState {
    base_mru: PRICES.base.0,
    row_mru: PRICES.row.0,
    kib_mru: PRICES.kib.0,
    shed: Shed(0),
    latency_mru: [0; QueryClass::COUNT],
    stamp: 0,
};
const GET_TOOK: Nanos = Nanos::from_micros(100);

fn shedding() -> Shedding {
    Shedding::new(Settings::default()).unwrap()
}

/// One service, its store, and ticks at their time.
struct Loop {
    ratio: LatencyRatio,
    memory: Memory,
    now: Nanos,
    queue_stands: bool,
    shares_cut: bool,
    store_up: bool,
    cost_samples: CostSamples,
    rules: Rules,
}

impl Loop {
    fn new() -> Self {
        Self {
            ratio: LatencyRatio::new(1, latency_ratio::Settings::default(), NOW).unwrap(),
            memory: Memory { shedding: vec![Some(shedding())], ..Memory::default() },
            now: NOW,
            queue_stands: false,
            shares_cut: false,
            store_up: true,
            cost_samples: CostSamples::default(),
            rules: rules(false),
        }
    }

    /// One whose prices learn.
    fn learning() -> Self {
        let pricing = pricing::Settings { prices: PRICES, learning: cost_model::Learning::default() };
        let mut this = Self::new();
        this.rules.learning = vec![Some(Learning { pricing, slow_below: 0.5, settles: false })];
        this.memory.pricing = vec![Some(Pricing::new(pricing).unwrap())];
        this
    }

    /// The service's state after a tick in which multigets of ten keys took five times what gets took.
    fn learn(&mut self) -> ServiceState {
        self.cost_samples = CostSamples::default();
        let expected = self.memory.pricing(0).map_or([0; 8], |pricing| *pricing.expected());
        let shape = |rows, class: usize| Shape { rows, bytes: 30, expected_milli: expected[class] };
        for _ in 0..20 {
            self.cost_samples.window.observe_reference(shape(1, 0), GET_TOOK);
            self.cost_samples.window.observe(shape(10, 1), Nanos(5 * GET_TOOK.0));
        }
        (self.cost_samples.p95[0], self.cost_samples.p95[1]) = (Some(GET_TOOK), Some(Nanos(5 * GET_TOOK.0)));
        self.tick(Nanos::from_millis(2));
        self.memory.state(0, CONFIGURED)
    }

    /// One tick in which a hundred requests took so long each: what the lowest tier meets.
    fn tick(&mut self, latency: Nanos) -> u32 {
        for nth in 0..100 {
            self.ratio.latencies().record(0, Nanos(latency.0 / 1_000 * (900 + 2 * nth)));
        }
        self.quiet_tick()
    }

    /// So many of them.
    fn run(&mut self, ticks: usize, latency: Nanos) {
        for _ in 0..ticks {
            self.tick(latency);
        }
    }

    /// One tick without a request.
    fn quiet_tick(&mut self) -> u32 {
        self.now = self.now.saturating_add(TICK);
        let ratio = self.ratio.tick(self.now, self.memory.is_overloaded(0));
        let &mut Self { queue_stands, shares_cut, store_up, cost_samples, .. } = self;
        let service = ServiceSnapshot { ratio, queue_stands, shares_cut, store_up, cost_samples };
        let snapshot = Snapshot { now: self.now, interval: TICK, tenants: &[], services: &[service] };
        decide(&self.rules, &snapshot, &mut self.memory, &mut []);
        self.rungs()[Tier::BestEffort.index()]
    }

    /// The treatment of each tier, `critical` first.
    fn rungs(&self) -> [u32; 4] {
        [0, 1, 2, 3].map(|tier| self.memory.shed(0).rung(tier))
    }
}

#[test]
fn a_latency_step_is_shed_in_two_ticks_and_restored_in_10_s() {
    let mut service = Loop::new();
    assert!((0..600).all(|_| service.tick(Nanos::from_millis(2)) == 0));
    let to_first_rung = (1..).find(|_| service.tick(Nanos::from_millis(20)) > 0).unwrap();
    assert!(to_first_rung <= 2, "{to_first_rung} ticks");
    service.run(50, Nanos::from_millis(20));
    assert_eq!(service.rungs(), [0, 0, 0, Shed::REFUSED]);
    let to_recovery = (1..).find(|_| service.tick(Nanos::from_millis(2)) == 0).unwrap();
    println!("first rung after {to_first_rung} ticks, recovered after {to_recovery}");
    assert!(to_recovery <= 100, "{to_recovery} ticks");
}

#[test]
fn a_step_under_the_floor_costs_no_one_anything() {
    let mut service = Loop::new();
    assert!((0..600).all(|_| service.tick(Nanos::from_micros(50)) == 0));
    assert!((0..600).all(|_| service.tick(Nanos::from_micros(200)) == 0));
}

#[test]
fn a_queue_that_stands_costs_the_lowest_tier_and_no_other() {
    let mut service = Loop::new();
    service.queue_stands = true;
    assert_eq!(service.quiet_tick(), 1);
    service.run(1_000, Nanos::from_millis(2));
    assert_eq!(service.rungs(), [0, 0, 0, Shed::REFUSED]);
    // Nothing comes back before it drains.
    service.queue_stands = false;
    assert!((1..100).any(|_| service.tick(Nanos::from_millis(2)) == 0));
}

#[test]
fn while_the_store_is_down_everything_stays_as_it_is() {
    let mut service = Loop::new();
    service.run(600, Nanos::from_millis(2));
    service.run(4, Nanos::from_millis(20));
    let before = service.rungs();
    assert!(before[3] > 0);
    service.store_up = false;
    assert!((0..600).all(|_| service.quiet_tick() == before[3]));
    assert_eq!(service.rungs(), before);
}

#[test]
fn a_service_that_does_not_shed_changes_no_tenant() {
    let mut service = Loop::new();
    service.memory.shedding = vec![None];
    service.queue_stands = true;
    assert_eq!((service.quiet_tick(), service.memory.shed(7)), (0, Shed::default()));
}

#[test]
fn a_tick_moves_each_service_by_itself_and_says_what_changed() {
    let mut memory = Memory { shedding: vec![Some(shedding()); 2], ..Memory::default() };
    let cost_samples = CostSamples::default();
    let calm = ServiceSnapshot {
        ratio: Some(1.0),
        queue_stands: false,
        shares_cut: false,
        store_up: true,
        cost_samples,
    };
    let services = [calm, ServiceSnapshot { ratio: Some(0.45), ..calm }];
    let snapshot = Snapshot { now: NOW, interval: TICK, tenants: &[], services: &services };
    let changes = decide(&rules(false), &snapshot, &mut memory, &mut []);
    let [(service, change)] = changes[..] else { panic!("{changes:?}") };
    assert_eq!((service, change.tier, change.to), (1, Tier::BestEffort, Treatment::Dearer(1)));
    assert_eq!((memory.shed(0), memory.shed(1)), (Shed::default(), Shed::default().with(3, 1)));
}

/// The cost of a multiget of ten keys, in gets.
fn ratio_of_prices(state: &ServiceState) -> f64 {
    let [get, multiget] =
        [(1, 0), (10, 1)].map(|(rows, class)| f64::from(state.price(1, rows, 30) + state.latency_mru[class]));
    multiget / get
}

#[test]
fn prices_that_are_learned_are_in_the_plan_and_move_slowly() {
    let mut service = Loop::learning();
    let mut before = CONFIGURED;
    assert!(ratio_of_prices(&before) < 2.0);
    for tick in 0..600 {
        let after = service.learn();
        for (before, after) in [(before.base_mru, after.base_mru), (before.row_mru, after.row_mru)] {
            let most = (f64::from(before) * 0.05).max(5.0) + 1.0;
            assert!(f64::from(before.abs_diff(after)) <= most, "{before} became {after} at tick {tick}");
        }
        let unread = after.latency_mru[QueryClass::Unread as usize];
        assert!(after.latency_mru.iter().all(|&class| class <= unread), "{after:?}");
        before = after;
    }
    let ratio = ratio_of_prices(&before);
    assert!((4.8..=5.2).contains(&ratio), "{ratio}: {before:?}");
    assert_eq!((before.shed, before.kib_mru), (Shed::default(), 0));
}

#[test]
fn prices_are_the_configured_ones_where_none_is_learned() {
    let mut service = Loop::new();
    service.rules.learning = vec![None];
    service.memory.pricing = vec![None];
    assert!((0..100).all(|_| service.learn() == CONFIGURED));
}

#[test]
fn no_sign_of_an_overload_is_a_time_to_learn() {
    let mut calm = Loop::learning();
    (0..50).for_each(|_| _ = calm.learn());
    let before = calm.memory.state(0, CONFIGURED);
    assert_ne!(before, CONFIGURED);
    assert_ne!(calm.learn(), before, "it would go on");

    type Sign = (&'static str, fn(&mut Loop));
    let signs: [Sign; 3] = [
        ("the queue stands", |service| {
            service.queue_stands = true;
            service.memory.shedding = vec![None];
        }),
        ("the store is down", |service| service.store_up = false),
        ("something is shed", |service| {
            let shedding = service.memory.shedding[0].as_mut().unwrap();
            shedding.tick(service.now, Some(0.1)).expect("a first rung");
        }),
    ];
    for (sign, show) in signs {
        let mut service = Loop::learning();
        (0..50).for_each(|_| _ = service.learn());
        let before = service.memory.state(0, CONFIGURED);
        show(&mut service);
        let after = service.learn();
        assert_eq!(ServiceState { shed: before.shed, ..after }, before, "{sign}");
    }
    // Slower than usual, at a service that sheds nothing.
    let mut service = Loop::learning();
    service.memory.shedding = vec![None];
    service.run(600, Nanos::from_millis(2));
    service.learn();
    let before = service.memory.state(0, CONFIGURED);
    assert_ne!(before, CONFIGURED);
    for _ in 0..20 {
        // The same samples again.
        service.tick(Nanos::from_millis(20));
        assert_eq!(service.memory.state(0, CONFIGURED), before);
    }
}
