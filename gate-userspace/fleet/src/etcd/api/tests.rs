//! The bytes are those that `protoc --encode` makes of etcd's own rpc.proto and kv.proto (of etcd 3.6).

use prost::Message;

use super::generated::{LeaseGrantResponse, LeaseKeepAliveResponse};
use super::*;

fn check(message: &(impl Message + std::fmt::Debug), bytes: &str) {
    let encoded: String = message.encode_to_vec().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(encoded, bytes, "{message:?}");
}

fn decoded<T: Message + Default>(bytes: &str) -> T {
    let digits = bytes.as_bytes().chunks(2).map(|pair| str::from_utf8(pair).unwrap());
    let bytes: Vec<_> = digits.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect();
    T::decode(bytes.as_slice()).unwrap()
}

#[test]
fn requests_are_those_of_etcds_own_messages() {
    let prefix = RangeRequest {
        key: "gate/".into(),
        range_end: "gate0".into(),
        limit: 128,
        ..RangeRequest::default()
    };
    check(&prefix, "0a05676174652f12056761746530188001");
    let count = RangeRequest { key: "gate/limits".into(), count_only: true, ..RangeRequest::default() };
    check(&count, "0a0b676174652f6c696d6974734801");
    let put = |lease| PutRequest { key: "k".into(), value: "v".into(), lease };
    check(&put(7), "0a016b1201761807");
    let target = CompareTarget::Mod.into();
    let absent = Compare { target, key: "k".into(), mod_revision: Some(0) };
    let txn = TxnRequest { compare: vec![absent], success: vec![RequestOp { request_put: Some(put(0)) }] };
    check(&txn, "0a0710021a016b3000120812060a016b120176");
    let later = WatchCreateRequest { key: "gate/".into(), range_end: "gate0".into(), start_revision: 6 };
    check(&WatchRequest { create_request: Some(later) }, "0a100a05676174652f120567617465301806");
    check(&LeaseGrantRequest { ttl: 2 }, "0802");
    check(&LeaseKeepAliveRequest { id: 7 }, "0807");
    check(&LeaseRevokeRequest { id: 7 }, "0807");
}

#[test]
fn answers_with_fields_that_gate_does_not_read_are_read() {
    let header = || Some(ResponseHeader { revision: 6 });
    let key = |mod_revision, value: &str| KeyValue { key: "k".into(), mod_revision, value: value.into() };
    let range: RangeResponse = decoded("0a080801100218062004120e0a016b1001180520032a0176300718012009");
    assert_eq!(range, RangeResponse { header: header(), kvs: vec![key(5, "v")], more: true });
    let put: PutResponse = decoded("0a02180612030a016b");
    assert_eq!(put, PutResponse { header: header() });
    let txn: TxnResponse = decoded("0a02180610011a0612040a021806");
    assert_eq!(txn, TxnResponse { header: header(), succeeded: true });
    let watch: WatchResponse =
        decoded("0a021806100118012001280532017238015a11080112050a016b18061a060a016b2a0176");
    let deleted = Event { r#type: EventType::Delete.into(), kv: Some(key(6, "")) };
    assert_eq!(watch, WatchResponse { canceled: true, cancel_reason: "r".to_owned(), events: vec![deleted] });
    assert_eq!(decoded::<LeaseGrantResponse>("0a02180610071802220165").id, 7);
    assert_eq!(decoded::<LeaseKeepAliveResponse>("0a02180610071802").ttl, 2);
}
