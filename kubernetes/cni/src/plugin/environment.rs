//! The variables with which the runtime names the operation and the pod.

use std::ffi::OsString;
use std::path::PathBuf;

use super::{CniError, ErrorCode};

/// An operation of the specification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// `ADD`: a network namespace gets its network.
    Add(Attachment),
    /// `CHECK`: the network is compared with its result.
    Check(Attachment),
    /// `DEL`: the network goes.
    Del(Attachment),
    /// `GC`: remains of other networks are removed.
    Gc,
    /// `STATUS`: can the plug-in serve?
    Status,
    /// `VERSION`: which versions of the specification are there?
    Version,
}

/// One network of one container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// The runtime's name of the container.
    pub container_id: String,
    /// The file of its network namespace, always there but at `DEL`.
    pub netns: Option<PathBuf>,
    /// The pod, if the container is one of Kubernetes.
    pub pod: Option<PodName>,
}

/// The pod in Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodName {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID, if the runtime passes it.
    pub uid: Option<String>,
}

impl Operation {
    /// Reads the operation from variables.
    pub fn read(variable: &impl Fn(&str) -> Option<OsString>) -> Result<Self, CniError> {
        let command = required(variable, "CNI_COMMAND")?;
        Ok(match command.as_str() {
            "ADD" => Self::Add(Attachment::read(variable, true)?),
            "CHECK" => Self::Check(Attachment::read(variable, true)?),
            "DEL" => Self::Del(Attachment::read(variable, false)?),
            "GC" => Self::Gc,
            "STATUS" => Self::Status,
            "VERSION" => Self::Version,
            _ => return Err(wrong("CNI_COMMAND", &command, "ADD, CHECK, DEL, GC, STATUS or VERSION")),
        })
    }
}

impl Attachment {
    fn read(variable: &impl Fn(&str) -> Option<OsString>, with_netns: bool) -> Result<Self, CniError> {
        let container_id = required(variable, "CNI_CONTAINERID")?;
        let mut characters = container_id.chars();
        if !characters.next().is_some_and(|first| first.is_ascii_alphanumeric())
            || !characters.all(|one| one.is_ascii_alphanumeric() || "_.-".contains(one))
        {
            return Err(wrong("CNI_CONTAINERID", &container_id, "letters, digits, `_`, `.` and `-`"));
        }
        let interface = required(variable, "CNI_IFNAME")?;
        if interface.len() > 15
            || matches!(interface.as_str(), "." | "..")
            || interface.contains(|one: char| "/:".contains(one) || one.is_whitespace())
        {
            return Err(wrong("CNI_IFNAME", &interface, "the name of an interface"));
        }
        let netns = optional(variable, "CNI_NETNS")?.filter(|path| !path.is_empty()).map(PathBuf::from);
        if with_netns && netns.is_none() {
            return Err(missing("CNI_NETNS"));
        }
        let arguments = optional(variable, "CNI_ARGS")?.unwrap_or_default();
        Ok(Self { container_id, netns, pod: PodName::read(&arguments)? })
    }
}

impl PodName {
    /// Reads the pod from `CNI_ARGS`: `KEY=VALUE;KEY=VALUE`. The last value of a key counts, as in
    /// the CNI project's library.
    pub fn read(arguments: &str) -> Result<Option<Self>, CniError> {
        let (mut namespace, mut name, mut uid) = (None, None, None);
        for pair in arguments.split(';').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').ok_or_else(|| wrong("CNI_ARGS", pair, "KEY=VALUE;KEY=VALUE"))?;
            match key {
                "K8S_POD_NAMESPACE" => namespace = Some(value),
                "K8S_POD_NAME" => name = Some(value),
                "K8S_POD_UID" => uid = Some(value),
                _ => {}
            }
        }
        let Some(namespace) = namespace.filter(|value| !value.is_empty()) else { return Ok(None) };
        if !crate::is_namespace(namespace) {
            return Err(wrong("CNI_ARGS", namespace, "a namespace of Kubernetes in K8S_POD_NAMESPACE"));
        }
        let name = name.unwrap_or_default();
        if !is_pod(name) {
            return Err(wrong("CNI_ARGS", name, "the name of a pod in K8S_POD_NAME"));
        }
        let uid = uid.filter(|value| !value.is_empty());
        if uid
            .is_some_and(|uid| uid.len() > 64 || !uid.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-'))
        {
            return Err(wrong("CNI_ARGS", uid.unwrap_or_default(), "the UID of a pod in K8S_POD_UID"));
        }
        Ok(Some(Self { namespace: namespace.to_owned(), name: name.to_owned(), uid: uid.map(str::to_owned) }))
    }
}

/// Whether a pod can have this name (a subdomain of RFC 1123).
fn is_pod(name: &str) -> bool {
    matches!(name.len(), 1..=253) && name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.'))
}

fn optional(variable: &impl Fn(&str) -> Option<OsString>, name: &str) -> Result<Option<String>, CniError> {
    let Some(value) = variable(name) else { return Ok(None) };
    value.into_string().map(Some).map_err(|value| wrong(name, &value.to_string_lossy(), "UTF-8"))
}

fn required(variable: &impl Fn(&str) -> Option<OsString>, name: &str) -> Result<String, CniError> {
    optional(variable, name)?.filter(|value| !value.is_empty()).ok_or_else(|| missing(name))
}

fn missing(name: &str) -> CniError {
    CniError::new(ErrorCode::Environment, format!("the variable {name} is missing"), "the container runtime sets it")
}

fn wrong(name: &str, value: &str, expected: &str) -> CniError {
    let value: String = value.chars().take(80).collect();
    CniError::new(
        ErrorCode::Environment,
        format!("the variable {name} is wrong"),
        format!("expected {expected}, not `{value}`"),
    )
}
