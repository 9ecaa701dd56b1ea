// Which flows are shown, as `leno observe` filters them.

import type { Flow } from "../api/types";
import { isNamed, workload } from "../text/names";

export const VERDICTS = [
  ["", "all"],
  ["allow", "allowed"],
  ["deny", "denied"],
  ["error", "error"],
] as const;

export const KINDS = [
  ["", "all"],
  ["gateway", "gateway"],
  ["outbound", "outbound"],
  ["inbound", "inbound"],
  ["connection", "connection"],
  ["name", "name look-up"],
  ["system-call", "system call"],
] as const;

export interface Filter {
  verdict: string;
  kind: string;
  /** As caller or as callee: `name` or `namespace/name`. */
  function: string;
  /** With `*` at its end: a prefix. */
  path: string;
  port: string;
  /** A part of the rule's name. */
  rule: string;
  /** The called host, such as a destination that is no callee. */
  host: string;
}

export type Field = keyof Filter;
const FIELDS: readonly Field[] = ["verdict", "kind", "function", "path", "port", "rule", "host"];

export function filterOf(query: URLSearchParams): Filter {
  const entries = FIELDS.map((field) => [field, (query.get(field) ?? "").slice(0, 512)] as const);
  return Object.fromEntries(entries) as unknown as Filter;
}

/** The filter's part that the server applies. */
export function parameters({ host: _, port, ...filter }: Filter): Record<string, string> {
  return /^\d{1,5}$/.test(port) ? { ...filter, port } : filter;
}

export function matches(flow: Flow, filter: Filter): boolean {
  const { verdict, kind, path, port, rule, host } = filter;
  return (
    (!verdict || flow.verdict === verdict) &&
    (!kind || flow.kind === kind) &&
    (!path || isPath(flow.path ?? "", path)) &&
    (!port || flow.port === Number(port)) &&
    (!rule || (flow.rule ?? "").includes(rule)) &&
    (!host || flow.host.includes(host) || host.startsWith(`${flow.host}:`)) &&
    (!filter.function || concerns(flow, filter.function))
  );
}

function isPath(path: string, wanted: string): boolean {
  return wanted.endsWith("*") ? path.startsWith(wanted.slice(0, -1)) : path === wanted;
}

function concerns(flow: Flow, wanted: string): boolean {
  return isNamed(workload(flow.source), wanted) || (flow.target !== undefined && isNamed(flow.target, wanted));
}

/** Whether a text may be the ID of a request or of a trace. */
export function isRequestId(text: string): boolean {
  return /^[A-Za-z0-9_-][A-Za-z0-9._-]{0,255}$/.test(text);
}
