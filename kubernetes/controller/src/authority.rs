//! The authority of the mesh, in a Secret in the form of cert-manager.

use crate::status::{PeerReport, Peers};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Client, Error};
use leno_control::{Control, Phase, RotationPeers};
use leno_identity::{Authority, AuthorityPem, TrustBundle, TrustDomain};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::block_in_place;
use tokio::time::{sleep, timeout};

/// Pause before the Secret is looked at again: while there is none, and when there is one.
const ABSENT: Duration = Duration::from_secs(1);
const PRESENT: Duration = Duration::from_secs(30);
/// Timeout of a request.
const REQUEST: Duration = Duration::from_secs(5);
const KEYS: [&str; 3] = ["tls.crt", "tls.key", "ca.crt"];

/// A Secret with an authority, and the ConfigMap of the same name with its roots, for agents.
pub struct AuthoritySecret {
    client: Client,
    namespace: String,
    name: String,
    domain: TrustDomain,
    /// Why the authority in the Secret is not in force; empty: it is.
    trouble: watch::Sender<String>,
}

/// Why a Secret has no authority.
#[derive(Debug, thiserror::Error)]
enum SecretError {
    #[error("{0}")]
    Api(#[from] Error),
    #[error("{0}")]
    Content(String),
    #[error("no answer within {REQUEST:?}")]
    Late,
}

impl AuthoritySecret {
    /// The Secret `name` in a namespace.
    pub fn new(client: Client, namespace: &str, name: &str, domain: TrustDomain) -> Self {
        let (namespace, name, trouble) = (namespace.to_owned(), name.to_owned(), watch::Sender::default());
        Self { client, namespace, name, domain, trouble }
    }

    /// Why the authority in the Secret is not in force; empty: it is.
    pub fn trouble(&self) -> watch::Receiver<String> {
        self.trouble.subscribe()
    }

    /// Logs and keeps the reason for which the authority in the Secret is not in force.
    fn set_trouble(&self, reason: String) {
        let secret = format!("{}/{}", self.namespace, self.name);
        self.trouble.send_if_modified(|before| {
            let changed = *before != reason;
            if changed && reason.is_empty() {
                tracing::info!(secret, "the authority in the Secret is in force");
            } else if changed {
                tracing::error!(secret, "the authority in the Secret is not in force: {reason}");
            }
            *before = reason;
            changed
        });
    }

    /// The authority. Waits for the Secret; if there is none, the controller that leads makes it.
    pub async fn open(&self, leads: &watch::Receiver<bool>) -> (Authority, AuthorityPem) {
        loop {
            let reason = match self.attempt(*leads.borrow()).await {
                Ok(Some(found)) => {
                    self.set_trouble(String::new());
                    return found;
                }
                Ok(None) => "the controller that leads has not made it yet".to_owned(),
                Err(error) => error.to_string(),
            };
            self.set_trouble(reason);
            sleep(ABSENT).await;
        }
    }

    async fn attempt(&self, leads: bool) -> Result<Option<(Authority, AuthorityPem)>, SecretError> {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        if let Some(secret) = within(api.get_opt(&self.name)).await? {
            return self.read(&secret).map(Some);
        }
        if !leads {
            return Ok(None);
        }
        let made = block_in_place(|| AuthorityPem::generate(&self.domain)).map_err(content)?;
        let values = [made.certificate.as_bytes(), made.key.as_bytes(), made.roots.as_bytes()];
        let data: BTreeMap<String, ByteString> =
            KEYS.iter().zip(values).map(|(key, value)| ((*key).to_owned(), ByteString(value.to_vec()))).collect();
        let secret = Secret {
            metadata: ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() },
            type_: Some("kubernetes.io/tls".to_owned()),
            data: Some(data),
            ..Secret::default()
        };
        match within(api.create(&PostParams::default(), &secret)).await {
            Ok(_) => tracing::info!("made the authority of {}", self.domain),
            // A controller that led before has made it meanwhile.
            Err(SecretError::Api(Error::Api(status))) if status.code == 409 => return Ok(None),
            Err(error) => return Err(error),
        }
        self.read(&secret).map(Some)
    }

    fn read(&self, secret: &Secret) -> Result<(Authority, AuthorityPem), SecretError> {
        let value = |key: &str| {
            let value = secret.data.as_ref().and_then(|data| data.get(key));
            let value = value.ok_or_else(|| SecretError::Content(format!("it has no key `{key}`")))?;
            String::from_utf8(value.0.clone()).map_err(|_| SecretError::Content(format!("`{key}` is not PEM")))
        };
        let [certificate, key, roots] = KEYS.map(value);
        let pem = AuthorityPem { certificate: certificate?, key: key?.into(), roots: roots? };
        let authority = pem.open(&self.domain).map_err(content)?;
        Ok((authority, pem))
    }

