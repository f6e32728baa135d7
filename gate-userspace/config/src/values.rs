//! Values of single keys that are more than a number.

use std::path::PathBuf;
use std::str::FromStr;

use serde::Serialize;

/// Where the admin socket is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminSocket {
    /// Below `/run/gate`, if it can be made there.
    Default,
    /// There: an absolute path.
    At(PathBuf),
    /// Nowhere.
    Off,
}

/// The place of a tenant in [`Config::tenants`](super::Config::tenants). Always within.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TenantIndex(pub(super) usize);

impl TenantIndex {
    /// As an index into [`Config::tenants`](super::Config::tenants).
    #[must_use]
    pub const fn get(self) -> usize {
        self.0
    }
}

/// The transports of a service that are protected; at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transports {
    /// Datagrams are priced as requests.
    pub udp: bool,
    /// Segments are charged by their bytes, or by [`TcpPrice`].
    pub tcp: bool,
}

/// The unit of the price of TCP towards a service without a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TcpPrice {
    /// As one request, and by its bytes.
    Bytes,
    /// By memcached's commands in it.
    Lines,
}

/// How the requests of a service are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// The text protocol of memcached, over TCP and UDP.
    Memcached,
    /// The protocol of Redis, over TCP.
    Resp,
    /// HTTP/1.1 and HTTP/2 without TLS. Only proxied.
    Http,
    /// Unread: a datagram or segment costs its base and its bytes.
    Opaque,
}

/// How the XDP program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum XdpMode {
    /// In the driver if it can, else in the kernel's generic path, with a word about it.
    Auto,
    /// In the driver or not at all.
    Native,
    /// In the kernel's generic path.
    Generic,
    /// Not attached: proxied services are protected in user space only.
    Off,
}

/// Enforcement or shadow mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// They do.
    Enforce,
    /// They are decided and counted, and nothing is refused.
    Shadow,
}

impl Mode {
    /// Both, as they are written.
    pub(super) const WRITTEN: [(&str, Self); 2] = [("enforce", Self::Enforce), ("shadow", Self::Shadow)];
}

/// The algorithm of a tenant's refusals. The local bucket stays on under every algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Algorithm {
    /// The bucket alone.
    TokenBucket,
    /// A share of requests, computed each tick from what was offered.
    RejectionRate,
}

/// XDP's behaviour while the heartbeat is stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnStale {
    /// Pushed refusals no longer hold; the bucket does.
    Bucket,
    /// Everything passes.
    Pass,
}

/// The metrics of a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TenantMetrics {
    /// Its own once it has requests, while there is room; else part of those of `other`.
    Auto,
    /// Its own.
    On,
}

/// The action on IP fragments of protected services.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fragments {
    /// The first is judged by what it shows; later ones pass.
    Judge,
    /// All go on to the kernel.
    Pass,
    /// All are dropped.
    Drop,
}

/// The action on a packet that cannot be charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// The packet goes on to the kernel.
    Pass,
    /// The packet is dropped.
    Drop,
}

/// The name of a network interface: 1 to 15 bytes, none of them a slash, a colon or blank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceName(String);

impl InterfaceName {
    /// As it is written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// An interface of the configuration, and the line that names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedInterface {
    /// Its name.
    pub name: InterfaceName,
    /// From 1.
    pub line: usize,
}

impl FromStr for InterfaceName {
    type Err = String;

    /// Says what would be right, as the kernel's `dev_valid_name` has it.
    fn from_str(name: &str) -> Result<Self, String> {
        let plain = |c: char| !c.is_whitespace() && !c.is_control() && !matches!(c, '/' | ':');
        if (1..=15).contains(&name.len()) && name.chars().all(plain) && !matches!(name, "." | "..") {
            return Ok(Self(name.to_owned()));
        }
        Err("must be the name of an interface, up to 15 bytes, e.g. \"eth1\"".to_owned())
    }
}

/// The members of a tenant, each of which has its quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Members {
    /// The names of members.
    pub named_by: NamedBy,
    /// The most memory that their buckets may take, in bytes; 64 KiB to 16 GiB.
    pub memory: u64,
}

/// The names of a tenant's members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamedBy {
    /// The value of `tenant_header` over HTTP, the user of a Redis: whatever no other tenant names.
    Id,
    /// The client's network, by the length of its prefix; `None` for a family that is not the tenant's.
    Source {
        /// 1 to 32.
        v4: Option<u8>,
        /// 33 to 128.
        v6: Option<u8>,
    },
}
