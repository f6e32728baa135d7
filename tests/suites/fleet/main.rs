//! Gates that share limits: real gates, real owners, a real store.

mod envoys;
mod owners;
mod shares;
mod wire;
