//! The identity of a client at the store: user, database and protocol version, and the proof of it.
//!
//! **Secrets.** A password is kept by the clients that have proved it and by their pool, which needs it to connect
//! again. It is in no output for people, and is overwritten when it is no longer needed.
//!
//! [`scopes`]: the clients that may have the same answer.

use std::fmt;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use sha2::{Digest as _, Sha256};

use crate::config::StoreLogin;
use crate::protocol::resp::{Change, Version};

pub(super) mod rights;
pub(super) mod scopes;

/// The identity of a client at the store. The default is that of a new connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Identity {
    /// `None` for a client that has not logged in.
    pub(crate) login: Option<Rc<Login>>,
    pub(crate) database: u32,
    pub(crate) version: Version,
    /// The name of its dedicated connections.
    pub(crate) name: Option<Rc<[u8]>>,
}

/// A user and its password.
#[derive(Debug)]
pub(crate) struct Login {
    user: Option<Box<[u8]>>,
    password: Secret,
}

/// Bytes that nobody is to see.
pub(crate) struct Secret(Vec<u8>);

/// The changes that a client asks for; a field that is `None` stays.
#[derive(Debug)]
pub(crate) struct LoginRequest {
    pub(crate) login: Option<Rc<Login>>,
    pub(crate) reset: bool,
    database: Option<u32>,
    version: Option<Version>,
    name: Option<Rc<[u8]>>,
}

/// The first requests on a new connection.
#[derive(Debug, Default)]
pub(crate) struct Handshake {
    pub(crate) bytes: Secret,
    /// Requests in it, the last of which may be refused, if [`Handshake::named`].
    pub(crate) requests: usize,
    pub(crate) named: bool,
}

/// The service's password cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {}: {source}", path.display())]
pub(crate) struct UnreadablePassword {
    /// The file that should hold it.
    path: PathBuf,
    source: std::io::Error,
}

impl Identity {
    /// True if the client speaks the third version of the protocol.
    pub(crate) fn is_resp3(&self) -> bool {
        self.version == Version::Three
    }

    /// True if connections of the one may serve the other.
    pub(crate) fn shares_with(&self, other: &Self) -> bool {
        let user = |identity: &Self| identity.login.clone().map(|login| login.user().to_vec());
        (self.database, self.version) == (other.database, other.version) && user(self) == user(other)
    }

    /// True if a connection of the one is a connection of the other, name and password included.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let is_same_login = match (&self.login, &other.login) {
            (None, None) => true,
            (Some(one), Some(other)) => {
                Rc::ptr_eq(one, other) || one.user() == other.user() && one.password() == other.password()
            }
            _ => false,
        };
        is_same_login
            && (self.database, self.version, &self.name) == (other.database, other.version, &other.name)
    }

    /// A hash that differs for every other identity, the password included. The seed keeps others from looking it up.
    pub(crate) fn digest(&self, seed: u64) -> [u8; 32] {
        let mut hash = Sha256::new();
        hash.update(seed.to_ne_bytes());
        hash.update(self.database.to_ne_bytes());
        hash.update([u8::from(self.version == Version::Three), u8::from(self.login.is_some())]);
        if let Some(login) = &self.login {
            hash.update(login.user().len().to_ne_bytes());
            hash.update(login.user());
            hash.update(login.password());
        }
        hash.finalize().into()
    }

    /// The identity after the store has agreed to a change.
    pub(crate) fn after(&self, login_request: &LoginRequest) -> Self {
        let Self { login, database, version, name } =
            if login_request.reset { Self::default() } else { self.clone() };
        Self {
            login: login_request.login.clone().or(login),
            database: login_request.database.unwrap_or(database),
            version: login_request.version.unwrap_or(version),
            name: login_request.name.clone().or(name),
        }
    }

    /// The requests that give a new connection this identity. `service` is the login of clients that have not logged
    /// in.
    ///
    /// # Errors
    ///
    /// If the service's password cannot be read.
    pub(crate) fn greeting(&self, service: Option<&StoreLogin>) -> Result<Handshake, UnreadablePassword> {
        self.greeting_in(service, false)
    }

    /// As [`Identity::greeting`], but the database is selected before the login: for a user who may not select one, and whose
    /// client did so before it logged in.
    ///
    /// # Errors
    ///
    /// As [`Identity::greeting`].
    pub(crate) fn greeting_from_database(
        &self,
        service: Option<&StoreLogin>,
    ) -> Result<Handshake, UnreadablePassword> {
        self.greeting_in(service, true)
    }

    fn greeting_in(
        &self,
        service: Option<&StoreLogin>,
        database_first: bool,
    ) -> Result<Handshake, UnreadablePassword> {
        let mut greeting = Handshake::default();
        let database = self.database.to_string();
        let select = |greeting: &mut Handshake| greeting.push(&[b"SELECT", database.as_bytes()]);
        if database_first {
            select(&mut greeting);
        }
        match (&self.login, service) {
            (Some(login), _) => login.write(&mut greeting),
            (None, Some(service)) => Login::read(service)?.write(&mut greeting),
            (None, None) => {}
        }
        if self.version == Version::Three {
            greeting.push(&[b"HELLO", b"3"]);
        }
        if self.database != 0 && !database_first {
            select(&mut greeting);
        }
        if let Some(name) = &self.name {
            greeting.push(&[b"CLIENT", b"SETNAME", name]);
            greeting.named = true;
        }
        Ok(greeting)
    }

    /// Asks the store what its user may do.
    pub(crate) fn acl_query(&self, service: Option<&StoreLogin>) -> Secret {
        let named =
            service.and_then(|service| service.store_user.as_deref()).map_or(DEFAULT_USER, str::as_bytes);
        let user = self.login.as_deref().map_or(named, Login::user);
        let mut greeting = Handshake::default();
        greeting.push(&[b"ACL", b"GETUSER", user]);
        greeting.bytes
    }
}

