//! Gates that share limits: real gates, real owners, a real store.

mod bare_gate;
mod connections;
mod envoys;
mod etcd;
mod limits;
mod owners;
mod peers;
mod shares;
mod tls;
mod wire;
