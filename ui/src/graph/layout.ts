// Places for the nodes and edges of a graph.

import { Graph as LayoutGraph, layout as place } from "@dagrejs/dagre";

export const NODE = { width: 188, height: 56 } as const;
/** Room for the name of a group, above its nodes. */
const GROUP_TITLE = 14;
const GAP = 24;

export interface Point {
  x: number;
  y: number;
}

export interface Box extends Point {
  width: number;
  height: number;
}

/** What is placed: names, and pairs of names. */
export interface Topology {
  nodes: readonly string[];
  edges: readonly (readonly [source: string, target: string])[];
  /** The group of a node; `null`: none. */
  group: (node: string) => string | null;
  direction: "LR" | "TB";
}

export interface PlacedEdge {
  points: Point[];
  path: string;
  /** Where its label stands. */
  middle: Point;
}

export interface Layout {
  /** Centres. */
  nodes: Map<string, Point>;
  /** By `edgeKey`. */
  edges: Map<string, PlacedEdge>;
  groups: { name: string; box: Box }[];
  width: number;
  height: number;
}

export function edgeKey(source: string, target: string): string {
  return JSON.stringify([source, target]);
}

/** Above this number of nodes, layers are folded. */
const FEW = 80;

/** The layout that shows the nodes larger on a canvas of this size. */
export function fitting(topology: Omit<Topology, "direction">, canvas: Size): Layout {
  const scale = (placed: Layout) => Math.min(canvas.width / placed.width, canvas.height / placed.height, 1);
  const across = layout({ ...topology, direction: "LR" });
  if (topology.nodes.length > FEW) return across.groups.length > 0 ? across : folded(across, topology.edges, canvas);
  const down = layout({ ...topology, direction: "TB" });
  return scale(across) >= scale(down) * 0.85 ? across : down;
}

/**
 * A layout from left to right whose layers are blocks of several columns. A layer of many nodes is
 * a line that is too long for any canvas.
 */
function folded(across: Layout, edges: Topology["edges"], canvas: Size): Layout {
  const layers = new Map<number, [name: string, y: number][]>();
  for (const [name, { x, y }] of across.nodes) layers.set(x, [...(layers.get(x) ?? []), [name, y]]);
  const ordered = [...layers].sort(([one], [other]) => one - other).map(([, nodes]) => nodes);
  const [wide, high, between] = [NODE.width + GAP, NODE.height + GAP, 3 * GAP];
  const longest = Math.max(...ordered.map((nodes) => nodes.length));
  const sizeOf = (rows: number) => {
    const columns = ordered.reduce((sum, nodes) => sum + Math.ceil(nodes.length / rows), 0);
    return { width: columns * wide + ordered.length * between, height: rows * high };
  };
  const scaleOf = (rows: number) => Math.min(canvas.width / sizeOf(rows).width, canvas.height / sizeOf(rows).height);
  let most = 1;
  for (let rows = 2; rows <= longest; rows += 1) if (scaleOf(rows) > scaleOf(most)) most = rows;

  const placed: Layout = { nodes: new Map(), edges: new Map(), groups: [], width: 0, height: 0 };
  let left = GAP;
  for (const nodes of ordered) {
    const columns = Math.ceil(nodes.length / most);
    const top = GAP + ((most - Math.ceil(nodes.length / columns)) * high) / 2;
    nodes.sort(([, one], [, other]) => one - other);
    nodes.forEach(([name], index) => {
      const [row, column] = [Math.floor(index / columns), index % columns];
      placed.nodes.set(name, { x: left + column * wide + NODE.width / 2, y: top + row * high + NODE.height / 2 });
    });
    left += columns * wide + between;
  }
  join(placed, edges);
  [placed.width, placed.height] = extent(placed);
  return placed;
}

/** Draws the edges that have no place yet from node to node. */
function join(placed: Layout, edges: Topology["edges"]): void {
  for (const [source, target] of edges) {
    const [from, to] = [placed.nodes.get(source), placed.nodes.get(target)];
    const key = edgeKey(source, target);
    if (from && to && !placed.edges.has(key)) placed.edges.set(key, line(straight(from, to)));
  }
}

/**
 * Nodes with edges in layers, those without in rows below. Groups are laid out each, and then as
 * boxes.
 */
