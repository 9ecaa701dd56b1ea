//! Documents of tenants do not block documents of other tenants, do not take their hosts, and do
//! not learn their names.

use leno_config::{Document, Problem, Snapshot};
use leno_model::Run;
use std::path::Path;

const API: &str = "apiVersion: leno.dev/v1alpha1\n";

fn function(name: &str, namespace: &str, more: &str) -> String {
    format!("{API}kind: Function\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec: {{command: [a]{more}}}\n")
}

/// Compiles documents in the order of their arrival.
fn compiled(texts: &[&str]) -> Result<Snapshot, Vec<Problem>> {
    let documents: Vec<Document> = texts
        .iter()
        .enumerate()
        .flat_map(|(index, text)| Document::read(Path::new(&format!("{index}.yaml")), text).unwrap())
        .collect();
    Snapshot::of_documents(&documents)
}

fn words(problems: &[Problem]) -> Vec<String> {
    problems.iter().map(ToString::to_string).collect()
}

#[test]
fn what_another_tenant_names_holds_up_nobody() {
    let policy = |spec: &str| format!("{API}kind: Policy\nmetadata: {{name: p, namespace: a}}\nspec: {{{spec}}}\n");
    let chain = format!(
        "{API}kind: Chain\nmetadata: {{name: c, namespace: b}}\nspec: {{entry: own, functions: [{{name: own, to: [f]}}, {{name: f}}]}}\n"
    );
    let own = function("own", "b", ", protocol: chain, callees: [f]");
    let job = format!("{API}kind: Job\nmetadata: {{name: f, namespace: b}}\nspec: {{command: [a]}}\n");
    let external = format!(
        "{API}kind: External\nmetadata: {{name: f, namespace: b}}\nspec: {{hosts: [api.example.com], ports: [{{port: 80, protocol: http}}]}}\n"
    );
    let asks = "functions: [caller], externalAuthorization: [{name: x, service: b/f, protocol: grpc}]";
    let named = "functions: [caller], authorization: {rules: [{from: [{identities: [b/f]}]}]}";
    for (what, mine, theirs, field) in [
        ("a callee that is gone", function("caller", "a", ", callees: [b/f]"), vec![], "spec.callees[0]"),
        ("a callee that is a job", function("caller", "a", ", callees: [b/f]"), vec![&job], "spec.callees[0]"),
        (
            "a callee inside of a chain",
            function("caller", "a", ", callees: [b/f]"),
            vec![&own, &chain, &function("f", "b", ", protocol: chain")],
            "spec.callees[0]",
        ),
        ("a caller that is gone", policy(named), vec![], "spec.authorization.rules[0].from[0].identities[0]"),
        (
            "a caller that is outside",
            policy(named),
            vec![&external],
            "spec.authorization.rules[0].from[0].identities[0]",
        ),
        ("an authorizer that is gone", policy(asks), vec![], "spec.externalAuthorization[0].service"),
        (
            "an authorizer without gRPC",
            policy(asks),
            vec![&function("f", "b", "")],
            "spec.externalAuthorization[0].service",
        ),
        ("an authorizer that is a job", policy(asks), vec![&job], "spec.externalAuthorization[0].service"),
        ("labels", policy("selector: {tier: gone}, namespaces: [b], retry: {attempts: 2}"), vec![], "spec.selector"),
    ] {
        let caller = function("caller", "a", "");
        let is_caller = mine.contains("kind: Function");
        let mut texts: Vec<&str> = if is_caller { vec![] } else { vec![&caller] };
        texts.push(&mine);
        texts.extend(theirs.iter().map(|text| text.as_str()));
        let snapshot = compiled(&texts).unwrap_or_else(|problems| panic!("{what}: {:?}", words(&problems)));
        let place = format!("{}.yaml", usize::from(!is_caller));
        let reported = |problem: &&Problem| problem.field == field && problem.file == Path::new(&place);
        assert!(
            snapshot.warnings().iter().any(|warning| reported(&warning)),
            "{what}: {:?}",
            words(snapshot.warnings())
        );
        let config = snapshot.function_config(&"a/caller".parse().unwrap()).unwrap();
        assert!(config.callees.is_empty(), "{what}: calls to it are refused");
        assert!(
            config.authorizers.iter().all(|authorizer| authorizer.authority.is_empty()),
            "{what}: it gives no answer"
        );
    }
    let own = compiled(&[&function("caller", "a", ", callees: [f]")]).unwrap_err();
    assert!(words(&own)[0].contains("there is no function `a/f`"), "{own:?}");
}

