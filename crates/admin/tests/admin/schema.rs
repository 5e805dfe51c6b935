//! Checks a status against `docs/status.schema.json`, by as much of JSON Schema as that file uses.
//!
//! Stricter than a reader has to be: a field that the schema does not name is a fault here, so that none is added
//! without a word about it; and so is a keyword of the schema that this check does not know.

use serde_json::Value;

/// What is wrong with a status as it was sent; nothing if it is as the schema says.
pub(crate) fn faults(status: &Value) -> Vec<String> {
    let schema: Value = serde_json::from_str(include_str!("../../../../docs/status.schema.json")).unwrap();
    let mut faults = Vec::new();
    check(&schema, &schema, status, "$", &mut faults);
    faults
}

fn check(root: &Value, schema: &Value, value: &Value, place: &str, faults: &mut Vec<String>) {
    for (keyword, wanted) in schema.as_object().unwrap() {
        let mut fault = |what: String| faults.push(format!("{place}: {what}"));
        match keyword.as_str() {
            "$schema" | "$defs" | "title" | "description" => {}
            // What is required is asked for with the properties.
            "required" => {}
            "$ref" => {
                let pointer = wanted.as_str().unwrap().strip_prefix('#').unwrap();
                check(root, root.pointer(pointer).unwrap(), value, place, faults);
            }
            "type" => {
                let fits = |kind: &Value| match kind.as_str().unwrap() {
                    "object" => value.is_object(),
                    "array" => value.is_array(),
                    "string" => value.is_string(),
                    "boolean" => value.is_boolean(),
                    "null" => value.is_null(),
                    "integer" => value.is_u64() || value.is_i64(),
                    "number" => value.is_number(),
                    other => panic!("the schema has a type {other}"),
                };
                let good = wanted.as_array().map_or_else(|| fits(wanted), |kinds| kinds.iter().any(fits));
                if !good {
                    fault(format!("{value} is no {wanted}"));
                }
            }
            "enum" if !wanted.as_array().unwrap().contains(value) => {
                fault(format!("{value} is none of {wanted}"))
            }
            "minimum" if value.as_f64() < wanted.as_f64() && value.is_number() => {
                fault(format!("{value} is too small"))
            }
            "maximum" if value.as_f64() > wanted.as_f64() => fault(format!("{value} is too large")),
            "enum" | "minimum" | "maximum" => {}
            "items" => {
                for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                    check(root, wanted, item, &format!("{place}[{index}]"), faults);
                }
            }
            "properties" => {
                let (known, found) = (wanted.as_object().unwrap(), value.as_object());
                for name in schema["required"].as_array().unwrap() {
                    if found.is_some_and(|found| !found.contains_key(name.as_str().unwrap())) {
                        fault(format!("{name} is missing"));
                    }
                }
                for (name, value) in found.into_iter().flatten() {
                    match known.get(name) {
                        Some(schema) => check(root, schema, value, &format!("{place}.{name}"), faults),
                        None => faults.push(format!("{place}: {name} is not in the schema")),
                    }
                }
            }
            "additionalProperties" => {
                for (name, value) in value.as_object().into_iter().flatten() {
                    check(root, wanted, value, &format!("{place}.{name}"), faults);
                }
            }
            "anyOf" => {
                let of = |schema: &Value| {
                    let mut faults = Vec::new();
                    check(root, schema, value, place, &mut faults);
                    faults
                };
                let all: Vec<_> = wanted.as_array().unwrap().iter().map(of).collect();
                if all.iter().all(|faults| !faults.is_empty()) {
                    // The one that fits best says most.
                    faults.extend(all.into_iter().min_by_key(Vec::len).unwrap_or_default());
                }
            }
            other => panic!("{place}: the check does not know the keyword {other}"),
        }
    }
}
