//! Warnings before certificates of the control plane expire.

use super::service::{Service, now};
use crate::scrape::AcknowledgementDelays;
use leno_control::{AuthorityStatus, NodeStatus};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::sync::Arc;
use std::time::Duration;

/// The time before expiry at which warnings begin.
const ALARM: Duration = Duration::from_secs(30 * 86_400);
/// Interval of warnings in the log.
const AGAIN: Duration = Duration::from_secs(3600);

/// Logs warnings about the certificate of the API. The control plane logs those about its own.
pub async fn watch(service: Arc<Service>) {
    loop {
        if let Some(warning) = of_the_api(&service) {
            tracing::warn!("{warning}");
        }
        tokio::time::sleep(AGAIN).await;
    }
}

fn of_the_api(service: &Service) -> Option<String> {
    let left = service.api_certificate.ends().saturating_sub(now().as_secs());
    (left < ALARM.as_secs()).then(|| match left / 86_400 {
        0 if left == 0 => "the certificate of the API has expired".to_owned(),
        days => format!("the certificate of the API expires in {days} days"),
    })
}

/// Certificates that expire soon, and nodes that are behind.
pub(super) fn warnings(service: &Service) -> Vec<String> {
    let leading = service.state().leading.clone();
    let of_nodes = leading.iter().flat_map(|leading| leading.control.status().nodes).filter_map(|node| of_node(&node));
    of_control_plane(service).into_iter().chain(of_nodes).collect()
}

/// Certificates of the control plane that expire soon: of the authority, and of the API.
pub(super) fn of_control_plane(service: &Service) -> Vec<String> {
    let leading = service.state().leading.clone();
    let of_authority = leading.iter().flat_map(|leading| leading.control.authority_status().warnings);
    of_authority.chain(of_the_api(service)).collect()
}

fn of_node(node: &NodeStatus) -> Option<String> {
    let NodeStatus { name, unacknowledged_seconds, .. } = node;
    let warning = || format!("the node {name} has not acknowledged its configuration for {unacknowledged_seconds} s");
    node.behind.then(warning)
}

/// `/metrics`, with Istio's names where the meaning is the same.
pub(super) fn metrics(service: &Service) -> String {
    let (mut registry, mut unacknowledged) = (Registry::default(), None);
    let now = i64::try_from(now().as_secs()).unwrap_or(i64::MAX);
    let mut add = |name: &str, help: &str, value: i64| registry.register(name, help, ConstGauge::new(value));
    let end = |end: u64| i64::try_from(end).unwrap_or(i64::MAX);
    if let Some(leading) = service.state().leading.clone() {
        let AuthorityStatus { roots, not_after, waiting, phase, .. } = leading.control.authority_status();
        // If there are several, the one that signs certificates.
        let root = roots.iter().find(|root| root.signs).map_or(0, |root| end(root.not_after));
        add("citadel_server_root_cert_expiry_timestamp", "When the mesh's root expires, in seconds since 1970", root);
        add("citadel_server_root_cert_expiry_seconds", "Seconds until the mesh's root expires", root - now);
        let chain = end(not_after);
        let help = "When nothing that the authority signs is valid any more, in seconds since 1970";
        add("citadel_server_cert_chain_expiry_timestamp", help, chain);
        let help = "Seconds until nothing that the authority signs is valid any more";
        add("citadel_server_cert_chain_expiry_seconds", help, chain - now);
        let help = "Whether the authority is being replaced";
        add("leno_control_rotation_active", help, i64::from(phase.is_some()));
        let help = "Nodes that the replacement of the authority waits for";
        add("leno_control_rotation_waiting", help, i64::try_from(waiting.len()).unwrap_or(i64::MAX));
        let nodes = leading.control.status().nodes;
        unacknowledged = Some(AcknowledgementDelays::of(&nodes));
        let overdue = nodes.into_iter().filter_map(|node| node.certificates);
        let overdue = overdue.map(|certificates| i64::from(certificates.overdue)).sum();
        let help = "Certificates on nodes that were not renewed although half of their lifetime has passed";
        add("leno_control_certificates_overdue", help, overdue);
    }
    let help = "Seconds until the certificate of the API expires";
    add("leno_control_api_cert_expiry_seconds", help, end(service.api_certificate.ends()) - now);
    if let Some(unacknowledged) = unacknowledged {
        registry.register_collector(Box::new(unacknowledged));
    }
    let mut text = String::new();
    // Writing to a `String` does not fail.
    let _ = encode(&mut text, &registry);
    text
}