#[test]
fn a_circle_of_authorizers_through_another_tenant_refuses_what_it_is_asked_about() {
    let asks = |name: &str, namespace: &str, function: &str, service: &str| {
        format!(
            "{API}kind: Policy\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec: {{functions: [{function}], externalAuthorization: [{{name: x, service: {service}, protocol: http}}]}}\n"
        )
    };
    let functions = [function("f", "a", ""), function("g", "b", "")];
    let texts = [&functions[0], &functions[1], &asks("p", "a", "f", "b/g"), &asks("q", "b", "g", "a/f")];
    let snapshot = compiled(&texts.map(String::as_str)).unwrap();
    for name in ["a/f", "b/g"] {
        let config = snapshot.function_config(&name.parse().unwrap()).unwrap();
        assert_eq!(config.authorizers[0].authority, "", "{name}");
    }
    let own = compiled(&[&functions[0], &asks("p", "a", "f", "f")]).unwrap_err();
    assert!(words(&own)[0].contains("without end"), "{own:?}");
}

#[test]
fn questions_that_multiply_from_authorizer_to_authorizer_are_refused() {
    // Each function of level n asks the one of level n + 1 twice: a request to the first would cause 2^20 questions.
    let documents = |namespace: &dyn Fn(usize) -> &'static str, levels: usize| {
        let names: Vec<String> = (0..=levels).map(|level| format!("{}/f{level}", namespace(level))).collect();
        let mut texts: Vec<String> =
            (0..=levels).map(|level| function(&format!("f{level}"), namespace(level), "")).collect();
        for level in 0..levels {
            let ask = |name: &str| format!("{{name: {name}, service: {}, protocol: http}}", names[level + 1]);
            texts.push(format!(
                "{API}kind: Policy\nmetadata: {{name: p{level}, namespace: {}}}\nspec: {{functions: [f{level}], externalAuthorization: [{}, {}]}}\n",
                namespace(level), ask("x"), ask("y")
            ));
        }
        texts
    };
    let checked = |texts: &[String]| compiled(&texts.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(checked(&documents(&|_| "a", 3)).is_ok(), "fourteen");
    let own = words(&checked(&documents(&|_| "a", 20)).unwrap_err());
    assert!(own[0].contains("causes more than 16 others"), "{own:?}");
    // Another tenant's authorizers cannot cause the change to be refused; the requests about which
    // they are asked are.
    let snapshot = checked(&documents(&|level| ["a", "b"][level % 2], 20)).unwrap();
    let config = |name: &str| snapshot.function_config(&name.parse().unwrap()).unwrap();
    assert!(config("a/f0").authorizers.iter().all(|authorizer| authorizer.authority.is_empty()));
    assert!(config("b/f19").authorizers.iter().all(|authorizer| !authorizer.authority.is_empty()));
    assert!(words(snapshot.warnings()).iter().any(|warning| warning.contains("causes more than 16 others")));
}

#[test]
fn of_two_that_claim_a_host_the_later_one_is_refused_and_learns_nothing() {
    let exposed = |name: &str, namespace: &str, host: &str| {
        function(name, namespace, &format!(", expose: [{{hosts: [\"{host}\"], path: /{name}}}]"))
    };
    for (first, second) in [
        ("good.example", "good.example"),
        ("good.example", "*.example"),
        ("*.example", "good.example"),
        ("good.example", "*"),
        ("*", "good.example"),
        ("*", "*"),
        ("good.example", "*.good.example"),
        ("*.good.example", "a.b.GOOD.example"),
    ] {
        let (z, a) = (exposed("secret", "zoo", first), exposed("thief", "ant", second));
        let refused = words(&compiled(&[&z, &a]).unwrap_err());
        assert!(
            matches!(&refused[..], [only] if only.starts_with("1.yaml:") && only.contains("is taken")),
            "{refused:?}"
        );
        assert!(!refused[0].contains("secret") && !refused[0].contains("zoo"), "{refused:?}");
        assert!(compiled(&[&z, &exposed("other", "zoo", second)]).is_ok(), "{first} {second}: one namespace");
    }
}

