//! `spec.authorization` of a policy.

use super::claim::ClaimPath;
use super::label::LabelExpression;
use super::principal::RequestPrincipal;
use super::text::TextMatch;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Which requests may enter.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Authorization {
    /// A request that a deny rule matches is refused (403), one that an allow rule matches enters,
    /// any other is refused.
    pub rules: Vec<AuthorizationRule>,
}

/// One rule. It matches when one element of `from`, one element of `to` and all elements of `when`
/// do; a missing list always matches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AuthorizationRule {
    /// Name of the rule in logs. Without it: its index.
    #[serde(default)]
    pub name: Option<String>,
    /// Effect of the rule.
    #[serde(default)]
    pub action: Action,
    /// Whether it is in force.
    #[serde(default)]
    pub mode: Mode,
    /// Who is asking.
    #[serde(default)]
    pub from: Option<Vec<Source>>,
    /// The request.
    #[serde(default)]
    pub to: Option<Vec<Operation>>,
    /// Further conditions.
    #[serde(default)]
    pub when: Option<Vec<Condition>>,
}

/// Whether something is in force.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// It is in force.
    #[default]
    Enforce,
    /// It is not enforced: an allow rule admits no request, and a deny rule refuses none. The
    /// access log, `leno explain` and `leno_policy_decisions_total` report its decisions.
    Audit,
}

/// What a matching rule does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// Let the request enter, unless a deny rule matches it too.
    #[default]
    Allow,
    /// Refuse the request.
    Deny,
}

/// Who is asking. All fields that are set must match, each with one of its values.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Source {
    /// Functions that are calling: `name` in the policy's namespace, `namespace/name`,
    /// `namespace/*`, a SPIFFE ID (`spiffe://…`, at the end possibly `*`), or `*`: any function.
    /// Requests from outside have no identity.
    pub identities: Option<Vec<String>>,
    /// None of these functions.
    pub not_identities: Vec<String>,
    /// Namespaces of the calling function: `shop`, `team-*`, `*-test`, `*`.
    pub namespaces: Option<Vec<String>>,
    /// None of these namespaces.
    pub not_namespaces: Vec<String>,
    /// Functions and jobs that are calling and carry all these labels: `{app: web}`. They are
    /// looked up in the policy's namespace, or in the namespaces that `namespaces` matches. The
    /// documents say who carries which labels; a caller cannot claim one. Requests from outside
    /// have no labels.
    pub labels: Option<BTreeMap<String, String>>,
    /// Conditions on the calling function's labels, all of which must hold. Looked up as `labels`
    /// are.
    pub label_expressions: Option<Vec<LabelExpression>>,
    /// Users, by issuer and subject of the verified token:
    /// `{issuer: https://login.example, subject: ann}`, or `*`: anybody with a valid token.
    /// `https://login.example/ann` is short for the first, where an `authentication` section names
    /// the issuer.
    pub request_principals: Option<Vec<RequestPrincipal>>,
    /// None of these users.
    pub not_request_principals: Vec<RequestPrincipal>,
    /// Addresses that connections come from: `10.0.0.0/8`, `2001:db8::/32`, `192.0.2.7`.
    pub addresses: Option<Vec<String>>,
    /// None of these addresses.
    pub not_addresses: Vec<String>,
}

/// The request. All fields that are set must match, each with one of its values.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Operation {
    /// Methods: `GET`, `{regex: "GET|HEAD"}`. They are case-sensitive. gRPC uses `POST`.
    pub methods: Option<Vec<TextMatch>>,
    /// None of these methods.
    pub not_methods: Vec<TextMatch>,
    /// Hosts without port: `shop.example`, `*.shop.example`, `{regex: "[a-z]+[.]example"}`. Texts
    /// may have any case and a dot at their end, and names beyond ASCII stand for their Punycode;
    /// regular expressions are compared with lower case and Punycode.
    pub hosts: Option<Vec<TextMatch>>,
    /// None of these hosts.
    pub not_hosts: Vec<TextMatch>,
    /// Ports that the caller asked for.
    pub ports: Option<Vec<u16>>,
    /// None of these ports.
    pub not_ports: Vec<u16>,
    /// Paths without query: `/orders`, `/static/*`, `*.css`, or a template: `/orders/{id}` (one
    /// segment), `/files/{**}` (everything below `/files/`, but not `/files`; at the end only), or
    /// a regular expression for the whole path: `{regex: "/orders/[0-9]+"}`. They are compared with
    /// normalised paths. For gRPC: `/package.Service/Method`. `{regex: …, withQuery: true}` is
    /// about the path, `?` and the query as it was sent.
    pub paths: Option<Vec<TextMatch>>,
    /// None of these paths.
    pub not_paths: Vec<TextMatch>,
}

/// A further condition: one of `header`, `query`, `claim` and `audience`, and the values that it
/// must or must not have: `abc`, `abc*`, `*abc`, `*` (not empty), or `{regex: "v[0-9]+"}` for the
/// whole value. If the value is absent, no value matches: `values` does not hold, `notValues` alone
/// does.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Condition {
    /// A request header.
    pub header: Option<String>,
    /// A parameter of the query, by its decoded name, letter by letter. A rule that allows holds
    /// only if all of its values do, where it is repeated; a rule that denies if one does. A `;`
    /// may or may not separate parameters, so both ways count. A query with a broken escape is
    /// refused (400) where a rule looks at parameters.
    pub query: Option<String>,
    /// A claim of the verified token. Of a list one element is enough.
    pub claim: Option<ClaimPath>,
    /// `true`: the audience of the verified token.
    pub audience: Option<bool>,
    /// Instead of values: `true`: it is there, even if it is empty; `false`: it is not.
    pub present: Option<bool>,
    /// One of these.
    pub values: Option<Vec<TextMatch>>,
    /// None of these.
    pub not_values: Vec<TextMatch>,
}
