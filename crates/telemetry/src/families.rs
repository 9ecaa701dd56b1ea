//! The families of metrics of nodes and control planes: the only ones that an exposition can have.
//! `docs/reference/metrics.md` is written from this table.

use super::exposition::{Definition, Family, Kind};

/// Families that belong together.
#[derive(Debug)]
pub struct Group {
    /// The heading.
    pub title: &'static str,
    /// The families.
    pub families: &'static [Definition],
}

macro_rules! families {
    ($($title:literal { $($constant:ident = $kind:ident $name:literal $labels:tt $help:literal;)* })*) => {
        $($(
            #[doc = $help]
            pub static $constant: Family<{ <[&str]>::len(&$labels) }> = Family(define!($kind $name $labels $help));
        )*)*

        /// All families.
        pub static GROUPS: &[Group] = &[
            $(Group { title: $title, families: &[$(define!($kind $name $labels $help)),*] }),*
        ];
    };
}

macro_rules! define {
    ($kind:ident $name:literal $labels:tt $help:literal) => {
        Definition { name: $name, kind: Kind::$kind, labels: &$labels, help: $help }
    };
}

/// The labels of exchanges. They are Istio's, and the verdict.
const EXCHANGE: [&str; 14] = [
    "reporter",
    "source_workload",
    "source_workload_namespace",
    "source_principal",
    "destination_workload",
    "destination_workload_namespace",
    "destination_principal",
    "destination_service",
    "destination_service_name",
    "request_protocol",
    "response_code",
    "response_flags",
    "connection_security_policy",
    "leno_verdict",
];

/// The labels of connections without requests.
const CONNECTION: [&str; 5] = [
    "reporter",
    "source_workload",
    "source_workload_namespace",
    "destination_workload",
    "destination_workload_namespace",
];

/// The labels of a revision. Dashboards follow `revision_name`, which stays when the content of a
/// declared revision changes.
const REVISION: [&str; 3] = ["function", "revision", "revision_name"];

