use hyper::header::HOST;

use super::*;

fn at(secs: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_000_000_000 + secs)
}

fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
    let field = |(name, value): &(&'static str, &str)| {
        (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
    };
    fields.iter().map(field).collect()
}

/// The fields of a key.
fn fields() -> Fields {
    vec![(HeaderName::from_static("accept-encoding"), HeaderValue::from_static("gzip"))]
}

fn kept(status: u16, said: &[(&'static str, &str)]) -> Option<StoredResponse> {
    let request = keyed_request("/a", &HeaderValue::from_static("h"), &fields()).unwrap();
    let answer = (StatusCode::from_u16(status).unwrap(), headers(said));
    StoredResponse::new(&request, fields(), answer, at(0), (Digest::of(b""), 0))
}

fn request(said: &[(&'static str, &str)]) -> request::Parts {
    let mut parts = keyed_request("/a", &HeaderValue::from_static("h"), &fields()).unwrap();
    parts.headers.extend(headers(said));
    lower_case(&mut parts.headers);
    parts
}

#[test]
fn only_what_may_be_given_again_is_kept() {
    for (status, said, is_kept) in [
        (200, &[("cache-control", "max-age=9")][..], true),
        (200, &[("cache-control", "s-maxage=9, max-age=0")], true),
        (200, &[("etag", "\"1\"")], true),
        (404, &[("cache-control", "max-age=9")], true),
        (200, &[], false),
        (200, &[("cache-control", "max-age=0")], false),
        (200, &[("cache-control", "private, max-age=9")], false),
        (200, &[("cache-control", "no-store, max-age=9")], false),
        (200, &[("cache-control", "Max-Age=9, Private")], false),
        (200, &[("cache-control", "max-age=9; NO-STORE")], false),
        (200, &[("cache-control", "max-age=9"), ("cache-control", "private, x=\u{e9}")], false),
        (200, &[("cache-control", "MAX-AGE=9")], true),
        (200, &[("cache-control", "No-Cache, max-age=9")], false),
        (200, &[("cache-control", "no-cache")], false),
        (200, &[("cache-control", "no-cache"), ("etag", "\"1\"")], true),
        (200, &[("cache-control", "public, max-age=9"), ("set-cookie", "a=1")], false),
        (200, &[("cache-control", "max-age=9"), ("vary", "accept, *")], false),
        (200, &[("cache-control", "max-age=9"), ("age", "9")], false),
        (200, &[("cache-control", "max-age=9"), ("age", "99999999999999999999")], false),
        (200, &[("cache-control", "max-age=99999999999999999999, max-age=9")], false),
        (200, &[("cache-control", "max-age=99999999999999999999")], true),
        (200, &[("cache-control", "s-maxage=2147483649")], true),
        (200, &[("cache-control", "max-age=9"), ("age", "9, 0")], false),
        (200, &[("cache-control", "max-age=9"), ("age", "0, 9")], true),
        (200, &[("cache-control", "max-age=9"), ("age", "old, 9")], true),
        (200, &[("expires", "Tuesday, 09-Sep-31 01:46:40 GMT")], true),
        (200, &[("expires", "Tue Sep  9 01:46:40 2031")], true),
        (200, &[("expires", "Mon Sep  9 01:46:40 2031")], true),
        (200, &[("expires", "TUE, 09 SEP 2031 01:46:40 GMT")], true),
        (200, &[("expires", "Tue,  09 Sep 2031 01:46:40 GMT")], false),
        (200, &[("expires", "Tuesday, 09-Sep-97 01:46:40 GMT")], false),
        (200, &[("cache-control", "max-age=0, stale-while-revalidate=9")], true),
        (200, &[("cache-control", "max-age=0, stale-if-error=9")], true),
        (200, &[("cache-control", "max-age=0, stale-if-error=9, must-revalidate")], false),
        (200, &[("cdn-cache-control", "max-age=9")], true),
        (200, &[("cdn-cache-control", "max-age=9"), ("cache-control", "private, no-store")], true),
        (200, &[("cdn-cache-control", "none"), ("cache-control", "no-store"), ("etag", "\"1\"")], true),
        (200, &[("cdn-cache-control", "no-store"), ("cache-control", "max-age=9")], false),
        (200, &[("cdn-cache-control", "private=\"x\""), ("cache-control", "max-age=9")], false),
        (200, &[("cdn-cache-control", "max-age=0"), ("expires", "Tue, 09 Sep 2031 01:46:40 GMT")], false),
        (200, &[("cdn-cache-control", "max-age=9"), ("age", "9")], false),
        (200, &[("cdn-cache-control", "max-age=9"), ("set-cookie", "a=1")], false),
        (200, &[("cdn-cache-control", "max-age=9,"), ("cache-control", "no-store")], false),
        (200, &[("cdn-cache-control", "no-store,"), ("cache-control", "max-age=9")], true),
        (599, &[("cdn-cache-control", "max-age=9")], true),
        (206, &[("cache-control", "max-age=9"), ("content-range", "bytes 0-1/3")], false),
        (500, &[("cache-control", "max-age=9")], true),
        (599, &[("cache-control", "max-age=9")], true),
        (599, &[("expires", "Tue, 09 Sep 2031 01:46:40 GMT")], true),
        (599, &[("cache-control", "max-age=9, must-understand")], false),
        (599, &[("cache-control", "public"), ("etag", "\"1\"")], false),
        (429, &[("cache-control", "max-age=9")], false),
        (304, &[("cache-control", "max-age=9")], false),
    ] {
        assert_eq!(kept(status, said).is_some(), is_kept, "{status} {said:?}");
    }
}

#[test]
fn a_request_may_ask_for_less_than_the_origin_allows() {
    let response = kept(200, &[("cache-control", "max-age=60"), ("etag", "\"1\"")]).unwrap();
    let stale = Freshness::Stale(vec![(IF_NONE_MATCH, HeaderValue::from_static("\"1\""))]);
    for (said, secs, expected) in [
        (&[][..], 59, Freshness::Fresh),
        (&[], 60, stale.clone()),
        (&[("cache-control", "no-cache")], 1, stale.clone()),
        (&[("pragma", "no-cache")], 1, stale.clone()),
        (&[("cache-control", "max-age=5")], 5, Freshness::Fresh),
        (&[("cache-control", "max-age=5")], 6, stale.clone()),
        (&[("cache-control", "min-fresh=10")], 55, stale.clone()),
        (&[("x", "1")], 1, Freshness::Fresh),
        (&[("cache-control", "unknown"), ("pragma", "unknown")], 1, Freshness::Fresh),
        (&[("pragma", "No-Cache")], 1, stale.clone()),
    ] {
        assert_eq!(response.freshness(&request(said), at(secs)), expected, "{said:?} {secs}");
    }
    assert_eq!(response.age(at(7)), 7);
}

#[test]
fn what_varies_outside_the_key_is_for_requests_without_that() {
    let response =
        kept(200, &[("cache-control", "max-age=60"), ("vary", "Accept-Encoding, X-Kind")]).unwrap();
    assert_eq!(response.freshness(&request(&[]), at(1)), Freshness::Fresh);
    assert_eq!(response.freshness(&request(&[("x-kind", "1")]), at(1)), Freshness::Mismatch);
    assert!(!response.is_shareable());
    let vary = ("vary", "Accept-Encoding, Cookie, Authorization, Host");
    let response = kept(200, &[("cache-control", "max-age=60"), vary]).unwrap();
    assert!(response.is_shareable());
    assert_eq!(response.freshness(&request(&[("x-kind", "1")]), at(1)), Freshness::Fresh);
}

#[test]
fn what_varies_is_kept_for_requests_that_say_the_same() {
    let said = [("cache-control", "max-age=60"), ("vary", "X-Kind, X-Other")];
    let of = |kind: &[(&'static str, &str)]| {
        StoredResponse::new(
            &request(kind),
            fields(),
            (StatusCode::OK, headers(&said)),
            at(0),
            (Digest::of(b""), 0),
        )
        .unwrap()
    };
    let response = of(&[("x-kind", "1"), ("x-kind", "2"), ("x-more", "0")]);
    assert!(!response.is_for_all() && !response.is_shareable());
    for (asked, is_same) in [
        (&[("x-kind", "1"), ("x-kind", "2")][..], true),
        (&[("x-kind", "1, 2")], true),
        (&[("x-kind", "1")], false),
        (&[("x-kind", "1"), ("x-kind", "2"), ("x-other", "")], false),
        (&[], false),
    ] {
        assert_eq!(response.is_selected_by(&headers(asked)), is_same, "{asked:?}");
        assert_eq!(response.is_to_the_same(&of(asked)), is_same, "{asked:?}");
        let is_fresh = response.freshness(&request(asked), at(1)) == Freshness::Fresh;
        assert_eq!(is_fresh, is_same, "{asked:?}");
    }
}

#[test]
fn a_304_changes_fields_and_not_the_body() {
    let response =
        kept(200, &[("etag", "\"1\""), ("content-length", "0"), ("link", "<a>"), ("age", "5")]).unwrap();
    let merged = |said| response.merged(&headers(said));
    let newer = merged(&[("link", "<b>"), ("link", "<c>"), ("content-length", "7")]).unwrap();
    assert_eq!(newer.get_all("link").iter().collect::<Vec<_>>(), ["<b>", "<c>"]);
    assert_eq!((&newer["content-length"], newer.get("age")), (&HeaderValue::from_static("0"), None));
    assert!(merged(&[("etag", "W/\"1\"")]).is_some());
    assert!(merged(&[("etag", "\"2\"")]).is_none(), "it is about another");
    let head = hyper::Response::builder().status(304).header("cache-control", "no-store").body(()).unwrap();
    assert!(
        response.revalidated(&request(&[]), &head.into_parts().0, at(9)).is_none(),
        "it is kept no longer"
    );
    assert!(response.policy.is_storable() && request(&[]).headers.contains_key(HOST));
}

#[test]
fn a_stale_answer_is_used_as_its_origin_allows() {
    use StaleUse::{OnError, WhileRevalidating};
    for (said, expected) in [
        ("max-age=5, stale-while-revalidate=10", [15, 5]),
        ("max-age=5, Stale-If-Error=20", [5, 25]),
        ("s-maxage=5, stale-while-revalidate=10, stale-if-error=20", [15, 25]),
        ("max-age=5, stale-if-error=20, must-revalidate", [5, 5]),
        ("max-age=5, stale-if-error=20, proxy-revalidate", [0, 0]),
        ("max-age=5, stale-if-error=20, no-cache=x", [0, 0]),
        ("max-age=5, stale-if-error=20, stale-if-error=90", [5, 5]),
        ("max-age=5, stale-if-error=x", [5, 5]),
        ("max-age=5, stale-if-error", [5, 5]),
    ] {
        let response = kept(200, &[("cache-control", said), ("etag", "\"1\"")]).unwrap();
        let until = |stale_use| {
            let may_be = |&secs: &u64| !response.may_be_stale(&request(&[]), stale_use, at(secs));
            (0..100).find(may_be).unwrap()
        };
        assert_eq!([until(WhileRevalidating), until(OnError)], expected, "{said}");
        let asks = request(&[("cache-control", "max-age=0")]);
        assert!(!response.may_be_stale(&asks, OnError, at(5)), "{said}");
    }
}

#[test]
fn lifetimes_for_gate_by_name_outlast_those_for_all() {
    let said = [
        ("cdn-cache-control", "max-age=60, stale-if-error=9"),
        ("cache-control", "max-age=5, must-revalidate"),
    ];
    let response = kept(200, &[&said[..], &[("etag", "\"1\"")]].concat()).unwrap();
    let is_fresh =
        |response: &StoredResponse, secs| response.freshness(&request(&[]), at(secs)) == Freshness::Fresh;
    assert!(is_fresh(&response, 59) && !is_fresh(&response, 60));
    assert!(response.may_be_stale(&request(&[]), StaleUse::OnError, at(68)));
    assert_eq!(response.headers["cache-control"], said[1].1, "others read what is for them");
    // A 304 that says nothing to gate leaves what was said.
    let head = hyper::Response::builder().status(304).header("cache-control", "max-age=1").body(()).unwrap();
    let newer = response.revalidated(&request(&[]), &head.into_parts().0, at(100)).unwrap();
    assert!(is_fresh(&newer, 159) && newer.headers["cache-control"] == "max-age=1");
}

#[test]
fn a_silent_origins_answer_outlives_it_as_configured() {
    for (said, expected) in [
        ("max-age=5", 25),
        ("max-age=5, stale-while-revalidate=40", 25),
        ("max-age=5, stale-if-error=2", 7),
        ("s-maxage=5", 5),
        ("max-age=5, must-revalidate", 5),
        ("max-age=5, no-cache", 0),
        ("max-age=0", 0),
        ("public", 0),
    ] {
        let response = kept(200, &[("cache-control", said), ("etag", "\"1\"")]).unwrap();
        let may_be = |secs: u64, asked: &[(&'static str, &str)]| {
            let silent = Duration::from_secs(20);
            response.may_be_given_on_error(&request(asked), silent, at(secs))
                || response.freshness(&request(asked), at(secs)) == Freshness::Fresh
        };
        assert_eq!((0..100).find(|&secs| !may_be(secs, &[])), Some(expected), "{said}");
        assert!(!may_be(5, &[("cache-control", "max-age=0")]), "{said}");
    }
}