export function layout(topology: Topology): Layout {
  const groups = new Map<string, string[]>();
  for (const node of topology.nodes) {
    const group = topology.group(node);
    if (group !== null) groups.set(group, [...(groups.get(group) ?? []), node]);
  }
  return groups.size === 0 ? layered(topology) : grouped(topology, groups);
}

function layered({ nodes, edges, direction }: Omit<Topology, "group">): Layout {
  const joined = new Set(edges.flat());
  const boxes = new Map(nodes.filter((node) => joined.has(node)).map((node) => [node, NODE]));
  const placed = layers(boxes, edges, direction);
  const [width, height] = extent(placed);
  const alone = nodes.filter((node) => !joined.has(node));
  addRows(placed, alone, width, height);
  [placed.width, placed.height] = extent(placed);
  return placed;
}

type Size = Pick<Box, "width" | "height">;

/** Places boxes in layers, so that edges lead forwards as far as they can. */
function layers(boxes: ReadonlyMap<string, Size>, edges: Topology["edges"], direction: Topology["direction"]): Layout {
  const placed: Layout = { nodes: new Map(), edges: new Map(), groups: [], width: 0, height: 0 };
  if (boxes.size === 0) return placed;
  const graph = new LayoutGraph();
  const ranksep = direction === "LR" ? 116 : 64;
  graph.setGraph({
    rankdir: direction,
    nodesep: 24,
    ranksep,
    edgesep: 22,
    marginx: GAP,
    marginy: GAP,
    ranker: "tight-tree",
  });
  // Numbers in place of names: the library keeps nodes in plain objects, and some names are special there.
  const ids = new Map([...boxes.keys()].map((name, number) => [name, `n${number}`]));
  const id = (name: string) => ids.get(name) ?? "";
  for (const [name, { width, height }] of boxes) graph.setNode(id(name), { width, height });
  for (const [source, target] of edges) graph.setEdge(id(source), id(target), {});
  place(graph);
  for (const name of boxes.keys()) {
    const { x = 0, y = 0 } = graph.node(id(name)) as Partial<Point>;
    placed.nodes.set(name, { x, y });
  }
  for (const [source, target] of edges) {
    const { points = [] } = graph.edge(id(source), id(target)) as { points?: Point[] };
    placed.edges.set(edgeKey(source, target), line(points));
  }
  return placed;
}

function grouped({ nodes, edges, direction }: Omit<Topology, "group">, groups: ReadonlyMap<string, string[]>): Layout {
  // A node of no group is a box like a group.
  const inner = new Map<string, Layout>();
  const boxes = new Map<string, Size>();
  const boxOf = new Map<string, string>();
  for (const [name, members] of groups) {
    const own = new Set(members);
    const within = edges.filter(([source, target]) => own.has(source) && own.has(target));
    const placed = layered({ nodes: members, edges: within, direction });
    inner.set(`g${name}`, placed);
    boxes.set(`g${name}`, { width: placed.width, height: placed.height + GROUP_TITLE });
    for (const member of members) boxOf.set(member, `g${name}`);
  }
  for (const node of nodes) {
    if (boxOf.has(node)) continue;
    boxes.set(`n${node}`, NODE);
    boxOf.set(node, `n${node}`);
  }
  const between = new Map<string, readonly [string, string]>();
  for (const [source, target] of edges) {
    const [from, to] = [boxOf.get(source) ?? "", boxOf.get(target) ?? ""];
    if (from !== to) between.set(edgeKey(from, to), [from, to]);
  }
  const outer = layers(boxes, [...between.values()], direction);
  const placed: Layout = { nodes: new Map(), edges: new Map(), groups: [], width: 0, height: 0 };
  for (const [box, { width, height }] of boxes) {
    const { x, y } = outer.nodes.get(box) ?? { x: 0, y: 0 };
    const content = inner.get(box);
    if (!content) {
      placed.nodes.set(box.slice(1), { x, y });
      continue;
    }
    const corner = { x: x - width / 2, y: y - height / 2 };
    placed.groups.push({ name: box.slice(1), box: { ...corner, width, height } });
    const shift = { x: corner.x, y: corner.y + GROUP_TITLE };
    for (const [node, at] of content.nodes) placed.nodes.set(node, moved(at, shift));
    for (const [key, edge] of content.edges)
      placed.edges.set(key, line(edge.points.map((point) => moved(point, shift))));
  }
  join(placed, edges);
  [placed.width, placed.height] = extent(placed);
  return placed;
}

