//! The checked, plain-data description of a program: what `config` compiles and the sandbox initialises from.
//!
//! Durations are milliseconds unless the name says otherwise. Every rule carries the name that
//! verdicts, logs and `leno explain` show: `<policy>/<section>/<rule>`, for example
//! `orders/authorization/from-frontend`.

mod resilience;

pub use resilience::{Breaker, Outlier, Retry, RetryOn, Target};

use crate::regex::Regex;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::net::{IpAddr, Ipv6Addr};
use serde::{Deserialize, Serialize};

/// Which side of a call a program judges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Direction {
    /// The callee's side: may this request enter the function?
    Inbound,
    /// The caller's side: may this function make that call?
    Outbound,
}

/// All of one function's policies for one direction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProgramSpec {
    /// `namespace/name` of the function whose program this is.
    pub function: String,
    /// The side it judges.
    pub direction: Direction,
    /// Policy 2: ports and protocols that may be used, header edits.
    pub sidecar: Sidecar,
    /// Policy 1. Empty: no token is looked at.
    pub authentication: Vec<Issuer>,
    /// Policy 3, in the order written. Inbound: deny rules first, then allow rules, and nothing matching means denied.
    /// Outbound: [`ProgramSpec::targets`] is the allow-list, and these rules narrow it (deny rules only apply if any;
    /// allow rules, if there are any, must match).
    pub authorization: Vec<AuthorizationRule>,
    /// Inbound: a request that no rule allows enters, and the node reports it, because all policies
    /// that authorize are audited.
    pub audit_default: bool,
    /// Policy 4. All of them apply; any that is exhausted denies.
    pub rate_limits: Vec<RateLimit>,
    /// Inbound: the authorizers that the runtime asks, in order, about requests that all other
    /// policies allow.
    pub authorizers: Vec<Authorizer>,
    /// Policy 5.
    pub tracing: Tracing,
    /// Policy 6.
    pub access_log: AccessLog,
    /// Where requests judged by this program may go. Inbound: exactly one, the function itself. Outbound: the allowed
    /// callees; a call to anything else is denied.
    pub targets: Vec<Target>,
}

impl ProgramSpec {
    /// Names of the rules and rate limits that are audited: the node reports their decisions and
    /// does not enforce them.
    pub fn audited(&self) -> Vec<&str> {
        let rules = self.authorization.iter().filter(|rule| rule.audit).map(|rule| rule.name.as_str());
        let limits = self.rate_limits.iter().filter(|limit| limit.audit).map(|limit| limit.name.as_str());
        let authorizers = self.authorizers.iter().filter(|one| one.audit).map(|one| one.name.as_str());
        rules.chain(limits).chain(authorizers).collect()
    }
}

/// An external authorizer. The program only chooses the requests about which it is asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Authorizer {
    /// Rule name for verdicts.
    pub name: String,
    /// The requests about which it is asked: those that one of these matches; empty: all.
    pub only: Vec<Operation>,
    /// Request headers (lower case) that its answers may set. They are removed from every request before rules look at it, so that a client cannot
    /// forge them.
    pub headers: Vec<String>,
    /// The node reports its refusals and does not enforce them.
    pub audit: bool,
}

/// Policy 2, sidecar configuration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sidecar {
    /// Rule name for verdicts; empty when no policy sets this section.
    pub name: String,
    /// Destination ports that may be used; empty: any.
    pub ports: Vec<u16>,
    /// Protocols that may be used; empty: any.
    pub protocols: Vec<Protocol>,
    /// Edits to every forwarded request.
    pub request_headers: Vec<HeaderRule>,
    /// Edits to every response, possibly depending on its status.
    pub response_headers: Vec<ResponseHeaderRule>,
    /// Each request is judged by a run of the program: no decision is remembered.
    pub judge_each_request: bool,
}

/// An application protocol as the runtime recognised it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Protocol {
    /// HTTP/1.1 without upgrade.
    Http1,
    /// HTTP/2 without gRPC.
    Http2,
    /// HTTP/2 with `content-type: application/grpc`.
    Grpc,
    /// A WebSocket handshake.
    WebSocket,
}

