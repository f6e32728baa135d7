use std::sync::atomic::AtomicBool;

use super::*;
use crate::policy::Tier;

const MS: Nanos = Nanos::from_millis(1);

fn threads<const N: usize>(limit: usize) -> [ThreadPermits; N] {
    let permits = Permits::new(Some(limit), N);
    std::array::from_fn(|number| permits.of_thread(number))
}

fn acquire(thread: &mut ThreadPermits, count: usize) -> usize {
    (0..count).take_while(|_| thread.try_acquire()).count()
}

#[test]
fn one_thread_may_have_all_permits_and_no_more_exist() {
    let [mut one, mut other] = threads::<2>(3);
    assert_eq!((acquire(&mut one, 9), acquire(&mut other, 9)), (3, 0));
    one.release();
    assert_eq!((acquire(&mut other, 9), acquire(&mut one, 9)), (1, 0));
    one.enter();
    one.release();
    assert_eq!(acquire(&mut other, 9), 0, "it was one too many");
}

#[test]
fn a_released_permit_goes_to_the_highest_tiers_oldest() {
    let [mut releasing, mut batch, mut old, mut young] = threads::<4>(1);
    assert!(releasing.try_acquire());
    batch.claim(Tier::Batch, MS, 1);
    young.claim(Tier::Standard, Nanos::from_millis(3), 1);
    old.claim(Tier::Standard, Nanos::from_millis(2), 1);
    releasing.release();
    assert!(!young.try_acquire() && !batch.try_acquire() && old.try_acquire());
    old.unclaim();
    old.release();
    assert!(!batch.try_acquire() && young.try_acquire());
    young.unclaim();
    young.release();
    assert!(!old.try_acquire() && batch.try_acquire());
}

#[test]
fn a_thread_serves_itself_first_unless_another_is_much_older() {
    let [mut own, mut other] = threads::<2>(1);
    let at = |micros| MS.saturating_add(Nanos::from_micros(micros));
    for (own_since, is_kept) in [(at(499), true), (at(501), false)] {
        assert!(own.try_acquire());
        own.claim(Tier::Standard, own_since, 1);
        other.claim(Tier::Standard, MS, 1);
        own.release();
        assert_eq!(own.try_acquire(), is_kept);
        if !is_kept {
            assert!(other.try_acquire(), "it is granted");
            std::mem::swap(&mut own, &mut other);
        }
        other.unclaim();
        own.unclaim();
        own.release();
    }
}

#[test]
fn a_granted_permit_that_is_not_needed_any_more_goes_on() {
    let [mut first, mut second, mut third] = threads::<3>(1);
    assert!(first.try_acquire());
    second.claim(Tier::Critical, MS, 1);
    third.claim(Tier::Batch, MS, 1);
    first.release();
    assert!(!third.try_acquire(), "it is the second's");
    second.unclaim();
    assert!(third.try_acquire());
}

#[test]
fn permits_that_a_thread_keeps_go_to_threads_that_wait() {
    let [mut one, mut other] = threads::<2>(1_600);
    assert_eq!(acquire(&mut one, 10_000), 1_600);
    (0..1_600).for_each(|_| one.release());
    assert!((1..=MOST_SPARE).contains(&one.spare));
    assert_eq!(acquire(&mut other, 10_000), 1_600 - one.spare, "what is kept counts as taken");
    let kept = one.spare;
    other.claim(Tier::Standard, MS, 1);
    one.poll();
    assert_eq!((one.spare, acquire(&mut other, 10_000)), (0, kept));
}

#[test]
fn a_lowered_limit_is_reached_first_and_a_raised_one_wakes() {
    let [mut one, mut other] = threads::<2>(1_600);
    assert_eq!(acquire(&mut one, 100), 100);
    (0..50).for_each(|_| one.release());
    one.shared().set_limit(10);
    for left in (10..50).rev() {
        assert!(!one.try_acquire() && !other.try_acquire(), "{left} are left");
        one.release();
    }
    assert!(!other.try_acquire());
    assert!(one.shared().take_reached() && !one.shared().take_reached());
    other.claim(Tier::Standard, MS, 1);
    one.shared().set_limit(11);
    assert!(other.try_acquire() && !one.try_acquire());
}

#[test]
fn without_a_limit_there_is_always_a_permit() {
    let permits = Permits::new(None, 1);
    let mut thread = permits.of_thread(0);
    assert_eq!(acquire(&mut thread, 100_000), 100_000);
    (0..100_000).for_each(|_| thread.release());
    assert!(!permits.take_reached());
}

/// Threads that want more permits than there are, and sleep until they are woken. A lost wake-up would let one sleep for
/// ever, since nobody polls here.
#[test]
fn no_wake_up_is_lost_and_no_permit() {
    for limit in [1, 3, 64] {
        let permits = Permits::new(Some(limit), 4);
        let at_once = AtomicUsize::new(0);
        let is_late = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for number in 0..4 {
                let permits = &permits;
                let at_once = &at_once;
                let is_late = &is_late;
                scope.spawn(move || {
                    let runtime =
                        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
                    let working = work(permits.of_thread(number), limit, at_once);
                    let done = runtime.block_on(async { tokio::time::timeout(PATIENCE, working).await });
                    is_late.fetch_or(done.is_err(), Ordering::Relaxed);
                });
            }
        });
        assert!(!is_late.into_inner(), "a thread still waits, with {limit}");
        assert_eq!(permits.taken.0.load(Ordering::SeqCst), 0, "with {limit}");
    }
}

async fn work(mut thread: ThreadPermits, limit: usize, at_once: &AtomicUsize) {
    let mut left = ROUNDS;
    while left > 0 {
        let wanted = 1 + left % 5;
        let mut held = 0;
        for _ in 0..wanted {
            let mut now = left as u64;
            while !thread.try_acquire() {
                if held > 0 {
                    break;
                }
                now += 1;
                thread.claim(Tier::ALL[left % 4], Nanos(now), 1);
                thread.woken().await;
            }
            if thread.in_use > held {
                held += 1;
                assert!(at_once.fetch_add(1, Ordering::SeqCst) < limit, "more than there are");
            }
        }
        thread.unclaim();
        tokio::task::yield_now().await;
        for _ in 0..held {
            at_once.fetch_sub(1, Ordering::SeqCst);
            thread.release();
        }
        left -= 1;
    }
    thread.unclaim();
    let kept = std::mem::take(&mut thread.spare);
    thread.shared.put(kept, None);
}

const ROUNDS: usize = 20_000;
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);
