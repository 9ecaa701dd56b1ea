//! Changes of documents that cost a control plane much, and none of which takes effect.

use crate::proxy_under_test::leno::{HOSTILE_NAMESPACE, VERSION};
use serde_json::json;

/// Functions, and rules that apply to each of them: nearly all copies of rules that a namespace may
/// have by default (100,000).
const COSTLY: (usize, usize) = (250, 390);
/// More than those.
const TOO_COSTLY: (usize, usize) = (900, 12_000);
/// Functions with an environment that together are nearly as large as a request of a namespace's
/// token may be (4 MiB).
const LARGE: (usize, usize) = (900, 3600);

/// The requests, in turn: a dry run that costs much, one that is large, one that would cost more
/// than the namespace may use, and a change that is as costly as the first and refused for its last
/// document.
pub(super) fn changes() -> Vec<String> {
    let costly = documents(COSTLY, 0);
    vec![
        change(&costly, true),
        change(&documents((LARGE.0, 1), LARGE.1), true),
        change(&documents(TOO_COSTLY, 0), true),
        change(&format!("{costly}---\n{}", policy("wrong", "functions: [missing]", 1)), false),
    ]
}

fn change(text: &str, dry_run: bool) -> String {
    json!({"apply": [{"name": "bomb.yaml", "text": text}], "dryRun": dry_run}).to_string()
}

/// So many functions with an environment of this size, and a policy for all of them with so many
/// rules.
fn documents((functions, rules): (usize, usize), environment: usize) -> String {
    let function = |number| {
        let value = "x".repeat(environment);
        format!(
            "{}spec: {{command: [\"true\"], env: {{VALUE: \"{value}\"}}}}\n---\n",
            head("Function", &format!("f{number}"))
        )
    };
    (0..functions).map(function).collect::<String>() + &policy("all", "selector: {}", rules)
}

fn policy(name: &str, of: &str, rules: usize) -> String {
    let rules: String = (0..rules).map(|number| format!("    - {{to: [{{paths: [/{number}]}}]}}\n")).collect();
    format!("{}spec:\n  {of}\n  authorization:\n    rules:\n{rules}", head("Policy", name))
}

fn head(kind: &str, name: &str) -> String {
    format!("apiVersion: {VERSION}\nkind: {kind}\nmetadata: {{name: {name}, namespace: {HOSTILE_NAMESPACE}}}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a token for one namespace, in bytes.
    const LARGEST_REQUEST: usize = 4 << 20;

    #[test]
    fn dry_runs_are_worked_on_and_the_change_is_refused() {
        let changes = changes();
        let accepted = |change: &String| {
            assert!(change.len() < LARGEST_REQUEST, "{} bytes are not read", change.len());
            let change: serde_json::Value = serde_json::from_str(change).unwrap();
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("bomb.yaml");
            let mesh =
                format!("apiVersion: {VERSION}\nkind: Mesh\nmetadata: {{name: m}}\nspec: {{trustDomain: m.example}}\n");
            std::fs::write(&path, format!("{mesh}---\n{}", change["apply"][0]["text"].as_str().unwrap())).unwrap();
            let problems = leno_config::load(&path).err().unwrap_or_default();
            (problems.is_empty(), change["dryRun"] == true)
        };
        let accepted: Vec<_> = changes.iter().map(accepted).collect();
        // The quota of rules is checked for files as well.
        assert_eq!(accepted, [(true, true), (true, true), (false, true), (false, false)]);
    }
}
