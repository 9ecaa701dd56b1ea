//! Functions that are pods of Kubernetes.

use leno_config::{DocumentSet, Problem, Snapshot};
use leno_model::{FunctionConfig, PodMode, Run};
use leno_policy::spec::{Action, StringMatch};
use std::path::Path;
use std::time::Duration;

fn compile(documents: &[String]) -> Result<Snapshot, Vec<Problem>> {
    let mut set = DocumentSet::of_text(Path::new("cluster.yaml"), &documents.join("---\n"));
    set.documents.kubernetes = true;
    set.compile()
}

fn function(name: &str, account: &str, mode: &str) -> String {
    let spec = format!("pods: {{serviceAccount: {account}, mode: {mode}, ports: [{{name: http, number: 8080}}]}}");
    document("Function", name, &spec)
}

fn policy(name: &str, callee: &str, rules: &str) -> String {
    document("Policy", name, &format!("functions: [{callee}], authorization: {{rules: [{rules}]}}"))
}

fn document(kind: &str, id: &str, spec: &str) -> String {
    let (namespace, name) = id.split_once('/').unwrap();
    format!(
        "{{apiVersion: leno.dev/v1alpha1, kind: {kind}, metadata: {{name: {name}, namespace: {namespace}, labels: {{app: {name}}}}}, spec: {{{spec}}}}}\n"
    )
}

fn config(snapshot: &Snapshot, id: &str) -> FunctionConfig {
    snapshot.function_config(&id.parse().unwrap()).unwrap()
}

/// The names of the rules for calls to a function.
fn rules(snapshot: &Snapshot, id: &str) -> Vec<String> {
    config(snapshot, id).inbound.authorization.into_iter().map(|rule| rule.name).collect()
}

/// The identities in the first rule for calls to a function.
fn callers(snapshot: &Snapshot, id: &str) -> Vec<StringMatch> {
    let rule = &config(snapshot, id).inbound.authorization[0];
    let labelled = rule.from[0].labels.iter().flat_map(|labels| &labels.identities).cloned().map(StringMatch::Exact);
    rule.from[0].identities.any.iter().cloned().chain(labelled).collect()
}

fn exact(identity: &str) -> StringMatch {
    StringMatch::Exact(identity.to_owned())
}

fn texts(problems: &[Problem]) -> Vec<String> {
    problems.iter().map(ToString::to_string).collect()
}

#[test]
fn pods_have_the_identity_of_their_account_and_requests_arrive_as_they_were_sent() {
    let snapshot = compile(&[function("shop/cart", "cart.v2", "enforced")]).unwrap();
    let cart = config(&snapshot, "shop/cart");
    assert_eq!(cart.identity.as_str(), "spiffe://leno.local/ns/shop/sa/cart.v2");
    let Run::Pods(pods) = &cart.run else { panic!("{:?}", cart.run) };
    assert_eq!((pods.mode, pods.ports[0].number), (PodMode::Enforced, 8080));
    assert!(cart.inbound.targets[0].as_received && cart.callees.is_empty());
    assert_eq!(cart.inbound.targets[0].timeout_ms, Duration::ZERO.as_millis() as u64);
    assert_eq!(snapshot.warnings(), []);
}

#[test]
fn permissive_pods_allow_what_no_policy_decides_and_enforced_ones_refuse_it() {
    let deny = policy("shop/deny", "cart", "{name: evil, action: deny, from: [{identities: [evil]}]}");
    let allow = policy("shop/allow", "cart", "{name: web, from: [{identities: [web]}]}");
    let audited = |of: &str, name: &str| of.replace("spec: {", "spec: {mode: audit, ").replace("shop/allow", name);
    let functions = |mode| ["cart", "web", "evil"].map(|name| function(&format!("shop/{name}"), name, mode));
    let with = |mode, policies: &[&String]| {
        let documents: Vec<String> = functions(mode).into_iter().chain(policies.iter().copied().cloned()).collect();
        let snapshot = compile(&documents).unwrap();
        (rules(&snapshot, "shop/cart"), config(&snapshot, "shop/cart").inbound.audit_default)
    };
    let own = |rules: &[&str]| rules.iter().map(ToString::to_string).collect::<Vec<_>>();
    let (denies, allows) = ("deny/authorization/evil", "allow/authorization/web");
    let permissive = "shop/cart/permissive";
    assert_eq!(with("permissive", &[]), (own(&[permissive]), false));
    assert_eq!(with("permissive", &[&deny]), (own(&[denies, permissive]), false));
    assert_eq!(with("permissive", &[&allow]), (own(&[allows]), false), "a rule that allows some refuses the others");
    let audited_allow = audited(&allow, "allow");
    assert_eq!(with("permissive", &[&audited_allow]), (own(&[allows]), true), "what it would refuse is reported");
    assert_eq!(with("permissive", &[&deny, &audited_allow]), (own(&[allows, denies, permissive]), false));
    assert_eq!(with("enforced", &[]), (own(&[]), false));
    assert_eq!(with("enforced", &[&deny]), (own(&[denies]), false));
    assert_eq!(with("enforced", &[&allow]), (own(&[allows]), false));
}

