//! Gates that share limits: real gates, real owners, a real store.

mod bare_gate;
mod connections;
mod envoys;
mod etcd;
mod kills;
mod lifetimes;
mod limits;
mod lossy;
mod metrics;
mod owners;
mod partitions;
mod peers;
mod shares;
mod tiers;
mod tls;
mod windows;
mod wire;
mod xdp;
