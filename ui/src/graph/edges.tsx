import type { GraphEdge } from "../api/types";
import { duration, percent, rate } from "../text/format";
import { edgeKey, type Layout } from "./layout";
import { healthOf } from "./selection";

interface Props {
  edges: readonly GraphEdge[];
  layout: Layout;
  window: number;
  selected: string | null;
  scale: number;
}

/** Above this number of edges, labels are drawn for those of the selected node only. */
const LABELLED = 60;

export function Edges({ edges, layout, selected }: Props) {
  return (
    <g aria-hidden="true">
      {edges.map((edge) => {
        const key = edgeKey(edge.source, edge.target);
        const place = layout.edges.get(key);
        if (!place) return null;
        const kind = edge.status === "active" ? healthOf(edge) : edge.status;
        const isFaint = selected !== null && edge.source !== selected && edge.target !== selected;
        const classes = ["edge", kind, edge.chain && "chain", isFaint && "faint"];
        return (
          <g key={key} class={classes.filter(Boolean).join(" ")}>
            {edge.chain && <path class="rail" d={place.path} />}
            <path class="line" d={place.path} stroke-width={thickness(edge)} marker-end={`url(#arrow-${kind})`} />
            {edge.status === "refused" && (
              <path
                class="cross"
                d="M-5-5 5 5M5-5-5 5"
                transform={`translate(${place.middle.x} ${place.middle.y - 14})`}
              />
            )}
          </g>
        );
      })}
    </g>
  );
}

export function EdgeLabels({ edges, layout, window, selected, scale }: Props) {
  if (scale < 0.45) return null;
  const labelled = edges.filter((edge) => {
    const isNear = edge.source === selected || edge.target === selected;
    return edge.rate > 0 && (isNear || (selected === null && edges.length <= LABELLED));
  });
  return (
    <g class="labels" aria-hidden="true">
      {labelled.map((edge) => {
        const key = edgeKey(edge.source, edge.target);
        const middle = layout.edges.get(key)?.middle;
        if (!middle) return null;
        const [first, second] = label(edge, window);
        return (
          <g key={key} transform={`translate(${middle.x} ${middle.y})`}>
            <Back lines={[first, second]} />
            {edge.authenticated && edge.status === "active" && <Lock x={-first.length * 3.2 - 13} />}
            <text y={second ? -3 : 4}>{first}</text>
            {second && (
              <text y="11" class="second">
                {second}
              </text>
            )}
          </g>
        );
      })}
    </g>
  );
}

function label(edge: GraphEdge, window: number): [string, string] {
  if (edge.status === "refused") return [`${rate(edge.rate, window)} refused`, ""];
  const isWhole = edge.success === 1;
  return [rate(edge.rate, window), `${isWhole ? "" : `${percent(edge.success)} · `}p99 ${duration(edge.p99)}`];
}

/** Hides the line behind a label. */
function Back({ lines }: { lines: [string, string] }) {
  const width = Math.max(...lines.map((line) => line.length)) * 6.2 + 6;
  const height = lines[1] ? 29 : 15;
  return <rect class="back" x={-width / 2} y={lines[1] ? -14 : -7} width={width} height={height} rx="4" />;
}

/** The caller is proven, by mutual TLS or by the node that hosts both. */
function Lock({ x }: { x: number }) {
  return <path class="lock" d="M1 5h7v5H1ZM2.5 5V3.5a2 2 0 0 1 4 0V5" transform={`translate(${x} -13)`} />;
}

function thickness(edge: GraphEdge): number {
  return edge.status === "active" ? Math.min(6, 1.5 + Math.log10(1 + edge.rate) * 1.3) : 1.5;
}
