//! `kind: Policy`.

use super::value::{ApiVersion, Metadata};
use crate::duration::Duration;
use crate::slice::Engine;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// Rules for calls to functions. Several policies may apply to one function: their issuers, authorization rules and rate limits add up;
/// of the other sections each may be set by one of them only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Policy {
    /// `leno.dev/v1alpha1`.
    pub api_version: ApiVersion,
    /// `Policy`.
    pub kind: PolicyKind,
    /// What the policy is called. Rules appear in logs as `<policy>/<section>/<rule>`.
    pub metadata: Metadata,
    /// Which functions it is for and what it says.
    pub spec: PolicySpec,
}

/// The kind of this document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PolicyKind {
    /// `Policy`.
    Policy,
}

/// Which functions a policy is for (`functions`, `selector` or both) and what it says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PolicySpec {
    /// Functions by name: `name` in the policy's namespace, or `namespace/name`.
    pub functions: Vec<String>,
    /// Functions that carry all these labels; `{}`: all functions.
    pub selector: Option<BTreeMap<String, String>>,
    /// Namespaces in which `selector` looks; `["*"]`: all. Without it: the policy's own.
    pub namespaces: Option<Vec<String>>,
    /// Who vouches for the users behind requests: JSON Web Tokens.
    pub authentication: Option<Authentication>,
    /// Which requests may enter. Where no policy of a function has this section, no request may.
    pub authorization: Option<Authorization>,
    /// How many requests may enter. All limits apply; one that is exhausted refuses with 429.
    pub rate_limits: Vec<RateLimit>,
    /// Which failed calls to the functions are tried again. Without it none is.
    pub retry: Option<Retry>,
    /// How much may be under way to the functions at once, and when a failing instance gets a pause.
    pub circuit_breaker: Option<CircuitBreaker>,
    /// Which exchanges become spans. Without it trace headers pass through untouched.
    pub tracing: Option<Tracing>,
    /// Which exchanges are logged. Without it all are.
    pub access_log: Option<AccessLog>,
    /// What the sidecar accepts, changes, and runs in.
    pub sidecar: Option<Sidecar>,
}

/// Who vouches for the users behind requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Authentication {
    /// Accepted issuers. A token of anybody else is refused (401), as is one that is invalid.
    pub issuers: Vec<Issuer>,
}

/// An accepted issuer of JSON Web Tokens (RFC 7519).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Issuer {
    /// Name of the rule in logs. Without it: its index.
    #[serde(default)]
    pub name: Option<String>,
    /// Value that the claim `iss` must have.
    pub issuer: String,
    /// The claim `aud` must contain one of these. Without it `aud` is not checked.
    #[serde(default)]
    pub audiences: Vec<String>,
    /// The issuer's keys.
    pub jwks: Jwks,
    /// Where to look for a token, in this order. Without it: the header `authorization` after `Bearer `.
    #[serde(default)]
    pub from: Option<Vec<TokenLocation>>,
    /// Tolerated difference of clocks for `exp`, `nbf` and `iat`, ten minutes at most.
    #[serde(default = "default_clock_skew")]
    pub clock_skew: Duration,
    /// Whether the function gets to see the token. Otherwise it is removed from the request.
    #[serde(default)]
    pub forward: bool,
    /// Whether a request without a token is refused (401). Otherwise it goes on without a user.
    #[serde(default = "default_required")]
    pub required: bool,
    /// Claims that are copied to request headers. What a client sends in these headers is removed.
    #[serde(default)]
    pub claims_to_headers: Vec<ClaimToHeader>,
}

fn default_clock_skew() -> Duration {
    Duration::from_secs(60)
}

fn default_required() -> bool {
    true
}

/// A JSON Web Key set (RFC 7517): one of `inline`, `file` and `url`. Keys: RSA of 2048 bits or more, EC P-256 and P-384, Ed25519.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Jwks {
    /// The key set itself: `{keys: [...]}`. Public keys only.
    pub inline: Option<serde_json::Value>,
    /// JSON file with the key set, relative to the document's folder.
    pub file: Option<PathBuf>,
    /// `https://` address of the key set; `http://` only to this machine.
    pub url: Option<String>,
    /// PEM file with the certificates to trust for `url`, relative to the document's folder. Without it: the system's.
    pub ca_file: Option<PathBuf>,
    /// How often to fetch from `url`. A token with an unknown key id fetches sooner; a failed fetch keeps the keys it had.
    pub refresh: Duration,
    /// Longest time for one fetch.
    pub timeout: Duration,
}

