//! The table of requests: the caller, the called function, its policy, and the expected access log.

use super::case::{Group, Protocol, audit, web};

/// All groups. Each function has a separate policy, so that one mesh serves the whole table.
pub(crate) fn table() -> Vec<Group> {
    [callers(), operations(), paths(), conditions(), users(), precedence(), received(), sidecars()]
        .into_iter()
        .flatten()
        .collect()
}

/// `from`: the caller.
fn callers() -> Vec<Group> {
    vec![
        Group {
            function: "identity",
            policy: "authorization: {rules: [{name: one, from: [{identities: [web]}]}]}",
            cases: vec![
                web("GET /").allowed("authorization/one"),
                audit("GET /").missed(
                    "authorization/one",
                    r#"from.identities: "spiffe://test.example/ns/ops/sa/audit" matches none of ["spiffe://test.example/ns/test/sa/web"]"#,
                ),
                // A caller cannot claim another identity.
                audit("GET /")
                    .header("x-forwarded-client-cert", "URI=spiffe://test.example/ns/test/sa/web")
                    .missed(
                        "authorization/one",
                        r#"from.identities: "spiffe://test.example/ns/ops/sa/audit" matches none of ["spiffe://test.example/ns/test/sa/web"]"#,
                    ),
            ],
        },
        Group {
            function: "namespace-identity",
            policy: "authorization: {rules: [{name: ops, from: [{identities: [ops/*]}]}]}",
            cases: vec![
                audit("GET /").allowed("authorization/ops"),
                web("GET /").missed(
                    "authorization/ops",
                    r#"from.identities: "spiffe://test.example/ns/test/sa/web" matches none of ["spiffe://test.example/ns/ops/sa/*"]"#,
                ),
            ],
        },
        Group {
            function: "not-identity",
            policy: r#"authorization: {rules: [{name: others, from: [{identities: ["*"], notIdentities: [web]}]}]}"#,
            cases: vec![
                audit("GET /").allowed("authorization/others"),
                web("GET /").missed(
                    "authorization/others",
                    r#"from.identities: "spiffe://test.example/ns/test/sa/web" is excluded by ["spiffe://test.example/ns/test/sa/web"]"#,
                ),
            ],
        },
        Group {
            function: "namespace",
            policy: r#"authorization: {rules: [{name: team, from: [{namespaces: ["te*"]}]}]}"#,
            cases: vec![
                web("GET /").allowed("authorization/team"),
                audit("GET /").missed("authorization/team", r#"from.namespaces: "ops" matches none of ["te*"]"#),
            ],
        },
        Group {
            function: "not-namespace",
            policy: "authorization: {rules: [{name: others, from: [{notNamespaces: [test]}]}]}",
            cases: vec![
                audit("GET /").allowed("authorization/others"),
                web("GET /").missed("authorization/others", r#"from.namespaces: "test" is excluded by ["test"]"#),
            ],
        },
        Group {
            function: "address",
            policy: "authorization: {rules: [{name: near, from: [{addresses: [127.0.0.0/8]}]}]}",
            cases: vec![web("GET /").header("x-forwarded-for", "192.0.2.7").allowed("authorization/near")],
        },
        Group {
            function: "office",
            policy: "authorization: {rules: [{name: office, from: [{addresses: [127.0.0.9]}]}]}",
            // An instance can choose its source address.
            cases: vec![web("GET /").bind("127.0.0.9").missed(
                "authorization/office",
                "from.addresses: 127.0.0.1 matches none of [127.0.0.9/32]",
            )],
        },
    ]
}

/// `to`, without paths.
fn operations() -> Vec<Group> {
    vec![
        Group {
            function: "methods",
            policy: "authorization: {rules: [{name: reads, to: [{methods: [GET, HEAD]}]}]}",
            cases: vec![
                web("GET /").allowed("authorization/reads"),
                web("HEAD /").allowed("authorization/reads"),
                web("POST /").missed("authorization/reads", r#"to.methods: "POST" matches none of ["GET", "HEAD"]"#),
                web("get /").missed("authorization/reads", r#"to.methods: "get" matches none of ["GET", "HEAD"]"#),
            ],
        },
        Group {
            function: "not-methods",
            policy: "authorization: {rules: [{name: kept, to: [{notMethods: [DELETE]}]}]}",
            cases: vec![
                web("PUT /").allowed("authorization/kept"),
                web("DELETE /").missed("authorization/kept", r#"to.methods: "DELETE" is excluded by ["DELETE"]"#),
            ],
        },
        Group {
            function: "hosts",
            policy: r#"authorization: {rules: [{name: long, to: [{hosts: [hosts.test.svc, "*.cluster.local"]}]}]}"#,
            cases: vec![
                web("GET /").host("hosts.test.svc").allowed("authorization/long"),
                web("GET /").host("Hosts.Test.SVC.").allowed("authorization/long"),
                web("GET /").host("hosts.test.svc.cluster.local").allowed("authorization/long"),
                web("GET /").missed(
                    "authorization/long",
                    r#"to.hosts: "hosts.test" matches none of ["hosts.test.svc", "*.cluster.local"]"#,
                ),
            ],
        },
        Group {
            function: "not-hosts",
            policy: "authorization: {rules: [{name: short, to: [{notHosts: [not-hosts.test.svc]}]}]}",
            cases: vec![
                web("GET /").allowed("authorization/short"),
                web("GET /").host("not-hosts.test.svc").missed(
                    "authorization/short",
                    r#"to.hosts: "not-hosts.test.svc" is excluded by ["not-hosts.test.svc"]"#,
                ),
            ],
        },
        Group {
            function: "ports",
            policy: "authorization: {rules: [{name: alternative, to: [{ports: [8080]}]}]}",
            cases: vec![
                web("GET /").host("ports.test:8080").allowed("authorization/alternative"),
                web("GET /").missed("authorization/alternative", "to.ports: 80 matches none of [8080]"),
            ],
        },
        Group {
            function: "not-ports",
            policy: "authorization: {rules: [{name: others, to: [{notPorts: [9090]}]}]}",
            cases: vec![
                web("GET /").host("not-ports.test:80").allowed("authorization/others"),
                web("GET /")
                    .host("not-ports.test:9090")
                    .missed("authorization/others", "to.ports: 9090 is excluded by [9090]"),
            ],
        },
    ]
}

/// `to.paths`: the matched path is the forwarded path.
fn paths() -> Vec<Group> {
    vec![
        Group {
            function: "exact-path",
            policy: "authorization: {rules: [{name: exact, to: [{paths: [/orders]}]}]}",
            cases: vec![
                web("GET /orders").allowed("authorization/exact"),
                web("GET /orders?path=/admin").allowed("authorization/exact"),
                web("GET /x/..//%6frders").allowed("authorization/exact"),
                web("GET /orders/")
                    .missed("authorization/exact", r#"to.paths: "/orders/" matches none of ["/orders"]"#),
                web("GET /orders;v=1")
                    .missed("authorization/exact", r#"to.paths: "/orders;v=1" matches none of ["/orders"]"#),
            ],
        },
        Group {
            function: "prefix",
            policy: r#"authorization: {rules: [{name: below, to: [{paths: ["/static/*"]}]}]}"#,
            cases: vec![
                web("GET /static/a/b.js").allowed("authorization/below"),
                web("GET /static/a;v=1/b.js").allowed("authorization/below"),
                web("GET /static/%2e%2e/admin")
                    .missed("authorization/below", r#"to.paths: "/admin" matches none of ["/static/*"]"#),
            ],
        },
        Group {
            function: "suffix",
            policy: r#"authorization: {rules: [{name: style, to: [{paths: ["*.css"]}]}]}"#,
            cases: vec![
                web("GET /x/site.css").allowed("authorization/style"),
                web("GET /admin?.css").missed("authorization/style", r#"to.paths: "/admin" matches none of ["*.css"]"#),
                // A server that drops parameters would see `/admin`.
                web("GET /admin;x.css")
                    .missed("authorization/style", r#"to.paths: "/admin" matches none of ["*.css"]"#),
            ],
        },
        Group {
            function: "template",
            policy: r#"authorization: {rules: [{name: user, to: [{paths: ["/users/{id}", "/files/{**}"]}]}]}"#,
            cases: vec![
                web("GET /users/7").allowed("authorization/user"),
                web("GET /files/a/b/c").allowed("authorization/user"),
                web("GET /users/7/posts").missed(
                    "authorization/user",
                    r#"to.paths: "/users/7/posts" matches none of ["/users/{id}", "/files/{**}"]"#,
                ),
            ],
        },
        Group {
            function: "not-paths",
            policy: r#"authorization: {rules: [{name: open, to: [{notPaths: ["/secret/*"]}]}]}"#,
            cases: vec![
                web("GET /door").allowed("authorization/open"),
                web("GET /%73ecret/x")
                    .missed("authorization/open", r#"to.paths: "/secret/x" is excluded by ["/secret/*"]"#),
                web("GET /secret;x/y")
                    .missed("authorization/open", r#"to.paths: "/secret/y" is excluded by ["/secret/*"]"#),
            ],
        },
    ]
}

/// `when`: headers.
fn conditions() -> Vec<Group> {
    vec![
        Group {
            function: "header",
            policy: r#"authorization: {rules: [{name: red, when: [{header: x-team, values: [red, "blue-*"]}]}]}"#,
            cases: vec![
                web("GET /").header("x-team", "red").allowed("authorization/red"),
                web("GET /").header("X-Team", "green").header("x-team", "blue-7").allowed("authorization/red"),
                // The `connection` field makes the header hop-by-hop.
                web("GET /").header("x-team", "red").header("connection", "x-team").over(Protocol::Http1).missed(
                    "authorization/red",
                    r#"when.header `x-team`: its value matches none of ["red", "blue-*"]"#,
                ),
                web("GET /").header("x-team", "green").missed(
                    "authorization/red",
                    r#"when.header `x-team`: its value matches none of ["red", "blue-*"]"#,
                ),
                web("GET /").missed(
                    "authorization/red",
                    r#"when.header `x-team`: its value matches none of ["red", "blue-*"]"#,
                ),
            ],
        },
        Group {
            function: "cookie",
            policy: r#"authorization: {rules: [{name: both, when: [{header: cookie, values: ["a=1; b=2"]}]}]}"#,
            cases: vec![
                web("GET /").header("cookie", "a=1; b=2").allowed("authorization/both"),
                web("GET /").header("cookie", "a=1").header("cookie", "b=2").allowed("authorization/both"),
            ],
        },
        Group {
            function: "not-header",
            policy: "authorization: {rules: [{name: calm, when: [{header: x-mood, notValues: [angry]}]}]}",
            cases: vec![
                web("GET /").allowed("authorization/calm"),
                web("GET /")
                    .header("x-mood", "angry")
                    .missed("authorization/calm", r#"when.header `x-mood`: its value is excluded by ["angry"]"#),
            ],
        },
    ]
}

/// Users: the claims of their tokens.
fn users() -> Vec<Group> {
    vec![
        Group {
            function: "token",
            policy: "authentication: {issuers: [{name: login, issuer: \"https://login.example\", jwks: <keys>}]}\n  authorization: {rules: \
                     [{name: all}]}",
            cases: vec![
                web("GET /").token(r#"{"sub": "ann"}"#).allowed("authorization/all"),
                web("GET /").refused("authentication/login", "the request has no token").status(401),
                web("GET /").token(r#"{"sub": "ann", "exp": 1}"#).refused("authentication/login", "exp: the token has expired").status(401),
                web("GET /").token(r#"{"sub": "ann"}"#).forged().refused("authentication/login", "the token's signature is not valid").status(401),
            ],
        },
        Group {
            function: "principal",
            policy: "authentication: {issuers: [{name: login, issuer: \"https://login.example\", required: false, jwks: <keys>}]}\n  \
                     authorization: {rules: [{name: ann, from: [{requestPrincipals: [{issuer: \"https://login.example\", subject: ann}]}]}]}",
            cases: vec![
                web("GET /").token(r#"{"sub": "ann"}"#).allowed("authorization/ann"),
                web("GET /")
                    .token(r#"{"sub": "eve"}"#)
                    .missed("authorization/ann", r#"from.requestPrincipals: the token's matches none of ["https://login.example/ann"]"#),
                web("GET /").missed(
                    "authorization/ann",
                    r#"from.requestPrincipals: the request has no verified token with a subject; expected one of ["https://login.example/ann"]"#,
                ),
            ],
        },
        Group {
            function: "claim",
            policy: "authentication: {issuers: [{name: login, issuer: \"https://login.example\", required: false, jwks: <keys>}]}\n  \
                     authorization: {rules: [{name: admin, from: [{identities: [\"*\"]}], when: [{claim: role, values: [admin]}, {audience: true, values: [shop]}]}]}",
            cases: vec![
                audit("GET /").token(r#"{"role": ["user", "admin"], "aud": "shop"}"#).allowed("authorization/admin"),
                audit("GET /")
                    .token(r#"{"role": "user", "aud": "shop"}"#)
                    .missed("authorization/admin", r#"when.claim `role`: its value matches none of ["admin"]"#),
                audit("GET /")
                    .token(r#"{"role": "admin", "aud": "bank"}"#)
                    .missed("authorization/admin", r#"when.audience: its value matches none of ["shop"]"#),
            ],
        },
    ]
}

/// The precedence of rules, and the verdict if no rule matches.
fn precedence() -> Vec<Group> {
    vec![
        Group {
            function: "deny",
            policy: r#"authorization: {rules: [{name: all}, {name: admin, action: deny, to: [{paths: ["/admin/*"]}]}, {name: writes, action: deny, from: [{namespaces: [ops]}], to: [{notMethods: [GET]}]}]}"#,
            cases: vec![
                web("GET /").allowed("authorization/all"),
                web("GET /admin/x").refused("authorization/admin", r#"the deny rule matches "GET" "/admin/x""#),
                web("GET /admin;a=1/x").refused("authorization/admin", r#"the deny rule matches "GET" "/admin/x""#),
                web("POST /").allowed("authorization/all"),
                audit("GET /").allowed("authorization/all"),
                audit("POST /").refused("authorization/writes", r#"the deny rule matches "POST" "/""#),
            ],
        },
        Group {
            function: "several",
            policy: r#"authorization: {rules: [{name: list, to: [{methods: [GET], paths: [/items]}, {methods: [PUT], paths: ["/items/{id}"]}]}]}"#,
            cases: vec![
                web("PUT /items/7").allowed("authorization/list"),
                web("PUT /items").missed("authorization/list", r#"to.methods: "PUT" matches none of ["GET"]"#),
            ],
        },
        Group {
            function: "no-rules",
            policy: "authorization: {rules: []}",
            cases: vec![web("GET /").missed("", "no rule allows anything")],
        },
        Group {
            function: "callee",
            policy: "authorization: {rules: [{name: all}]}",
            cases: vec![
                web("GET /").allowed("authorization/all"),
                web("GET /")
                    .host("stranger.test")
                    .by_the_caller()
                    .missed("test/web/callees", "the host names no function that may be called: […"),
                // A function of the mesh that it does not list: itself.
                web("GET /")
                    .host("web.test")
                    .by_the_caller()
                    .missed("test/web/callees", "the host names no function that may be called: […"),
                web("GET /a%2fb")
                    .by_the_caller()
                    .refused("leno/request", "the path has an encoded separator (`%2F` or `%5C`)")
                    .status(400),
            ],
        },
    ]
}

/// Functions that get paths unchanged: their names begin with `raw-`.
fn received() -> Vec<Group> {
    vec![
        Group {
            function: "raw-all",
            policy: r#"authorization: {rules: [{name: all}, {name: admin, action: deny, to: [{paths: [/admin, "/admin/*"]}]}]}"#,
            cases: vec![
                web("GET /@scope%2fname").allowed("authorization/all"),
                web("GET /api/queues/%2F/name").allowed("authorization/all"),
                web("GET /bucket/a//b%2Bc%7E?x=%2F").allowed("authorization/all"),
                audit("GET /a/./b/..;v/c").allowed("authorization/all"),
                web("GET /a/..%2fadmin").refused("authorization/admin", r#"the deny rule matches "GET" "/admin""#),
                web("GET //admin").refused("authorization/admin", r#"the deny rule matches "GET" "/admin""#),
                audit("GET /%2561dmin;x/a").refused("authorization/admin", r#"the deny rule matches "GET" "/admin/a""#),
                web("GET /..%2fadmin")
                    .by_the_caller()
                    .refused("leno/request", "the path has a `..` that leads above the root")
                    .status(400),
            ],
        },
        Group {
            function: "raw-one",
            policy: r#"authorization: {rules: [{name: both, to: [{paths: ["/@acme%2Fpad", /@acme/pad]}]}]}"#,
            cases: vec![
                web("GET /@acme%2fpad").allowed("authorization/both"),
                web("GET /@acme//pad").missed("authorization/both", r#"to.paths: "/@acme//pad" matches none of …"#),
            ],
        },
    ]
}

/// `sidecar`: ports and protocols.
fn sidecars() -> Vec<Group> {
    vec![
        Group {
            function: "served-ports",
            policy: "sidecar: {ports: [80, 8443]}\n  authorization: {rules: [{name: all}]}",
            cases: vec![
                web("GET /").allowed("authorization/all"),
                web("GET /").host("served-ports.test:8443").allowed("authorization/all"),
                web("GET /").host("served-ports.test:8080").refused("sidecar", "ports: 8080 is none of [80, 8443]"),
            ],
        },
        Group {
            function: "http1-and-grpc",
            policy: "sidecar: {protocols: [http1, grpc]}\n  authorization: {rules: [{name: all}]}",
            cases: vec![
                web("GET /").over(Protocol::Http1).allowed("authorization/all"),
                web("GET /").over(Protocol::Http2).refused("sidecar", "protocols: http2 is none of [http1, grpc]"),
                web("POST /shop.Cart/Add").over(Protocol::Grpc).allowed("authorization/all"),
                web("GET /")
                    .over(Protocol::WebSocket)
                    .refused("sidecar", "protocols: websocket is none of [http1, grpc]"),
            ],
        },
        Group {
            function: "only-http2",
            policy: "sidecar: {protocols: [http2]}\n  authorization: {rules: [{name: all}]}",
            cases: vec![
                web("GET /").over(Protocol::Http2).allowed("authorization/all"),
                web("GET /").over(Protocol::Http1).refused("sidecar", "protocols: http1 is none of [http2]"),
                // Only sidecars send this header to one another.
                web("GET /")
                    .header("x-leno-protocol", "http2")
                    .over(Protocol::Http1)
                    .refused("sidecar", "protocols: http1 is none of [http2]"),
            ],
        },
    ]
}
