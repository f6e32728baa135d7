//! TLS: what a proxied service shows its clients, what it wants to see of its store, and what gates and owners of limits show
//! each other.

use std::net::IpAddr;
use std::path::PathBuf;

use super::fault::Fault;
use super::parsers::absolute_path;
use super::raw::Section;
use super::store_address::is_host;
use super::units::Wrong;

/// The certificate that a service shows its clients. The files are read at the start and at each reload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// A PEM file with the service's certificate and those that lead from it to one that clients trust, in this order.
    pub certificate: NamedFile,
    /// A PEM file with its key, not encrypted.
    pub key: NamedFile,
}

/// The certificate that a store has to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendTls {
    /// A PEM file with the certificates that are trusted; the store's own is issued by one of them.
    pub ca: NamedFile,
    /// The host name or address that the store's certificate is for; `None` if it is that of `backend`.
    pub name: Option<String>,
}

/// The certificates that gates and owners of limits show each other. The files are read at the start and at each reload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerTls {
    /// A PEM file with the certificates that are trusted; the peer's own is issued by one of them.
    pub ca: NamedFile,
    /// A PEM file with the own certificate and those that lead from it to one that peers trust, in this order.
    pub certificate: NamedFile,
    /// A PEM file with its key, not encrypted.
    pub key: NamedFile,
}

/// A file that the configuration names, and where it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedFile {
    /// An absolute path.
    pub path: PathBuf,
    line: usize,
    key: String,
}

impl NamedFile {
    /// A file that an argument of the command line names.
    #[must_use]
    pub fn of_argument(path: PathBuf, argument: &str) -> Self {
        Self { path, line: 0, key: argument.to_owned() }
    }

    /// A fault of what the file holds.
    #[must_use]
    pub fn fault(&self, message: String) -> Fault {
        Fault { line: self.line, path: self.key.clone(), value: Some(format!("{:?}", self.path)), message }
    }
}

/// Reads `tls`, if it is there.
pub(super) fn tls(section: &mut Section<'_>) -> Option<Tls> {
    let is_there = section.has_table("tls");
    let mut s = section.section("tls");
    let tls = is_there.then(|| {
        let certificate = file(&mut s, "certificate", "\"/etc/gate/cache.pem\"");
        let key = file(&mut s, "key", "\"/etc/gate/cache.key\"");
        Some(Tls { certificate: certificate?, key: key? })
    });
    s.finish();
    tls.flatten()
}

/// Reads `backend_tls`, if it is there.
pub(super) fn backend_tls(section: &mut Section<'_>) -> Option<BackendTls> {
    let is_there = section.has_table("backend_tls");
    let mut s = section.section("backend_tls");
    let tls = is_there.then(|| {
        let ca = file(&mut s, "ca", "\"/etc/gate/store-ca.pem\"");
        let name = s.get("name", server_name);
        Some(BackendTls { ca: ca?, name })
    });
    s.finish();
    tls.flatten()
}

/// Reads `tls` of gates or owners of limits, if it is there.
pub(super) fn peer_tls(section: &mut Section<'_>) -> Option<PeerTls> {
    let is_there = section.has_table("tls");
    let mut s = section.section("tls");
    let tls = is_there.then(|| {
        let ca = file(&mut s, "ca", "\"/etc/gate/fleet-ca.pem\"");
        let certificate = file(&mut s, "certificate", "\"/etc/gate/fleet.pem\"");
        let key = file(&mut s, "key", "\"/etc/gate/fleet.key\"");
        Some(PeerTls { ca: ca?, certificate: certificate?, key: key? })
    });
    s.finish();
    tls.flatten()
}

fn file<'d>(section: &mut Section<'d>, key: &'d str, example: &str) -> Option<NamedFile> {
    let path = section.need(key, example, absolute_path)?;
    let (line, key) = section.place_of(key);
    Some(NamedFile { path, line, key })
}

/// The file that `key` names, or `default`.
pub(super) fn file_or(section: &mut Section<'_>, key: &'static str, default: &str) -> Option<NamedFile> {
    let is_said = section.has(key);
    let said = section.get(key, absolute_path);
    let path = if is_said { said? } else { default.into() };
    let (line, key) = section.place_of(key);
    Some(NamedFile { path, line, key })
}

/// A name that a certificate may be for.
fn server_name(text: &str) -> Result<String, Wrong> {
    if text.parse::<IpAddr>().is_ok() || is_host(text) {
        return Ok(text.to_owned());
    }
    Err("must be a host name or an address, e.g. \"cache.example\"".to_owned())
}
