// The JSON of the server's answers. The Rust types are named at each.

/** Rows of several nodes, and the nodes that did not answer. */
export interface Rows<T> {
  rows: T[];
  missing: string[];
}

export interface MeshInfo {
  mode: "up" | "node" | "control";
  name: string;
  release: string;
  /** `null`: all namespaces. */
  namespaces: string[] | null;
  role: string;
  /** Whether the session can be ended by hand. */
  sign_out?: boolean;
  features: { replay?: boolean; changes?: boolean };
}

/** `dashboard::graph::Traffic`: figures a second, and durations in milliseconds. */
export interface Traffic {
  rate: number;
  failed: number;
  denied: number;
  success: number | null;
  p50: number | null;
  p99: number | null;
}

export type NodeKind = "gateway" | "function" | "external" | "unknown";
export type EdgeStatus = "active" | "unused" | "refused";

/** `dashboard::graph::Node`. */
export interface GraphNode extends Traffic {
  name: string;
  kind: NodeKind;
  state: string;
  failure: string;
  ready: number;
  desired: number;
  waiting: number;
  hosts: string[];
  /** `namespace/name`; empty: none. */
  chain: string;
  /** Empty: one revision has all requests. */
  shares: RevisionShare[];
}

/** `dashboard::mesh::RevisionShare`: percentages that a revision is to get, and that it serves. */
export interface RevisionShare {
  revision: string;
  percent: number;
  served: number;
}

/** `dashboard::graph::Edge`. */
export interface GraphEdge extends Traffic {
  source: string;
  target: string;
  status: EdgeStatus;
  authenticated: boolean;
  /** The chain in whose shared memory the calls pass; empty: none. */
  chain: string;
}

/** `dashboard::graph::Graph`. `window` 0: counts since the nodes started. */
export interface Graph {
  window: number;
  nodes: GraphNode[];
  edges: GraphEdge[];
  missing: string[];
}

/** A row of `/functions` of a node, or of `/v1/functions`. */
export interface FunctionRow {
  function: string;
  state?: string;
  reason?: string | null;
  failure?: string | null;
  mode?: string | null;
  ready?: number;
  /** Those among them that are of a former revision; of a node. */
  former?: number;
  desired?: number;
  starting?: number;
  waiting?: number;
  instances?: number | string | null;
  revision?: string;
  nodes?: string[] | null;
  identity?: string;
  callees?: string[];
  exposed?: boolean | string[];
  external?: boolean;
  engine?: string | null;
  protocol?: string;
  audited?: boolean | string[];
  unenforced_limits?: string | null;
}

export interface InstanceRow {
  node?: string;
  instance: string | null;
  function: string;
  state: string;
  reason?: string | null;
  address?: string;
  pid?: number | null;
  isolation?: string;
  restarts?: number;
}

export interface RevisionRow {
  revision: string;
  declared?: string | null;
  function: string;
  percent?: number | null;
  /** The percentage of requests that its instances serve. */
  served?: number | null;
  /** Why it does not serve its share. */
  problem?: string | null;
  tags?: string[];
  headers?: unknown;
  step?: string | null;
  paused?: boolean;
  created?: number;
  requests?: number | null;
  failures?: number | null;
  slow?: number | null;
  failed?: string | null;
  image?: string | null;
  digest?: string | null;
}

export interface EventRow {
  time: number;
  kind: string;
  /** Nothing: the event is of a node. */
  function?: string;
  node?: string;
  revision?: string | null;
  instance?: string;
  from?: number | string | null;
  to?: number | string | null;
  mode?: string;
  reason?: string | null;
}

export interface IdentityRow {
  node?: string;
  identity: string;
  not_after: number;
  renew_at?: number;
  reason?: string | null;
}

/** `telemetry::flows::Flow`. */
export interface Flow {
  node?: string;
  time: string;
  kind: string;
  source: string;
  target?: string;
  verdict: "allow" | "deny" | "error";
  rule?: string;
  what: string;
  host: string;
  path?: string;
  port?: number;
  protocol?: string;
  status?: number;
  sent?: number;
  received?: number;
  time_us?: number;
  reason?: string;
  audit?: string;
  request_id?: string;
}

/** `telemetry::ring::Explanation`: one hop of a request. */
export interface Hop {
  recorded_by?: string;
  request_id: string;
  hop: "gateway" | "outbound" | "inbound";
  time: string;
  asked: { method: string; authority: string; path: string; protocol: string };
  peer: { identity?: string; address: string };
  route?: {
    name: string;
    rule: string;
    matched: string;
    backend?: string;
    authority?: string;
    path?: string;
    copy?: boolean;
  };
  target?: string;
  revision?: string;
  judgement?: Judgement;
  signatures?: { key: string; algorithm: string; result: string }[];
  quotas?: { limit: string; remaining: number | null; shared?: boolean }[];
  authorizers?: { name: string; result: string; remembered: boolean; asked_us: number }[];
  extensions?: { name: string; phase: string; result: string; run_us: number }[];
  request_edits?: string[];
  response_edits?: string[];
  trace?: { trace_id: string; span_id: string; parent_span_id?: string; sampled: boolean };
  attempts?: { endpoint?: string; result: string; at_us: number }[];
  node?: string;
  refusals?: RefusedAttempt[];
  response: {
    status: number;
    grpc_status?: number;
    flag?: string;
    failure?: string;
    bytes_in: number;
    bytes_out: number;
    upgraded: boolean;
  };
  stages: {
    routed_us: number | null;
    judged_us: number | null;
    upstream_us: number | null;
    head_us: number | null;
    end_us: number;
  };
}

