//! A Function document's text -> the same text with another `spec.traffic`.

use crate::document::TrafficTarget;
use crate::yaml::{self, Mark, Node, Value};
use leno_model::FunctionId;
use serde_json::{Value as Json, json};

/// The text of a function's document with this `traffic`; empty: without the field. Everything else
/// stays as it is written, comments within `traffic` excepted. `None`: the text has no document of the
/// function, or one in a form that is not edited.
pub fn with_traffic(text: &str, id: &FunctionId, traffic: &[TrafficTarget]) -> Option<String> {
    let documents = read(text)?;
    let at = documents.iter().position(|node| is_of(node, id))?;
    let spec = documents[at].get("spec")?;
    let Value::Map(entries) = &spec.value else { return None };
    let is_flow = text.get(offset(text, spec.mark)?..)?.starts_with('{');
    let field = if text.trim_start().starts_with('{') {
        format!("\"traffic\": {}", Json::from_iter(traffic.iter().map(|target| Json::from_iter(fields(target)))))
    } else {
        format!("traffic: [{}]", traffic.iter().map(flow).collect::<Vec<_>>().join(", "))
    };
    let changed = match entries.iter().find(|(key, _)| key.text == "traffic") {
        Some((key, node)) => {
            let (begin, end) = (offset(text, key.mark)?, end(text, node)?);
            let (before, after) = (&text[..begin], &text[end..]);
            match (traffic.is_empty(), is_flow) {
                (false, _) => format!("{before}{field}{after}"),
                (true, false) => {
                    format!("{}{}", before.trim_end_matches(' '), after.strip_prefix('\n').unwrap_or(after))
                }
                (true, true) => match after.trim_start().strip_prefix(',') {
                    Some(rest) => format!("{before}{}", rest.trim_start()),
                    None => format!("{}{after}", before.trim_end().strip_suffix(',').unwrap_or(before)),
                },
            }
        }
        None if traffic.is_empty() => return Some(text.to_owned()),
        None => {
            let (first, _) = entries.first()?;
            let begin = offset(text, first.mark)?;
            let column = usize::try_from(first.mark.column).ok()?.checked_sub(1)?;
            let separator = if is_flow { ", ".to_owned() } else { format!("\n{}", " ".repeat(column)) };
            format!("{}{field}{separator}{}", &text[..begin], &text[begin..])
        }
    };
    let after = read(&changed)?;
    let same = |(before, after): (&Node, &Node)| without_traffic(before).says_the_same(&without_traffic(after));
    let written = after.get(at)?.get("spec")?.get("traffic");
    let wanted = read(&field)?;
    let is_written = match written {
        Some(written) => wanted.first()?.get("traffic").is_some_and(|wanted| wanted.says_the_same(written)),
        None => traffic.is_empty(),
    };
    let rest = documents.len() == after.len() && documents.iter().zip(&after).all(same);
    (is_written && rest).then_some(changed)
}

fn read(text: &str) -> Option<Vec<Node>> {
    yaml::documents(text).into_iter().collect::<Result<_, _>>().ok()
}

fn is_of(document: &Node, id: &FunctionId) -> bool {
    let metadata = |field: &str| document.get("metadata").and_then(|metadata| metadata.get(field)).and_then(Node::text);
    document.get("kind").and_then(Node::text) == Some("Function")
        && metadata("name") == Some(&id.name)
        && metadata("namespace").unwrap_or("default") == id.namespace
}

fn without_traffic(document: &Node) -> Node {
    let mut document = document.clone();
    if let Value::Map(entries) = &mut document.value {
        let spec = entries.iter_mut().filter(|(key, _)| key.text == "spec");
        for (_, spec) in spec {
            if let Value::Map(entries) = &mut spec.value {
                entries.retain(|(key, _)| key.text != "traffic");
            }
        }
    }
    document
}

/// The position after a list.
fn end(text: &str, list: &Node) -> Option<usize> {
    let begin = offset(text, list.mark)?;
    if text[begin..].starts_with('[') {
        let (mut depth, mut quote) = (0, None);
        for (at, letter) in text[begin..].char_indices() {
            match (quote, letter) {
                (Some(open), letter) if open == letter => quote = None,
                (Some(_), _) => {}
                (None, '"' | '\'') => quote = Some(letter),
                (None, '[' | '{') => depth += 1,
                (None, ']' | '}') => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return Some(begin + at + 1);
            }
        }
        return None;
    }
    // A block list ends with the line of its last value.
    let last = offset(text, Mark { column: 1, ..last_mark(list) })?;
    Some(text[last..].find('\n').map_or(text.len(), |line| last + line))
}

fn last_mark(node: &Node) -> Mark {
    let last = match &node.value {
        Value::Scalar { .. } => None,
        Value::List(nodes) => nodes.last(),
        Value::Map(entries) => entries.last().map(|(_, node)| node),
    };
    last.map_or(node.mark, last_mark)
}

