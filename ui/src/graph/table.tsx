import type { GraphEdge, GraphNode } from "../api/types";
import { Badge, State, type Tone } from "../parts/badge";
import { Table } from "../parts/table";
import { Name, Text } from "../parts/text";
import { duration, percent, rate } from "../text/format";
import { shareInWords, STATUSES } from "./words";
import { edgeKey } from "./layout";

const TONES: Record<GraphEdge["status"], Tone> = { active: "good", unused: "plain", refused: "bad" };

export function EdgeTable({
  edges,
  window,
  caption = "Calls",
}: {
  edges: readonly GraphEdge[];
  window: number;
  caption?: string;
}) {
  return (
    <Table
      caption={caption}
      rows={edges}
      id={(edge) => edgeKey(edge.source, edge.target)}
      empty="No calls: nothing is allowed, and nothing was tried."
      columns={[
        { name: "Caller", by: (edge) => edge.source, cell: (edge) => <End name={edge.source} /> },
        { name: "Callee", by: (edge) => edge.target, cell: (edge) => <End name={edge.target} /> },
        {
          name: "Status",
          by: (edge) => edge.status,
          cell: (edge) => <Badge tone={TONES[edge.status]}>{STATUSES[edge.status]}</Badge>,
        },
        { name: "Requests", figures: true, by: (edge) => edge.rate, cell: (edge) => rate(edge.rate, window) },
        { name: "Success", figures: true, by: (edge) => edge.success, cell: (edge) => percent(edge.success) },
        {
          name: "Denied",
          figures: true,
          by: (edge) => edge.denied,
          cell: (edge) => (edge.denied > 0 ? rate(edge.denied, window) : "–"),
        },
        { name: "p50", figures: true, by: (edge) => edge.p50, cell: (edge) => duration(edge.p50) },
        { name: "p99", figures: true, by: (edge) => edge.p99, cell: (edge) => duration(edge.p99) },
        { name: "Caller proven", wide: true, cell: (edge) => (edge.authenticated ? "yes, by mTLS or its node" : "no") },
      ]}
    />
  );
}

function End({ name }: { name: string }) {
  return name.includes("/") ? <Name linked>{name}</Name> : <Text>{name}</Text>;
}

export function NodeTable({ nodes, window }: { nodes: readonly GraphNode[]; window: number }) {
  return (
    <Table
      caption="Functions, external services and other ends of calls"
      rows={nodes}
      id={(node) => node.name}
      columns={[
        {
          name: "Name",
          by: (node) => node.name,
          cell: (node) => (node.kind === "function" ? <Name linked>{node.name}</Name> : <Name>{node.name}</Name>),
        },
        { name: "Kind", by: (node) => node.kind, cell: (node) => node.kind },
        { name: "State", by: (node) => node.state, cell: (node) => (node.state ? <State>{node.state}</State> : "–") },
        { name: "Requests", figures: true, by: (node) => node.rate, cell: (node) => rate(node.rate, window) },
        { name: "Success", figures: true, by: (node) => node.success, cell: (node) => percent(node.success) },
        {
          name: "Instances",
          figures: true,
          by: (node) => node.ready,
          cell: (node) => (node.kind === "function" ? `${node.ready}/${node.desired}` : "–"),
        },
        {
          name: "Revisions",
          wide: true,
          cell: (node) => (node.shares.length > 0 ? node.shares.slice(0, 16).map(shareInWords).join("; ") : "–"),
        },
        {
          name: "Chain",
          wide: true,
          by: (node) => node.chain,
          cell: (node) => <Text most={80}>{node.chain || "–"}</Text>,
        },
        { name: "Nodes", wide: true, cell: (node) => <Text>{node.hosts.join(", ")}</Text> },
      ]}
    />
  );
}
