//! A real Envoy on loopback that asks a gate, before a backend of its own.

use std::fmt::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Result, ensure};
use xtask::lab::process::ChildProcess;
use xtask::setup::envoy::program;

use crate::http::{Answer, curl};
use crate::proxy::address;
use crate::wait::until_up;

/// A running Envoy; ends when dropped.
#[derive(Debug)]
pub struct Envoy {
    /// Where it listens.
    pub address: SocketAddr,
    _program: ChildProcess,
}

/// The way in which an Envoy asks.
#[derive(Clone, Copy, Debug)]
pub enum Filter {
    /// About each request (`envoy.filters.http.ratelimit`).
    EachRequest {
        /// True if requests are refused while gate does not answer.
        failure_mode_deny: bool,
    },
    /// For shares (`envoy.filters.http.rate_limit_quota`).
    Shares,
}

impl Envoy {
    /// One that asks the gate at `gate`, an address or the path of a Unix socket, in the domain `shop`: of requests with the field
    /// `x-user` for the entry `user`, with `x-tenant` for `tenant`, and, for shares, of the former alone.
    ///
    /// # Errors
    ///
    /// If it is not there (`cargo xtask setup` fetches it), or does not come up.
    pub fn start(gate: &str, filter: Filter) -> Result<Self> {
        let program = program();
        ensure!(program.exists(), "no {}: run `cargo xtask setup`", program.display());
        let address = address();
        let backend = SocketAddr::new(address.ip(), address.port() + 1);
        let config = std::env::temp_dir().join(format!("envoy-{}-{}.yaml", std::process::id(), address.ip()));
        std::fs::write(&config, configuration(address, backend, gate, filter))?;
        let mut command = Command::new(program);
        command.arg("-c").arg(&config).args(["--concurrency", "1", "-l", "error", "--base-id"]);
        let place = PLACES.fetch_add(1, Ordering::Relaxed);
        command.arg((std::process::id() * 64 + place % 64).to_string());
        let mut program = ChildProcess::start("envoy", command)?;
        until_up(&mut program, "envoy", || Ok(TcpStream::connect(address).is_ok()))?;
        std::fs::remove_file(&config)?;
        Ok(Self { address, _program: program })
    }

    /// Its answer to a request with one field more.
    ///
    /// # Errors
    ///
    /// If it gives none.
    pub fn ask(&self, field: &str) -> Result<Answer> {
        curl(&["-H", field, &format!("http://{}/", self.address)])
    }
}

/// Each Envoy of a machine needs a number of its own.
static PLACES: AtomicU32 = AtomicU32::new(0);

fn configuration(address: SocketAddr, backend: SocketAddr, gate: &str, filter: Filter) -> String {
    let mut text = String::from("static_resources:\n  listeners:\n");
    let answer = "direct_response: { status: 200, body: { inline_string: passed } }";
    listener(&mut text, backend, answer, "");
    match filter {
        Filter::EachRequest { failure_mode_deny } => {
            let actions = ["user", "tenant"].map(|key| {
                format!("{{ actions: [ {{ request_headers: {{ header_name: x-{key}, descriptor_key: {key} }} }} ] }}")
            });
            let route = format!("route: {{ cluster: backend, rate_limits: [ {} ] }}", actions.join(", "));
            let filter = EACH_REQUEST.replace("FAILURE_MODE_DENY", &failure_mode_deny.to_string());
            listener(&mut text, address, &route, &filter);
        }
        Filter::Shares => listener(&mut text, address, "route: { cluster: backend }", SHARES),
    }
    text += "  clusters:\n";
    cluster(&mut text, "backend", &socket_address(backend), "");
    let gate = gate.parse().map_or_else(|_| format!("pipe: {{ path: \"{gate}\" }}"), socket_address);
    cluster(&mut text, "gate", &gate, HTTP2);
    text
}

fn socket_address(address: SocketAddr) -> String {
    format!("socket_address: {{ address: {}, port_value: {} }}", address.ip(), address.port())
}

fn listener(text: &mut String, address: SocketAddr, route: &str, filter: &str) {
    let address = socket_address(address);
    let _ = write!(
        text,
        r#"  - address: {{ {address} }}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: in
          route_config: {{ virtual_hosts: [ {{ name: all, domains: ["*"], routes: [ {{ match: {{ prefix: "/" }}, {route} }} ] }} ] }}
          http_filters:
{filter}          - name: envoy.filters.http.router
            typed_config: {{ "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }}
"#
    );
}

fn cluster(text: &mut String, name: &str, address: &str, options: &str) {
    let _ = write!(
        text,
        "  - name: {name}\n    type: STATIC\n    connect_timeout: 1s\n{options}    load_assignment: {{ cluster_name: {name}, endpoints: [ {{ \
         lb_endpoints: [ {{ endpoint: {{ address: {{ {address} }} }} }} ] }} ] }}\n"
    );
}

const EACH_REQUEST: &str = r#"          - name: envoy.filters.http.ratelimit
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
              domain: shop
              timeout: 5s
              failure_mode_deny: FAILURE_MODE_DENY
              enable_x_ratelimit_headers: DRAFT_VERSION_03
              rate_limit_service: { transport_api_version: V3, grpc_service: { envoy_grpc: { cluster_name: gate } } }
"#;

const SHARES: &str = r#"          - name: envoy.filters.http.rate_limit_quota
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.rate_limit_quota.v3.RateLimitQuotaFilterConfig
              rlqs_server: { envoy_grpc: { cluster_name: gate } }
              domain: shop
              bucket_matchers:
                matcher_list:
                  matchers:
                  - predicate:
                      single_predicate:
                        input:
                          name: user
                          typed_config: { "@type": type.googleapis.com/envoy.type.matcher.v3.HttpRequestHeaderMatchInput, header_name: x-user }
                        value_match: { safe_regex: { google_re2: {}, regex: ".+" } }
                    on_match:
                      action:
                        name: rate_limit_quota
                        typed_config:
                          "@type": type.googleapis.com/envoy.extensions.filters.http.rate_limit_quota.v3.RateLimitQuotaBucketSettings
                          bucket_id_builder:
                            bucket_id_builder:
                              user:
                                custom_value:
                                  name: user
                                  typed_config: { "@type": type.googleapis.com/envoy.type.matcher.v3.HttpRequestHeaderMatchInput, header_name: x-user }
                          reporting_interval: 0.2s
                          no_assignment_behavior: { fallback_rate_limit: { blanket_rule: ALLOW_ALL } }
                          expired_assignment_behavior: { fallback_rate_limit: { blanket_rule: ALLOW_ALL } }
"#;

const HTTP2: &str = r#"    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: { http2_protocol_options: {} }
"#;
