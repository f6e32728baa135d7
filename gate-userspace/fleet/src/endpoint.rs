//! Where an owner is, and how it is spoken to.

use tonic::transport::{ClientTlsConfig, Endpoint, Error};

/// An owner at this host and port; in plain text without `tls`.
///
/// # Errors
///
/// If the address or the certificates are none.
pub(super) fn endpoint(address: &str, tls: Option<ClientTlsConfig>) -> Result<Endpoint, Error> {
    match tls {
        None => Endpoint::from_shared(format!("http://{address}")),
        Some(tls) => Endpoint::from_shared(format!("https://{address}"))?.tls_config(tls),
    }
}
