//! The operator's settings of registries and of the connections to them.

use crate::{Error, Result};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use leno_files::{FileAccess, MAX_SMALL_FILE};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, fmt};

/// The registries that a store pulls from.
#[derive(Clone, Debug)]
pub struct Registries {
    /// The registry of names without one, such as `docker.io`. `None`: such names are refused.
    pub default_registry: Option<String>,
    /// Settings of registries and mirrors, by host (and `:port`), such as `ghcr.io`. Other
    /// registries are used without settings.
    pub registries: BTreeMap<String, Registry>,
    /// A `config.json` of Docker, whose `auths` are the credentials of registries that have none in
    /// `registries`. It is read once, when the store is opened. Credential helpers (`credHelpers`,
    /// `credsStore`) are refused: they are programs that would run as root.
    pub docker_config: Option<PathBuf>,
    /// The files that `registries` and `docker_config` may name.
    pub files: FileAccess,
    /// A PEM file of certificate authorities that are trusted besides the machine's own.
    pub ca_bundle: Option<PathBuf>,
    /// Proxies between this machine and the registries.
    pub proxies: Proxies,
    /// How long establishing a connection may take, TLS included.
    pub connect_timeout: Duration,
    /// How long a registry may send nothing.
    pub idle_timeout: Duration,
    /// How long a registry may take for a whole manifest or configuration.
    pub answer_timeout: Duration,
    /// How long a mirror may take to resolve a tag. Then the next endpoint is asked.
    pub mirror_timeout: Duration,
    /// How long requests are repeated to a registry that answers 429, 503 or the like. The delay in
    /// `Retry-After` is kept, if it is not longer.
    pub busy_timeout: Duration,
    /// The lowest rate of a download, in bytes a second. A slower one is given up.
    pub least_rate: u64,
    /// How long a download may be slower than that.
    pub slow_timeout: Duration,
}

impl Default for Registries {
    /// No registry has settings. Proxies are those of the environment. The timeouts are 10 s to
    /// connect, 30 s without a byte, 60 s for a manifest, 5 s for a mirror to resolve a tag, 15 s
    /// for a busy registry, 20 s with less than 4 KiB a second.
    fn default() -> Self {
        Self {
            default_registry: None,
            registries: BTreeMap::new(),
            docker_config: None,
            files: FileAccess::Any,
            ca_bundle: None,
            proxies: Proxies::from_environment(),
            connect_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(30),
            answer_timeout: Duration::from_secs(60),
            mirror_timeout: Duration::from_secs(5),
            busy_timeout: Duration::from_secs(15),
            least_rate: 4096,
            slow_timeout: Duration::from_secs(20),
        }
    }
}

/// Settings of a registry, or of a mirror.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    /// Hosts (and `:port`) that are asked first, in this order, for the same repositories. Each has
    /// its own entry, if it needs settings.
    pub mirrors: Vec<String>,
    /// It speaks plain HTTP. An attacker on the network path can read credentials and private
    /// images, and can answer in its place where a tag is resolved; digests still hold.
    pub insecure: bool,
    /// A PEM file of certificate authorities that are trusted for it, besides the machine's own and
    /// the bundle's. They are also trusted for the hosts it redirects to.
    pub ca_file: Option<PathBuf>,
    /// Its credentials. `None`: those of the Docker configuration, if it has any for this host.
    pub credentials: Option<Credentials>,
}

/// Credentials that authenticate the node to a registry.
#[derive(Clone, PartialEq, Eq)]
pub enum Credentials {
    /// A user name and a password (or an access token in place of one). They are sent to the
    /// registry, or over TLS to the token server that it names.
    Basic {
        /// The user.
        username: String,
        /// Its password.
        password: String,
    },
    /// A bearer token that the registry itself accepts.
    Token(String),
    /// A refresh token (`identitytoken`), for which the registry's token server gives access tokens.
    Identity(String),
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Basic { .. } => "Basic(..)",
            Self::Token(_) => "Token(..)",
            Self::Identity(_) => "Identity(..)",
        })
    }
}

/// Proxies, as the environment variables of the same names say.
#[derive(Clone, Default)]
pub struct Proxies {
    /// The URL of the proxy for HTTPS.
    pub https_proxy: Option<String>,
    /// The URL of the proxy for plain HTTP (insecure registries only).
    pub http_proxy: Option<String>,
    /// Hosts, domains and networks that are reached without a proxy, separated by commas.
    pub no_proxy: Option<String>,
}

impl fmt::Debug for Proxies {
    // A proxy's URL may have a password, which is not shown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxies")
            .field("https_proxy", &self.https_proxy.is_some())
            .field("http_proxy", &self.http_proxy.is_some())
            .field("no_proxy", &self.no_proxy)
            .finish()
    }
}

