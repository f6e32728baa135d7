use super::*;

const FLOOD: Option<TenantId> = Some(TenantId(1));
const OTHER: Option<TenantId> = Some(TenantId(2));
const STEP: Nanos = Nanos(1_000_000);

fn party(tenant: Option<TenantId>, last: u8) -> Party {
    Party::new(tenant, [10, 0, 0, last].into())
}

/// The time that each tenant has used in so many rounds in which its clients always wait.
fn used_in(rounds: u64, tenants: &[Option<TenantId>], step: Nanos) -> Vec<Nanos> {
    let mut queue = TurnQueue::default();
    let mut used = vec![Nanos(0); tenants.len()];
    for (number, &tenant) in tenants.iter().enumerate() {
        queue.wait(party(tenant, 1), number);
    }
    for _ in 0..rounds {
        while let Some((tenant, number)) = queue.next() {
            queue.end(tenant, step);
            used[number] = used[number].saturating_add(step);
            queue.wait(party(tenant, 1), number);
        }
        queue.next_round();
    }
    used
}

#[test]
fn a_tenant_has_a_quarter_of_a_thread_and_all_have_half() {
    for step in [Nanos(10_000), Nanos(700_000), STEP, Nanos(6_000_000)] {
        let single = used_in(1_000, &[FLOOD], step)[0];
        assert!(single.0 / 1_000_000 <= 2_500 + step.0 / 1_000_000, "{step:?}: {single:?}");
        assert!(single.0 / 1_000_000 >= 2_400, "{step:?}: {single:?}");
        let many: Vec<_> = (1..=10).map(|tenant| Some(TenantId(tenant))).collect();
        let used = used_in(1_000, &many, step);
        let all = used.iter().map(|used| used.0).sum::<u64>() / 1_000_000;
        assert!((4_900..=5_000 + step.0 / 1_000_000 + 1).contains(&all), "{step:?}: {all}");
        let least = used.iter().min().unwrap();
        let most = used.iter().max().unwrap();
        assert!(most.0 - least.0 <= 2 * step.0 + OF_ALL.0, "{step:?}: {used:?}");
    }
}

#[test]
fn another_tenant_and_another_source_do_not_wait_for_a_crowd() {
    let mut queue = TurnQueue::default();
    assert!(queue.take(party(FLOOD, 1)));
    for number in 0..1_000 {
        assert!(!queue.take(party(FLOOD, 1)));
        queue.wait(party(FLOOD, 1), number);
    }
    queue.wait(party(FLOOD, 2), 2_000);
    queue.wait(party(OTHER, 3), 3_000);
    queue.wait(party(None, 3), 4_000);
    let mut served = Vec::new();
    queue.end(FLOOD, Nanos(1));
    while let Some((tenant, number)) = queue.next() {
        assert!(queue.next().is_none() && !queue.take(party(OTHER, 9)), "one at a time");
        served.push(number);
        queue.end(tenant, Nanos(1));
    }
    assert_eq!(served[..6], [0, 3_000, 4_000, 2_000, 1, 2], "{:?}", &served[..10]);
    assert_eq!(served.len(), 1_003);
}

#[test]
fn whoever_has_used_nothing_goes_on_while_another_is_spent() {
    let mut queue = TurnQueue::default();
    for number in 0..3 {
        assert!(queue.take(party(FLOOD, 1)), "{number}");
        queue.end(FLOOD, STEP);
    }
    assert!(queue.is_spent(FLOOD) && !queue.take(party(FLOOD, 1)) && !queue.is_spent(OTHER));
    queue.wait(party(FLOOD, 1), ());
    assert!(queue.next().is_none());
    assert!(queue.take(party(OTHER, 1)));
    queue.end(OTHER, Nanos(0));
    queue.next_round();
    assert_eq!(queue.next().map(|(tenant, ())| tenant), Some(FLOOD));
    queue.end(FLOOD, Nanos(0));
    (0..2).for_each(|_| queue.next_round());
    assert!(!queue.is_active(), "it is forgotten");
}

#[test]
fn networks_of_ipv6_are_one_source() {
    let of = |address: &str| Party::new(FLOOD, address.parse().unwrap());
    assert_eq!(of("fd00::1"), of("fd00::ffff:1"));
    assert_ne!(of("fd00::1"), of("fd00:0:0:1::1"));
    assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
}

#[tokio::test]
async fn a_client_that_leaves_gives_its_turn_to_the_next() {
    let turns = Turns::default();
    let first = turns.next(party(FLOOD, 1), || panic!("nothing is used")).await;
    let mut waiting: Vec<_> = (0..5).map(|_| Box::pin(turns.next(party(FLOOD, 1), || {}))).collect();
    for client in &mut waiting {
        assert!(poll_once(client.as_mut()).is_none());
    }
    let last = waiting.pop();
    // One before it has its turn, and does not know.
    let granted = waiting.remove(0);
    waiting.clear();
    drop(first);
    drop(granted);
    let turn = last.expect("there are five").await;
    assert!(!turns.0.queue.borrow_mut().take(party(OTHER, 1)), "it is taken");
    drop(turn);
    assert!(turns.0.queue.borrow_mut().take(party(OTHER, 1)));
}

#[tokio::test]
async fn a_client_that_waits_for_a_round_goes_on_in_it() {
    let turns = Turns::default();
    let rounds = turns.clone().run_rounds();
    let spent = async {
        let turn = turns.next(party(FLOOD, 1), || panic!("nothing is used")).await;
        turn.used.set(OF_TENANT);
        drop(turn);
        let mut paused = 0;
        drop(turns.next(party(FLOOD, 1), || paused += 1).await);
        assert_eq!(paused, 1);
    };
    let both = async {
        tokio::select! { () = rounds => {}, () = spent => {} }
    };
    tokio::time::timeout(Duration::from_secs(20), both).await.expect("a round has come");
}

/// The result of polling once.
fn poll_once<F: Future>(future: std::pin::Pin<&mut F>) -> Option<F::Output> {
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    match future.poll(&mut cx) {
        std::task::Poll::Ready(output) => Some(output),
        std::task::Poll::Pending => None,
    }
}
