//! The processing of originals: which paths ask for it, who does it, and from where originals may come.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use gate_common::units::{MilliRu, Nanos};
use ipnet::IpNet;

use super::parsers::{address, number, prefix, time};
use super::raw::Section;
use super::store_address::{self, NetworkAddress, is_host};
use super::tls::{self, NamedFile};
use super::units::{self, Wrong};

/// The processing of originals for an HTTP service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// The paths that ask for it.
    pub path: ProcessPath,
    /// The processor, and how it is asked.
    pub by: Processor,
    /// Where the processor fetches originals.
    pub blobs: SocketAddr,
    /// Where originals may come from; 1 to 64.
    pub origins: Vec<Origin>,
    /// The certificates that origins over HTTPS are checked with; `None` if there is no such origin.
    pub origins_ca: Option<NamedFile>,
    /// Addresses that are not public and that names of origins may stand for.
    pub networks: Vec<IpNet>,
    /// The only specs that may be asked for; empty if any may.
    pub specs: Vec<String>,
    /// The number of originals that are processed at a time, all threads together; 1 to 1,024.
    pub concurrency: usize,
    /// The number of originals that are downloaded at a time, all threads together; 1 to 4,096.
    pub downloads: usize,
    /// The number of requests that may wait for either; 0 to 100,000.
    pub queue: usize,
    /// The time within which an original should be processed once it is there: what would take longer is refused.
    pub objective: Nanos,
    /// The time that a download, or a processing, may take.
    pub timeout: Nanos,
    /// How long it is kept that a content cannot be processed.
    pub error_ttl: Nanos,
    /// The price of a millisecond of a download or a processing.
    pub price: MilliRu,
}

/// The shape of the paths that ask for processing: `/img/{spec}/{url}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessPath {
    before: String,
    between: String,
}

/// The processor, and the URL that it is asked for: `http://127.0.0.1:8081/{spec}/{blob}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Processor {
    /// Where it is.
    pub address: NetworkAddress,
    /// The field `Host` of its requests.
    pub host: String,
    target: String,
}

/// Where originals may come from: `http://images.example`, `https://*.example:8443`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    is_https: bool,
    host: OriginHost,
    port: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum OriginHost {
    Address(IpAddr),
    /// In lower case.
    Name(String),
    /// Names that end with this, which begins with a dot.
    Below(String),
}

impl ProcessPath {
    /// The spec and the URL that a path asks for, as they stand there; `None` if it asks for none.
    #[must_use]
    pub fn split<'p>(&self, path: &'p str) -> Option<(&'p str, &'p str)> {
        path.strip_prefix(&self.before)?.split_once(&self.between)
    }
}

impl Processor {
    /// The target of the request for a spec of the original with this name, which is at that URL.
    #[must_use]
    pub fn target(&self, spec: &str, blob: &str, blob_url: &str) -> String {
        self.target.replace(SPEC, spec).replace(BLOB_URL, blob_url).replace(BLOB, blob)
    }
}

impl Origin {
    /// True if it includes this scheme, host (in lower case) and port.
    #[must_use]
    pub fn includes(&self, is_https: bool, host: &str, port: u16) -> bool {
        let is_host = match &self.host {
            OriginHost::Address(address) => parse_address(host) == Some(*address),
            OriginHost::Name(name) => name == host,
            OriginHost::Below(suffix) => host.len() > suffix.len() && host.ends_with(suffix.as_str()),
        };
        is_host && self.is_https == is_https && self.port == port
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_https { "https://" } else { "http://" })?;
        match &self.host {
            OriginHost::Address(IpAddr::V6(address)) => write!(f, "[{address}]")?,
            OriginHost::Address(address) => write!(f, "{address}")?,
            OriginHost::Name(name) => f.write_str(name)?,
            OriginHost::Below(suffix) => write!(f, "*{suffix}")?,
        }
        write!(f, ":{}", self.port)
    }
}

/// The address that a host in a URL is written as, if it is one.
#[must_use]
pub fn parse_address(host: &str) -> Option<IpAddr> {
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    match bracketed {
        Some(address) => address.parse().ok().map(IpAddr::V6),
        None => host.parse().ok().map(IpAddr::V4),
    }
}

/// Reads `process`, if it is there.
pub(super) fn read(section: &mut Section<'_>) -> Option<Process> {
    if section.has("process") && !section.has("cache") {
        let message = "means something only beside cache, which keeps what is processed";
        section.fault("process", message.to_owned());
    }
    let is_there = section.has_table("process");
    let mut s = section.section("process");
    let process = is_there.then(|| of_table(&mut s)).flatten();
    s.finish();
    process
}

