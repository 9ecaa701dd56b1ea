// Functions that are made up: what a test mesh of two functions does not have.

export const NOW = () => Date.now() / 1000;
export const ID = (name) => `spiffe://mesh/ns/${name.replace("/", "/sa/")}`;

export function functions(graph) {
  return graph.nodes
    .filter((one) => one.kind === "function")
    .map((one) => ({
      function: one.name,
      identity: ID(one.name),
      ready: one.ready,
      desired: one.desired,
      waiting: one.waiting,
      nodes: one.hosts,
      mode: "stable",
      reason: "2 requests at a time, 1 for each instance",
      failure: one.failure || null,
      engine: "wasm",
      protocol: "http1",
      callees: graph.edges.filter((other) => other.source === one.name).map((other) => other.target),
      exposed: one.name === "demo/shop" ? ["*/"] : [],
    }));
}

const DOCUMENT = `apiVersion: leno.dev/v1alpha1
kind: Function
metadata: {name: shop, namespace: demo}
spec:
  command: [python3, shop.py]
  expose: [{hosts: ["*"], path: /}]
  callees: [stock, checkout]
---
apiVersion: leno.dev/v1alpha1
kind: Policy
metadata: {name: shop, namespace: demo}
spec:
  functions: [shop]
  authorization:
    rules:
    - name: read-only
      to: [{methods: [GET], paths: ["/items", "/items/{id}"]}]
    - name: staff
      from: [{claims: {role: staff}}]
  rateLimits:
  - {name: per-client, requests: 100, per: 1m, key: [address]}
`;

export function details(graph, name, words = "") {
  const row = functions(graph).find((one) => one.function === name);
  if (!row) return null;
  const created = NOW() - 86_400;
  return {
    function: row,
    instances: [
      {
        instance: `${name}-00003/1`,
        function: name,
        state: "ready",
        reason: null,
        address: "127.0.0.1:40001",
        pid: 4711,
        isolation: "jail",
        restarts: 0,
        node: "one",
      },
      {
        instance: `${name}-00003/2`,
        function: name,
        state: "starting",
        reason: words || null,
        address: "127.0.0.1:40002",
        pid: 4712,
        isolation: "jail",
        restarts: 2,
        node: "two",
      },
    ],
    revisions: [
      {
        revision: `${name.split("/")[1].slice(0, 40)}-00002`,
        declared: "stable",
        function: name,
        percent: 90,
        tags: [],
        created,
        requests: 900,
        failures: 1,
        slow: 4,
        failed: null,
        paused: false,
      },
      {
        revision: `${name.split("/")[1].slice(0, 40)}-00003`,
        declared: "next",
        function: name,
        percent: 10,
        tags: [],
        created: created + 80_000,
        requests: 100,
        failures: 0,
        slow: 0,
        step: "1 of 4",
        failed: null,
        paused: false,
      },
    ],
    policies: {
      function: name,
      identity: ID(name),
      since: Math.floor(created),
      callers: ["demo/mailer"],
      hidden_callers: 1,
      inbound: [
        {
          policy: "authorization",
          rules: [
            {
              name: "shop/authorization/read-only",
              action: "allow",
              clauses: ["method GET", "path /items or /items/{id}", ...(words ? [words] : [])],
              hits: { allow: 12_345, deny: 42 },
            },
            {
              name: "shop/authorization/staff",
              action: "allow",
              clauses: ["claim role = staff"],
              without_effect: "it is about users, and no policy of the function authenticates any",
              hits: {},
            },
            {
              name: "shop/authorization/no-bots",
              action: "deny",
              audited: true,
              clauses: ["header user-agent contains bot"],
              hits: { audit_deny: 7 },
            },
          ],
          otherwise: "a request that no rule allows is refused with 403",
        },
        {
          policy: "rateLimits",
          rules: [
            {
              name: "shop/rateLimits/per-client",
              action: "limit",
              clauses: ["100 requests per 1 min, by address"],
              hits: { deny: 3 },
            },
          ],
        },
      ],
      outbound: [
        {
          policy: "callees",
          rules: [
            {
              name: "demo/shop/callees",
              action: "allow",
              clauses: ["demo/stock", "demo/checkout"],
              hits: { allow: 11_000 },
            },
          ],
          otherwise: "a call to any other function or host is refused with 403",
        },
      ],
      gateway: [{ policy: "routes", rules: [{ name, action: "route", clauses: ["hosts *, path /"] }] }],
      missing: [],
    },
    limits: [
      {
        function: name,
        kind: "rateLimit",
        name: "shop/rateLimits/per-client",
        key: words || "address 192.0.2.10",
        used: 100,
        of: 100,
        state: "exhausted",
        detail: "each 1m, 12 counters",
        until: NOW() + 30,
      },
      { function: name, kind: "queue", name: "", used: 3, of: 100, state: "used" },
      {
        function: name,
        kind: "requests",
        name: "stock/circuitBreaker",
        callee: "demo/stock",
        used: 0,
        of: 64,
        state: "free",
      },
      {
        function: name,
        kind: "ejection",
        name: "stock/circuitBreaker",
        callee: "demo/stock",
        key: "127.0.0.1:40003",
        used: 2,
        of: null,
        state: "ejected",
        since: NOW() - 10,
        until: NOW() + 50,
      },
    ],
    certificate: { identity: ID(name), not_after: NOW() + 40_000, renew_at: NOW() + 20_000, node: "one" },
    document: name === "demo/shop" ? DOCUMENT : words || null,
    events: events(name, words),
    missing: [],
  };
}

export function events(name = "demo/shop", words = "") {
  return [
    {
      time: NOW() - 4000,
      kind: "scale",
      function: name,
      revision: null,
      from: 0,
      to: 1,
      mode: "stable",
      reason: "a request waits",
      node: "one",
    },
    {
      time: NOW() - 1800,
      kind: "rollout",
      function: name,
      revision: "shop-00003",
      from: 0,
      to: 10,
      reason: words || "step 1 of 4",
    },
    {
      time: NOW() - 60,
      kind: "failed",
      function: "billing/invoices",
      revision: null,
      instance: "billing/invoices-00002/1",
      reason: "billing/invoices-00002/1 failed: exit status 1 after 0.2 s",
      node: "two",
    },
  ];
}
