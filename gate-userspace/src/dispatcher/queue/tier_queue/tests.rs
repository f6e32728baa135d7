use super::*;

fn key(tier: Tier) -> QueueKey {
    QueueKey { rank: tier.into(), tenant: 1, is_slow: false }
}

fn of(tenant: u32, is_slow: bool) -> QueueKey {
    QueueKey { rank: Tier::Standard.into(), tenant, is_slow }
}

#[test]
fn tenants_take_turns_by_what_their_requests_cost() {
    let mut queue = Queue::of_one_thread(1, 1_000, 0);
    assert!(queue.pass(false));
    (0..100).for_each(|_| queue.push(of(1, false), QUANTUM, 1, b"", Nanos(1)));
    (0..10).for_each(|_| queue.push(of(2, false), QUANTUM / 2, 2, b"", Nanos(2)));
    queue.leave();
    let served: Vec<_> = std::iter::from_fn(|| {
        let served = queue.pop(|_| true).map(|(_, queued, _)| queued.item);
        queue.leave();
        served
    })
    .take(12)
    .collect();
    assert_eq!(served, [1, 2, 2, 1, 2, 2, 1, 2, 2, 1, 2, 2]);
}

#[test]
fn slow_requests_wait_for_their_connection_and_delay_none() {
    let mut queue = Queue::of_one_thread(1, 1_000, 0);
    assert!(queue.pass(true));
    (0..3).for_each(|_| queue.push(of(1, true), 1, "slow", b"", Nanos(1)));
    queue.push(of(1, false), 1, "fast", b"", Nanos(2));
    assert!(!queue.pass(false), "another is before it");
    queue.leave();
    let mut pop = |slow_may| queue.pop(|&item| slow_may || item == "fast").map(|(_, queued, _)| queued.item);
    assert_eq!((pop(false), pop(false)), (Some("fast"), None));
    queue.leave();
    assert!(queue.pass(false), "only slow ones wait");
    queue.leave();
    assert!(!queue.pass(true));
    assert_eq!(queue.pop(|_| true).map(|(_, queued, _)| queued.item), Some("slow"));
}

#[test]
fn a_permit_is_not_kept_by_what_waits_for_its_connection() {
    let permits = super::super::permits::Permits::new(Some(1), 2);
    let [mut one, mut other] =
        [0, 1].map(|number| Queue::new(permits.of_thread(number), Arc::default(), 9, 100));
    one.push(of(1, true), 1, (), b"", Nanos(1));
    assert!(one.pop(|()| false).is_none() && other.pass(false));
    other.leave();
    assert!(other.pass(false), "no permit is granted to what cannot use it");
}

#[test]
fn a_tenant_leaves_room_for_another() {
    let mut queue = Queue::of_one_thread(1, 10, 100);
    let fill = |queue: &mut Queue<()>, tenant, is_only| {
        let mut count = 0;
        while queue.has_room(tenant, 1, is_only) {
            queue.push(of(tenant, false), 1, (), b"x", Nanos(1));
            count += 1;
        }
        count
    };
    assert_eq!([1, 2, 3, 4].map(|tenant| fill(&mut queue, tenant, false)), [6, 3, 1, 0]);
    let mut queue = Queue::of_one_thread(1, 10, 100);
    assert_eq!(fill(&mut queue, 1, true), 10);
    let mut queue = Queue::of_one_thread(1, 10, 100);
    queue.push(of(1, false), 1, (), &[0; 60], Nanos(1));
    assert!(!queue.has_room(1, 1, false) && queue.has_room(2, 40, false) && !queue.has_room(2, 41, false));
}

#[test]
fn what_waits_in_one_thread_takes_room_from_the_others() {
    let permits = super::super::permits::Permits::new(Some(1), 2);
    let totals = Arc::default();
    let [mut one, mut other] =
        [0, 1].map(|number| Queue::new(permits.of_thread(number), Arc::clone(&totals), 2, 100));
    assert!(one.pass(false) && !other.pass(false));
    one.push(key(Tier::Standard), 1, (), &[0; 60], Nanos(1));
    assert!(other.has_room(1, 40, true) && !other.has_room(1, 41, true));
    other.push(key(Tier::Standard), 1, (), &[0; 40], Nanos(2));
    assert!(!one.has_room(1, 0, true) && !other.has_room(1, 0, true));
    one.leave();
    assert!(one.pop(|()| true).is_some() && other.pop(|()| true).is_none());
    assert!(other.has_room(1, 60, true));
}

#[test]
fn no_more_than_its_permits_are_at_the_store_by_tier() {
    let mut queue = Queue::of_one_thread(2, 3, 1_000);
    assert!(queue.pass(false) && queue.pass(false) && !queue.pass(false));
    for (tier, item) in [(Tier::Batch, 1), (Tier::Critical, 2), (Tier::Batch, 3)] {
        assert!(queue.has_room(1, 1, true));
        queue.push(key(tier), 1, item, b"x", Nanos(item));
    }
    assert!(!queue.has_room(1, 1, true) && queue.pop(|_| true).is_none());
    queue.leave();
    let (tier, queued, behind) = queue.pop(|_| true).unwrap();
    assert_eq!((tier, queued.item, queued.since, behind), (Tier::Critical, 2, Nanos(2), 0));
    assert!(queue.pop(|_| true).is_none(), "its place is taken");
    queue.leave();
    queue.leave();
    let order: Vec<_> =
        std::iter::from_fn(|| queue.pop(|_| true)).map(|(_, queued, behind)| (queued.item, behind)).collect();
    assert_eq!((order, queue.requests.len()), (vec![(1, 1), (3, 0)], 0));
}