fn of_table(s: &mut Section<'_>) -> Option<Process> {
    let path = s.need("path", "\"/img/{spec}/{url}\"", path);
    let by = s.need("by", "\"http://127.0.0.1:8081/{spec}/{blob}\"", processor);
    let blobs = s.need("blobs", "\"127.0.0.1:9912\"", address);
    if blobs.is_some_and(|blobs| blobs.ip().is_unspecified()) {
        s.fault(
            "blobs",
            "must be one address, which the processor is told, e.g. \"127.0.0.1:9912\"".to_owned(),
        );
    }
    let mut origins = Vec::new();
    for item in s.need_list("origins", "[\"https://images.example\"]", origin) {
        if origins.len() == MAX_ORIGINS {
            item.fault(format!("is one too many: there may be {MAX_ORIGINS}"));
        } else {
            origins.push(item.value);
        }
    }
    let is_https = origins.iter().any(|origin: &Origin| origin.is_https);
    if !is_https && !origins.is_empty() && s.has("origins_ca") {
        s.fault("origins_ca", "means something only beside an origin over https".to_owned());
    }
    let origins_ca = tls::file_or(s, "origins_ca", SYSTEM_CA).filter(|_| is_https);
    let networks = s.list("networks", prefix).into_iter().map(|item| item.value).collect();
    let specs = s.list("specs", spec).into_iter().map(|item| item.value).collect();
    let concurrency = s.get("concurrency", number(1, 1_024)).unwrap_or(4) as usize;
    let downloads = s.get("downloads", number(1, 4_096)).unwrap_or(32) as usize;
    let queue = s.get("queue", number(0, 100_000)).unwrap_or(256) as usize;
    let objective = s.get("objective", time(TIME_RANGE)).unwrap_or(Nanos::from_secs(5));
    let timeout = s.get("timeout", time(TIME_RANGE)).unwrap_or(Nanos::from_secs(10));
    let error_ttl = s.get("error_ttl", time(ERROR_RANGE)).unwrap_or(Nanos::from_secs(600));
    let price = s.get("price", units::price).unwrap_or(MilliRu::ONE_RU);
    Some(Process {
        path: path?,
        by: by?,
        blobs: blobs?,
        origins,
        origins_ca,
        networks,
        specs,
        concurrency,
        downloads,
        queue,
        objective,
        timeout,
        error_ttl,
        price,
    })
}

fn path(text: &str) -> Result<ProcessPath, Wrong> {
    let wrong = || {
        "must be a path with {spec}, a whole segment, and behind it {url} at its end, e.g. \"/img/{spec}/{url}\""
            .to_owned()
    };
    let (before, rest) = text.split_once(SPEC).ok_or_else(wrong)?;
    let between = rest.strip_suffix("{url}").ok_or_else(wrong)?;
    let is_whole = |part: &str| part.starts_with('/') && part.ends_with('/') && part.bytes().all(is_literal);
    if !is_whole(before) || !is_whole(between) {
        return Err(wrong());
    }
    Ok(ProcessPath { before: before.to_owned(), between: between.to_owned() })
}

fn processor(text: &str) -> Result<Processor, Wrong> {
    let wrong = || {
        "must be a URL with {spec} and {blob}, or {blob_url}, in its path, e.g. \"http://127.0.0.1:8081/{spec}/{blob}\""
            .to_owned()
    };
    let rest = text.strip_prefix("http://").ok_or_else(wrong)?;
    let (host, target) = rest.split_at(rest.find('/').ok_or_else(wrong)?);
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']'));
    let address = if has_port { host.to_owned() } else { format!("{host}:80") };
    let address = store_address::read_network(&address)?;
    let count = |name: &str| target.matches(name).count();
    let plain = target.replace(SPEC, "").replace(BLOB_URL, "").replace(BLOB, "");
    let is_target = plain.bytes().all(|byte| is_literal(byte) || b"?&=".contains(&byte));
    if count(SPEC) != 1 || count(BLOB) + count(BLOB_URL) != 1 || !is_target {
        return Err(wrong());
    }
    Ok(Processor { address, host: host.to_owned(), target: target.to_owned() })
}

fn origin(text: &str) -> Result<Origin, Wrong> {
    let wrong = || {
        "must be a scheme, a host and perhaps a port, without a path, e.g. \"https://images.example\" or \
         \"http://*.example:8080\""
            .to_owned()
    };
    let (scheme, rest) = text.split_once("://").ok_or_else(wrong)?;
    let is_https = match scheme {
        "http" => false,
        "https" => true,
        _ => return Err(wrong()),
    };
    let (host, port) = match rest.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port.parse().map_err(|_| wrong())?),
        _ => (rest, if is_https { 443 } else { 80 }),
    };
    let name = host.to_ascii_lowercase();
    let host = match (parse_address(host), name.strip_prefix('*')) {
        (Some(address), _) => OriginHost::Address(address),
        (None, Some(suffix)) if suffix.strip_prefix('.').is_some_and(is_host) => {
            OriginHost::Below(suffix.to_owned())
        }
        (None, None) if is_host(&name) => OriginHost::Name(name),
        _ => return Err(wrong()),
    };
    if port == 0 { Err(wrong()) } else { Ok(Origin { is_https, host, port }) }
}

fn spec(text: &str) -> Result<String, Wrong> {
    match is_spec(text) {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "must be 1 to {MAX_SPEC} letters, digits and -._~,:=@+, and may not hold \"..\", e.g. \"w200\""
        )),
    }
}

