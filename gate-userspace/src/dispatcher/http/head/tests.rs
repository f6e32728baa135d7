use hyper::{Request, Response};

use super::*;

fn request(method: &str, uri: &str, fields: &[(&str, &str)]) -> request::Parts {
    let mut request = Request::builder().method(method).uri(uri);
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    request.body(()).unwrap().into_parts().0
}

fn prepare(parts: &mut request::Parts) -> Result<(), HeadFault> {
    let prepared = prepare_request(parts, || "store:1".to_owned(), |name| name == "kept", false);
    prepared.map(|is_websocket| assert!(!is_websocket))
}

fn shown(headers: &HeaderMap) -> String {
    let fields = headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()));
    fields.collect::<Vec<_>>().join("; ")
}

#[test]
fn fields_of_one_connection_end_here() {
    for (fields, passed) in [
        (&[("host", "a"), ("x", "1")][..], "host: a; x: 1"),
        (&[("host", "a"), ("connection", "close, x"), ("x", "1"), ("y", "2")], "host: a; y: 2"),
        (&[("host", "a"), ("connection", "x, kept"), ("x", "1"), ("kept", "2")], "host: a; kept: 2"),
        (
            &[("host", "a"), ("connection", "host, content-length"), ("content-length", "3")],
            "host: a; content-length: 3",
        ),
        (&[("host", "a"), ("keep-alive", "5"), ("proxy-connection", "x")], "host: a"),
        (&[("host", "a"), ("te", "gzip, trailers"), ("trailer", "x")], "host: a; trailer: x; te: trailers"),
        (&[("host", "a"), ("transfer-encoding", "Chunked")], "host: a"),
        (
            &[
                ("host", "a"),
                ("upgrade", "h2c"),
                ("connection", "upgrade, http2-settings"),
                ("http2-settings", "x"),
            ],
            "host: a",
        ),
        (&[("host", "a"), ("expect", "100-Continue"), ("proxy-authorization", "x")], "host: a"),
        (&[("host", "a"), ("upgrade", "TLS/1.2"), ("connection", "upgrade")], "host: a"),
        (&[("host", "a"), ("upgrade", "foo/2"), ("connection", "upgrade")], "host: a"),
        (&[("host", "a"), ("upgrade", "websocket")], "host: a"),
        (
            &[("host", "a"), ("cookie", "a=1"), ("cookie", "b=2; c=3"), ("cookie", "d=4")],
            "host: a; cookie: a=1; b=2; c=3; d=4",
        ),
        (&[("host", "a"), ("content-length", "5"), ("content-length", "05")], "host: a; content-length: 5"),
        (&[("host", "a"), ("content-length", "05")], "host: a; content-length: 5"),
    ] {
        let mut parts = request("POST", "/", fields);
        assert_eq!(prepare(&mut parts), Ok(()), "{fields:?}");
        assert_eq!(shown(&parts.headers), passed);
    }
}

#[test]
fn requests_of_two_meanings_and_tunnels_are_refused() {
    for (method, uri, fields, fault) in [
        ("CONNECT", "a:1", &[("host", "a")][..], HeadFault::Unsupported),
        (
            "GET",
            "/",
            &[("host", "a"), ("connection", "Upgrade"), ("upgrade", "WebSocket")],
            HeadFault::WebSocket,
        ),
        (
            "GET",
            "/",
            &[("host", "a"), ("connection", "x, upgrade"), ("upgrade", "h2c, websocket")],
            HeadFault::WebSocket,
        ),
        (
            "GET",
            "/",
            &[("host", "a"), ("content-length", "5"), ("content-length", "6")],
            HeadFault::Malformed,
        ),
        ("GET", "/", &[("host", "a"), ("transfer-encoding", "gzip, chunked")], HeadFault::Unsupported),
        ("GET", "/", &[("host", "a"), ("transfer-encoding", "chunked, chunked")], HeadFault::Unsupported),
        (
            "GET",
            "/",
            &[("host", "a"), ("transfer-encoding", "chunked"), ("transfer-encoding", "chunked")],
            HeadFault::Unsupported,
        ),
        (
            "GET",
            "/",
            &[("host", "a"), ("transfer-encoding", "chunked"), ("content-length", "3")],
            HeadFault::Malformed,
        ),
        ("GET", "/", &[("host", "a"), ("expect", "more")], HeadFault::Expectation),
        ("GET", "/", &[], HeadFault::Malformed),
        ("GET", "a:1", &[("host", "a")], HeadFault::Malformed),
        ("GET", "*", &[("host", "a")], HeadFault::Malformed),
        ("GET", "/", &[("host", "a"), ("host", "b")], HeadFault::Malformed),
        ("GET", "/", &[("host", "a, b")], HeadFault::Malformed),
        ("GET", "/", &[("host", "u@a")], HeadFault::Malformed),
        ("GET", "/", &[("host", "a/b")], HeadFault::Malformed),
    ] {
        let mut parts = request(method, uri, fields);
        assert_eq!(prepare(&mut parts), Err(fault), "{method} {fields:?}");
    }
}

