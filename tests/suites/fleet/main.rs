//! Gates that share limits: real gates, real owners, a real store.

mod connections;
mod envoys;
mod owners;
mod shares;
mod tls;
mod wire;
