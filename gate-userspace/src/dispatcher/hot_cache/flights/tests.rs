use super::super::versions::{Marker, Versions};
use super::*;
use crate::policy::Tier;

const READ: FlightKey<'_> = FlightKey { scope: 0, request: b"get key\r\n" };
const DOWN: Refusal = Refusal::after(Reason::StoreDown, Nanos(7));

struct Scene {
    versions: Arc<Versions>,
    flights: Arc<Flights>,
    mailboxes: Vec<UnboundedReceiver<MailboxMessage>>,
}

impl Scene {
    fn new() -> Self {
        let flights = Arc::new(Flights::new(3, 1));
        let mailboxes = (0..3).map(|thread| flights.mailbox(thread).unwrap()).collect();
        assert!(flights.mailbox(0).is_none(), "a mailbox has one owner");
        Self { versions: Arc::new(Versions::new(1)), flights, mailboxes }
    }

    fn join(&self, flight_key: FlightKey<'_>, thread: usize) -> JoinResult {
        self.join_as(Tier::Standard.into(), flight_key, thread)
    }

    fn join_as(&self, rank: Rank, flight_key: FlightKey<'_>, thread: usize) -> JoinResult {
        let key = self.versions.hash(b"key");
        self.flights.join(flight_key, key, self.versions.of(key).unwrap(), rank, thread, 8)
    }

    fn lead(&self, thread: usize) -> FlightLeader {
        let JoinResult::Leader(leading) = self.join(READ, thread) else { panic!("it follows") };
        *leading
    }

    fn follow(&self, thread: usize) -> Arc<Flight> {
        let JoinResult::Follower(flight) = self.join(READ, thread) else { panic!("it leads") };
        flight
    }

    fn write(&self) {
        Marker::new(Arc::clone(&self.versions)).mark_all().over();
    }

    /// The completions that each thread has received, as words.
    fn received(&mut self) -> [Vec<String>; 3] {
        std::array::from_fn(|thread| {
            std::iter::from_fn(|| self.mailboxes[thread].try_recv().ok())
                .map(|(_, note)| match note {
                    Completion::Answer(answer) => String::from_utf8(answer.to_vec()).unwrap(),
                    Completion::TooLong => "too long".to_owned(),
                    Completion::ForOneClient(_) => "for one".to_owned(),
                    Completion::Retry => "for another".to_owned(),
                    Completion::Failed(refusal) => format!("failed {}", refusal.retry_after.0),
                    Completion::Declined(tenant, refusal) => {
                        format!("declined to {} for {}", tenant.0, refusal.retry_after.0)
                    }
                    Completion::Cacheable(answer, until) => {
                        format!("keep {} bytes until {}", answer.len(), until.0)
                    }
                })
                .collect()
        })
    }
}

fn words(words: [&[&str]; 3]) -> [Vec<String>; 3] {
    words.map(|words| words.iter().map(|&word| word.to_owned()).collect())
}

#[test]
fn one_leads_and_every_following_thread_gets_the_answer_once() {
    let mut scene = Scene::new();
    let mut leading = scene.lead(1);
    let flight = scene.follow(0);
    assert!(Arc::ptr_eq(leading.flight(), &flight));
    leading.read(b"ans");
    leading.read(b"wer");
    let keeping = leading.finish_flight().unwrap();
    assert_eq!(scene.received(), words([&["answer"], &["answer"], &[]]));
    keeping.keep(Nanos(9));
    assert_eq!(scene.received(), words([&["keep 6 bytes until 9"], &["keep 6 bytes until 9"], &[]]));
    // It has completed: the next one leads.
    scene.lead(2);
}

#[test]
fn another_spelling_or_scope_is_another_flight() {
    let scene = Scene::new();
    let _leading = scene.lead(0);
    for other in [FlightKey { scope: 1, ..READ }, FlightKey { request: b"get  key\r\n", ..READ }] {
        assert!(matches!(scene.join(other, 1), JoinResult::Leader(_)), "{other:?}");
    }
}

