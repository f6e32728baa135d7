//! JSON schemas, as far as `gate schema` uses them: whether a document fits one.

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Map, Value};

/// Compares a document with a schema. Stricter than JSON schema: fields that the schema does not list are faults, and so are
/// keywords that this does not know.
///
/// # Errors
///
/// The first place where they differ.
pub fn check(schema: &Value, document: &Value) -> Result<()> {
    fits(schema, schema, document, "$")
}

fn fits(root: &Value, schema: &Value, value: &Value, at: &str) -> Result<()> {
    let Value::Object(schema) = schema else {
        ensure!(schema == &Value::Bool(true), "{at}: nothing fits {schema}");
        return Ok(());
    };
    for (keyword, rule) in schema {
        match keyword.as_str() {
            "$schema" | "$defs" | "title" | "description" | "default" => {}
            // Of an object or a list.
            "properties" | "additionalProperties" | "items" => {}
            "format" => {}
            "$ref" => {
                let path =
                    rule.as_str().and_then(|path| path.strip_prefix('#')).context("a foreign reference")?;
                fits(root, root.pointer(path).with_context(|| format!("no {path}"))?, value, at)?;
            }
            "type" => ensure!(is_of_type(rule, value), "{at}: {value} is no {rule}"),
            "minimum" => {
                ensure!(value.is_null() || value.as_f64() >= rule.as_f64(), "{at}: {value} is below {rule}")
            }
            "maximum" => {
                ensure!(value.is_null() || value.as_f64() <= rule.as_f64(), "{at}: {value} is above {rule}")
            }
            "minItems" | "maxItems" => {
                let len = value.as_array().map(|list| list.len() as u64);
                let fits = if keyword == "minItems" { len >= rule.as_u64() } else { len <= rule.as_u64() };
                ensure!(fits, "{at}: {keyword} is {rule}");
            }
            "required" => {
                for name in rule.as_array().into_iter().flatten().filter_map(Value::as_str) {
                    ensure!(value.get(name).is_some(), "{at}: lacks {name}");
                }
            }
            "anyOf" => {
                let one = rule.as_array().into_iter().flatten().any(|one| fits(root, one, value, at).is_ok());
                ensure!(one, "{at}: {value} fits none of {rule}");
            }
            "oneOf" => {
                let all = rule.as_array().into_iter().flatten();
                let fitting = all.filter(|one| fits(root, one, value, at).is_ok()).count();
                ensure!(fitting == 1, "{at}: {value} fits {fitting} of {rule}");
            }
            "const" => ensure!(value == rule, "{at}: {value} is not {rule}"),
            other => bail!("{at}: the keyword {other} is not known here"),
        }
    }
    match value {
        Value::Object(fields) => fields_fit(root, schema, fields, at),
        Value::Array(items) => {
            let rule = schema.get("items").unwrap_or(&Value::Bool(true));
            items.iter().enumerate().try_for_each(|(n, item)| fits(root, rule, item, &format!("{at}[{n}]")))
        }
        _ => Ok(()),
    }
}

fn fields_fit(
    root: &Value,
    schema: &Map<String, Value>,
    fields: &Map<String, Value>,
    at: &str,
) -> Result<()> {
    if schema.contains_key("$ref") || schema.contains_key("anyOf") {
        return Ok(());
    }
    let other = schema.get("additionalProperties").unwrap_or(&Value::Bool(false));
    for (name, value) in fields {
        let rule = schema.get("properties").and_then(|known| known.get(name)).unwrap_or(other);
        fits(root, rule, value, &format!("{at}.{name}"))?;
    }
    Ok(())
}

fn is_of_type(rule: &Value, value: &Value) -> bool {
    let is = |name: &Value| match name.as_str() {
        Some("null") => value.is_null(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_u64() || value.is_i64(),
        Some("number") => value.is_number(),
        Some("string") => value.is_string(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        _ => false,
    };
    rule.as_array().map_or_else(|| is(rule), |names| names.iter().any(is))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_differs_from_a_schema_is_found() {
        let schema = json!({
            "type": "object", "required": ["a"],
            "properties": { "a": { "type": "integer", "minimum": 0 }, "b": { "type": ["string", "null"] },
                "d": { "type": ["integer", "null"], "minimum": 0, "maximum": 9 } }
        });
        for fitting in [
            json!({"a": 1}),
            json!({"a": 0, "b": null}),
            json!({"a": 1, "b": "x"}),
            json!({"a": 1, "d": null}),
        ] {
            check(&schema, &fitting).unwrap();
        }
        for wrong in [
            json!({}),
            json!([]),
            json!({"a": -1}),
            json!({"a": 1, "b": 2}),
            json!({"a": 1, "c": 1}),
            json!({"a": 1, "d": -1}),
        ] {
            assert!(check(&schema, &wrong).is_err(), "{wrong}");
        }
        let one_of = json!({"oneOf": [{"const": "x"}, {"const": "y"}, {"const": "y"}]});
        assert!(check(&one_of, &json!("x")).is_ok());
        assert!(check(&one_of, &json!("y")).is_err() && check(&one_of, &json!("z")).is_err());
        assert!(check(&json!({"pattern": "x"}), &json!("x")).is_err());
    }
}
