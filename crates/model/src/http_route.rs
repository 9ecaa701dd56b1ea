//! Checked HTTP routes: what HTTPRoute and GRPCRoute documents become. They come from `config`; a
//! node's route tables are built from them.

use crate::authorizer::Authorizer;
use crate::fault::Fault;
use crate::function_id::FunctionId;
use crate::stream_route::StreamListener;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// The listeners and routes of all Gateway documents. Each gateway gets all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GatewayRoutes {
    /// Listeners, sorted by name.
    pub listeners: Vec<RouteListener>,
    /// Routes that are attached to at least one of the listeners, sorted by name.
    pub routes: Vec<AttachedRoute>,
    /// Listeners for TLS and TCP, with their routes, sorted by name.
    pub streams: Vec<StreamListener>,
}

/// A listener of a Gateway document that gateways serve. Several listeners can share port and host:
/// a request belongs to all of those with the most specific host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteListener {
    /// `namespace/gateway/listener`.
    pub name: String,
    /// The port of the gateway's socket.
    pub port: u16,
    /// Requests come over TLS.
    pub tls: bool,
    /// The hosts that it serves: exact, or `*.suffix`; `None`: all that no other listener of the
    /// port serves.
    pub host: Option<String>,
    /// Gateways open the port for Gateway documents: the Mesh document has no socket there.
    pub opened: bool,
    /// With `tls`: the StoredSecrets of its certificates, each `namespace/name`; empty: its
    /// certificates are those of the Mesh document.
    pub certificates: Vec<String>,
}

/// A route and the listeners to which it is attached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttachedRoute {
    /// The route.
    pub route: HttpRoute,
    /// Where its requests come from; never empty.
    pub attachments: Vec<Attachment>,
}

/// A route's attachment to one listener.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attachment {
    /// The listener's `namespace/gateway/listener`.
    pub listener: String,
    /// The hosts that both the listener and the route serve: exact, `*.suffix`, or `*`.
    pub hosts: Vec<String>,
}

/// A route for calls to a callee.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallRoute {
    /// The route.
    pub route: HttpRoute,
    /// Only for calls to this port, which is 80 if the host names none; `None`: all calls.
    pub port: Option<u16>,
}

/// A route: its rules in the order of the document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpRoute {
    /// `namespace/name`.
    pub name: String,
    /// The kind of its document.
    pub kind: HttpRouteKind,
    /// Which rule gets a request that several rules match.
    pub precedence: Precedence,
    /// The rules; never empty.
    pub rules: Vec<RouteRule>,
}

/// The kind of document that a route comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HttpRouteKind {
    /// `HTTPRoute`.
    Http,
    /// `GRPCRoute`.
    Grpc,
}

/// Which rule gets a request that several rules match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Precedence {
    /// The most specific one, by the Gateway API: exact path, longest prefix, method, number of
    /// header fields, number of query parameters, name of the route, order in the document.
    MostSpecific,
    /// The first one in the document.
    First,
}

/// A rule: requests that match get its filters and go to one of its back ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteRule {
    /// Its name, or else its number in the document; empty: its place in the route is the number.
    pub name: String,
    /// A request has to match one of these; never empty.
    pub matches: Vec<RouteMatch>,
    /// Changes of requests and responses, in order.
    pub filters: Vec<RouteFilter>,
    /// Where requests go. Without any, and without a redirect: they get status 500.
    pub backends: Vec<Backend>,
    /// Time limits.
    pub timeouts: RouteTimeouts,
    /// Retries, in place of those of the policies; `None`: those of the policies.
    pub retry: Option<RouteRetry>,
    /// Faults of its requests. At most one acts on a request: the first that meets it.
    pub faults: Vec<Fault>,
}

/// Conditions of a request, all of which have to hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteMatch {
    /// The normalised path.
    pub path: PathPattern,
    /// The method; empty: any.
    pub method: String,
    /// Header fields. Names in lower case; none twice.
    pub headers: Vec<FieldMatch>,
    /// Query parameters; no name twice.
    pub query: Vec<FieldMatch>,
}

/// A pattern of paths.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PathPattern {
    /// This path.
    Exact(String),
    /// Paths that begin with these segments, without a slash at the end; empty: all paths.
    Prefix(String),
    /// Paths that begin with these characters.
    Literal(String),
    /// Paths that this regular expression matches from beginning to end.
    Regex(String),
}

/// A condition of a header field or a query parameter.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FieldMatch {
    /// Name.
    pub name: String,
    /// Value.
    pub value: ValuePattern,
}

/// A pattern of values.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ValuePattern {
    /// This value.
    Exact(String),
    /// Values that this regular expression matches from beginning to end.
    Regex(String),
}

/// A step of a route with requests and responses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RouteFilter {
    /// Changes header fields of requests.
    RequestHeaders(HeaderModifier),
    /// Changes header fields of responses.
    ResponseHeaders(HeaderModifier),
    /// Answers with a redirect.
    Redirect(Redirect),
    /// Changes host and path.
    Rewrite(Rewrite),
    /// Sends copies of requests to another back end.
    Mirror(Mirror),
    /// Answers preflight requests, and tells browsers which pages may read responses.
    Cors(Cors),
    /// Asks an authorizer about each request.
    Authorize(Box<RouteAuthorizer>),
}

/// Changes of header fields: first `set`, then `add`, then `remove`. Names in lower case.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeaderModifier {
    /// Fields that get a value in place of those that they have.
    pub set: Vec<(String, String)>,
    /// Fields that get another value.
    pub add: Vec<(String, String)>,
    /// Fields that are removed.
    pub remove: Vec<String>,
}