/// True for what can be a spec: one segment of a path that means nothing but itself.
#[must_use]
pub fn is_spec(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~,:=@+".contains(&byte);
    (1..=MAX_SPEC).contains(&text.len()) && text.bytes().all(is_plain) && text != "." && !text.contains("..")
}

/// True for a byte of a path that means itself.
fn is_literal(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"/-._~,:=@+".contains(&byte)
}

const SPEC: &str = "{spec}";
const BLOB: &str = "{blob}";
const BLOB_URL: &str = "{blob_url}";
/// The certificates that Debian trusts.
const SYSTEM_CA: &str = "/etc/ssl/certs/ca-certificates.crt";
const MAX_ORIGINS: usize = 64;
const MAX_SPEC: usize = 64;
const TIME_RANGE: (Nanos, Nanos) = (Nanos::from_millis(1), Nanos::from_secs(300));
const ERROR_RANGE: (Nanos, Nanos) = (Nanos::ZERO, Nanos::from_secs(86_400));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_split_where_its_shape_says() {
        let shape = path("/img/{spec}/{url}").unwrap();
        assert_eq!(shape.split("/img/w200/http%3A%2F%2Fa%2Fb"), Some(("w200", "http%3A%2F%2Fa%2Fb")));
        assert_eq!(shape.split("/img/../http://a/b"), Some(("..", "http://a/b")));
        assert_eq!(shape.split("/img//"), Some(("", "")));
        for other in ["/imgs/w/u", "/img/w", "/im", "", "/%69mg/w/u"] {
            assert_eq!(shape.split(other), None, "{other}");
        }
        assert_eq!(path("/{spec}/plain/{url}").unwrap().split("/w/plain/u"), Some(("w", "u")));
        for wrong in
            ["img/{spec}/{url}", "/img/{spec}{url}", "/img/{url}/{spec}", "/a{spec}/{url}", "/{spec}/{url}/x"]
        {
            assert!(path(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_origin_includes_its_scheme_host_and_port_alone() {
        let all = ["http://a.example", "http://*.b.example:8080", "http://[::1]:81", "http://127.0.0.1"];
        let all = all.map(|text| origin(text).unwrap());
        let is_included =
            |is_https, host, port| all.iter().any(|origin| origin.includes(is_https, host, port));
        for (host, port) in [("a.example", 80), ("x.b.example", 8080), ("x.y.b.example", 8080), ("[::1]", 81)]
        {
            assert!(is_included(false, host, port), "{host}");
            assert!(!is_included(true, host, port) && !is_included(false, host, port + 1), "{host}");
        }
        for host in ["b.example", ".b.example", "xb.example", "a.example.evil", "127.0.0.2", "a.example."] {
            assert!(!is_included(false, host, 80) && !is_included(false, host, 8080), "{host}");
        }
        assert_eq!(
            all.map(|origin| origin.to_string()).join(" "),
            "http://a.example:80 http://*.b.example:8080 http://[::1]:81 http://127.0.0.1:80"
        );
        let secure = ["https://a.example", "https://*.b.example:8443"].map(|text| origin(text).unwrap());
        for (host, port) in [("a.example", 443), ("x.b.example", 8443)] {
            let is_included = |is_https| secure.iter().any(|origin| origin.includes(is_https, host, port));
            assert!(is_included(true) && !is_included(false), "{host}");
        }
        assert_eq!(secure[0].to_string(), "https://a.example:443");
        for wrong in [
            "a",
            "ftp://a",
            "http://",
            "http://a/",
            "http://*",
            "http://*.*.a",
            "http://u@a",
            "http://a:0",
            "http://a:x",
        ] {
            assert!(origin(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_processor_is_asked_for_a_spec_of_a_blob() {
        let by = processor("http://127.0.0.1:8081/{spec}/{blob}").unwrap();
        assert_eq!((by.target("w", "n", "u").as_str(), by.host.as_str()), ("/w/n", "127.0.0.1:8081"));
        let by = processor("http://thumbor/unsafe/{spec}/{blob_url}").unwrap();
        assert_eq!(by.target("w", "n", "http%3A%2F%2Fb%2Fn"), "/unsafe/w/http%3A%2F%2Fb%2Fn");
        assert_eq!(by.address.to_string(), "thumbor:80");
        for wrong in [
            "https://a/{spec}/{blob}",
            "http://a",
            "http://a/{spec}",
            "http://a/{blob}",
            "http://a/{spec}/{blob}/{blob}",
            "http://a/{spec}/{blob}#x",
            "http://u@a/{spec}/{blob}",
        ] {
            assert!(processor(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_spec_means_nothing_but_itself() {
        for spec in ["w200", "200x100", "rs:fit:300:300", "q=80,fmt=webp", "a.b", "x@2"] {
            assert!(is_spec(spec), "{spec}");
        }
        for wrong in [
            "",
            ".",
            "..",
            "a..b",
            "a/b",
            "%2f",
            "%2e%2e",
            "a?b",
            "a b",
            "a\0",
            "é",
            "{x}",
            "a;b",
            &"a".repeat(65),
        ] {
            assert!(!is_spec(wrong), "{wrong}");
        }
    }
}
