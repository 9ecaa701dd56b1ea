import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import type { GraphEdge, GraphNode } from "../api/types";
import { Edges, EdgeLabels } from "./edges";
import { type Layout, neighbour } from "./layout";
import { Groups, Nodes } from "./nodes";
import { fit, pan, reveal, type Viewport, zoom } from "./viewport";

interface Props {
  nodes: readonly GraphNode[];
  edges: readonly GraphEdge[];
  layout: Layout;
  window: number;
  selected: string | null;
  onSelect: (node: string | null) => void;
}

const STEP = 1.25;

/** The drawing. It has one stop for the tab key; arrow keys go from node to node. */
export function Canvas(props: Props) {
  const { nodes, edges, layout, selected, onSelect } = props;
  const svg = useRef<SVGSVGElement>(null);
  const [size, setSize] = useState({ width: 800, height: 500 });
  const [moved, setMoved] = useState<Viewport | null>(null);
  const [focused, setFocused] = useState<string | null>(null);
  const viewport = moved ?? fit(layout, size);
  const stop = focused !== null && layout.nodes.has(focused) ? focused : (selected ?? nodes[0]?.name ?? null);

  useLayoutEffect(() => {
    if (!svg.current) return;
    const observer = new ResizeObserver(([entry]) => entry && setSize(entry.contentRect));
    observer.observe(svg.current);
    return () => observer.disconnect();
  }, []);
  // Another drawing is shown as a whole.
  useEffect(() => setMoved(null), [layout.width, layout.height]);
  usePointer(svg, viewport, setMoved);

  const centre = { x: size.width / 2, y: size.height / 2 };
  const zoomBy = (factor: number) => setMoved(zoom(viewport, factor, centre));
  const go = (name: string) => {
    setFocused(name);
    const point = layout.nodes.get(name);
    if (point) setMoved(reveal(viewport, point, size));
    // Preact may not have moved the tab stop yet; the element is there in any case.
    elementOf(svg.current, name)?.focus({ preventScroll: true });
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const next = stop === null ? undefined : neighbour(layout, stop, event.key);
    if (next !== undefined) go(next);
    else if (event.key === "+" || event.key === "=") zoomBy(STEP);
    else if (event.key === "-") zoomBy(1 / STEP);
    else if (event.key === "0") setMoved(null);
    else if (event.key === "Escape") onSelect(null);
    else if ((event.key === "Enter" || event.key === " ") && stop !== null) onSelect(stop);
    else if (!event.key.startsWith("Arrow")) return;
    event.preventDefault();
  };

  const near = new Set<string>();
  for (const edge of edges) {
    if (edge.source === selected) near.add(edge.target);
    if (edge.target === selected) near.add(edge.source);
  }
  const drawing = { ...props, near, scale: viewport.scale };
  return (
    <div class="canvas">
      <svg
        ref={svg}
        role="group"
        aria-label={`Graph of calls: ${nodes.length} nodes, ${edges.length} edges. Arrow keys move, Enter selects. The table has the same facts.`}
        viewBox={`${viewport.x} ${viewport.y} ${size.width / viewport.scale} ${size.height / viewport.scale}`}
        onKeyDown={onKeyDown}
      >
        <Markers />
        <rect
          class="background"
          x={viewport.x}
          y={viewport.y}
          width={size.width / viewport.scale}
          height={size.height / viewport.scale}
          onClick={() => onSelect(null)}
        />
        <Groups groups={layout.groups} />
        <Edges {...drawing} />
        <Nodes {...drawing} stop={stop} onFocus={setFocused} />
        <EdgeLabels {...drawing} />
      </svg>
      <div class="zoom" role="group" aria-label="Zoom">
        <button type="button" aria-label="Zoom in" onClick={() => zoomBy(STEP)}>
          +
        </button>
        <button type="button" aria-label="Zoom out" onClick={() => zoomBy(1 / STEP)}>
          −
        </button>
        <button type="button" onClick={() => setMoved(null)}>
          Fit
        </button>
      </div>
    </div>
  );
}

function elementOf(svg: SVGSVGElement | null, name: string): SVGElement | undefined {
  const all = svg?.querySelectorAll<SVGElement>(".node .box") ?? [];
  return [...all].find((element) => element.dataset.name === name);
}

/** Ends of edges. */
function Markers() {
  const kinds = ["good", "warning", "bad", "none", "unused", "refused"];
  return (
    <defs>
      {kinds.map((kind) => (
        <marker
          id={`arrow-${kind}`}
          class={`arrow ${kind}`}
          viewBox="0 0 8 8"
          refX="7"
          refY="4"
          markerWidth="8"
          markerHeight="8"
          markerUnits="userSpaceOnUse"
          orient="auto"
        >
          <path d="M0 0 8 4 0 8Z" />
        </marker>
      ))}
    </defs>
  );
}

/** Drags, pinches, and the wheel with Ctrl (as trackpads pinch). The wheel alone scrolls the page. */
function usePointer(
  svg: { current: SVGSVGElement | null },
  viewport: Viewport,
  set: (viewport: Viewport) => void,
): void {
  const latest = useRef(viewport);
  latest.current = viewport;
  useEffect(() => {
    const element = svg.current;
    if (!element) return;
    const points = new Map<number, { x: number; y: number }>();
    let dragged = 0;
    const move = (next: Viewport) => {
      latest.current = next;
      set(next);
    };
    const at = (event: MouseEvent) => {
      const box = element.getBoundingClientRect();
      return { x: event.clientX - box.left, y: event.clientY - box.top };
    };
    const onDown = (event: PointerEvent) => {
      if (event.button !== 0) return;
      points.set(event.pointerId, at(event));
      dragged = 0;
    };
    const onMove = (event: PointerEvent) => {
      const before = points.get(event.pointerId);
      if (!before) return;
      const now = at(event);
      const other = [...points].find(([id]) => id !== event.pointerId)?.[1];
      points.set(event.pointerId, now);
      dragged += Math.abs(now.x - before.x) + Math.abs(now.y - before.y);
      if (!other) return move(pan(latest.current, { x: now.x - before.x, y: now.y - before.y }));
      const distance = (point: { x: number; y: number }) => Math.hypot(point.x - other.x, point.y - other.y);
      const middle = { x: (now.x + other.x) / 2, y: (now.y + other.y) / 2 };
      move(zoom(latest.current, distance(now) / Math.max(distance(before), 1), middle));
    };
    const onUp = (event: PointerEvent) => void points.delete(event.pointerId);
    // The end of a drag is no click.
    const onClick = (event: MouseEvent) => dragged > 5 && event.stopPropagation();
    const onWheel = (event: WheelEvent) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      move(zoom(latest.current, Math.exp(-event.deltaY / 300), at(event)));
    };
    element.addEventListener("pointerdown", onDown);
    window.addEventListener("pointermove", onMove);
    window.addEventListener("pointerup", onUp);
    window.addEventListener("pointercancel", onUp);
    element.addEventListener("click", onClick, { capture: true });
    element.addEventListener("wheel", onWheel, { passive: false });
    return () => {
      element.removeEventListener("pointerdown", onDown);
      window.removeEventListener("pointermove", onMove);
      window.removeEventListener("pointerup", onUp);
      window.removeEventListener("pointercancel", onUp);
      element.removeEventListener("click", onClick, { capture: true });
      element.removeEventListener("wheel", onWheel);
    };
  }, []);
}
