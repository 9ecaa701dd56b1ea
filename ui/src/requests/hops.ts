// The hops of one request: in order, and both sides of each call.

import type { Hop, RefusedAttempt } from "../api/types";
import { workload } from "../text/names";

/** One call, by the sidecar of its caller (or a gateway), and by that of its callee. */
export interface Call {
  caller: string;
  callee: string;
  sides: Hop[];
}

export interface Stage {
  name: string;
  /** Microseconds since the start of the request's first hop. */
  from: number;
  to: number;
}

export function callerOf(hop: Hop): string {
  return hop.peer.identity ? workload(hop.peer.identity) : hop.peer.address;
}

export function calleeOf(hop: Hop): string {
  return hop.target ?? hop.asked.authority;
}

/** Microseconds since 1970, of an RFC 3339 time with up to nine digits behind the point. */
export function microsOf(time: string): number {
  const millis = Date.parse(time);
  if (Number.isNaN(millis)) return 0;
  const fraction = /\.(\d+)/.exec(time)?.[1] ?? "";
  return Math.floor(millis / 1000) * 1e6 + Number(fraction.padEnd(6, "0").slice(0, 6));
}

/** By the start; a caller before its callee. */
export function inOrder(hops: readonly Hop[]): Hop[] {
  const rank = { gateway: 0, outbound: 1, inbound: 2 };
  return [...hops].sort((one, other) => microsOf(one.time) - microsOf(other.time) || rank[one.hop] - rank[other.hop]);
}

/** Pairs the sides of each call. */
export function calls(hops: readonly Hop[]): Call[] {
  const found: Call[] = [];
  for (const hop of inOrder(hops)) {
    const [caller, callee] = [callerOf(hop), calleeOf(hop)];
    const other = found.find(({ sides: [first, second] }) => first !== undefined && !second && belongs(first, hop));
    if (other) other.sides.push(hop);
    else found.push({ caller, callee, sides: [hop] });
  }
  return found;
}

/** Whether an inbound hop is the other side of an earlier hop. */
function belongs(first: Hop, hop: Hop): boolean {
  if (hop.hop !== "inbound" || first.hop === "inbound" || first.target !== hop.target) return false;
  if (first.trace && hop.trace?.parent_span_id) return hop.trace.parent_span_id === first.trace.span_id;
  return first.hop === "gateway" || callerOf(first) === callerOf(hop);
}

/** The stages of a hop; `begin`: when the request's first hop began, in microseconds since 1970. */
export function stages(hop: Hop, begin: number): Stage[] {
  const start = Math.max(0, microsOf(hop.time) - begin);
  const { routed_us, judged_us, upstream_us, head_us, end_us } = hop.stages;
  const marks: [string, number | null][] = [
    ["routing", routed_us],
    ["judgement", judged_us],
    ["an instance", upstream_us],
    ["waiting for it", head_us],
    ["the response", end_us],
  ];
  const found: Stage[] = [];
  let last = 0;
  for (const [name, mark] of marks) {
    if (mark === null || mark === undefined || mark < last) continue;
    found.push({ name, from: start + last, to: start + mark });
    last = mark;
  }
  return found;
}

/** The request as a whole: the first refusal or fault decides. */
export function outcome(hops: readonly Hop[]): string {
  const verdicts = inOrder(hops).map(verdictOf);
  return verdicts.find((verdict) => verdict !== "allow") ?? "allow";
}

export function verdictOf(hop: Hop): string {
  const { status } = hop.response;
  return hop.judgement?.verdict ?? (status >= 400 && status < 500 ? "deny" : "error");
}

/** The hop that decided: the first without an allowance, or else the last. */
export function deciding(hops: readonly Hop[]): Hop | undefined {
  const ordered = inOrder(hops);
  return ordered.find((hop) => hop.judgement?.verdict !== "allow") ?? ordered.at(-1);
}

/** A refused attempt of an instance, after its name. */
export function attemptWords({ kind, what, host, target }: RefusedAttempt): string {
  if (kind === "name") return `looked up ${host}`;
  if (kind === "connection") return `tried to connect to ${target ? `${target} at ${host}` : host}`;
  return `made the system call ${what} (${host})`;
}