#[test]
fn tenants_learn_no_names_of_others() {
    let policy = format!("{API}kind: Policy\nmetadata: {{name: p, namespace: a}}\nspec: {{functions: [caler]}}\n");
    let others = [function("caler", "secret", ""), function("calera", "secret", "")];
    let refused = compiled(&[&others[0], &others[1], &policy]).unwrap_err();
    assert!(words(&refused).iter().all(|words| !words.contains("secret")), "{refused:?}");
    let refused = compiled(&[&function("caller", "a", ""), &policy]).unwrap_err();
    assert!(words(&refused)[0].contains("did you mean `a/caller`?"), "{refused:?}");

    let issuer = |name: &str, namespace: &str, issuer: &str| {
        format!(
            "{API}kind: Policy\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec: {{functions: [f], authentication: {{issuers: [{{issuer: \"{issuer}\", jwks: {{inline: {{keys: [{{kty: OKP, crv: Ed25519, x: 11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo}}]}}}}}}]}}}}\n"
        )
    };
    let rules = format!(
        "{API}kind: Policy\nmetadata: {{name: r, namespace: a}}\nspec: {{functions: [f], authorization: {{rules: [{{from: [{{requestPrincipals: [\"https://a/b/user\"]}}]}}]}}}}\n"
    );
    let mine = [function("f", "a", ""), issuer("i", "a", "https://a"), rules];
    let theirs = [function("f", "b", ""), issuer("j", "b", "https://a/b")];
    let all: Vec<&str> = mine.iter().chain(&theirs).map(String::as_str).collect();
    assert!(compiled(&all).is_ok(), "an issuer of another tenant makes no text ambiguous");
}

/// Addresses and blocks of metadata services, and IPv6 addresses that lead to them.
const METADATA: [&str; 24] = [
    "169.254.169.254",
    "169.254.0.0/16",
    "169.254.128.0/17",
    "169.254.170.2",
    "168.63.129.16",
    "168.63.129.16/32",
    "100.100.100.200",
    "192.0.0.192",
    "fe80::a9fe:a9fe",
    "fe80::/10",
    "fd00:ec2::254",
    "fd00:ec2::254/128",
    "fd00:ec2::23",
    "fd20:ce::254",
    "fd00:c1::a9fe:a9fe",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b::a9fe:0/112",
    "64:ff9b:1::a83f:8110",
    "64:ff9b:1:a9fe:a9:fe00::",
    "64:ff9b:1:ffff:a9:fea9:fe00:7",
    "2002:a9fe:a9fe::1",
    "2002:a9fe::/32",
    "2001:0:4136:e378::5601:5601",
    "::ffff:0:169.254.169.254",
];

fn external(more: &str) -> String {
    format!(
        "{API}kind: External\nmetadata: {{name: e, namespace: a}}\nspec: {{hosts: [api.example.com], {more}, ports: [{{port: 80, protocol: http}}]}}\n"
    )
}

fn at(address: &str) -> String {
    let at = if address.contains(':') { format!("[{address}]:80") } else { format!("{address}:80") };
    format!("{API}kind: Function\nmetadata: {{name: f, namespace: a}}\nspec: {{external: {{addresses: [\"{at}\"]}}}}\n")
}

fn quota(egress: &str) -> String {
    format!("{API}kind: NamespaceQuota\nmetadata: {{name: a}}\nspec: {{egress: [\"{egress}\"]}}\n")
}

#[test]
fn a_callee_of_another_namespace_that_admits_others_only_is_told_to_those_who_may_know_it() {
    let admitting = |who: &str| {
        format!(
            "{API}kind: Policy\nmetadata: {{name: p, namespace: b}}\n\
             spec: {{functions: [stock], authorization: {{rules: [{{name: r, from: [{{identities: [{who}]}}]}}]}}}}\n"
        )
    };
    let texts = |policy: String| {
        let caller = function("shop", "a", ", callees: [b/stock]");
        [caller, function("stock", "b", ""), function("other", "b", ", callees: [stock]"), policy]
    };
    let snapshot = |policy: String| {
        let texts = texts(policy);
        compiled(&texts.each_ref().map(String::as_str)).unwrap_or_else(|problems| panic!("{:?}", words(&problems)))
    };
    let refused = snapshot(admitting("b/other"));
    let [(namespace, warning)] = refused.warnings_across() else { panic!("{:?}", refused.warnings_across()) };
    assert_eq!((namespace.as_str(), warning.field.as_str()), ("b", "spec.callees[0]"));
    assert!(warning.message.contains("calls of `a/shop` to `b/stock` are refused with 403"), "{warning}");
    let told = words(refused.warnings());
    assert!(!told.iter().any(|warning| warning.contains("refused")), "a tenant must not learn it: {told:?}");
    assert_eq!(snapshot(admitting("b/other, a/shop")).warnings_across(), []);
}