#[test]
fn rules_name_functions_and_mean_their_accounts() {
    let by_name = policy("shop/by-name", "cart", "{from: [{identities: [front/web]}]}");
    let by_label = policy("shop/by-label", "cart", "{from: [{labels: {app: web}, namespaces: [front]}]}");
    for rule in [by_name, by_label] {
        let functions = [function("shop/cart", "cart", "enforced"), function("front/web", "browser", "enforced")];
        let snapshot = compile(&[functions.as_slice(), &[rule]].concat()).unwrap();
        assert_eq!(callers(&snapshot, "shop/cart"), [exact("spiffe://leno.local/ns/front/sa/browser")]);
        assert_eq!(snapshot.warnings(), [], "no list of callees is needed");
    }
}

#[test]
fn service_accounts_are_named_as_kubernetes_and_other_meshes_do() {
    let with = |identity: &str| {
        let rule = format!("{{from: [{{identities: [\"{identity}\"]}}]}}");
        compile(&[function("shop/cart", "cart", "enforced"), policy("shop/p", "cart", &rule)])
    };
    let account = exact("spiffe://leno.local/ns/front/sa/web");
    for identity in ["system:serviceaccount:front:web", "cluster.local/ns/front/sa/web", "leno.local/ns/front/sa/web"] {
        assert_eq!(callers(&with(identity).unwrap(), "shop/cart"), std::slice::from_ref(&account), "{identity}");
    }
    for identity in ["other.example/ns/front/sa/web", "system:serviceaccount:fr/ont:web"] {
        let problems = texts(&with(identity).unwrap_err());
        assert!(problems[0].contains("write spiffe://leno.local/ns/NAMESPACE/sa/NAME"), "{problems:?}");
    }
}

#[test]
fn a_caller_that_does_not_exist_matches_nothing_also_if_an_account_has_its_name() {
    // `web` is the account of `other`, and no function.
    let documents = [
        function("shop/cart", "cart", "enforced"),
        function("shop/other", "web", "enforced"),
        policy("shop/p", "cart", "{from: [{identities: [web]}]}"),
        policy("shop/later", "stock", "{from: [{identities: [cart]}]}"),
    ];
    let snapshot = compile(&documents).unwrap();
    assert_eq!(callers(&snapshot, "shop/cart"), [exact("spiffe://leno.local/ns/shop/function/web")]);
    let warnings = texts(snapshot.warnings());
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings[0].contains("there is no function `shop/web`"), "{warnings:?}");
    assert!(warnings[1].contains("there is no function `shop/stock`: the policy does not apply to it yet"));
}

#[test]
fn a_caller_that_shares_its_account_is_a_warning_or_refused_by_the_mode_of_the_callee() {
    let functions = |mode| {
        let callers = ["web", "batch"].map(|name| function(&format!("front/{name}"), "default", mode));
        [callers.as_slice(), &[function("shop/cart", "cart", mode)]].concat()
    };
    let shares = "`front/web` has the service account of other functions: the rule means all of them";
    let fix = "write `spiffe://leno.local/ns/front/sa/default` to mean all";
    let all_labels = "{from: [{labelExpressions: [{key: app, operator: Exists}], namespaces: [front]}]}";
    for (rule, reported) in [
        ("{from: [{identities: [front/web]}]}", true),
        ("{action: deny, from: [{identities: [front/web]}]}", true),
        ("{from: [{identities: [\"*\"], notIdentities: [front/web]}]}", true),
        ("{from: [{labels: {app: web}, namespaces: [front]}]}", true),
        (all_labels, false),
        ("{from: [{identities: [\"spiffe://leno.local/ns/front/sa/default\"]}]}", false),
        ("{from: [{identities: [\"front/*\"]}]}", false),
        ("{from: [{identities: [cart]}]}", false),
    ] {
        let with = |mode| compile(&[functions(mode), vec![policy("shop/p", "cart", rule)]].concat());
        let warnings = texts(with("permissive").unwrap().warnings());
        let is_it = |text: &String| text.contains(shares) && text.contains(fix);
        assert_eq!(warnings.iter().any(is_it), reported, "{rule}: {warnings:?}");
        match with("enforced") {
            Ok(_) => assert!(!reported, "{rule} is compiled"),
            Err(problems) => {
                let problems = texts(&problems);
                assert!(reported && problems.iter().all(is_it), "{rule}: {problems:?}");
            }
        }
    }
}

