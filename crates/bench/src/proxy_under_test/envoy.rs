//! Envoy's configuration, as Istio would write it for a sidecar with these policies.

use crate::material::{AUDIENCE, FRONTEND, ISSUER, Material, SERVICE};
use crate::policies::{Limit, Policies};
use serde_json::{Value, json};
use std::net::SocketAddr;

/// One Envoy.
pub(crate) struct Sidecar<'a> {
    pub policies: Policies,
    pub listen: SocketAddr,
    /// The service itself; for a caller's sidecar, the callee's sidecar.
    pub upstream: SocketAddr,
    /// Envoy speaks HTTP/2 to the upstream.
    pub http2_upstream: bool,
    /// Of a caller's sidecar: it shows `frontend` to the callee's, by mutual TLS, and takes
    /// requests without TLS.
    pub outbound: bool,
    pub material: &'a Material,
    pub otlp: SocketAddr,
    pub limits: SocketAddr,
    /// Where the access log goes.
    pub log: String,
}

impl Sidecar<'_> {
    /// For `--config-path`. (JSON is YAML.)
    pub(crate) fn configuration(&self) -> Value {
        let Self { policies, listen, upstream, .. } = self;
        let mut chain = json!({"filters": [typed(
            "envoy.filters.network.http_connection_manager",
            "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
            self.connection_manager(),
        )]});
        if policies.mtls && !self.outbound {
            let tls = json!({"require_client_certificate": true, "common_tls_context": self.tls("service", &["h2", "http/1.1"], None)});
            chain["transport_socket"] = typed(
                "envoy.transport_sockets.tls",
                "envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
                tls,
            );
        }
        let mut service = cluster("service", *upstream);
        if self.http2_upstream {
            ask_by_http2(&mut service);
        }
        if policies.breaker {
            let limits = json!({"max_connections": 1024, "max_pending_requests": 1024, "max_requests": 1024});
            service["circuit_breakers"] = json!({"thresholds": [limits]});
            service["outlier_detection"] = json!({
                "consecutive_5xx": 5, "interval": "10s", "base_ejection_time": "30s", "max_ejection_percent": 50,
            });
        }
        if policies.mtls && self.outbound {
            let tls = json!({"common_tls_context": self.tls("frontend", &["http/1.1"], Some(SERVICE)), "sni": crate::material::HOST});
            service["transport_socket"] = typed(
                "envoy.transport_sockets.tls",
                "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
                tls,
            );
        }
        let mut clusters = vec![service];
        if policies.tracing {
            clusters.push(cluster("otlp", self.otlp));
        }
        if policies.limit == Some(Limit::Global) {
            let mut limits = cluster("limits", self.limits);
            ask_by_http2(&mut limits);
            clusters.push(limits);
        }
        json!({"static_resources": {
            "listeners": [{"name": "sidecar", "address": address(*listen), "filter_chains": [chain]}],
            "clusters": clusters,
        }})
    }

    fn connection_manager(&self) -> Value {
        let policies = self.policies;
        let mut manager = json!({
            "stat_prefix": "sidecar",
            "codec_type": "AUTO",
            "use_remote_address": true,
            "normalize_path": true,
            "merge_slashes": true,
            "http_filters": self.filters(),
            "route_config": {"name": "service", "virtual_hosts": [{"name": "service", "domains": ["*"], "routes": [self.route()]}]},
        });
        if policies.sidecar {
            let host = &mut manager["route_config"]["virtual_hosts"][0];
            host["request_headers_to_add"] =
                json!([{"header": {"key": "x-mesh", "value": "bench"}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}]);
            host["request_headers_to_remove"] = json!(["x-internal"]);
        }
        if policies.log {
            manager["access_log"] = json!([typed(
                "envoy.access_loggers.file",
                "envoy.extensions.access_loggers.file.v3.FileAccessLog",
                json!({"path": self.log, "log_format": {"json_format": log_format()}}),
            )]);
        }
        if policies.tracing {
            let service = json!({"http_uri": {"uri": format!("http://{}/v1/traces", self.otlp), "cluster": "otlp", "timeout": "1s"}});
            manager["tracing"] = json!({
                "random_sampling": {"value": 100.0},
                "provider": typed(
                    "envoy.tracers.opentelemetry",
                    "envoy.config.trace.v3.OpenTelemetryConfig",
                    json!({"http_service": service, "service_name": "bench"}),
                ),
            });
        }
        manager
    }

    fn route(&self) -> Value {
        let mut action = json!({"cluster": "service", "timeout": "30s"});
        if self.policies.retry {
            action["retry_policy"] = json!({
                "retry_on": "connect-failure,refused-stream,unavailable,cancelled,retriable-status-codes",
                "retriable_status_codes": [503],
                "num_retries": 2,
                "retry_back_off": {"base_interval": "0.025s", "max_interval": "0.25s"},
            });
        }
        if self.policies.limit == Some(Limit::Global) && !self.outbound {
            let header = if self.policies.jwt.is_some() { "x-user" } else { "user-agent" };
            action["rate_limits"] =
                json!([{"actions": [{"request_headers": {"header_name": header, "descriptor_key": "user"}}]}]);
        }
        json!({"match": {"prefix": "/"}, "route": action})
    }

    fn filters(&self) -> Vec<Value> {
        let policies = self.policies;
        let mut filters = Vec::new();
        if policies.jwt.is_some() && !self.outbound {
            filters.push(typed(
                "envoy.filters.http.jwt_authn",
                "envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication",
                self.authentication(),
            ));
        }
        if policies.authorization && !self.outbound {
            let rbac = "envoy.extensions.filters.http.rbac.v3.RBAC";
            filters.push(typed("envoy.filters.http.rbac.deny", rbac, self.rules("DENY")));
            filters.push(typed("envoy.filters.http.rbac.allow", rbac, self.rules("ALLOW")));
        }
        match policies.limit.filter(|_| !self.outbound) {
            Some(Limit::Global) => {
                let service = json!({"transport_api_version": "V3", "grpc_service": {"envoy_grpc": {"cluster_name": "limits"}, "timeout": "1s"}});
                let limit = json!({"domain": "bench", "failure_mode_deny": true, "timeout": "1s", "rate_limit_service": service});
                filters.push(typed(
                    "envoy.filters.http.ratelimit",
                    "envoy.extensions.filters.http.ratelimit.v3.RateLimit",
                    limit,
                ));
            }
            Some(Limit::Local) => {
                let always = json!({"default_value": {"numerator": 100, "denominator": "HUNDRED"}});
                let limit = json!({
                    "stat_prefix": "limit",
                    "token_bucket": {"max_tokens": 1_000_000, "tokens_per_fill": 1_000_000, "fill_interval": "1s"},
                    "filter_enabled": always,
                    "filter_enforced": always,
                });
                filters.push(typed(
                    "envoy.filters.http.local_ratelimit",
                    "envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit",
                    limit,
                ));
            }
            None => {}
        }
        filters.push(typed("envoy.filters.http.router", "envoy.extensions.filters.http.router.v3.Router", json!({})));
        filters
    }

    fn authentication(&self) -> Value {
        let mut provider = json!({
            "issuer": ISSUER,
            "audiences": [AUDIENCE],
            "local_jwks": {"inline_string": self.material.jwks().to_string()},
            "payload_in_metadata": "jwt_payload",
            "claim_to_headers": [{"header_name": "x-user", "claim_name": "sub"}],
            "forward": false,
        });
        if self.policies.jwt_cache {
            provider["jwt_cache_config"] = json!({"jwt_cache_size": 1000});
        }
        json!({"providers": {"login": provider}, "rules": [{"match": {"prefix": "/"}, "requires": {"provider_name": "login"}}]})
    }

    fn rules(&self, action: &str) -> Value {
        let path = |prefix: &str| json!({"url_path": {"path": {"prefix": prefix}}});
        let method = |methods: &[&str]| {
            let rules: Vec<_> = methods
                .iter()
                .map(|name| json!({"header": {"name": ":method", "string_match": {"exact": name}}}))
                .collect();
            json!({"or_rules": {"rules": rules}})
        };
        let policy = |path: Value, methods: &[&str]| json!({"permissions": [{"and_rules": {"rules": [path, method(methods)]}}], "principals": [self.principal()]});
        let policies = match action {
            "DENY" => json!({"no-administration": policy(path("/admin"), &["GET", "POST"])}),
            _ => json!({
                "read": policy(path("/orders"), &["GET", "HEAD"]),
                "write": policy(json!({"url_path": {"path": {"safe_regex": {"regex": "/orders/[^/]+/items"}}}}), &["POST", "PUT"]),
            }),
        };
        json!({"rules": {"action": action, "policies": policies}})
    }

    fn principal(&self) -> Value {
        let mut ids = vec![json!({"any": true})];
        if self.policies.mtls {
            ids.push(json!({"authenticated": {"principal_name": {"exact": FRONTEND}}}));
        }
        if self.policies.jwt.is_some() {
            let path = ["jwt_payload", "realm_access", "roles"].map(|key| json!({"key": key}));
            let value = json!({"list_match": {"one_of": {"string_match": {"exact": "customer"}}}});
            ids.push(json!({"metadata": {"filter": "envoy.filters.http.jwt_authn", "path": path, "value": value}}));
        }
        json!({"and_ids": {"ids": ids}})
    }

    fn tls(&self, name: &str, alpn: &[&str], peer: Option<&str>) -> Value {
        let file = |name: String| json!({"filename": self.material.path(&name)});
        let mut validation = json!({"trusted_ca": file("ca.pem".to_owned())});
        if let Some(peer) = peer {
            validation["match_typed_subject_alt_names"] = json!([{"san_type": "URI", "matcher": {"exact": peer}}]);
        }
        json!({
            "alpn_protocols": alpn,
            "tls_certificates": [{"certificate_chain": file(format!("{name}.pem")), "private_key": file(format!("{name}.key"))}],
            "validation_context": validation,
        })
    }
}

