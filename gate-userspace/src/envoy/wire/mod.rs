//! Envoy's messages and services, as far as gate uses them: two protos, and the code that prost and tonic make of them.

#[allow(
    clippy::all,
    clippy::pedantic,
    clippy::allow_attributes_without_reason,
    missing_docs,
    unreachable_pub,
    rust_2018_idioms,
    reason = "generated from rlqs.proto; a test compares the two"
)]
#[rustfmt::skip]
#[path = "rlqs/generated.rs"]
pub mod rlqs;
#[allow(
    clippy::all,
    clippy::pedantic,
    clippy::allow_attributes_without_reason,
    missing_docs,
    unreachable_pub,
    rust_2018_idioms,
    reason = "generated from rls.proto; a test compares the two"
)]
#[rustfmt::skip]
#[path = "rls/generated.rs"]
pub mod rls;
