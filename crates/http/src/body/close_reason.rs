//! Open exchanges that the mesh closes.

use crate::failure::Failure;
use http::StatusCode;

/// Why an open exchange is closed, and how its client learns that.
#[derive(Debug)]
pub struct CloseReason {
    /// The status that the same request would get now.
    pub status: StatusCode,
    /// Which rule withdrew the permission, or why the mesh ends the exchange, in words. For
    /// records, never for the client.
    pub reason: String,
    /// It is a gRPC call, which ends with a status in its trailers.
    pub grpc: bool,
    /// The party that closes it.
    pub by: ClosedBy,
}

/// The party that closes an open exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClosedBy {
    /// A policy: the client is not permitted any more.
    Policy,
    /// The mesh, although the exchange is still permitted. The client may begin anew at once.
    Mesh,
    /// The mesh, because a condition besides the client's permission no longer holds: the function
    /// was removed, a certificate has expired, a node was revoked. The client may begin anew at
    /// once.
    Circumstances,
}

impl ClosedBy {
    /// The code and the reason of a WebSocket's close frame (RFC 6455, 7.4.1, and IANA's registry).
    pub fn websocket(self) -> (u16, &'static str) {
        match self {
            Self::Policy => (1008, self.message()),
            Self::Mesh | Self::Circumstances => (1012, self.message()),
        }
    }

    pub(super) fn message(self) -> &'static str {
        match self {
            Self::Policy => "not permitted any more",
            Self::Mesh | Self::Circumstances => "ended by the mesh, connect again",
        }
    }
}

impl CloseReason {
    /// The failure to record.
    pub fn failure(&self) -> Failure {
        let reason = self.reason.clone();
        match self.by {
            ClosedBy::Policy | ClosedBy::Circumstances => Failure::Closed { status: self.status, reason },
            ClosedBy::Mesh => Failure::Ended { reason },
        }
    }
}