impl Login {
    /// The user's name.
    pub(crate) fn user(&self) -> &[u8] {
        self.user.as_deref().unwrap_or(DEFAULT_USER)
    }

    /// Its password.
    pub(crate) fn password(&self) -> &[u8] {
        &self.password.0
    }

    /// The service's own.
    fn read(service: &StoreLogin) -> Result<Self, UnreadablePassword> {
        let path = &service.store_password_file;
        let unreadable = |source| UnreadablePassword { path: path.clone(), source };
        let mut password = Secret(std::fs::read(path).map_err(unreadable)?);
        let end =
            password.0.iter().rposition(|byte| !matches!(byte, b'\r' | b'\n')).map_or(0, |last| last + 1);
        password.0.truncate(end);
        Ok(Self { user: service.store_user.as_deref().map(|user| user.as_bytes().into()), password })
    }

    /// Writes it in the form in which the client sent it: stores without users know `AUTH` with a password alone.
    fn write(&self, greeting: &mut Handshake) {
        match &self.user {
            Some(user) => greeting.push(&[b"AUTH", user, &self.password.0]),
            None => greeting.push(&[b"AUTH", &self.password.0]),
        }
    }
}

/// The first `set` of a new connection, which logs it in to memcached. The key has no meaning; a value that is stored
/// by mistake has expired.
///
/// # Errors
///
/// If the password cannot be read, or has a blank, at which memcached would end it.
pub(crate) fn memcached_login(service: &StoreLogin) -> Result<Secret, UnreadablePassword> {
    let login = Login::read(service)?;
    if !login.password().iter().all(u8::is_ascii_graphic) || login.password().is_empty() {
        let source = std::io::Error::new(std::io::ErrorKind::InvalidData, "it is empty, or has a blank");
        return Err(UnreadablePassword { path: service.store_password_file.clone(), source });
    }
    let user = login.user();
    let password = login.password();
    let mut bytes = Secret::default();
    let out = &mut bytes.0;
    out.extend_from_slice(format!("set gate 0 -1 {}\r\n", user.len() + 1 + password.len()).as_bytes());
    for piece in [user, b" ", password, b"\r\n"] {
        out.extend_from_slice(piece);
    }
    Ok(bytes)
}

impl LoginRequest {
    /// The parts of a request for a change that outlive its buffer.
    pub(crate) fn of(change: &Change<'_>) -> Self {
        let login = change.login.map(|(user, password)| {
            Rc::new(Login { user: user.map(Into::into), password: Secret(password.to_vec()) })
        });
        let Change { database, version, reset, .. } = *change;
        Self { login, database, version, reset, name: change.name.map(Into::into) }
    }

    /// True if the request is a `HELLO`, to which the store tells of itself.
    pub(crate) fn is_hello(&self) -> bool {
        let Self { login, reset, database, version, name } = self;
        let is_empty = login.is_none() && !reset && database.is_none() && name.is_none();
        version.is_some() || is_empty
    }

    /// True if another user may be the result.
    pub(crate) fn names_user(&self) -> bool {
        self.login.is_some() || self.reset
    }

    /// True if nothing but the user is to change.
    pub(crate) fn is_login_only(&self) -> bool {
        self.database.is_none() && self.version.is_none() && self.name.is_none() && !self.reset
    }
}

impl Handshake {
    fn push(&mut self, arguments: &[&[u8]]) {
        let out = &mut self.bytes.0;
        out.extend_from_slice(format!("*{}\r\n", arguments.len()).as_bytes());
        for argument in arguments {
            out.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
            out.extend_from_slice(argument);
            out.extend_from_slice(b"\r\n");
        }
        self.requests += 1;
    }
}

