//! A request is explained, and then made at the same time: over random states of tenants, buckets, limits, queue, policy and
//! hot keys the two agree. The store stands still: it is never connected, and answers nothing.

use std::cell::RefCell;
use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use gate_common::abi::{Shed, Tenant, TenantState, tenant_flags};
use gate_common::units::{Fraction, Multiplier};
use tokio::sync::watch;

use super::*;
use crate::config::Config;
use crate::control::capacity::{capacities, needs};
use crate::control::decide::Rules;
use crate::control::layout::Layout;
use crate::control::occupied::occupied;
use crate::control::tick::Ticker;
use crate::dispatcher::clients::replies::Replies;
use crate::dispatcher::hot_cache::{SharedHotCache, hot_set};
use crate::dispatcher::local_addrs::LocalAddrs;
use crate::dispatcher::metrics::Event;
use crate::dispatcher::metrics::verdicts::{VerdictSampler, verdicts};
use crate::dispatcher::pipeline::service::WorkerState;
use crate::dispatcher::queue::delay::Delay;
use crate::dispatcher::settings::Settings;
use crate::dispatcher::shared_service::SharedService;
use crate::dispatcher::tenants::Tenants;
use crate::dispatcher::tls::turns::Turns;
use crate::dispatcher::wire::memcached::Memcached;
use crate::dispatcher::wire::resp::Resp;
use crate::kernel::{Maps, Sizes};
use crate::policy::Tier;
use crate::policy::admission::QueryType;
use crate::policy::key_reads::KeyRead;
use crate::policy::read_cost::Reply;
use crate::sim::rng::Rng;

const START: Nanos = Nanos::from_secs(1_000);
/// Services, and the requests to each.
const SERVICES: u64 = 50;
const REQUESTS: usize = 101;
const TENANTS: u32 = 5;

/// One service, and what stands around it.
struct Scene<W: Wire> {
    service: Rc<Service<W>>,
    maps: Arc<Maps>,
    hot: SharedHotCache,
    rng: Rng,
    now: Nanos,
}

fn pick<T: Clone>(rng: &mut Rng, from: &[T]) -> T {
    from[(rng.bits() % from.len() as u64) as usize].clone()
}

fn config(rng: &mut Rng, protocol: &str) -> Config {
    let admission = pick(
        rng,
        &[
            "bouncer",
            "off",
            "max-queue-length",
            "max-queue-wait",
            "accept-fraction",
            "bouncer\", \"accept-fraction",
        ],
    );
    let fairness = pick(rng, &["none", "helping-the-underserved", "acceptance-allowance"]);
    let fairness =
        if admission.contains("bouncer") { format!("fairness = \"{fairness}\"\n") } else { String::new() };
    let mode = pick(rng, &["enforce", "enforce", "enforce", "shadow"]);
    let parallelism = pick(rng, &["1", "4", "64"]);
    let limit = pick(rng, &["2", "20", "200"]);
    let learn = pick(rng, &["off", "on"]);
    let users = if protocol == "resp" { "users = [\"app\"]\n" } else { "" };
    let deny = if protocol == "resp" { "keys" } else { "flush_all" };
    let limited = if protocol == "resp" { "HGETALL" } else { "incr" };
    let text = format!(
        "[gate]\nmode = \"{mode}\"\n\
         [[service]]\nname = \"cache\"\nprotocol = \"{protocol}\"\nlisten = \"127.0.0.1:1\"\nbackend = \"127.0.0.1:2\"\n\
         price = {{ base = \"1 RU\", row = \"0.5 RU\", kib = \"1 RU\", learn = \"{learn}\" }}\n\
         parallelism = \"{parallelism}\"\nqueue_limit = \"{limit}\"\nadmission = [\"{admission}\"]\n{fairness}\
         [[tenant]]\nname = \"company\"\nquota = \"1000 RU/s\"\n\
         [[tenant]]\nname = \"team\"\nsources = [\"10.0.0.0/8\"]\nquota = \"100 RU/s\"\nburst = \"1s\"\ncharge = [\"company\"]\n\
         limits = {{ get = \"50/s\", {limited} = \"20 RU/s\" }}\n\
         [[tenant]]\nname = \"other\"\nsources = [\"11.0.0.0/8\"]\nquota = \"100 RU/s\"\nburst = \"1s\"\ndeny = [\"{deny}\"]\n{users}\
         [[tenant]]\nname = \"part\"\npart_of = \"other\"\nkey_prefixes = [\"p:\"]\nquota = \"100 RU/s\"\nburst = \"1s\"\n\
         [[tenant]]\nname = \"bound\"\nsources = [\"12.0.0.0/8\"]\nquota = \"unlimited\"\nkeys = \"own\"\nkey_prefixes = [\"b:\"]\n"
    );
    Config::parse("test.toml", &text).unwrap_or_else(|faults| panic!("{text}\n{faults}"))
}

