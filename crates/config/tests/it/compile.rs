//! Snapshots of valid documents.

use leno_config::{Snapshot, load_text};
use leno_model::{AppProtocol, ChainLink, RedisTransport, Run};
use leno_model::{FunctionConfig, FunctionId};
use leno_policy::spec::{Action, Counts, Direction, Target};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

fn parse(text: &str) -> Snapshot {
    load_text(Path::new("/app/orders.yaml"), text).unwrap_or_else(|problems| {
        panic!("{}", problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
    })
}

fn orders() -> Snapshot {
    parse(include_str!("../documents/orders.yaml"))
}

fn config(snapshot: &Snapshot, id: &str) -> FunctionConfig {
    snapshot.function_config(&id.parse().unwrap()).unwrap()
}

/// All function configurations of the example, as JSON. `LENO_BLESS=1 cargo test -p leno-config`
/// writes them anew.
#[test]
fn configs_are_what_they_were() {
    let snapshot = orders();
    let configs: Vec<FunctionConfig> = snapshot.functions().map(|id| snapshot.function_config(id).unwrap()).collect();
    let json = serde_json::to_string_pretty(&(snapshot.mesh_config(), configs)).unwrap() + "\n";
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/documents/orders.functions.json");
    if std::env::var_os("LENO_BLESS").is_some() {
        fs::write(&file, &json).unwrap();
    }
    let committed = fs::read_to_string(&file).unwrap_or_default();
    assert!(
        committed == json,
        "the configurations have changed; if that is right: LENO_BLESS=1 cargo test -p leno-config"
    );
}

#[test]
fn what_a_node_reads_at_its_start_is_reported_apart_from_what_takes_effect_at_once() {
    let mesh = |spec: &str| {
        let document =
            format!("{{apiVersion: leno.dev/v1alpha1, kind: Mesh, metadata: {{name: m}}, spec: {{{spec}}}}}\n---\n");
        let function = "{apiVersion: leno.dev/v1alpha1, kind: Function, metadata: {name: a}, spec: {command: [a]}}";
        parse(&(document + function)).mesh_config().clone()
    };
    let before = mesh("");
    for live in [
        "limits: {headBytes: 2048, drainTimeout: 1s, tcpKeepAlive: 20s}",
        "mtls: {sameNode: always, svidLifetime: 2m}",
        "gateway: {http: \"127.0.0.1:8080\", trustedProxies: {hops: 1}}",
    ] {
        assert_eq!(before.fixed_at_start(&mesh(live)), [""; 0], "{live}");
    }
    for (fixed, field) in [
        ("trustDomain: other.example", "spec.trustDomain"),
        ("engine: wasm", "spec.engine"),
        ("gateway: {http: \"127.0.0.1:8081\"}", "spec.gateway.http"),
        ("listeners: {outbound: \"127.0.0.1:15002\"}", "spec.listeners.outbound"),
        ("listeners: {inbound: \"127.0.0.1:15002\"}", "spec.listeners.inbound"),
        ("listeners: {admin: \"unix:/tmp/other.sock\"}", "spec.listeners.admin"),
        ("listeners: {control: \"127.0.0.1:15002\"}", "spec.listeners.control"),
        ("accessLog: {format: json}", "spec.accessLog"),
        ("tracing: {otlp: \"http://127.0.0.1:4318\"}", "spec.tracing.otlp"),
        ("instances: {accounts: node}", "spec.instances"),
        ("quotas: {redis: {address: \"127.0.0.1:6379\"}}", "spec.quotas"),
    ] {
        assert_eq!(before.fixed_at_start(&mesh(fixed)), [field], "{fixed}");
    }
}

#[test]
fn a_function_gets_its_own_edges_and_nothing_else() {
    let config = config(&orders(), "orders/order-service");
    let callees: Vec<String> = config.callees.iter().map(|callee| callee.id.to_string()).collect();
    assert_eq!(callees, ["orders/inventory-service", "stock/ledger"]);
    assert_eq!(config.callees[0].hosts[..2], ["inventory-service", "inventory-service.orders"]);
    // The short name means the caller's own namespace.
    assert_eq!(config.callees[1].hosts, ["ledger.stock", "ledger.stock.svc", "ledger.stock.svc.cluster.local"]);
    let targets = |targets: &[Target]| targets.iter().map(|target| target.function.clone()).collect::<Vec<_>>();
    assert_eq!(targets(&config.inbound.targets), ["orders/order-service"]);
    assert_eq!(targets(&config.outbound.targets), ["orders/inventory-service", "stock/ledger"]);
    assert_eq!((config.inbound.direction, config.outbound.direction), (Direction::Inbound, Direction::Outbound));
}

#[test]
fn retries_and_breakers_are_carried_out_by_whoever_calls() {
    let snapshot = orders();
    let callee = config(&snapshot, "orders/order-service");
    let caller = config(&snapshot, "orders/frontend-api");
    assert_eq!(caller.outbound.targets, callee.inbound.targets);
    assert_eq!(callee.inbound.targets[0].retry.as_ref().unwrap().attempts, 2);
    assert_eq!(callee.inbound.targets[0].timeout_ms, 5_000);
    // Policies of the callee do not apply to its own callees.
    assert!(callee.outbound.targets.iter().all(|target| target.retry.is_none() && target.breaker.is_none()));
}

#[test]
fn rules_of_several_policies_add_up_in_the_order_of_their_names() {
    let config = config(&orders(), "orders/order-service");
    let names: Vec<&str> = config.inbound.authorization.iter().map(|rule| rule.name.as_str()).collect();
    let expected = [
        "backend/authorization/order-service",
        "order-policy/authorization/from-frontend",
        "order-policy/authorization/1",
    ];
    assert_eq!(names, expected);
    let snapshot = orders();
    let policies: Vec<String> = snapshot.policies(&config.id).collect();
    assert_eq!(policies, ["orders/backend", "orders/order-policy"]);
}

#[test]
fn without_policies_nothing_may_enter_and_all_is_logged() {
    let config = config(&orders(), "stock/ledger");
    assert!(config.inbound.authorization.is_empty());
    assert!(config.inbound.access_log.enabled && !config.inbound.tracing.enabled);
    assert_eq!((config.engine, config.deadline), (None, Duration::from_millis(2)));
    assert_eq!(config.run, Run::External(vec!["127.0.0.1:9000".parse().unwrap(), "[::1]:9000".parse().unwrap()]));
}

#[test]
fn fetched_key_sets_point_at_their_issuer_in_the_whole_program() {
    let text = "
apiVersion: leno.dev/v1alpha1
kind: Function
metadata: {name: a}
spec: {command: [a]}
---
apiVersion: leno.dev/v1alpha1
kind: Policy
metadata: {name: one}
spec:
  functions: [a]
  authentication: {issuers: [{issuer: x, jwks: {url: https://x.example}}]}
---
apiVersion: leno.dev/v1alpha1
kind: Policy
metadata: {name: two}
spec:
  functions: [a]
  authentication: {issuers: [{issuer: y, jwks: {url: https://y.example}}, {issuer: z, jwks: {url: https://z.example}}]}
";
    let config = config(&parse(text), "default/a");
    for fetch in &config.jwks {
        assert_eq!(fetch.url, format!("https://{}.example", config.inbound.authentication[fetch.issuer].issuer));
    }
    assert_eq!(config.jwks.len(), 3);
}

#[test]
fn a_mesh_document_is_optional() {
    let snapshot = parse("{apiVersion: leno.dev/v1alpha1, kind: Function, metadata: {name: a}, spec: {command: [a]}}");
    assert_eq!(snapshot.mesh_config().trust_domain.as_str(), "leno.local");
    assert_eq!(snapshot.mesh_config().gateway_http, Some("127.0.0.1:8080".parse().unwrap()));
    let config = config(&snapshot, "default/a");
    assert_eq!(config.identity.as_str(), "spiffe://leno.local/ns/default/sa/a");
    assert_eq!((config.protocol, config.concurrency), (AppProtocol::Http1, 0));
    let Run::Command(command) = config.run else { panic!("no command") };
    assert_eq!((command.directory.as_path(), command.port), (Path::new("/app"), None));
}

#[test]
fn text_stays_what_it_looks_like() {
    let Run::Command(command) = config(&orders(), "orders/order-service").run else { panic!("no command") };
    assert_eq!(command.env["COUNTRY"], "no");
    assert_eq!(command.env["VERSION"], "1.10");
}

#[test]
fn selectors_take_the_functions_with_all_their_labels() {
    let functions = "
apiVersion: leno.dev/v1alpha1
kind: Function
metadata: {name: a, namespace: x, labels: {tier: backend, team: blue}}
spec: {command: [a]}
---
apiVersion: leno.dev/v1alpha1
kind: Function
metadata: {name: b, namespace: x, labels: {tier: backend}}
spec: {command: [b]}
---
apiVersion: leno.dev/v1alpha1
kind: Function
metadata: {name: c, namespace: y, labels: {tier: backend, team: blue}}
spec: {command: [c]}
";
    for (selection, expected) in [
        ("selector: {}", vec!["x/a", "x/b"]),
        ("selector: {tier: backend, team: blue}", vec!["x/a"]),
        ("{selector: {team: blue}, namespaces: ['*']}", vec!["x/a", "y/c"]),
        ("{selector: {}, namespaces: [y]}", vec!["y/c"]),
        ("{selector: {team: blue}, functions: [b, y/c]}", vec!["x/a", "x/b", "y/c"]),
    ] {
        let spec = selection.trim_start_matches('{').trim_end_matches('}');
        let spec = if selection.starts_with('{') { spec.to_owned() } else { selection.to_owned() };
        let policy = "apiVersion: leno.dev/v1alpha1\nkind: Policy\nmetadata: {name: p, namespace: x}";
        let snapshot = parse(&format!("{functions}---\n{policy}\nspec: {{{spec}, retry: {{}}}}\n"));
        let with: Vec<String> =
            snapshot.functions().filter(|id| snapshot.policies(id).count() > 0).map(ToString::to_string).collect();
        assert_eq!(with, expected, "{selection}");
    }
}

#[test]
fn versions_tell_configurations_apart() {
    let text = include_str!("../documents/orders.yaml");
    assert_eq!(parse(text).version(), parse(text).version());
    assert_ne!(parse(text).version(), parse(&text.replace("attempts: 2", "attempts: 3")).version());
}

/// Ten thousand functions, each with a callee and a policy: compilation uses an index, not a
/// search.
#[test]
fn a_large_mesh_compiles() {
    let mut text = String::new();
    let count = 10_000;
    for n in 0..count {
        let next = (n + 1) % count;
        write!(
            text,
            "apiVersion: leno.dev/v1alpha1\nkind: Function\nmetadata: {{name: f{n}, namespace: n{}}}\nspec: {{command: [a], callees: [n{}/f{next}]}}\n---\n\
             apiVersion: leno.dev/v1alpha1\nkind: Policy\nmetadata: {{name: f{n}, namespace: n{}}}\nspec: {{functions: [f{n}], authorization: {{rules: [{{from: \
             [{{identities: [n{}/f{next}]}}]}}]}}}}\n---\n",
            n % 100, next % 100, n % 100, next % 100
        )
        .unwrap();
    }
    let snapshot = parse(&text);
    assert_eq!(snapshot.functions().len(), count);
    let ids: Vec<FunctionId> = snapshot.functions().cloned().collect();
    for id in ids {
        let config = snapshot.function_config(&id).unwrap();
        assert_eq!((config.callees.len(), config.inbound.authorization.len()), (1, 1));
        assert_eq!(config.inbound.authorization[0].action, Action::Allow);
    }
}

/// The scale of a function with these fields in its `spec`.
fn scale(spec: &str) -> leno_model::Scale {
    let snapshot = parse(&format!(
        "{}---\napiVersion: leno.dev/v1alpha1\nkind: Function\nmetadata: {{name: scaled}}\nspec:\n  command: [a]\n{spec}",
        "apiVersion: leno.dev/v1alpha1\nkind: Mesh\nmetadata: {name: m}\nspec: {trustDomain: td.example}\n"
    ));
    config(&snapshot, "default/scaled").scale
}

#[test]
fn the_scale_has_knatives_defaults_and_starts_with_nothing() {
    let scale = scale("  env: {}\n");
    assert_eq!(scale, leno_model::Scale::default());
    assert_eq!((scale.min, scale.initial, scale.max), (0, 0, u32::MAX));
}

#[test]
fn an_instance_with_state_is_kept_unless_the_document_says_otherwise() {
    for (fields, min) in [("", 1), ("  scale: {min: 0}\n", 0), ("  scale: {min: 3}\n", 3), ("  scale: {max: 4}\n", 1)] {
        assert_eq!(scale(&format!("  ports: [{{port: 6379}}]\n{fields}")).min, min, "{fields}");
    }
}

#[test]
fn the_target_of_one_instance_never_exceeds_its_concurrency() {
    let targets = |spec| scale(spec).per_instance;
    assert_eq!(targets("  scale: {target: 30}\n"), 30.0);
    assert_eq!(targets("  concurrency: 4\n"), 4.0);
    assert_eq!(targets("  concurrency: 4\n  scale: {target: 30}\n"), 4.0);
    assert_eq!(targets("  concurrency: 4\n  scale: {target: 2.5}\n"), 2.5);
    assert_eq!(targets("  concurrency: 4\n  scale: {metric: rps}\n"), 200.0);
}

#[test]
fn percentages_and_bounds_of_the_scale_are_worked_out() {
    let scale = scale(
        "  scale: {max: 9, window: 30s, panicWindowPercentage: 20, panicThresholdPercentage: 150, targetUtilization: 50, \
         scaleToZeroGracePeriod: 5s, scaleToZeroPodRetentionPeriod: 8s}\n",
    );
    assert_eq!((scale.max, scale.panic_window, scale.panic_threshold), (9, Duration::from_secs(6), 1.5));
    assert_eq!((scale.utilization, scale.last_instance), (0.5, Duration::from_secs(8)));
}

#[test]
fn a_job_is_a_caller_with_an_identity() {
    let snapshot = parse(
        "apiVersion: leno.dev/v1alpha1\nkind: Job\nmetadata: {name: report, namespace: batch}\nspec: {command: [bin/report, -v], \
         callees: [server], completions: 5, parallelism: 2, activeDeadline: 1m, ttlAfterFinished: 0s}\n---\n\
         apiVersion: leno.dev/v1alpha1\nkind: Function\nmetadata: {name: server, namespace: batch}\nspec: {command: [server]}\n---\n\
         apiVersion: leno.dev/v1alpha1\nkind: Policy\nmetadata: {name: open, namespace: batch}\nspec:\n  selector: {}\n  \
         authorization: {rules: [{name: report, from: [{identities: [report]}]}]}\n",
    );
    assert!(snapshot.is_job(&"batch/report".parse().unwrap()) && !snapshot.is_job(&"batch/server".parse().unwrap()));
    let report = config(&snapshot, "batch/report");
    assert!(report.identity.as_str().ends_with("/ns/batch/sa/report"), "{}", report.identity);
    assert_eq!((report.callees.len(), report.expose.len()), (1, 0));
    let Run::Job(job) = report.run else { panic!("it is a job") };
    assert_eq!((job.process.argv[0].as_str(), job.process.directory.to_str()), ("bin/report", Some("/app")));
    assert_eq!((job.parallelism, job.completions, job.backoff_limit), (2, 5, 6));
    assert_eq!((job.active_deadline, job.ttl), (Some(Duration::from_secs(60)), Some(Duration::ZERO)));
    assert_eq!(job.process.grace, Duration::from_secs(30));
    let server = config(&snapshot, "batch/server");
    let rule = format!("{:?}", server.inbound.authorization[0]);
    assert!(rule.contains(report.identity.as_str()), "policies name jobs as they name functions: {rule}");
}

#[test]
fn policies_of_one_function_may_name_the_same_issuer() {
    let snapshot = parse(
        r#"
apiVersion: leno.dev/v1alpha1
kind: Function
metadata: {name: a}
spec: {command: [a]}
---
apiVersion: leno.dev/v1alpha1
kind: Policy
metadata: {name: platform}
spec:
  functions: [a]
  authentication:
    issuers: [{issuer: "https://login.example", audiences: [shop], jwks: {url: "https://login.example/keys"}, requireExpiration: true}]
---
apiVersion: leno.dev/v1alpha1
kind: Policy
metadata: {name: application}
spec:
  functions: [a]
  authentication:
    issuers: [{issuer: "https://login.example", audiences: [admin], jwks: {inline: {keys: [{kty: OKP, crv: Ed25519, x: 11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo}]}}}]
  rateLimits:
  - {requests: 5, per: 1m, key: [address], counts: authenticationFailures}
"#,
    );
    let config = config(&snapshot, "default/a");
    let issuers: Vec<_> = config.inbound.authentication.iter().collect();
    let summary: Vec<_> =
        issuers.iter().map(|issuer| (&*issuer.audiences[0], issuer.keys.len(), issuer.require_expiration)).collect();
    assert_eq!(summary, [("admin", 1, false), ("shop", 0, true)], "in order of the policies' names");
    assert_eq!(config.jwks[0].issuer, 1, "its keys are added to the one that fetches them");
    assert_eq!(config.inbound.rate_limits[0].counts, Counts::AuthenticationFailures);
}

#[test]
fn a_change_of_a_callers_labels_changes_the_config_of_the_callee() {
    let config_with = |labels: &str| {
        let text = format!(
            "{{apiVersion: leno.dev/v1alpha1, kind: Function, metadata: {{name: web, labels: {labels}}}, spec: {{command: [web], callees: [a]}}}}
---
{{apiVersion: leno.dev/v1alpha1, kind: Function, metadata: {{name: a}}, spec: {{command: [a]}}}}
---
{{apiVersion: leno.dev/v1alpha1, kind: Policy, metadata: {{name: p}}, spec: {{functions: [a], authorization: {{rules: [{{from: [{{labels: {{app: web}}}}]}}]}}}}}}"
        );
        config(&parse(&text), "default/a")
    };
    let callers = |config: &FunctionConfig| config.inbound.authorization[0].from[0].labels.clone().unwrap().identities;
    let (with, without) = (config_with("{app: web}"), config_with("{}"));
    assert_eq!(callers(&with), ["spiffe://leno.local/ns/default/sa/web"]);
    assert_eq!(callers(&without), [""; 0]);
    assert_ne!(with, without);
}

const CHAIN: &str = "
apiVersion: leno.dev/v1alpha1
kind: Chain
metadata: {name: boutique, namespace: shop}
spec: {entry: frontend, functions: [{name: frontend, to: [shop/cart, rates]}, {name: cart}, {name: rates}]}
---
apiVersion: leno.dev/v1alpha1
kind: Function
metadata: {name: frontend, namespace: shop}
spec: {command: [a], protocol: chain, callees: [cart, rates, elsewhere]}
---
apiVersion: leno.dev/v1alpha1
kind: Function
metadata: {name: cart, namespace: shop}
spec: {image: \"registry.example/cart:1\", protocol: chain}
---
apiVersion: leno.dev/v1alpha1
kind: Function
metadata: {name: rates, namespace: shop, labels: {app: rates}}
spec: {command: [a], protocol: grpc}
---
apiVersion: leno.dev/v1alpha1
kind: Function
metadata: {name: elsewhere, namespace: shop}
spec: {command: [a], callees: [frontend]}
";

#[test]
fn functions_know_their_chain_and_whom_they_reach_through_it() {
    let snapshot = parse(CHAIN);
    let link = |id: &str| config(&snapshot, id).chain;
    let to = |names: &[&str]| names.iter().map(|name| name.parse().unwrap()).collect::<Vec<FunctionId>>();
    let chain = ChainLink {
        chain: "shop/boutique".to_owned(),
        memory: 16 << 20,
        large_pages: false,
        to: Vec::new(),
        direct: false,
    };
    assert_eq!(link("shop/frontend"), Some(ChainLink { to: to(&["shop/cart", "shop/rates"]), ..chain.clone() }));
    assert_eq!([link("shop/cart"), link("shop/rates")], [Some(chain.clone()), Some(chain)]);
    assert_eq!(link("shop/elsewhere"), None);
    assert_eq!(config(&snapshot, "shop/cart").protocol, AppProtocol::Chain);
    let smaller = parse(&CHAIN.replace("spec: {entry", "spec: {memory: 64Ki, entry"));
    let [before, after] = [&snapshot, &smaller].map(|snapshot| config(snapshot, "shop/cart"));
    assert_eq!(after.chain.as_ref().unwrap().memory, 64 << 10);
    let large =
        config(&parse(&CHAIN.replace("spec: {entry", "spec: {memory: 2Mi, largePages: true, entry")), "shop/cart");
    assert!(large.chain.is_some_and(|chain| chain.large_pages));
    assert_eq!(before.template(), after.template(), "a chain is the function's, and makes no revision");
}

/// The name has the form in which clients send it in TLS, and in which certificates have it.
#[test]
fn names_for_tls_have_one_form_however_they_are_written() {
    for (written, name) in [
        ("api.example.com", "api.example.com"),
        ("API.Example.com.", "api.example.com"),
        ("b\u{fc}cher.example", "xn--bcher-kva.example"),
    ] {
        let external = format!(
            "apiVersion: leno.dev/v1alpha1\nkind: External\nmetadata: {{name: api}}\nspec: {{hosts: [api.example.com], ports: [{{port: 443, protocol: https}}], tls: {{serverName: {written}}}}}\n"
        );
        let Run::Egress(egress) = config(&parse(&external), "default/api").run else { panic!("{written}") };
        assert_eq!(egress.tls.server_name.as_deref(), Some(name), "{written}");
    }
    for (written, name) in [
        ("Redis.Example.", "redis.example"),
        ("2001:DB8::1", "2001:db8::1"),
        ("b\u{fc}cher.example", "xn--bcher-kva.example"),
    ] {
        let mesh = format!(
            "apiVersion: leno.dev/v1alpha1\nkind: Mesh\nmetadata: {{name: m}}\nspec: {{quotas: {{redis: {{address: \"redis.example:6379\", tls: {{serverName: \"{written}\"}}}}}}}}\n"
        );
        let Some(quotas) = parse(&mesh).mesh_config().quotas.clone() else { panic!("{written}") };
        let RedisTransport::Tls { server_name, .. } = quotas.transport else { panic!("{written}") };
        assert_eq!(server_name, name, "{written}");
    }
}
