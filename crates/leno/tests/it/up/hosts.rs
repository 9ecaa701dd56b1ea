//! The gateway, calls, and rules use one normal form of hosts.

use leno_testkit::mesh::{ALLOW_ALL, Mesh, echo_function, policy};

fn documents() -> String {
    let expose =
        r#"  expose: [{hosts: [Shop.Example., "*.Shops.Example.", bücher.example, "[2001:0DB8::A]"], path: /}]"#;
    let rules = r#"  authorization:
    rules:
    - name: some
      to: [{hosts: [SHOP.example, "*.shops.example.", BÜCHER.example., "2001:db8:0::a", "callee*"], notHosts: [Admin.Shops.Example., "*.ß.shops.example"]}]"#;
    echo_function("callee", expose)
        + &policy("some", "callee", rules)
        + &echo_function("caller", "  expose: [{hosts: [caller.example], path: /}]\n  callees: [callee]")
        + &policy("caller-open", "caller", ALLOW_ALL)
}

#[test]
fn gateway_and_rules_read_a_host_alike() {
    let mesh = Mesh::start(&documents());
    let hosts = [
        ("shop.example", 200),
        ("shop.example.", 200),
        ("SHOP.Example.:8080", 200),
        ("a.shops.example.", 200),
        ("A.B.shops.example.:1", 200),
        ("xn--bcher-kva.example", 200),
        ("XN--BCHER-KVA.Example.:80", 200),
        ("[2001:db8::a]", 200),
        ("[2001:DB8:0:0::A]:8080", 200),
        // No form of a host evades a rule.
        ("admin.shops.example", 403),
        ("ADMIN.shops.example.", 403),
        ("admin.shops.example.:443", 403),
        ("a.xn--zca.shops.example", 403),
        ("a.XN--ZCA.shops.example.:1", 403),
        // Servers differ in how they read these.
        ("shop.example..", 400),
        ("shop..example", 400),
        ("..shops.example", 400),
        (".", 400),
        ("[2001:db8::a].", 400),
        ("[2001:db8::a]..:80", 400),
        ("other.example.", 404),
        ("xn--bcher-kvb.example", 404),
        ("[2001:db8::b]", 404),
    ];
    for (host, status) in hosts {
        for protocol in ["--http1.1", "--http2-prior-knowledge"] {
            let answer = mesh.curl("/", &[protocol, "--header", &format!("host: {host}")]);
            assert_eq!(answer.status, status, "{host} {protocol}: {answer:?}");
            // The function sees the host as the client wrote it.
            if status == 200 {
                let seen = answer.json()["headers"]["host"].clone();
                assert_eq!(seen, serde_json::json!([host]), "{host} {protocol}");
            }
        }
    }
}

#[test]
fn calls_name_functions_by_any_form_of_their_hosts() {
    let mesh = Mesh::start(&documents());
    for (host, status) in [
        ("callee", 200),
        ("callee.", 200),
        ("Callee.Test.", 200),
        ("callee.test:80", 200),
        ("CALLEE.test.svc.cluster.local.", 200),
        ("callee..", 400),
        ("callee..test", 400),
    ] {
        let answer = mesh.curl(&format!("/call/{host}/"), &["--header", "host: caller.example"]);
        assert_eq!(answer.status, status, "{host}: {answer:?}");
    }
}
