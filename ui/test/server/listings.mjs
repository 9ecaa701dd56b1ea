// Listings that are made up.
import { events, functions, NOW } from "./functions.mjs";

export function listings(graph, words = "") {
  return {
    functions: functions(graph),
    nodes: [
      {
        node: "one",
        state: "connected",
        last_seen: NOW(),
        version: "0.4.0",
        roles: ["gateway"],
        region: "eu",
        zone: "eu-1",
        hosted: 6,
        instances: 9,
        most_instances: 100,
        capped: [],
        cpu_millis: 4000,
        memory_bytes: 8 << 30,
        rejected: 0,
        refused: 0,
        certificate_expires: NOW() + 40_000,
        overdue: false,
      },
      {
        node: words || "two",
        state: "away",
        last_seen: NOW() - 200,
        version: "0.4.0",
        roles: [],
        region: "eu",
        zone: "eu-2",
        hosted: 2,
        instances: 2,
        most_instances: 100,
        capped: [],
        cpu_millis: 2000,
        memory_bytes: 1.5 * 2 ** 30,
        rejected: 1,
        refused: 0,
        certificate_expires: NOW() - 60,
        overdue: true,
      },
    ],
    events: [...events("demo/shop", words), nodeAway(words)],
    jobs: [
      {
        job: "demo/reindex",
        state: "succeeded",
        node: "one",
        attempt: 1,
        completions: "1/1",
        active: 0,
        failed: 0,
        start: NOW() - 700,
        end: NOW() - 640,
        exit_code: 0,
        reason: null,
      },
      {
        job: "demo/cleanup",
        state: "failed",
        node: "two",
        attempt: 3,
        completions: "0/1",
        active: 0,
        failed: 3,
        start: NOW() - 300,
        end: NOW() - 200,
        exit_code: 1,
        reason: words || "exit status 1",
      },
    ],
    alerts: alerts(words),
    externals: [
      {
        external: "demo/stripe",
        hosts: ["api.stripe.example"],
        addresses: [],
        ports: ["443 tls"],
        callers: ["demo/checkout"],
        connections: 2,
      },
    ],
  };
}

/** An event of a node, which is of no function. */
function nodeAway(words) {
  const reason = words || "its stream ended; no other node has a gateway";
  return { time: NOW() - 30, kind: "nodeAway", node: words || "two", reason };
}

export function alerts(words = "") {
  return [
    {
      severity: "critical",
      kind: "certificate",
      subject: "two",
      node: "two",
      text: words || "the certificate of node two has expired",
      fix: "start the node with a new join token",
      since: NOW() - 7300,
      at_least: true,
    },
    {
      severity: "warning",
      kind: "ejected",
      subject: "demo/checkout",
      function: "demo/checkout",
      text: "1 of 2 endpoints is ejected: 5 failures in a row",
      fix: "look at its output: leno logs demo/checkout",
    },
  ];
}

/** The latest changes; those before `after`: one more, and no others. */
export function changes(words = "", after = null) {
  const diff = ` spec:\n   authorization:\n     rules:\n     - name: read-only\n-      to: [{methods: [GET, POST], paths: ["/items"]}]\n+      to: [{methods: [GET], paths: ["/items", "/items/{id}"]}]\n${words}`;
  const first = {
    time: NOW() - 900_000,
    by: "token 8c1f (deployments)",
    revision: 3,
    changes: [{ what: "Function demo/first", action: "added" }],
  };
  if (after) return { rows: after === "0000000000000041-0a" ? [first] : [], missing: [] };
  const rows = [
    {
      time: NOW() - 90_000,
      by: "token 8c1f (deployments)",
      revision: 41,
      changes: [{ what: "Function demo/shop", action: "added" }],
    },
    {
      time: NOW() - 3000,
      by: words || "token 8c1f (deployments)",
      revision: 42,
      changes: [{ what: "Policy demo/shop", action: "changed", diff }],
      verdicts: { judged: 812, newly_denied: 4, newly_allowed: 0 },
    },
  ];
  return { rows, missing: [], after: "0000000000000041-0a" };
}

export function replay() {
  const verdict = (word, rule) => ({
    verdict: word,
    policy: word === "deny" ? "authorization" : null,
    rule,
    clause: "",
  });
  const example = {
    time: NOW() - 30,
    node: "one",
    requestId: "denied-1",
    direction: "gateway",
    caller: "192.0.2.10",
    callee: null,
    method: "DELETE",
    path: "/items/7",
  };
  return {
    functions: [
      {
        function: "demo/shop",
        judged: 812,
        newlyDenied: 0,
        newlyAllowed: 3,
        unjudged: [],
        skipped: 0,
        examples: [
          {
            ...example,
            before: verdict("deny", "shop/authorization/read-only"),
            after: verdict("allow", "shop/authorization/edit"),
          },
        ],
        leftOut: ["rateLimits"],
        missing: [],
      },
    ],
    hidden: 0,
  };
}
