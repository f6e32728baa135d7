//! The database: which record is under a key, which bodies it names, and when it was last used.
//!
//! A body is kept as long as a record names it. Records are removed in the order of their last use, until what is left has no
//! more bytes than it may.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use hyper::body::Bytes;
use redb::{Database, ReadableDatabase as _, ReadableTable, Table, TableDefinition, WriteTransaction};

use super::digest::Digest;

/// The database of a cache.
#[derive(Debug)]
pub(super) struct Index {
    database: Database,
    records: AtomicU64,
    blobs: AtomicU64,
    bytes: AtomicU64,
}

/// The records and bodies that a cache has on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Records: one for each URL, and for each body that was processed.
    pub records: u64,
    /// Distinct bodies.
    pub blobs: u64,
    /// The bytes of both.
    pub bytes: u64,
}

/// A change of the database.
#[derive(Clone, Debug)]
pub(super) enum Change {
    /// A record takes the place of the one that was there; with the lengths of the bodies that it names.
    Put { key: Box<[u8]>, at: u64, bodies: Vec<(Digest, u64)>, payload: Bytes },
    /// A record was used, in seconds since 1970.
    Touch { key: Box<[u8]>, at: u64 },
    /// All records go whose keys begin with this.
    Remove { prefix: Box<[u8]> },
}

/// The results of changes.
#[derive(Debug, Default)]
pub(super) struct Applied {
    /// Bodies that no record names any more.
    pub(super) unnamed: Vec<Digest>,
    /// Records that were removed to make room.
    pub(super) evicted: u64,
}

type Value = (u64, &'static [u8], &'static [u8]);
/// Last use, digests and payload of a record.
type Row = (u64, Vec<u8>, Vec<u8>);

/// By key: last use, digests of the bodies that it names, payload.
const RECORDS: TableDefinition<'_, &[u8], Value> = TableDefinition::new("records");
/// Last use, then key.
const LAST_USE: TableDefinition<'_, (u64, &[u8]), ()> = TableDefinition::new("last-use");
/// By digest: length, and how many records name it.
const BLOBS: TableDefinition<'_, &[u8; Digest::LEN], (u64, u64)> = TableDefinition::new("blobs");

impl Index {
    /// Opens a database, checks every page of it, and makes it if it is not there.
    ///
    /// # Errors
    ///
    /// For one that [`is_damage`].
    pub(super) fn open(path: &Path) -> Result<Self, redb::Error> {
        let mut builder = Database::builder();
        builder.set_cache_size(CACHED).set_check_integrity_on_open(true);
        let database = builder.create(path)?;
        let transaction = database.begin_write()?;
        {
            transaction.open_table(RECORDS)?;
            transaction.open_table(LAST_USE)?;
            transaction.open_table(BLOBS)?;
        }
        transaction.commit()?;
        let this = Self { database, records: 0.into(), blobs: 0.into(), bytes: 0.into() };
        let used = this.count()?;
        this.set_usage(used);
        Ok(this)
    }

    /// The payload under a key.
    ///
    /// # Errors
    ///
    /// The database's.
    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, redb::Error> {
        let records = self.database.begin_read()?.open_table(RECORDS)?;
        Ok(records.get(key)?.map(|value| value.value().2.to_vec()))
    }

    /// The payloads under the keys that begin with this.
    ///
    /// # Errors
    ///
    /// The database's.
    pub(super) fn all(&self, prefix: &[u8]) -> Result<Vec<Vec<u8>>, redb::Error> {
        let records = self.database.begin_read()?.open_table(RECORDS)?;
        let mut payloads = Vec::new();
        for key in keys(&records, prefix, usize::MAX)? {
            payloads.extend(records.get(&*key)?.map(|value| value.value().2.to_vec()));
        }
        Ok(payloads)
    }

    /// The length of a body that a record names.
    ///
    /// # Errors
    ///
    /// The database's.
    pub(super) fn blob_len(&self, digest: &Digest) -> Result<Option<u64>, redb::Error> {
        let blobs = self.database.begin_read()?.open_table(BLOBS)?;
        Ok(blobs.get(digest.as_bytes())?.map(|value| value.value().0))
    }

