//! Columns of listings that both a control plane and a node have.

use crate::table::Column;
use crate::table::Show::{Age, Plain, Since, Time, Wide};

/// The columns of `leno get nodes`.
pub(crate) const NODES: &[Column] = &[
    ("NODE", "node", Plain),
    ("STATE", "state", Plain),
    ("LAST SEEN", "last_seen", Age),
    ("VERSION", "version", Plain),
    ("ROLES", "roles", Plain),
    ("ZONE", "zone", Plain),
    ("HOSTED", "hosted", Plain),
    ("INSTANCES", "instances", Plain),
    ("OF", "most_instances", Plain),
    ("CAPPED", "capped", Plain),
    ("REJECTED", "rejected", Plain),
    ("REFUSED", "refused", Plain),
    ("CERTIFICATE EXPIRES", "certificate_expires", Age),
    ("OVERDUE", "overdue", Plain),
    ("REGION", "region", Wide),
    ("INBOUND", "inbound", Wide),
    ("CPU MILLIS", "cpu_millis", Wide),
    ("MEMORY BYTES", "memory_bytes", Wide),
];

/// The columns of `leno get namespaces`, of a control plane.
pub(crate) const NAMESPACES: &[Column] = &[
    ("NAMESPACE", "namespace", Plain),
    ("FUNCTIONS", "functions", Plain),
    ("INSTANCES", "instances", Plain),
    ("RULES", "rules", Plain),
    ("DOCUMENT BYTES", "document_bytes", Plain),
    ("SECRETS", "secrets", Plain),
    ("HOSTS", "hosts", Plain),
    ("ENGINES", "engines", Wide),
    ("INSTANCES A NODE", "instances_on_a_node", Wide),
    ("PIDS", "pids", Wide),
    ("CONNECTIONS", "connections", Wide),
    ("OPEN REQUESTS", "open_requests", Wide),
    ("WAITING REQUESTS", "waiting_requests", Wide),
    ("IMAGE BYTES", "image_bytes", Wide),
    ("IMAGE FILES", "image_files", Wide),
    ("LOG BYTES/S", "log_bandwidth", Wide),
    ("FILES", "files", Wide),
    ("SECRET BYTES", "secret_bytes", Wide),
    ("ROUTES", "routes", Wide),
    ("ROUTE MATCHES", "route_matches", Wide),
];

/// The columns of `leno get namespaces`, of a node.
pub(crate) const NAMESPACES_OF_NODE: &[Column] = &[
    ("NAMESPACE", "namespace", Plain),
    ("FUNCTIONS", "functions", Plain),
    ("INSTANCES", "instances", Plain),
    ("PIDS", "pids", Plain),
    ("MEMORY", "memory", Plain),
    ("CPU", "cpu", Wide),
    ("CONNECTIONS", "connections", Plain),
    ("OPEN REQUESTS", "open_requests", Plain),
    ("WAITING REQUESTS", "waiting_requests", Plain),
    ("PULL BYTES/S", "pull_bandwidth", Wide),
    ("IMAGE BYTES", "image_bytes", Plain),
    ("IMAGE FILES", "image_files", Plain),
    ("LOG BYTES/S", "log_bandwidth", Plain),
    ("LOG BYTES DROPPED", "log_bytes_dropped", Wide),
    ("LIMITS NOT IN FORCE", "unenforced_limits", Wide),
];

/// Listeners of Gateways.
pub(crate) const GATEWAYS: &[Column] = &[
    ("GATEWAY", "gateway", Plain),
    ("LISTENER", "listener", Plain),
    ("PROTOCOL", "protocol", Plain),
    ("PORT", "port", Plain),
    ("HOST", "host", Plain),
    ("ROUTES", "routes", Plain),
    ("STATE", "state", Plain),
    ("REASON", "reason", Plain),
    ("KINDS", "kinds", Wide),
];

/// Routes.
pub(crate) const ROUTES: &[Column] = &[
    ("ROUTE", "route", Plain),
    ("KIND", "kind", Plain),
    ("HOSTS", "hosts", Plain),
    ("PARENTS", "parents", Plain),
    ("STATE", "state", Plain),
    ("REASON", "reason", Plain),
    ("FAULTS", "faults", Plain),
];

/// Instances, of a node or of all nodes.
pub(crate) const INSTANCES: &[Column] = &[
    ("INSTANCE", "instance", Plain),
    ("FUNCTION", "function", Plain),
    ("STATE", "state", Plain),
    ("ADDRESS", "address", Plain),
    ("PID", "pid", Plain),
    ("ISOLATION", "isolation", Plain),
    ("RESTARTS", "restarts", Plain),
    ("REASON", "reason", Wide),
    ("NODE", "node", Plain),
];

/// The use of limits, of a node or of all nodes.
pub(crate) const LIMITS: &[Column] = &[
    ("FUNCTION", "function", Plain),
    ("KIND", "kind", Plain),
    ("RULE", "name", Plain),
    ("CALLEE", "callee", Plain),
    ("KEY", "key", Plain),
    ("USED", "used", Plain),
    ("OF", "of", Plain),
    ("STATE", "state", Plain),
    ("SINCE", "since", Age),
    ("UNTIL", "until", Age),
    ("DETAIL", "detail", Wide),
    ("NODE", "node", Plain),
];

/// Alerts, of a node or of all nodes and the control plane.
pub(crate) const ALERTS: &[Column] = &[
    ("SEVERITY", "severity", Plain),
    ("KIND", "kind", Plain),
    ("SUBJECT", "subject", Plain),
    ("CONDITION", "text", Plain),
    ("FIX", "fix", Plain),
    ("SINCE", "since", Since),
    ("NODE", "node", Plain),
];

/// Changes of documents.
pub(crate) const CHANGES: &[Column] = &[
    ("REVISION", "revision", Plain),
    ("TIME", "time", Time),
    ("BY", "by", Plain),
    ("DOCUMENTS", "summary", Plain),
    ("NEWLY DENIED", "newly_denied", Plain),
    ("NEWLY ALLOWED", "newly_allowed", Plain),
];

/// Events, of a node or of all nodes.
pub(crate) const EVENTS: &[Column] = &[
    ("TIME", "time", Time),
    ("KIND", "kind", Plain),
    ("FUNCTION", "function", Plain),
    ("REVISION", "revision", Plain),
    ("FROM", "from", Plain),
    ("TO", "to", Plain),
    ("MODE", "mode", Plain),
    ("REASON", "reason", Plain),
    ("LOAD", "load", Wide),
    ("NODE", "node", Plain),
];

/// The columns of `leno get pods`.
pub(crate) const PODS: &[Column] = &[
    ("POD", "pod", Plain),
    ("FUNCTION", "function", Plain),
    ("MODE", "mode", Plain),
    ("STATE", "state", Plain),
    ("AGE", "since", Age),
    ("REASON", "reason", Plain),
    ("ADDRESSES", "addresses", Wide),
    ("UID", "uid", Wide),
];

/// The columns of `leno get services`.
pub(crate) const SERVICES: &[Column] = &[
    ("SERVICE", "service", Plain),
    ("ADDRESS", "address", Plain),
    ("ENDPOINT", "endpoint", Plain),
    ("NODE", "node", Plain),
    ("TRANSPORT", "transport", Plain),
    ("STATE", "state", Plain),
    ("CONNECTIONS", "connections", Plain),
    ("IDENTITY", "identity", Wide),
];