impl Default for Jwks {
    fn default() -> Self {
        Self {
            inline: None,
            file: None,
            url: None,
            ca_file: None,
            refresh: Duration::from_secs(300),
            timeout: Duration::from_secs(5),
        }
    }
}

/// Where a token may be: one of `header`, `query` and `cookie`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TokenLocation {
    /// A request header.
    pub header: Option<String>,
    /// What comes before the token in the header. Without it: `Bearer ` in `authorization`, nothing elsewhere.
    pub prefix: Option<String>,
    /// A query parameter.
    pub query: Option<String>,
    /// A cookie.
    pub cookie: Option<String>,
}

/// A claim that is copied to a request header.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClaimToHeader {
    /// The claim: text, a number or a boolean.
    pub claim: ClaimPath,
    /// The header.
    pub header: String,
}

/// A claim: `sub`; inside an object: `realm_access.roles`. As a list for names that contain dots: `["https://shop.example/roles"]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimPath(pub Vec<String>);

impl Serialize for ClaimPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ClaimPath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Path;
        impl<'de> de::Visitor<'de> for Path {
            type Value = Vec<String>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a claim's name")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(text.split('.').map(str::to_owned).collect())
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, mut names: A) -> Result<Self::Value, A::Error> {
                let mut path = Vec::new();
                while let Some(name) = names.next_element()? {
                    path.push(name);
                }
                Ok(path)
            }
        }
        let path = deserializer.deserialize_any(Path)?;
        if path.is_empty() || path.iter().any(String::is_empty) {
            return Err(de::Error::custom(
                "a claim's name is empty; expected sub, realm_access.roles, or a list for names with dots: [\"https://shop.example/roles\"]",
            ));
        }
        Ok(Self(path))
    }
}

impl JsonSchema for ClaimPath {
    fn schema_name() -> Cow<'static, str> {
        "ClaimPath".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A claim: `sub`; inside an object: `realm_access.roles`. As a list for names that contain dots: `[\"https://shop.example/roles\"]`.",
            "anyOf": [
                { "type": "string", "minLength": 1 },
                { "type": "array", "items": { "type": "string", "minLength": 1 }, "minItems": 1 }
            ]
        })
    }
}

/// Which requests may enter.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Authorization {
    /// A request that a deny rule matches is refused (403), one that an allow rule matches enters, any other is refused.
    pub rules: Vec<AuthorizationRule>,
}

/// One rule. It matches when one element of `from`, one element of `to` and all elements of `when` do; what is left out always does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AuthorizationRule {
    /// Name of the rule in logs. Without it: its index.
    #[serde(default)]
    pub name: Option<String>,
    /// What the rule does.
    #[serde(default)]
    pub action: Action,
    /// Who is asking.
    #[serde(default)]
    pub from: Option<Vec<Source>>,
    /// What is asked for.
    #[serde(default)]
    pub to: Option<Vec<Operation>>,
    /// Further conditions.
    #[serde(default)]
    pub when: Option<Vec<Condition>>,
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
    /// Functions that are calling: `name` in the policy's namespace, `namespace/name`, `namespace/*`, a SPIFFE ID (`spiffe://…`, at the
    /// end possibly `*`), or `*`: any function. Requests from outside have no identity.
    pub identities: Option<Vec<String>>,
    /// None of these functions.
    pub not_identities: Vec<String>,
    /// Namespaces of the calling function: `shop`, `team-*`, `*-test`, `*`.
    pub namespaces: Option<Vec<String>>,
    /// None of these namespaces.
    pub not_namespaces: Vec<String>,
    /// Users: `<issuer>/<subject>` of the verified token, `https://login.example/*`, or `*`: anybody with a valid token.
    pub request_principals: Option<Vec<String>>,
    /// None of these users.
    pub not_request_principals: Vec<String>,
    /// Addresses that connections come from: `10.0.0.0/8`, `2001:db8::/32`, `192.0.2.7`.
    pub addresses: Option<Vec<String>>,
    /// None of these addresses.
    pub not_addresses: Vec<String>,
}

