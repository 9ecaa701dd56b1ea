//! Certificate signing requests to the control plane.

use crate::channel;
use leno_identity::{CertificateDer, SpiffeId};
use leno_wire::v1;
use leno_wire::v1::identity_client::IdentityClient;
use std::time::Duration;
use tonic::Request;
use tonic::transport::Channel;

const SIGN_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a certificate was not signed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignFailure {
    /// The control plane refused this node or this request.
    #[error("the control plane refused: {0}")]
    Refused(String),
    /// The control plane cannot be reached or does not answer.
    #[error("the control plane is away: {0}")]
    Away(String),
}

/// Has a certificate signed. `candidate`: by the candidate authority of a rotation.
pub(crate) async fn sign(
    channel: Channel,
    identity: &SpiffeId,
    csr: Vec<u8>,
    candidate: bool,
) -> Result<Vec<CertificateDer<'static>>, SignFailure> {
    let mut request = Request::new(v1::SignRequest { identity: identity.to_string(), csr: csr.into(), candidate });
    request.set_timeout(SIGN_TIMEOUT);
    let answer = IdentityClient::new(channel).sign(request).await.map_err(|status| failure(&status))?;
    Ok(answer.into_inner().chain.into_iter().map(|der| CertificateDer::from(der.to_vec())).collect())
}

fn failure(status: &tonic::Status) -> SignFailure {
    if channel::is_away(status) {
        SignFailure::Away(channel::reason(status))
    } else {
        SignFailure::Refused(status.message().to_owned())
    }
}