impl<W: Wire> Scene<W> {
    fn new(seed: u64, protocol: &str) -> Self {
        let mut rng = Rng::new(seed, 1);
        let config = config(&mut rng, protocol);
        let room = capacities(&needs(&config), 1_000);
        let tenants = room.tenant_capacity;
        let services = room.service_capacity;
        let blocks = room.block_capacity;
        let sizes = Sizes { cpus: 1, cpu_rows: 1, thread_rows: 1, tenants, services, blocks, samples: 4_096 };
        let (maps, ownership) = Maps::private(&sizes).unwrap();
        let maps = Arc::new(maps);
        let layout = Layout::build(&config, &occupied(&maps)).unwrap();
        let mut ticker = Ticker::new(Arc::clone(&maps), ownership, layout, Rules::default()).unwrap();
        while ticker.stabilising() {
            ticker.tick(START, &[]).unwrap();
        }
        let known = Tenants::after(&Tenants::default(), &config, &maps.tenant_ids());
        let (_tenants, known) = watch::channel(Arc::new(known));
        let (_own, addresses) = watch::channel(Arc::new(LocalAddrs::default()));
        let (settings, _controls): (Vec<_>, Vec<_>) =
            Settings::of(&config, 1, &known, &addresses).unwrap().into_iter().unzip();
        let samples = hot_set::samples().0;
        let shared = SharedService::all(settings, 1, maps.tenants.len(), &samples, START).unwrap().remove(0);
        let hot = shared.hot.clone();
        let ledger = Ledger::new(Arc::clone(&maps), 2, seed, [(0, "cache")]);
        let worker = WorkerState {
            number: 0,
            ledger: Rc::new(RefCell::new(ledger)),
            scratch: Rc::new(RefCell::new(Box::default())),
            turns: Turns::default(),
            delay: Delay::new(shared.settings.limits.borrow().codel).unwrap(),
            verdicts: VerdictSampler::new(verdicts().0, 0),
        };
        let service = Service::<W>::new(shared, worker);
        Self { service, maps, hot, rng, now: START }
    }

    fn once_in(&mut self, times: u64) -> bool {
        self.rng.bits().is_multiple_of(times)
    }

    /// Another state of everything, at a later time.
    fn shake(&mut self) {
        self.now = self.now.saturating_add(Nanos(self.rng.bits() % 20_000_000));
        let now = self.now;
        let generation = self.maps.generation() + 1;
        for id in 1..=TENANTS {
            let bank = offset_of!(Tenant, banks) + (generation as usize & 1) * size_of::<TenantState>();
            let mut state: TenantState = self.maps.tenants.load_at(id as usize, bank);
            let soon = now.0 + self.rng.bits() % 50_000_000;
            state.reject_until_ns = if self.once_in(12) { soon } else { 0 };
            let rate = pick(&mut self.rng, &[Fraction::of(1, 3), Fraction::ONE]);
            state.rejection_rate = if self.once_in(8) { rate.steps() } else { 0 };
            let factor = pick(&mut self.rng, &[1, 1, 1, 2, 40]);
            state.multiplier = Multiplier::from_int(factor).0;
            state.flags &= !(tenant_flags::PENALTY | tenant_flags::CANDIDATE);
            let flags =
                pick(&mut self.rng, &[0, 0, 0, 0, 0, 0, 0, tenant_flags::PENALTY, tenant_flags::CANDIDATE]);
            state.flags |= flags;
            state.tier = (self.rng.bits() % 4) as u8;
            self.maps.write_tenant_state(id as usize, generation, &state);
            if self.once_in(3) {
                let debt = self.rng.bits() % (2 * state.quota.burst_ns.clamp(1, 2_000_000_000));
                let debt = if self.once_in(3) { 0 } else { debt };
                self.maps.quota_tat(id as usize).store(now.0 + debt, Ordering::Relaxed);
            }
        }
        let slot = self.maps.view().first_service as usize;
        let element: gate_common::abi::Service = self.maps.services.load(slot);
        let mut prices = element.banks[0];
        prices.shed = Shed::default();
        if self.once_in(3) {
            let tier = (self.rng.bits() % 4) as u8;
            let rung = (self.rng.bits() % 8) as u32;
            prices.shed = prices.shed.with(tier, rung);
        }
        self.maps.write_service_state(slot, generation, &prices);
        self.maps.publish(generation);
        self.learn();
    }

