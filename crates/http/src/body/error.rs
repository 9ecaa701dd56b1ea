//! Why bodies break off.

use super::instance::InstanceError;
use crate::wire::WireError;
use std::time::Duration;

/// Why a body broke off.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// The sender broke off.
    #[error("the sender broke off: {0}")]
    Sender(#[from] WireError),
    /// The component's instance that wrote the body broke off.
    #[error(transparent)]
    Instance(#[from] InstanceError),
    /// The timeout of the exchange has passed.
    #[error("the time for the exchange, {0:?}, is over")]
    Timeout(Duration),
    /// The exchange is closed. HTTP/2 streams are reset with this code.
    #[error("it is closed")]
    Closed(#[source] h2::Error),
    /// The copy of a body fell behind its request, or the request broke off.
    #[error("the copy cannot follow its request")]
    CutCopy,
    /// A later attempt has taken over the body.
    #[error("another try has taken over")]
    Superseded,
}

impl BodyError {
    pub(crate) fn closed() -> Self {
        Self::Closed(h2::Reason::CANCEL.into())
    }

    /// The status and the message with which a gRPC call ends that breaks off after its head;
    /// `None`: the upstream has reset the stream, and its client learns the same code.
    pub(crate) fn grpc(&self) -> Option<(u8, &'static str)> {
        let unavailable = (14, "the upstream broke off");
        match self {
            Self::Timeout(_) => Some((4, "the time for the call is over")),
            Self::Sender(error) => match error.http2() {
                Some(error) if error.is_reset() && error.is_remote() => None,
                Some(error) if error.is_reset() => Some((13, "the upstream's response is malformed")),
                None if matches!(error, WireError::Trailers(..)) => Some((8, "the trailers are larger than allowed")),
                _ => Some(unavailable),
            },
            Self::Instance(_) => Some(unavailable),
            Self::Closed(_) | Self::CutCopy | Self::Superseded => None,
        }
    }
}
