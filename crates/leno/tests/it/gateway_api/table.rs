//! The form of the tables. `tests/gateway-api/README.md` describes it.

use crate::cases::yaml;
use leno_config::Timestamp;
use leno_testkit::mesh::{ALLOW_ALL, echo_function, policy};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The functions that routes of all groups lead to, each with its namespace.
pub(crate) const BACKENDS: [(&str, &str); 4] = [("test", "a"), ("test", "b"), ("test", "c"), ("other", "d")];
/// The functions that make calls.
pub(crate) const CALLERS: [(&str, &str); 2] = [("test", "caller"), ("other", "stranger")];

/// Routes, and requests that they take: one YAML document.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Group {
    #[serde(skip)]
    pub file: String,
    /// A DNS label. Its routes at the gateway serve the host `NAME.example`.
    pub name: String,
    pub about: String,
    /// Whether calls of the function `test/NAME` get the same routes.
    #[serde(default)]
    pub calls: bool,
    /// Fields of the Mesh document. Such a group has a separate mesh, with one gateway.
    #[serde(default)]
    pub mesh: Option<String>,
    /// Why its cases cannot hold yet.
    #[serde(default)]
    pub pending: Option<String>,
    /// Further functions, of the namespace `test` or with their namespace, with fields of their
    /// specifications.
    #[serde(default)]
    pub functions: BTreeMap<String, Map<String, Value>>,
    /// Functions of its documents that callers may call.
    #[serde(default)]
    pub callees: Vec<String>,
    /// Specifications of HTTPRoutes, or of routes of the given `kind`.
    #[serde(default)]
    pub routes: Vec<Map<String, Value>>,
    /// Whole documents. `$HTTP` stands for the port of the gateway, `$HTTPS` for that of TLS,
    /// and `$LATER` for the moment in an hour.
    #[serde(default)]
    pub documents: String,
    pub cases: Vec<Case>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Case {
    pub name: String,
    /// Numbers of requirements.
    #[serde(default)]
    pub covers: Vec<String>,
    /// Method and path, or method and `http://HOST/PATH`.
    #[serde(default)]
    pub request: String,
    #[serde(default)]
    pub headers: BTreeMap<String, Texts>,
    #[serde(default = "both")]
    pub over: Vec<Protocol>,
    /// The namespace of the caller; only calls.
    #[serde(default)]
    pub from: Option<String>,
    /// How often it is sent.
    #[serde(default)]
    pub times: Option<u32>,
    #[serde(default)]
    pub pending: Option<String>,
    #[serde(default)]
    pub gets: Option<Gets>,
    /// Routes and documents that are refused, or of which conditions are expected, instead of a
    /// request.
    #[serde(default)]
    pub routes: Vec<Map<String, Value>>,
    #[serde(default)]
    pub documents: String,
    /// What `leno check` says of them, in parts.
    #[serde(default)]
    pub refused: Vec<String>,
    /// What `leno check` warns of, in parts.
    #[serde(default)]
    pub warned: Vec<String>,
    /// Conditions by object: `HTTPRoute test/x`, with `TYPE=STATUS REASON` or, with a part of the
    /// message, `TYPE=STATUS REASON: MESSAGE`; `!TYPE`: there is none.
    #[serde(default)]
    pub status: BTreeMap<String, Vec<String>>,
}

fn both() -> Vec<Protocol> {
    vec![Protocol::Http1, Protocol::Http2]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Protocol {
    Http1,
    Http2,
    Grpc,
}

/// The expected result. The test does not compare fields that are left out.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Gets {
    /// Default: 200.
    #[serde(default)]
    pub status: Option<u16>,
    /// The function that answers. Default: none does.
    #[serde(default)]
    pub by: Option<String>,
    /// The path and query that the function sees. Default: as sent.
    #[serde(default)]
    pub path: Option<String>,
    /// Default: as sent.
    #[serde(default)]
    pub host: Option<String>,
    /// Header fields that the function sees; null: absent.
    #[serde(default)]
    pub headers: BTreeMap<String, Option<Texts>>,
    /// Header fields of the response; null: absent.
    #[serde(default)]
    pub answer: BTreeMap<String, Option<Texts>>,
    /// The status of gRPC.
    #[serde(default)]
    pub grpc: Option<u16>,
    /// Percentages of answers by functions, or by a status.
    #[serde(default)]
    pub shares: BTreeMap<String, u32>,
    /// How many requests each of these functions has seen in the end.
    #[serde(default)]
    pub seen: BTreeMap<String, usize>,
    /// The records of the hop that followed the group's route: of the request, and of its copies.
    #[serde(default)]
    pub records: Vec<RouteRecord>,
}

