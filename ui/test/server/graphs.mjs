// Graphs that are made up: of a shop, of many functions, and of hostile names.

function traffic(rate, { failed = 0, denied = 0, p50 = 1.2, p99 = 8.5 } = {}) {
  return {
    rate,
    failed,
    denied,
    success: rate > 0 ? (rate - failed - denied) / rate : null,
    p50: rate > 0 ? p50 : null,
    p99: rate > 0 ? p99 : null,
  };
}

function node(name, values = {}) {
  return {
    name,
    kind: "function",
    state: "ready",
    failure: "",
    ready: 2,
    desired: 2,
    waiting: 0,
    hosts: ["one 1..5"],
    chain: "",
    shares: [],
    ...traffic(0),
    ...values,
  };
}

function edge(source, target, values) {
  return { source, target, status: "active", authenticated: source !== "gateway", chain: "", ...values };
}

/** A shop: every kind of node and edge. */
export function shop() {
  const nodes = [
    { ...node("gateway"), kind: "gateway", state: "", hosts: [] },
    node("demo/shop", {
      ...traffic(42.5, { denied: 1.5 }),
      chain: "demo/fast",
      shares: [
        { revision: "shop-00002 (stable)", percent: 90, served: 90 },
        { revision: "shop-00003 (next)", percent: 10, served: 10 },
      ],
    }),
    node("demo/stock", { ...traffic(40), hosts: ["one 1..5", "two 1..5"], chain: "demo/fast" }),
    node("demo/checkout", { ...traffic(6, { failed: 0.9, p99: 2400 }), waiting: 3 }),
    node("demo/mailer", { state: "idle", ready: 0, desired: 0 }),
    node("billing/invoices", {
      state: "failing",
      failure: "billing/invoices-00002/1 failed: exit status 1 after 0.2 s",
      ready: 0,
      desired: 1,
      hosts: ["two 1.."],
    }),
    { ...node("demo/stripe", traffic(5.8)), kind: "external", state: "", hosts: [] },
    { ...node("198.51.100.7:443", traffic(0.2, { denied: 0.2 })), kind: "unknown", state: "", hosts: [] },
  ];
  const edges = [
    edge("gateway", "demo/shop", traffic(42.5, { denied: 1.5 })),
    edge("demo/shop", "demo/stock", { ...traffic(40), chain: "demo/fast" }),
    edge("demo/shop", "demo/checkout", traffic(6, { failed: 0.9, p99: 2400 })),
    edge("demo/checkout", "demo/stripe", traffic(5.8, { p50: 80, p99: 320 })),
    edge("demo/checkout", "billing/invoices", { ...traffic(0), status: "unused" }),
    edge("demo/checkout", "demo/mailer", { ...traffic(0), status: "unused" }),
    edge("demo/mailer", "demo/stock", { ...traffic(0.4, { denied: 0.4 }), status: "refused" }),
    edge("demo/stock", "198.51.100.7:443", { ...traffic(0.2, { denied: 0.2 }), status: "refused" }),
  ];
  return { window: 60, nodes, edges, missing: [] };
}

/** A mesh of many functions in layers, as meshes are. */
export function large(count) {
  const nodes = [{ ...node("gateway"), kind: "gateway", state: "", hosts: [] }];
  const edges = [];
  let seed = 7;
  const random = (most) => (seed = (seed * 1103515245 + 12345) % 2147483648) % most;
  for (let number = 0; number < count; number += 1) {
    const name = `team-${number % 8}/service-${number}`;
    // Every other function is in a chain of up to seven.
    const chain = number % 2 === 0 ? `team-${number % 8}/chain-${number % 16}` : "";
    const shares = [90, 10].map((percent, index) => ({ revision: `service-${index}`, percent, served: percent }));
    nodes.push(node(name, { ...traffic(1 + random(50)), hosts: [`node-${number % 5} 1..5`], chain, shares }));
    if (number < 10) edges.push(edge("gateway", name, traffic(1 + random(40))));
    const callers = number < 10 ? 0 : 1 + random(2);
    for (let call = 0; call < callers; call += 1) {
      const caller = nodes[1 + random(number)].name;
      if (!edges.some((other) => other.source === caller && other.target === name))
        edges.push(edge(caller, name, traffic(random(30))));
    }
  }
  return { window: 60, nodes, edges, missing: [] };
}

/** Texts as a hostile function or client would choose them. */
export const HOSTILE = {
  markup: `<img src=x onerror="globalThis.struck=1"><script>globalThis.struck=1</script>`,
  bidi: "safe\u202Etxt.exe\u2066\u200B",
  long: "x".repeat(64 * 1024),
  link: "javascript:globalThis.struck=1",
  marks: `a${"\u0301".repeat(400)}`,
  controls: "a\u0000\u001b[31m\u0007b",
};

const HOSTILE_SHARES = [HOSTILE.markup, HOSTILE.bidi].map((revision) => ({ revision, percent: 50, served: 50 }));

export function hostile() {
  const names = Object.entries(HOSTILE).map(([name, text]) => [name, `demo/${text}`]);
  const nodes = names.map(([, name]) =>
    node(name, { failure: HOSTILE.markup, hosts: [HOSTILE.bidi], chain: HOSTILE.markup, shares: HOSTILE_SHARES }),
  );
  const edges = names.slice(1).map(([, name], index) => edge(names[index][1], name, traffic(index + 1)));
  edges.push(edge(names[0][1], HOSTILE.markup, { ...traffic(1, { denied: 1 }), status: "refused" }));
  nodes.push({ ...node(HOSTILE.markup), kind: "unknown", state: "", hosts: [] });
  return { window: 60, nodes, edges, missing: [HOSTILE.markup] };
}
