//! The part of Go's templates that Leno's chart uses, as Helm renders it: values, `if`, and a few
//! functions. Anything else is an error, so that a template cannot mean two things.

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

/// The values that a template can name.
pub(crate) struct Scope<'a> {
    /// `.Values`.
    pub values: &'a Value,
    /// The content of a file of the chart (`.Files.Get`).
    pub file: fn(&str) -> Option<&'static str>,
    /// The groups with versions that the cluster has (`.Capabilities.APIVersions`).
    pub api_versions: &'a [String],
    /// `.Release.Namespace`.
    pub namespace: &'a str,
}

/// Renders a template.
pub(crate) fn render(template: &str, scope: &Scope<'_>) -> Result<String> {
    let mut parts = parts(template)?.into_iter();
    let mut out = String::new();
    block(&mut parts, scope, true, &mut out)?.map_or(Ok(()), |end| bail!("`{end}` without an `if`"))?;
    Ok(out)
}

enum Part<'a> {
    Text(&'a str),
    Action(&'a str),
}

/// Cuts a template at its actions. `{{- ` and ` -}}` remove the white space beside them.
fn parts(mut rest: &str) -> Result<Vec<Part<'_>>> {
    let (mut parts, mut trims) = (Vec::new(), false);
    loop {
        let text = if trims { rest.trim_start() } else { rest };
        let Some((text, action)) = text.split_once("{{") else {
            parts.push(Part::Text(text));
            return Ok(parts);
        };
        let (action, after) = action.split_once("}}").context("an action has no end")?;
        let (text, action) = match action.strip_prefix("- ") {
            Some(action) => (text.trim_end(), action),
            None => (text, action),
        };
        let bare = action.strip_suffix(" -");
        trims = bare.is_some();
        parts.extend([Part::Text(text), Part::Action(bare.unwrap_or(action).trim())]);
        rest = after;
    }
}

/// Renders until `else` or `end`, which it returns. `is_shown`: the output counts.
fn block<'a>(
    parts: &mut std::vec::IntoIter<Part<'a>>,
    scope: &Scope<'_>,
    is_shown: bool,
    out: &mut String,
) -> Result<Option<&'a str>> {
    while let Some(part) = parts.next() {
        let action = match part {
            Part::Text(text) => {
                if is_shown {
                    out.push_str(text);
                }
                continue;
            }
            Part::Action(action) => action,
        };
        if action == "end" || action == "else" {
            return Ok(Some(action));
        }
        let Some(condition) = action.strip_prefix("if ") else {
            if is_shown {
                out.push_str(&printed(&evaluate(action, scope)?).with_context(|| format!("{{{{ {action} }}}}"))?);
            }
            continue;
        };
        let holds = is_shown && is_true(&evaluate(condition, scope)?);
        if block(parts, scope, holds, out)?.context("an `if` has no end")? == "else" {
            ensure!(block(parts, scope, is_shown && !holds, out)? == Some("end"), "an `else` has no end");
        }
    }
    Ok(None)
}

fn is_true(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(holds) => *holds,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(members) => !members.is_empty(),
    }
}

fn printed(value: &Value) -> Result<String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Bool(_) | Value::Number(_) => Ok(value.to_string()),
        _ => bail!("only texts, numbers and booleans have a form of their own; use `toJson`"),
    }
}

/// The value of `FIRST ARGUMENT … | SECOND ARGUMENT …`: each command gets the value before it as its
/// last argument.
fn evaluate(pipeline: &str, scope: &Scope<'_>) -> Result<Value> {
    let mut rest = pipeline;
    let (value, ended) = commands(&mut rest, scope)?;
    ensure!(!ended && rest.is_empty(), "{pipeline}: `)` without `(`");
    Ok(value)
}

/// Evaluates up to the end, or to a `)`.
fn commands(rest: &mut &str, scope: &Scope<'_>) -> Result<(Value, bool)> {
    let mut piped = None;
    loop {
        let (mut name, mut arguments) = (None, Vec::new());
        let ended = loop {
            *rest = rest.trim_start();
            let Some(first) = rest.chars().next() else { break None };
            match first {
                '|' | ')' => {
                    *rest = &rest[1..];
                    break Some(first);
                }
                '(' => {
                    *rest = &rest[1..];
                    let (value, ended) = commands(rest, scope)?;
                    ensure!(ended, "`(` without `)`");
                    arguments.push(value);
                }
                '"' => {
                    let mut texts = serde_json::Deserializer::from_str(rest).into_iter::<String>();
                    let text = texts.next().context("a text has no end")??;
                    *rest = &rest[texts.byte_offset()..];
                    arguments.push(text.into());
                }
                _ => {
                    let end = rest.find(|it: char| it.is_whitespace() || "|()".contains(it)).unwrap_or(rest.len());
                    let (word, after) = rest.split_at(end);
                    *rest = after;
                    match word.strip_prefix(".Values.") {
                        Some(path) => arguments.push(value_at(scope.values, path)?),
                        None if word == ".Release.Namespace" => arguments.push(scope.namespace.into()),
                        None if name.is_none() && arguments.is_empty() => name = Some(word),
                        None => bail!("`{word}` is unknown here"),
                    }
                }
            }
        };
        arguments.extend(piped.take());
        let value = match name {
            Some(name) => call(name, &arguments, scope)?,
            None => {
                ensure!(arguments.len() == 1, "a command is one value, or a function with its arguments");
                arguments.remove(0)
            }
        };
        match ended {
            Some('|') => piped = Some(value),
            ended => return Ok((value, ended.is_some())),
        }
    }
}