/// What `leno explain` and the access log say of a request and its route.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct RouteRecord {
    pub rule: String,
    pub r#match: String,
    /// Default: none.
    #[serde(default)]
    pub backend: Option<String>,
    /// The rewritten host. Default: it stays.
    #[serde(default)]
    pub host: Option<String>,
    /// The rewritten path. Default: it stays.
    #[serde(default)]
    pub path: Option<String>,
    /// The request is a copy.
    #[serde(default)]
    pub copy: bool,
    /// The path as it came. Default: as sent.
    #[serde(default)]
    pub asked: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub(crate) enum Texts {
    One(String),
    Many(Vec<String>),
}

/// The ports of a gateway.
#[derive(Clone, Copy)]
pub(crate) struct GatewayPorts {
    pub http: u16,
    pub https: u16,
}

impl GatewayPorts {
    /// Puts them in the place of `$HTTP` and `$HTTPS`, and the moment in an hour in that of `$LATER`.
    pub(crate) fn fill(self, text: &str) -> String {
        let later = Timestamp::from(SystemTime::now() + Duration::from_secs(3600)).to_string();
        let text = text.replace("$LATER", &later);
        let ports = [("$HTTPS", self.https), ("$HTTP", self.http)];
        ports.iter().fold(text, |text, (name, port)| {
            text.replace(&format!("\"{name}\""), &port.to_string()).replace(name, &port.to_string())
        })
    }
}

impl Gets {
    /// With ports in the expected header fields.
    pub(crate) fn at(&self, ports: GatewayPorts) -> Self {
        let fill = |texts: &Texts| Texts::Many(texts.all().iter().map(|text| ports.fill(text)).collect());
        let answer = self.answer.iter().map(|(name, values)| (name.clone(), values.as_ref().map(fill))).collect();
        Self { answer, ..self.clone() }
    }
}

impl Texts {
    pub(crate) fn all(&self) -> &[String] {
        match self {
            Self::One(text) => std::slice::from_ref(text),
            Self::Many(texts) => texts,
        }
    }
}

/// A requirement of the specification.
pub(crate) struct Requirement {
    pub number: String,
    pub text: String,
    /// The file that shows it, if no case does.
    pub elsewhere: Option<String>,
    /// Why it has no case yet.
    pub later: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Section {
    #[serde(rename = "about")]
    _about: String,
    #[serde(default)]
    later: Option<String>,
    /// The same of some numbers.
    #[serde(default)]
    except: BTreeMap<String, String>,
    #[serde(default)]
    elsewhere: BTreeMap<String, String>,
    requirements: BTreeMap<String, String>,
}

/// The folder of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn folder() -> PathBuf {
    root().join("tests/gateway-api")
}

fn documents_of(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    yaml::documents(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

pub(crate) fn requirements() -> Vec<Requirement> {
    let documents = documents_of(&folder().join("requirements.yaml"));
    let sections: Vec<Section> = serde_json::from_value(documents[0].clone()).unwrap();
    let of = |Section { later, except, elsewhere, requirements, .. }: Section| {
        requirements.into_iter().map(move |(number, text)| {
            let later = except.get(&number).or(later.as_ref()).cloned();
            Requirement { elsewhere: elsewhere.get(&number).cloned(), number, text, later }
        })
    };
    sections.into_iter().flat_map(of).collect()
}

/// All groups, in the order of their files.
pub(crate) fn groups() -> Vec<Group> {
    let entries = std::fs::read_dir(folder().join("cases")).unwrap();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let of = |file: &PathBuf| {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let group = move |document: Value| {
            let about = document["about"].clone();
            let group: Group =
                serde_json::from_value(document).unwrap_or_else(|error| panic!("{name}: {about}: {error}"));
            Group { file: name.clone(), ..group }
        };
        documents_of(file).into_iter().map(group).collect::<Vec<_>>()
    };
    files.iter().flat_map(of).collect()
}

/// The name of a function, with the default namespace.
pub(crate) fn full(function: &str) -> String {
    if function.contains('/') { function.to_owned() } else { format!("test/{function}") }
}

/// The form of a document.
fn document(text: &Value) -> String {
    // JSON is also YAML.
    format!("---\n{text:#}\n")
}

/// A route of a group, for the gateway or for calls.
fn route(name: &str, parents: Value, hosts: &[String], spec: &Map<String, Value>) -> String {
    let mut spec = spec.clone();
    let kind = spec.remove("kind").unwrap_or_else(|| "HTTPRoute".into());
    let namespace = spec.remove("namespace").unwrap_or_else(|| "test".into());
    let name = spec.remove("name").unwrap_or_else(|| name.into());
    let mut whole = json!({"parentRefs": parents, "rules": []});
    if !hosts.is_empty() {
        whole["hostnames"] = hosts.to_vec().into();
    }
    whole.as_object_mut().unwrap().extend(spec);
    let metadata = json!({"name": name, "namespace": namespace});
    document(&json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": kind, "metadata": metadata, "spec": whole,
    }))
}

