//! `kind: Policy`.

use super::authentication::Authentication;
use super::authorization::{Authorization, Mode};
use super::callee_rules::CalleeRules;
use super::extension::Extension;
use super::external_authorization::Authorizer;
use super::fault::Fault;
use super::label::LabelExpression;
use super::observe::{AccessLog, Tracing};
use super::rate_limit::RateLimit;
use super::resilience::{CircuitBreaker, Retry};
use super::sidecar::Sidecar;
use super::value::{ApiVersion, Metadata};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Rules for calls to functions. Several policies may apply to one function: their issuers,
/// authorization rules, rate limits, authorizers and extensions add up; each of the other sections
/// may be in only one of these policies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Policy {
    /// `leno.dev/v1alpha1`.
    pub api_version: ApiVersion,
    /// `Policy`.
    pub kind: PolicyKind,
    /// Name of the policy. Rules appear in logs as `<policy>/<section>/<rule>`.
    pub metadata: Metadata,
    /// The functions of the policy, and its rules.
    pub spec: PolicySpec,
}

/// The kind of this document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PolicyKind {
    /// `Policy`.
    Policy,
}

/// The functions of a policy (`functions`, `selector` or both) and its rules.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PolicySpec {
    /// `audit`: `authorization`, `rateLimits` and `externalAuthorization` of this policy are not
    /// enforced; Leno reports their decisions. Its other sections are in force, and so are other
    /// policies. A request that no rule allows is admitted only if every policy of the function
    /// with an `authorization` section is audited. `auditNamespaces` of the Mesh document audits
    /// all policies of a namespace.
    pub mode: Mode,
    /// Functions, jobs and External documents by name: `name` in the policy's namespace, or
    /// `namespace/name`.
    pub functions: Vec<String>,
    /// Functions that carry all these labels; `{}`: all functions. External documents are only
    /// meant where they are named.
    pub selector: Option<BTreeMap<String, String>>,
    /// Further conditions on the functions' labels, all of which must hold. Together with
    /// `selector`.
    pub selector_expressions: Vec<LabelExpression>,
    /// Namespaces in which `selector` looks; `["*"]`: all. Without it: the policy's own.
    pub namespaces: Option<Vec<String>>,
    /// Who vouches for the users behind requests: JSON Web Tokens.
    pub authentication: Option<Authentication>,
    /// Which requests may enter. Where no policy of a function has this section, no request may.
    pub authorization: Option<Authorization>,
    /// How many requests may enter. All limits apply; one that is exhausted refuses with 429.
    pub rate_limits: Vec<RateLimit>,
    /// Programs that are asked about requests which all else allows, in this order. Those of
    /// several policies add up, by the policies' names.
    pub external_authorization: Vec<Authorizer>,
    /// Which failed calls to the functions are tried again. Without it none is.
    pub retry: Option<Retry>,
    /// How much may be under way to the functions at once, and when a failing instance gets a
    /// pause.
    pub circuit_breaker: Option<CircuitBreaker>,
    /// Which exchanges become spans. Without it trace headers pass through untouched.
    pub tracing: Option<Tracing>,
    /// Which exchanges are logged. Without it all are.
    pub access_log: Option<AccessLog>,
    /// Requests that the sidecar accepts, headers that it changes, and its sandbox.
    pub sidecar: Option<Sidecar>,
    /// Policies of your own, which see what all others allow, in this order. Those of several
    /// policies add up, by the policies' names.
    pub extensions: Vec<Extension>,
    /// Faults that nodes inject into requests of routes, for a limited time. They act on routes, and
    /// not on the functions of this policy, which may name none.
    pub faults: Vec<Fault>,
    /// Of a policy that was translated.
    #[serde(skip)]
    #[schemars(skip)]
    pub callee_rules: Option<CalleeRules>,
}
