//! Checks that the tables use every field of a policy, by the published schema of policies.

use super::engines;
use super::keys::Keys;
use super::table::Group;
use serde_json::Value;
use std::collections::BTreeSet;

/// Fields about the source of keys, the way programs are run, the functions of a policy, and the
/// steps after programs: verdicts do not depend on them.
const NO_PART_IN_VERDICTS: [(&str, &str); 14] = [
    ("Jwks", "file"),
    ("Jwks", "url"),
    ("Jwks", "caFile"),
    ("Jwks", "ca"),
    ("Jwks", "refresh"),
    ("Jwks", "timeout"),
    ("Sidecar", "engine"),
    ("Sidecar", "deadline"),
    ("Sidecar", "judgeEachRequest"),
    ("PolicySpec", "namespaces"),
    ("PolicySpec", "extensions"),
    ("PolicySpec", "externalAuthorization"),
    ("PolicySpec", "faults"),
    ("Metadata", "labels"),
];

/// The fields, each with its type, that no table uses.
pub(crate) fn unused(groups: &[Group], keys: &Keys) -> Vec<(String, String)> {
    let schema = leno_config::reference::schemas()
        .into_iter()
        .find_map(|(name, schema)| name.eq_ignore_ascii_case("policy").then_some(schema))
        .expect("a schema of policies");
    let mut used = BTreeSet::new();
    for policy in groups.iter().flat_map(|group| engines::policies(group, keys)) {
        visit(&schema, ("Policy", &schema), &policy, &mut used);
    }
    let types = schema["$defs"].as_object().expect("types").iter();
    let fields = types.flat_map(|(name, schema)| {
        let fields = schema["properties"].as_object().into_iter().flatten();
        fields.map(move |(field, _)| (name.clone(), field.clone()))
    });
    let matters = |(name, field): &(String, String)| {
        !["Extension", "Authorizer", "AuthorizerCache", "Fault", "FaultCondition", "FaultAbort"]
            .contains(&name.as_str())
            && !NO_PART_IN_VERDICTS.contains(&(name.as_str(), field.as_str()))
    };
    fields.filter(|field| !used.contains(field)).filter(matters).collect()
}

/// Notes the fields of a value of the named type.
fn visit(root: &Value, (name, schema): (&str, &Value), value: &Value, used: &mut BTreeSet<(String, String)>) {
    if let Some(name) = schema["$ref"].as_str().and_then(|reference| reference.strip_prefix("#/$defs/")) {
        return visit(root, (name, &root["$defs"][name]), value, used);
    }
    for alternatives in ["anyOf", "oneOf", "allOf"] {
        for schema in schema[alternatives].as_array().into_iter().flatten() {
            visit(root, (name, schema), value, used);
        }
    }
    match value {
        Value::Object(members) => {
            for (member, value) in members {
                if let Some(schema) = schema["properties"].get(member) {
                    used.insert((name.to_owned(), member.clone()));
                    visit(root, (name, schema), value, used);
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| visit(root, (name, &schema["items"]), item, used)),
        _ => {}
    }
}
