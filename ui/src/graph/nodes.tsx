import type { GraphNode } from "../api/types";
import { visible } from "../text/safe";
import { type Layout, NODE } from "./layout";
import { healthOf } from "./selection";
import { drawn, nodeLabel, shareInWords } from "./words";

export function Groups({ groups }: Pick<Layout, "groups">) {
  return (
    <>
      {groups.map(({ name, box }) => (
        <g key={name} class="group" aria-hidden="true">
          <rect x={box.x} y={box.y} width={box.width} height={box.height} rx="12" />
          <text x={box.x + 14} y={box.y + 20}>
            {visible(name, 40)}
          </text>
        </g>
      ))}
    </>
  );
}

interface Props {
  nodes: readonly GraphNode[];
  layout: Layout;
  window: number;
  selected: string | null;
  near: ReadonlySet<string>;
  stop: string | null;
  onSelect: (node: string | null) => void;
  onFocus: (node: string) => void;
}

export function Nodes({ nodes, layout, window, selected, near, stop, onSelect, onFocus }: Props) {
  return (
    <>
      {nodes.map((node) => {
        const place = layout.nodes.get(node.name);
        if (!place) return null;
        const isSelected = node.name === selected;
        const isFaint = selected !== null && !isSelected && !near.has(node.name);
        const classes = ["node", node.kind, toneOf(node), isSelected && "selected", isFaint && "faint"];
        return (
          <g
            key={node.name}
            class={classes.filter(Boolean).join(" ")}
            transform={`translate(${place.x - NODE.width / 2} ${place.y - NODE.height / 2})`}
            onClick={() => onSelect(node.name)}
          >
            <rect
              class="box"
              width={NODE.width}
              height={NODE.height}
              rx="9"
              role="button"
              tabIndex={node.name === stop ? 0 : -1}
              aria-label={nodeLabel(node, window)}
              aria-pressed={isSelected}
              data-name={node.name}
              onFocus={() => onFocus(node.name)}
            />
            <Body node={node} window={window} />
          </g>
        );
      })}
    </>
  );
}

function toneOf(node: GraphNode): string {
  if (["failed", "failing", "unplaced"].includes(node.state)) return "bad";
  const health = healthOf(node);
  if (health === "good" && node.state === "starting") return "warning";
  return health;
}

/** Signs of kinds, in a box of 16. */
const SIGNS: Record<GraphNode["kind"], string> = {
  gateway: "M2 8h9M8 4l4 4-4 4M14 2v12",
  function: "M5 3 1.5 8 5 13M11 3l3.5 5L11 13",
  external: "M8 1.5a6.5 6.5 0 1 0 .01 0M1.5 8h13M8 1.5c-4 4-4 9 0 13M8 1.5c4 4 4 9 0 13",
  unknown: "M5.5 6a2.5 2.5 0 1 1 3.5 2.3c-.8.4-1 .9-1 1.7M8 12.5v.3",
};

function Body({ node, window }: { node: GraphNode; window: number }) {
  const { namespace, name, figures } = drawn(node, window);
  return (
    <>
      <rect class="edge-of-box" width="4" height={NODE.height - 16} x="0" y="8" rx="2" />
      <path class="kind" d={SIGNS[node.kind]} transform="translate(14 9)" />
      {/* A drawing within the drawing cuts what does not fit. */}
      <svg x="38" width={NODE.width - 60} height="30" aria-hidden="true">
        <text class="title" y="21">
          {namespace && <tspan class="namespace">{namespace}</tspan>}
          {name}
        </text>
      </svg>
      <svg x="38" y="30" width={NODE.width - 44} height={NODE.height - 30} aria-hidden="true">
        <text class="figures" y="13">
          {figures}
        </text>
      </svg>
      <Shares shares={node.shares} />
      {node.kind === "function" && <circle class="state" cx={NODE.width - 12} cy="12" r="4" />}
    </>
  );
}

/** The shares that revisions serve, along the lower border. The label of the node has them in words. */
function Shares({ shares }: Pick<GraphNode, "shares">) {
  const width = (NODE.width - 24) / 100;
  let before = 0;
  return (
    <g class="node-shares">
      {shares.map(({ served }, index) => {
        const x = 12 + before * width;
        before += served;
        return <rect class={`share-${index % 4}`} x={x} y={NODE.height - 6} width={served * width} height="4" />;
      })}
      {shares.length > 0 && <title>{shares.slice(0, 16).map(shareInWords).join("\n")}</title>}
    </g>
  );
}
