//! External authorizers.

use leno_policy::spec::KeyPart;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How an authorizer is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AuthorizerProtocol {
    /// By a gRPC call, `envoy.service.auth.v3.Authorization/Check`, as Envoy does it.
    Grpc,
    /// By a request with the method, path and query of the request in question, and without a body.
    /// 200 allows, 5xx is an error, and any other status from 300 on refuses.
    Http,
}

/// An external authorizer of a function. Its [`leno_policy::spec::Authorizer`] in the function's
/// program, at the same index, selects the requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Authorizer {
    /// `<policy>/externalAuthorization/<name>`.
    pub name: String,
    /// A host of one of the function's callees, with a port if that is not 80.
    pub authority: String,
    /// The protocol of a check.
    pub protocol: AuthorizerProtocol,
    /// A prefix of the path, with [`AuthorizerProtocol::Http`]. It is empty, or begins with a slash
    /// and does not end with one.
    pub path_prefix: String,
    /// Timeout of a check.
    pub timeout: Duration,
    /// Status of the response if the check fails.
    pub status_on_error: u16,
    /// Request headers (lower case) that the check includes; `None`: all.
    pub shown: Option<Vec<String>>,
    /// With [`AuthorizerProtocol::Grpc`]: the check includes each header as received, in
    /// `header_map`.
    pub raw_headers: bool,
    /// Headers (lower case) that the node copies from an allowing response to the request.
    pub upstream_headers: Vec<String>,
    /// Headers (lower case) that the node copies from a refusing response to the client.
    pub client_headers: Vec<String>,
    /// Cache of decisions; `None`: none.
    pub cache: Option<AuthorizerCache>,
    /// The node logs a refusal and lets the request pass.
    pub audit: bool,
}

/// A cache of decisions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuthorizerCache {
    /// Lifetime of an entry.
    pub ttl: Duration,
    /// The parts of a request in the key. Claims are not permitted.
    pub key: Vec<KeyPart>,
}
