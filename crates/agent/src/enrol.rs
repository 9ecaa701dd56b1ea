//! Enrolment: a machine joins with a token, and requests the settings of the mesh.

use crate::channel;
use backon::{BackoffBuilder, ExponentialBuilder};
use bytes::Bytes;
use leno_identity::{CertificateDer, KeyRequest, Membership, SpiffeId, SvidStore, TrustBundle, TrustDomain};
use leno_model::{Locality, MeshConfig};
use leno_wire::v1::membership_client::MembershipClient;
use leno_wire::{JoinToken, Resource, Subject, check_node_name, v1};
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;
use tonic::Request;
use tonic::transport::Channel;

/// How long the control plane may take to answer.
const JOIN_TIMEOUT: Duration = Duration::from_secs(15);

/// Why a machine could not join.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinFailure {
    /// The control plane refused: another attempt will not help.
    #[error("the control plane refuses this node: {0}")]
    Refused(String),
    /// The control plane cannot be reached, or does not answer, or is not the one that the token
    /// names.
    #[error("the control plane cannot be reached: {0}")]
    Away(String),
    /// The answer is not usable.
    #[error("the control plane's answer cannot be used: {0}")]
    Answer(String),
}

/// How a machine joins.
#[derive(Clone, Debug)]
pub struct JoinOptions {
    /// `host:port` of the control planes, tried in turn.
    pub control: Vec<String>,
    /// The join token.
    pub token: JoinToken,
    /// The name of the node.
    pub name: String,
    /// Where other nodes reach it; `None`: at the address from which it joins.
    pub address: Option<IpAddr>,
}

/// Joins the mesh. Retries with pauses of `backoff` while the control plane cannot be reached. The
/// error is the reason of a refusal.
pub async fn enrol(options: &JoinOptions, backoff: ExponentialBuilder) -> Result<Membership, JoinFailure> {
    let JoinOptions { control, token, name, .. } = options;
    let refused = |error: &dyn fmt::Display| JoinFailure::Refused(error.to_string());
    check_node_name(name).map_err(|error| refused(&error))?;
    let trust_domain = token.trust_domain();
    let identity = SpiffeId::node(trust_domain, name).map_err(|error| refused(&error))?;
    let key = KeyRequest::new(&identity).map_err(|error| refused(&error))?;
    let channel = channel::joining(control, trust_domain, token.pin()).map_err(|error| refused(&error))?;
    let client = MembershipClient::new(channel);
    let mut pauses = backoff.build();
    let answer = loop {
        // The same request each time: an answer may have been lost.
        let address = options.address.map(|address| address.to_string()).unwrap_or_default();
        let secret = Bytes::copy_from_slice(token.secret());
        let csr = key.csr().to_vec().into();
        match ask(client.clone(), v1::JoinRequest { secret, name: name.clone(), csr, address }).await {
            Ok(answer) => break answer,
            Err(JoinFailure::Away(reason)) => {
                let wait = pauses.next().unwrap_or(JOIN_TIMEOUT);
                tracing::warn!(reason, ?wait, "the control plane cannot be joined yet");
                tokio::time::sleep(wait).await;
            }
            Err(failure) => return Err(failure),
        }
    };
    let (bundle, chain) = certificates(trust_domain, answer)?;
    let svids = SvidStore::new(bundle);
    svids.install(key, chain).map_err(|error| JoinFailure::Answer(error.to_string()))?;
    Membership::new(identity, trust_domain, svids).map_err(|error| JoinFailure::Answer(error.to_string()))
}

/// The roots and the chain in the answer to a join.
pub(crate) fn certificates(
    trust_domain: &TrustDomain,
    answer: v1::JoinResponse,
) -> Result<(TrustBundle, Vec<CertificateDer<'static>>), JoinFailure> {
    let roots = answer.roots.into_iter().map(|root| CertificateDer::from(root.to_vec()));
    let bundle = TrustBundle::new(trust_domain, roots).map_err(|error| JoinFailure::Answer(error.to_string()))?;
    Ok((bundle, answer.chain.into_iter().map(|der| CertificateDer::from(der.to_vec())).collect()))
}

/// Requests the settings of the mesh and the node's locality, which the node needs to start.
/// Retries with pauses of `backoff` while the control plane cannot be reached or has none.
pub async fn settings(
    control: &[String],
    membership: &Membership,
    backoff: ExponentialBuilder,
) -> Result<(MeshConfig, Locality), JoinFailure> {
    let refused = |error: &dyn fmt::Display| JoinFailure::Refused(error.to_string());
    let client = MembershipClient::new(channel::of_member(control, membership).map_err(|error| refused(&error))?);
    let mut pauses = backoff.build();
    loop {
        let mut request = Request::new(v1::SettingsRequest {});
        request.set_timeout(JOIN_TIMEOUT);
        let status = match client.clone().settings(request).await {
            Ok(answer) => {
                let v1::SettingsResponse { mesh, region, zone } = answer.into_inner();
                let [region, zone] = [region, zone].map(|part| Some(part).filter(|part| !part.is_empty()));
                let decoded = Resource::decode(&Subject::Mesh, &mesh);
                return match decoded.map_err(|error| JoinFailure::Answer(error.to_string()))? {
                    Resource::Mesh(mesh) => Ok((*mesh, Locality { region, zone })),
                    _ => Err(JoinFailure::Answer("it is not the mesh".to_owned())),
                };
            }
            Err(status) if channel::is_away(&status) => status,
            Err(status) => return Err(JoinFailure::Refused(status.message().to_owned())),
        };
        let wait = pauses.next().unwrap_or(JOIN_TIMEOUT);
        tracing::warn!(reason = channel::reason(&status), ?wait, "the settings of the mesh cannot be had yet");
        tokio::time::sleep(wait).await;
    }
}

/// Asks once to join.
pub(crate) async fn ask(
    mut client: MembershipClient<Channel>,
    request: v1::JoinRequest,
) -> Result<v1::JoinResponse, JoinFailure> {
    let mut request = Request::new(request);
    request.set_timeout(JOIN_TIMEOUT);
    let answer = client.join(request).await.map_err(|status| match channel::is_away(&status) {
        true => JoinFailure::Away(channel::reason(&status)),
        false => JoinFailure::Refused(status.message().to_owned()),
    })?;
    Ok(answer.into_inner())
}
