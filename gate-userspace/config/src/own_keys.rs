//! Tenants that may touch certain keys only.

use std::collections::HashMap;

use super::parsers::one_of;
use super::raw::Section;
use super::{Keys, Service, Tenant, parts};

/// Reads the keys that a tenant may touch.
pub(super) fn read(section: &mut Section<'_>) -> Keys {
    let owns = section.get("keys", one_of(&KEYS));
    if !owns.unwrap_or(section.has("keys")) {
        return Keys::Any;
    }
    let items = if section.has("part_of") { Vec::new() } else { section.list("key_prefixes", parts::prefix) };
    Keys::Own { key_prefixes: parts::up_to_the_most(items) }
}

/// Adds the prefixes of each tenant's parts to its own. Reports tenants that would have no keys, tenants whose keys no
/// service could tell, and prefixes of two tenants that overlap.
pub(super) fn fit(sections: &[Section<'_>], tenants: &mut [Tenant], services: &[Service]) {
    let proxies = services.iter().any(|service| service.backend.is_some());
    // Each prefix with the places of its owner, and of the tenant that names it.
    let mut all = Vec::new();
    for place in 0..tenants.len() {
        let owner = tenants[place].part.as_ref().map_or(place, |part| part.part_of.get());
        if !tenants[owner].keys.are_own() {
            continue;
        }
        let named: &[String] = match &tenants[place] {
            Tenant { part: Some(part), .. } => &part.key_prefixes[..],
            Tenant { keys: Keys::Own { key_prefixes }, .. } => key_prefixes,
            _ => &[],
        };
        all.extend(named.iter().cloned().map(|prefix| (prefix, owner, place)));
    }
    let mut by_owner: HashMap<usize, Vec<String>> = HashMap::new();
    all.iter().for_each(|(prefix, owner, _)| by_owner.entry(*owner).or_default().push(prefix.clone()));
    for (place, section) in sections.iter().enumerate() {
        if !tenants[place].keys.are_own() || tenants[place].part.is_some() || !section.is_sound() {
            continue;
        }
        let key_prefixes = by_owner.remove(&place).unwrap_or_default();
        if !proxies {
            let message =
                "means something only if a service has a backend: gate sees no other requests' keys";
            section.fault("keys", message.to_owned());
        } else if key_prefixes.is_empty() && !section.has("key_prefixes") {
            let message = "leaves it no key; write key_prefixes as well, e.g. key_prefixes = [\"web:\"]";
            section.fault("keys", message.to_owned());
        }
        tenants[place].keys = Keys::Own { key_prefixes };
    }
    overlaps(sections, tenants, all);
}

/// Reports prefixes of two tenants that some key begins with: it could not be the own of both.
fn overlaps(sections: &[Section<'_>], tenants: &[Tenant], mut all: Vec<(String, usize, usize)>) {
    all.sort_unstable();
    // Whatever a prefix begins with comes before it, and all that comes between begins with that too.
    let mut open: Vec<&(String, usize, usize)> = Vec::new();
    for next in &all {
        let (prefix, owner, place) = next;
        while open.pop_if(|(before, ..)| !prefix.starts_with(before)).is_some() {}
        if let Some((before, other, other_place)) = open.last().filter(|(_, other, _)| other != owner) {
            let mine = (prefix, owner, place);
            let theirs = (before, other, other_place);
            let line = |place: usize| sections[place].line("key_prefixes");
            let (later, earlier) =
                if line(*place) < line(*other_place) { (theirs, mine) } else { (mine, theirs) };
            sections[*later.2].fault(
                "key_prefixes",
                format!(
                    "{:?} overlaps {:?} of tenant {:?}, on line {}: with keys = \"own\", no prefix may begin with one of \
                     another tenant's",
                    later.0,
                    earlier.0,
                    tenants[*earlier.1].name,
                    line(*earlier.2),
                ),
            );
        }
        open.push(next);
    }
}

/// The values of `keys`: true if the tenant may touch its own keys only.
const KEYS: [(&str, bool); 2] = [("any", false), ("own", true)];