    /// Changes what the policy, the prices and the hot cache know.
    fn learn(&mut self) {
        let now = self.now;
        for _ in 0..self.rng.bits() % 40 {
            let tier = pick(&mut self.rng, &Tier::ALL);
            let class = RequestClass { tier, query_type: QueryType((self.rng.bits() % 22) as u16) };
            let took = Nanos(self.rng.bits() % 30_000_000);
            self.service.admission.policy.completed(class, took, now);
        }
        if self.once_in(5) {
            self.service.admission.policy.refresh(now);
        }
        if self.once_in(3) {
            let tenant = TenantId(1 + (self.rng.bits() % u64::from(TENANTS)) as u32);
            let class = pick(&mut self.rng, &[crate::protocol::price_class::PriceClass::GET]);
            let asked = Demand { commands: 1, rows: 1, ..Demand::more(10) }.requested_rows();
            let reply = Reply { rows: 1, bytes: self.rng.bits() % 20_000 };
            self.service.admission.reads.observe(tenant, (class, &KeyRead::NONE), asked, reply);
        }
        if self.once_in(20) {
            let key: &[u8] = if self.once_in(2) { b"hot" } else { b"b:hot" };
            self.hot.hot_set_publisher.publish(std::iter::once(key));
            self.service.hot.housekeeping(now, Nanos::from_secs(1));
        }
    }

    /// Everything that is counted, charged or learned.
    fn state(&self) -> String {
        let words = |from: &dyn Fn(usize) -> u64| (0..=TENANTS as usize).map(from).collect::<Vec<_>>();
        let tats = words(&|id| self.maps.quota_tat(id).load(Ordering::Relaxed));
        let counters: Vec<_> = (0..=TENANTS as usize).map(|id| self.maps.tenant_counters(id)).collect();
        let limits = format!("{:?}", self.service.tenants.borrow());
        let mut queue = self.service.admission.queue.borrow_mut();
        let waiting = Tier::ALL.map(|tier| queue.waiting(tier));
        let draws = self.service.ledger.borrow().draws();
        let estimates = Tier::ALL.map(|tier| self.service.admission.policy.expected_wait(tier));
        let metrics = &self.service.metrics;
        format!(
            "{tats:?} {counters:?} {limits} {waiting:?} {draws} {estimates:?} {metrics:?} {:?}",
            queue.permits()
        )
    }

