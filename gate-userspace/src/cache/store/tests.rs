use std::path::PathBuf;

use hyper::StatusCode;
use hyper::header::{CACHE_CONTROL, DATE, ETAG, HeaderMap, HeaderValue};

use super::*;
use crate::cache::directory::ORDER;
use crate::cache::response::keyed_request;
use crate::config::Dedup;

/// A directory that goes when the test ends.
pub(in crate::cache) struct Directory(pub(in crate::cache) PathBuf);

impl Directory {
    pub(in crate::cache) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("gate-cache-{}-{name}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

fn settings(directory: &Directory) -> config::Cache {
    config::Cache {
        dir: directory.0.clone(),
        memory: 1 << 20,
        disk: 16 << 20,
        max_object: 1 << 20,
        key: Vec::new(),
        is_key_named: false,
        keep_own: false,
        stale: Nanos::ZERO,
        dedup: Dedup::Service,
        is_dedup_said: false,
    }
}

fn key(path: &str) -> Key {
    Key::new("h", path, "", "http")
}

fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_000_000_000)
}

fn response(path: &str, body: &[u8]) -> Arc<StoredResponse> {
    let mut headers = HeaderMap::new();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("max-age=60"));
    let request = keyed_request(path, &HeaderValue::from_static("h"), &Vec::new()).unwrap();
    let body = (Digest::of(body), body.len() as u64);
    Arc::new(StoredResponse::new(&request, Vec::new(), (StatusCode::OK, headers), now(), body).unwrap())
}

fn put(cache: &Cache, path: &str, body: &'static str) {
    cache.insert(&key(path), &response(path, body.as_bytes()), ToWrite::All(Bytes::from(body)), now());
}

/// The body that is found, as text.
async fn found(cache: &Cache, path: &str) -> Option<String> {
    let record = cache.record(&key(path)).await?;
    let body = cache.body(record.get(&Vec::new(), &HeaderMap::new())?).await?;
    Some(String::from_utf8(body.to_vec()).unwrap())
}

/// Waits until the directory is open.
async fn opened(settings: &config::Cache) -> Cache {
    let cache = Cache::open(settings, false).unwrap();
    while cache.disk.shared().opened().is_none() {
        tokio::task::yield_now().await;
    }
    cache
}

#[tokio::test]
async fn what_was_kept_is_found_after_a_restart() {
    let directory = Directory::new("restart");
    let settings = settings(&directory);
    let cache = opened(&settings).await;
    put(&cache, "/a", "one");
    put(&cache, "/b", "one");
    put(&cache, "/c", "two");
    drop(cache);
    let cache = opened(&settings).await;
    for (path, body) in [("/a", Some("one")), ("/b", Some("one")), ("/c", Some("two")), ("/d", None)] {
        assert_eq!(found(&cache, path).await.as_deref(), body, "{path}");
    }
    let Usage { records, blobs, .. } = cache.usage().unwrap();
    assert_eq!((records, blobs), (3, 2), "equal bytes are kept once");
    assert_eq!(cache.verify().unwrap(), Verified { sound: 2, ..Verified::default() });
}

#[tokio::test]
async fn a_removed_url_is_not_found_again_from_disk() {
    let directory = Directory::new("removed");
    let cache = opened(&settings(&directory)).await;
    put(&cache, "/a", "one");
    cache.invalidate(&key("/a"));
    assert_eq!(found(&cache, "/a").await, None);
    put(&cache, "/a", "two");
    put(&cache, "/b", "two");
    cache.purge("H", "/a");
    assert_eq!(found(&cache, "/a").await, None);
    assert_eq!(found(&cache, "/b").await.as_deref(), Some("two"));
}

#[tokio::test]
async fn bytes_that_are_not_what_was_kept_are_never_given() {
    let directory = Directory::new("wrong");
    let settings = settings(&directory);
    let cache = opened(&settings).await;
    put(&cache, "/a", "one");
    drop(cache);
    let name = Digest::of(b"one").to_string();
    std::fs::write(directory.0.join("blobs").join(&name[..2]).join(&name), "own").unwrap();
    let cache = opened(&settings).await;
    assert_eq!(found(&cache, "/a").await, None);
    assert_eq!(cache.counters().get(CacheEvent::DamagedBlob), 1);
    // Kept again, it is written again.
    put(&cache, "/a", "one");
    drop(cache);
    let cache = opened(&settings).await;
    assert_eq!(found(&cache, "/a").await.as_deref(), Some("one"));
}

#[tokio::test]
async fn an_answer_that_was_replaced_is_not_found_where_writes_fail() {
    let directory = Directory::new("replaced");
    let cache = opened(&settings(&directory)).await;
    let until_found = async |body: Option<&str>| {
        let found = async {
            cache.memory.remove(key("/a").bytes());
            while found(&cache, "/a").await.as_deref() != body {
                cache.memory.remove(key("/a").bytes());
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), found).await
    };
    put(&cache, "/a", "one");
    until_found(Some("one")).await.expect("it is written");
    written(&cache).await;
    let unfinished = directory.0.join("unfinished");
    std::fs::remove_dir(&unfinished).unwrap();
    std::fs::write(&unfinished, "no directory").unwrap();
    put(&cache, "/a", "two");
    until_found(None).await.expect("the old one is found");
    assert_eq!(cache.counters().get(CacheEvent::WriteFailed), 1);
    std::fs::remove_file(&unfinished).unwrap();
    std::fs::create_dir(&unfinished).unwrap();
    put(&cache, "/a", "three");
    until_found(Some("three")).await.expect("it is written again");
}

