//! The programs of a fleet of gates that share their limits, as the lab and the tests start them.

pub mod envoy;
pub mod etcd;
pub mod owner;
