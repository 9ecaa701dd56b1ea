//! The authority of the mesh, in a Secret in the form of cert-manager.

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Client, Error};
use leno_control::Control;
use leno_identity::{Authority, AuthorityPem, TrustDomain};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::block_in_place;
use tokio::time::sleep;

/// Pause before the Secret is looked at again: while there is none, and when there is one.
const ABSENT: Duration = Duration::from_secs(1);
const PRESENT: Duration = Duration::from_secs(30);
const KEYS: [&str; 3] = ["tls.crt", "tls.key", "ca.crt"];

/// A Secret with an authority, and the ConfigMap of the same name with its roots, for agents.
pub struct AuthoritySecret {
    client: Client,
    namespace: String,
    name: String,
    domain: TrustDomain,
}

/// Why a Secret has no authority.
#[derive(Debug, thiserror::Error)]
enum SecretError {
    #[error("{0}")]
    Api(#[from] Error),
    #[error("{0}")]
    Content(String),
}

impl AuthoritySecret {
    /// The Secret `name` in a namespace.
    pub fn new(client: Client, namespace: &str, name: &str, domain: TrustDomain) -> Self {
        Self { client, namespace: namespace.to_owned(), name: name.to_owned(), domain }
    }

    /// The authority. Waits for the Secret; if there is none, the controller that leads makes it.
    pub async fn open(&self, leads: &watch::Receiver<bool>) -> (Authority, AuthorityPem) {
        let mut logged = String::new();
        loop {
            let reason = match self.attempt(*leads.borrow()).await {
                Ok(Some(found)) => return found,
                Ok(None) => "the controller that leads has not made it yet".to_owned(),
                Err(error) => error.to_string(),
            };
            if reason != logged {
                tracing::warn!(secret = %format!("{}/{}", self.namespace, self.name), "no authority: {reason}");
                logged = reason;
            }
            sleep(ABSENT).await;
        }
    }

    async fn attempt(&self, leads: bool) -> Result<Option<(Authority, AuthorityPem)>, SecretError> {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        if let Some(secret) = api.get_opt(&self.name).await? {
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
        match api.create(&PostParams::default(), &secret).await {
            Ok(_) => tracing::info!("made the authority of {}", self.domain),
            // A controller that led before has made it meanwhile.
            Err(Error::Api(status)) if status.code == 409 => return Ok(None),
            Err(error) => return Err(error.into()),
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
    pub async fn follow(&self, control: &Control, mut present: AuthorityPem, mut leads: watch::Receiver<bool>) {
        // Agents that join trust the present root and the one before it: some nodes change later.
        let mut before = String::new();
        let mut published = None;
        loop {
            let api: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
            match api.get_opt(&self.name).await.map_err(SecretError::from) {
                Ok(Some(secret)) => match self.read(&secret) {
                    Ok((_, found)) if found == present => {}
                    Ok((authority, found)) => {
                        match block_in_place(|| control.rotate(authority, false, BTreeSet::new())) {
                            Ok(()) => {
                                tracing::info!("the Secret has another authority: nodes change to it");
                                before = std::mem::replace(&mut present, found).roots;
                            }
                            Err(error) => tracing::warn!(%error, "the authority in the Secret is not in force yet"),
                        }
                    }
                    Err(error) => {
                        tracing::error!(%error, "the authority in the Secret cannot be used; the present one stays")
                    }
                },
                Ok(None) => tracing::error!("the Secret of the authority is gone; the present one stays in memory"),
                Err(error) => tracing::warn!(%error, "the Secret of the authority cannot be read"),
            }
            let roots =
                if before == present.roots { present.roots.clone() } else { format!("{}{before}", present.roots) };
            if *leads.borrow() && published.as_ref() != Some(&roots) {
                match self.publish_roots(&roots).await {
                    Ok(()) => published = Some(roots),
                    Err(error) => tracing::warn!(%error, "agents cannot read the roots of the mesh yet"),
                }
            }
            let pause = if published.is_none() && *leads.borrow() { ABSENT } else { PRESENT };
            tokio::select! {
                () = sleep(pause) => {}
                changed = leads.changed() => if changed.is_err() { return },
            }
        }
    }

    async fn publish_roots(&self, roots: &str) -> Result<(), Error> {
        let api: Api<k8s_openapi::api::core::v1::ConfigMap> = Api::namespaced(self.client.clone(), &self.namespace);
        let map = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": self.name},
            "data": {"ca.crt": roots},
        });
        api.patch(&self.name, &PatchParams::apply("leno-controller").force(), &Patch::Apply(map)).await.map(drop)
    }
}

fn content(error: impl std::fmt::Display) -> SecretError {
    SecretError::Content(error.to_string())
}