/// One unconditional header edit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum HeaderRule {
    /// Replace all values with this one.
    Set(String, String),
    /// Add a value.
    Append(String, String),
    /// Remove all values.
    Remove(String),
}

/// Header edits to responses whose status is in one of the ranges (inclusive); no range: every response.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResponseHeaderRule {
    /// Status ranges, both ends included.
    pub statuses: Vec<(u16, u16)>,
    /// The edits.
    pub edits: Vec<HeaderRule>,
}

/// Policy 1: one accepted issuer of JSON Web Tokens (RFC 7519, RFC 8725).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Issuer {
    /// Rule name for verdicts.
    pub name: String,
    /// Required value of `iss`.
    pub issuer: String,
    /// `aud` must contain one of these; empty: `aud` is not checked.
    pub audiences: Vec<String>,
    /// Keys in the order of the key set.
    pub keys: Vec<Key>,
    /// The key set is to be fetched and is not there yet, so no token can be verified (503).
    pub keys_pending: bool,
    /// Where to look, in this order. Never empty.
    pub sources: Vec<TokenSource>,
    /// Tolerated difference of clocks for `exp`, `nbf` and `iat`.
    pub clock_skew_ms: u64,
    /// Pass the token on to the function; otherwise it is stripped from where it was found.
    pub forward: bool,
    /// A request without a token is denied (401) here. Otherwise it goes on, without a request identity.
    pub required: bool,
    /// A CORS preflight goes on without a token, even if one is required.
    pub preflight: bool,
    /// A token without `exp` is denied.
    pub require_expiration: bool,
    /// Claims whose text is a list separated by spaces, besides `scope`, `scp` and `permission`.
    pub space_delimited_claims: Vec<ClaimPath>,
    /// Claims copied to request headers: (claim path, header). The header is removed when the claim is absent, so that a client cannot forge it.
    pub claims_to_headers: Vec<(ClaimPath, String)>,
}

/// One verification key. The key itself stays in the trusted runtime; the program knows only the
/// data for choosing a key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Key {
    /// `kid`, if the key set gives one.
    pub kid: Option<String>,
    /// Algorithms that this key may verify: derived from `kty`, `crv` and `alg`, never from the
    /// token.
    pub algorithms: Vec<Algorithm>,
    /// Names the key and its generation to the runtime.
    pub id: KeyId,
}

/// SHA-256 of the key's type and all of its public bytes: different keys have different ids, in
/// every function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct KeyId(pub [u8; 32]);

/// For people: the first eight bytes.
impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().take(8).try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Accepted signature algorithms of RFC 7518 and RFC 8037. `none` and the HMAC family are not
/// accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Algorithm {
    RS256,
    RS384,
    RS512,
    PS256,
    PS384,
    PS512,
    ES256,
    ES384,
    ES512,
    /// With Ed25519, as RFC 9864 names it.
    EdDSA,
}

/// Where a token may be found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TokenSource {
    /// A header (lower case), after this prefix (`"Bearer "`; the prefix of `authorization` is matched without regard to case).
    Header {
        /** Lower case. */
        name: String,
        /** May be empty. */
        prefix: String,
    },
    /// A query parameter.
    Query(String),
    /// A cookie.
    Cookie(String),
}

/// Path to a claim: `realm_access.roles` is `["realm_access", "roles"]`.
pub type ClaimPath = Vec<String>;

/// The effect of a matching authorization rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    /// Permit, unless a deny rule matches too.
    Allow,
    /// Refuse.
    Deny,
}

/// Policy 3: one rule. `from`, `to` and `when` must all hold; an empty list holds always. Within `from` and `to` one
/// element is enough, within `when` every element must hold.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AuthorizationRule {
    /// Rule name for verdicts.
    pub name: String,
    /// Its effect.
    pub action: Action,
    /// The callers that it matches.
    pub from: Vec<Source>,
    /// The requests that it matches.
    pub to: Vec<Operation>,
    /// Further conditions.
    pub when: Vec<Condition>,
    /// The node reports its decisions and does not enforce them.
    pub audit: bool,
}