impl Secret {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Default for Secret {
    /// With room for any usual greeting: what grows leaves copies behind.
    fn default() -> Self {
        Self(Vec::with_capacity(512))
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.fill(0);
        // So that the compiler takes it for read.
        std::hint::black_box(&self.0);
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// Warns if others than its owner may read a file.
pub(crate) fn warn_if_readable(path: &Path) {
    if std::fs::metadata(path).is_ok_and(|file| file.permissions().mode() & 0o077 != 0) {
        tracing::warn!(path = %path.display(), "others may read this secret: chmod 600");
    }
}

const DEFAULT_USER: &[u8] = b"default";

#[cfg(test)]
impl Identity {
    /// This user, with this password.
    pub(crate) fn of(user: &str, password: &str) -> Self {
        let user = Some(user.as_bytes().into());
        let password = Secret::new(password.as_bytes());
        Self { login: Some(Rc::new(Login { user, password })), ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn login(user: Option<&str>, password: &str) -> Option<Rc<Login>> {
        let user = user.map(|user| user.as_bytes().into());
        Some(Rc::new(Login { user, password: Secret::new(password.as_bytes()) }))
    }

    fn sent(identity: &Identity) -> (String, usize) {
        let greeting = identity.greeting(None).unwrap();
        let words: Vec<_> = std::str::from_utf8(greeting.bytes.bytes()).unwrap().split("\r\n").collect();
        let words = words.into_iter().filter(|word| !word.is_empty() && !word.starts_with(['*', '$']));
        (words.collect::<Vec<_>>().join(" "), greeting.requests)
    }

    #[test]
    fn a_connection_is_set_up_as_its_client_would() {
        let mut identity = Identity::default();
        assert_eq!(sent(&identity), (String::new(), 0));
        identity.login = login(None, "secret");
        assert_eq!(sent(&identity), ("AUTH secret".to_owned(), 1));
        identity = Identity {
            login: login(Some("alice"), "secret"),
            database: 3,
            version: Version::Three,
            name: Some((*b"me").into()),
        };
        assert_eq!(sent(&identity), ("AUTH alice secret HELLO 3 SELECT 3 CLIENT SETNAME me".to_owned(), 4));
    }

    #[test]
    fn user_database_and_version_are_what_connections_share() {
        let alice = Identity { login: login(Some("alice"), "1"), ..Identity::default() };
        let renamed =
            Identity { login: login(Some("alice"), "2"), name: Some((*b"me").into()), ..Identity::default() };
        assert!(alice.shares_with(&renamed));
        for other in [
            Identity::default(),
            Identity { login: login(Some("bob"), "1"), ..Identity::default() },
            Identity { database: 1, ..alice.clone() },
            Identity { version: Version::Three, ..alice.clone() },
        ] {
            assert!(!alice.shares_with(&other), "{other:?}");
        }
        let by_name = Identity { login: login(Some("default"), "1"), ..Identity::default() };
        let by_password = Identity { login: login(None, "1"), ..Identity::default() };
        assert!(by_name.shares_with(&by_password) && !by_name.shares_with(&Identity::default()));
    }

    #[test]
    fn a_reset_forgets_everything_and_other_changes_nothing_else() {
        let nothing = Change::default();
        let identity = Identity { login: login(Some("alice"), "1"), ..Identity::default() };
        let identity = identity.after(&LoginRequest::of(&Change { database: Some(4), ..nothing }));
        let identity = identity.after(&LoginRequest::of(&Change {
            version: Some(Version::Three),
            name: Some(b"me"),
            ..nothing
        }));
        assert_eq!(sent(&identity).0, "AUTH alice 1 HELLO 3 SELECT 4 CLIENT SETNAME me");
        let bob: (Option<&[u8]>, &[u8]) = (Some(b"bob"), b"2");
        let bob = identity.after(&LoginRequest::of(&Change { login: Some(bob), ..nothing }));
        assert_eq!(sent(&bob).0, "AUTH bob 2 HELLO 3 SELECT 4 CLIENT SETNAME me");
        assert_eq!(sent(&bob.after(&LoginRequest::of(&Change { reset: true, ..nothing }))).1, 0);
    }

    #[test]
    fn a_password_is_in_no_output() {
        let identity = Identity { login: login(Some("alice"), "hunter2"), ..Identity::default() };
        let login_request =
            LoginRequest::of(&Change { login: Some((None, b"hunter2")), ..Change::default() });
        let bytes = format!("{:?}", b"hunter2");
        let printed = format!("{identity:?}{login_request:?}{:?}", identity.greeting(None).unwrap());
        assert!(
            !printed.contains("hunter2") && !printed.contains(bytes.trim_matches(['[', ']'])),
            "{printed}"
        );
    }
}
