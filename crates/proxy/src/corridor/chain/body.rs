//! Moves bodies into the memory that an instance reads.

use crate::http::body::{Body, BodyError};
use http_body::Body as _;
use http_body_util::BodyExt;
use leno_chain::{Full, Link};

/// Room for the beginning of a body whose length nobody knows.
const FIRST_ROOM: u64 = 64 << 10;

/// Why a body is not where the instance could read it.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoBody {
    /// The sender broke off.
    #[error(transparent)]
    Broken(#[from] BodyError),
    /// The instance's memory has no room for it.
    #[error(transparent)]
    Full(#[from] Full),
}

/// Copies a body into the memory that the instance reads. `None`: it is empty.
pub(super) async fn copy_in(link: &Link, body: &mut Body) -> Result<Option<leno_chain::Body>, NoBody> {
    if body.is_over() {
        return Ok(None);
    }
    let expected = body.size_hint().exact();
    let mut writer = link.writer(expected.unwrap_or(FIRST_ROOM))?;
    while let Some(frame) = body.frame().await {
        // Trailers have no place in a message.
        let Ok(bytes) = frame?.into_data() else { continue };
        if writer.remaining() < bytes.len() as u64 {
            writer = writer.moved_to(writer.len().saturating_add(bytes.len() as u64).saturating_mul(2))?;
        }
        writer.write(&bytes)?;
    }
    Ok(writer.commit())
}
