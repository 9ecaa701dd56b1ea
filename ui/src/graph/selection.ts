// The part of a graph that the reader asks for.

import type { Graph, GraphEdge, GraphNode } from "../api/types";
import { split } from "../text/names";

export type Grouping = "none" | "namespace" | "node" | "zone" | "chain";

export interface Wanted {
  /** Text in names. */
  search: string;
  /** Only this node and those within one call. */
  focus: string;
  unused: boolean;
  refused: boolean;
}

/** The nodes and edges that are shown. */
export function choose(graph: Graph, { search, focus, unused, refused }: Wanted): Pick<Graph, "nodes" | "edges"> {
  const needle = search.trim().toLowerCase();
  const isShown = (edge: GraphEdge) => (unused || edge.status !== "unused") && (refused || edge.status !== "refused");
  let edges = graph.edges.filter(isShown);
  let nodes: readonly GraphNode[] = graph.nodes;
  if (focus || needle) {
    const isWanted = (name: string) => (focus ? name === focus : name.toLowerCase().includes(needle));
    edges = edges.filter((edge) => isWanted(edge.source) || isWanted(edge.target));
    const ends = new Set(edges.flatMap((edge) => [edge.source, edge.target]));
    nodes = nodes.filter((node) => isWanted(node.name) || ends.has(node.name));
  } else if (!refused) {
    const ends = new Set(edges.flatMap((edge) => [edge.source, edge.target]));
    nodes = nodes.filter((node) => node.kind !== "unknown" || ends.has(node.name));
  }
  const known = new Set(nodes.map((node) => node.name));
  edges = edges.filter((edge) => known.has(edge.source) && known.has(edge.target));
  return { nodes: [...nodes], edges };
}

/** The mesh's node of `name 1..5`. */
export function host(text: string): string {
  return text.split(" ", 1)[0] ?? text;
}

/** The group of a node. */
export function groupOf(node: GraphNode, grouping: Grouping, zones: ReadonlyMap<string, string>): string | null {
  const all = (names: string[]) => [...new Set(names)].sort().join(", ") || null;
  switch (grouping) {
    case "none":
      return null;
    case "namespace":
      return node.kind === "gateway" || node.kind === "unknown" ? null : split(node.name)[0] || null;
    case "node":
      return all(node.hosts.map(host));
    case "chain":
      return node.chain || null;
    case "zone":
      return all(node.hosts.map((text) => zones.get(host(text)) ?? "no zone"));
  }
}

export type Health = "good" | "warning" | "bad" | "none";

/** How well the requests of an edge or to a node do. */
export function healthOf(traffic: Pick<GraphEdge, "rate" | "failed" | "success">): Health {
  if (traffic.rate <= 0) return "none";
  const broken = traffic.failed / traffic.rate;
  if (broken >= 0.05) return "bad";
  if (broken > 0.001) return "warning";
  return (traffic.success ?? 1) < 0.95 ? "warning" : "good";
}
