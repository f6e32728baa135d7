//! Fields that say where a request comes from and whose it is, or that a store takes for such a field.
//!
//! **Problem.** A store believes them, since gate writes them. CGI, WSGI and their like hand fields to programs as variables:
//! `X-Scope-OrgID`, `X_Scope_OrgID` and, of some servers, `X.Scope.OrgID` are all `HTTP_X_SCOPE_ORGID`. Others take trailers for
//! fields. **Rule.** From a client that is not trusted no such field reaches the store, but for those that gate writes. From
//! nobody does one that is spelled otherwise, or comes as a trailer: gate itself does not read those. `Connection` removes none
//! of what a trusted proxy says: whoever sends requests through that proxy could hide behind it.

use hyper::header::{HeaderMap, HeaderName};

/// The fields of one service that only gate and trusted proxies may write.
#[derive(Debug)]
pub(super) struct Claims {
    tenant: Option<HeaderName>,
    tier: Option<HeaderName>,
    /// Their names with hyphens only.
    folded: Vec<String>,
}

impl Claims {
    /// For a service whose requests name their tenant and their tier in these fields.
    pub(super) fn new(tenant: Option<HeaderName>, tier: Option<HeaderName>) -> Self {
        let folded = [&tenant, &tier].into_iter().flatten().map(|name| folded(name.as_str())).collect();
        Self { tenant, tier, folded }
    }

    /// The field that names the tenant.
    pub(super) const fn tenant(&self) -> Option<&HeaderName> {
        self.tenant.as_ref()
    }

    /// The field by which a request may lower its tier.
    pub(super) const fn tier(&self) -> Option<&HeaderName> {
        self.tier.as_ref()
    }

    /// True for a field that says where a request comes from or whose it is, spelled as gate reads it.
    pub(super) fn contains(&self, name: &HeaderName) -> bool {
        self.is_named(name) || is_plain(name.as_str()) && is_of_origin(name.as_str())
    }

    /// Removes the claims of a client, and all that a store could take for one.
    pub(super) fn remove(&self, headers: &mut HeaderMap, is_trusted: bool) {
        remove_if(headers, |name| match self.contains(name) {
            true => !is_trusted,
            false => self.is_like_one(name),
        });
    }

    /// Removes all claims from the trailers of a request.
    pub(super) fn remove_from_trailers(&self, trailers: &mut HeaderMap) {
        remove_if(trailers, |name| self.contains(name) || self.is_like_one(name));
    }

    fn is_named(&self, name: &HeaderName) -> bool {
        self.tenant.as_ref() == Some(name) || self.tier.as_ref() == Some(name)
    }

    /// True for another name that is a claim's, or frames a message, once each character but letters and digits is a hyphen.
    fn is_like_one(&self, name: &HeaderName) -> bool {
        let name = name.as_str();
        if is_plain(name) {
            return self.folded.iter().any(|claim| claim == name);
        }
        let folded = folded(name);
        self.folded.contains(&folded) || is_of_origin(&folded) || FRAMING.contains(&&*folded)
    }
}

fn remove_if(headers: &mut HeaderMap, is_removed: impl Fn(&HeaderName) -> bool) {
    let removed: Vec<HeaderName> = headers.keys().filter(|name| is_removed(name)).cloned().collect();
    for name in removed {
        headers.remove(name);
    }
}

/// True for a name of letters, digits and hyphens; names are in lower case.
fn is_plain(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

fn folded(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect()
}

/// True for a field that says where a request comes from, or what for.
pub(super) fn is_of_origin(name: &str) -> bool {
    name.starts_with("x-forwarded") || OF_ORIGIN.contains(&name)
}

/// True for one that says at which address the client is.
pub(super) fn is_address(name: &HeaderName) -> bool {
    ADDRESSES.contains(&name.as_str())
}

/// Beside `X-Forwarded-*`: addresses, targets other than the one that gate has read, and `Proxy`, which a CGI program
/// takes for the proxy of its own requests (`HTTP_PROXY`).
const OF_ORIGIN: [&str; 14] = [
    "cf-connecting-ip",
    "client-ip",
    "fastly-client-ip",
    "forwarded",
    "proxy",
    "true-client-ip",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-envoy-external-address",
    "x-original-forwarded-for",
    "x-original-host",
    "x-original-url",
    "x-real-ip",
    "x-rewrite-url",
];
/// Those of them, and of `X-Forwarded-*`, that say an address.
const ADDRESSES: [&str; 11] = [
    "cf-connecting-ip",
    "client-ip",
    "fastly-client-ip",
    "forwarded",
    "true-client-ip",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-envoy-external-address",
    "x-forwarded-for",
    "x-original-forwarded-for",
    "x-real-ip",
];
/// Fields that frame a message.
const FRAMING: [&str; 4] = ["connection", "content-length", "host", "transfer-encoding"];

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn claims(tenant: &'static str) -> Claims {
        Claims::new(Some(HeaderName::from_static(tenant)), Some(HeaderName::from_static("x-tier")))
    }

    fn headers(names: &[&str]) -> HeaderMap {
        let fields =
            names.iter().map(|name| (name.parse::<HeaderName>().unwrap(), HeaderValue::from_static("x")));
        fields.collect()
    }

    const CLAIMED: [&str; 8] = [
        "X-Scope-OrgID",
        "X-Tier",
        "X-Forwarded-For",
        "X-Forwarded-User",
        "X-Forwarded",
        "Forwarded",
        "X-Real-IP",
        "X-Original-URL",
    ];
    const ALIKE: [&str; 10] = [
        "X_Scope_OrgID",
        "x_scope-orgid",
        "X.Scope.OrgID",
        "X-Scope~OrgID",
        "X_Tier",
        "X_Forwarded_For",
        "X-Forwarded_Prefix",
        "x_real_ip",
        "Content_Length",
        "Transfer_Encoding",
    ];
    const OTHERS: [&str; 6] =
        ["host", "content-length", "x_scope_org", "x-scope-orgid-2", "my_field", "x_forward"];

    #[test]
    fn what_a_client_claims_is_removed_however_it_is_spelled() {
        let claims = claims("x-scope-orgid");
        for is_trusted in [false, true] {
            let mut fields = headers(&[&CLAIMED[..], &ALIKE, &OTHERS].concat());
            claims.remove(&mut fields, is_trusted);
            let expected =
                if is_trusted { headers(&[&CLAIMED[..], &OTHERS].concat()) } else { headers(&OTHERS) };
            assert_eq!(fields, expected, "{is_trusted}");
        }
        let mut trailers = headers(&[&CLAIMED[..], &ALIKE, &["x-sum"]].concat());
        claims.remove_from_trailers(&mut trailers);
        assert_eq!(trailers, headers(&["x-sum"]));
    }

    #[test]
    fn a_field_that_is_configured_with_underscores_is_read_as_such() {
        let claims = claims("x_scope_orgid");
        let names = ["x_scope_orgid", "x_scope-orgid", "x-scope-orgid"];
        for (is_trusted, expected) in [(true, &names[..1]), (false, &[])] {
            let mut fields = headers(&names);
            claims.remove(&mut fields, is_trusted);
            assert_eq!(fields, headers(expected), "{is_trusted}");
        }
    }
}
