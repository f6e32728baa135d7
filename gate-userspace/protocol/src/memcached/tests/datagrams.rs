//! Datagrams: frames, requests in several, answers in several, and how much is held.

use gate_common::units::Nanos;
use proptest::prelude::*;

use crate::memcached::udp::*;

const LIMITS: Limits = Limits { waiting: 2, datagrams: 4, bytes: 10, patience: Nanos(100) };

fn datagram(id: u16, index: u16, total: u16, payload: &[u8]) -> Vec<u8> {
    [&Frame { id, index, total }.to_bytes()[..], payload].concat()
}

#[test]
fn a_frame_is_four_numbers_in_network_order() {
    let bytes = [0x12, 0x34, 0, 1, 0, 2, 0xff, 0xff, b'x'];
    let frame = Frame { id: 0x1234, index: 1, total: 2 };
    assert_eq!(Frame::parse(&bytes), Some((frame, &b"x"[..])), "the reserved bytes are ignored");
    assert_eq!(frame.to_bytes(), [0x12, 0x34, 0, 1, 0, 2, 0, 0]);
    for short in [&bytes[..0], &bytes[..7], &bytes[..8]] {
        assert_eq!(Frame::parse(short), None);
    }
}

#[test]
fn an_answer_fills_datagrams_of_1400_bytes() {
    let lengths = |len| answer(7, len).unwrap().map(|(_, range)| range.len()).collect::<Vec<_>>();
    assert_eq!(lengths(0), [0; 0]);
    assert_eq!(lengths(5), [5]);
    assert_eq!(lengths(1_392), [1_392]);
    assert_eq!(lengths(1_393), [1_392, 1]);
    let (frame, range) = answer(7, 3_000).unwrap().nth(1).unwrap();
    assert_eq!((frame, range), ([0, 7, 0, 1, 0, 3, 0, 0], 1_392..2_784));
    assert_eq!(answer(7, 65_535 * MAX_PAYLOAD).unwrap().len(), 65_535);
    assert!(answer(7, 65_535 * MAX_PAYLOAD + 1).is_none());
}

#[test]
fn a_request_by_itself_is_not_copied() {
    let mut reassembly = Reassembly::new(LIMITS);
    let single = datagram(1, 0, 1, b"get some long key\r\n");
    let Received::Whole { id: 1, bytes } = reassembly.receive("a", &single, Nanos(0)) else { panic!() };
    assert_eq!(bytes.as_ptr_range(), single[FRAME..].as_ptr_range());
}

/// The result of the datagram, in words.
fn receive(
    reassembly: &mut Reassembly<&'static str>,
    peer: &'static str,
    (id, index, total): (u16, u16, u16),
    text: &str,
    now: u64,
) -> String {
    match reassembly.receive(peer, &datagram(id, index, total, text.as_bytes()), Nanos(now)) {
        Received::Whole { id, bytes } => format!("{id}: {}", str::from_utf8(bytes).unwrap()),
        Received::Part => "part".to_owned(),
        Received::Dropped => "dropped".to_owned(),
    }
}

#[test]
fn parts_in_any_order_make_a_request() {
    let mut reassembly = Reassembly::new(Limits::default());
    let mut receive = |peer, index, text| receive(&mut reassembly, peer, (1, index, 3), text, 0);
    assert_eq!(receive("a", 2, "!\r\n"), "part");
    assert_eq!(receive("a", 0, "get"), "part");
    assert_eq!(receive("b", 1, "other"), "part", "another peer's request");
    assert_eq!(receive("a", 0, "set"), "dropped", "it has come before");
    assert_eq!(receive("a", 1, " a"), "1: get a!\r\n");
    assert_eq!(receive("a", 1, " a"), "part", "the number is free again");
}

#[test]
fn what_is_held_is_bounded() {
    let mut reassembly = Reassembly::new(LIMITS);
    let mut receive = |frame, text, now| receive(&mut reassembly, "a", frame, text, now);
    assert_eq!(receive((1, 0, 5), "x", 0), "dropped", "more datagrams than are let in");
    assert_eq!(receive((1, 0, 0), "x", 0), "dropped", "none");
    assert_eq!(receive((1, 2, 2), "x", 0), "dropped", "beyond the last");
    assert_eq!(receive((1, 0, 2), "12345678901", 0), "dropped", "more bytes than are let in");
    assert_eq!(receive((2, 0, 2), "12345", 0), "part");
    assert_eq!(receive((2, 1, 2), "678901", 0), "dropped", "more bytes together");
    assert_eq!(receive((3, 0, 2), "3", 0), "part");
    assert_eq!(receive((4, 0, 2), "4", 0), "part", "the oldest, 2, gives way");
    assert_eq!(receive((2, 1, 2), "2", 0), "part", "and begins anew, in index of 3");
    assert_eq!(receive((4, 1, 2), "!", 0), "4: 4!");
    assert_eq!(receive((2, 0, 2), "2", 100), "part", "its patience is over");
    assert_eq!(receive((2, 0, 3), "2", 100), "part", "the number has come round");
    assert_eq!(receive((2, 1, 3), "2", 0), "part", "a clock that goes back changes nothing");
    assert_eq!(receive((2, 2, 3), "2", 199), "2: 222");
}

proptest! {
    #[test]
    fn what_an_answer_is_split_into_makes_it_again(
        text in prop::collection::vec(any::<u8>(), 1..9_000),
        order in any::<prop::sample::Index>(),
    ) {
        let mut datagrams: Vec<_> =
            answer(9, text.len()).unwrap().map(|(frame, range)| [&frame, &text[range]].concat()).collect();
        let count = datagrams.len();
        datagrams.rotate_left(order.index(count));
        let mut reassembly = Reassembly::new(Limits::default());
        let mut whole = None;
        for datagram in &datagrams {
            if let Received::Whole { bytes, .. } = reassembly.receive((), datagram, Nanos(0)) {
                whole = Some(bytes.to_vec());
            }
        }
        prop_assert_eq!(whole, Some(text));
    }

    #[test]
    fn any_datagrams_are_survived(
        datagrams in prop::collection::vec((prop::collection::vec(0_u8..4, 0..14), 0_u8..3, 0_u64..300), 0..60)
    ) {
        let mut reassembly = Reassembly::new(LIMITS);
        for (datagram, peer, now) in datagrams {
            if let Received::Whole { bytes, .. } = reassembly.receive(peer, &datagram, Nanos(now)) {
                prop_assert!(bytes.len() <= LIMITS.bytes.max(datagram.len()));
            }
        }
    }
}
