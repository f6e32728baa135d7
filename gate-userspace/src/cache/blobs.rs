//! Bodies as files: `ab/ab12…`, named by their SHA-256 in directories by its first byte.
//!
//! A file is written under another name and renamed, so that whatever has a digest's name is whole, unless the machine itself
//! failed. That is found when the file is read: its bytes must have its digest. So nothing here waits for the disk.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use super::digest::Digest;

/// The files of a cache.
#[derive(Clone, Debug)]
pub(super) struct Blobs {
    dir: PathBuf,
    unfinished: PathBuf,
}

/// The bytes of a file, if they are those of its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Read {
    Whole(Vec<u8>),
    Absent,
    /// Others.
    Damaged,
}

impl Blobs {
    /// Those below a directory, which is made if need be. What a killed writer has left is removed.
    ///
    /// # Errors
    ///
    /// If it cannot be made, or written to.
    pub(super) fn open(dir: &Path) -> io::Result<Self> {
        let this = Self { dir: dir.join("blobs"), unfinished: dir.join("unfinished") };
        match fs::remove_dir_all(&this.unfinished) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        fs::create_dir_all(&this.dir)?;
        fs::create_dir_all(&this.unfinished)?;
        Ok(this)
    }

    /// True if there is a file of this digest and length.
    pub(super) fn has(&self, digest: &Digest, len: u64) -> bool {
        fs::metadata(self.path(digest)).is_ok_and(|found| found.is_file() && found.len() == len)
    }

    /// Writes the bytes of a digest.
    ///
    /// # Errors
    ///
    /// The system's, for one if there is no room; then nothing is left of it.
    pub(super) fn write(&self, digest: &Digest, bytes: &[u8]) -> io::Result<()> {
        let path = self.path(digest);
        let unfinished = self.unfinished.join(digest.to_string());
        let written = File::create(&unfinished).and_then(|mut file| file.write_all(bytes)).and_then(|()| {
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent)?;
            }
            fs::rename(&unfinished, &path)
        });
        written.inspect_err(|_| drop(fs::remove_file(&unfinished)))
    }

    /// Reads a body of this length, and checks it.
    ///
    /// # Errors
    ///
    /// The system's.
    pub(super) fn read(&self, digest: &Digest, len: u64) -> io::Result<Read> {
        let file = match File::open(self.path(digest)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Read::Absent),
            file => file?,
        };
        let mut bytes = Vec::with_capacity(usize::try_from(len).unwrap_or(0).saturating_add(1));
        file.take(len.saturating_add(1)).read_to_end(&mut bytes)?;
        let is_whole = bytes.len() as u64 == len && Digest::of(&bytes) == *digest;
        Ok(if is_whole { Read::Whole(bytes) } else { Read::Damaged })
    }

    /// Checks a file without keeping its bytes.
    ///
    /// # Errors
    ///
    /// The system's.
    pub(super) fn is_sound(&self, digest: &Digest) -> io::Result<bool> {
        let mut file = File::open(self.path(digest))?;
        let mut hasher = super::digest::Hasher::default();
        let mut piece = vec![0; PIECE];
        loop {
            match file.read(&mut piece)? {
                0 => return Ok(hasher.finish() == *digest),
                read => hasher.update(&piece[..read]),
            }
        }
    }

    /// Removes a file, if it is there.
    ///
    /// # Errors
    ///
    /// The system's.
    pub(super) fn remove(&self, digest: &Digest) -> io::Result<()> {
        match fs::remove_file(self.path(digest)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Calls `each` for every file: with its digest, or with its path if it is named by none.
    ///
    /// # Errors
    ///
    /// The system's, or that of `each`.
    pub(super) fn for_each(
        &self,
        mut each: impl FnMut(Result<Digest, PathBuf>) -> io::Result<()>,
    ) -> io::Result<()> {
        for directory in fs::read_dir(&self.dir)? {
            let directory = directory?.path();
            if !directory.is_dir() {
                each(Err(directory))?;
                continue;
            }
            for file in fs::read_dir(&directory)? {
                let path = file?.path();
                let digest = path.file_name().and_then(|name| Digest::parse(name.to_str()?));
                let digest = digest.filter(|digest| self.path(digest) == path);
                each(digest.ok_or(path))?;
            }
        }
        Ok(())
    }

    fn path(&self, digest: &Digest) -> PathBuf {
        let name = digest.to_string();
        self.dir.join(&name[..2]).join(name)
    }
}

/// The bytes that are checked at once.
const PIECE: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::store::tests::Directory;

    #[test]
    fn a_body_is_read_back_only_if_it_is_what_was_written() {
        let directory = Directory::new("blobs");
        let blobs = Blobs::open(&directory.0).unwrap();
        let digest = Digest::of(b"body");
        assert_eq!(blobs.read(&digest, 4).unwrap(), Read::Absent);
        blobs.write(&digest, b"body").unwrap();
        assert!(blobs.has(&digest, 4) && !blobs.has(&digest, 5));
        assert_eq!(blobs.read(&digest, 4).unwrap(), Read::Whole(b"body".to_vec()));
        for wrong in [&b"bodi"[..], b"bod", b"body and more", b""] {
            fs::write(blobs.path(&digest), wrong).unwrap();
            assert_eq!(blobs.read(&digest, 4).unwrap(), Read::Damaged, "{wrong:?}");
            assert!(!blobs.is_sound(&digest).unwrap());
        }
        blobs.write(&digest, b"body").unwrap();
        assert!(blobs.is_sound(&digest).unwrap());
        blobs.remove(&digest).unwrap();
        blobs.remove(&digest).unwrap();
        assert_eq!(blobs.read(&digest, 4).unwrap(), Read::Absent);
    }

    #[test]
    fn strange_files_are_listed_as_such() {
        let directory = Directory::new("strange");
        let blobs = Blobs::open(&directory.0).unwrap();
        blobs.write(&Digest::of(b"a"), b"a").unwrap();
        fs::create_dir_all(blobs.dir.join("zz")).unwrap();
        fs::write(blobs.dir.join("zz").join(Digest::of(b"a").to_string()), b"a").unwrap();
        let mut found = Vec::new();
        blobs
            .for_each(|file| {
                found.push(file.is_ok());
                Ok(())
            })
            .unwrap();
        found.sort_unstable();
        assert_eq!(found, [false, true]);
    }
}
