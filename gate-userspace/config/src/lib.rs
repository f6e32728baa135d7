//! The configuration: TOML in, a valid [`Config`] out, or every fault with its line.
//!
//! [`Config::parse`] is the only way in, and it is pure. What it accepts needs no further checks:
//! every quantity has its unit in the type and is in range, every reference is an index that exists,
//! no two names, sources or addresses are the same. `docs/CONFIGURATION.md` lists every key.
//!
//! - `raw`: the document and the place of everything in it.
//! - `units`: quantities as they are written.
//! - `backend`, `admission`: what only proxied services say; `intercept`: those whose stores keep their address.
//! - `query_types`: the query types of a proxied service.
//! - `http`: what only services with that protocol say; `cache` that of their answers.
//! - `identity`: users, and what they may not do.
//! - `parts`: tenants by key; `members`: tenants by each value of a field, user or source.
//! - `price`: what requests cost, and how that learns.
//! - `limits`, `envoy`: named limits, and where Envoys ask for them.
//! - `tls`: certificates, towards clients and towards the store.
//! - `syn`: how many connections may be opened.
//! - `shedding`: how a service's store is watched, and what follows from it.
//! - `read`: section by section into the types below; `gate` the first of them.
//! - `buckets`, `frames`, `affordable`: limits from rates, and whether every request fits into them.
//! - `names`, `parsers`, `values`: names that sections refer to each other by; values of single keys.
//! - `file`, `text`, `error`: from a file to a configuration, or why not.
//! - `overrides`: values that stand in for the document's while gate runs.
//! - `fault`: what is wrong, where, and what would be right.

use std::net::SocketAddr;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;

use gate_common::abi::TcpAction;
use gate_common::token_bucket::Limits;
use gate_common::units::{Fraction, Multiplier, Nanos};
use ipnet::IpNet;

use gate_limits::Rules;
use gate_policy::Tier;
use gate_protocol::deny::Deny;

mod admission;
mod affordable;
mod backend;
mod buckets;
mod cache;
mod cache_warnings;
mod cluster;
mod defaults;
mod descriptors;
mod envoy;
mod error;
mod etcd;
mod fault;
mod file;
mod fleet;
mod frames;
mod gate;
mod http;
mod identity;
mod intercept;
mod limits;
mod members;
mod names;
mod overrides;
mod own_keys;
mod parsers;
mod parts;
mod pool;
mod price;
mod process;
mod query_types;
mod quota;
mod ratelimit;
mod raw;
mod read;
mod request_limits;
mod restart;
mod shedding;
mod store_address;
mod syn;
mod text;
mod tiers;
mod tls;
pub mod units;
mod values;
mod warnings;
mod whole_keys;

pub use admission::{Admission, AdmissionPolicy, Codel, Fairness, Objective, Parallelism, WaitLimits};
pub use backend::{Backend, HotKeys};
pub use cache::{Cache, Dedup};
pub use cluster::Cluster;
pub use defaults::{ChangedDefault, changed_defaults};
pub use envoy::{Envoy, EnvoyAddress};
pub use error::Error;
pub use etcd::endpoint as etcd_endpoint;
pub use fault::{Fault, Faults};
pub use fleet::Fleet;
pub use http::is_id;
pub use http::{AccessLog, Http};
pub use identity::{StoreLogin, User};
pub use intercept::Intercept;
pub use limits::short_limits;
pub use overrides::{Override, Wrong, edit, section_of, value_at};
pub use parsers::prefix;
pub use pool::{Pool, PoolNode};
pub use price::{Learn, Price, Settle};
pub use process::{Origin, Process, ProcessPath, Processor, is_spec, parse_address};
pub use quota::{LIFTS_ALL, LimitsDocument, LimitsIn, QuotaConfig, parse_limits};
pub use ratelimit::{Imported, Note as RatelimitNote, import_ratelimit};
pub use request_limits::{LimitOf, LimitUnit, RequestLimit};
pub use shedding::{Probe, Shedding};
pub use store_address::{NetworkAddress, SocketPath, StoreAddress};
pub use text::read_text;
pub use tls::{BackendTls, NamedFile, PeerTls, Tls};
pub use values::{
    Action, AdminSocket, Algorithm, Fragments, InterfaceName, ListedInterface, Members, Mode, NamedBy,
    OnStale, Protocol, TcpPrice, TenantIndex, TenantMetrics, Transports, XdpMode,
};
pub use whole_keys::WholeKeys;