#[test]
fn requests_lead_nodes_to_no_metadata_service_that_the_quota_does_not_list() {
    for address in METADATA {
        let mut documents = vec![
            (external(&format!("addresses: [\"{address}\"]")), "spec.addresses[0]"),
            (external(&format!("resolvesTo: [192.0.2.7, \"{address}\"]")), "spec.resolvesTo[1]"),
        ];
        if !address.contains('/') {
            documents.push((at(address), "spec.external.addresses[0]"));
        }
        for (text, field) in &documents {
            let problems = compiled(&[text]).expect_err(address);
            let [problem] = &problems[..] else { panic!("{address}: {problems:?}") };
            let reported = problem.to_string();
            assert_eq!(problem.field, *field, "{reported}");
            let named = address.strip_suffix("/32").or(address.strip_suffix("/128")).unwrap_or(address);
            let plain = named == address && !address.contains("::ffff:0:");
            assert!(
                !plain || reported.matches(named).count() >= 2 && reported.contains("NamespaceQuota `a`"),
                "{reported}"
            );
            assert!(leno_config::load_text(Path::new("f.yaml"), text).is_ok(), "{address}: it is the operator's file");
            for other in ["0.0.0.0/0", "::/0", "10.0.0.0/8", "fc00::/7", "64:ff9b::/32", "169.254.1.1", "100.64.0.0/10"]
            {
                assert!(compiled(&[&quota(other), text]).is_err(), "{address}: the quota lists {other}");
            }
            let listed = compiled(&[&quota(address), text]);
            assert!(listed.is_ok(), "{address}: {:?}", listed.map_err(|problems| words(&problems)));
        }
    }
    let mapped = compiled(&[&at("::ffff:169.254.169.254")]).unwrap_err();
    assert!(words(&mapped)[0].contains("169.254.169.254"), "{mapped:?}");
    assert!(compiled(&[&quota("169.254.169.254"), &at("::ffff:169.254.169.254")]).is_ok());
    assert!(compiled(&[&quota("169.254.0.0/16"), &at("169.254.169.254")]).is_ok());
}

#[test]
fn blocks_that_contain_metadata_services_are_taken_and_do_not_admit_them() {
    for block in ["0.0.0.0/0", "::/0", "169.0.0.0/8", "168.63.129.0/24", "100.64.0.0/10", "fc00::/7", "fd00::/8"]
        .into_iter()
        .chain(["fd00:ec2::/32", "8000::/1", "64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32"])
    {
        let text = external(&format!("addresses: [\"{block}\"], resolvesTo: [\"{block}\"]"));
        let snapshot = compiled(&[&text]).unwrap_or_else(|problems| panic!("{block}: {:?}", words(&problems)));
        let config = snapshot.function_config(&"a/e".parse().unwrap()).unwrap();
        let Run::Egress(egress) = config.run else { panic!("{block}") };
        for address in METADATA.iter().filter_map(|address| address.parse().ok()) {
            assert!(!egress.has_address(address, &|_| false), "{block} admits {address}");
            assert!(!egress.may_resolve_to(address, &|_| false), "a name leads to {address} by {block}");
        }
    }
    // Google's `metadata.google.internal` is a name of 169.254.169.254.
    let named = external("resolvesTo: [10.0.0.0/8]").replace("api.example.com", "metadata.google.internal");
    for text in [named.replace("resolvesTo: [10.0.0.0/8], ", ""), named] {
        let config = compiled(&[&text]).unwrap().function_config(&"a/e".parse().unwrap()).unwrap();
        let Run::Egress(egress) = config.run else { panic!("{text}") };
        assert!(!egress.may_resolve_to("169.254.169.254".parse().unwrap(), &|_| false));
    }
}

#[test]
fn private_and_loopback_addresses_stay_the_tenants_choice() {
    for address in ["127.0.0.1", "10.1.2.3", "192.168.0.1", "172.16.0.1", "100.64.0.1", "::1", "fd12::1", "192.0.2.7"] {
        for text in [at(address), external(&format!("addresses: [\"{address}\"]"))] {
            assert!(compiled(&[&text]).is_ok(), "{address}");
        }
    }
}
