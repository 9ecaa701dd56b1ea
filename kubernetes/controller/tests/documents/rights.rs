//! The rights of the controller.

use crate::definitions::{repository, value};
use leno_config::foreign_documents;
use leno_controller::rights::{RIGHTS, Right, Scope};
use serde_json::{Value, json};
use std::fs;

/// The rules of the roles in `kubernetes/chart/templates/rbac.yaml`, with the kind of each role.
fn granted() -> Vec<(String, Value)> {
    let file = repository().join("kubernetes/chart/templates/rbac.yaml");
    let nodes = foreign_documents(&file, &fs::read_to_string(&file).unwrap()).unwrap();
    let roles: Vec<Value> = nodes.iter().map(value).collect();
    let is_of_controller = |subject: &Value| subject["name"] == "leno-controller";
    for binding in roles.iter().filter(|one| one["subjects"].is_array()) {
        assert!(binding["subjects"].as_array().unwrap().iter().all(is_of_controller), "others need no rights");
    }
    let rules = roles.iter().filter(|role| role["rules"].is_array()).flat_map(|role| {
        let kind = role["kind"].as_str().unwrap().to_owned();
        role["rules"].as_array().unwrap().iter().map(move |rule| (kind.clone(), rule.clone()))
    });
    rules.collect()
}

#[test]
fn roles_grant_what_calls_need_and_no_more() {
    let needed = RIGHTS.iter().map(|Right { scope, group, resources, names, verbs, .. }| {
        let mut rule = json!({"apiGroups": [group], "resources": resources, "verbs": verbs});
        if !names.is_empty() {
            rule["resourceNames"] = json!(names);
        }
        (if *scope == Scope::Cluster { "ClusterRole" } else { "Role" }.to_owned(), rule)
    });
    assert_eq!(granted(), needed.collect::<Vec<_>>());
}

#[test]
fn the_page_has_each_right_with_its_reason() {
    let page = fs::read_to_string(repository().join("docs/kubernetes.md")).unwrap();
    for Right { group, resources, verbs, names, reason, .. } in RIGHTS {
        let group = if group.is_empty() { "core" } else { group };
        let code = |all: &[&str]| all.iter().map(|one| format!("`{one}`")).collect::<Vec<_>>().join(", ");
        let names = if names.is_empty() { "all".to_owned() } else { code(names) };
        let row = format!("| {group} | {} | {names} | {} | {reason} |", code(resources), verbs.join(", "));
        assert!(page.contains(&row), "docs/kubernetes.md lacks: {row}");
    }
}
