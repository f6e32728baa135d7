//! Where etcd is, and how it is spoken to.

use tokio::sync::watch;
use tonic::transport::ClientTlsConfig;

/// The members of one cluster, and how they are spoken to.
#[derive(Clone, Debug)]
pub struct Members {
    /// URLs of members of one cluster; at least one.
    pub(super) urls: Vec<String>,
    /// For connections from now on; `None` for plain text.
    pub(super) tls: watch::Receiver<Option<ClientTlsConfig>>,
}

impl Members {
    /// The members at these URLs. With `tls` one is asked whose URL is `https`.
    #[must_use]
    pub const fn new(urls: Vec<String>, tls: watch::Receiver<Option<ClientTlsConfig>>) -> Self {
        Self { urls, tls }
    }

    /// As [`Members::new`], with certificates that stay.
    #[must_use]
    pub fn fixed(urls: Vec<String>, tls: Option<ClientTlsConfig>) -> Self {
        Self::new(urls, watch::channel(tls).1)
    }
}
