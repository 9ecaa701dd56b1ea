import { useEffect, useMemo } from "preact/hooks";
import { useResource } from "../api/resource";
import type { Graph, GraphNode, NodeRow, Rows } from "../api/types";
import { followGraph, graph } from "../mesh-state";
import { Choice, Input, Toggle } from "../parts/field";
import { Missing, View } from "../parts/page";
import { place, setQuery } from "../router";
import { period } from "../text/format";
import { Canvas } from "./canvas";
import { fitting, type Layout } from "./layout";
import { Legend } from "./legend";
import { Panel } from "./panel";
import { choose, type Grouping, groupOf } from "./selection";
import { EdgeTable, NodeTable } from "./table";

export const WINDOWS = [
  ["10", "last 10 s"],
  ["60", "last minute"],
  ["300", "last 5 min"],
  ["900", "last 15 min"],
  ["0", "since the start"],
] as const;

const GROUPINGS = [
  ["none", "nothing"],
  ["namespace", "namespace"],
  ["node", "node"],
  ["zone", "zone"],
  ["chain", "chain"],
] as const;

const SHOWINGS = [
  ["graph", "graph"],
  ["table", "table"],
] as const;

export function GraphView() {
  const { query } = place.value;
  const chosen = WINDOWS.find(([seconds]) => seconds === query.get("window"))?.[0] ?? "60";
  const grouping: Grouping = GROUPINGS.find(([name]) => name === query.get("group"))?.[0] ?? "none";
  const showing = query.get("as") === "table" ? "table" : "graph";
  const search = query.get("search") ?? "";
  const selected = query.get("node");
  useEffect(() => followGraph(Number(chosen)), [chosen]);
  const wanted = {
    search,
    focus: query.get("focus") ?? "",
    unused: query.get("unused") !== "no",
    refused: query.get("refused") !== "no",
  };
  const tools = (
    <div class="tools">
      <Choice label="Time" value={chosen} options={WINDOWS} onChange={(window) => setQuery({ window })} />
      <Choice
        label="Group by"
        value={grouping}
        options={GROUPINGS}
        onChange={(group) => setQuery({ group: group === "none" ? undefined : group })}
      />
      <Choice
        label="Show as"
        value={showing}
        options={SHOWINGS}
        onChange={(as) => setQuery({ as: as === "graph" ? undefined : as })}
      />
      <Input
        label="Find"
        value={search}
        placeholder="name"
        onInput={(text) => setQuery({ search: text || undefined })}
      />
      <Toggle label="unused" on={wanted.unused} onChange={(on) => setQuery({ unused: on ? undefined : "no" })} />
      <Toggle label="refused" on={wanted.refused} onChange={(on) => setQuery({ refused: on ? undefined : "no" })} />
      {wanted.focus && (
        <button type="button" onClick={() => setQuery({ focus: undefined })}>
          Show all
        </button>
      )}
    </div>
  );
  const whole = graph.value;
  return (
    <View title="Graph" tools={tools}>
      <Missing reasons={whole?.missing} />
      {whole && Math.abs(whole.window - Number(chosen)) > Number(chosen) / 10 && (
        <p class="note">
          Figures are of the {period(whole.window).replace("since the start", "time since the start")}: the dashboard
          has not looked for longer.
        </p>
      )}
      {whole === null ? (
        <p class="empty">Asking the mesh…</p>
      ) : (
        <Shown whole={whole} wanted={wanted} grouping={grouping} showing={showing} selected={selected} />
      )}
    </View>
  );
}

interface ShownProps {
  whole: Graph;
  wanted: Parameters<typeof choose>[1];
  grouping: Grouping;
  showing: "graph" | "table";
  selected: string | null;
}

function Shown({ whole, wanted, grouping, showing, selected }: ShownProps) {
  const { nodes, edges } = choose(whole, wanted);
  const zones = useResource<Rows<NodeRow>>(grouping === "zone" ? "api/nodes" : null).data;
  const placed = useLayout(nodes, edges, grouping, zones);
  if (whole.nodes.length === 0) {
    return (
      <p class="empty">
        No functions yet. <code>leno up FOLDER</code> starts those of a folder, <code>leno apply</code> hands documents
        to a control plane.
      </p>
    );
  }
  const select = (node: string | null) => setQuery({ node: node ?? undefined });
  const current = whole.nodes.find((node) => node.name === selected);
  return (
    <div class={current ? "graph with-panel" : "graph"}>
      {showing === "table" ? (
        <div class="tables">
          <EdgeTable edges={edges} window={whole.window} />
          <NodeTable nodes={nodes} window={whole.window} />
        </div>
      ) : (
        <div class="drawing card">
          <Canvas
            nodes={nodes}
            edges={edges}
            layout={placed}
            window={whole.window}
            selected={current?.name ?? null}
            onSelect={select}
          />
          <Legend chains={edges.some((edge) => edge.chain)} />
        </div>
      )}
      {current && (
        <Panel
          key={current.name}
          node={current}
          edges={whole.edges}
          window={whole.window}
          onClose={() => select(null)}
        />
      )}
    </div>
  );
}

/** The layout, made anew only if other things are to be placed: figures change every two seconds. */
function useLayout(
  nodes: readonly GraphNode[],
  edges: Graph["edges"],
  grouping: Grouping,
  zones?: Rows<NodeRow>,
): Layout {
  const zoneOf = new Map((zones?.rows ?? []).map((row) => [row.node, row.zone ?? "no zone"]));
  const groups = new Map(nodes.map((node) => [node.name, groupOf(node, grouping, zoneOf)]));
  const pairs = edges.map((edge) => [edge.source, edge.target] as const);
  const key = JSON.stringify([[...groups], pairs]);
  return useMemo(() => {
    performance.mark("layout");
    const topology = {
      nodes: nodes.map((node) => node.name),
      edges: pairs,
      group: (node: string) => groups.get(node) ?? null,
    };
    const placed = fitting(topology, { width: window.innerWidth - 250, height: window.innerHeight - 250 });
    performance.measure("layout", "layout");
    return placed;
  }, [key]);
}
