//! Certificates that the openssl program makes, and a client that speaks TLS.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result, ensure};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::proxy::Listening;

/// An authority with a directory of its own, which ends with it.
#[derive(Debug)]
pub struct Authority {
    directory: PathBuf,
}

/// A certificate and its key.
#[derive(Clone, Debug)]
pub struct Issued {
    /// A PEM file with the certificate.
    pub certificate: PathBuf,
    /// A PEM file with the key.
    pub key: PathBuf,
}

impl Authority {
    /// A new one.
    ///
    /// # Errors
    ///
    /// If there is no openssl.
    pub fn new() -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("gate-tls-{}-{number}", std::process::id()));
        std::fs::create_dir(&directory)?;
        let this = Self { directory };
        let is_ca = ["-addext", "basicConstraints=critical,CA:TRUE", "-days", "30"];
        this.openssl(&[&["req", "-x509", "-out", "ca.pem", "-keyout", "ca.key"], NEW_KEY, &is_ca].concat())?;
        Ok(this)
    }

    /// Its own certificate.
    #[must_use]
    pub fn ca(&self) -> PathBuf {
        self.directory.join("ca.pem")
    }

    /// A certificate for a name like `DNS:cache.example` or `IP:127.0.0.1`, which is valid for so many days from now on; of
    /// a negative number it has expired.
    ///
    /// # Errors
    ///
    /// The program's.
    pub fn issue(&self, file: &str, name: &str, days: i32) -> Result<Issued> {
        self.issue_with(NEW_KEY, file, name, days)
    }

    /// The same with an RSA key, whose signatures take much longer.
    ///
    /// # Errors
    ///
    /// The program's.
    pub fn issue_rsa(&self, file: &str, name: &str, days: i32) -> Result<Issued> {
        self.issue_with(NEW_RSA_KEY, file, name, days)
    }

    fn issue_with(&self, new_key: &[&str], file: &str, name: &str, days: i32) -> Result<Issued> {
        let [certificate, key, request] = ["pem", "key", "csr"].map(|kind| format!("{file}.{kind}"));
        let name = format!("subjectAltName={name}");
        self.openssl(
            &[&["req", "-new", "-out", &request, "-keyout", &key, "-addext", &name], new_key].concat(),
        )?;
        let days = days.to_string();
        let by = ["-CA", "ca.pem", "-CAkey", "ca.key", "-copy_extensions", "copyall", "-days", &days];
        self.openssl(&[&["x509", "-req", "-in", &request, "-out", &certificate][..], &by].concat())?;
        Ok(Issued { certificate: self.directory.join(certificate), key: self.directory.join(key) })
    }

    fn openssl(&self, arguments: &[&str]) -> Result<()> {
        let output = Command::new("openssl").args(arguments).current_dir(&self.directory).output()?;
        ensure!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        // It lies in the directory for temporary files.
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

impl Issued {
    /// The certificate itself.
    ///
    /// # Errors
    ///
    /// If it cannot be read.
    pub fn der(&self) -> Result<CertificateDer<'static>> {
        CertificateDer::from_pem_file(&self.certificate).context("no certificate")
    }
}

/// A client that speaks TLS, and trusts one authority.
#[derive(Debug)]
pub struct TlsClient(StreamOwned<ClientConnection, TcpStream>);

impl Read for TlsClient {
    fn read(&mut self, piece: &mut [u8]) -> io::Result<usize> {
        self.0.read(piece)
    }
}

impl Write for TlsClient {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl TlsClient {
    /// One from `source` that expects a certificate for this name. The handshake comes with what is sent first.
    ///
    /// # Errors
    ///
    /// If it is refused.
    pub fn connect(gate: &Listening, source: Ipv4Addr, ca: &Path, name: &str) -> Result<Self> {
        Self::over(gate.connect_from(source)?, ca, name)
    }

    /// The same over this connection.
    ///
    /// # Errors
    ///
    /// If there is no such authority.
    pub fn over(stream: TcpStream, ca: &Path, name: &str) -> Result<Self> {
        Ok(Self(StreamOwned::new(Self::begin(ca, name)?, stream)))
    }

    /// The bytes that such a client says first.
    ///
    /// # Errors
    ///
    /// As [`TlsClient::over`].
    pub fn hello(ca: &Path, name: &str) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        Self::begin(ca, name)?.write_tls(&mut bytes)?;
        Ok(bytes)
    }

    fn begin(ca: &Path, name: &str) -> Result<ClientConnection> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(ca)?)?;
        let provider = rustls::crypto::ring::default_provider();
        let config =
            ClientConfig::builder_with_provider(Arc::new(provider)).with_safe_default_protocol_versions()?;
        let config = config.with_root_certificates(roots).with_no_client_auth();
        Ok(ClientConnection::new(Arc::new(config), ServerName::try_from(name.to_owned())?)?)
    }

    /// Sends `request`.
    ///
    /// # Errors
    ///
    /// If the connection has ended.
    pub fn send(&mut self, request: &[u8]) -> Result<()> {
        self.0.write_all(request)?;
        Ok(self.0.flush()?)
    }

    /// Everything up to and with `end`.
    ///
    /// # Errors
    ///
    /// If the connection ends or falls silent before.
    pub fn read_until(&mut self, end: &[u8]) -> Result<Vec<u8>> {
        let mut said = Vec::new();
        let mut piece = vec![0; 1 << 16];
        while !said.ends_with(end) {
            let len = self.0.read(&mut piece)?;
            ensure!(len > 0, "closed after {} bytes", said.len());
            said.extend_from_slice(&piece[..len]);
        }
        Ok(said)
    }

    /// The reply to `request`, up to `end`.
    ///
    /// # Errors
    ///
    /// As [`TlsClient::read_until`].
    pub fn ask(&mut self, request: &[u8], end: &[u8]) -> Result<Vec<u8>> {
        self.send(request)?;
        self.read_until(end)
    }

    /// The certificate that gate has shown.
    #[must_use]
    pub fn shown(&self) -> Option<CertificateDer<'static>> {
        self.0.conn.peer_certificates()?.first().cloned().map(CertificateDer::into_owned)
    }

    /// Its connection.
    pub fn stream(&mut self) -> &mut TcpStream {
        &mut self.0.sock
    }
}

const NEW_RSA_KEY: &[&str] = &["-newkey", "rsa:3072", "-nodes", "-subj", "/CN=gate-test"];
const NEW_KEY: &[&str] =
    &["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=gate-test"];
