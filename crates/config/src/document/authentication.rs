//! `spec.authentication` of a policy.

use super::claim::ClaimPath;
use crate::duration::Duration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Who vouches for the users behind requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Authentication {
    /// Accepted issuers. A token of anybody else is refused (401), as is one that is invalid.
    /// Several policies of a function may name the same issuer: a token passes if it satisfies one
    /// of them, its key and its audience together. The first that it satisfies, in order of the
    /// policies' names, decides what becomes of the token and its claims.
    pub issuers: Vec<Issuer>,
    /// Whether a browser's CORS preflight (`OPTIONS` with `origin` and
    /// `access-control-request-method`, without `authorization` and `cookie`) may come without a
    /// token. Authorization still decides: a rule has to allow it. Every policy of a function that
    /// requires a token has to say so.
    #[serde(default)]
    pub allow_cors_preflight: bool,
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
    /// Where to look for a token, in this order. Without it: the header `authorization` after
    /// `Bearer `.
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
    /// Whether a token must say when it expires (`exp`). One that says so and has expired is
    /// refused in any case.
    #[serde(default)]
    pub require_expiration: bool,
    /// Claims whose text is a list separated by spaces, so that a rule looks at each word; `scope`,
    /// `scp` and `permission` always are.
    #[serde(default)]
    pub space_delimited_claims: Vec<ClaimPath>,
    /// Claims that are copied to request headers. The node removes these headers from clients'
    /// requests, and headers that differ from them in `_` for `-` only. [Some
    /// fields](../headers.md) only the mesh writes.
    #[serde(default)]
    pub claims_to_headers: Vec<ClaimToHeader>,
}

fn default_clock_skew() -> Duration {
    Duration::from_secs(60)
}

fn default_required() -> bool {
    true
}

/// A JSON Web Key set (RFC 7517): one of `inline`, `file` and `url`. Keys: RSA of 2048 bits or
/// more, EC P-256, P-384 and P-521, Ed25519. A token that names no key (`kid`) is tried with those
/// that go with its algorithm, eight at most.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Jwks {
    /// The key set itself: `{keys: [...]}`. Public keys only.
    pub inline: Option<serde_json::Value>,
    /// JSON file with the key set, relative to the document's folder.
    pub file: Option<PathBuf>,
    /// `https://` address of the key set; `http://` only to this machine. Until it has been fetched
    /// for the first time, requests with a token of the issuer get 503 with `Retry-After`.
    pub url: Option<String>,
    /// PEM file with the certificates to trust for `url`, relative to the document's folder.
    /// Without it and `ca`: the system's.
    pub ca_file: Option<PathBuf>,
    /// The certificates themselves, in PEM, in place of `caFile`.
    pub ca: Option<String>,
    /// How often to fetch from `url`. A token with an unknown key id fetches sooner; a failed fetch
    /// keeps the keys it had.
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
            ca: None,
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
    /// Text before the token in the header. Without it: `Bearer ` in `authorization`, nothing
    /// elsewhere.
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
