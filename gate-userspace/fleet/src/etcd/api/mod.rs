//! etcd's messages and services, as far as gate uses them: `etcd.proto`, and the code that prost and tonic make of it.

#[allow(
    clippy::all,
    clippy::pedantic,
    clippy::allow_attributes_without_reason,
    missing_docs,
    unreachable_pub,
    rust_2018_idioms,
    reason = "generated from etcd.proto; a test compares the two"
)]
#[rustfmt::skip]
mod generated;

#[cfg(test)]
pub(super) use generated::Event;
pub(super) use generated::compare::CompareTarget;
pub(super) use generated::event::EventType;
pub(super) use generated::kv_client::KvClient;
pub(super) use generated::lease_client::LeaseClient;
pub(super) use generated::watch_client::WatchClient;
pub(super) use generated::{
    Compare, KeyValue, LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest, PutRequest, PutResponse,
    RangeRequest, RangeResponse, RequestOp, ResponseHeader, TxnRequest, TxnResponse, WatchCreateRequest,
    WatchRequest, WatchResponse,
};

#[cfg(test)]
mod tests;
