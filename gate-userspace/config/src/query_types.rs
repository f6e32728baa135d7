//! The query types of a proxied service: the table `query_types`.

use std::collections::HashMap;

use super::fault::did_you_mean;
use super::raw::{Item, Section};
use super::values::Protocol;
use gate_protocol::http::routes::{Pattern, WrongPattern};
use gate_protocol::query_types::QueryTypes;
use gate_protocol::{Class, memcached, resp};

/// Reads the table: types, each with its commands, or with its patterns of routes. Also returns the names by which the other
/// tables may know types, by their places, and the routes.
pub(super) fn read<'d>(
    mut section: Section<'d>,
    protocol: Protocol,
) -> (QueryTypes, Vec<&'d str>, Vec<(Pattern, String)>) {
    let mut types = Vec::new();
    let mut routes = Vec::new();
    let mut taken = HashMap::new();
    let mut names = Class::ALL.map(Class::name).to_vec();
    for name in section.keys() {
        if !names.contains(&name) {
            names.push(name);
            if let Some(wrong) = wrong_name(name, names.len() - Class::ALL.len()) {
                section.fault(name, wrong);
            }
        }
        if protocol == Protocol::Http {
            let items =
                section.list(name, |text| text.parse().map_err(|wrong: WrongPattern| wrong.to_string()));
            routes.extend(items.into_iter().map(|item| (route(item, &mut taken), name.to_owned())));
            types.push((name, Vec::new()));
            continue;
        }
        let items = section.list(name, |text| Ok(text.to_owned()));
        let commands = items.into_iter().filter_map(|item| command(item, protocol, &mut taken));
        types.push((name, commands.collect()));
    }
    (QueryTypes::new(&types), names, routes)
}

/// The pattern of an item; `taken` holds the lines of those before it.
fn route(item: Item<'_, Pattern>, taken: &mut HashMap<String, usize>) -> Pattern {
    if let Some(line) = taken.insert(format!("{:?}", item.value), item.line()) {
        item.fault(format!("is of a type already, on line {line}"));
    }
    item.value
}

/// The command that an item names; `taken` holds the lines of those before it.
fn command(item: Item<'_, String>, protocol: Protocol, taken: &mut HashMap<String, usize>) -> Option<String> {
    let name = item.value.to_ascii_lowercase().replace('|', " ");
    let (known, example) = match protocol {
        Protocol::Resp => (resp::is_command(&name), "\"SORT\", \"CONFIG GET\""),
        Protocol::Memcached => (memcached::Command::named(&name).next().is_some(), "\"gets\", \"incr\""),
        // That it is proxied is the fault.
        Protocol::Opaque | Protocol::Http => return None,
    };
    if !known {
        let resp = (protocol == Protocol::Resp).then(resp::names).into_iter().flatten();
        let memcached = memcached::Command::ALL.map(memcached::Command::name);
        let memcached = memcached.into_iter().filter(|_| protocol == Protocol::Memcached);
        item.fault(match did_you_mean(&name, resp.chain(memcached)) {
            Some(near) => format!("no command has this name; did you mean \"{near}\"?"),
            None => format!("must be a command of the service's protocol, e.g. {example}"),
        });
        return None;
    }
    if let Some(line) = taken.insert(name.clone(), item.line()) {
        item.fault(format!("is of a type already, on line {line}"));
    }
    Some(name)
}

/// The fault in a type's name, which is the `own`th that is no command class's.
fn wrong_name(name: &str, own: usize) -> Option<String> {
    let plain =
        name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte));
    if !plain || !name.starts_with(|first: char| first.is_ascii_lowercase()) || name.len() > MAX_NAME {
        let hint = match did_you_mean(&name.to_ascii_lowercase(), Class::ALL.map(Class::name)) {
            Some(near) => format!("did you mean {near}?"),
            None => "e.g. reports".to_owned(),
        };
        return Some(format!(
            "a type's name must be 1 to {MAX_NAME} lower-case letters, digits, \"-\" and \"_\", a letter first; {hint}"
        ));
    }
    if name == "default" {
        return Some("stands for every type in objectives; choose another name".to_owned());
    }
    if name == "refusals" {
        return Some("names other figures in gate's statistics; choose another name".to_owned());
    }
    (own > QueryTypes::MAX_OWN)
        .then(|| format!("is one too many: {} may have names of their own", QueryTypes::MAX_OWN))
}

/// As long as a line of a table has room for.
const MAX_NAME: usize = 32;