/// What is asked for. All fields that are set must match, each with one of its values.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Operation {
    /// Methods: `GET`. They are case-sensitive. gRPC uses `POST`.
    pub methods: Option<Vec<String>>,
    /// None of these methods.
    pub not_methods: Vec<String>,
    /// Hosts without port: `shop.example`, `*.shop.example`.
    pub hosts: Option<Vec<String>>,
    /// None of these hosts.
    pub not_hosts: Vec<String>,
    /// Ports that the caller asked for.
    pub ports: Option<Vec<u16>>,
    /// None of these ports.
    pub not_ports: Vec<u16>,
    /// Paths without query: `/orders`, `/static/*`, `*.css`, or a template: `/orders/{id}` (one segment), `/files/{**}` (any number,
    /// at the end only). They are compared with normalised paths. For gRPC: `/package.Service/Method`.
    pub paths: Option<Vec<String>>,
    /// None of these paths.
    pub not_paths: Vec<String>,
}

/// A further condition: one of `header`, `claim` and `audience`, and what its value must or must not be: `abc`, `abc*`, `*abc`, or `*` (not empty).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Condition {
    /// A request header.
    pub header: Option<String>,
    /// A claim of the verified token. Of a list one element is enough.
    pub claim: Option<ClaimPath>,
    /// `true`: the audience of the verified token.
    pub audience: Option<bool>,
    /// One of these.
    pub values: Option<Vec<String>>,
    /// None of these.
    pub not_values: Vec<String>,
}

/// A limit on requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RateLimit {
    /// Name of the limit in logs; its counters go by it. Without it: its index.
    #[serde(default)]
    pub name: Option<String>,
    /// How many requests may come in the time `per`.
    #[schemars(range(min = 1))]
    pub requests: u32,
    /// The time in which `requests` may come, one millisecond to one day.
    pub per: Duration,
    /// Token bucket: requests that may come at once after a pause. Without it: as many as `requests`.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub burst: Option<u32>,
    /// How requests are counted.
    #[serde(default)]
    pub algorithm: Algorithm,
    /// Requests with equal values of all of these share a counter. Empty: all requests share one.
    #[serde(default)]
    pub key: Vec<KeyPart>,
    /// Which requests count. Without it: all.
    #[serde(default)]
    pub r#match: Option<Operation>,
}

/// How requests are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Algorithm {
    /// A bucket of `burst` requests that is refilled evenly.
    #[default]
    TokenBucket,
    /// Windows of length `per`, aligned to the Unix epoch.
    FixedWindow,
}

/// What tells counters apart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum KeyPart {
    /// The calling function.
    Identity,
    /// A claim of the verified token.
    Claim(ClaimPath),
    /// A request header.
    Header(String),
    /// The normalised path without query.
    Path,
    /// The method.
    Method,
    /// The address that the connection comes from.
    Address,
}

/// Which failed calls are tried again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Retry {
    /// Tries after the first, 1 to 10.
    #[schemars(range(min = 1, max = 10))]
    pub attempts: u8,
    /// Longest time for one try. Without it: only the time for all of them counts.
    pub per_try_timeout: Option<Duration>,
    /// Pauses before tries. They are random, so that callers do not try all at once.
    pub backoff: Backoff,
    /// What is tried again: `connect-failure` (no connection), `refused-stream` (the callee says that it did nothing), `reset` (the
    /// connection broke before a response), `timeout` (of one try), `5xx`, `gateway-error` (502, 503, 504), a status (`429`), or a gRPC
    /// status (`unavailable`).
    pub on: Vec<String>,
    /// Also repeat methods that are not idempotent (`POST`, `PATCH`) after bytes were sent.
    pub non_idempotent: bool,
    /// Keeps retries from making an overload worse.
    pub budget: RetryBudget,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            attempts: 2,
            per_try_timeout: None,
            backoff: Backoff::default(),
            on: ["connect-failure", "refused-stream", "unavailable", "cancelled"].map(str::to_owned).to_vec(),
            non_idempotent: false,
            budget: RetryBudget::default(),
        }
    }
}

/// Pauses before tries: random, up to `base` before the first retry, up to twice as much before each further one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Backoff {
    /// Longest pause before the first retry.
    pub base: Duration,
    /// Longest pause of all.
    pub max: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { base: Duration::from_millis(25), max: Duration::from_millis(250) }
    }
}

/// How many retries may be under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RetryBudget {
    /// Retries may be at most this percentage of the requests under way to the function.
    #[schemars(range(max = 100))]
    pub percent: u8,
    /// So many retries may be under way whatever the percentage.
    pub min: u32,
}

impl Default for RetryBudget {
    fn default() -> Self {
        Self { percent: 20, min: 3 }
    }
}

