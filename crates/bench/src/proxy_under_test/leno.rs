//! Leno's documents, with the policies of `policies.rs`.

use crate::material::{AUDIENCE, FRONTEND, ISSUER, Material, TRUST_DOMAIN};
use crate::policies::Policies;
use crate::slow_registry;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::ops::Range;
use std::path::Path;

/// One `leno up`.
pub(crate) struct Mesh<'a> {
    pub policies: Policies,
    /// `wasm` or `microvm`.
    pub engine: &'a str,
    pub listeners: Listeners,
    pub upstream: SocketAddr,
    /// The node speaks HTTP/2 to the upstream.
    pub http2_upstream: bool,
    /// Also a function `frontend`, which alone may call the service; then the gateway does not
    /// offer it.
    pub caller: Option<Caller>,
    /// `mtls.sameNode: always`.
    pub same_node_tls: bool,
    pub material: &'a Material,
    pub otlp: SocketAddr,
    /// Where the access log goes.
    pub log: String,
}

/// Where the caller's instance comes from.
#[derive(Clone, Debug)]
pub(crate) enum Caller {
    /// Command and arguments.
    Command(Vec<String>),
    /// The node does not run it.
    External,
}

/// A node's own addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Listeners {
    pub gateway: SocketAddr,
    pub outbound: SocketAddr,
    pub inbound: SocketAddr,
    pub admin: SocketAddr,
    pub control: SocketAddr,
}

/// Parts of the hostile tenants' functions.
pub(crate) struct Hostile<'a> {
    /// Of those that only make noise.
    pub noisy: SocketAddr,
    /// Answers with interim responses first.
    pub interim: SocketAddr,
    /// An extension that does not end before its deadline.
    pub endless: &'a Path,
    /// Where instances count the resources that they have taken: bytes of log, and connections.
    pub tallies: [&'a Path; 2],
    /// Addresses of two registries.
    pub registries: &'a [String; 2],
    /// The node's folder for images.
    pub images: &'a Path,
}

/// Indices of the hostile functions, for [`host_of`].
pub(crate) const NOISY: usize = 1;
pub(crate) const HURRIED: usize = 2;
pub(crate) const RUNAWAY: usize = 3;
pub(crate) const OUTPUT: usize = 4;
pub(crate) const INTERIM: usize = 5;
pub(crate) const HOARDER: usize = 6;
/// The functions whose images come from the registries.
pub(crate) const PULLED: Range<usize> = 7..39;

impl Hostile<'_> {
    /// In the order of their indices.
    fn functions(&self) -> anyhow::Result<Vec<Value>> {
        let own = std::env::current_exe()?;
        let external = |address: SocketAddr| json!({"external": {"addresses": [address.to_string()]}});
        let instance = |option: &str, count: &str, tally: &Path| json!({"command": [&own, "hostile", option, count, "--tally", tally], "isolation": "process", "scale": {"min": 1, "max": 1}});
        let pulled = |index| {
            let scale = json!({"min": 0, "max": 1, "window": "6s", "scaleToZeroGracePeriod": "0s"});
            json!({"image": slow_registry::image(self.registries, index), "pull": "onDemand", "scale": scale})
        };
        let [output, hoard] = self.tallies;
        let first = [
            external(self.noisy),
            external(self.noisy),
            external(self.noisy),
            instance("--output", "1048576", output),
            external(self.interim),
            instance("--hoard", "64", hoard),
        ];
        Ok(first.into_iter().chain(PULLED.map(pulled)).collect())
    }
}

