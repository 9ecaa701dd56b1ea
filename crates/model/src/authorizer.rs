//! External authorizers, as nodes ask them.

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
    /// By a request with the method, path and query of the request in question, and without a body. 200 allows, 5xx is an error, and any other status from
    /// 300 on refuses.
    Http,
}

/// Whom to ask about requests to a function, and what to make of the answer. The program of the function says about which requests: each stands at the
/// same index as its [`leno_policy::spec::Authorizer`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Authorizer {
    /// `<policy>/externalAuthorization/<name>`.
    pub name: String,
    /// How the function calls it: a host of one of its callees, with a port if that is not 80.
    pub authority: String,
    /// How it is asked.
    pub protocol: AuthorizerProtocol,
    /// What stands before the path, with [`AuthorizerProtocol::Http`]. It begins with a slash and does not end with one, or is empty.
    pub path_prefix: String,
    /// Longest question.
    pub timeout: Duration,
    /// Status of the refusal where there is no answer to rely on.
    pub status_on_error: u16,
    /// Request headers (lower case) that are shown; `None`: all.
    pub shown: Option<Vec<String>>,
    /// With [`AuthorizerProtocol::Grpc`]: headers are shown as they came, each for itself, in `header_map`.
    pub raw_headers: bool,
    /// Headers (lower case) of an answer that allows which are set in the request.
    pub upstream_headers: Vec<String>,
    /// Headers (lower case) of an answer that refuses which the client gets.
    pub client_headers: Vec<String>,
    /// Which answers are remembered; `None`: none.
    pub cache: Option<AuthorizerCache>,
    /// What it refuses is told, and not refused.
    pub audit: bool,
}

/// Which answers are remembered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuthorizerCache {
    /// How long.
    pub ttl: Duration,
    /// What tells requests apart. No claims.
    pub key: Vec<KeyPart>,
}
