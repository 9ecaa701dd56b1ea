//! Chains whose calls the kernel judges, behind `leno up`.

use leno_testkit::mesh::{self, ALLOW_ALL, Mesh, echo, kernel_makes_channels, policy};
use serde_json::Value;

/// A function of the namespace `test` with `protocol: chain`.
fn member(name: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: leno.dev/v1alpha1\nkind: Function\nmetadata: {{name: {name}, namespace: test}}\nspec:\n  command: \
         [\"{}\"]\n  protocol: chain\n  env: {{CHAIN: \"1\"}}\n{spec}\n",
        echo().display()
    )
}

/// Turns off the access log, which is on by default.
fn unlogged(function: &str, spec: &str) -> String {
    policy(&format!("in-{function}"), function, &format!("  accessLog: {{enabled: false}}\n{spec}"))
}

/// Allows all callers of the namespace, with no other conditions.
const WHO: &str = "  authorization: {rules: [{name: near, action: allow, from: [{namespaces: [test]}]}]}";

/// `web` calls `a`, which calls `b`, as this policy allows.
fn line(of_b: &str) -> String {
    "---\napiVersion: leno.dev/v1alpha1\nkind: Chain\nmetadata: {name: line, namespace: test}\nspec:\n  entry: web\n  direct: true\n  \
     functions: [{name: web, to: [a]}, {name: a, to: [b]}, {name: b}]\n"
        .to_owned()
        + &member("web", "  callees: [a]\n  expose: [{path: /}]")
        + &member("a", "  callees: [b]")
        + &member("b", "")
        + &unlogged("web", ALLOW_ALL)
        + &unlogged("a", WHO)
        + &unlogged("b", of_b)
}

/// A metric of the calls from one function to another.
fn counted(mesh: &Mesh, name: &str, caller: &str, callee: &str) -> u64 {
    let begin = format!("{name}{{chain=\"test/line\",caller=\"test/{caller}\",callee=\"test/{callee}\"}} ");
    let text = mesh.admin("/metrics").body;
    text.lines().find_map(|line| line.strip_prefix(&begin)).map_or(0, |count| count.parse().unwrap())
}

fn calls(mesh: &Mesh, caller: &str, callee: &str) -> u64 {
    counted(mesh, "leno_chain_channel_calls_total", caller, callee)
}

/// The row of `leno get chains` about the calls from one function to another.
fn told(mesh: &Mesh, caller: &str, callee: &str) -> String {
    let rows = mesh.admin("/chains").json();
    let row = rows.as_array().unwrap().iter().find(|row| row["function"] == format!("test/{caller}")).unwrap().clone();
    row["direct"][format!("test/{callee}")].as_str().unwrap_or_else(|| panic!("{row}")).to_owned()
}

const PATH: &str = "/call/a.test/call/b.test/open";

/// Waits until both calls of [`PATH`] go through the kernel.
fn wait_for_channels(mesh: &mut Mesh) {
    let before = [calls(mesh, "web", "a"), calls(mesh, "a", "b")];
    mesh.wait_for("channels", |mesh| {
        assert_eq!(mesh.get(PATH).status, 200);
        calls(mesh, "web", "a") > before[0] && calls(mesh, "a", "b") > before[1]
    });
}

#[test]
fn calls_that_ask_only_who_calls_go_through_the_kernel() {
    if !kernel_makes_channels() {
        return;
    }
    for isolation in ["process", "strict"] {
        let spec = format!("  instances: {{isolation: {isolation}, accounts: node}}\n");
        let mut mesh = Mesh::start_with_command(
            std::process::Command::new(env!("CARGO_BIN_EXE_leno")),
            &spec,
            &line(WHO).replace("  protocol: chain", "  workingDirectory: public\n  protocol: chain"),
            mesh::public_folder,
        );
        wait_for_channels(&mut mesh);
        let before = [calls(&mesh, "web", "a"), calls(&mesh, "a", "b")];
        for _ in 0..100 {
            let answer = mesh.get(PATH).json();
            assert_eq!((&answer["path"], &answer["authority"]), (&"/open".into(), &"b.test".into()), "{answer}");
            let identity = |name: &str| format!("spiffe://test.example/ns/test/sa/{name}");
            let who = format!("By={};URI={}", identity("b"), identity("a"));
            assert_eq!(answer["headers"]["x-forwarded-client-cert"], Value::from(vec![who]), "{answer}");
        }
        assert_eq!(
            [calls(&mesh, "web", "a"), calls(&mesh, "a", "b")],
            before.map(|before| before + 100),
            "{isolation}"
        );
        for (caller, callee) in [("web", "a"), ("a", "b")] {
            assert_eq!(
                counted(&mesh, "leno_chain_channel_answers_total", caller, callee),
                calls(&mesh, caller, callee),
                "{isolation}"
            );
            assert_eq!(counted(&mesh, "leno_chain_channel_open_calls", caller, callee), 0, "{isolation}");
            let told = told(&mesh, caller, callee);
            assert!(told.starts_with("direct, 1 open"), "{isolation}: {told}");
        }
        if isolation == "process" {
            // The node closes an unused channel, so that it can scale the callee down.
            mesh.wait_for("idle channels to be closed", |mesh| told(mesh, "a", "b").starts_with("direct, 0 open"));
            wait_for_channels(&mut mesh);
        }
        let text = mesh.admin("/metrics").body;
        let violations = text.lines().filter(|line| line.starts_with("leno_chain_channel_violations_total{"));
        assert!(violations.clone().count() > 0 && violations.into_iter().all(|line| line.ends_with(" 0")), "{text}");
    }
}