/** `telemetry::ring::RefusedAttempt`: a refusal of the callee's instance while it handled the request. */
export interface RefusedAttempt {
  kind: string;
  what: string;
  host: string;
  target?: string;
  rule?: string;
  reason: string;
  fix?: string;
  at_us: number;
  count: number;
  /** Requests that the instance was handling. 1: the attempt belongs to this one. */
  among: number;
}

export interface Judgement {
  function: string;
  verdict: string;
  policy?: string;
  rule: string;
  default: boolean;
  clause?: string;
  audit?: { verdict: string; rule: string; clause?: string };
  principal?: string;
  engine?: string;
  remembered?: boolean;
  runs: number;
  sandbox_us: number;
  judge_us: number;
  path_changed: boolean;
  as_received?: boolean;
  readings?: string[];
}

export interface LogLine {
  node?: string;
  instance: number;
  time: number;
  stream: string;
  text: string;
}

/** `api::control::Replay`. */
export interface Replay {
  functions: FunctionReplay[];
  hidden: number;
}

export interface FunctionReplay {
  function: string;
  judged: number;
  newlyDenied: number;
  newlyAllowed: number;
  unjudged: { reason: string; requests: number }[];
  skipped: number;
  examples: ReplayExample[];
  leftOut: string[];
  missing: string[];
}

export interface ReplayExample {
  time: number;
  node: string;
  requestId: string;
  direction: string;
  caller: string;
  callee: string | null;
  method: string;
  path: string;
  before: ReplayVerdict;
  after: ReplayVerdict;
}

export interface ReplayVerdict {
  verdict: string;
  policy: string | null;
  rule: string;
  clause: string;
}

/** `api::alerts::Alert`: a condition that needs attention, and the fix. */
export interface AlertRow {
  severity: string;
  kind: string;
  /** A function, a node, a certificate. */
  subject: string;
  function?: string;
  node?: string;
  text: string;
  fix: string;
  /** When it began, in seconds since 1970. */
  since?: number;
  /** It may have begun before. */
  at_least?: boolean;
}

/** `api::policies::PolicyRule`. */
export interface PolicyRule {
  name: string;
  action: string;
  clauses?: string[];
  audited?: boolean;
  without_effect?: string;
  hits?: Record<string, number>;
}

export interface PolicySection {
  policy: string;
  rules: PolicyRule[];
  otherwise?: string;
}

/** `api::policies::FunctionPolicies`. */
export interface FunctionPolicies {
  function: string;
  identity: string;
  since?: number;
  callers: string[];
  hidden_callers?: number;
  inbound: PolicySection[];
  outbound: PolicySection[];
  gateway: PolicySection[];
  missing?: string[];
}

/** A function with all that is known of it. A part without an answer is `null`; `missing` has the reason. */
export interface FunctionAnswer {
  function: FunctionRow | null;
  instances: InstanceRow[] | null;
  revisions: RevisionRow[] | null;
  policies: FunctionPolicies | FunctionPolicies[] | null;
  limits: LimitRow[] | null;
  certificate: IdentityRow | null;
  document: string | null;
  events: EventRow[] | null;
  missing?: string[];
}

/** `api::limits::LimitUse`: the use of a limit, of a circuit breaker, or an ejected endpoint. */
export interface LimitRow {
  node?: string;
  function: string;
  kind: string;
  name: string;
  callee?: string;
  key?: string;
  /** Nothing: the callee belongs to a namespace that the session may not read. */
  used: number | null;
  of: number | null;
  state: string;
  detail?: string;
  since?: number;
  until?: number;
}

export interface NodeRow {
  node: string;
  state: string;
  /** When its stream was open last, in seconds since 1970. */
  last_seen?: number | null;
  version?: string | null;
  roles?: string[];
  inbound?: string | null;
  region?: string | null;
  zone?: string | null;
  hosted?: number | null;
  instances?: number | null;
  most_instances?: number | null;
  capped?: string[];
  cpu_millis?: number | null;
  memory_bytes?: number | null;
  rejected?: number | null;
  refused?: number | null;
  certificate_expires?: number | null;
  overdue?: boolean | number | null;
}

export interface JobRow {
  job: string;
  state: string;
  node?: string | null;
  attempt?: number;
  completions?: string;
  active?: number;
  failed?: number;
  start?: number | null;
  end?: number | null;
  exit_code?: number | null;
  reason?: string | null;
}

export interface ExternalRow {
  external: string;
  hosts: string[];
  addresses: string[];
  ports: string[];
  callers: string[];
  connections: number;
}

/** Rows of which there may be more. */
export interface Page<T> extends Rows<T> {
  /** Where the next answer begins; nothing: there are no more. */
  after?: string;
}

/** `api::changes::ChangeRecord`: who applied what. */
export interface ChangeRow {
  time: number;
  by: string;
  revision: number;
  changes: ChangedDocument[];
  /** Recorded requests that the dry run before it decided differently. */
  verdicts?: { judged: number; newly_denied: number; newly_allowed: number };
}

export interface ChangedDocument {
  what: string;
  action: string;
  /** The unified difference of the texts, where it is kept. */
  diff?: string;
}