/// A redirect. Parts of the address that it does not name stay as the client asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Redirect {
    /// `http` or `https`.
    pub scheme: Option<String>,
    /// Host.
    pub host: Option<String>,
    /// Path.
    pub path: Option<PathChange>,
    /// Port.
    pub port: Option<u16>,
    /// Status: 301, 302, 303, 307 or 308.
    pub status: u16,
}

/// Changes of host and path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rewrite {
    /// Host.
    pub host: Option<String>,
    /// Path.
    pub path: Option<PathChange>,
}

/// A change of a path. The query stays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PathChange {
    /// The whole path.
    Full(String),
    /// The part that the rule's [`PathPattern::Prefix`] matches.
    Prefix(String),
}

/// A copy of requests for another back end. Its responses are discarded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mirror {
    /// Where the copies go.
    pub target: BackendTarget,
    /// The share of requests: `numerator` of `denominator`.
    pub numerator: u32,
    /// Never 0.
    pub denominator: u32,
}

/// An authorizer that a route asks before any policy judges the request. A question is a separate
/// call: of the caller, or of the client at a gateway.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteAuthorizer {
    /// Who is asked: a function or an External.
    pub target: BackendTarget,
    /// How it is asked. Without an authority, it gets that of the request. It has no cache.
    pub authorizer: Authorizer,
    /// An answer that allows sets all of its fields in the request, except those of the message and
    /// of the mesh, and not only `upstream_headers`.
    pub sets_all: bool,
}

/// Cross-origin resource sharing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cors {
    /// `scheme://host[:port]`, where the host can be `*` or `*.suffix`; or `*`.
    pub allow_origins: Vec<String>,
    /// Pages may send credentials.
    pub allow_credentials: bool,
    /// Methods, or `*`.
    pub allow_methods: Vec<String>,
    /// Header fields of requests, or `*`.
    pub allow_headers: Vec<String>,
    /// Header fields of responses that pages may read, or `*`.
    pub expose_headers: Vec<String>,
    /// How long browsers remember the answer to a preflight request.
    pub max_age: Duration,
}

/// A back end and its share of a rule's requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Backend {
    /// Where its requests go.
    pub target: BackendTarget,
    /// Its share is this number of the sum of all weights of the rule.
    pub weight: u32,
    /// Filters of its requests and responses, after those of the rule.
    pub filters: Vec<RouteFilter>,
}

/// Where requests go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BackendTarget {
    /// A function.
    Function(FunctionId),
    /// An External, at this one of its ports.
    External(FunctionId, u16),
    /// A revision of a function, by its tag or name.
    Revision(FunctionId, String),
    /// Nothing, for this reason: requests get status 500.
    Invalid(String),
}

/// Time limits of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteTimeouts {
    /// From the request's head to the end of its response; `None`: that of the policies; zero: no
    /// limit.
    pub request: Option<Duration>,
    /// The same of each attempt.
    pub backend_request: Option<Duration>,
}

/// Retries of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteRetry {
    /// Statuses that are tried again.
    pub codes: Vec<u16>,
    /// Attempts after the first one; `None`: one.
    pub attempts: Option<u32>,
    /// Shortest pause before an attempt; `None`: that of the policies.
    pub backoff: Option<Duration>,
}

impl GatewayRoutes {
    /// Whether there is neither a listener nor a route.
    pub fn is_empty(&self) -> bool {
        self.listeners.is_empty() && self.routes.is_empty() && self.streams.is_empty()
    }
}

impl BackendTarget {
    /// The function or External; `None`: there is none.
    pub fn function(&self) -> Option<&FunctionId> {
        match self {
            Self::Function(id) | Self::External(id, _) | Self::Revision(id, _) => Some(id),
            Self::Invalid(_) => None,
        }
    }
}

impl HttpRoute {
    /// The functions and Externals that its requests, their copies and questions about them can go
    /// to.
    pub fn targets(&self) -> impl Iterator<Item = &FunctionId> {
        let filters = |rule| {
            let RouteRule { filters, backends, .. }: &RouteRule = rule;
            filters.iter().chain(backends.iter().flat_map(|backend| &backend.filters))
        };
        let mirrors = self.rules.iter().flat_map(filters).filter_map(|filter| match filter {
            RouteFilter::Mirror(mirror) => mirror.target.function(),
            RouteFilter::Authorize(asked) => asked.target.function(),
            _ => None,
        });
        self.rules.iter().flat_map(|rule| &rule.backends).filter_map(|backend| backend.target.function()).chain(mirrors)
    }
}

impl fmt::Display for RouteMatch {
    /// `GET, path below /checkout, header x-group staff, query page like [0-9]+`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.method.is_empty() {
            write!(f, "{}, ", self.method)?;
        }
        match &self.path {
            PathPattern::Exact(path) => write!(f, "path {path}")?,
            PathPattern::Prefix(path) if path.is_empty() => f.write_str("any path")?,
            PathPattern::Prefix(path) => write!(f, "path below {path}")?,
            PathPattern::Literal(path) => write!(f, "path that begins with {path}")?,
            PathPattern::Regex(path) => write!(f, "path like {path}")?,
        }
        let headers = self.headers.iter().map(|field| ("header", field));
        for (kind, FieldMatch { name, value }) in headers.chain(self.query.iter().map(|field| ("query", field))) {
            match value {
                ValuePattern::Exact(value) => write!(f, ", {kind} {name} {value}")?,
                ValuePattern::Regex(value) => write!(f, ", {kind} {name} like {value}")?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for BackendTarget {
    /// `shop/stock`, `shop/depot:443` or `shop/stock (revision next)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Function(id) => write!(f, "{id}"),
            Self::External(id, port) => write!(f, "{id}:{port}"),
            Self::Revision(id, revision) => write!(f, "{id} (revision {revision})"),
            Self::Invalid(_) => f.write_str("none"),
        }
    }
}
