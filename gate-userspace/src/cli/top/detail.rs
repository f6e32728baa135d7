//! All that is known of one row: the document's own fields, and what its counters rise by.

use serde_json::Value;

use super::reading::{Reading, Span};
use super::view::{View, source_key};
use crate::admin::verdicts::SourceList;
use crate::cli::print;

/// One field.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Field {
    /// Its path in the document, as `gate schema` names it.
    pub(super) path: String,
    pub(super) value: String,
    /// The increase of a counter, a second.
    pub(super) rate: Option<f64>,
}

/// The fields of what this row shows; none if it is gone.
pub(super) fn fields(view: View, key: &str, span: Span<'_>) -> Vec<Field> {
    let now = flat(find(view, key, span.now));
    let before = flat(span.before.and_then(|before| find(view, key, before)));
    let fields = now.into_iter().map(|(path, value)| {
        let was = before.iter().find(|(same, _)| *same == path).and_then(|(_, value)| value.as_f64());
        let rate = value.as_f64().filter(|_| is_counter(&path)).and_then(|now| span.rate(was, now));
        Field { value: shown(&value), path, rate }
    });
    fields.collect()
}

/// The part of the documents that a row shows.
fn find(view: View, key: &str, reading: &Reading) -> Option<Value> {
    let found = match view {
        View::Tenants => {
            // The listed ones may not have it any more.
            let mut tenants = reading.detail.iter().chain(&reading.tenants.tenants);
            serde_json::to_value(tenants.find(|tenant| tenant.name == key)?)
        }
        View::Services => match reading.queues.services.iter().find(|service| service.name == key) {
            Some(service) => serde_json::to_value(service),
            None => serde_json::to_value(reading.queues.probed.iter().find(|probed| probed.name == key)?),
        },
        View::Types => {
            let mut types = reading.queues.services.iter().flat_map(|service| {
                service
                    .types
                    .iter()
                    .map(move |of_type| (format!("{} {}", service.name, of_type.name), of_type))
            });
            serde_json::to_value(types.find(|(name, _)| name == key)?.1)
        }
        View::Keys => {
            let mut keys = reading.hotkeys.keys.iter();
            serde_json::to_value(keys.find(|one| format!("{} {}", one.service, one.key) == key)?)
        }
        View::Sources => {
            let SourceList { refused, unknown } = &reading.sources;
            serde_json::to_value(refused.iter().chain(unknown).find(|one| source_key(one) == key)?)
        }
    };
    found.ok()
}

/// The leaves of a document, with their paths.
fn flat(document: Option<Value>) -> Vec<(String, Value)> {
    let mut leaves = Vec::new();
    if let Some(document) = document {
        gather(String::new(), document, &mut leaves);
    }
    leaves
}

fn gather(path: String, value: Value, leaves: &mut Vec<(String, Value)>) {
    let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    match value {
        Value::Object(fields) => {
            fields.into_iter().for_each(|(name, value)| gather(below(&name), value, leaves));
        }
        Value::Array(values) => {
            values
                .into_iter()
                .enumerate()
                .for_each(|(place, value)| gather(below(&place.to_string()), value, leaves));
        }
        Value::Null => {}
        leaf => leaves.push((path, leaf)),
    }
}

/// True for what only rises while a gate runs.
fn is_counter(path: &str) -> bool {
    const COUNTERS: [&str; 9] = [
        "passed",
        "segments",
        "passed_bytes",
        "charged_ru",
        "refused_ru",
        "replied",
        "candidate_refused",
        "settled_ru",
        "failures",
    ];
    const MAPS: [&str; 3] = ["refused.", "shadowed.", "events."];
    COUNTERS.contains(&path) || MAPS.iter().any(|map| path.starts_with(map))
}

fn shown(value: &Value) -> String {
    match (value.as_u64(), value.as_f64(), value) {
        (Some(whole), _, _) => print::count(whole),
        (_, Some(number), _) => thousandths(number),
        (_, _, Value::String(text)) => text.clone(),
        _ => value.to_string(),
    }
}

/// A number to a thousandth, without zeros at its end.
fn thousandths(number: f64) -> String {
    format!("{number:.3}").trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::fixture::empty;
    use super::super::reading::Documents;
    use super::*;
    use crate::admin::queues::Probed;

    fn probed(secs: u64, failures: u64) -> Reading {
        let mut reading = empty(secs, Documents::Queues);
        let json = serde_json::json!({
            "name": "cache", "up": true, "latency_ratio": 0.5, "p95_ms": null, "failures": failures, "shedding": null,
            "rungs": [0, 0, 0, 1],
        });
        let probed: Probed = serde_json::from_value(json).unwrap();
        reading.queues.probed.push(probed);
        reading
    }

    #[test]
    fn every_field_is_there_and_counters_have_a_rate() {
        let before = probed(1, 1_000);
        let now = probed(3, 3_000);
        let fields = fields(View::Services, "cache", Span { before: Some(&before), now: &now });
        let said: Vec<_> =
            fields.iter().map(|field| (field.path.as_str(), field.value.as_str(), field.rate)).collect();
        for expected in [
            ("name", "cache", None),
            ("up", "true", None),
            ("latency_ratio", "0.5", None),
            ("failures", "3,000", Some(1_000.0)),
            ("rungs.3", "1", None),
        ] {
            assert!(said.contains(&expected), "{expected:?} in {said:?}");
        }
        assert!(!said.iter().any(|(path, ..)| *path == "p95_ms"), "what is not known is not shown");
    }

    #[test]
    fn what_is_gone_has_no_fields() {
        for view in View::ALL {
            let now = empty(1, view.documents());
            assert_eq!(fields(view, "gone", Span { before: None, now: &now }), []);
        }
    }
}
