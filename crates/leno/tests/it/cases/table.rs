//! The form of the tables. `tests/cases/README.md` describes it.

use super::yaml;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

/// Cases and the policies that they test: one YAML document.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawGroup {
    about: String,
    #[serde(default)]
    spec: Option<Value>,
    #[serde(default)]
    policies: Vec<Value>,
    #[serde(default)]
    function: Map<String, Value>,
    #[serde(default)]
    defaults: Value,
    cases: Vec<Value>,
}

pub(crate) struct Group {
    pub file: String,
    pub about: String,
    /// Policies as documents have them, without `apiVersion` and `kind`.
    pub policies: Vec<Value>,
    /// Further fields of the specification of the function `shop/cart`.
    pub function: Map<String, Value>,
    pub cases: Vec<Case>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Case {
    pub name: String,
    #[serde(default)]
    pub outbound: bool,
    #[serde(default)]
    pub request: Request,
    /// The token of `authorization: Bearer …`, unless the request has that field or contains
    /// `<token>`.
    #[serde(default)]
    pub token: Option<Token>,
    /// Further tokens, by the names that the request contains as `<name>`.
    #[serde(default)]
    pub tokens: BTreeMap<String, Token>,
    /// Seconds since 1970.
    #[serde(default = "default_now")]
    pub now: f64,
    /// The runtime's random numbers.
    #[serde(default = "default_random")]
    pub random: [u64; 4],
    #[serde(default)]
    pub load: Load,
    /// The calling instance's current span.
    #[serde(default)]
    pub parent: Option<String>,
    /// The `tracestate` of that span.
    #[serde(default)]
    pub parent_state: String,
    /// Earlier requests, judged before this one.
    #[serde(default)]
    pub history: Vec<Past>,
    /// The response to edit after the verdict on the request.
    #[serde(default)]
    pub answer: Option<Answer>,
    pub expect: Expect,
}

fn default_now() -> f64 {
    1_000_000.0
}

fn default_random() -> [u64; 4] {
    [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210, 0x1122_3344_5566_7788, 0]
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Request {
    pub method: String,
    pub authority: String,
    pub path: String,
    /// A text, or a list for repeated fields.
    pub headers: BTreeMap<String, Texts>,
    /// `namespace/name` or a whole SPIFFE ID.
    pub identity: Option<String>,
    pub address: IpAddr,
    pub port: u16,
    pub protocol: String,
    /// The function that the request was routed to. Default: the judged function; outbound: none.
    pub target: Option<String>,
}

impl Default for Request {
    fn default() -> Self {
        Self {
            method: "GET".to_owned(),
            authority: "cart.shop".to_owned(),
            path: "/".to_owned(),
            headers: BTreeMap::new(),
            identity: None,
            address: IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7)),
            port: 80,
            protocol: "http1".to_owned(),
            target: None,
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Texts {
    One(String),
    Many(Vec<String>),
}

impl Texts {
    pub(crate) fn all(&self) -> &[String] {
        match self {
            Self::One(text) => std::slice::from_ref(text),
            Self::Many(texts) => texts,
        }
    }
}

/// The making of a token; fields that are left out are made correctly.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct Token {
    pub key: String,
    /// The algorithm in the header.
    pub alg: Option<String>,
    /// The algorithm that really signs it. Default: the one in the header.
    pub sign: Option<String>,
    pub kid: Option<Value>,
    /// Further members of the header.
    pub header: Map<String, Value>,
    pub claims: Map<String, Value>,
    /// The encoded text, instead of `header` and `claims`.
    pub header_text: Option<String>,
    pub claims_text: Option<String>,
    /// See `Keys::token`.
    pub tamper: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Load {
    pub requests: u32,
    pub pending: u32,
    pub connections: u32,
    pub healthy: u32,
    pub ejected: u32,
}

/// Earlier requests, equal to the case's own except for the fields in `request`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Past {
    pub times: u32,
    /// Seconds before the case's own; negative: its clock was ahead.
    #[serde(default)]
    pub ago: f64,
    #[serde(default)]
    pub request: Map<String, Value>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Answer {
    pub status: u16,
    #[serde(default)]
    pub headers: BTreeMap<String, Texts>,
    /// Header fields after editing; null: absent.
    pub becomes: BTreeMap<String, Option<Texts>>,
}

/// The expected result. The test does not compare fields that are left out.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Expect {
    /// The rule that allows.
    #[serde(default)]
    pub allow: Option<String>,
    #[serde(default)]
    pub deny: Option<Deny>,
    /// The forwarded path and query; `same`: as sent.
    #[serde(default)]
    pub path: Option<String>,
    /// Forwarded header fields; null: absent.
    #[serde(default)]
    pub forwarded: BTreeMap<String, Option<Texts>>,
    /// Header fields of the response, by the verdict or the denial; null: absent.
    #[serde(default)]
    pub response: BTreeMap<String, Option<Texts>>,
    /// `none`, or the user.
    #[serde(default)]
    pub principal: Option<String>,
    /// `off`, or the expected span.
    #[serde(default)]
    pub trace: Option<Trace>,
    /// The decision if audited rules were in force, `allow: RULE` or `deny: RULE`; default: the
    /// same decision.
    #[serde(default)]
    pub audit: Option<BTreeMap<String, String>>,
    /// A part of the plan.
    #[serde(default)]
    pub plan: Option<Value>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Deny {
    pub status: u16,
    /// The rule that decided.
    #[serde(default)]
    pub rule: Option<String>,
    /// The rule that came nearest, if none decided.
    #[serde(default)]
    pub nearest: Option<String>,
    /// Part of the clause.
    pub clause: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Trace {
    Off(String),
    On(Span),
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Span {
    pub traceparent: String,
    /// Span ID of the parent, in hexadecimal.
    #[serde(default)]
    pub parent: Option<String>,
}

impl Past {
    /// The earlier request of a case.
    pub(crate) fn request_of(&self, case: &Request) -> Request {
        let mut request = serde_json::to_value(case).unwrap();
        merge(&mut request, Value::Object(self.request.clone()));
        serde_json::from_value(request).unwrap()
    }
}

/// Reads all tables of a folder.
pub(crate) fn read(folder: &Path) -> Vec<Group> {
    read_as(folder, str::to_owned)
}

/// Reads all tables of a folder, with a change of their texts.
pub(crate) fn read_as(folder: &Path, change: impl Fn(&str) -> String) -> Vec<Group> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "yaml"));
    files.sort();
    files.iter().flat_map(|file| groups(file, &change)).collect()
}

fn groups(file: &Path, change: impl Fn(&str) -> String) -> Vec<Group> {
    let name = file.file_name().unwrap().to_string_lossy().into_owned();
    let text = change(&std::fs::read_to_string(file).unwrap());
    let documents = yaml::documents(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
    documents.into_iter().map(|document| group(&name, document)).collect()
}

fn group(file: &str, document: Value) -> Group {
    let raw: RawGroup = serde_json::from_value(document.clone())
        .unwrap_or_else(|error| panic!("{file}: {}: {error}", document["about"]));
    let mut policies = raw.policies;
    if let Some(spec) = raw.spec {
        policies.push(serde_json::json!({"metadata": {"name": "p"}, "spec": spec}));
    }
    let case = |case: Value| {
        let shown = format!("{file}: {}: {}", raw.about, case["name"]);
        let expect = case["expect"].clone();
        let mut whole = raw.defaults.clone();
        merge(&mut whole, case);
        whole["expect"] = expect;
        serde_json::from_value(whole).unwrap_or_else(|error| panic!("{shown}: {error}"))
    };
    let cases = raw.cases.into_iter().map(case).collect();
    Group { file: file.to_owned(), about: raw.about.clone(), policies, function: raw.function, cases }
}

/// JSON Merge Patch (RFC 7396).
pub(crate) fn merge(target: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *target = patch;
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let target = target.as_object_mut().unwrap();
    for (name, value) in patch {
        if value.is_null() {
            target.remove(&name);
        } else {
            merge(target.entry(name).or_insert(Value::Null), value);
        }
    }
}