families! {
    "Requests" {
        REQUESTS = Counter "istio_requests" EXCHANGE "Exchanges that are over.";
        REQUEST_DURATION = Histogram "istio_request_duration_milliseconds" EXCHANGE
            "From the request's head to the end of the response's body. Buckets have exemplars of sampled traces.";
        REQUEST_BYTES = Histogram "istio_request_bytes" EXCHANGE "Bytes of request bodies.";
        RESPONSE_BYTES = Histogram "istio_response_bytes" EXCHANGE "Bytes of response bodies.";
        RETRIES = Counter "leno_retries" ["destination"] "Tries after the first.";
        EJECTIONS = Counter "leno_ejections" ["destination"] "Endpoints taken out by outlier detection.";
        EXCHANGES_CLOSED = Counter "leno_exchanges_closed" ["function", "direction", "policy"]
            "Open exchanges that were closed, by the policy that does not permit them any more, or by the mesh (`drain`).";
        REVISION_REQUESTS = Counter "leno_revision_requests" REVISION "Requests that a revision of several had.";
        REVISION_FAILED = Counter "leno_revision_failed_requests" REVISION "Of these, those that failed.";
        REVISION_SLOW = Counter "leno_revision_slow_requests" REVISION
            "Of these, those slower than the rollout's limit.";
    }
    "Connections" {
        CONNECTIONS = Gauge "leno_connections" ["listener"] "Connections that clients have open.";
        UNFINISHED_HEADS = Gauge "leno_unfinished_head_bytes" []
            "Bytes of request heads that have begun and not ended, beyond 8 KiB of each connection.";
        CONNECTIONS_CLOSED = Counter "leno_connections_closed" ["listener", "bound"]
            "Idle connections that were closed for new ones.";
        CONNECTIONS_REFUSED = Counter "leno_connections_refused" ["listener", "bound"]
            "Connections that were refused because all others were at work.";
        ROUTE_COPIES = Counter "leno_route_copies" ["route", "result"]
            "Copies of requests for the mirrors of a route: `sent`, `cut` (they could not follow their request), or left out: `no_back_end`, `no_instance`, `too_many`.";
        FAULTS = Counter "leno_faults" ["kind", "route", "fault"]
            "Faults that policies injected into requests: `delay`, `abort`, or `undelayed` (too many requests of the namespace or node were delayed already). `route`: the route, or the function with `expose`.";
        PROXY_PROTOCOL_REFUSALS = Counter "leno_proxy_protocol_refusals" ["reason"]
            "Connections to the gateway that were closed for want of an acceptable PROXY header.";
        NODE_CONNECT_FAILURES = Counter "leno_node_connect_failures" ["node"]
            "Connections to other nodes that could not be made. Another node is tried, and that one avoided for a while.";
        UNPROVEN_CONNECTIONS = Counter "leno_unproven_connections" ["function", "end"]
            "Connections whose other end was not proven to be the instance; nothing was sent to it or taken from it.";
        TCP_OPENED = Counter "istio_tcp_connections_opened" CONNECTION
            "Connections without requests that were opened.";
        TCP_CLOSED = Counter "istio_tcp_connections_closed" CONNECTION "Those that have ended.";
        TCP_RECEIVED = Counter "istio_tcp_received_bytes" CONNECTION
            "Bytes that came from callers, of those that have ended.";
        TCP_SENT = Counter "istio_tcp_sent_bytes" CONNECTION "Bytes that went to callers, of those that have ended.";
        TCP_REFUSED = Counter "leno_tcp_connections_refused" CONNECTION
            "Connections without requests that were not allowed, or that no endpoint took.";
    }
    "Policies" {
        DECISIONS = Counter "leno_decisions" ["function", "direction", "policy", "rule", "verdict"]
            "Verdicts, and the rules that decided.";
        SANDBOX_FAULTS = Counter "leno_sandbox_faults" ["function", "direction", "fault"]
            "Requests refused because a sandbox gave no verdict that could be relied on.";
        SANDBOX_RUNS = Histogram "leno_sandbox_run_seconds" ["engine"] "Fresh start, run and reset of one sandbox.";
        REMEMBERED = Counter "leno_decisions_remembered" []
            "Requests that were judged by the remembered decision on an equal request, without a sandbox.";
        DESTINATIONS_REFUSED = Counter "leno_destinations_refused" ["source", "asked"]
            "Requests, connections and questions about names that were refused, because the destination is none that the function may reach.";
        SIGNATURES = Counter "leno_signature_verifications" ["algorithm", "result"]
            "Signatures of tokens, verified or remembered.";
        KEY_SETS = Gauge "leno_key_sets" ["namespace", "state"]
            "Key sets of issuers: `current`; `stale`, because the last fetch failed; `missing`, because none has succeeded.";
        EXTENSION_RUNS = Counter "leno_extension_runs" ["function", "extension", "phase", "result", "failure"]
            "Runs of user-written policies, and how they ended.";
        EXTENSION_RUN_TIMES = Histogram "leno_extension_run_seconds" []
            "Fresh start and run of one instance of a user-written policy.";
        EXTENSION_INSTANCES = Gauge "leno_extension_instances" ["namespace"]
            "Instances of extensions that are kept for responses.";
        EXTENSION_WAITING = Gauge "leno_extension_waiting_requests" ["namespace"]
            "Requests that wait for an instance of an extension.";
    }
    "Rate limits" {
        LEDGER_ENTRIES = Gauge "leno_ledger_entries" ["kind"]
            "Counters of rate limits (`quota`), and verified tokens (`token`), in memory.";
        RATE_LIMIT_COUNTERS = Gauge "leno_rate_limit_counters" ["function", "limit"]
            "Counters of a rate limit, one for each key.";
        RATE_LIMIT_OVERFLOW = Counter "leno_rate_limit_overflow" ["function", "limit"]
            "Requests counted by a counter of several keys, because their rate limit had no room for more counters.";
        QUOTA_STORE_UP = Gauge "leno_quota_store_up" [] "Whether the quota store answers: 1, or 0.";
        QUOTA_STORE_QUESTIONS = Counter "leno_quota_store_questions" ["result"]
            "Questions about counters to the quota store, and whether they were answered.";
        QUOTA_STORE_SECONDS = Counter "leno_quota_store_answer_seconds" []
            "Time that answers of the quota store took.";
        QUOTA_STORE_ANSWERS = Counter "leno_quota_store_answers" []
            "Answers of the quota store, each to all questions sent together.";
        QUOTA_STORE_GRANTED = Counter "leno_quota_store_granted" []
            "Requests that the quota store granted to this node.";
        QUOTA_STORE_RETURNED = Counter "leno_quota_store_returned" []
            "Granted requests that this node gave back unused.";
        QUOTA_STORE_REFUSED = Counter "leno_quota_store_refused" []
            "Requests refused because the quota store did not answer.";
    }
    "Instances" {
        DESIRED_INSTANCES = Gauge "leno_autoscaler_desired_instances" REVISION "Instances that the autoscaler wants.";
        READY_INSTANCES = Gauge "leno_autoscaler_ready_instances" REVISION "Instances that get requests.";
        STARTING_INSTANCES = Gauge "leno_autoscaler_starting_instances" REVISION "Instances that are not ready yet.";
        WAITING_REQUESTS = Gauge "leno_autoscaler_waiting_requests" REVISION "Requests that wait for an instance.";
        PANIC_MODE = Gauge "leno_autoscaler_panic_mode" REVISION "1 in panic mode.";
        STABLE_LOAD = Gauge "leno_autoscaler_stable_load" REVISION
            "Average load over the stable window, in requests at a time or a second, as the function says.";
        PANIC_LOAD = Gauge "leno_autoscaler_panic_load" REVISION "Average load over the panic window.";
        SCALING_DECISIONS = Counter "leno_autoscaler_decisions" ["function", "revision", "direction", "revision_name"]
            "Decisions to have more instances, or fewer.";
        UNHEALTHY_INSTANCES = Counter "leno_instances_unhealthy" REVISION
            "Instances that were ready and were replaced, because they did not serve any more.";
        COMPONENT_FAILURES = Counter "leno_component_failures" ["function", "failure"]
            "Instances of components that ended badly.";
    }
    "Pods" {
        PODS = Gauge "leno_pods" ["namespace", "mode", "state"]
            "Pods of Kubernetes on this node: `captured`; `waits`, for its network; `fails`, and the node tries again; `refused`. `leno get pods` has the reasons.";
        POD_CALLS = Counter "leno_pod_calls" ["namespace", "transport"]
            "Connections that pods of a namespace have opened, by the way to the callee: `local`, to a pod of this node; `hbone`, to a pod of another node in a tunnel; `clear`, to another endpoint in clear text; `cluster`, to the called address, as without the mesh.";
        PODS_DROPPED = Counter "leno_pod_drops" ["pod", "function", "reason"]
            "Packets of a pod that the kernel dropped, and sockets that it refused, because the pod is enforced.";
        ENFORCED_LIST = Gauge "leno_enforced_list_current" []
            "Whether the CNI plug-in's list of enforced namespaces is the latest one: 1, or 0 if it cannot be written.";
    }
    "Namespaces" {
        NAMESPACE_USED = Gauge "leno_namespace_used" ["namespace", "resource"] "What a namespace uses of the node.";
        NAMESPACE_BOUND = Gauge "leno_namespace_bound" ["namespace", "resource"]
            "What a namespace may use of the node.";
        NAMESPACE_REFUSED = Counter "leno_namespace_refused" ["namespace", "resource"]
            "Refused because a namespace had all that it may use of the node.";
        LOG_LINES_DROPPED = Counter "leno_log_lines_dropped" ["namespace", "source"]
            "Lines of logs that were left out, beyond a namespace's rate.";
        LOG_BYTES_DROPPED = Counter "leno_log_bytes_dropped" ["namespace", "source"]
            "Bytes of logs that were left out, beyond a namespace's rate.";
    }
    "Chains" {
        CHAIN_HANDED_OVER = Counter "leno_chain_handed_over" ["chain"]
            "Bodies that an instance was shown where they are.";
        CHAIN_SHARED_BYTES = Counter "leno_chain_shared_bytes" ["chain"]
            "Bytes of bodies that instances were shown where they are.";
        CHAIN_COPIED_IN = Counter "leno_chain_copied_in_bytes" ["chain"]
            "Bytes of bodies that were copied into a chain's memory.";
        CHAIN_COPIED_OUT = Counter "leno_chain_copied_out_bytes" ["chain"]
            "Bytes of bodies that were copied out of a chain's memory.";
        CHAIN_HEADS = Counter "leno_chain_heads" ["chain"]
            "Heads that were copied from an instance of a chain, or for one.";
        CHAIN_VIOLATIONS = Counter "leno_chain_violations" ["chain", "kind"]
            "Messages of a chain's instances on their links that the protocol forbids.";
        CHANNEL_CALLS = Counter "leno_chain_channel_calls" ["chain", "caller", "callee"]
            "Calls that went through the kernel.";
        CHANNEL_ANSWERS = Counter "leno_chain_channel_answers" ["chain", "caller", "callee"]
            "Answers that went through the kernel.";
        CHANNEL_FAILED = Counter "leno_chain_channel_failed" ["chain", "caller", "callee"]
            "Calls that the callee has failed to answer.";
        CHANNEL_CANCELLED = Counter "leno_chain_channel_cancelled" ["chain", "caller", "callee"]
            "Calls whose caller did not wait for the answer.";
        CHANNEL_REFUSED = Counter "leno_chain_channel_refused" ["chain", "caller", "callee"]
            "Calls that the kernel refused, so that the node judged them.";
        CHANNEL_OPEN = Gauge "leno_chain_channel_open_calls" ["chain", "caller", "callee"]
            "Calls that went through the kernel and have no answer yet.";
        CHANNEL_VIOLATIONS = Counter "leno_chain_channel_violations" ["chain", "caller", "callee", "end", "kind"]
            "Messages of instances on channels that the protocol forbids, by the end that sent them.";
    }
    "Node" {
        BUILD = Info "leno_build" ["version"] "This build.";
        CERTIFICATE_EXPIRY = Gauge "istio_agent_cert_expiry_seconds" ["resource_name"]
            "Seconds until the certificate expires; ROOTCA: the mesh's root; a path: the gateway's.";
        ACCESS_LOG_DROPPED = Counter "leno_access_log_dropped" [] "Access log lines that were lost.";
        SPANS_DROPPED = Counter "leno_spans_dropped" [] "Spans that were lost before export.";
    }
    "Control plane" {
        NODE_CONNECTED = Gauge "leno_node_connected" ["node"] "Whether the node's stream is open: 1, or 0.";
        NODE_UNACKNOWLEDGED = Gauge "leno_node_unacknowledged_seconds" ["node"]
            "For how long the node has left configuration unacknowledged.";
        NODE_REJECTED = Gauge "leno_node_rejected_resources" ["node"]
            "Resources whose latest version the node has refused.";
        CONTROL_STREAMS = Counter "leno_control_streams" ["node"] "Streams that the node has opened.";
        CONTROL_MESSAGES = Counter "leno_control_messages" ["node"]
            "Messages with configuration that were sent to the node.";
        CONTROL_BYTES = Counter "leno_control_bytes" ["node"] "Bytes of these messages, before HTTP/2 framing.";
        CONTROL_RESOURCES = Counter "leno_control_resources" ["node"] "Resources in these messages.";
        CONTROL_REMOVALS = Counter "leno_control_removals" ["node"] "Removals in these messages.";
        CONTROL_ACKS = Counter "leno_control_acks" ["node"] "Answers of the node.";
        CONTROL_REJECTIONS = Counter "leno_control_rejections" ["node"] "Resources that the node refused.";
        CONTROL_REPORTS = Counter "leno_control_reports" ["node"] "Reports of the node on instances and jobs.";
        CONTROL_REFUSED = Counter "leno_control_refused" ["node"]
            "Subscriptions and reports of the node that were refused, because they concern other nodes.";
        ROOT_TIMESTAMP = Gauge "citadel_server_root_cert_expiry_timestamp" []
            "When the mesh's root expires, in seconds since 1970.";
        ROOT_EXPIRY = Gauge "citadel_server_root_cert_expiry_seconds" [] "Seconds until the mesh's root expires.";
        AUTHORITY_TIMESTAMP = Gauge "citadel_server_cert_chain_expiry_timestamp" []
            "When nothing that the authority signs is valid any more, in seconds since 1970.";
        AUTHORITY_EXPIRY = Gauge "citadel_server_cert_chain_expiry_seconds" []
            "Seconds until nothing that the authority signs is valid any more.";
        API_EXPIRY = Gauge "leno_control_api_cert_expiry_seconds" []
            "Seconds until the certificate of the API expires.";
        ROTATION_ACTIVE = Gauge "leno_control_rotation_active" [] "Whether the authority is being replaced.";
        ROTATION_WAITING = Gauge "leno_control_rotation_waiting" []
            "Nodes that the replacement of the authority waits for.";
        CERTIFICATES_OVERDUE = Gauge "leno_control_certificates_overdue" []
            "Certificates on nodes that were not renewed although half of their lifetime has passed.";
    }
    "Jobs" {
        JOB_PENDING = Gauge "leno_job_pending" ["job"] "1 for a job that no node runs yet.";
        JOB_RUNNING = Gauge "leno_job_running" ["job"] "1 for a job that a node runs.";
        JOB_COMPLETE = Gauge "leno_job_complete" ["job"] "1 for a job that has succeeded.";
        JOB_FAILED = Gauge "leno_job_failed" ["job"] "1 for a job that has failed.";
        JOB_ACTIVE = Gauge "leno_job_processes_active" ["job"] "Processes of the job that run.";
        JOB_SUCCEEDED = Gauge "leno_job_processes_succeeded" ["job"]
            "Processes of the job that have exited with status 0.";
        JOB_PROCESSES_FAILED = Gauge "leno_job_processes_failed" ["job"] "Processes of the job that have failed.";
        JOB_START = Gauge "leno_job_start_time_seconds" ["job"] "When the job began, in seconds since 1970.";
        JOB_END = Gauge "leno_job_end_time_seconds" ["job"] "When the job ended, in seconds since 1970.";
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::fmt::Write;
    use std::fs;
    use std::path::Path;

    const INTRODUCTION: &str = "# Metrics
These are all metrics of nodes and control planes, at `/metrics` of the
[admin listener](../admin.md) and of the [control plane](../control.md), as OpenMetrics.
[Monitoring](../operations/monitoring.md) shows how Prometheus scrapes them. This page is generated
from the table from which they are written (`telemetry/src/families.rs`).

Histograms have samples that end in `_bucket`, `_sum` and `_count`. A sample lacks the labels that
have no value, and a family without samples counts nothing yet. Nodes with a control plane of their
own (`leno up`) have its metrics too, and the metrics of jobs are the control plane's.
";

    fn page() -> String {
        let mut page = INTRODUCTION.to_owned();
        for Group { title, families } in GROUPS {
            write!(page, "\n## {title}\n| name | type | labels | meaning |\n|---|---|---|---|\n").unwrap();
            for Definition { name, kind, labels, help } in *families {
                let suffix = if *kind == Kind::Histogram { "" } else { kind.suffixes()[0] };
                let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
                writeln!(page, "| `{name}{suffix}` | {} | {} | {help} |", kind.name(), labels.join(", ")).unwrap();
            }
        }
        page
    }

    /// `LENO_BLESS=1` writes the page anew.
    #[test]
    fn the_reference_lists_all_families() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/metrics.md");
        if std::env::var_os("LENO_BLESS").is_some() {
            fs::write(&file, page()).unwrap();
        }
        let kept = fs::read_to_string(&file).unwrap_or_default();
        assert!(kept == page(), "docs/reference/metrics.md is not what the metrics are; LENO_BLESS=1 writes it anew");
    }

    #[test]
    fn families_have_names_and_labels_of_their_kinds() {
        let families = || GROUPS.iter().flat_map(|group| group.families);
        let names: BTreeSet<&str> = families().map(|family| family.name).collect();
        assert_eq!(names.len(), families().count(), "no name is used twice");
        for Definition { name, labels, help, .. } in families() {
            let plain =
                |text: &str| text.bytes().all(|byte| byte.is_ascii_lowercase() || matches!(byte, b'_' | b'0'..=b'9'));
            assert!(plain(name) && labels.iter().all(|label| plain(label)), "{name}");
            let reserved = ["_total", "_bucket", "_sum", "_count", "_info"];
            assert!(reserved.iter().all(|suffix| !name.ends_with(suffix)), "{name}");
            assert!(!labels.contains(&"le") && labels.iter().collect::<BTreeSet<_>>().len() == labels.len(), "{name}");
            assert!(help.ends_with('.') && !help.contains(['\n', '|', '\\']), "{name}");
        }
    }
}