    /// Makes the request of a question. Returns the verdict, and the reason and the bucket of a refusal; true for a limit's.
    fn make(&self, question: &Question) -> (Verdict, Option<String>, Option<(bool, String)>) {
        let service = &self.service;
        let Asker::Source(source) = question.client else { panic!("a client has a source") };
        let client = Rc::new(Session::new(ReplySink::Nowhere, source, service));
        if let Some(user) = &question.user {
            let named = service.tenants.borrow().of_user_name(user, &service.ledger.borrow());
            named.into_iter().for_each(|tenant| client.client.tenant.set(tenant));
            client.refresh_tenant(service);
        }
        let mut decoder = W::decoder(service.settings.max_request());
        let input = encode(&question.words, W::Session::HAS_USERS).unwrap();
        let (request, taken) = decode_one::<W>(&mut decoder, input, &question.words).unwrap();
        let bytes = W::bytes(&decoder, &request, &taken);
        client.choose_connection(self.now);
        service.ledger.borrow_mut().refresh();
        let count = || {
            let waiting: u64 = service.service_metrics.counts().iter().map(|counts| counts.waiting).sum();
            let events = [Event::CacheHit, Event::Coalesced].map(|event| service.metrics.get(event));
            (waiting, events)
        };
        let (waiting, [hits, joined]) = count();
        let mut replies = Replies::new(W::refuse);
        let step = service.request(&client, &mut replies, &request, bytes, self.now);
        let (waits, [hits_after, joined_after]) = count();
        let text = String::from_utf8_lossy(replies.output.bytes()).into_owned();
        let word = |key: &str| {
            let rest = text.split(key).nth(1)?;
            Some(rest.split([' ', '\r']).next()?.to_owned())
        };
        let verdict = if word("reason=").is_some() {
            Verdict::Refused
        } else if hits_after > hits {
            Verdict::Cached
        } else if joined_after > joined {
            Verdict::Joins
        } else if waits > waiting {
            Verdict::Queued
        } else if W::route(&request) == Route::GateStats || step == super::super::request::NextStep::Close {
            Verdict::Answered
        } else {
            Verdict::Passes
        };
        let limit = word(" limit=").map(|name| (true, name));
        (verdict, word("reason="), limit.or_else(|| Some((false, word(" bucket=")?))))
    }
}

fn words(line: &str) -> Vec<Vec<u8>> {
    line.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}

fn question<W: Wire>(rng: &mut Rng) -> Question {
    let source = pick(rng, &["10.1.2.3", "10.1.2.3", "11.1.1.1", "11.1.1.1", "12.1.1.1", "13.1.1.1"]);
    let memcached = [
        "get k",
        "get hot",
        "get hot",
        "get b:hot",
        "get p:1",
        "get a b c",
        "set k 0 0 100",
        "set p:1 0 0 20000",
        "incr k 1",
        "delete b:1",
        "flush_all",
        "version",
        "stats gate",
        "quit",
        "mg hot v",
    ];
    let resp = [
        "GET k",
        "GET hot",
        "GET hot",
        "GET b:hot",
        "GET p:1",
        "MGET a b c",
        "SET k v",
        "HGETALL h",
        "DEL b:1",
        "KEYS *",
        "EVAL x 0",
        "MULTI",
        "AUTH a b",
        "SELECT 1",
        "BLPOP l 0",
        "SUBSCRIBE c",
        "PING",
        "QUIT",
        "FROBNICATE x",
    ];
    let line = if W::Session::HAS_USERS { pick(rng, &resp) } else { pick(rng, &memcached) };
    let user = (W::Session::HAS_USERS && rng.bits().is_multiple_of(4)).then(|| "app".to_owned());
    Question { client: Asker::Source(source.parse().unwrap()), user, words: words(line) }
}

/// The verdicts and reasons that came up, with how often.
type Seen = std::collections::BTreeMap<String, usize>;

fn compare<W: Wire>(protocol: &str, seen: &mut Seen) {
    for seed in 0..SERVICES {
        let mut scene = Scene::<W>::new(seed, protocol);
        for number in 0..REQUESTS {
            scene.shake();
            let question = question::<W>(&mut scene.rng);
            let before = number.is_multiple_of(10).then(|| scene.state());
            let explained = scene.service.explain(&question, scene.now).unwrap();
            if let Some(before) = before {
                assert_eq!(before, scene.state(), "seed {seed}, request {number}: {explained:?}");
            }
            let (verdict, reason, bucket) = scene.make(&question);
            let context =
                || format!("{protocol}, seed {seed}, request {number}, {question:?}: {explained:?}");
            assert_eq!((verdict, &reason), (explained.verdict, &explained.reason), "{}", context());
            if reason.as_deref() == Some("quota") {
                let (is_limit, name) = bucket.unwrap_or_else(|| panic!("no bucket: {}", context()));
                assert_eq!(Some(name), explained.bucket, "{}", context());
                if !is_limit {
                    check_bucket(&scene, &question, &explained);
                }
            }
            *seen.entry(format!("{verdict:?} {}", reason.unwrap_or_default())).or_default() += 1;
        }
    }
}

