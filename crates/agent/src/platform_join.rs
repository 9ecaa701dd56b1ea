//! Nodes that join with a credential of their platform, and join again when the control plane does not
//! know them any more.

use crate::channel;
use crate::enrol::{JoinFailure, ask, certificates};
use backon::{BackoffBuilder, ExponentialBuilder};
use bytes::Bytes;
use leno_identity::{CertificateDer, KeyRequest, Membership, SpiffeId, SvidStore, TrustBundle};
use leno_wire::v1::membership_client::MembershipClient;
use leno_wire::{check_node_name, v1};
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The longest credential, in bytes: a request to join has at most 16 KiB.
const MAX_CREDENTIAL: u64 = 12 << 10;
/// The longest file with roots, in bytes.
const MAX_ROOTS: u64 = 1 << 20;
/// The pause after the last one of a backoff.
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// How a machine joins with a credential of its platform. Files are read at each attempt, because
/// credentials and roots change.
#[derive(Clone, Debug)]
pub struct PlatformJoin {
    /// `host:port` of the control planes, tried in turn.
    pub control: Vec<String>,
    /// The name of the node, which the credential proves.
    pub name: String,
    /// File with the credential, such as the token of a service account.
    pub credential: PathBuf,
    /// File with the roots by which the node verifies the control plane, in PEM.
    pub roots: PathBuf,
}

impl PlatformJoin {
    /// Joins the mesh. Retries with pauses of `backoff` while the control plane cannot be reached. The
    /// error is the reason of a refusal.
    pub async fn enrol(&self, backoff: ExponentialBuilder) -> Result<Membership, JoinFailure> {
        check_node_name(&self.name).map_err(|error| JoinFailure::Refused(error.to_string()))?;
        let mut pauses = backoff.build();
        loop {
            match self.attempt().await {
                Ok(joined) => return joined.membership(),
                Err(JoinFailure::Away(reason)) => {
                    let wait = pauses.next().unwrap_or(LONGEST_PAUSE);
                    tracing::warn!(reason, ?wait, "the control plane cannot be joined yet");
                    tokio::time::sleep(wait).await;
                }
                Err(failure) => return Err(failure),
            }
        }
    }

    /// Asks once to join again, and replaces the roots and the node's certificate. Certificates of
    /// functions stay, as far as the roots are the same.
    pub(crate) async fn again(&self, membership: &Membership) -> Result<(), JoinFailure> {
        let NewMembership { identity, key, bundle, chain } = self.attempt().await?;
        if identity != *membership.identity() {
            let reason = format!("the mesh is another one: the node would be {identity}");
            return Err(JoinFailure::Refused(reason));
        }
        let svids = membership.svids();
        if *svids.bundle() != bundle {
            svids.set_bundle(bundle);
        }
        svids.install(key, chain).map(drop).map_err(|error| JoinFailure::Answer(error.to_string()))
    }

    /// Whether the file with the roots has none that the node trusts, so that the control plane is
    /// another one.
    pub(crate) fn has_other_roots(&self, membership: &Membership) -> bool {
        let trusted = membership.svids().bundle();
        let is_trusted = |root: &CertificateDer<'_>| trusted.roots().any(|other| other == root);
        self.roots().is_ok_and(|bundle| !bundle.roots().any(is_trusted))
    }

    async fn attempt(&self) -> Result<NewMembership, JoinFailure> {
        let refused = |error: &dyn fmt::Display| JoinFailure::Refused(error.to_string());
        let bundle = self.roots()?;
        let trust_domain = bundle.trust_domain().clone();
        let identity = SpiffeId::node(&trust_domain, &self.name).map_err(|error| refused(&error))?;
        let key = KeyRequest::new(&identity).map_err(|error| refused(&error))?;
        let channel = channel::joining_with(&self.control, bundle).map_err(|error| refused(&error))?;
        let request = v1::JoinRequest {
            secret: self.credential()?,
            name: self.name.clone(),
            csr: key.csr().to_vec().into(),
            address: String::new(),
        };
        let answer = ask(MembershipClient::new(channel), request).await?;
        let (bundle, chain) = certificates(&trust_domain, answer)?;
        Ok(NewMembership { identity, key, bundle, chain })
    }

    fn roots(&self) -> Result<TrustBundle, JoinFailure> {
        let text = read(&self.roots, MAX_ROOTS)?;
        TrustBundle::from_pem(&text).map_err(|error| away(&self.roots, &error))
    }

    fn credential(&self) -> Result<Bytes, JoinFailure> {
        let text = read(&self.credential, MAX_CREDENTIAL)?;
        let credential = text.trim_ascii();
        if credential.is_empty() {
            return Err(away(&self.credential, &"it is empty"));
        }
        Ok(Bytes::copy_from_slice(credential))
    }
}

/// A certificate that is not shown yet.
struct NewMembership {
    identity: SpiffeId,
    key: KeyRequest,
    bundle: TrustBundle,
    chain: Vec<CertificateDer<'static>>,
}

impl NewMembership {
    fn membership(self) -> Result<Membership, JoinFailure> {
        let unusable = |error: &dyn fmt::Display| JoinFailure::Answer(error.to_string());
        let trust_domain = self.bundle.trust_domain().clone();
        let svids = SvidStore::new(self.bundle);
        svids.install(self.key, self.chain).map_err(|error| unusable(&error))?;
        Membership::new(self.identity, &trust_domain, svids).map_err(|error| unusable(&error))
    }
}

/// A file that cannot be used now. The platform writes it, and may correct it.
fn away(path: &Path, error: &dyn fmt::Display) -> JoinFailure {
    JoinFailure::Away(format!("{}: {error}", path.display()))
}

fn read(path: &Path, most: u64) -> Result<Vec<u8>, JoinFailure> {
    let mut text = Vec::new();
    let file = std::fs::File::open(path).map_err(|error| away(path, &error))?;
    file.take(most + 1).read_to_end(&mut text).map_err(|error| away(path, &error))?;
    if text.len() as u64 > most {
        return Err(away(path, &format!("it has more than {most} bytes")));
    }
    Ok(text)
}