#[tokio::test]
async fn a_look_at_all_files_finds_those_that_are_not_sound() {
    let directory = Directory::new("sound");
    let settings = settings(&directory);
    let cache = opened(&settings).await;
    for (path, body) in [("/a", "one"), ("/b", "two"), ("/c", "three")] {
        put(&cache, path, body);
    }
    drop(cache);
    let file = |body: &str| {
        let name = Digest::of(body.as_bytes()).to_string();
        directory.0.join("blobs").join(&name[..2]).join(&name)
    };
    std::fs::write(file("two"), "owt").unwrap();
    std::fs::remove_file(file("three")).unwrap();
    let cache = opened(&settings).await;
    assert_eq!(cache.verify().unwrap(), Verified { sound: 1, damaged: 1, missing: 1 });
    drop(cache);
    assert!(!file("two").exists() && file("one").exists());
}

#[tokio::test]
async fn a_damaged_database_is_set_aside_with_its_files() {
    let directory = Directory::new("aside");
    let settings = settings(&directory);
    let cache = opened(&settings).await;
    put(&cache, "/a", "one");
    drop(cache);
    std::fs::write(directory.0.join("index.redb"), [7; 10_000]).unwrap();
    let cache = opened(&settings).await;
    assert_eq!(found(&cache, "/a").await, None);
    assert_eq!(
        (cache.counters().get(CacheEvent::DamagedIndex), cache.usage().unwrap()),
        (1, Usage::default())
    );
    assert_eq!(std::fs::read(directory.0.join("index.damaged")).unwrap(), [7; 10_000]);
    let name = Digest::of(b"one").to_string();
    assert!(!directory.0.join("blobs").join(&name[..2]).join(&name).exists());
}

#[tokio::test]
async fn one_gate_has_a_directory_until_it_leaves_it() {
    let directory = Directory::new("lock");
    let settings = settings(&directory);
    let old = opened(&settings).await;
    put(&old, "/a", "one");
    assert!(matches!(Cache::open(&settings, false), Err(OpenError::Taken { .. })));
    let new = Cache::open(&settings, true).unwrap();
    assert!(!new.is_open() && old.is_open());
    put(&new, "/c", "three");
    assert_eq!(found(&new, "/c").await, None, "it keeps something in a directory that is not its own");
    put(&old, "/b", "two");
    new.invalidate(&key("/b"));
    old.leave();
    assert!(!old.is_open(), "what the other one removes would be found here");
    while new.disk.shared().opened().is_none() {
        tokio::task::yield_now().await;
    }
    assert_eq!(found(&new, "/a").await.as_deref(), Some("one"));
    assert_eq!(found(&new, "/b").await, None, "it was changed while the other had it");
    drop(Cache::open(&settings, true).unwrap());
}

#[tokio::test]
async fn a_body_in_pieces_is_whole_however_long() {
    let directory = Directory::new("pieces");
    let cache = opened(&settings(&directory)).await;
    for len in [0, 1, 40_000, 300_000] {
        let body: Vec<u8> = (0..len).map(|at: usize| (at * 31 % 251) as u8).collect();
        let mut pieces = Pieces::default();
        body.chunks(20_011).for_each(|piece| pieces.push(piece.to_vec().into()));
        let (joined, digest) = cache.join_pieces(pieces).await.unwrap();
        assert!(joined == body && digest == Digest::of(&body), "{len}");
    }
}

#[tokio::test]
async fn a_directory_that_cannot_be_opened_is_tried_again() {
    let directory = Directory::new("tried-again");
    let blobs = directory.0.join("blobs");
    std::fs::write(&blobs, "no directory").unwrap();
    let cache = Cache::open(&settings(&directory), false).unwrap();
    until("it does not fail", || cache.counters().get(CacheEvent::WriteFailed) > 0).await;
    std::fs::remove_file(&blobs).unwrap();
    until("it is not opened again", || cache.disk.shared().opened().is_some()).await;
    put(&cache, "/a", "one");
    assert_eq!(found(&cache, "/a").await.as_deref(), Some("one"));
}

#[tokio::test]
async fn what_memory_has_dropped_is_found_before_it_is_written() {
    let directory = Directory::new("unwritten");
    let cache = opened(&settings(&directory)).await;
    let held = cache.disk.shared().opened().unwrap();
    let held = held.index.hold();
    // More than memory takes.
    let count = 400;
    for n in 0..count {
        put(&cache, &format!("/{n}"), format!("{n} ").repeat(1_000).leak());
    }
    for n in 0..count {
        let body = found(&cache, &format!("/{n}")).await;
        assert_eq!(body.as_deref(), Some(format!("{n} ").repeat(1_000).as_str()), "{n}");
    }
    drop(held);
}

