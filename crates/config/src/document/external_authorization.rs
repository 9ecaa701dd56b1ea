//! `spec.externalAuthorization` of a policy.

use super::authorization::Operation;
use super::rate_limit::KeyPart;
use crate::duration::Duration;
use leno_model::AuthorizerProtocol;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A program that is asked whether a request may enter, after all other policies but `extensions`
/// have allowed it. It can only refuse the request, or add headers to it. The function asks it in
/// its own name, as if `callees` named it: policies for the authorizer have to allow that.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Authorizer {
    /// Name of the authorizer in logs, in records, and of the rule by which it refuses.
    pub name: String,
    /// Who is asked: a function or an External document, `name` in the policy's namespace or
    /// `namespace/name`. Of an External document its first host (or address), and its first port
    /// with HTTP. It must not be asked, at the end of however many questions, about requests to
    /// itself.
    pub service: String,
    /// How it is asked.
    pub protocol: AuthorizerProtocol,
    /// With `http`: what stands before the path of the request in the path of the question, such as
    /// `/check`.
    #[serde(default)]
    pub path_prefix: String,
    /// How long a question may take, 1ms to 60s. Then the request is refused.
    #[serde(default = "default_timeout")]
    pub timeout: Duration,
    /// The status of the refusal where there is no answer to rely on: none in time, an error, or
    /// one that is not understood.
    #[serde(default = "default_status")]
    #[schemars(range(min = 400, max = 599))]
    pub status_on_error: u16,
    /// Which requests it is asked about: those that one of these matches. Without it: all. Where a
    /// path can be read in two ways, one that matches is enough.
    #[serde(default)]
    pub when: Option<Vec<Operation>>,
    /// Request headers that the node sends to it, besides `authorization` and `cookie` with `http`.
    /// Without this field, an HTTP authorizer gets no others, and a gRPC authorizer gets all
    /// headers. It sees them as the function would: a token that is not forwarded is gone. It never
    /// sees the body.
    #[serde(default)]
    pub include_headers: Option<Vec<String>>,
    /// With `grpc`: request headers are shown as the bytes that came, each for itself, in
    /// `header_map` in the place of `headers`, as Envoy's `encode_raw_headers` has it.
    #[serde(default)]
    pub raw_headers: bool,
    /// Headers of an answer that allows which are set in the request. The node removes them from
    /// every request before that, so that clients cannot forge them.
    #[serde(default)]
    pub upstream_headers: Vec<String>,
    /// Headers of an answer that refuses which the client gets, such as `www-authenticate` or
    /// `location`; `content-type` in any case.
    #[serde(default)]
    pub client_headers: Vec<String>,
    /// Remembers answers. Without it, it is asked about each request.
    #[serde(default)]
    pub cache: Option<AuthorizerCache>,
}

/// Which answers of an authorizer are remembered, by each node for itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AuthorizerCache {
    /// How long, 1ms to 1h.
    pub ttl: Duration,
    /// Requests that are equal in all of these get the same answer, whatever else they differ in.
    /// Of a request that lacks one, nothing is remembered. `path` is the path with its query here,
    /// and there is no `claim`.
    pub key: Vec<KeyPart>,
}

fn default_timeout() -> Duration {
    Duration::from_millis(200)
}

fn default_status() -> u16 {
    503
}