#[test]
fn only_so_many_bytes_wait_however_they_leave() {
    let mut queue = Queue::of_one_thread(1, 10, 100);
    queue.push(key(Tier::Standard), 1, (), &[0; 60], Nanos(1));
    queue.push(key(Tier::Batch), 1, (), &[0; 40], Nanos(1));
    assert!(!queue.has_room(1, 1, true) && queue.has_room(1, 0, true));
    assert!(queue.pop(|_| true).is_some() && queue.has_room(1, 60, true) && !queue.has_room(1, 61, true));
    assert!(queue.pop_expired(|_, _| true).is_some() && queue.has_room(1, 100, true));
}

#[test]
fn nothing_passes_while_others_wait() {
    let mut queue = Queue::of_one_thread(2, 10, 1_000);
    assert!(queue.pass(false));
    queue.push(key(Tier::Standard), 1, (), b"", Nanos(1));
    assert!(!queue.pass(false));
}

#[test]
fn lost_requests_leave_each_tiers_front_without_a_permit() {
    let mut queue = Queue::of_one_thread(1, 10, 1_000);
    assert!(queue.pass(false));
    for (tier, item) in [(Tier::Batch, 1), (Tier::Critical, 4), (Tier::Batch, 2), (Tier::Batch, 6)] {
        queue.push(key(tier), 1, item, b"", Nanos(item));
    }
    let mut lost = |before: u64| queue.pop_expired(|_, queued| queued.since.0 < before).map(|(_, q)| q.item);
    assert_eq!((lost(5), lost(5), lost(5), lost(5)), (Some(4), Some(1), Some(2), None));
    assert_eq!((queue.requests.len(), queue.waiting(Tier::Batch)), (1, (1, Some(Nanos(6)))));
    assert!(queue.pop(|_| true).is_none(), "no place is free");
}

#[test]
fn memory_is_used_again_unless_it_is_much() {
    let mut queue = Queue::of_one_thread(1, 10, 1_000);
    queue.push(key(Tier::Standard), 1, (), b"first", Nanos(1));
    let (_, queued, _) = queue.pop(|_| true).unwrap();
    let at = queued.bytes.as_ptr();
    queue.recycle(queued.bytes);
    queue.leave();
    queue.push(key(Tier::Standard), 1, (), b"again", Nanos(2));
    let (_, queued, _) = queue.pop(|_| true).unwrap();
    assert_eq!((queued.bytes.as_ptr(), &queued.bytes[..]), (at, &b"again"[..]));
    queue.recycle(vec![0; MOST_BYTES_KEPT + 1]);
    assert!(queue.spare.is_empty());
}

#[test]
fn who_falls_behind_is_served_after_all_others_of_the_tier() {
    let mut queue = Queue::of_one_thread(1, 100, 1_000);
    assert!(queue.pass(false));
    for (place, (tenant, tier)) in
        [(1, Tier::Standard), (1, Tier::Batch), (2, Tier::Standard), (1, Tier::Standard), (2, Tier::Batch)]
            .into_iter()
            .enumerate()
    {
        let key = QueueKey { rank: tier.into(), ..of(tenant, false) };
        queue.push(key, 1, place, b"", Nanos::ZERO);
    }
    let mut moved = Vec::new();
    let is_above = |tenant, tier| (tenant, tier) == (1, Tier::Standard);
    queue.follow_shares(is_above, |&place, _, _| moved.push(place));
    assert_eq!(moved, [0, 3]);
    assert_eq!((queue.waiting(Tier::Standard).0, queue.len()), (3, 5));
    let order: Vec<_> = std::iter::from_fn(|| {
        queue.leave();
        queue.pop(|_| true).map(|(_, queued, _)| queued.item)
    })
    .collect();
    assert_eq!(order, [2, 0, 3, 1, 4]);
}

#[test]
fn who_asks_for_little_comes_forward_with_all_that_waits() {
    let mut queue = Queue::of_one_thread(1, 100, 1_000);
    assert!(queue.pass(false));
    let behind =
        |tenant| QueueKey { rank: Rank { waits_behind: true, ..Tier::Standard.into() }, ..of(tenant, false) };
    for (place, key) in [behind(1), behind(2), behind(1), of(3, false)].into_iter().enumerate() {
        queue.push(key, 1, place, b"", Nanos::ZERO);
    }
    let mut moved = Vec::new();
    queue.follow_shares(|tenant, _| tenant != 1, |&place, from, to| moved.push((place, from < to)));
    moved.sort_unstable();
    assert_eq!(moved, [(0, false), (2, false), (3, true)]);
    let order: Vec<_> = std::iter::from_fn(|| {
        queue.leave();
        queue.pop(|_| true).map(|(_, queued, _)| queued.item)
    })
    .collect();
    assert_eq!(order, [0, 2, 1, 3]);
}
