// Flows and hops that are made up.
import { ID } from "./functions.mjs";

let requests = 0;

export function flow(values = {}) {
  requests += 1;
  return {
    node: "one",
    time: new Date().toISOString(),
    kind: "gateway",
    source: "192.0.2.10",
    target: "demo/shop",
    verdict: "allow",
    rule: "shop/authorization/read-only",
    what: "GET",
    host: "shop.example",
    path: `/items/${requests % 40}`,
    port: 443,
    protocol: "http1",
    status: 200,
    time_us: 1800 + (requests % 7) * 300,
    request_id: `4bf92f35${String(requests).padStart(8, "0")}`,
    ...values,
  };
}

export function denied(values = {}) {
  return flow({
    verdict: "deny",
    what: "DELETE",
    status: 403,
    reason: "authorization: method is DELETE, not GET",
    request_id: "denied-1",
    ...values,
  });
}

/** The hops of a request: at the gateway, from the shop to its stock, and at the stock on another node. */
export function hops(id, words = "") {
  const began = Date.now() - 5000;
  const time = (us) =>
    new Date(began + Math.floor(us / 1000)).toISOString().replace("Z", `${String(us % 1000).padStart(3, "0")}Z`);
  const isDenied = id.startsWith("denied");
  const response = {
    status: isDenied ? 403 : 200,
    bytes_in: 0,
    bytes_out: 12,
    upgraded: false,
    ...(words ? { failure: words } : {}),
  };
  const judgement = (name, rule, values = {}) => ({
    function: name,
    verdict: "allow",
    rule,
    default: false,
    engine: "wasm",
    runs: 1,
    sandbox_us: 21.3,
    judge_us: 48.2,
    path_changed: false,
    ...values,
  });
  const trace = (span, parent) => ({
    trace_id: "0af7651916cd43dd8448eb211c80319c",
    span_id: span,
    ...(parent ? { parent_span_id: parent } : {}),
    sampled: true,
  });
  const refusal = { verdict: "deny", policy: "authorization", default: true, clause: "method is DELETE, not GET" };
  const gateway = {
    recorded_by: "one",
    request_id: id,
    hop: "gateway",
    time: time(0),
    asked: {
      method: isDenied ? "DELETE" : "GET",
      authority: "shop.example",
      path: words || "/items/7",
      protocol: "http1",
    },
    peer: { address: "192.0.2.10:51234" },
    target: "demo/shop",
    revision: "shop-00003",
    judgement: judgement("demo/shop", "shop/authorization/read-only", isDenied ? refusal : {}),
    quotas: isDenied ? [] : [{ limit: "shop/rateLimits/per-client", remaining: 37 }],
    trace: trace("b7ad6b7169203331"),
    ...(id.startsWith("refused") ? { refusals: refusals() } : {}),
    attempts: isDenied ? [] : [{ endpoint: "127.0.0.1:40001", result: "200", at_us: 4100 }],
    response,
    stages: isDenied
      ? { routed_us: 30, judged_us: 90, upstream_us: null, head_us: null, end_us: 130 }
      : { routed_us: 30, judged_us: 90, upstream_us: 140, head_us: 4100, end_us: 4300 },
  };
  if (isDenied) return [gateway];
  const call = {
    asked: { method: "GET", authority: "stock", path: "/items/7", protocol: "http1" },
    peer: { identity: ID("demo/shop"), address: "127.0.0.1:40001" },
    target: "demo/stock",
    request_id: id,
    response: { ...response, bytes_out: 1 },
  };
  return [
    {
      ...call,
      recorded_by: "two",
      hop: "inbound",
      time: time(1500),
      judgement: judgement("demo/stock", "stock/authorization/shop"),
      trace: trace("c7ad6b7169203333", "c7ad6b7169203332"),
      stages: { routed_us: 20, judged_us: 70, upstream_us: 90, head_us: 1800, end_us: 1850 },
    },
    gateway,
    {
      ...call,
      recorded_by: "one",
      hop: "outbound",
      time: time(800),
      judgement: judgement("demo/shop", "demo/shop/callees"),
      trace: trace("c7ad6b7169203332", "b7ad6b7169203331"),
      node: "two",
      stages: { routed_us: 25, judged_us: 60, upstream_us: 75, head_us: 2900, end_us: 2950 },
    },
  ];
}

/** What the mesh refused the shop while it handled a request. */
function refusals() {
  const rule = "demo/shop/callees";
  return [
    {
      kind: "name",
      what: "look-up",
      host: "ledger",
      rule,
      reason: "no callee of this function has this name, so it has no address",
      fix: "if demo/shop may call ledger, list the function or External in its `callees`",
      at_us: 900,
      count: 2,
      among: 1,
    },
    {
      kind: "connection",
      what: "connect",
      host: "192.0.2.7:5432",
      rule,
      reason: "no function that it may call has this address",
      at_us: 1900,
      count: 1,
      among: 3,
    },
  ];
}
