//! The socket's file: its owner's alone or its group's as well, put in place whole, taken over from the dead and never from the living.

use std::fs;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket};
use nix::sys::stat::{Mode, fchmod};

/// The processes that may open a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// Those of its owner (mode 0600).
    Owner,
    /// Those of its group as well (mode 0660).
    Group,
}

impl Audience {
    const fn mode(self) -> u32 {
        match self {
            Self::Owner => 0o600,
            Self::Group => 0o660,
        }
    }

    /// Of a directory that has to be made.
    const fn directory_mode(self) -> u32 {
        match self {
            Self::Owner => 0o700,
            Self::Group => 0o750,
        }
    }
}

/// A listening socket and its file, which goes with it.
#[derive(Debug)]
pub struct Socket {
    listener: UnixListener,
    path: PathBuf,
    /// Device and number of the file: another gate may have put its own in its place.
    file: (u64, u64),
}

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another gate listens there.
    #[error(
        "another gate listens at {}: say `admin = \"...\"` in the section [gate] (`admin_read` for a second one), or --takeover to \
         take its place", path.display()
    )]
    Taken {
        /// Where.
        path: PathBuf,
    },
    /// The path holds something else than a socket.
    #[error("{} is there, and no socket", path.display())]
    NotASocket {
        /// Where.
        path: PathBuf,
    },
    /// The system refuses.
    #[error("cannot listen at {}", path.display())]
    System {
        /// Where.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl Socket {
    /// Listens at `path`; its directory is made if need be, for the same audience. What a dead gate has left there
    /// is replaced, and so is a living gate's socket if this one takes over from it.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub fn open(path: &Path, audience: Audience, takes_over: bool) -> Result<Self, Error> {
        match fs::symlink_metadata(path) {
            Ok(found) if !found.file_type().is_socket() => {
                return Err(Error::NotASocket { path: path.to_owned() });
            }
            Ok(_) if !takes_over && UnixStream::connect(path).is_ok() => {
                return Err(Error::Taken { path: path.to_owned() });
            }
            _ => {}
        }
        Self::put_in_place(path, audience).map_err(|source| Error::System { path: path.to_owned(), source })
    }

    /// Under another name first: at no time is there a socket that others may open, or none.
    fn put_in_place(path: &Path, audience: Audience) -> io::Result<Self> {
        if let Some(directory) = path.parent() {
            fs::DirBuilder::new().recursive(true).mode(audience.directory_mode()).create(directory)?;
        }
        let new = path.with_added_extension(std::process::id().to_string());
        let listener = listen_at(&new, audience).inspect_err(|_| remove(&new))?;
        let file = fs::symlink_metadata(&new).map(|found| (found.dev(), found.ino()))?;
        fs::rename(&new, path).inspect_err(|_| remove(&new))?;
        Ok(Self { listener, path: path.to_owned(), file })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// For the reactor.
    ///
    /// # Errors
    ///
    /// If the process has no room for another descriptor.
    pub fn listener(&self) -> io::Result<UnixListener> {
        self.listener.try_clone()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let found = fs::symlink_metadata(&self.path).map(|found| (found.dev(), found.ino()));
        if found.is_ok_and(|found| found == self.file) {
            remove(&self.path);
        }
    }
}

/// Removes the socket that a dead gate has left at `path`, and nothing else.
pub fn remove_dead(path: &Path) {
    let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    let is_socket = fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    if is_socket && UnixStream::connect(path).is_err_and(refused) {
        remove(path);
    }
}

/// The mode is the socket's before it has a file, so that nobody else can open it in between. The file gets what
/// the process' mask leaves of it, and then the mode itself. It listens right after there is a file: who finds one that does not
/// takes gate for dead.
fn listen_at(path: &Path, audience: Audience) -> io::Result<UnixListener> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    fchmod(&socket, Mode::from_bits_truncate(audience.mode()))?;
    bind(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    listen(&socket, Backlog::new(BACKLOG)?)?;
    fs::set_permissions(path, fs::Permissions::from_mode(audience.mode()))?;
    Ok(UnixListener::from(socket))
}

fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(path = %path.display(), %error, "a socket was left behind");
    }
}

/// Clients that may wait to be accepted.
const BACKLOG: i32 = 1_024;

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory that goes when the test ends.
    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("gate-socket-{}-{name}", std::process::id()));
            fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn names(&self) -> Vec<String> {
            let names = fs::read_dir(&self.0).unwrap();
            names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn it_is_its_owners_alone_and_goes_when_it_is_dropped() {
        let directory = Directory::new("first");
        let path = directory.0.join("below").join("admin.sock");
        let socket = Socket::open(&path, Audience::Owner, false).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
        drop(socket);
        assert!(!path.exists());
    }

    #[test]
    fn a_group_may_open_its_socket_whatever_the_mask_leaves() {
        let directory = Directory::new("group");
        let path = directory.0.join("below").join("read.sock");
        // As every process starts: the mask takes the right to write from the group.
        let socket = Socket::open(&path, Audience::Group, false).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o660, 0o750));
        drop(socket);
    }

    #[test]
    fn only_a_takeover_takes_the_socket_of_a_living_gate() {
        let directory = Directory::new("living");
        let path = directory.0.join("admin.sock");
        let old = Socket::open(&path, Audience::Owner, false).unwrap();
        assert!(matches!(Socket::open(&path, Audience::Owner, false), Err(Error::Taken { .. })));
        let new = Socket::open(&path, Audience::Owner, true).unwrap();
        drop(old);
        assert_eq!(directory.names(), ["admin.sock"]);
        assert!(UnixStream::connect(&path).is_ok());
        drop(new);
        assert!(directory.names().is_empty());
    }

    #[test]
    fn sockets_of_dead_gates_are_replaced_and_other_files_are_not() {
        let directory = Directory::new("dead");
        let path = directory.0.join("admin.sock");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists() && UnixStream::connect(&path).is_err());
        drop(Socket::open(&path, Audience::Owner, false).unwrap());
        fs::write(&path, "precious").unwrap();
        assert!(matches!(Socket::open(&path, Audience::Owner, true), Err(Error::NotASocket { .. })));
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn only_the_socket_of_a_dead_gate_is_removed() {
        let directory = Directory::new("removed");
        let dead = directory.0.join("dead");
        let living = directory.0.join("living");
        let file = directory.0.join("file");
        drop(UnixListener::bind(&dead).unwrap());
        let _living = UnixListener::bind(&living).unwrap();
        fs::write(&file, "precious").unwrap();
        [&dead, &living, &file].into_iter().for_each(|path| remove_dead(path));
        assert_eq!((dead.exists(), living.exists(), file.exists()), (false, true, true));
    }

    #[test]
    fn a_path_that_is_too_long_is_refused_and_leaves_nothing() {
        let directory = Directory::new("long");
        let path = directory.0.join("x".repeat(120));
        assert!(matches!(Socket::open(&path, Audience::Owner, false), Err(Error::System { .. })));
        assert!(directory.names().is_empty());
    }
}