/// An answer whose origin says this of how long it holds.
fn confirmed(path: &str, body: &[u8], lifetime: &'static str, now: SystemTime) -> StoredResponse {
    let headers = [
        (CACHE_CONTROL, HeaderValue::from_static(lifetime)),
        (ETAG, HeaderValue::from_static("\"a\"")),
        (DATE, HeaderValue::try_from(format!("{now:?}")).unwrap()),
    ];
    let request = keyed_request(path, &HeaderValue::from_static("h"), &Vec::new()).unwrap();
    let answer = (StatusCode::OK, HeaderMap::from_iter(headers));
    let body = (Digest::of(body), body.len() as u64);
    StoredResponse::new(&request, Vec::new(), answer, now, body).unwrap()
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), waiting).await.expect(what);
}

/// Waits until all files are written.
async fn written(cache: &Cache) {
    until("it is not written", || cache.disk.shared().pending() == 0).await;
}

fn is_there(cache: &Cache, kept: &StoredResponse) -> bool {
    cache.disk.shared().opened().is_some_and(|opened| opened.blobs.has(&kept.digest, kept.len))
}

#[tokio::test]
async fn a_confirmed_answer_is_written_without_its_body() {
    let directory = Directory::new("confirmed");
    let cache = opened(&settings(&directory)).await;
    let body = Bytes::from(vec![b'x'; 500_000]);
    let mut kept = Arc::new(confirmed("/a", &body, "max-age=1", now()));
    cache.insert(&key("/a"), &kept, ToWrite::All(body.clone()), now());
    written(&cache).await;
    let database = cache.disk.shared().opened().unwrap();
    let held = database.index.hold();
    for second in 1..200 {
        let now = now() + Duration::from_secs(second);
        let newer = confirmed("/a", &body, "max-age=1", now);
        let to_write = cache.to_write(&kept, &newer, now).await.unwrap();
        kept = Arc::new(newer);
        cache.insert(&key("/a"), &kept, to_write, now);
    }
    let pending = cache.disk.shared().pending();
    assert!(pending <= 200 * ORDER, "{pending}");
    assert_eq!(cache.counters().get(CacheEvent::WriteSkipped), 0);
    drop(held);
    drop(database);
    drop(cache);
    let cache = opened(&settings(&directory)).await;
    let record = cache.record(&key("/a")).await.unwrap();
    assert_eq!(record.get(&Vec::new(), &HeaderMap::new()).unwrap().received, kept.received);
    assert_eq!(cache.body(&kept).await, Some(body));
}

#[tokio::test]
async fn an_answer_without_a_lifetime_is_written_once_a_minute() {
    let directory = Directory::new("no-lifetime");
    let cache = opened(&settings(&directory)).await;
    let mut kept = Arc::new(confirmed("/a", b"one", "no-cache", now()));
    cache.insert(&key("/a"), &kept, ToWrite::All(Bytes::from("one")), now());
    written(&cache).await;
    let mut writes = Vec::new();
    for second in 1..=130 {
        let now = now() + Duration::from_secs(second);
        let newer = confirmed("/a", b"one", "no-cache", now);
        let to_write = cache.to_write(&kept, &newer, now).await.unwrap();
        if to_write != ToWrite::Nothing {
            assert_eq!(to_write, ToWrite::Record);
            writes.push(second);
        }
        kept = Arc::new(newer);
        cache.insert(&key("/a"), &kept, to_write, now);
    }
    assert_eq!(writes, [60, 120]);
    let lasts = confirmed("/a", b"one", "max-age=5", kept.received);
    assert_eq!(cache.to_write(&kept, &lasts, kept.received).await, Some(ToWrite::Record));
    let other = confirmed("/a", b"two", "no-cache", kept.received);
    assert_eq!(cache.to_write(&kept, &other, kept.received).await, None, "there is no such body");
}

#[tokio::test]
async fn a_record_is_not_written_once_its_body_is_gone() {
    let directory = Directory::new("gone");
    let cache = opened(&settings(&directory)).await;
    put(&cache, "/a", "one");
    written(&cache).await;
    let kept = response("/a", b"one");
    cache.invalidate(&key("/a"));
    until("its file stays", || cache.usage() == Some(Usage::default()) && !is_there(&cache, &kept)).await;
    cache.insert(&key("/a"), &kept, ToWrite::Record, now());
    drop(cache);
    let cache = opened(&settings(&directory)).await;
    assert_eq!(cache.usage(), Some(Usage::default()));
}

#[tokio::test]
async fn what_memory_has_dropped_is_forgotten_on_disk() {
    let directory = Directory::new("forgotten");
    let cache = opened(&settings(&directory)).await;
    put(&cache, "/a", "one");
    put(&cache, "/b", "two");
    written(&cache).await;
    cache.memory.remove(key("/a").bytes());
    cache.forget(&key("/a"), &Vec::new());
    assert_eq!(found(&cache, "/a").await, None);
    assert_eq!(found(&cache, "/b").await.as_deref(), Some("two"));
}
