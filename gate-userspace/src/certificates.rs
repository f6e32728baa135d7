//! Certificates and keys in the files that a configuration names. Nothing here prints a key.

use std::path::Path;
use std::sync::Arc;

use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

use crate::config::{Fault, Fleet, NamedFile, PeerTls};
use crate::fleet::owner::is_for;

/// The files of a peer that shows a certificate and wants to see one, read: for connections that it makes, and for those that
/// it accepts. Both speak HTTP/2.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// For connections to others, whose certificates must be for the host that is asked for.
    pub client: ClientTlsConfig,
    /// For connections from others: TLS 1.3, and each connection shows its certificate anew.
    pub server: Arc<ServerConfig>,
}

impl Credentials {
    /// Reads and checks the files.
    ///
    /// # Errors
    ///
    /// The fault of a file, with the remedy.
    pub fn read(tls: &PeerTls) -> Result<Self, Fault> {
        let ca = bytes(&tls.ca)?;
        let certificate = bytes(&tls.certificate)?;
        let key = bytes(&tls.key)?;
        let provider = Arc::new(default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots(&tls.ca)?), provider);
        let verifier = verifier.build().map_err(|error| tls.ca.fault(error.to_string()))?;
        let builder = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| tls.ca.fault(error.to_string()))?;
        let server = builder
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain(&tls.certificate)?, private_key(&tls.key)?);
        let mut server = server.map_err(|error| unusable(&error, &tls.certificate, &tls.key))?;
        server.alpn_protocols = vec![b"h2".to_vec()];
        // A session that is resumed would be believed although its certificate has expired.
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        let client = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(ca))
            .identity(Identity::from_pem(certificate, key));
        Ok(Self { client, server: Arc::new(server) })
    }

    /// Those of a gate that shares limits, if it shows any. They must be for the name that it says.
    #[must_use]
    pub fn of_gate(fleet: &Fleet) -> Option<Result<Self, Fault>> {
        let tls = fleet.tls.as_ref()?;
        let name = fleet.name.as_deref();
        Some(Self::read(tls).and_then(|credentials| {
            let own = chain(&tls.certificate)?;
            match name.filter(|name| !own.first().is_some_and(|own| is_for(own, name))) {
                Some(name) => Err(tls.certificate.fault(format!(
                    "begins with a certificate that is not for {name:?}, the name of [fleet]"
                ))),
                None => Ok(credentials),
            }
        }))
    }
}

/// The certificates of a PEM file; at least one.
pub(crate) fn chain(file: &NamedFile) -> Result<Vec<CertificateDer<'static>>, Fault> {
    let read = CertificateDer::pem_file_iter(&file.path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(certificates) if certificates.is_empty() => Err(file.fault(NO_CERTIFICATE.to_owned())),
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(unreadable(file, error)),
    }
}

/// The first key of a PEM file.
pub(crate) fn private_key(file: &NamedFile) -> Result<PrivateKeyDer<'static>, Fault> {
    PrivateKeyDer::from_pem_file(&file.path).map_err(|error| match error {
        PemError::NoItemsFound => file.fault(NO_KEY.to_owned()),
        error => unreadable(file, error),
    })
}

/// The certificates of a PEM file, as those of authorities.
pub(crate) fn roots(file: &NamedFile) -> Result<RootCertStore, Fault> {
    let mut roots = RootCertStore::empty();
    for certificate in chain(file)? {
        let added = roots.add(certificate);
        added.map_err(|error| {
            file.fault(format!("holds a certificate that no other can be checked with: {error}"))
        })?;
    }
    Ok(roots)
}

/// The fault of a certificate and a key that rustls does not take.
pub(crate) fn unusable(error: &rustls::Error, certificate: &NamedFile, key: &NamedFile) -> Fault {
    match error {
        rustls::Error::InconsistentKeys(_) => key.fault(OTHER_KEY.to_owned()),
        rustls::Error::InvalidCertificate(why) => {
            certificate.fault(format!("begins with a certificate that cannot be used: {why:?}"))
        }
        error => key.fault(format!("holds a key that cannot be used: {error}")),
    }
}

fn bytes(file: &NamedFile) -> Result<Vec<u8>, Fault> {
    std::fs::read::<&Path>(&file.path).map_err(|error| unreadable(file, PemError::Io(error)))
}

fn unreadable(file: &NamedFile, error: PemError) -> Fault {
    file.fault(match error {
        PemError::Io(error) => format!("cannot be read by gate: {error}"),
        // A line of the file may be a part of a key.
        _ => "is no PEM file, or a damaged one".to_owned(),
    })
}

const NO_CERTIFICATE: &str = "holds no certificate; a PEM file has \"-----BEGIN CERTIFICATE-----\"";
const NO_KEY: &str =
    "holds no key; a PEM file has \"-----BEGIN PRIVATE KEY-----\", and the key may not be encrypted";
const OTHER_KEY: &str = "holds the key of another certificate than the first one in tls.certificate";
