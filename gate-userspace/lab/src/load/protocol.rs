//! How requests are written, and how they get to the service.

/// How requests get to the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// One request in a datagram.
    Udp,
    /// Requests pipelined over the tenant's connections.
    Tcp,
}

/// How requests are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// memcached's text protocol.
    #[default]
    Memcached,
    /// Redis' protocol.
    Resp,
    /// HTTP/1.1: a key is a path.
    Http,
}