    /// The digests of all bodies.
    ///
    /// # Errors
    ///
    /// The database's.
    pub(super) fn blobs(&self) -> Result<Vec<(Digest, u64)>, redb::Error> {
        let blobs = self.database.begin_read()?.open_table(BLOBS)?;
        let row = |row: Result<(redb::AccessGuard<'_, _>, redb::AccessGuard<'_, (u64, u64)>), _>| {
            let (digest, value): (redb::AccessGuard<'_, &[u8; Digest::LEN]>, _) = row?;
            Ok((Digest::from_bytes(*digest.value()), value.value().0))
        };
        blobs.iter()?.map(row).collect()
    }

    pub(super) fn usage(&self) -> Usage {
        Usage {
            records: self.records.load(Relaxed),
            blobs: self.blobs.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
        }
    }

    /// Makes changes, all or none, and then room: at most `most` bytes are left.
    ///
    /// # Errors
    ///
    /// The database's; then nothing has changed.
    pub(super) fn apply(&self, changes: &[Change], most: u64) -> Result<Applied, redb::Error> {
        let transaction = self.database.begin_write()?;
        let mut applied = Applied::default();
        let usage = {
            let mut tables = Tables::open(&transaction, self.usage())?;
            for change in changes {
                match change {
                    Change::Put { key, at, bodies, payload } => tables.put(key, *at, bodies, payload)?,
                    Change::Touch { key, at } => tables.touch(key, *at)?,
                    Change::Remove { prefix } => {
                        for key in keys(&tables.records, prefix, usize::MAX)? {
                            tables.remove(&key)?;
                        }
                    }
                }
            }
            while tables.usage.bytes > most && tables.remove_oldest()? {
                applied.evicted += 1;
            }
            for digest in std::mem::take(&mut tables.unnamed) {
                if tables.blobs.get(digest.as_bytes())?.is_none() {
                    applied.unnamed.push(digest);
                }
            }
            tables.usage
        };
        transaction.commit()?;
        self.set_usage(usage);
        Ok(applied)
    }

    /// Has changes wait as long as this is there.
    #[cfg(test)]
    pub(super) fn hold(&self) -> WriteTransaction {
        self.database.begin_write().unwrap()
    }

    fn count(&self) -> Result<Usage, redb::Error> {
        let transaction = self.database.begin_read()?;
        let mut usage = Usage::default();
        for row in transaction.open_table(RECORDS)?.iter()? {
            let (key, value) = row?;
            usage.records += 1;
            usage.bytes += cost(key.value(), value.value());
        }
        for row in transaction.open_table(BLOBS)?.iter()? {
            usage.blobs += 1;
            usage.bytes += row?.1.value().0;
        }
        Ok(usage)
    }

    fn set_usage(&self, usage: Usage) {
        self.records.store(usage.records, Relaxed);
        self.blobs.store(usage.blobs, Relaxed);
        self.bytes.store(usage.bytes, Relaxed);
    }
}

/// True for the errors of a file that is no sound database, as opposed to those of a system that does not let it be read.
pub(super) fn is_damage(error: &redb::Error) -> bool {
    use std::io::ErrorKind::{InvalidData, UnexpectedEof};
    match error {
        redb::Error::Io(error) => matches!(error.kind(), InvalidData | UnexpectedEof),
        redb::Error::Corrupted(_) | redb::Error::UpgradeRequired(_) | redb::Error::RepairAborted => true,
        redb::Error::TableTypeMismatch { .. } | redb::Error::TypeDefinitionChanged { .. } => true,
        _ => false,
    }
}

/// The tables, in one transaction.
struct Tables<'t> {
    records: Table<'t, &'static [u8], Value>,
    last_use: Table<'t, (u64, &'static [u8]), ()>,
    blobs: Table<'t, &'static [u8; Digest::LEN], (u64, u64)>,
    usage: Usage,
    /// Bodies that a record has stopped naming, and no other did then.
    unnamed: Vec<Digest>,
}

impl<'t> Tables<'t> {
    fn open(transaction: &'t WriteTransaction, usage: Usage) -> Result<Self, redb::Error> {
        Ok(Self {
            records: transaction.open_table(RECORDS)?,
            last_use: transaction.open_table(LAST_USE)?,
            blobs: transaction.open_table(BLOBS)?,
            usage,
            unnamed: Vec::new(),
        })
    }

