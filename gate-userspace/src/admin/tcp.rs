//! The rules of a TCP port: reads alone, for the hosts that are meant, keys against a token.
//!
//! A page in a browser can have it send requests to this port (DNS rebinding). Such requests name a host that is
//! not among those that are allowed, and get no document.

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use super::response::failed;

/// The rules of a TCP port.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// Names by which clients may call this host, beside `localhost` and addresses.
    pub hosts: Vec<String>,
    /// The token that shows keys; `None` shows them to nobody.
    pub token: Option<Token>,
}

/// A token, of which only a hash is kept.
#[derive(Clone)]
pub struct Token([u8; 32]);

impl Token {
    /// Of this text.
    #[must_use]
    pub fn new(text: &[u8]) -> Self {
        Self(Sha256::digest(text).into())
    }

    /// The token in a file, without the blanks around it.
    ///
    /// # Errors
    ///
    /// The fault, and the remedy: a file that everyone may open, or that holds no token.
    pub fn read(path: &Path) -> Result<Self, String> {
        let text = fs::read(path).map_err(|error| error.to_string())?;
        let mode = fs::metadata(path).map_err(|error| error.to_string())?.permissions().mode();
        if mode & 0o007 != 0 {
            return Err(format!("everyone may open it (mode {:o}): chmod o= it", mode & 0o777));
        }
        let token = text.trim_ascii();
        if !(16..=1_024).contains(&token.len()) || !token.iter().all(u8::is_ascii_graphic) {
            return Err(
                "it must hold 16 to 1,024 visible characters, e.g. of `openssl rand -hex 32`".to_owned()
            );
        }
        Ok(Self::new(token))
    }

    /// Compares in a time that does not depend on either.
    fn is(&self, text: &[u8]) -> bool {
        let Self(given) = Self::new(text);
        self.0.ct_eq(&given).into()
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

/// The paths that `open` has under these rules, and those of `secret` for whoever knows the token.
pub(super) fn guarded(open: Router, secret: Router, rules: Rules) -> Router {
    let rules = Arc::new(rules);
    let secret = secret.layer(from_fn_with_state(Arc::clone(&rules), with_token));
    open.merge(secret).layer(from_fn_with_state(rules, from_host))
}

async fn with_token(State(rules): State<Arc<Rules>>, request: Request, next: Next) -> Response {
    let given = request.headers().get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
    let given = given.and_then(|given| given.strip_prefix(b"Bearer "));
    if rules.token.as_ref().zip(given).is_some_and(|(token, given)| token.is(given)) {
        return next.run(request).await;
    }
    let said = match rules.token {
        None => {
            "this shows keys, and needs a token: name its file as `admin_token_file` in the section [gate]"
        }
        Some(_) => "this shows keys: send the token of `admin_token_file` as `Authorization: Bearer TOKEN`",
    };
    let mut response = failed(StatusCode::UNAUTHORIZED, said);
    response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

async fn from_host(State(rules): State<Arc<Rules>>, request: Request, next: Next) -> Response {
    let mut response = if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut response = failed(
            StatusCode::METHOD_NOT_ALLOWED,
            "this port shows and changes nothing: GET and HEAD alone; `gate set` asks the socket of `admin`",
        );
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
        response
    } else if let Err(said) = rules.check_host(request.uri(), request.headers()) {
        failed(StatusCode::MISDIRECTED_REQUEST, said)
    } else {
        next.run(request).await
    };
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(PAGE_MAY));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    response
}

impl Rules {
    fn check_host(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), &'static str> {
        let mut given = headers.get_all(header::HOST).iter();
        let (Some(host), None) = (given.next(), given.next()) else {
            return Err("one Host header is needed");
        };
        let of_uri = uri.authority().map(|authority| authority.as_str());
        let hosts = [host.to_str().ok(), of_uri.or(host.to_str().ok())];
        if hosts.into_iter().all(|host| host.is_some_and(|host| self.allows(host))) {
            return Ok(());
        }
        Err(
            "the Host header names neither an address, nor localhost, nor a host that is allowed (a gate's `admin_hosts`)",
        )
    }

    fn allows(&self, host: &str) -> bool {
        let name = match host.strip_prefix('[') {
            // An address of IPv6, with a port or without.
            Some(rest) => {
                let Some((address, port)) = rest.split_once(']') else { return false };
                let port_fits = port.is_empty() || port.strip_prefix(':').is_some_and(is_port);
                return port_fits && address.parse::<std::net::Ipv6Addr>().is_ok();
            }
            None => match host.rsplit_once(':') {
                Some((name, port)) if is_port(port) => name,
                Some(_) => return false,
                None => host,
            },
        };
        let is = |allowed: &str| name.eq_ignore_ascii_case(allowed);
        name.parse::<IpAddr>().is_ok_and(|address| address.is_ipv4())
            || is("localhost")
            || self.hosts.iter().any(|host| is(host))
    }
}

/// The page may ask this port alone.
const PAGE_MAY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; \
                        form-action 'none'; frame-ancestors 'none'";

fn is_port(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_localhost_and_named_hosts_are_allowed_alone() {
        let rules = Rules { hosts: vec!["gate.example".to_owned()], token: None };
        let allowed = [
            "127.0.0.1",
            "127.0.0.1:9911",
            "[::1]",
            "[::1]:9911",
            "localhost",
            "LocalHost:80",
            "gate.example",
            "GATE.example:9911",
            "198.18.0.1:1",
        ];
        for host in allowed {
            assert!(rules.allows(host), "{host}");
        }
        let refused = [
            "",
            "evil.example",
            "evil.example:9911",
            "gate.example.evil",
            "localhost.evil",
            "127.0.0.1.evil",
            "127.0.0.1:x",
            "127.0.0.1:",
            "[::1",
            "[::1]x",
            "[evil]",
            "::1",
            "gate.example:99999",
            "user@localhost",
            "localhost:80:80",
            "127.1",
            "0x7f.1",
        ];
        for host in refused {
            assert!(!rules.allows(host), "{host}");
        }
    }

    #[test]
    fn a_request_names_one_host_and_none_beside_it() {
        let rules = Rules::default();
        let check = |uri: &'static str, hosts: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for host in hosts {
                headers.append(header::HOST, HeaderValue::from_static(host));
            }
            rules.check_host(&Uri::from_static(uri), &headers).is_ok()
        };
        assert!(check("/", &["localhost"]) && check("http://localhost/", &["localhost"]));
        for (uri, hosts) in [
            ("/", &[][..]),
            ("/", &["localhost", "localhost"]),
            ("http://evil.example/", &["localhost"]),
            ("http://localhost/", &["evil.example"]),
        ] {
            assert!(!check(uri, hosts), "{uri} {hosts:?}");
        }
    }

    #[test]
    fn a_token_is_known_whole_and_not_printed() {
        let token = Token::new(b"0123456789abcdef");
        assert!(token.is(b"0123456789abcdef"));
        for other in [&b""[..], b"0123456789abcde", b"0123456789abcdef ", b"0123456789abcdeg"] {
            assert!(!token.is(other));
        }
        assert_eq!(format!("{token:?}"), "Token");
    }
}
