//! Code that the suites share: packets, namespaces, real servers.

pub mod daemon;
pub mod envoy;
pub mod etcd;
pub mod fake_store;
pub mod fixture;
pub mod fleet;
pub mod fleet_site;
pub mod flood;
pub mod http;
pub mod http_client;
pub mod http_server;
pub mod images;
pub mod linearizable;
pub mod memcached;
pub mod metrics;
pub mod model;
pub mod mounts;
pub mod nginx;
pub mod packet;
pub mod privilege;
pub mod proxy;
pub mod raw;
pub mod redis_cluster;
pub mod rng;
pub mod schema;
pub mod slow_store;
pub mod store;
pub mod switch;
pub mod system;
pub mod ticking;
pub mod tls;
pub mod unix_store;
pub mod wait;
pub mod world;

pub use xtask::lab::net;