fn value_at(values: &Value, path: &str) -> Result<Value> {
    let found = path.split('.').try_fold(values, |value, name| value.get(name));
    found.cloned().with_context(|| format!("the chart has no value `{path}`"))
}

fn call(name: &str, arguments: &[Value], scope: &Scope<'_>) -> Result<Value> {
    let text = |index: usize| arguments.get(index).and_then(Value::as_str).context("a text is missing");
    match (name, arguments.len()) {
        (".Files.Get", 1) => {
            Ok((scope.file)(text(0)?).with_context(|| format!("the chart has no file {}", arguments[0]))?.into())
        }
        (".Capabilities.APIVersions.Has", 1) => Ok(scope.api_versions.iter().any(|it| arguments[0] == **it).into()),
        ("and", 2..) => Ok(arguments.iter().find(|it| !is_true(it)).or(arguments.last()).cloned().unwrap_or_default()),
        ("or", 2..) => Ok(arguments.iter().find(|it| is_true(it)).or(arguments.last()).cloned().unwrap_or_default()),
        ("not", 1) => Ok(json!(!is_true(&arguments[0]))),
        ("eq", 2) => Ok(json!(arguments[0] == arguments[1])),
        ("ne", 2) => Ok(json!(arguments[0] != arguments[1])),
        ("replace", 3) => Ok(text(2)?.replace(text(0)?, text(1)?).into()),
        ("toJson", 1) => Ok(arguments[0].to_string().into()),
        ("fail", 1) => bail!("{}", text(0)?),
        _ => bail!("`{name}` with {} arguments is no function of Leno's chart", arguments.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(template: &str) -> String {
        let values = json!({"on": true, "off": false, "name": "a\"b", "count": 2, "list": [{"k": 1}], "none": {}});
        let file = |name: &str| (name == "f").then_some("\nx: 1\n");
        let api_versions = ["apps/v1".to_owned()];
        let scope = Scope { values: &values, file, api_versions: &api_versions, namespace: "n" };
        render(template, &scope).unwrap_or_else(|error| format!("error: {error:#}"))
    }

    #[test]
    fn templates_render_as_with_helm() {
        for (template, wanted) in [
            ("a {{ .Values.count }} b", "a 2 b"),
            ("{{ .Values.name | toJson }}", "\"a\\\"b\""),
            ("{{ .Values.list | toJson }}", "[{\"k\":1}]"),
            ("{{- if .Values.on }}\nyes\n{{- else }}\nno\n{{- end }}\n", "\nyes\n"),
            ("{{- if .Values.none }}\nyes\n{{- else }}\nno\n{{- end }}\n", "\nno\n"),
            ("{{ if .Values.off }}{{ if .Values.on }}a{{ else }}b{{ end }}{{ fail \"x\" }}{{ end }}c", "c"),
            ("a  {{- .Values.count -}}  b", "a2b"),
            ("{{ if and .Values.on (.Capabilities.APIVersions.Has \"apps/v1\") }}x{{ end }}", "x"),
            ("{{ if and .Values.on (not (.Capabilities.APIVersions.Has \"apps/v2\")) }}x{{ end }}", "x"),
            ("{{ if or .Values.off .Values.none }}x{{ end }}", ""),
            ("{{ if ne .Release.Namespace \"n\" }}x{{ end }}{{ if eq .Values.count .Values.count }}y{{ end }}", "y"),
            ("{{ .Files.Get \"f\" | replace \"\\nx\" \"\\ny\" }}", "\ny: 1\n"),
        ] {
            assert_eq!(rendered(template), wanted, "{template}");
        }
    }

    #[test]
    fn other_templates_are_refused() {
        for (template, reason) in [
            ("{{ .Values.more }}", "no value `more`"),
            ("{{ .Values.list }}", "use `toJson`"),
            ("{{ .Chart.Name }}", "no function"),
            ("{{ range .Values.list }}", "no function"),
            ("{{ .Values.on", "has no end"),
            ("{{ if .Values.on }}", "`if` has no end"),
            ("{{ end }}", "without an `if`"),
            ("{{ (.Values.on }}", "without `)`"),
            ("{{ .Values.on ) }}", "without `(`"),
            ("{{ fail \"no: such\" }}", "no: such"),
            ("{{ .Files.Get \"g\" }}", "no file"),
            ("{{ \"a }}", "EOF"),
        ] {
            let found = rendered(template);
            assert!(found.starts_with("error: ") && found.contains(reason), "{template}: {found}");
        }
    }
}