function moved(point: Point, by: Point): Point {
  return { x: point.x + by.x, y: point.y + by.y };
}

/** From border to border of two nodes. */
function straight(from: Point, to: Point): Point[] {
  const isAcross = Math.abs(to.x - from.x) > NODE.width;
  const sign = Math.sign(isAcross ? to.x - from.x : to.y - from.y) || 1;
  const reach = isAcross ? { x: (NODE.width / 2) * sign, y: 0 } : { x: 0, y: (NODE.height / 2) * sign };
  const [start, end] = [moved(from, reach), moved(to, { x: -reach.x, y: -reach.y })];
  const half = isAcross ? (end.x - start.x) / 2 : (end.y - start.y) / 2;
  const bend = isAcross ? { x: half * 0.6, y: 0 } : { x: 0, y: half * 0.6 };
  return [start, moved(start, bend), moved(end, { x: -bend.x, y: -bend.y }), end];
}

function line(points: Point[]): PlacedEdge {
  const half = points.length / 2;
  const [one, other] = [points[Math.ceil(half) - 1], points[Math.floor(half)]];
  const middle = one && other ? { x: (one.x + other.x) / 2, y: (one.y + other.y) / 2 } : { x: 0, y: 0 };
  return { points, path: curve(points), middle };
}

/** Places nodes without edges in rows below the others. */
function addRows(placed: Layout, alone: readonly string[], width: number, height: number): void {
  const least = Math.ceil(Math.sqrt(alone.length * 1.2));
  const columns = Math.max(1, Math.min(alone.length, Math.max(least, Math.floor((width - GAP) / (NODE.width + GAP)))));
  const top = height > 0 ? height + GAP : GAP;
  alone.forEach((node, index) => {
    const [row, column] = [Math.floor(index / columns), index % columns];
    const x = GAP + NODE.width / 2 + column * (NODE.width + GAP);
    placed.nodes.set(node, { x, y: top + NODE.height / 2 + row * (NODE.height + GAP) });
  });
}

function extent(placed: Layout): [width: number, height: number] {
  let [width, height] = [0, 0];
  for (const { x, y } of placed.nodes.values()) {
    width = Math.max(width, x + NODE.width / 2 + GAP);
    height = Math.max(height, y + NODE.height / 2 + GAP);
  }
  for (const { box } of placed.groups) {
    width = Math.max(width, box.x + box.width + GAP / 2);
    height = Math.max(height, box.y + box.height + GAP / 2);
  }
  return [width, height];
}

/** A smooth path: quadratic curves between the middles of the lines from point to point. */
export function curve(points: readonly Point[]): string {
  const [first, ...rest] = points;
  const last = rest.at(-1);
  if (!first || !last) return "";
  const at = ({ x, y }: Point) => `${x.toFixed(1)} ${y.toFixed(1)}`;
  let path = `M${at(first)}`;
  rest.slice(0, -1).forEach((point, index) => {
    const next = rest[index + 1] ?? last;
    const isEnd = index === rest.length - 2;
    path += `Q${at(point)} ${at(isEnd ? last : { x: (point.x + next.x) / 2, y: (point.y + next.y) / 2 })}`;
  });
  return rest.length === 1 ? `${path}L${at(last)}` : path;
}

/** The node nearest to another one in a direction, for arrow keys. */
export function neighbour(layout: Layout, from: string, key: string): string | undefined {
  const start = layout.nodes.get(from);
  const axis = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[key];
  if (!start || !axis) return undefined;
  const [right = 0, down = 0] = axis;
  let best: [name: string, distance: number] | undefined;
  for (const [name, { x, y }] of layout.nodes) {
    const [dx, dy] = [x - start.x, y - start.y];
    const along = dx * right + dy * down;
    const across = Math.abs(dx * down) + Math.abs(dy * right);
    if (name === from || along <= 1) continue;
    const distance = along + 2 * across;
    if (!best || distance < best[1]) best = [name, distance];
  }
  return best?.[0];
}