impl Mesh<'_> {
    /// All documents, one after the other.
    pub(crate) fn documents(&self) -> String {
        let mut documents = vec![self.mesh(), self.service(), self.policy("service", &["service"])];
        if let Some(caller) = &self.caller {
            let callees = ["service"];
            let spec = match caller {
                Caller::Command(command) => {
                    json!({"command": command, "isolation": "process", "callees": callees, "scale": {"min": 1}})
                }
                Caller::External => json!({"external": {"addresses": [self.upstream.to_string()]}, "callees": callees}),
            };
            documents.push(function("frontend", spec));
            documents.push(document(
                "Policy",
                "frontend",
                json!({"functions": ["frontend"], "accessLog": {"enabled": self.policies.log}}),
            ));
            if self.policies.tracing {
                documents.push(document(
                    "Policy",
                    "frontend-tracing",
                    json!({"functions": ["frontend"], "tracing": {"sampling": 100}}),
                ));
            }
        }
        join(&documents)
    }

    /// A mesh of `count` functions, each with a separate policy and host ([`host_of`]); in files of
    /// a thousand.
    pub(crate) fn documents_of_many(&self, count: usize) -> Vec<String> {
        let files = (0..count).step_by(1000).map(|first| {
            let documents: Vec<Value> =
                (first..count.min(first + 1000)).flat_map(|index| self.one_of_many(index)).collect();
            join(&documents)
        });
        [join(&[self.mesh()])].into_iter().chain(files).collect()
    }

    fn one_of_many(&self, index: usize) -> [Value; 2] {
        let name = format!("service-{index}");
        let expose = json!([{"hosts": [host_of(index)], "path": "/"}]);
        let spec = json!({"external": {"addresses": [self.upstream.to_string()]}, "expose": expose});
        [function(&name, spec), self.policy(&name, &[name.as_str()])]
    }

    /// Functions like [`Self::documents_of_many`]. The first has the mesh's upstream. The others
    /// belong to hostile tenants, in a namespace apart.
    pub(crate) fn documents_of_tenants(&self, hostile: &Hostile<'_>) -> anyhow::Result<String> {
        let mut mesh = self.mesh();
        let registries = hostile.registries.each_ref().map(|host| json!({"host": host, "insecure": true}));
        mesh["spec"]["images"] = json!({"folder": hostile.images, "registries": registries});
        let mut documents = vec![mesh];
        documents.extend(self.one_of_many(0));
        for (index, mut spec) in (1..).zip(hostile.functions()?) {
            let name = format!("service-{index}");
            spec["expose"] = json!([{"hosts": [host_of(index)], "path": "/"}]);
            let mut policy = self.policy(&name, &[name.as_str()]);
            match index {
                HURRIED => {
                    policy["spec"]["sidecar"]["deadline"] = json!("50us");
                    policy["spec"]["sidecar"]["engine"] = json!("microvm");
                }
                RUNAWAY => policy["spec"]["extensions"] = json!([{"name": "endless", "path": hostile.endless}]),
                // Its answers are too long and become 502. The tenant does not have its own
                // upstream ejected for that.
                INTERIM => {
                    let spec = policy["spec"].as_object_mut();
                    spec.into_iter().for_each(|spec| {
                        spec.retain(|field, _| !["circuitBreaker", "retry"].contains(&field.as_str()))
                    });
                }
                _ => {}
            }
            for mut document in [function(&name, spec), policy] {
                document["metadata"]["namespace"] = json!(HOSTILE_NAMESPACE);
                documents.push(document);
            }
        }
        Ok(join(&documents))
    }

    /// The mesh's document, and those of the first function of [`Self::documents_of_many`].
    pub(crate) fn documents_for_control(&self) -> (String, String) {
        (join(&[self.mesh()]), join(&self.one_of_many(0)))
    }

    /// The mesh's own document.
    pub(crate) fn mesh(&self) -> Value {
        let Listeners { gateway, outbound, inbound, admin, control } = self.listeners;
        let mut spec = json!({
            "trustDomain": TRUST_DOMAIN,
            "engine": self.engine,
            "gateway": {"http": gateway.to_string()},
            "listeners": {"outbound": outbound.to_string(), "inbound": inbound.to_string(), "admin": admin.to_string(), "adminToken": self.material.path("admin.token"), "control": control.to_string()},
            "accessLog": {"format": "json", "file": self.log},
            "mtls": {"sameNode": if self.same_node_tls { "always" } else { "direct" }},
        });
        if self.policies.mtls && self.caller.is_none() {
            let (certificate, key) = (self.material.path("service.pem"), self.material.path("service.key"));
            spec["gateway"] = json!({"https": {"listen": gateway.to_string(), "certificate": certificate, "key": key}});
        }
        if self.policies.tracing {
            spec["tracing"] = json!({"otlp": format!("http://{}", self.otlp)});
        }
        json!({"apiVersion": VERSION, "kind": "Mesh", "metadata": {"name": "bench"}, "spec": spec})
    }

    fn service(&self) -> Value {
        let mut spec = json!({"external": {"addresses": [self.upstream.to_string()]}});
        if self.caller.is_none() {
            spec["expose"] = json!([{"hosts": ["*"], "path": "/"}]);
        }
        if self.http2_upstream {
            spec["protocol"] = json!("h2c");
        }
        function("service", spec)
    }

    /// The policy of these functions.
    pub(crate) fn policy(&self, name: &str, functions: &[&str]) -> Value {
        let policies = self.policies;
        let mut spec = json!({"functions": functions, "accessLog": {"enabled": policies.log}});
        if policies.sidecar {
            spec["sidecar"] = json!({
                "requestHeaders": {"set": {"x-mesh": "bench"}, "remove": ["x-internal"]},
                "protocols": ["http1", "http2", "grpc"],
            });
        }
        if policies.judge_each {
            spec["sidecar"]["judgeEachRequest"] = json!(true);
        }
        if policies.jwt.is_some() {
            spec["authentication"] = json!({"issuers": [{
                "issuer": ISSUER,
                "audiences": [AUDIENCE],
                "jwks": {"inline": self.material.jwks()},
                "claimsToHeaders": [{"claim": "sub", "header": "x-user"}],
            }]});
        }
        spec["authorization"] = match policies.authorization {
            true => self.rules(),
            // Without a rule that allows a request, it is denied.
            false => json!({"rules": [{"name": "everything", "action": "allow"}]}),
        };
        if policies.limit.is_some() {
            let key =
                if policies.jwt.is_some() { json!([{"claim": "sub"}]) } else { json!([{"header": "user-agent"}]) };
            spec["rateLimits"] =
                json!([{"name": "per-user", "requests": 1_000_000, "per": "1s", "burst": 1_000_000, "key": key}]);
        }
        if policies.tracing {
            spec["tracing"] = json!({"sampling": 100});
        }
        if policies.retry {
            spec["retry"] = json!({
                "attempts": 2, "on": ["connect-failure", "refused-stream", "unavailable", "cancelled", "503"],
                "backoff": {"base": "25ms", "max": "250ms"},
            });
        }
        if policies.breaker {
            spec["circuitBreaker"] = json!({
                "maxConnections": 1024, "maxPendingRequests": 1024, "maxRequests": 1024,
                "outlierDetection": {"consecutive5xx": 5, "interval": "10s", "baseEjection": "30s", "maxEjectionPercent": 50},
            });
        }
        document("Policy", name, spec)
    }

    fn rules(&self) -> Value {
        // Traffic from outside the mesh has no identity: behind the gateway the same rules require
        // the user instead.
        let from = match (&self.caller, self.policies.jwt) {
            (Some(_), _) => json!([{"identities": [FRONTEND]}]),
            (None, Some(_)) => {
                json!([{"identities": [FRONTEND]}, {"requestPrincipals": [format!("{ISSUER}/*")]}])
            }
            (None, None) => json!([{"identities": [FRONTEND]}, {"addresses": ["127.0.0.0/8"]}]),
        };
        let rule = |name: &str, action: &str, path: &str, methods: &[&str]| {
            let mut rule =
                json!({"name": name, "action": action, "from": from, "to": [{"methods": methods, "paths": [path]}]});
            if self.policies.jwt.is_some() {
                rule["when"] = json!([{"claim": ["realm_access", "roles"], "values": ["customer"]}]);
            }
            rule
        };
        json!({"rules": [
            rule("no-administration", "deny", "/admin/*", &["GET", "POST"]),
            rule("read", "allow", "/orders/*", &["GET", "HEAD"]),
            rule("write", "allow", "/orders/{id}/items", &["POST", "PUT"]),
        ]})
    }
}

