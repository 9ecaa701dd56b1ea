//! The expiry of a node's certificates, in `/metrics`, under the names of Istio's agent.

use leno_identity::{StoredCertificate, not_after};
use leno_proxy::Node;
use leno_telemetry::exposition::{Collector, Exposition};
use leno_telemetry::families;
use serde_json::{Value, json};

/// Seconds until each certificate expires, by name.
#[derive(Debug)]
pub(crate) struct Scrape(Vec<(String, i64)>);

impl Scrape {
    pub(crate) fn of(node: &Node) -> Self {
        let svids = &node.svids;
        let now = seconds(svids.now().map_or(0, |now| now.as_secs()));
        let left = |end: u64| seconds(end) - now;
        let own = svids.all().into_iter().map(|svid| (svid.id().to_string(), left(svid.not_after().as_secs())));
        let bundle = svids.bundle();
        // During a rotation, the root that expires first may be the one that leaves.
        let root = bundle.roots().filter_map(|root| not_after(root)).map(|end| end.as_secs()).max();
        let gateway = node.gateway_certificates.load();
        let gateway = gateway.iter().flat_map(|certificates| certificates.list().to_vec());
        let gateway = gateway.map(|certificate| {
            (certificate.files.certificate.display().to_string(), left(certificate.not_after.as_secs()))
        });
        let stored = node.listener_certificates.all();
        let stored = stored.iter().filter_map(|(secret, certificate)| {
            Some((secret.clone(), left(certificate.as_ref().ok()?.not_after.as_secs())))
        });
        Self(own.chain(root.map(|end| ("ROOTCA".to_owned(), left(end)))).chain(gateway).chain(stored).collect())
    }
}

/// Rows of `leno get identities`.
pub(crate) fn identities(node: &Node) -> Value {
    let svids = node.svids.all();
    let rows = svids.iter().map(|svid| {
        json!({
            "identity": svid.id().to_string(),
            "not_after": svid.not_after().as_secs(),
            "renew_at": svid.renew_at().as_secs(),
        })
    });
    let gateway = node.gateway_certificates.load();
    let gateway = gateway.iter().flat_map(|certificates| certificates.list().to_vec());
    let gateway = gateway.map(|certificate| {
        json!({
            "identity": format!("gateway, {}", certificate.names.join(" ")),
            "not_after": certificate.not_after.as_secs(),
            "file": certificate.files.certificate,
            "reason": certificate.fault,
        })
    });
    rows.chain(gateway).chain(of_listeners(node)).collect()
}

/// Rows for the certificates of Gateway documents' listeners.
fn of_listeners(node: &Node) -> Vec<Value> {
    let row = |(secret, certificate): (&String, &Result<StoredCertificate, String>)| match certificate {
        Ok(StoredCertificate { names, not_after, .. }) => json!({
            "identity": format!("gateway, {}", names.join(" ")),
            "not_after": not_after.as_secs(),
            "file": format!("StoredSecret {secret}"),
        }),
        Err(reason) => json!({ "identity": "gateway", "file": format!("StoredSecret {secret}"), "reason": reason }),
    };
    node.listener_certificates.all().iter().map(row).collect()
}

fn seconds(time: u64) -> i64 {
    i64::try_from(time).unwrap_or(i64::MAX)
}

impl Collector for Scrape {
    fn collect(&self, exposition: &mut Exposition) {
        let left = self.0.iter().map(|(name, left)| ([name], *left));
        exposition.family(&families::CERTIFICATE_EXPIRY).samples(left);
    }
}