/// The caller. Fields are ANDed, values of a field are ORed, an empty field holds. A positive field
/// does not match an absent value (no mTLS identity, no token).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Source {
    /// SPIFFE IDs, in full: `spiffe://td/ns/x/sa/y`, as string matches.
    pub identities: Matches<StringMatch>,
    /// The functions whose labels match; `None`: all callers match.
    pub labels: Option<LabelMatch>,
    /// Namespaces of the SPIFFE ID.
    pub namespaces: Matches<StringMatch>,
    /// Issuer and subject of the verified token.
    pub request_principals: Matches<PrincipalMatch>,
    /// Addresses of the peer that opened the connection.
    pub addresses: Matches<Cidr>,
}

/// The functions that carry certain labels. The compiler of a program knows them all, so a caller
/// cannot claim a label.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabelMatch {
    /// The label selector, in words: `app=web`.
    pub selector: String,
    /// Their SPIFFE IDs, sorted. Empty: no caller matches.
    pub identities: Vec<String>,
}

/// The user of a verified token. Issuer and subject are matched separately: joined by a slash,
/// `https://a` with `b/x` and `https://a/b` with `x` would be the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PrincipalMatch {
    /// `iss`.
    pub issuer: StringMatch,
    /// `sub`.
    pub subject: StringMatch,
}

/// The requested operation. Fields are ANDed, values of a field are ORed, an empty field holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Operation {
    /// Methods; case-sensitive (RFC 9110, 9.1).
    pub methods: Matches<StringMatch>,
    /// Hosts of the authority, without port; compared without regard to case.
    pub hosts: Matches<StringMatch>,
    /// Destination ports.
    pub ports: Matches<u16>,
    /// Normalised paths.
    pub paths: Matches<PathMatch>,
}

/// A further condition on the request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Condition {
    /// The value that it looks at.
    pub key: ConditionKey,
    /// Holds when one value of the key matches one of `any` (or `any` is empty) and none of `none` matches.
    pub values: Matches<StringMatch>,
}

/// The value that a condition looks at.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ConditionKey {
    /// A request header (lower case); each field value counts by itself.
    Header(String),
    /// A parameter of the query, by its decoded name. It may be read in several ways if it is
    /// repeated, or if `;` may separate parameters. A rule that allows must hold for all readings,
    /// a rule that denies for one.
    Query(String),
    /// A claim of the verified token; a list matches if one element does, numbers and booleans by their JSON text.
    Claim(ClaimPath),
    /// `aud` of the verified token.
    Audience,
}

/// Positive and negative matches of one field: one of `any` must match (if there are any) and none of `none`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Matches<T> {
    /// One of these must match; empty: nothing is required.
    pub any: Vec<T>,
    /// None of these may match.
    pub none: Vec<T>,
}

impl<T> Default for Matches<T> {
    fn default() -> Self {
        Self { any: Vec::new(), none: Vec::new() }
    }
}

impl<T> Matches<T> {
    /// No condition at all.
    pub fn is_empty(&self) -> bool {
        self.any.is_empty() && self.none.is_empty()
    }
}

/// Istio's string match: `abc`, `abc*`, `*abc`, `*` (present and not empty).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum StringMatch {
    Exact(String),
    Prefix(String),
    Suffix(String),
    Present,
    /// Any value, even an empty text.
    Any,
    Regex(Box<Regex>),
}

/// Match of a normalised path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PathMatch {
    /// Exact, prefix, suffix or present.
    Text(StringMatch),
    /// By segments: `/orders/{id}`, `/files/{**}`.
    Template(Vec<Segment>),
    /// The path and, after a `?`, the query as sent, if there is one.
    WithQuery(Box<Regex>),
}

/// One segment of a path template.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Segment {
    /// This text, in normal form.
    Literal(String),
    /// `{name}` or `{*}`: one non-empty segment. The name is for people.
    One(String),
    /// `{**}`: everything after the slash before it, which has to be there; last only.
    Rest,
}