pub(crate) const VERSION: &str = "leno.dev/v1alpha1";
const NAMESPACE: &str = "bench";
/// Of the tenants that do their worst. A tenant is a namespace: quotas and shares are by namespace.
pub(crate) const HOSTILE_NAMESPACE: &str = "hostile";

/// Where the function of this index is exposed.
pub(crate) fn host_of(index: usize) -> String {
    format!("service-{index}.bench")
}

/// A function's document.
pub(crate) fn function(name: &str, spec: Value) -> Value {
    document("Function", name, spec)
}

/// Documents as one file. (JSON is YAML.)
pub(crate) fn join(documents: &[Value]) -> String {
    documents.iter().map(|document| format!("---\n{document}\n")).collect()
}

/// Any document.
pub(crate) fn document(kind: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": VERSION, "kind": kind, "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::Policy;

    #[test]
    fn the_documents_of_hostile_tenants_are_accepted_and_in_a_namespace_apart() {
        let folder = tempfile::tempdir().unwrap();
        let material = Material::make(folder.path()).unwrap();
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let listeners = Listeners { gateway: at(2), outbound: at(3), inbound: at(4), admin: at(5), control: at(6) };
        let mesh = Mesh {
            policies: Policies::NINE,
            engine: "wasm",
            listeners,
            upstream: at(1),
            http2_upstream: false,
            same_node_tls: false,
            caller: None,
            material: &material,
            otlp: at(1),
            log: "access.log".into(),
        };
        let endless = folder.path().join("endless.wasm");
        std::fs::write(&endless, wat::parse_str("(module)").unwrap()).unwrap();
        let tallies = [folder.path(), folder.path()];
        let images = folder.path().join(".images");
        let registries = ["127.0.0.1:5000", "127.0.0.2:5000"].map(str::to_owned);
        let hostile = Hostile {
            noisy: at(1),
            interim: at(1),
            endless: &endless,
            tallies,
            registries: &registries,
            images: &images,
        };
        let path = folder.path().join("bench.yaml");
        std::fs::write(&path, mesh.documents_of_tenants(&hostile).unwrap()).unwrap();
        let snapshot = leno_config::load(&path).unwrap_or_else(|problems| panic!("{problems:?}"));
        let of = |namespace| snapshot.functions().filter(|id| id.namespace == namespace).count();
        assert_eq!((of(NAMESPACE), of(HOSTILE_NAMESPACE)), (1, PULLED.end - 1));
    }

    #[test]
    fn every_mix_of_policies_makes_documents_that_leno_accepts() {
        let folder = tempfile::tempdir().unwrap();
        let material = Material::make(folder.path()).unwrap();
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let address = at(1);
        let listeners = Listeners { gateway: at(2), outbound: at(3), inbound: at(4), admin: at(5), control: at(6) };
        let single = Policy::ALL.map(|policy| Policies::NONE.with(policy, true));
        let without = Policy::ALL.map(|policy| Policies::NINE.with(policy, false));
        let command = Caller::Command(vec!["/bin/true".to_owned()]);
        for policies in [Policies::NONE, Policies::NINE].into_iter().chain(single).chain(without) {
            for caller in [None, Some(command.clone()), Some(Caller::External)] {
                let mesh = Mesh {
                    policies,
                    engine: "wasm",
                    listeners,
                    upstream: address,
                    http2_upstream: caller.is_none(),
                    same_node_tls: caller.is_some(),
                    caller,
                    material: &material,
                    otlp: address,
                    log: "access.log".into(),
                };
                let path = folder.path().join("bench.yaml");
                std::fs::write(&path, mesh.documents()).unwrap();
                if let Err(problems) = leno_config::load(&path) {
                    panic!("{policies:?}: {problems:?}");
                }
            }
        }
    }
}
