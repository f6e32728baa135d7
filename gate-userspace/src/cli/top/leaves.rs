//! The leaves of a document, each with what its schema says of it.

use serde_json::Value;

use crate::admin::reasons::Reasons;

/// A value of a document that is no object and no list.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Leaf {
    /// The names of fields that lead to it, with points between them.
    pub(super) path: String,
    /// Its meaning: its field's description, up to where that goes into details.
    pub(super) words: String,
    pub(super) value: Value,
}

/// The leaves of a document that this schema describes. What is not known is left out.
pub(super) fn leaves(schema: &Value, document: Value) -> Vec<Leaf> {
    let mut walk = Walk { schema, reasons: Reasons::all(), leaves: Vec::new() };
    walk.go(schema, &Place::default(), document);
    walk.leaves
}

struct Walk<'s> {
    schema: &'s Value,
    reasons: Reasons,
    leaves: Vec<Leaf>,
}

/// The place of a value in the document.
#[derive(Clone, Debug, Default)]
struct Place {
    path: String,
    /// The words for what is around it.
    around: String,
    /// The words for itself.
    own: String,
}

impl<'s> Walk<'s> {
    fn go(&mut self, schema: &'s Value, place: &Place, value: Value) {
        let schema = self.resolved(schema);
        match value {
            Value::Object(fields) => match schema.get("properties") {
                Some(properties) => {
                    let around = joined(&place.around, &place.own);
                    for (name, value) in fields {
                        let of_field = properties.get(&name).unwrap_or(&Value::Null);
                        let own = sentence(of_field);
                        self.go(of_field, &place.below(&name, around.clone(), own), value);
                    }
                }
                // By names that are no fields.
                None => {
                    let of_value = schema.get("additionalProperties").unwrap_or(&Value::Null);
                    for (name, value) in fields {
                        let below = match value.is_object() {
                            true => place.below(&name, joined(&place.around, &name), String::new()),
                            false => {
                                let own = format!("{}: {}", place.own, self.explained(place, &name));
                                place.below(&name, place.around.clone(), own)
                            }
                        };
                        self.go(of_value, &below, value);
                    }
                }
            },
            Value::Array(values) => {
                let of_value = schema.get("items").unwrap_or(&Value::Null);
                for (number, value) in values.into_iter().enumerate() {
                    let number = number.to_string();
                    let below = match NAMES.iter().find_map(|name| value.get(name)?.as_str()) {
                        Some(name) => place.below(&number, joined(&place.around, name), String::new()),
                        None => place.below(&number, place.around.clone(), place.own.clone()),
                    };
                    self.go(of_value, &below, value);
                }
            }
            Value::Null => {}
            value => {
                let words = joined(&place.around, &place.own);
                self.leaves.push(Leaf { path: place.path.clone(), words, value });
            }
        }
    }

    /// The schema that a reference, or a choice between one and nothing, leads to.
    fn resolved(&self, mut schema: &'s Value) -> &'s Value {
        loop {
            let choices = schema.get("anyOf").and_then(Value::as_array);
            let choice = choices.and_then(|all| all.iter().find(|one| one.get("$ref").is_some()));
            let reference = choice.unwrap_or(schema).get("$ref").and_then(Value::as_str);
            let Some(found) = reference.and_then(|at| self.schema.pointer(at.strip_prefix('#')?)) else {
                return schema;
            };
            schema = found;
        }
    }

    /// A reason of refusals with its cause, any other name as it is.
    fn explained(&self, place: &Place, name: &str) -> String {
        let field = place.path.rsplit('.').next();
        let is_reason = matches!(field, Some("refused" | "shadowed"));
        let known = self.reasons.reasons.iter().find(|known| is_reason && known.reason == name);
        known.map_or_else(|| name.to_owned(), |known| format!("{name}, {}", known.cause))
    }
}

impl Place {
    fn below(&self, name: &str, around: String, own: String) -> Self {
        let path = if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) };
        Self { path, around, own }
    }
}