    /// Publishes the roots for agents while this controller leads, and changes to another authority
    /// when the Secret has one. Runs until it is dropped.
    ///
    /// Controllers rotate together: none signs with another authority before the nodes of all trust
    /// it, and none withdraws a root before the nodes of all have other certificates.
    pub async fn follow(
        &self,
        control: &Control,
        mut present: AuthorityPem,
        peers: &Peers,
        mut leads: watch::Receiver<bool>,
    ) {
        let mut published = String::new();
        loop {
            self.look(control, &mut present, peers).await;
            let roots = control.bundle().to_pem();
            if *leads.borrow() && published != roots {
                match self.publish_roots(&roots).await {
                    Ok(()) => published = roots,
                    Err(error) => tracing::warn!(%error, "agents cannot read the roots of the mesh yet"),
                }
            }
            let is_settled = published == control.bundle().to_pem() || !*leads.borrow();
            let changes = control.authority_status().phase.is_some() || control.bundle().roots().count() > 1;
            let pause = if is_settled && !changes { PRESENT } else { ABSENT };
            tokio::select! {
                () = sleep(pause) => {}
                changed = leads.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Looks at the Secret and at the other controllers.
    async fn look(&self, control: &Control, present: &mut AuthorityPem, peers: &Peers) {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        match within(api.get_opt(&self.name)).await {
            Ok(Some(secret)) => match self.read(&secret) {
                Ok((_, found)) if found == *present => self.set_trouble(String::new()),
                Ok((authority, found)) => {
                    // The next look knows the other controllers.
                    let unknown = ("all".to_owned(), "the other controllers are not known yet".to_owned());
                    let waiting = RotationPeers { waiting: [unknown].into(), ..RotationPeers::default() };
                    control.set_rotation_peers(waiting);
                    match block_in_place(|| control.rotate(authority, false, BTreeSet::new())) {
                        Ok(()) => {
                            tracing::info!("the Secret has another authority: nodes change to it");
                            *present = found;
                            self.set_trouble(String::new());
                        }
                        Err(error) => self.set_trouble(error.to_string()),
                    }
                }
                Err(error) => self.set_trouble(format!("{error}. The authority before stays")),
            },
            Ok(None) => self.set_trouble("the Secret is gone. The authority stays in memory".to_owned()),
            // It may be another one now. A later look reads it.
            Err(error) => tracing::warn!(%error, "the Secret of the authority cannot be read"),
        }
        let Some(reports) = peers.by_name().await else { return };
        let own = control.rotation_progress();
        let phase = control.authority_status().phase;
        let others = rotation_peers(&reports, &own.aim, phase.unwrap_or(Phase::Renew));
        let is_over = phase.is_none() && own.has_renewed && others.waiting.is_empty();
        control.set_rotation_peers(others);
        // A controller that began within a rotation still trusts the root before.
        if is_over && let Err(error) = block_in_place(|| control.trust_also(&[])) {
            tracing::warn!(%error, "the root before is not withdrawn yet");
        }
    }

    /// Waits until the other controllers let this authority sign, and trusts the roots that nodes may
    /// have certificates of. A controller that begins within a rotation has only the new authority:
    /// nodes of the others would refuse each certificate that it signs. `wait` takes the reason.
    pub async fn join(&self, control: &Control, peers: &Peers, wait: impl Fn(String)) {
        loop {
            let aim = control.rotation_progress().aim;
            let reason = match peers.by_name().await {
                Some(reports) => {
                    let waiting = rotation_peers(&reports, &aim, Phase::Trust).waiting;
                    if waiting.is_empty() {
                        break;
                    }
                    let each: Vec<String> = waiting.iter().map(|(name, reason)| format!("{name}: {reason}")).collect();
                    each.join("; ")
                }
                None => "the reports of the other controllers cannot be read".to_owned(),
            };
            wait(format!("waits until the other controllers let the authority of the Secret sign: {reason}"));
            sleep(ABSENT).await;
        }
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.namespace);
        let map = within(api.get_opt(&self.name)).await.ok().flatten();
        let Some(text) = map.and_then(|map| map.data?.remove("ca.crt")) else { return };
        let trusted = TrustBundle::from_pem_of(&self.domain, text.as_bytes()).map_err(|error| error.to_string());
        let trusted = trusted
            .and_then(|roots| block_in_place(|| control.trust_also(&[&roots])).map_err(|error| error.to_string()));
        if let Err(error) = trusted {
            tracing::warn!(error, "the roots in the ConfigMap of the authority cannot be used");
        }
    }

    async fn publish_roots(&self, roots: &str) -> Result<(), SecretError> {
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.namespace);
        let map = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": self.name},
            "data": {"ca.crt": roots},
        });
        let parameters = PatchParams::apply("leno-controller").force();
        within(api.patch(&self.name, &parameters, &Patch::Apply(map))).await.map(drop)
    }
}

/// The answer to a request, which the API server may leave open.
async fn within<T>(request: impl Future<Output = Result<T, Error>>) -> Result<T, SecretError> {
    Ok(timeout(REQUEST, request).await.map_err(|_| SecretError::Late)??)
}

/// The other controllers, for a rotation to `aim` in a phase of this one.
fn rotation_peers(reports: &BTreeMap<String, PeerReport>, aim: &str, phase: Phase) -> RotationPeers {
    let waiting = reports.iter().filter_map(|(name, report)| {
        let reason = match phase {
            _ if report.authority != aim => "it has not read the authority of the Secret yet",
            Phase::Trust if !report.trusted => "its nodes do not trust the authority yet",
            Phase::Renew if !report.renewed => "its nodes have certificates of the authority before",
            Phase::Trust | Phase::Renew | Phase::Withdraw => return None,
        };
        Some((format!("controller {name}"), reason.to_owned()))
    });
    let nodes = reports.values().flat_map(|report| report.current.iter().chain(&report.behind).cloned());
    RotationPeers { nodes: nodes.collect(), waiting: waiting.collect() }
}

fn content(error: impl std::fmt::Display) -> SecretError {
    SecretError::Content(error.to_string())
}