impl Proxies {
    /// `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY`, in capital or small letters. Empty ones count as missing.
    pub fn from_environment() -> Self {
        let read = |name: &str| {
            let value = env::var(name).or_else(|_| env::var(name.to_lowercase())).ok();
            value.filter(|value| !value.is_empty())
        };
        Self { https_proxy: read("HTTPS_PROXY"), http_proxy: read("HTTP_PROXY"), no_proxy: read("NO_PROXY") }
    }
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct DockerConfig {
    auths: BTreeMap<String, DockerAuth>,
    cred_helpers: BTreeMap<String, String>,
    creds_store: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct DockerAuth {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
    identitytoken: Option<String>,
    registrytoken: Option<String>,
}

/// The credentials in a `config.json` of Docker, by host.
pub(crate) fn docker_credentials(path: &Path, files: &FileAccess) -> Result<BTreeMap<String, Credentials>> {
    let text = leno_files::read(path, files, MAX_SMALL_FILE);
    let text = text.map_err(Error::io("cannot read the Docker configuration", path))?;
    let wrong =
        |error: DockerConfigError| Error::Settings { place: path.display().to_string(), reason: error.to_string() };
    parse_docker_config(&text).map_err(wrong)
}

/// Why a Docker configuration is not usable.
#[derive(Debug, thiserror::Error)]
enum DockerConfigError {
    // Only the place of serde_json's message is shown, because the message may quote secrets.
    #[error("no Docker configuration (line {}, column {}); expected a JSON object with `auths`", .0.line(), .0.column())]
    Json(serde_json::Error),
    #[error(
        "it names the credential helper `{0}`; helpers are not run: write the credentials under `auths`, for example with `docker login` on a machine without helper, and remove `credsStore` and `credHelpers`"
    )]
    Helper(String),
    #[error("auths.{0}: expected a host, or a host and `:port`")]
    Host(String),
    #[error("auths.{key}: {reason}")]
    Auth { key: String, reason: &'static str },
}

fn parse_docker_config(text: &[u8]) -> Result<BTreeMap<String, Credentials>, DockerConfigError> {
    let config: DockerConfig = serde_json::from_slice(text).map_err(DockerConfigError::Json)?;
    let helper = config.creds_store.into_iter().chain(config.cred_helpers.into_values()).find(|name| !name.is_empty());
    if let Some(helper) = helper {
        return Err(DockerConfigError::Helper(helper));
    }
    let mut credentials = BTreeMap::new();
    for (key, auth) in config.auths {
        let host = host(&key).ok_or_else(|| DockerConfigError::Host(key.clone()))?;
        if let Some(found) = auth.credentials().map_err(|reason| DockerConfigError::Auth { key, reason })? {
            credentials.insert(host, found);
        }
    }
    Ok(credentials)
}

impl DockerAuth {
    fn credentials(self) -> Result<Option<Credentials>, &'static str> {
        let filled = |value: Option<String>| value.filter(|value| !value.is_empty());
        if let Some(token) = filled(self.registrytoken) {
            return Ok(Some(Credentials::Token(token)));
        }
        if let Some(token) = filled(self.identitytoken) {
            return Ok(Some(Credentials::Identity(token)));
        }
        if let Some(auth) = filled(self.auth) {
            let wrong = "`auth` is not `user:password` in base64";
            let decoded = STANDARD.decode(&auth).or_else(|_| STANDARD_NO_PAD.decode(&auth)).map_err(|_| wrong)?;
            let decoded = String::from_utf8(decoded).map_err(|_| wrong)?;
            let (username, password) = decoded.trim_end_matches('\0').split_once(':').ok_or(wrong)?;
            return Ok(Some(Credentials::Basic { username: username.to_owned(), password: password.to_owned() }));
        }
        match (filled(self.username), filled(self.password)) {
            (Some(username), Some(password)) => Ok(Some(Credentials::Basic { username, password })),
            (None, None) => Ok(None),
            _ => Err("it has a user without a password, or a password without a user"),
        }
    }
}

/// The host of a key in `auths`, which may be a URL.
fn host(key: &str) -> Option<String> {
    let rest = key.strip_prefix("https://").or_else(|| key.strip_prefix("http://")).unwrap_or(key);
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let whole = matches!(path.trim_end_matches('/'), "" | "v1" | "v2");
    match host {
        "" => None,
        "index.docker.io" | "registry-1.docker.io" => whole.then(|| "docker.io".to_owned()),
        _ => whole.then(|| host.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_read_from_a_docker_configuration() {
        let text = br#"{"auths": {
            "https://index.docker.io/v1/": {"auth": "YTpiOmM="},
            "ghcr.io": {"username": "u", "password": "p"},
            "a:5000": {"identitytoken": "i", "auth": "YTo="},
            "b": {"registrytoken": "r"},
            "empty": {}
        }, "HttpHeaders": {}}"#;
        let basic = |username: &str, password: &str| Credentials::Basic {
            username: username.into(),
            password: password.into(),
        };
        let expected = [
            ("a:5000", Credentials::Identity("i".into())),
            ("b", Credentials::Token("r".into())),
            ("docker.io", basic("a", "b:c")),
            ("ghcr.io", basic("u", "p")),
        ];
        assert_eq!(parse_docker_config(text).unwrap(), expected.map(|(host, found)| (host.to_owned(), found)).into());
    }

    #[test]
    fn what_a_docker_configuration_may_not_have_is_named() {
        for (text, expected) in [
            (r#"{"credsStore": "pass"}"#, "credential helper `pass`"),
            (r#"{"credHelpers": {"gcr.io": "gcloud"}}"#, "credential helper `gcloud`"),
            (r#"{"auths": {"quay.io/team": {"auth": "YTpi"}}}"#, "auths.quay.io/team: expected a host"),
            (r#"{"auths": {"a": {"auth": "!"}}}"#, "auths.a: `auth` is not"),
            (r#"{"auths": {"a": {"auth": "YQ=="}}}"#, "auths.a: `auth` is not"),
            (r#"{"auths": {"a": {"username": "u"}}}"#, "without a password"),
            ("[", "line 1"),
        ] {
            let error = parse_docker_config(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let secret = parse_docker_config(br#"{"auths": {"a": {"auth": ["hunter2"]}}}"#).unwrap_err().to_string();
        assert!(!secret.contains("hunter2"), "{secret}");
    }
}