/// A configuration that holds together.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The settings for all services.
    pub gate: Gate,
    /// The services; at least one, with distinct names and addresses.
    pub services: Vec<Service>,
    /// The tenants; at least one, with distinct names and sources.
    pub tenants: Vec<Tenant>,
    /// The named limits.
    pub limits: Rules,
    /// The server that Envoys ask; `None` if there is none.
    pub envoy: Option<Envoy>,
    /// The owners of limits that it shares with other gates; `None` if it shares none.
    pub fleet: Option<Fleet>,
}

/// The settings for all services.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gate {
    /// Where the XDP program is attached: at most [`Control::INTERFACES`], distinct. None if the command line must say it.
    ///
    /// [`Control::INTERFACES`]: gate_common::abi::Control::INTERFACES
    pub interfaces: Vec<ListedInterface>,
    /// How the XDP program is attached.
    pub xdp: XdpMode,
    /// Enforcement or shadow mode.
    pub mode: Mode,
    /// The share of sources, by hash, for which refusals happen.
    pub enforce: Fraction,
    /// How often the daemon decides; 10 ms to 10 s.
    pub tick: Nanos,
    /// The algorithm of a tenant's refusals.
    pub algorithm: Algorithm,
    /// The behaviour while the heartbeat is stale.
    pub on_stale: OnStale,
    /// How old the heartbeat may be; 100 ms to 60 s, at least two ticks.
    pub stale_after: Nanos,
    /// One request in so many gives a key sample; up to 65,536.
    pub sample: NonZeroU32,
    /// The action on the TCP segments of a tenant that is deep in debt.
    pub tcp_in_debt: TcpAction,
    /// How long its quota would take to pay for that, beyond its burst; 1 s to 1 h.
    pub deep_debt: Nanos,
    /// The action on IP fragments of protected services.
    pub fragments: Fragments,
    /// The bit of the kernel's mark that charged datagrams to proxied services get; none if zero.
    pub charged_mark: u32,
    /// The most memory that the prefix tables may take, in bytes; 1 MiB to 16 GiB.
    pub prefix_memory: u64,
    /// The most memory that the tenants' counters may take, in bytes; 1 MiB to 16 GiB.
    pub counter_memory: u64,
    /// Where maps and link are pinned: an absolute path.
    pub pin_dir: PathBuf,
    /// The path of the admin socket.
    pub admin: AdminSocket,
    /// The path of a second one, which its group may open and which accepts no changes.
    pub admin_read: Option<PathBuf>,
    /// The TCP port that shows documents; `None` if there is none.
    pub admin_http: Option<SocketAddr>,
    /// The names by which its clients may call this host.
    pub admin_hosts: Vec<String>,
    /// The file with the token that shows keys there.
    pub admin_token_file: Option<PathBuf>,
    /// The most tenants that have metrics of their own; 0 to 10,000.
    pub metrics_tenants: usize,
    /// How long a gate that another has taken over from serves clients that stay; at most 24 h.
    pub drain: Nanos,
    /// Threads that serve proxied services; `None` for one on each CPU. At most 256.
    pub threads: Option<NonZeroUsize>,
}