    fn put(
        &mut self,
        key: &[u8],
        at: u64,
        bodies: &[(Digest, u64)],
        payload: &[u8],
    ) -> Result<(), redb::Error> {
        // First the new names, so that a body that stays is never without one.
        for (digest, len) in bodies {
            let known = self.blobs.get(digest.as_bytes())?.map(|value| value.value());
            if known.is_none() {
                self.usage.blobs += 1;
                self.usage.bytes += len;
            }
            let (len, names) = known.unwrap_or((*len, 0));
            self.blobs.insert(digest.as_bytes(), (len, names + 1))?;
        }
        self.remove(key)?;
        let digests: Vec<u8> = bodies.iter().flat_map(|(digest, _)| *digest.as_bytes()).collect();
        let value = (at, digests.as_slice(), payload);
        self.usage.records += 1;
        self.usage.bytes += cost(key, value);
        self.records.insert(key, value)?;
        self.last_use.insert((at, key), ())?;
        Ok(())
    }

    fn touch(&mut self, key: &[u8], at: u64) -> Result<(), redb::Error> {
        let Some((before, digests, payload)) = self.row(key)? else { return Ok(()) };
        if before < at {
            self.last_use.remove((before, key))?;
            self.last_use.insert((at, key), ())?;
            self.records.insert(key, (at, digests.as_slice(), payload.as_slice()))?;
        }
        Ok(())
    }

    fn remove(&mut self, key: &[u8]) -> Result<(), redb::Error> {
        let Some((at, digests, payload)) = self.row(key)? else { return Ok(()) };
        self.usage.records -= 1;
        self.usage.bytes -= cost(key, (at, &digests, &payload));
        self.records.remove(key)?;
        self.last_use.remove((at, key))?;
        for digest in digests.as_chunks().0 {
            let Some((len, names)) = self.blobs.get(digest)?.map(|value| value.value()) else { continue };
            if names > 1 {
                self.blobs.insert(digest, (len, names - 1))?;
            } else {
                self.blobs.remove(digest)?;
                self.usage.blobs -= 1;
                self.usage.bytes -= len;
                self.unnamed.push(Digest::from_bytes(*digest));
            }
        }
        Ok(())
    }

    /// False if there is no record left.
    fn remove_oldest(&mut self) -> Result<bool, redb::Error> {
        let oldest = self.last_use.first()?.map(|(row, _)| Box::<[u8]>::from(row.value().1));
        let Some(key) = oldest else { return Ok(false) };
        self.remove(&key)?;
        Ok(true)
    }

    fn row(&self, key: &[u8]) -> Result<Option<Row>, redb::Error> {
        Ok(self.records.get(key)?.map(|row| {
            let (at, digests, payload) = row.value();
            (at, digests.to_vec(), payload.to_vec())
        }))
    }
}

fn keys(
    records: &impl ReadableTable<&'static [u8], Value>,
    prefix: &[u8],
    most: usize,
) -> Result<Vec<Box<[u8]>>, redb::Error> {
    let mut keys = Vec::new();
    for row in records.range(prefix..)?.take(most) {
        let key = row?.0;
        if !key.value().starts_with(prefix) {
            break;
        }
        keys.push(key.value().into());
    }
    Ok(keys)
}

/// The bytes that a record counts for: what it holds twice, and a little for the pages that it lies in.
fn cost(key: &[u8], (_, digests, payload): (u64, &[u8], &[u8])) -> u64 {
    (2 * key.len() + digests.len() + payload.len() + ROW) as u64
}

