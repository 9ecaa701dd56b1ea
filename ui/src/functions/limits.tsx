import type { LimitRow } from "../api/types";
import { State } from "../parts/badge";
import { Table } from "../parts/table";
import { Name, Text } from "../parts/text";
import { figure, relative } from "../text/format";

const KINDS: Record<string, string> = {
  rateLimit: "rate limit",
  queue: "queue",
  concurrency: "requests at a time",
  requests: "breaker: requests",
  pendingRequests: "breaker: waiting requests",
  connections: "breaker: connections",
  ejection: "ejected endpoint",
};

/** The use of limits, of circuit breakers, and ejected endpoints. */
export function Limits({ rows }: { rows: readonly LimitRow[] }) {
  return (
    <Table
      caption="Limits and circuit breakers"
      rows={rows}
      id={(row) => [row.node, row.kind, row.name, row.callee, row.key].join(" ")}
      empty="It has no limits."
      columns={[
        { name: "Kind", by: (row) => row.kind, cell: (row) => <Text most={40}>{KINDS[row.kind] ?? row.kind}</Text> },
        { name: "Limit", by: (row) => row.name, cell: (row) => <Subject row={row} /> },
        { name: "State", by: (row) => row.state, cell: (row) => <State>{row.state}</State> },
        {
          name: "Used",
          figures: true,
          by: (row) => (row.of ? (row.used ?? 0) / row.of : (row.used ?? 0)),
          cell: (row) => <Use row={row} />,
        },
        { name: "Free again", wide: true, cell: (row) => (row.until ? relative(row.until) : "–") },
        { name: "Node", wide: true, cell: (row) => <Text most={60}>{row.node ?? "–"}</Text> },
      ]}
    />
  );
}

function Subject({ row }: { row: LimitRow }) {
  return (
    <>
      {row.name && <Text most={100}>{row.name}</Text>}
      {row.callee && (
        <>
          {" to "}
          <Name linked>{row.callee}</Name>
        </>
      )}
      {row.key && (
        <>
          {" for "}
          <Text most={80}>{row.key}</Text>
        </>
      )}
      {row.detail && (
        <span class="note">
          {" "}
          <Text most={80}>{row.detail}</Text>
        </span>
      )}
    </>
  );
}

function Use({ row: { used, of } }: { row: LimitRow }) {
  if (used === null || used === undefined) return <>–</>;
  if (of === null || of === undefined) return <>{figure(used)}</>;
  return (
    <span class="use">
      {figure(used)} of {figure(of)}
      <svg viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true">
        <rect class="all" width="100" height="6" />
        <rect class={used >= of ? "full" : "part"} width={of > 0 ? Math.min(100, (used / of) * 100) : 0} height="6" />
      </svg>
    </span>
  );
}