/// A block of addresses; IPv4-mapped IPv6 addresses are IPv4 addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cidr {
    /// The first address of the block.
    pub address: IpAddr,
    /// Length of the prefix in bits.
    pub prefix: u8,
}

impl Cidr {
    /// Whether this address is in it.
    pub fn contains(&self, address: IpAddr) -> bool {
        fn bits(address: IpAddr) -> (u128, u8) {
            match address.to_canonical() {
                IpAddr::V4(v4) => (u128::from(v4.to_bits()) << 96, 32),
                IpAddr::V6(v6) => (Ipv6Addr::to_bits(v6), 128),
            }
        }
        let ((network, width), (address, other)) = (bits(self.address), bits(address));
        let mapped = matches!(self.address, IpAddr::V6(_)) && width == 32;
        let prefix = if mapped { self.prefix.saturating_sub(96) } else { self.prefix };
        let mask = u128::MAX.checked_shl(128 - u32::from(prefix.min(128))).unwrap_or(0);
        width == other && (network ^ address) & mask == 0
    }
}

/// Policy 4: one limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RateLimit {
    /// Rule name for verdicts; also names the counters, which outlive a change of configuration.
    pub name: String,
    /// The kind of requests that it counts.
    pub counts: Counts,
    /// Which requests count. `None`: all.
    pub only: Option<Operation>,
    /// Whose requests count. Empty: everybody's.
    pub from: Vec<Source>,
    /// Whose requests do not: an override of this limit counts them.
    pub except: Vec<Source>,
    /// The node reports that it is exhausted, and refuses no request for it.
    pub audit: bool,
    /// Requests with equal values share one counter; empty: one counter for all. A request that lacks a part shares the counter of all that lack it.
    pub key: Vec<KeyPart>,
    /// The algorithm.
    pub algorithm: QuotaAlgorithm,
}

/// The kind of requests that a rate limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Counts {
    /// Requests that nothing else refuses.
    Requests,
    /// Requests that authentication refuses (401). After as many as the limit allows, further ones
    /// are refused by the limit; authenticated requests are not.
    AuthenticationFailures,
}

/// One part of a rate limit's key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeyPart {
    /// SPIFFE ID of the peer.
    Identity,
    /// A claim of the verified token.
    Claim(ClaimPath),
    /// A request header (lower case).
    Header(String),
    /// The path without query: normalised, or each of its readings.
    Path,
    /// The method.
    Method,
    /// The address of the peer.
    Address,
}

/// The algorithm that counts requests against a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum QuotaAlgorithm {
    /// A bucket that holds `burst` requests and is refilled by `requests` every `period_ms`, evenly.
    TokenBucket {
        /** Refill per period. */
        requests: u32,
        /** Milliseconds. */
        period_ms: u64,
        /** Capacity. */
        burst: u32,
    },
    /// At most `requests` in each window of `period_ms`, windows aligned to the Unix epoch.
    FixedWindow {
        /** Per window. */
        requests: u32,
        /** Milliseconds. */
        period_ms: u64,
    },
}

/// Policy 5.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tracing {
    /// Rule name; empty when no policy sets this section.
    pub name: String,
    /// False: trace headers pass through untouched and no span is made.
    pub enabled: bool,
    /// New traces that are sampled, in units of 1/10,000. An earlier decision (a caller's `traceparent` or B3) is respected.
    pub sampling_per_10k: u16,
    /// Whether B3 headers are read when there is no valid `traceparent`.
    pub accept_b3: bool,
}

/// Policy 6. The program decides whether there is a line; the runtime formats it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AccessLog {
    /// Rule name; empty when no policy sets this section.
    pub name: String,
    /// Whether lines are written at all.
    pub enabled: bool,
    /// Only for responses with a status in one of these ranges, both ends included; empty: all.
    pub statuses: Vec<(u16, u16)>,
    /// Request headers (lower case) whose values go into the line; nothing else of the headers ever does.
    pub request_headers: Vec<String>,
}