/// Routes at the gateway of all groups.
pub(crate) fn routes(name: &str, specs: &[Map<String, Value>]) -> String {
    let parents = json!([{"name": "gate", "namespace": "test"}]);
    let of = |(index, spec)| route(&format!("{name}-{index}"), parents.clone(), &[format!("{name}.example")], spec);
    specs.iter().enumerate().map(of).collect()
}

impl Group {
    /// Its documents.
    pub(crate) fn documents(&self) -> String {
        let mut text = self.documents.clone() + &routes(&self.name, &self.routes);
        for (name, spec) in &self.functions {
            let fields = spec.iter().map(|(field, value)| format!("  {field}: {value}\n"));
            let (namespace, name) = name.split_once('/').unwrap_or(("test", name));
            text += &function(namespace, name, &fields.collect::<String>());
        }
        if self.calls {
            let parents = json!([{"group": "", "kind": "Service", "name": self.name, "namespace": "test"}]);
            let of = |(index, spec)| {
                let mut spec: Map<String, Value> = Map::clone(spec);
                if let Some(name) = spec.get_mut("name") {
                    *name = format!("{}-calls", name.as_str().unwrap()).into();
                }
                route(&format!("{}-calls-{index}", self.name), parents.clone(), &[], &spec)
            };
            text.extend(self.routes.iter().enumerate().map(of));
            text += &function("test", &self.name, "");
        }
        text
    }

    /// Its functions.
    pub(crate) fn callees(&self) -> impl Iterator<Item = &String> {
        self.functions.keys().chain(&self.callees).chain(self.calls.then_some(&self.name))
    }
}

/// An echo function that tells its name, and admits all callers.
fn function(namespace: &str, name: &str, spec: &str) -> String {
    // A mirror wakes no function, and a cordoned node starts no instance.
    let min = u8::from(BACKENDS.iter().chain(&CALLERS).any(|known| *known == (namespace, name)));
    let spec = format!("  env: {{NAME: {namespace}/{name}}}\n  scale: {{min: {min}, max: 1}}\n{spec}");
    let text = echo_function(name, &spec) + &policy(&format!("open-{name}"), name, ALLOW_ALL);
    text.replace("namespace: test}", &format!("namespace: {namespace}}}"))
}

/// The functions of all groups: back ends, and callers, which may call the back ends and these
/// functions.
pub(crate) fn functions(callees: &[&String]) -> String {
    backends("") + &callers(callees)
}

/// The functions that answer, of this namespace alone or of all.
pub(crate) fn backends(only: &str) -> String {
    let exposed = |name: &str| format!("  expose: [{{hosts: [{name}.backend], path: /}}]");
    let all = BACKENDS.iter().filter(|(namespace, _)| only.is_empty() || *namespace == only);
    all.map(|(namespace, name)| function(namespace, name, &exposed(name))).collect()
}

/// The functions that make calls.
pub(crate) fn callers(callees: &[&String]) -> String {
    let all = BACKENDS.iter().map(|(namespace, name)| format!("{namespace}/{name}"));
    let all: Vec<String> = all.chain(callees.iter().map(|name| full(name))).collect();
    let spec = |name| format!("  expose: [{{hosts: [{name}.backend], path: /}}]\n  callees: [{}]", all.join(", "));
    CALLERS.map(|(namespace, name)| function(namespace, name, &spec(name))).concat()
}

/// The Gateway of all groups.
pub(crate) const GATEWAY: &str = "---\napiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: gate, namespace: \
                                  test}\nspec:\n  gatewayClassName: leno\n  listeners:\n  - name: http\n    port: $HTTP\n    protocol: \
                                  HTTP\n    allowedRoutes: {namespaces: {from: All}}\n";
