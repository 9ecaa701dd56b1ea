//! The network configuration that the runtime passes to the plug-in.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{CniError, ErrorCode, VERSIONS};
use crate::{enforced, protocol};

/// The longest time that the plug-in waits for the agent, in milliseconds. The kubelet gives the
/// runtime two minutes for the whole pod.
const MAX_TIMEOUT: u64 = 60_000;

/// Leno's part of the entry: the object `leno`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Options {
    /// The agent's socket.
    pub socket: PathBuf,
    /// The list of enforced namespaces.
    pub enforced: PathBuf,
    /// Namespaces whose pods start without a question to the agent.
    pub exempt: Vec<String>,
    /// How long the plug-in waits for the agent, in milliseconds.
    pub timeout_milliseconds: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            socket: protocol::SOCKET.into(),
            enforced: enforced::ENFORCED_FILE.into(),
            exempt: ["kube-system", "kube-public", "kube-node-lease", "leno-system"].map(String::from).to_vec(),
            timeout_milliseconds: 10_000,
        }
    }
}

impl Options {
    /// How long the plug-in waits for the agent.
    pub fn time_limit(&self) -> Duration {
        Duration::from_millis(self.timeout_milliseconds)
    }

    /// Reports a value that is out of its bounds, by its field.
    pub fn check(&self) -> Result<(), String> {
        if !(1..=MAX_TIMEOUT).contains(&self.timeout_milliseconds) {
            let milliseconds = self.timeout_milliseconds;
            return Err(format!("`timeoutMilliseconds` must be 1 to {MAX_TIMEOUT}, not {milliseconds}"));
        }
        for (field, path) in [("socket", &self.socket), ("enforced", &self.enforced)] {
            if !path.is_absolute() {
                return Err(format!("`{field}` must be an absolute path, not `{}`", path.display()));
            }
        }
        match self.exempt.iter().find(|name| !crate::is_namespace(name)) {
            Some(name) => Err(format!("`exempt` must list namespaces of Kubernetes, and `{name}` cannot be one")),
            None => Ok(()),
        }
    }
}

/// A network configuration. The plug-in ignores the specification's other fields.
#[derive(Debug, Deserialize)]
pub struct Configuration<'a> {
    #[serde(rename = "cniVersion")]
    version: Option<String>,
    #[serde(default, rename = "leno")]
    /// Leno's own options.
    pub options: Options,
    #[serde(borrow, default, rename = "prevResult")]
    previous: Option<&'a RawValue>,
}

impl<'a> Configuration<'a> {
    /// Reads and checks a configuration.
    pub fn read(text: &'a [u8]) -> Result<Self, CniError> {
        if text.len() as u64 > crate::MAX_CONFIGURATION {
            let details = format!("it has more than {} bytes", crate::MAX_CONFIGURATION);
            return Err(CniError::new(ErrorCode::Decode, "the network configuration is too long", details));
        }
        let configuration: Self = serde_json::from_slice(text)
            .map_err(|error| CniError::new(ErrorCode::Decode, "cannot decode the network configuration", error))?;
        let version = configuration.version.as_deref().unwrap_or("0.1.0");
        if !VERSIONS.contains(&version) {
            let version: String = version.chars().take(80).collect();
            let details = format!("`cniVersion` is `{version}`; the plug-in knows {}", VERSIONS.join(", "));
            return Err(CniError::new(ErrorCode::IncompatibleVersion, "incompatible CNI version", details));
        }
        let wrong = |details| {
            CniError::new(ErrorCode::Configuration, "the field `leno` of the network configuration is wrong", details)
        };
        configuration.options.check().map_err(wrong)?;
        Ok(configuration)
    }

    /// The result of the plug-in before this one, as it came.
    pub fn previous(&self) -> Result<&'a str, CniError> {
        self.previous.map(RawValue::get).ok_or_else(|| {
            CniError::new(
                ErrorCode::Configuration,
                "the network configuration has no `prevResult`",
                "leno-cni makes no network: its entry has to follow another plug-in in a .conflist file",
            )
        })
    }
}

/// The version in which the runtime expects results and errors, also of a configuration with errors.
pub(crate) fn version(text: &[u8]) -> String {
    #[derive(Deserialize)]
    struct VersionField {
        #[serde(rename = "cniVersion")]
        version: String,
    }
    match serde_json::from_slice::<VersionField>(text) {
        Ok(VersionField { version }) if version.len() <= 16 => version,
        _ => VERSIONS[VERSIONS.len() - 1].to_owned(),
    }
}