/// Fills the bucket that refuses a request, and those that are asked after it: then no quota refuses it.
fn check_bucket<W: Wire>(scene: &Scene<W>, question: &Question, explained: &Explanation) {
    let named = explained.bucket.as_ref().unwrap();
    let quotas: Vec<_> =
        explained.buckets.iter().filter(|bucket| ["quota", "charge"].contains(&&*bucket.kind)).collect();
    let own = quotas.iter().position(|bucket| bucket.kind == "quota");
    assert!(own.is_none_or(|own| own == 0), "the tenant's own is asked first: {explained:?}");
    let place = quotas.iter().position(|bucket| bucket.name == *named).unwrap();
    let ids = scene.maps.tenant_ids();
    let word = |name: &str| scene.maps.quota_tat(ids[name] as usize);
    let held: Vec<_> = quotas.iter().map(|bucket| word(&bucket.name).load(Ordering::Relaxed)).collect();
    for bucket in &quotas[place..] {
        word(&bucket.name).store(0, Ordering::Relaxed);
    }
    let (_, reason, bucket) = scene.make(question);
    let is_limit = bucket.is_some_and(|(is_limit, _)| is_limit);
    assert!(reason.as_deref() != Some("quota") || is_limit, "{reason:?}: {explained:?}");
    for (bucket, tat) in quotas.iter().zip(held) {
        word(&bucket.name).store(tat, Ordering::Relaxed);
    }
}

#[test]
fn a_request_gets_what_was_explained_and_asking_changes_nothing() {
    let mut seen = Seen::new();
    compare::<Memcached>("memcached", &mut seen);
    compare::<Resp>("resp", &mut seen);
    println!("{seen:?}");
    assert_eq!(seen.values().sum::<usize>(), 2 * SERVICES as usize * REQUESTS);
    for wanted in [
        "Passes ",
        "Queued ",
        "Joins ",
        "Answered ",
        "Refused quota",
        "Refused rejected-until",
        "Refused rejection-rate",
        "Refused penalty",
        "Refused slo",
        "Refused queue-full",
        "Refused unknown-source",
        "Refused unsupported",
    ] {
        assert!(seen.get(wanted).is_some_and(|count| *count >= 20), "{wanted} in {seen:?}");
    }
}

#[test]
fn bad_questions_get_clear_answers() {
    let memcached = Scene::<Memcached>::new(1, "memcached");
    let resp = Scene::<Resp>::new(1, "resp");
    let ask = |client, line: &str| Question { client, user: None, words: words(line) };
    let source = || Asker::Source("10.1.1.1".parse().unwrap());
    for (question, said) in [
        (ask(Asker::Tenant("nobody".to_owned()), "get a"), "there is no tenant \"nobody\""),
        (
            ask(source(), "frobnicate a"),
            "\"frobnicate a\" is no request that gate forwards (malformed): it answers \"ERROR\"",
        ),
        (ask(source(), "get a\r\nget b"), "several lines"),
        (ask(source(), ""), "name a command"),
        (ask(source(), "set k 0 0 9999999"), "it answers \"SERVER_ERROR object too large for cache\""),
        (Question { user: Some("app".to_owned()), ..ask(source(), "get a") }, "service cache knows no users"),
    ] {
        let error = memcached.service.explain(&question, START).unwrap_err();
        assert!(error.contains(said), "{question:?}: {error}");
    }
    let unknown_source =
        resp.service.explain(&ask(Asker::Source("99.1.1.1".parse().unwrap()), "GET a"), START).unwrap();
    assert_eq!((unknown_source.tenant, &*unknown_source.rule), (None, "no rule names its source"));
    let unknown = Question { user: Some("ghost".to_owned()), ..ask(source(), "GET a") };
    let unknown = resp.service.explain(&unknown, START).unwrap();
    assert_eq!(unknown.rule, "its source, since no tenant has the user");
    let tenant = resp.service.explain(&ask(Asker::Tenant("team".to_owned()), "GET a"), START).unwrap();
    assert_eq!((tenant.tenant.as_deref(), &*tenant.rule), (Some("team"), "the question"));
}