/// The position in bytes.
pub(crate) fn offset(text: &str, mark: Mark) -> Option<usize> {
    let line = usize::try_from(mark.line).ok()?.checked_sub(1)?;
    let begin: usize = text.split_inclusive('\n').take(line).map(str::len).sum();
    let column = usize::try_from(mark.column).ok()?.checked_sub(1)?;
    let (offset, _) = text.get(begin..)?.char_indices().nth(column)?;
    Some(begin + offset)
}

/// The written fields of a target, in the order in which people write them.
fn fields(target: &TrafficTarget) -> Vec<(&'static str, Json)> {
    let TrafficTarget { revision, latest, percent, tag, headers } = target;
    let fields = [
        ("revision", revision.as_ref().map(|name| json!(name))),
        ("latest", latest.map(|latest| json!(latest))),
        ("percent", percent.map(|percent| json!(percent))),
        ("tag", tag.as_ref().map(|tag| json!(tag))),
        ("headers", (!headers.is_empty()).then(|| json!(headers))),
    ];
    fields.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

/// One line, as people write it: `{revision: next, percent: 100}`.
pub fn flow(target: &TrafficTarget) -> String {
    fn mapping<'a>(fields: impl Iterator<Item = (&'a str, &'a Json)>) -> String {
        let fields = fields.map(|(name, content)| format!("{name}: {}", value(content)));
        format!("{{{}}}", fields.collect::<Vec<_>>().join(", "))
    }
    fn value(json: &Json) -> String {
        match json {
            Json::String(text) if is_plain(text) => text.clone(),
            Json::Object(fields) => mapping(fields.iter().map(|(name, value)| (&**name, value))),
            other => other.to_string(),
        }
    }
    mapping(fields(target).iter().map(|(name, value)| (*name, value)))
}

/// Whether YAML reads it as text without quotes.
fn is_plain(text: &str) -> bool {
    const OTHERS: [&str; 9] = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    text.starts_with(|first: char| first.is_ascii_lowercase())
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        && !OTHERS.contains(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: &str = "# a shop\napiVersion: leno.dev/v1alpha1\nkind: Function\nmetadata: {name: shop, namespace: demo}\nspec:\n  command: [shop] # its program\n  traffic:\n  - {revision: stable, percent: 90}\n  - revision: next\n    percent: 10\n  queue: 7\n";
    const LAST: &str = "kind: Function\nmetadata: {name: shop, namespace: demo}\nspec:\n  command: [shop]\n  traffic: [{revision: stable, percent: 100, tag: \"]\"}]";
    const FLOW: &str = "kind: Function\nmetadata: {name: shop, namespace: demo}\nspec: {command: [shop], traffic: [{revision: stable, percent: 100}]}\n";
    const WITHOUT: &str = "kind: Function\nmetadata: {name: shop, namespace: demo}\nspec:\n  command: [shop]\n";
    const JSON: &str =
        r#"{"kind": "Function", "metadata": {"name": "shop", "namespace": "demo"}, "spec": {"command": ["shop"]}}"#;

    fn target(name: &str, percent: u8) -> TrafficTarget {
        TrafficTarget { revision: Some(name.to_owned()), percent: Some(percent), ..TrafficTarget::default() }
    }

    #[test]
    fn only_the_field_changes() {
        let id = FunctionId::new("demo", "shop").unwrap();
        let new = [target("next", 70), target("on", 30)];
        let line = "traffic: [{revision: next, percent: 70}, {revision: \"on\", percent: 30}]";
        let changed = with_traffic(BLOCK, &id, &new).unwrap();
        assert_eq!(
            changed,
            BLOCK.replace("traffic:\n  - {revision: stable, percent: 90}\n  - revision: next\n    percent: 10", line)
        );
        assert!(with_traffic(LAST, &id, &new).unwrap().ends_with(&format!("[shop]\n  {line}")));
        assert!(with_traffic(FLOW, &id, &new).unwrap().ends_with(&format!("[shop], {line}}}\n")));
        assert!(with_traffic(WITHOUT, &id, &new).unwrap().ends_with(&format!("spec:\n  {line}\n  command: [shop]\n")));
        let changed = with_traffic(JSON, &id, &new).unwrap();
        assert_eq!(serde_json::from_str::<Json>(&changed).unwrap()["spec"]["traffic"][1]["percent"], 30, "{changed}");
        for (text, id) in [(BLOCK, "demo/stock"), (WITHOUT, "shop/shop"), ("kind: [", "demo/shop")] {
            assert_eq!(with_traffic(text, &id.parse().unwrap(), &new), None);
        }
    }

    #[test]
    fn the_field_is_removed_as_a_whole() {
        let id = FunctionId::new("demo", "shop").unwrap();
        let without = with_traffic(BLOCK, &id, &[]).unwrap();
        assert!(without.ends_with("# its program\n  queue: 7\n"), "{without}");
        assert!(with_traffic(LAST, &id, &[]).unwrap().trim_end().ends_with("command: [shop]"));
        assert!(with_traffic(FLOW, &id, &[]).unwrap().ends_with("spec: {command: [shop]}\n"));
        assert_eq!(with_traffic(WITHOUT, &id, &[]).unwrap(), WITHOUT);
    }
}