/// How much may be under way to a function at once. What is more is refused (503).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct CircuitBreaker {
    /// Connections. Without it: no limit.
    #[schemars(range(min = 1))]
    pub max_connections: Option<u32>,
    /// Requests that wait for a connection or an instance. Without it: no limit.
    #[schemars(range(min = 1))]
    pub max_pending_requests: Option<u32>,
    /// Requests under way. Without it: no limit.
    #[schemars(range(min = 1))]
    pub max_requests: Option<u32>,
    /// When a failing instance gets a pause. Without it: never.
    pub outlier_detection: Option<OutlierDetection>,
}

/// When a failing instance gets a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct OutlierDetection {
    /// After so many 5xx responses or failed connections in a row; 0: not for that.
    #[serde(rename = "consecutive5xx")]
    pub consecutive_5xx: u32,
    /// After so many 502, 503, 504 responses or failed connections in a row; 0: not for that.
    pub consecutive_gateway_errors: u32,
    /// How often pauses are reviewed.
    pub interval: Duration,
    /// Length of the first pause; the second is twice as long, the third three times.
    pub base_ejection: Duration,
    /// At most this share of the instances may pause at once; one always may.
    #[schemars(range(max = 100))]
    pub max_ejection_percent: u8,
}

impl Default for OutlierDetection {
    fn default() -> Self {
        Self {
            consecutive_5xx: 5,
            consecutive_gateway_errors: 0,
            interval: Duration::from_secs(10),
            base_ejection: Duration::from_secs(30),
            max_ejection_percent: 10,
        }
    }
}

/// Which exchanges become spans.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Tracing {
    /// `false`: trace headers pass through untouched.
    pub enabled: bool,
    /// Percentage of new traces that are sampled, in steps of 0.01. What a caller decided stands.
    #[schemars(range(min = 0.0, max = 100.0))]
    pub sampling: f64,
    /// Whether B3 headers count where there is no `traceparent`.
    pub b3: bool,
}

impl Default for Tracing {
    fn default() -> Self {
        Self { enabled: true, sampling: 100.0, b3: true }
    }
}

/// Which exchanges are logged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AccessLog {
    /// `false`: none.
    pub enabled: bool,
    /// Only those with a status like these: `404`, `4xx`, `500-503`. Empty: all.
    pub statuses: Vec<String>,
    /// Request headers whose values go into the line. Values of other headers never do.
    pub request_headers: Vec<String>,
}

impl Default for AccessLog {
    fn default() -> Self {
        Self { enabled: true, statuses: Vec::new(), request_headers: Vec::new() }
    }
}

/// What the sidecar accepts, changes, and runs in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Sidecar {
    /// Ports that callers may ask for. Empty: any.
    pub ports: Vec<u16>,
    /// Protocols that they may use. Empty: any.
    pub protocols: Vec<Protocol>,
    /// How the functions' sidecars are isolated. Without it: as the mesh says.
    pub engine: Option<Engine>,
    /// Longest run of a sidecar, 50us to 100ms. A request whose sidecar takes longer is refused.
    pub deadline: Duration,
    /// Changes to every request that enters.
    pub request_headers: HeaderEdits,
    /// Changes to responses. They cost a second sandbox for every exchange.
    pub response_headers: Vec<ResponseHeaderEdits>,
}

impl Default for Sidecar {
    fn default() -> Self {
        Self {
            ports: Vec::new(),
            protocols: Vec::new(),
            engine: None,
            deadline: Duration::from_millis(2),
            request_headers: HeaderEdits::default(),
            response_headers: Vec::new(),
        }
    }
}

/// An application protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2 other than gRPC.
    Http2,
    /// gRPC.
    Grpc,
    /// A WebSocket.
    WebSocket,
}

/// Changes to header fields: first `set`, then `append`, then `remove`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct HeaderEdits {
    /// Replaces all values.
    pub set: BTreeMap<String, String>,
    /// Adds a value.
    pub append: BTreeMap<String, String>,
    /// Removes all values.
    pub remove: Vec<String>,
}

/// Changes to the header fields of some responses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ResponseHeaderEdits {
    /// Only responses with a status like these: `404`, `4xx`, `500-503`. Empty: all.
    pub statuses: Vec<String>,
    /// Replaces all values.
    pub set: BTreeMap<String, String>,
    /// Adds a value.
    pub append: BTreeMap<String, String>,
    /// Removes all values.
    pub remove: Vec<String>,
}
