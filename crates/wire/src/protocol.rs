//! The versions of the protocol.

use crate::v1;
use std::ops::RangeInclusive;
use tonic::Status;

/// The release of this crate, for people.
pub const RELEASE: &str = env!("CARGO_PKG_VERSION");
/// The versions of the protocol that this crate speaks. `Protocols` in `discovery.proto` has the
/// rule for a new version.
pub const PROTOCOLS: RangeInclusive<u32> = 1..=7;
/// The first version in which a node names the authorities of its certificates and proves that it
/// accepts certificates of another authority.
pub const AUTHORITIES: u32 = 2;
/// The first version in which the control plane sends nodes the addresses of the mesh's machines.
pub const MACHINES: u32 = 3;
/// The first version in which the control plane sends nodes the revoked memberships.
pub const REVOKED: u32 = 4;
/// The first version in which the control plane sends nodes stored secrets.
pub const SECRETS: u32 = 5;
/// The first version in which nodes get the certificates of Gateway documents' listeners, and report
/// listeners that they cannot serve.
pub const LISTENERS: u32 = 6;
/// The first version in which nodes get the pods that they have.
pub const PODS: u32 = 7;
/// The first version in which the control plane queries nodes.
pub const QUESTIONS: u32 = 2;
/// Maximum size of one message in bytes. A delta is cut long before that, unless a single resource
/// is larger.
pub const MAX_MESSAGE: usize = 64 << 20;

/// The versions of the protocol, for a hello.
pub fn protocols() -> v1::Protocols {
    v1::Protocols { oldest: *PROTOCOLS.start(), newest: *PROTOCOLS.end() }
}

/// The newest version of the protocol that both ends speak.
pub fn shared_protocol(hello: &v1::Hello) -> Result<u32, Status> {
    // A node that names no versions is older than the first one.
    let v1::Protocols { oldest, newest } = hello.protocols.unwrap_or_default();
    let shared = newest.min(*PROTOCOLS.end());
    if shared >= oldest && PROTOCOLS.contains(&shared) {
        return Ok(shared);
    }
    let text = format!(
        "the node (release {:?}) speaks versions {oldest} to {newest} of the protocol and the control plane (release {RELEASE}) versions {} to {}",
        hello.release,
        PROTOCOLS.start(),
        PROTOCOLS.end()
    );
    Err(Status::failed_precondition(text))
}