/// An address, port and protocol that is protected: where it stands, or by standing before it.
#[derive(Clone, Debug, PartialEq)]
pub struct Service {
    /// Distinct among services; at most [`gate_common::abi::Name::MAX`] bytes.
    pub name: String,
    /// How its requests are read.
    pub protocol: Protocol,
    /// Where it listens, at least one address; `0.0.0.0` and `[::]` both stand for every address. No
    /// port is 0, and no two services share an address on one transport.
    pub listen: Vec<SocketAddr>,
    /// Which of its transports are protected.
    pub transports: Transports,
    /// The tenant that sources are charged to that no tenant names; `None` leaves them unknown.
    pub default: Option<TenantIndex>,
    /// The action on the SYN of an unknown source.
    pub unknown_syn: Action,
    /// The connection attempts of unknown sources, where they pass, in thousandths.
    pub unknown_syn_rate: Limits,
    /// The price of its requests.
    pub price: Price,
    /// How many datagrams a second may ask for one key, in thousandths, and how many at once; only for memcached over UDP
    /// without a backend.
    pub hot_key_limit: Option<Limits>,
    /// The unit of its price for TCP; lines only for memcached without a backend.
    pub tcp_price: TcpPrice,
    /// The store that its requests are passed on to; `None` for a service that is guarded where it stands.
    pub backend: Option<Backend>,
    /// How its connections are intercepted; `None` if the store listens elsewhere, or the service is guarded where it stands.
    pub intercept: Option<Intercept>,
    /// How it is asked how it is; only where it is guarded.
    pub probe: Option<Probe>,
    /// Shedding while its store is slower than usual.
    pub shedding: Shedding,
}

/// A tenant: the unit of charging, and its quota.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// Distinct among tenants; at most [`gate_common::abi::Name::MAX`] bytes.
    pub name: String,
    /// Where its requests come from. No two tenants share a prefix; the longest that matches wins.
    /// May be empty for a tenant that is a service's default, has users or is charged by others.
    pub sources: Vec<IpNet>,
    /// Its bucket, in thousandths of a request unit. When full it admits a one-row request of an
    /// Ethernet frame's size to any service.
    pub quota: Limits,
    /// The coarse bucket on TCP payload towards proxied services, in bytes. It admits any segment.
    pub tcp_quota: Limits,
    /// Its connection attempts, in thousandths.
    pub syn_rate: Limits,
    /// A bucket that only counts what it would have refused, in thousandths of a request unit.
    pub candidate: Option<Limits>,
    /// How much dearer its requests are; 1 to 64. A full frame still fits into every bucket that it is charged to.
    pub multiplier: Multiplier,
    /// True if all of them are refused.
    pub refuse: bool,
    /// Bytes of refusals that XDP may send it per second; 0 sends none.
    pub reply_budget: u64,
    /// How early it gives way.
    pub tier: Tier,
    /// True if its reads may be answered from the hot cache.
    pub cache: bool,
    /// Metrics of its own.
    pub metrics: TenantMetrics,
    /// Connections to proxied services that it may have at once; 1 to 1,000,000, or `u64::MAX`. By default half of what
    /// each service's tenants may have together, where there are other tenants.
    pub max_connections: Option<u64>,
    /// Requests to proxied services that may be unanswered at once; 1 to 1,000,000.
    pub max_outstanding: Option<u64>,
    /// Tenants that are charged with it, all or none: at most two, distinct, not itself.
    pub charge: Vec<TenantIndex>,
    /// Which requests of another tenant's clients it is charged for, by key. Then it has no clients of its own.
    pub part: Option<Part>,
    /// Users of the stores that it is charged for, wherever they come from.
    pub users: Vec<User>,
    /// Values of a service's `tenant_header` that name it, distinct among all tenants; the first is written to the store.
    pub ids: Vec<String>,
    /// Its members, each of which has its quota; `None` for a tenant that has one for all of its requests.
    pub members: Option<Members>,
    /// Commands that are refused to it where gate proxies.
    pub deny: Deny,
    /// The keys that it may touch where gate proxies.
    pub keys: Keys,
    /// Limits by query type or command, where gate proxies.
    pub limits: Vec<RequestLimit>,
}

/// The keys that a tenant may touch where gate proxies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Keys {
    /// All keys.
    #[default]
    Any,
    /// Those that begin with one of `key_prefixes`, the tenant's and its parts'.
    Own {
        /// At least one prefix.
        key_prefixes: Vec<String>,
    },
}

impl Keys {
    /// True if the tenant may touch its own keys only.
    #[must_use]
    pub fn are_own(&self) -> bool {
        matches!(self, Self::Own { .. })
    }
}

/// Which requests of another tenant's clients are a tenant's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The tenant whose clients they are; no part itself.
    pub part_of: TenantIndex,
    /// The prefixes of the part's keys: 1 to 256 prefixes of 1 to 250 bytes, none of which another part of
    /// the same tenant has.
    pub key_prefixes: Vec<String>,
}

#[cfg(test)]
mod tests;