/// The fields by which one of a list is known.
const NAMES: [&str; 3] = ["name", "tier", "address"];

/// The words of a field behind those for what is around it.
fn joined(around: &str, own: &str) -> String {
    match (around, own) {
        ("", own) => own.to_owned(),
        (around, "") => around.to_owned(),
        (around, own) => {
            let mut letters = own.chars();
            let first = letters.next().into_iter().flat_map(char::to_lowercase);
            format!("{around}: {}{}", first.collect::<String>(), letters.as_str())
        }
    }
}

/// A field's description up to where its first sentence, or the part before a colon or semicolon, ends.
fn sentence(schema: &Value) -> String {
    let description = schema.get("description").and_then(Value::as_str).unwrap_or_default();
    let words = description.split_whitespace().collect::<Vec<_>>().join(" ");
    let end = [". ", ": ", "; "].iter().filter_map(|end| words.find(end)).min();
    words[..end.unwrap_or(words.len())].trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use schemars::schema_for;
    use serde_json::json;

    use super::*;
    use crate::admin::queues::Service;
    use crate::admin::tenants::Tenant;

    fn said(schema: &schemars::Schema, document: Value) -> Vec<(String, String)> {
        let leaves = leaves(schema.as_value(), document);
        leaves.into_iter().map(|leaf| (leaf.path, leaf.words)).collect()
    }

    #[test]
    fn a_leaf_has_the_words_of_its_field_and_of_what_is_around_it() {
        let tenant = json!({
            "name": "shop", "burst_ms": 5, "debt_ms": null,
            "refused": { "quota": 3, "unheard-of": 1 },
            "layers": { "proxy": { "passed": 1, "refused": { "slo": 2 } } },
        });
        let expected = [
            ("burst_ms", "How much of its quota it may have saved up"),
            ("layers.proxy.passed", "proxy: requests that passed"),
            (
                "layers.proxy.refused.slo",
                "proxy: requests refused, by reason: slo, it would have missed the objective of its query type",
            ),
            ("name", "Its name"),
            (
                "refused.quota",
                "Requests and TCP packets refused, by reason: quota, the tenant's bucket, or that of one that it is \
                 charged to, does not hold the price",
            ),
            ("refused.unheard-of", "Requests and TCP packets refused, by reason: unheard-of"),
        ];
        let mut said = said(&schema_for!(Tenant), tenant);
        said.sort();
        let said: Vec<_> = said.iter().map(|(path, words)| (path.as_str(), words.as_str())).collect();
        assert_eq!(said, expected);
    }

    #[test]
    fn members_of_a_list_are_known_by_their_names() {
        let service = json!({
            "name": "cache", "store": { "up": true },
            "tiers": [{ "tier": "critical", "waiting": 1 }, { "tier": "batch", "waiting": 2 }],
            "types": [{ "name": "get", "response_ms": { "p50": 1.0 } }],
        });
        let said = said(&schema_for!(Service), service);
        for (path, words) in [
            ("store.up", "Its store and its clients: true if it can be reached"),
            ("tiers.0.waiting", "critical: requests that wait"),
            ("tiers.1.waiting", "batch: requests that wait"),
            ("types.0.response_ms.p50", "get: how long they took together: the median"),
        ] {
            assert!(said.contains(&(path.to_owned(), words.to_owned())), "{words} in {said:?}");
        }
    }

    #[test]
    fn every_field_of_what_has_details_has_words_that_stand_alone() {
        for schema in [schema_for!(Tenant), schema_for!(Service), schema_for!(crate::admin::queues::Probed)] {
            let properties = schema.as_value()["properties"].as_object().unwrap();
            for (name, of_field) in properties {
                let words = sentence(of_field);
                assert!(!words.is_empty() && !words.contains("[`"), "{name}: {words:?}");
            }
        }
    }
}
