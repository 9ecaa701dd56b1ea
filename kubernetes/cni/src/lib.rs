//! Leno's CNI plug-in, a program that the container runtime starts for each pod.
//!
//! The plug-in is the last one of the chain that the cluster's own network begins. It asks the agent
//! of its node to capture the new pod ([`protocol`]), and reports the network of the pod as the
//! plug-in before it did. If the agent does not answer, the plug-in refuses the pods of enforced
//! namespaces only ([`enforced`]). The program also installs itself on the node ([`install`]).
#![forbid(unsafe_code)]

pub mod enforced;
pub mod install;
pub mod plugin;
pub mod protocol;

/// The name of the program in the folder of CNI plug-ins, and the `type` of its entry.
pub const NAME: &str = "leno-cni";

/// The largest configuration that the plug-in and the installer read.
const MAX_CONFIGURATION: u64 = 1 << 20;

/// Whether a namespace of Kubernetes can have this name (a label of RFC 1123).
fn is_namespace(name: &str) -> bool {
    matches!(name.len(), 1..=63)
        && name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'))
        && !name.starts_with('-')
        && !name.ends_with('-')
}
