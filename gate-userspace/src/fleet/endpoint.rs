//! Where an owner is, and how it is spoken to.

use std::error::Error as StdError;

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

/// An error and what has caused it, each said once.
pub(super) fn with_causes(error: &dyn StdError) -> String {
    let causes = std::iter::successors(Some(error), |error| (*error).source());
    causes.fold(String::new(), |said, cause| {
        let cause = cause.to_string();
        match said.as_str() {
            "" => cause,
            before if before.contains(&cause) => said,
            before => format!("{before}: {cause}"),
        }
    })
}
