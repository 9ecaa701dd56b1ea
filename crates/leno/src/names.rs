//! Names as users write them: `name` with `-n NAMESPACE`, or `namespace/name`.

use crate::screen::shown;
use anyhow::{Result, bail, ensure};
use leno_model::FunctionId;
use serde_json::Value;
use std::fmt;

/// The namespace of names and listings.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct NamespaceOptions {
    /// Namespace of names without one, and of listings. Without it: that of the context.
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Functions, documents and the like of all namespaces.
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,
}

/// The rows of a listing that a user asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Selection {
    /// `None`: all namespaces.
    pub namespace: Option<String>,
    /// `None`: all names.
    pub name: Option<String>,
}

/// Fields that name the function, document or the like of a row.
const NAMES: [&str; 13] = [
    "function",
    "route",
    "gateway",
    "instance",
    "job",
    "revision",
    "external",
    "chain",
    "identity",
    "node",
    "namespace",
    "name",
    "id",
];

impl NamespaceOptions {
    /// The rows of this name, or all. `of_context`: the namespace of the context.
    pub(crate) fn selection(&self, of_context: Option<&str>, name: Option<&str>) -> Result<Selection> {
        let namespace = match &self.namespace {
            Some(namespace) => Some(namespace.as_str()),
            None => of_context.filter(|_| !self.all_namespaces),
        };
        let own = |text: &str| text.to_owned();
        match name.and_then(|name| name.split_once('/')) {
            Some((named, name)) => {
                if let Some(namespace) = &self.namespace {
                    ensure!(namespace == named, "`{named}/{name}` is not in the namespace `{namespace}` (-n)");
                }
                Ok(Selection { namespace: Some(own(named)), name: Some(own(name)) })
            }
            None => Ok(Selection { namespace: namespace.map(own), name: name.map(own) }),
        }
    }

    /// The function of this name. Without any namespace it is in `default`.
    pub(crate) fn function(&self, of_context: Option<&str>, text: &str) -> Result<FunctionId> {
        if self.all_namespaces {
            bail!("-A is for listings; name the function as namespace/name");
        }
        let Selection { namespace, name } = self.selection(of_context, Some(text))?;
        Ok(FunctionId::new(namespace.as_deref().unwrap_or("default"), &name.unwrap_or_default())?)
    }
}

impl Selection {
    /// Whether a row is selected. Rows without a namespace are in all of them.
    pub(crate) fn includes(&self, row: &Value) -> bool {
        let texts = || NAMES.iter().filter_map(|field| row[*field].as_str());
        let namespaces: Vec<&str> = match row["namespace"].as_str() {
            Some(namespace) => vec![namespace],
            None if row["changes"].is_array() => documents(row).map(|text| split(text).0).collect(),
            None => texts().filter_map(|text| Some(split(text).0).filter(|namespace| !namespace.is_empty())).collect(),
        };
        let in_namespace =
            self.namespace.as_deref().is_none_or(|wanted| namespaces.is_empty() || namespaces.contains(&wanted));
        in_namespace
            && self.name.as_deref().is_none_or(|wanted| texts().any(|text| text == wanted || split(text).1 == wanted))
    }
}

impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = shown(self.name.as_deref().unwrap_or("*"));
        match &self.namespace {
            Some(namespace) => write!(f, "{}/{name}", shown(namespace)),
            None => f.write_str(&name),
        }
    }
}

/// The names of the documents of a change, without their kinds.
fn documents(row: &Value) -> impl Iterator<Item = &str> {
    let all = row["changes"].as_array().into_iter().flatten();
    all.filter_map(|changed| Some(changed["what"].as_str()?.split_once(' ')?.1))
}

/// Namespace and name of `namespace/name`, or of a SPIFFE ID; the namespace may be empty.
fn split(text: &str) -> (&str, &str) {
    if let Some((_, names)) = text.split_once("/ns/") {
        return names.split_once("/sa/").unwrap_or(("", names));
    }
    text.split_once('/').unwrap_or(("", text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn options(namespace: Option<&str>, all_namespaces: bool) -> NamespaceOptions {
        NamespaceOptions { namespace: namespace.map(str::to_owned), all_namespaces }
    }

    #[test]
    fn rows_are_selected_by_namespace_and_name() {
        let rows = [
            json!({ "function": "demo/shop", "ready": 1 }),
            json!({ "function": "other/shop" }),
            json!({ "instance": "demo/shop/3", "function": "demo/shop" }),
            json!({ "identity": "spiffe://mesh.example/ns/demo/sa/shop" }),
            json!({ "kind": "Policy", "namespace": "demo", "name": "rules" }),
            json!({ "node": "one", "zone": "a" }),
            json!({ "changes": [{ "what": "Function demo/shop" }, { "what": "Policy other/p" }] }),
        ];
        let included = |options: NamespaceOptions, of_context, name| {
            let selection = options.selection(of_context, name).unwrap();
            rows.iter().enumerate().filter(|(_, row)| selection.includes(row)).map(|(at, _)| at).collect::<Vec<_>>()
        };
        assert_eq!(included(options(None, false), None, None), [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(included(options(Some("demo"), false), Some("other"), None), [0, 2, 3, 4, 5, 6]);
        assert_eq!(included(options(Some("third"), false), None, None), [5]);
        assert_eq!(included(options(None, false), Some("other"), None), [1, 5, 6]);
        assert_eq!(included(options(None, true), Some("other"), None), [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(included(options(None, false), None, Some("shop")), [0, 1, 2, 3]);
        assert_eq!(included(options(None, false), Some("demo"), Some("other/shop")), [1]);
        assert_eq!(included(options(None, false), None, Some("demo/shop/3")), [2]);
        assert_eq!(included(options(None, false), None, Some("one")), [5]);
        assert!(options(Some("demo"), false).selection(None, Some("other/shop")).is_err());
    }

    #[test]
    fn functions_are_in_the_namespace_of_option_context_or_default() {
        let function =
            |options: NamespaceOptions, of_context, text| options.function(of_context, text).unwrap().to_string();
        assert_eq!(function(options(None, false), None, "shop"), "default/shop");
        assert_eq!(function(options(None, false), Some("demo"), "shop"), "demo/shop");
        assert_eq!(function(options(Some("a"), false), Some("demo"), "shop"), "a/shop");
        assert_eq!(function(options(None, false), Some("demo"), "a/shop"), "a/shop");
    }
}
