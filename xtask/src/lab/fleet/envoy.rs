//! A real Envoy that asks a gate, before a backend of its own.

use std::fmt::Write as _;
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};

use crate::lab::process::{ChildProcess, bound_command};
use crate::lab::programs::START;
use crate::setup::envoy::program;

/// The way in which an Envoy asks, always in the domain `shop`.
#[derive(Clone, Copy, Debug)]
pub enum Filter {
    /// About each request (`envoy.filters.http.ratelimit`): for the entry `user` by the field `x-user`, for `tenant` by `x-tenant`.
    EachRequest {
        /// True if requests are refused while gate does not answer.
        failure_mode_deny: bool,
    },
    /// About each request, by the client's address: for the entry `remote_address`.
    EachAddress,
    /// About each request, by its path, for the entry `path`.
    EachPath,
    /// For shares of the entry `user`, by the field `x-user` (`envoy.filters.http.rate_limit_quota`).
    Shares,
    /// Nobody: it has a limit of its own that is never reached (`envoy.filters.http.local_ratelimit`).
    Local,
    /// Nobody: there is no limit.
    Off,
}

/// An Envoy's addresses and files.
#[derive(Clone, Debug)]
pub struct EnvoyPlace {
    /// Where it listens.
    pub address: SocketAddr,
    /// Where its backend does, which says `passed`.
    pub backend: SocketAddr,
    /// Its configuration.
    pub config: PathBuf,
    /// A number that no other Envoy of the machine has.
    pub number: u32,
}

/// Starts one that asks the gate at `gate`, an address or the path of a Unix socket.
///
/// # Errors
///
/// If it is not there, or does not come up; with its last lines.
pub fn start(place: &EnvoyPlace, gate: &str, filter: Filter) -> Result<ChildProcess> {
    let program = program();
    ensure!(program.exists(), "no {}: `cargo xtask setup fleet` gets it", program.display());
    let EnvoyPlace { address, config, number, .. } = place;
    fs::write(config, configuration(place, gate, filter))
        .with_context(|| format!("cannot write {}", config.display()))?;
    let mut command = bound_command(program);
    command.arg("-c").arg(config).args([
        "--concurrency",
        "1",
        "-l",
        "error",
        "--base-id",
        &number.to_string(),
    ]);
    let mut envoy = ChildProcess::start("envoy", command)?;
    envoy.wait_until("accepts connections", START, || Ok(TcpStream::connect(address).is_ok()))?;
    Ok(envoy)
}

fn configuration(place: &EnvoyPlace, gate: &str, filter: Filter) -> String {
    let &EnvoyPlace { address, backend, .. } = place;
    let mut text = String::from("static_resources:\n  listeners:\n");
    let answer = "direct_response: { status: 200, body: { inline_string: passed } }";
    listener(&mut text, backend, answer, "");
    match filter {
        Filter::EachRequest { failure_mode_deny } => {
            let actions = ["user", "tenant"].map(|key| {
                format!("{{ actions: [ {{ request_headers: {{ header_name: x-{key}, descriptor_key: {key} }} }} ] }}")
            });
            ask_about_each(&mut text, address, &actions.join(", "), failure_mode_deny);
        }
        Filter::EachAddress => {
            ask_about_each(&mut text, address, "{ actions: [ { remote_address: {} } ] }", true);
        }
        Filter::EachPath => {
            let action =
                "{ actions: [ { request_headers: { header_name: \":path\", descriptor_key: path } } ] }";
            ask_about_each(&mut text, address, action, true);
        }
        Filter::Shares => listener(&mut text, address, PASS, SHARES),
        Filter::Local => listener(&mut text, address, PASS, LOCAL),
        Filter::Off => listener(&mut text, address, PASS, ""),
    }
    text += "  clusters:\n";
    cluster(&mut text, "backend", &socket_address(backend), "");
    let gate = gate.parse().map_or_else(|_| format!("pipe: {{ path: \"{gate}\" }}"), socket_address);
    cluster(&mut text, "gate", &gate, HTTP2);
    text
}

fn ask_about_each(text: &mut String, address: SocketAddr, actions: &str, failure_mode_deny: bool) {
    let route = format!("route: {{ cluster: backend, rate_limits: [ {actions} ] }}");
    let filter = EACH_REQUEST.replace("FAILURE_MODE_DENY", &failure_mode_deny.to_string());
    listener(text, address, &route, &filter);
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

const PASS: &str = "route: { cluster: backend }";

const LOCAL: &str = r#"          - name: envoy.filters.http.local_ratelimit
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit
              stat_prefix: local
              token_bucket: { max_tokens: 1000000, tokens_per_fill: 1000000, fill_interval: 1s }
              filter_enabled: { default_value: { numerator: 100, denominator: HUNDRED } }
              filter_enforced: { default_value: { numerator: 100, denominator: HUNDRED } }
              enable_x_ratelimit_headers: DRAFT_VERSION_03
"#;

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