#[test]
fn a_read_follows_no_flight_that_goes_after_it() {
    for (place, low) in Rank::ALL.into_iter().enumerate().skip(1) {
        let mut scene = Scene::new();
        let lead = |scene: &Scene, rank, thread| match scene.join_as(rank, READ, thread) {
            JoinResult::Leader(leading) => *leading,
            JoinResult::Follower(flight) => panic!("{rank:?} waits with {:?}", flight.rank),
        };
        let before = Rank::ALL[place - 1];
        let under_way = lead(&scene, low, 0);
        let high = lead(&scene, before, 1);
        for rank in Rank::ALL.into_iter().skip(place - 1) {
            let JoinResult::Follower(flight) = scene.join_as(rank, READ, 2) else {
                panic!("one more of {rank:?}")
            };
            assert!(Arc::ptr_eq(&flight, high.flight()), "{rank:?}");
        }
        under_way.fail(DOWN);
        high.complete_with(b"answer");
        let answers = vec!["answer".to_owned(); Rank::ALL.len() - place + 1];
        assert_eq!(scene.received(), [vec!["failed 7".to_owned()], answers[..1].to_vec(), answers]);
        // Each has ended: the next one leads.
        lead(&scene, low, 0);
    }
}

#[test]
fn a_refusal_for_the_leaders_sake_names_its_tenant() {
    let mut scene = Scene::new();
    let leading = scene.lead(0);
    let _ = scene.follow(1);
    leading.decline(TenantId(5), Refusal::after(Reason::QueueDelay, Nanos(9)));
    assert_eq!(scene.received(), words([&["declined to 5 for 9"], &["declined to 5 for 9"], &[]]));
    scene.lead(1);
}

#[test]
fn a_flight_of_an_older_version_completes_without_joiners() {
    let mut scene = Scene::new();
    let old = scene.lead(0);
    scene.write();
    let new = scene.lead(1);
    let _ = scene.follow(2);
    old.complete_with(b"old");
    assert_eq!(scene.received(), words([&["old"], &[], &[]]));
    // The old one's end is not the new one's.
    let _ = scene.follow(0);
    new.complete_with(b"new");
    assert_eq!(scene.received(), words([&["new"], &["new"], &["new"]]));
}

#[test]
fn followers_learn_of_failed_and_of_dropped_flights() {
    let mut scene = Scene::new();
    let leading = scene.lead(0);
    let _ = scene.follow(1);
    leading.fail(DOWN);
    assert_eq!(scene.received(), words([&["failed 7"], &["failed 7"], &[]]));
    drop(scene.lead(0));
    assert_eq!(scene.received(), words([&["failed 20000000"], &[], &[]]));
    scene.lead(1);
}

#[test]
fn an_answer_for_one_reader_goes_to_one_thread_and_is_not_kept() {
    let mut scene = Scene::new();
    let mut leading = scene.lead(1);
    let _ = (scene.follow(0), scene.follow(2));
    leading.is_for_one_client();
    leading.read(b"longer than what is shared");
    assert_eq!(leading.received.len(), 26);
    assert!(leading.finish_flight().is_none());
    assert_eq!(scene.received(), words([&["for another"], &["for one"], &["for another"]]));
    scene.lead(0);
}

#[test]
fn an_answer_that_is_too_long_is_not_gathered() {
    let mut scene = Scene::new();
    let mut leading = scene.lead(0);
    (0..1_000).for_each(|_| leading.read(b"12345"));
    assert!(leading.received.capacity() < 64);
    assert!(leading.finish_flight().is_none());
    assert_eq!(scene.received(), words([&["too long"], &[], &[]]));
    let mut leading = scene.lead(0);
    leading.read(b"12345678");
    assert!(leading.finish_flight().is_some(), "as long as may be");
}