#[test]
fn a_websocket_is_offered_anew_where_it_may_be() {
    const OFFER: [(&str, &str); 4] =
        [("host", "a"), ("upgrade", "h2c, WebSocket"), ("connection", "x, Upgrade"), ("x", "1")];
    let prepared = |method, version, fields: &[(&str, &str)]| {
        let mut parts = request(method, "/", fields);
        parts.version = version;
        let prepared = prepare_request(&mut parts, || "store:1".to_owned(), |_| false, true);
        prepared.map(|is_websocket| (is_websocket, shown(&parts.headers)))
    };
    let offered = Ok((true, "host: a; connection: upgrade; upgrade: websocket".to_owned()));
    assert_eq!(prepared("GET", Version::HTTP_11, &OFFER), offered);
    let with_length = [&OFFER[..], &[("content-length", "0")]].concat();
    assert!(prepared("GET", Version::HTTP_11, &with_length).is_ok_and(|(is_websocket, _)| is_websocket));
    assert_eq!(prepared("GET", Version::HTTP_10, &OFFER), Ok((false, "host: a".to_owned())));
    for (method, field) in [("POST", ("y", "1")), ("GET", ("content-length", "3"))] {
        let fields = [&OFFER[..], &[field]].concat();
        assert_eq!(prepared(method, Version::HTTP_11, &fields), Err(HeadFault::Unsupported));
    }
    let chunked = [&OFFER[..], &[("transfer-encoding", "chunked")]].concat();
    assert_eq!(prepared("GET", Version::HTTP_11, &chunked), Err(HeadFault::Unsupported));
}

#[test]
fn a_store_goes_on_as_a_websocket_or_is_garbled() {
    let switched = |fields: &[(&str, &str)]| {
        let mut answer = Response::builder().status(101);
        for (name, value) in fields {
            answer = answer.header(*name, *value);
        }
        let mut parts = answer.body(()).unwrap().into_parts().0;
        prepare_switch(&mut parts, None).map(|()| shown(&parts.headers))
    };
    let accept = ("sec-websocket-accept", "x");
    let upgrade = ("upgrade", "websocket");
    let connection = ("connection", "Upgrade, y");
    assert_eq!(
        switched(&[upgrade, connection, accept, ("y", "1"), ("content-length", "0")]),
        Ok("sec-websocket-accept: x; connection: upgrade; upgrade: websocket".to_owned())
    );
    for garbled in [
        &[upgrade, connection][..],
        &[upgrade, connection, accept, accept],
        &[upgrade, accept],
        &[connection, accept],
        &[("upgrade", "websocket, foo"), connection, accept],
    ] {
        assert_eq!(switched(garbled), Err(Garbled), "{garbled:?}");
    }
}

#[test]
fn the_target_counts_before_the_host() {
    let mut parts = request("GET", "http://b:81/x?y", &[("host", "a")]);
    assert_eq!(prepare(&mut parts), Ok(()));
    assert_eq!((shown(&parts.headers).as_str(), parts.uri.to_string().as_str()), ("host: b:81", "/x?y"));
    let mut parts = request("GET", "http://b/x", &[("host", "a")]);
    parts.version = Version::HTTP_2;
    assert_eq!(prepare(&mut parts), Err(HeadFault::Malformed));
    let mut parts = request("GET", "/x", &[]);
    parts.version = Version::HTTP_10;
    assert_eq!(prepare(&mut parts), Ok(()));
    assert_eq!(shown(&parts.headers), "host: store:1");
}

#[test]
fn answers_of_two_lengths_are_garbled() {
    let answer = |status: u16, fields: &[(&str, &str)]| {
        let mut answer = Response::builder().status(status);
        for (name, value) in fields {
            answer = answer.header(*name, *value);
        }
        let mut parts = answer.body(()).unwrap().into_parts().0;
        prepare_answer(&mut parts, None).map(|()| shown(&parts.headers))
    };
    let passed = |text: &str| Ok(text.to_owned());
    for (status, fields, expected) in [
        (200, &[("content-length", "3")][..], passed("content-length: 3")),
        (200, &[("transfer-encoding", "chunked")], passed("")),
        (200, &[("transfer-encoding", "chunked"), ("content-length", "3")], Err(Garbled)),
        (200, &[("content-length", "3"), ("transfer-encoding", "chunked")], Err(Garbled)),
        (200, &[("transfer-encoding", "gzip")], Err(Garbled)),
        (200, &[("transfer-encoding", "chunked"), ("transfer-encoding", "chunked")], Err(Garbled)),
        (200, &[("content-length", "3"), ("content-length", "3")], passed("content-length: 3")),
        (200, &[("content-length", "3, 3")], passed("content-length: 3")),
        (200, &[("content-length", "+3")], Err(Garbled)),
        (200, &[("connection", "x, close"), ("x", "1"), ("y", "2")], passed("y: 2")),
        (204, &[("content-length", "0")], passed("")),
        (304, &[("content-length", "7")], passed("content-length: 7")),
        (101, &[], Err(Garbled)),
    ] {
        assert_eq!(answer(status, fields), expected, "{status} {fields:?}");
    }
}

#[test]
fn messages_of_grpc_are_told_by_their_type() {
    for (kind, expected) in [
        ("application/grpc", true),
        ("Application/gRPC+proto", true),
        ("application/grpc; x=1", true),
        ("application/grpc-web", false),
        ("application/grp", false),
        ("text/plain", false),
    ] {
        assert_eq!(is_grpc(&request("POST", "/", &[("content-type", kind)]).headers), expected, "{kind}");
    }
}