/// Pages of the database that are kept in memory, in bytes.
const CACHED: usize = 16 << 20;
const ROW: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::store::tests::Directory;

    fn put(key: &str, at: u64, bodies: &[(&str, u64)]) -> Change {
        let bodies = bodies.iter().map(|(body, len)| (Digest::of(body.as_bytes()), *len)).collect();
        Change::Put { key: key.as_bytes().into(), at, bodies, payload: key.as_bytes().to_vec().into() }
    }

    fn remove(prefix: &str) -> Change {
        Change::Remove { prefix: prefix.as_bytes().into() }
    }

    fn open(directory: &Directory) -> Index {
        Index::open(&directory.0.join("index.redb")).unwrap()
    }

    #[test]
    fn a_body_goes_with_the_last_record_that_names_it() {
        let directory = Directory::new("names");
        let index = open(&directory);
        let all = u64::MAX;
        let unnamed = |applied: Applied| applied.unnamed;
        index.apply(&[put("a", 1, &[("x", 100)]), put("b", 2, &[("x", 100), ("y", 10)])], all).unwrap();
        assert_eq!((index.usage().records, index.usage().blobs), (2, 2));
        assert_eq!(unnamed(index.apply(&[remove("a")], all).unwrap()), []);
        // Put again: `y` is named no more, and `x` all the time.
        assert_eq!(unnamed(index.apply(&[put("b", 3, &[("x", 100)])], all).unwrap()), [Digest::of(b"y")]);
        assert_eq!(unnamed(index.apply(&[remove("b"), put("c", 4, &[("x", 100)])], all).unwrap()), []);
        assert_eq!(unnamed(index.apply(&[remove("c")], all).unwrap()), [Digest::of(b"x")]);
        assert_eq!(index.usage(), Usage::default());
    }

    #[test]
    fn what_was_used_last_stays_when_room_is_made() {
        let directory = Directory::new("room");
        let index = open(&directory);
        let puts = ["a", "b", "c", "d"].map(|key| put(key, 1, &[(key, 1_000)]));
        index.apply(&puts, u64::MAX).unwrap();
        index.apply(&[Change::Touch { key: (*b"a").into(), at: 9 }], u64::MAX).unwrap();
        let applied = index.apply(&[put("e", 5, &[("e", 1_000)])], 2_500).unwrap();
        assert_eq!((applied.evicted, applied.unnamed.len()), (3, 3));
        let left = ["a", "b", "c", "d", "e"].map(|key| index.get(key.as_bytes()).unwrap().is_some());
        assert_eq!(left, [true, false, false, false, true]);
        assert!(index.usage().bytes <= 2_500);
        let used = index.usage();
        drop(index);
        assert_eq!(open(&directory).usage(), used, "counted again from what is there");
    }

    #[test]
    fn keys_are_removed_by_their_prefix_alone() {
        let directory = Directory::new("prefix");
        let index = open(&directory);
        let puts = ["h\0a\0", "h\0a\0t", "h\0ab\0", "i\0a\0"].map(|key| put(key, 1, &[]));
        index.apply(&puts, u64::MAX).unwrap();
        index.apply(&[remove("h\0a\0")], u64::MAX).unwrap();
        assert_eq!(index.usage().records, 2);
        assert_eq!(index.get(b"h\0ab\0").unwrap().unwrap(), b"h\0ab\0");
    }

    #[test]
    fn a_damaged_database_is_told_from_one_that_cannot_be_read() {
        let directory = Directory::new("damage");
        let path = directory.0.join("index.redb");
        let index = Index::open(&path).unwrap();
        let many: Vec<_> = (0..2_000).map(|n| put(&format!("key-{n}"), n, &[("x", 9)])).collect();
        index.apply(&many, u64::MAX).unwrap();
        drop(index);
        let sound = std::fs::read(&path).unwrap();
        // Its head, and a page in the middle.
        for at in [0, 64, sound.len() / 2] {
            let mut damaged = sound.clone();
            damaged[at..at + 64].fill(0xa5);
            std::fs::write(&path, damaged).unwrap();
            match std::panic::catch_unwind(|| Index::open(&path)) {
                Ok(Ok(_)) => assert!(at == sound.len() / 2, "a page that is free may be anything"),
                Ok(Err(error)) => assert!(is_damage(&error), "{at}: {error}"),
                // redb's own assertions, in debug builds alone.
                Err(_) if cfg!(debug_assertions) => {}
                Err(_) => panic!("{at}: it panics"),
            }
        }
        std::fs::write(&path, &sound[..sound.len() / 2]).unwrap();
        assert!(Index::open(&path).is_err_and(|error| is_damage(&error)));
        assert!(Index::open(Path::new("/proc/none/index")).is_err_and(|error| !is_damage(&error)));
    }
}
