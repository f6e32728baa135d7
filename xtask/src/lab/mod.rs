//! The lab: a network of one's own with a gate, a store and tenants in it.

pub mod net;
pub mod part;
