//! Warnings before certificates of the control plane expire.

use super::service::{Service, now};
use crate::scrape::Scrape;
use leno_control::{AuthorityStatus, NodeStatus};
use leno_telemetry::exposition::{Collector, Exposition, Family};
use leno_telemetry::families;
use std::sync::Arc;
use std::time::Duration;

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
    service.api_certificate.late_in_words().map(|expires| format!("the certificate of the API {expires}"))
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
    let mut exposition = Exposition::default();
    let now = i64::try_from(now().as_secs()).unwrap_or(i64::MAX);
    let mut gauge = |family: &'static Family<0>, value: i64| exposition.family(family).sample([""; 0], value);
    let end = |end: u64| i64::try_from(end).unwrap_or(i64::MAX);
    gauge(&families::API_EXPIRY, end(service.api_certificate.ends()) - now);
    if let Some(leading) = service.state().leading.clone() {
        let AuthorityStatus { roots, not_after, waiting, phase, .. } = leading.control.authority_status();
        // If there are several, the one that signs certificates.
        let root = roots.iter().find(|root| root.signs).map_or(0, |root| end(root.not_after));
        gauge(&families::ROOT_TIMESTAMP, root);
        gauge(&families::ROOT_EXPIRY, root - now);
        gauge(&families::AUTHORITY_TIMESTAMP, end(not_after));
        gauge(&families::AUTHORITY_EXPIRY, end(not_after) - now);
        gauge(&families::ROTATION_ACTIVE, i64::from(phase.is_some()));
        gauge(&families::ROTATION_WAITING, i64::try_from(waiting.len()).unwrap_or(i64::MAX));
        let status = leading.control.status();
        let certificates = status.nodes.iter().filter_map(|node| node.certificates.as_ref());
        let overdue = certificates.map(|certificates| i64::from(certificates.overdue)).sum();
        gauge(&families::CERTIFICATES_OVERDUE, overdue);
        Scrape::of(status).collect(&mut exposition);
    }
    exposition.finish()
}