#[test]
fn a_rule_means_no_other_account_of_its_caller_and_warns() {
    let caller = |id: &str| function(id, "web", "enforced").replace("mode:", "otherAccounts: [evil], mode:");
    let functions = [caller("shop/web"), caller("front/web"), function("shop/cart", "cart", "enforced")];
    let by_label = "{from: [{labels: {app: web}, namespaces: [NAMESPACE]}]}";
    for (namespace, told) in
        [("shop", "`spiffe://leno.local/ns/shop/sa/evil` to mean this one"), ("front", "another service account")]
    {
        for rule in ["{from: [{identities: [NAMESPACE/web]}]}", by_label] {
            let rule = rule.replace("NAMESPACE", namespace);
            let snapshot = compile(&[functions.as_slice(), &[policy("shop/p", "cart", &rule)]].concat()).unwrap();
            let own = format!("spiffe://leno.local/ns/{namespace}/sa/web");
            assert_eq!(callers(&snapshot, "shop/cart"), [exact(&own)], "{rule}");
            let warnings = texts(snapshot.warnings());
            assert!(
                warnings.len() == 1 && warnings[0].contains(&format!("the rule means `{own}` only")),
                "{warnings:?}"
            );
            assert!(warnings[0].contains(told), "{warnings:?}");
            assert_eq!(warnings[0].contains("evil"), namespace == "shop", "a tenant learns no account of another one");
        }
    }
    // A rule for the function of the other account means such pods, too.
    let rule = policy("shop/p", "cart", "{from: [{identities: [evil]}]}");
    let with = [functions.as_slice(), &[function("shop/evil", "evil", "enforced"), rule]].concat();
    let refused = texts(&compile(&with).unwrap_err());
    assert!(refused[0].contains("`shop/evil` has the service account of `shop/web`"), "{refused:?}");
}

#[test]
fn only_a_control_plane_for_kubernetes_has_pods() {
    let document = function("shop/cart", "cart", "permissive");
    let written = texts(&DocumentSet::of_text(Path::new("f.yaml"), &document).compile().unwrap_err());
    assert!(
        written
            .iter()
            .any(|text| text.contains("spec.pods: `pods` is not for documents that are written by hand; remove it")),
        "{written:?}"
    );
    let requested = leno_config::Document::read(Path::new("f.yaml"), &document).unwrap();
    let requested = texts(&Snapshot::of_documents(&requested).unwrap_err());
    assert!(requested[0].contains("written by hand"), "{requested:?}");
}

#[test]
fn mistakes_in_pods_name_their_field() {
    let pods = |pods: &str, more: &str| document("Function", "shop/cart", &format!("pods: {{{pods}}}{more}"));
    for (document, expected) in [
        (pods("serviceAccount: \"\"", ""), "spec.pods.serviceAccount: `` is not a service account"),
        (pods("serviceAccount: a/b", ""), "spec.pods.serviceAccount: `a/b` is not a service account"),
        (pods("serviceAccount: \"..\"", ""), "spec.pods.serviceAccount: `..` is not"),
        (pods("serviceAccount: a, ports: [{number: 0}]", ""), "spec.pods.ports[0].number"),
        (pods("serviceAccount: a", ", command: [a]"), "spec.command: `command` is not for pods"),
        (pods("serviceAccount: a", ", callees: [b]"), "spec.callees: `callees` is not for pods"),
        (pods("mode: enforced", ""), "serviceAccount"),
        (pods("serviceAccount: a, mode: strict", ""), "spec.pods.mode"),
        (pods("serviceAccount: a", "").replace("shop", "leno-system"), "the namespace `leno-system` is the mesh's own"),
    ] {
        let problems = texts(&compile(&[document]).unwrap_err());
        assert!(problems.iter().any(|problem| problem.contains(expected)), "{expected}: {problems:?}");
    }
}

#[test]
fn a_rule_that_only_audits_leaves_permissive_pods_open() {
    let rule = policy("shop/p", "cart", "{mode: audit, from: [{identities: [web]}]}");
    let functions = ["cart", "web"].map(|name| function(&format!("shop/{name}"), name, "permissive"));
    let snapshot = compile(&[functions.as_slice(), &[rule]].concat()).unwrap();
    let allowed = config(&snapshot, "shop/cart").inbound.authorization.into_iter();
    let in_force: Vec<_> = allowed.filter(|rule| rule.action == Action::Allow && !rule.audit).collect();
    assert_eq!(in_force.len(), 1);
    assert!(in_force[0].from.is_empty() && in_force[0].name == "shop/cart/permissive");
}
