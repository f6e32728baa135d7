//! All that is known of one row: the fields of its document in the words of their schema, and what its counters rise by.

use schemars::{JsonSchema, Schema, schema_for};
use serde::Serialize;
use serde_json::Value;

use super::leaves::{Leaf, leaves};
use super::reading::{Reading, Span};
use super::view::{View, source_key};
use crate::admin::verdicts::SourceList;
use crate::cli::print;

/// One field.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Field {
    /// Its meaning.
    pub(super) words: String,
    /// With its unit.
    pub(super) value: String,
    /// The increase of a counter, a second.
    pub(super) rate: Option<f64>,
}

/// The fields of what this row shows; none if it is gone.
pub(super) fn fields(view: View, key: &str, span: Span<'_>) -> Vec<Field> {
    let now = find(view, key, span.now).map(Part::leaves).unwrap_or_default();
    let before = span.before.and_then(|before| find(view, key, before)).map(Part::leaves).unwrap_or_default();
    let fields = now.into_iter().map(|Leaf { path, words, value }| {
        let was = before.iter().find(|leaf| leaf.path == path).and_then(|leaf| leaf.value.as_f64());
        let rate = value.as_f64().filter(|_| is_counter(&path)).and_then(|now| span.rate(was, now));
        Field { value: shown(&path, &value), words, rate }
    });
    fields.collect()
}

/// The part of a document that a row shows, and its schema.
struct Part {
    value: Value,
    schema: Schema,
}

impl Part {
    fn of<T: Serialize + JsonSchema>(document: &T) -> Option<Self> {
        Some(Self { value: serde_json::to_value(document).ok()?, schema: schema_for!(T) })
    }

    fn leaves(self) -> Vec<Leaf> {
        leaves(self.schema.as_value(), self.value)
    }
}

/// The part of the documents that a row shows.
fn find(view: View, key: &str, reading: &Reading) -> Option<Part> {
    match view {
        View::Tenants => {
            // The listed ones may not have it any more.
            let mut tenants = reading.detail.iter().chain(&reading.tenants.tenants);
            Part::of(tenants.find(|tenant| tenant.name == key)?)
        }
        View::Services => match reading.queues.services.iter().find(|service| service.name == key) {
            Some(service) => Part::of(service),
            None => Part::of(reading.queues.probed.iter().find(|probed| probed.name == key)?),
        },
        View::Types => {
            let services = reading.queues.services.iter();
            let named =
                services.flat_map(|service| service.types.iter().map(move |of_type| (service, of_type)));
            let mut found =
                named.filter(|(service, of_type)| format!("{} {}", service.name, of_type.name) == key);
            Part::of(found.next()?.1)
        }
        View::Keys => {
            let mut keys = reading.hotkeys.keys.iter();
            Part::of(keys.find(|one| format!("{} {}", one.service, one.key) == key)?)
        }
        View::Sources => {
            let SourceList { refused, unknown } = &reading.sources;
            Part::of(refused.iter().chain(unknown).find(|one| source_key(one) == key)?)
        }
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

/// A value as a person writes it, with the unit that its path names.
fn shown(path: &str, value: &Value) -> String {
    let number = match (value.as_u64(), value.as_f64(), value) {
        (Some(whole), _, _) => print::count(whole),
        (_, Some(number), _) => thousandths(number),
        (_, _, Value::String(text)) => return text.clone(),
        (_, _, Value::Bool(true)) => return "yes".to_owned(),
        (_, _, Value::Bool(false)) => return "no".to_owned(),
        _ => return value.to_string(),
    };
    let unit = UNITS.iter().find(|(suffix, _)| path.split('.').any(|name| name.ends_with(suffix)));
    unit.map_or_else(|| number.clone(), |(_, unit)| format!("{number}{unit}"))
}

/// The units of fields, by how their names end.
const UNITS: [(&str, &str); 6] = [
    ("_ru_per_sec", " RU/s"),
    ("_ru", " RU"),
    ("_ms", " ms"),
    ("_for_s", " s"),
    ("_bytes", " bytes"),
    ("_percent", "%"),
];

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
            fields.iter().map(|field| (field.words.as_str(), field.value.as_str(), field.rate)).collect();
        for expected in [
            ("Its name", "cache", None),
            ("True if it can be reached", "yes", None),
            ("How its store is doing", "0.5", None),
            ("Probes that failed since the start", "3,000", Some(1_000.0)),
        ] {
            assert!(said.contains(&expected), "{expected:?} in {said:?}");
        }
        assert!(!said.iter().any(|(words, ..)| words.contains("p95")), "what is not known is not shown");
    }

    #[test]
    fn what_is_gone_has_no_fields() {
        for view in View::ALL {
            let now = empty(1, view.documents());
            assert_eq!(fields(view, "gone", Span { before: None, now: &now }), []);
        }
    }
}