#[test]
fn a_change_of_what_is_allowed_is_in_force_for_channels_too() {
    if !kernel_makes_channels() {
        return;
    }
    let mut mesh = Mesh::start(&line(WHO));
    wait_for_channels(&mut mesh);
    // Now the rule depends on the path, which the kernel does not evaluate.
    mesh.write(&line("  authorization: {rules: [{name: read, action: allow, to: [{paths: [/open]}]}]}"));
    mesh.wait_for("the rule", |mesh| mesh.get("/call/a.test/call/b.test/closed").status == 403);
    let before = calls(&mesh, "a", "b");
    for _ in 0..20 {
        assert_eq!(mesh.get(PATH).status, 200);
        assert_eq!(mesh.get("/call/a.test/call/b.test/closed").status, 403);
    }
    assert_eq!(calls(&mesh, "a", "b"), before, "each of them was judged by a sidecar");
    assert_eq!(told(&mesh, "a", "b"), "its policies have rules about more than who calls");
    // And back.
    mesh.write(&line(WHO));
    wait_for_channels(&mut mesh);
    // No function may call it any more.
    mesh.write(&line("  authorization: {rules: [{name: far, action: allow, from: [{namespaces: [elsewhere]}]}]}"));
    mesh.wait_for("the refusal", |mesh| mesh.get(PATH).status == 403);
    assert!(told(&mesh, "a", "b").starts_with("it refuses the caller"));
    let before = calls(&mesh, "a", "b");
    for _ in 0..20 {
        assert_eq!(mesh.get(PATH).status, 403);
    }
    assert_eq!(calls(&mesh, "a", "b"), before);
}

#[test]
fn what_a_sidecar_has_to_do_is_named() {
    if !kernel_makes_channels() {
        return;
    }
    let cases =
        [("  rateLimits: [{name: few, requests: 1000, per: 1s}]\n", "rate limits"), ("  tracing: {}\n", "tracing")];
    let mut mesh = Mesh::start(&line(WHO));
    for (policy, what) in cases {
        mesh.write(&line(&format!("{policy}{WHO}")));
        mesh.wait_for(what, |mesh| told(mesh, "a", "b") == format!("its policies have {what}"));
        assert_eq!(mesh.get(PATH).status, 200);
    }
    mesh.write(&line(WHO).replace("  accessLog: {enabled: false}\n", ""));
    mesh.wait_for("the log", |mesh| told(mesh, "a", "b") == "the caller's policies have an access log");
    mesh.write(&line(WHO).replace("  direct: true\n", ""));
    mesh.wait_for("an ordinary chain", |mesh| told(mesh, "a", "b") == "the chain is not `direct`");
}

#[test]
fn a_function_that_dies_ends_its_calls_and_the_next_ones_find_another() {
    if !kernel_makes_channels() {
        return;
    }
    let mut mesh = Mesh::start(&line(WHO));
    wait_for_channels(&mut mesh);
    for _ in 0..3 {
        let before = calls(&mesh, "a", "b");
        let status = mesh.get("/call/a.test/call/b.test/crash").status;
        assert!([502, 503].contains(&status), "{status}");
        assert!(calls(&mesh, "a", "b") > before, "it was on a channel");
        wait_for_channels(&mut mesh);
    }
}

/// `LENO_HOSTILE_MILLISECONDS` sets the duration; the measurement uses a minute.
#[test]
fn a_hostile_function_disturbs_nobody_else() {
    if !kernel_makes_channels() {
        return;
    }
    let time = std::env::var("LENO_HOSTILE_MILLISECONDS").map_or(1500, |time| time.parse().unwrap());
    let documents = line(WHO)
        .replace("{name: web, to: [a]}", "{name: web, to: [a, evil]}, {name: evil}")
        .replace("  callees: [a]\n", "  callees: [a, evil]\n")
        + &member("evil", "")
        + &unlogged("evil", WHO);
    let mut mesh = Mesh::start(&documents);
    wait_for_channels(&mut mesh);
    mesh.wait_for("a channel to it", |mesh| {
        assert_eq!(mesh.get("/call/evil.test/x").status, 200);
        calls(mesh, "web", "evil") > 0
    });
    let begin = std::time::Instant::now();
    assert_eq!(mesh.get(&format!("/call/evil.test/hostile/{time}")).status, 200);
    let mut answered = 0;
    while begin.elapsed() < std::time::Duration::from_millis(time + 200) {
        assert_eq!(mesh.get(PATH).status, 200, "after {answered}");
        answered += 1;
    }
    assert!(answered > 10, "{answered} requests");
    let text = mesh.admin("/metrics").body;
    let sum = |name: &str| -> u64 {
        let of = |line: &str| line.strip_prefix(name)?.strip_prefix('{')?.rsplit(' ').next()?.parse::<u64>().ok();
        text.lines().filter_map(of).sum()
    };
    let violations = [sum("leno_chain_violations_total"), sum("leno_chain_channel_violations_total")];
    assert!(violations.iter().sum::<u64>() > 1000, "{violations:?}");
    // The node attributes violations to the function that caused them, and to no other.
    for callee in ["a", "b"] {
        let of_others = text.lines().filter(|line| {
            line.starts_with("leno_chain_channel_violations_total{")
                && line.contains(&format!("callee=\"test/{callee}\""))
        });
        assert!(of_others.clone().count() > 0 && of_others.into_iter().all(|line| line.ends_with(" 0")), "{text}");
    }
    // Another instance takes its place.
    mesh.wait_for("another one", |mesh| mesh.get("/call/evil.test/x").status == 200);
    assert_eq!(mesh.get(PATH).status, 200);
}
