import type { FunctionRow } from "../api/types";

/** The state of a function. A node, which knows only its own instances, does not name it. */
export function stateOf(row: FunctionRow): string {
  if (row.state) return row.state;
  if (row.external) return "external";
  if ((row.ready ?? 0) > (row.former ?? 0)) return "ready";
  if (row.failure) return "failing";
  return (row.desired ?? 0) > 0 ? "starting" : "idle";
}