fn typed(name: &str, kind: &str, mut value: Value) -> Value {
    value["@type"] = json!(format!("type.googleapis.com/{kind}"));
    json!({"name": name, "typed_config": value})
}

fn address(address: SocketAddr) -> Value {
    json!({"socket_address": {"address": address.ip().to_string(), "port_value": address.port()}})
}

fn cluster(name: &str, at: SocketAddr) -> Value {
    json!({
        "name": name,
        "type": "STATIC",
        "connect_timeout": "5s",
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address(at)}}]}]},
    })
}

/// Makes Envoy speak HTTP/2 to a cluster.
fn ask_by_http2(cluster: &mut Value) {
    cluster["typed_extension_protocol_options"] = json!({
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": {"http2_protocol_options": {}},
        },
    });
}

/// Istio's fields.
fn log_format() -> Value {
    json!({
        "authority": "%REQ(:AUTHORITY)%", "bytes_received": "%BYTES_RECEIVED%", "bytes_sent": "%BYTES_SENT%",
        "connection_termination_details": "%CONNECTION_TERMINATION_DETAILS%",
        "downstream_local_address": "%DOWNSTREAM_LOCAL_ADDRESS%", "downstream_peer_uri_san": "%DOWNSTREAM_PEER_URI_SAN%",
        "downstream_remote_address": "%DOWNSTREAM_REMOTE_ADDRESS%", "duration": "%DURATION%", "method": "%REQ(:METHOD)%",
        "path": "%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%", "protocol": "%PROTOCOL%", "request_id": "%REQ(X-REQUEST-ID)%",
        "requested_server_name": "%REQUESTED_SERVER_NAME%", "response_code": "%RESPONSE_CODE%",
        "response_code_details": "%RESPONSE_CODE_DETAILS%", "response_flags": "%RESPONSE_FLAGS%", "route_name": "%ROUTE_NAME%",
        "start_time": "%START_TIME%", "upstream_cluster": "%UPSTREAM_CLUSTER%", "upstream_host": "%UPSTREAM_HOST%",
        "upstream_local_address": "%UPSTREAM_LOCAL_ADDRESS%",
        "upstream_service_time": "%RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)%",
        "upstream_transport_failure_reason": "%UPSTREAM_TRANSPORT_FAILURE_REASON%", "user_agent": "%REQ(USER-AGENT)%",
        "x_forwarded_for": "%REQ(X-FORWARDED-FOR)%",
    })
}
