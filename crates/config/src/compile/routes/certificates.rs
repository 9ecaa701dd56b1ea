//! Certificates of listeners with TLS: those of the Mesh document, and stored secrets.

use super::backends::{Grants, LENO};
use crate::route_status::Condition;
use crate::secrets::SecretSet;
use leno_gateway_api::{ListenerTLSConfig, SecretObjectReference};
use leno_model::MeshConfig;

/// The option of a listener with TLS whose certificates are those of the Mesh document.
pub(super) const CERTIFICATES: &str = "leno.dev/certificates";
/// The keys of a stored secret with a certificate, as in Secrets of Kubernetes.
const KEYS: [&str; 2] = ["tls.crt", "tls.key"];

/// The objects to which references of listeners can lead.
pub(super) struct CertificateSource<'a> {
    pub secrets: &'a SecretSet,
    /// All stored secrets are known here.
    pub are_known: bool,
    pub grants: &'a Grants<'a>,
}

impl CertificateSource<'_> {
    /// The stored secrets with the certificates of a listener, each `namespace/name`; empty: those of
    /// the Mesh document. `namespace`: the Gateway's.
    ///
    /// # Errors
    /// The condition `ResolvedRefs`: a reference leads nowhere.
    pub(super) fn of(
        &self,
        namespace: &str,
        tls: Option<&ListenerTLSConfig>,
        mesh: &MeshConfig,
    ) -> Result<Vec<String>, Condition> {
        let invalid = |message: &str| Err(Condition::fails("ResolvedRefs", "InvalidCertificateRef", message));
        let from_mesh = tls.is_some_and(|tls| tls.options.contains_key(CERTIFICATES));
        let named = tls.map_or(&[][..], |tls| &tls.certificate_refs);
        match (from_mesh, named.is_empty()) {
            (true, true) if mesh.gateway_https.is_some() => Ok(Vec::new()),
            (true, true) => invalid("the Mesh document has no certificates"),
            (true, false) => {
                invalid("its certificates are either those of the Mesh document or those of `certificateRefs`")
            }
            (false, true) => invalid("it does not say where its certificates come from"),
            (false, false) => named.iter().map(|reference| self.secret(namespace, reference)).collect(),
        }
    }

    fn secret(&self, own: &str, reference: &SecretObjectReference) -> Result<String, Condition> {
        let SecretObjectReference { group, kind, name, namespace } = reference;
        let fails = |reason, message| Err(Condition::fails("ResolvedRefs", reason, message));
        let kinds = [("", "Secret"), (LENO, "StoredSecret")];
        if !kinds.contains(&(&**group, &**kind)) {
            let message = format!("`{}` cannot be a certificate: expected a `Secret`", kind.escape_debug());
            return fails("InvalidCertificateRef", message);
        }
        let namespace = namespace.as_deref().unwrap_or(own);
        let shown = format!("{}/{}", namespace.escape_debug(), name.escape_debug());
        // A Gateway must not learn whether another namespace has a secret of this name.
        if namespace != own && !self.grants.permit(("Gateway", own), (namespace, name), &kinds) {
            let message = format!("no ReferenceGrant of the namespace lets Gateways refer to `{shown}`");
            return fails("RefNotPermitted", message);
        }
        let found = self.secrets.get(namespace, name);
        let missing = KEYS.into_iter().find(|key| found.is_some_and(|found| !found.keys.contains_key(*key)));
        match (found, missing) {
            (Some(_), None) => Ok(format!("{namespace}/{name}")),
            (Some(_), Some(key)) => {
                fails("InvalidCertificateRef", format!("the StoredSecret `{shown}` has no key `{key}`"))
            }
            (None, _) if !self.are_known => Ok(format!("{namespace}/{name}")),
            (None, _) => fails("InvalidCertificateRef", format!("there is no StoredSecret `{shown}`")),
        }
    }
}
