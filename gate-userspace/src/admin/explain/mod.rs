//! Explanations of what the next request of a client would get: `/v1/explain`.
//!
//! Proxied services are asked, guarded ones are looked up in the maps ([`guarded`]).

use std::net::IpAddr;

use gate_common::abi::{Name, Service as Element};
use percent_encoding::percent_decode_str;

use super::in_passing::InPassing;
use super::sources::Sources;
use crate::clock;
use crate::config::{Config, Protocol, Service};
use crate::explanation::{Asker, Explanation, Question};

pub mod guarded;
mod guarded_request;

/// A question of a client, as its query has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ExplainQuery {
    service: String,
    /// True for datagrams, of a guarded service.
    is_udp: bool,
    question: Question,
}

/// Answers a query.
///
/// # Errors
///
/// The fault in it.
pub(super) async fn explain(context: &Sources, query: &str) -> Result<Explanation, String> {
    let config = context.queues.config.borrow().clone();
    let ExplainQuery { service: name, is_udp, question } = parse(query)?;
    let service = config.services.iter().find(|service| service.name == name);
    let service = service.ok_or_else(|| {
        let names: Vec<_> = config.services.iter().map(|service| service.name.as_str()).collect();
        format!("there is no service {name:?}, but {}", names.join(", "))
    })?;
    let tenant = |name: &String| config.tenants.iter().any(|tenant| tenant.is_named(name));
    if let Asker::Tenant(name) = &question.client
        && !tenant(name)
    {
        return Err(format!("there is no tenant {name:?}; `gate tenants` lists all"));
    }
    let source = match question.client {
        Asker::Source(source) => Some(source),
        Asker::Tenant(_) => None,
    };
    let mut explained = match service.backend {
        Some(_) => {
            if is_udp {
                return Err(format!("{name} is proxied: questions are about requests over TCP"));
            }
            let mut asked = context.questions.iter().filter(|asked| asked.service == name);
            let asked = asked.next().ok_or_else(|| format!("{name} is served from the next start on"))?;
            asked.ask(question).await?
        }
        None => ask_maps(context, service, is_udp, &question)?,
    };
    if let (Some(source), Some(tenant)) = (source, &explained.tenant)
        && explained.rule == "its source"
        && let Some(prefix) = prefix(&config, tenant, source)
    {
        explained.rule = format!("its source, by {prefix} in `sources`");
    }
    let report = context.queues.report();
    let measured = report.services.iter().find(|report| report.name == name).and_then(InPassing::of);
    explained.notes.extend(measured.filter(|_| is_udp).as_ref().map(InPassing::in_words));
    let intercepted = context.interception();
    let addresses = intercepted.iter().flat_map(|intercepted| intercepted.addresses_of(&name));
    explained
        .notes
        .extend(addresses.map(|at| {
            format!("intercepted at {}: new connections of clients {}", at.address, at.in_words())
        }));
    Ok(explained)
}

/// A guarded service, out of the maps.
fn ask_maps(
    context: &Sources,
    service: &Service,
    is_udp: bool,
    question: &Question,
) -> Result<Explanation, String> {
    let transport = if is_udp { 17 } else { 6 };
    if !(if is_udp { service.transports.udp } else { service.transports.tcp }) {
        return Err(format!("{} is not guarded over {}", service.name, if is_udp { "UDP" } else { "TCP" }));
    }
    if question.user.is_some() {
        return Err(format!("{} is guarded, where no user is known", service.name));
    }
    let maps = &context.maps;
    let view = maps.view();
    let is_it = |slot: &u32| {
        let element: Element = maps.services.load(*slot as usize);
        Name::new(&service.name) == Some(element.name) && element.transport == transport
    };
    let slot = (view.first_service..view.first_service + view.services).find(is_it);
    let slot = slot.ok_or_else(|| format!("{} is not in the maps", service.name))? as usize;
    let now = maps.clock().at_monotonic(clock::monotonic());
    guarded::explain(maps, slot, is_udp, service.protocol == Protocol::Resp, question, now)
}

/// The longest prefix of a tenant's sources that has this address.
fn prefix(config: &Config, tenant: &str, source: IpAddr) -> Option<String> {
    let tenant = config.tenants.iter().find(|named| named.name == tenant)?;
    let source = source.to_canonical();
    let prefixes = tenant.sources.iter().filter(|prefix| prefix.contains(&source));
    prefixes.max_by_key(|prefix| prefix.prefix_len()).map(ToString::to_string)
}

/// `service=S&source=IP&command=get&command=foo`, with `tenant=T` in place of `source`, and maybe `user=U`, `transport=udp`.
fn parse(query: &str) -> Result<ExplainQuery, String> {
    let mut service = None;
    let mut source = None;
    let mut tenant = None;
    let mut user = None;
    let mut is_udp = false;
    let mut words = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let bytes: Vec<u8> = percent_decode_str(value).collect();
        let text = || String::from_utf8(bytes.clone()).map_err(|_| format!("{key} is not UTF-8"));
        let held = match key {
            "command" => {
                words.push(bytes);
                continue;
            }
            "transport" => {
                is_udp = match &*bytes {
                    b"udp" => true,
                    b"tcp" => false,
                    _ => return Err("transport is tcp or udp".to_owned()),
                };
                continue;
            }
            "service" => &mut service,
            "source" => &mut source,
            "tenant" => &mut tenant,
            "user" => &mut user,
            _ => return Err(format!("there is no parameter {:?}; {USAGE}", key.escape_debug().to_string())),
        };
        if held.replace(text()?).is_some() {
            return Err(format!("{key} is given twice"));
        }
    }
    let client = match (source, tenant) {
        (Some(source), None) => {
            let parsed = source.parse();
            Asker::Source(parsed.map_err(|_| format!("source={source}: must be an address, e.g. 10.1.2.3"))?)
        }
        (None, Some(tenant)) => Asker::Tenant(tenant),
        _ => return Err(format!("name either a source or a tenant: {USAGE}")),
    };
    let service = service.ok_or_else(|| format!("name a service: {USAGE}"))?;
    if words.is_empty() {
        return Err(format!("name a command: {USAGE}"));
    }
    Ok(ExplainQuery { service, is_udp, question: Question { client, user, words } })
}

const USAGE: &str = "/v1/explain?service=S&source=IP&command=get&command=KEY, or tenant=T in place of source, and user=U, transport=udp";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_has_a_service_a_client_and_words() {
        let asked =
            parse("service=a%20b&source=::1&command=get&command=%00%ff&user=u&transport=udp").unwrap();
        let words = vec![b"get".to_vec(), vec![0, 0xff]];
        let client = Asker::Source("::1".parse().unwrap());
        let question = Question { client, user: Some("u".to_owned()), words };
        assert_eq!(asked, ExplainQuery { service: "a b".to_owned(), is_udp: true, question });
        for (wrong, said) in [
            ("", "either a source or a tenant"),
            ("service=a&tenant=b", "name a command"),
            ("tenant=b&command=get", "name a service"),
            ("service=a&tenant=b&source=::1&command=get", "either a source or a tenant"),
            ("service=a&service=b", "service is given twice"),
            ("service=a&source=here&command=get", "source=here: must be an address, e.g. 10.1.2.3"),
            ("service=%ff&source=::1&command=get", "service is not UTF-8"),
            ("service=a&tenant=b&command=get&transport=sctp", "transport is tcp or udp"),
            ("money=1", "there is no parameter \"money\""),
        ] {
            let error = parse(wrong).unwrap_err();
            assert!(error.contains(said), "{wrong}: {error}");
        }
    }
}
