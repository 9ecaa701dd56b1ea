//! `spec.quotas` of the mesh.

use crate::duration::Duration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Where the counters of rate limits are kept. All of this is read when a node starts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Quotas {
    /// In a Redis or Valkey server, which may be that of several meshes. Without it: on the nodes,
    /// between which the control plane divides each limit.
    pub redis: Option<RedisQuotas>,
}

/// A Redis or Valkey server that keeps counters: [rate limits in
/// Redis](../placement.md#rate-limits-in-redis). Neither a cluster (several servers that divide the
/// keys) nor Sentinel is supported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RedisQuotas {
    /// Host and port: `redis.shop.example:6379`, `127.0.0.1:6379`, `[2001:db8::1]:6379`.
    pub address: String,
    /// TLS, which every server needs that is not on loopback: `{}` trusts the machine's
    /// authorities.
    #[serde(default)]
    pub tls: Option<RedisTls>,
    /// The user that it knows nodes as. Without it: its default user.
    #[serde(default)]
    pub username: Option<String>,
    /// File with that user's password, relative to the document's folder; the line end at its end
    /// is no part of it.
    #[serde(default)]
    pub password_file: Option<PathBuf>,
    /// Number of the database.
    #[serde(default)]
    pub database: u16,
    /// Prefix of the names of its keys. Meshes with the same server, database and prefix share the
    /// limits of functions of the same name.
    #[serde(default = "prefix")]
    #[schemars(extend("default" = "leno"))]
    pub prefix: String,
    /// How long a request waits for an answer, 1ms to 5s. After that it is refused.
    #[serde(default = "timeout")]
    #[schemars(extend("default" = "200ms"))]
    pub timeout: Duration,
}

fn prefix() -> String {
    "leno".to_owned()
}

fn timeout() -> Duration {
    Duration::from_millis(200)
}

/// TLS towards a Redis server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RedisTls {
    /// PEM file with the authorities to trust in place of the machine's, relative to the document's
    /// folder.
    pub ca_file: Option<PathBuf>,
    /// The name that it must prove. Without it: the host of `address`.
    pub server_name: Option<String>,
}
