//! The certificates by which nodes authenticate each other's sidecars.

use leno_identity::{MembershipMark, SvidStore};
use leno_runtime::clock;
use std::time::Instant;
use tokio_rustls::rustls::CommonState;

/// The certificate of the sidecar at the other end of a connection between nodes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerCertificate {
    /// `None`: too far in the future to matter.
    pub expires: Option<Instant>,
    /// The node that has it.
    membership: Option<MembershipMark>,
}

impl PeerCertificate {
    /// The one that the peer has shown.
    pub(crate) fn of(session: &CommonState) -> Self {
        let expires = leno_identity::peer_not_after(session).and_then(clock::instant);
        Self { expires, membership: MembershipMark::of_peer(session) }
    }

    /// Whether its node was revoked.
    pub(crate) fn is_revoked(&self, svids: &SvidStore) -> bool {
        svids.is_revoked(self.membership)
    }
}
