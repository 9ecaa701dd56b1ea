//! The table of connections that carry no HTTP: the caller, the called function and port, its
//! policy, and the verdict.

use super::Caller;

/// The ports that each function serves.
pub(crate) const PORTS: [u16; 2] = [DATABASE, CACHE];
const DATABASE: u16 = 5432;
const CACHE: u16 = 6379;

/// A function of the namespace `test`, its policy, and the connections to it.
pub(crate) struct Group {
    pub function: &'static str,
    /// The `spec` of a Policy that has the function's name.
    pub policy: &'static str,
    /// The connections. No two of them have the same caller and port.
    pub cases: Vec<Case>,
}

/// A connection and its verdict.
pub(crate) struct Case {
    pub caller: Caller,
    pub port: u16,
    pub allow: bool,
    /// The rule that decided or came nearest, without the policy's name before it.
    pub rule: &'static str,
    /// The reason of a refusal, or empty.
    pub clause: &'static str,
}

/// A connection of `test/web`.
fn web(port: u16) -> Case {
    Case { caller: Caller::Web, port, allow: true, rule: "", clause: "" }
}

/// A connection of `ops/audit`.
fn audit(port: u16) -> Case {
    Case { caller: Caller::Audit, ..web(port) }
}

impl Case {
    /// Expects that this rule allows it.
    fn allowed(self, rule: &'static str) -> Self {
        Self { allow: true, rule, ..self }
    }

    /// Expects that this rule refuses it, or comes nearest to allowing it.
    fn refused(self, rule: &'static str, clause: &'static str) -> Self {
        Self { allow: false, rule, clause, ..self }
    }
}

/// All groups. Each function has a separate policy, so that one mesh serves the whole table.
pub(crate) fn table() -> Vec<Group> {
    vec![
        Group {
            function: "port",
            policy: "authorization: {rules: [{name: cache, from: [{identities: [web]}], to: [{ports: [6379]}]}]}",
            cases: vec![
                web(CACHE).allowed("authorization/cache"),
                web(DATABASE).refused("authorization/cache", "to.ports: 5432 matches none of [6379]"),
                audit(CACHE).refused(
                    "authorization/cache",
                    r#"from.identities: "spiffe://test.example/ns/ops/sa/audit" matches none of ["spiffe://test.example/ns/test/sa/web"]"#,
                ),
            ],
        },
        Group {
            function: "not-port",
            policy: "authorization: {rules: [{name: others, to: [{notPorts: [5432]}]}]}",
            cases: vec![
                web(CACHE).allowed("authorization/others"),
                web(DATABASE).refused("authorization/others", "to.ports: 5432 is excluded by [5432]"),
            ],
        },
        Group {
            function: "namespace",
            policy: "authorization: {rules: [{name: ops, from: [{identities: [ops/*], namespaces: [ops]}]}]}",
            cases: vec![
                audit(CACHE).allowed("authorization/ops"),
                web(CACHE).refused(
                    "authorization/ops",
                    r#"from.identities: "spiffe://test.example/ns/test/sa/web" matches none of ["spiffe://test.example/ns/ops/sa/*"]"#,
                ),
            ],
        },
        Group {
            function: "not-identity",
            policy: r#"authorization: {rules: [{name: others, from: [{identities: ["*"], notIdentities: [web]}]}]}"#,
            cases: vec![
                audit(CACHE).allowed("authorization/others"),
                web(CACHE).refused(
                    "authorization/others",
                    r#"from.identities: "spiffe://test.example/ns/test/sa/web" is excluded by ["spiffe://test.example/ns/test/sa/web"]"#,
                ),
            ],
        },
        Group {
            function: "deny",
            policy: "authorization: {rules: [{name: all}, {name: closed, action: deny, to: [{ports: [5432]}]}, {name: writes, action: deny, to: [{methods: \
                     [PUT]}]}]}",
            cases: vec![
                // A connection has no method, so the rule about methods does not apply.
                web(CACHE).allowed("authorization/all"),
                web(DATABASE).refused("authorization/closed", "the deny rule matches connections to port 5432"),
            ],
        },
        Group {
            function: "deny-but",
            policy: "authorization: {rules: [{name: all}, {name: only-reads, action: deny, to: [{notMethods: [GET]}]}]}",
            cases: vec![web(CACHE).refused("authorization/only-reads", "the deny rule matches connections to port 6379")],
        },
        // Fields that only requests have are missing.
        Group {
            function: "method",
            policy: "authorization: {rules: [{name: reads, to: [{methods: [GET], ports: [6379]}]}]}",
            cases: vec![web(CACHE).refused("authorization/reads", r#"to.methods: it was not sent; expected one of ["GET"]"#)],
        },
        Group {
            function: "path",
            policy: "authorization: {rules: [{name: items, to: [{paths: [/items]}]}]}",
            cases: vec![web(CACHE).refused("authorization/items", r#"to.paths: it was not sent; expected one of ["/items"]"#)],
        },
        Group {
            function: "host",
            policy: "authorization: {rules: [{name: host, to: [{hosts: [host.test]}]}]}",
            cases: vec![web(CACHE).refused("authorization/host", r#"to.hosts: it was not sent; expected one of ["host.test"]"#)],
        },
        Group {
            function: "header",
            policy: "authorization: {rules: [{name: red, when: [{header: x-team, values: [red]}]}]}",
            cases: vec![web(CACHE).refused("authorization/red", r#"when.header `x-team`: its value matches none of ["red"]"#)],
        },
        Group {
            function: "address",
            policy: "authorization: {rules: [{name: near, from: [{addresses: [127.0.0.0/8]}]}]}",
            cases: vec![web(CACHE).allowed("authorization/near")],
        },
        Group {
            function: "no-rules",
            policy: "authorization: {rules: []}",
            cases: vec![web(CACHE).refused("", "no rule allows anything")],
        },
        Group {
            function: "served-ports",
            policy: "sidecar: {ports: [6379]}\n  authorization: {rules: [{name: all}]}",
            cases: vec![
                web(CACHE).allowed("authorization/all"),
                web(DATABASE).refused("sidecar", "ports: 5432 is none of [6379]"),
            ],
        },
        Group {
            function: "only-http2",
            policy: "sidecar: {protocols: [http2]}\n  authorization: {rules: [{name: all}]}",
            // The list of protocols applies to requests only.
            cases: vec![web(CACHE).allowed("authorization/all")],
        },
    ]
}
