//! Moves bodies into the memory that an instance reads.

use http::HeaderMap;
use http_body::Body as _;
use http_body_util::BodyExt;
use leno_http::body::{Body, BodyError, GRPC_MESSAGE, GRPC_STATUS};
use leno_model::ChainLink;
use leno_shm::Writer;
use leno_shm::slab::Full;

/// Maximum size of a body whose length is unknown, in bytes.
const MOST_UNTOLD: u64 = 1 << 20;

/// Maximum size of a body that is copied in, in bytes. The memory must also hold the message that
/// announces the body, and lengths are rounded up by up to an eighth.
pub(super) fn most(chain: Option<&ChainLink>) -> u64 {
    chain.map_or(0, |chain| chain.memory / 8 * 7)
}

/// Why a body is not where the instance could read it.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoBody {
    /// The sender broke off.
    #[error(transparent)]
    Broken(#[from] BodyError),
    /// The instance's memory has no space for it at the moment.
    #[error(transparent)]
    Full(Full),
    /// The body is larger than the instance's memory can ever hold.
    #[error("a body may have {0} bytes")]
    TooLong(u64),
}

/// A copy of a body, in memory that the instance reads.
pub(super) struct BodyCopy {
    /// `None`: it is empty.
    pub body: Option<leno_shm::Body>,
    /// The status of a gRPC call. A message has no trailers, but it begins when its body is
    /// complete, so its head can say it.
    pub status: HeaderMap,
}

/// Copies a body. `writer` reserves the given number of bytes; `most`: see [`most`].
pub(super) async fn copy_in(
    body: &mut Body,
    most: u64,
    writer: impl FnOnce(u64) -> Result<Writer, Full>,
) -> Result<BodyCopy, NoBody> {
    let mut status = HeaderMap::new();
    if body.is_over() {
        return Ok(BodyCopy { body: None, status });
    }
    let space = body.size_hint().exact().unwrap_or(MOST_UNTOLD.min(most));
    if space > most {
        return Err(NoBody::TooLong(most));
    }
    let mut writer = writer(space.max(1)).map_err(NoBody::Full)?;
    while let Some(frame) = body.frame().await {
        let frame = frame?;
        if let Some(bytes) = frame.data_ref() {
            writer.write(bytes).map_err(|_| NoBody::TooLong(space))?;
        } else if let Some(trailers) = frame.trailers_ref() {
            let told = [GRPC_STATUS, GRPC_MESSAGE].into_iter().filter_map(|name| Some((trailers.get(&name)?, name)));
            status.extend(told.map(|(value, name)| (name, value.clone())));
        }
    }
    Ok(BodyCopy { body: writer.commit(), status })
}
