import assert from "node:assert/strict";
import { test } from "node:test";
import type { Graph } from "../../src/api/types";
import { curve, edgeKey, fitting, type Layout, layout, neighbour, NODE } from "../../src/graph/layout";
import { choose, groupOf, healthOf } from "../../src/graph/selection";
import { fit, pan, reveal, zoom } from "../../src/graph/viewport";
import { large, shop } from "../server/graphs.mjs";

const GROUPS = [() => null, (node: string) => (node.includes("/") ? (node.split("/")[0] ?? null) : null)];

function topology(graph: Graph) {
  return {
    nodes: graph.nodes.map((node) => node.name),
    edges: graph.edges.map((edge) => [edge.source, edge.target] as const),
  };
}

function overlaps({ nodes }: Layout): string[] {
  const all = [...nodes];
  return all.flatMap(([name, one], index) =>
    all
      .slice(index + 1)
      .flatMap(([other, two]) =>
        Math.abs(one.x - two.x) < NODE.width && Math.abs(one.y - two.y) < NODE.height ? [`${name} ${other}`] : [],
      ),
  );
}

test("every node and every edge has a place, and nodes do not overlap", () => {
  for (const graph of [shop() as Graph, large(200) as Graph]) {
    const chains = new Map(graph.nodes.map((node) => [node.name, node.chain || null]));
    for (const group of [...GROUPS, (node: string) => chains.get(node) ?? null]) {
      for (const direction of ["LR", "TB"] as const) {
        const began = performance.now();
        const placed = layout({ ...topology(graph), group, direction });
        console.log(
          `${graph.nodes.length} nodes, ${graph.edges.length} edges, ${direction}: ${Math.round(performance.now() - began)} ms`,
        );
        assert.deepEqual([...placed.nodes.keys()].sort(), graph.nodes.map((node) => node.name).sort());
        assert.ok(
          graph.edges.every((edge) => placed.edges.get(edgeKey(edge.source, edge.target))?.path.startsWith("M")),
        );
        assert.deepEqual(overlaps(placed), []);
        for (const { x, y } of placed.nodes.values())
          assert.ok(x > 0 && y > 0 && x < placed.width && y < placed.height);
      }
    }
  }
});

test("loops, circles, double names and lonely nodes are placed too", () => {
  const nodes = [
    "a/one",
    "a/two",
    "alone",
    "__proto__",
    "constructor",
    ...Array.from({ length: 40 }, (_, number) => `b/${number}`),
  ];
  const edges = [
    ["a/one", "a/one"],
    ["a/one", "a/two"],
    ["a/two", "a/one"],
    ["__proto__", "constructor"],
  ] as const;
  for (const group of GROUPS) {
    const placed = fitting({ nodes, edges, group }, { width: 1000, height: 600 });
    assert.equal(placed.nodes.size, nodes.length);
    assert.equal(placed.edges.size, edges.length);
    assert.deepEqual(overlaps(placed), []);
  }
  assert.equal(layout({ nodes: [], edges: [], group: () => null, direction: "LR" }).nodes.size, 0);
});

test("arrow keys go to the nearest node of their direction", () => {
  const placed = layout({
    nodes: ["a", "b", "c"],
    edges: [
      ["a", "b"],
      ["b", "c"],
    ],
    group: () => null,
    direction: "LR",
  });
  assert.equal(neighbour(placed, "a", "ArrowRight"), "b");
  assert.equal(neighbour(placed, "c", "ArrowLeft"), "b");
  assert.equal(neighbour(placed, "a", "ArrowLeft"), undefined);
  assert.equal(neighbour(placed, "a", "x"), undefined);
});

test("search and focus keep the neighbours", () => {
  const graph = shop() as Graph;
  const wanted = { search: "", focus: "", unused: true, refused: true };
  const names = (change: Partial<typeof wanted>) =>
    choose(graph, { ...wanted, ...change }).nodes.map((node) => node.name);
  assert.equal(names({}).length, graph.nodes.length);
  assert.deepEqual(names({ search: "INVOICE" }), ["demo/checkout", "billing/invoices"]);
  assert.deepEqual(names({ focus: "demo/mailer" }), ["demo/stock", "demo/checkout", "demo/mailer"]);
  assert.deepEqual(names({ focus: "demo/mailer", unused: false }), ["demo/stock", "demo/mailer"]);
  assert.ok(!names({ refused: false }).includes("198.51.100.7:443"));
});

test("groups are namespaces, nodes, zones and chains", () => {
  const node = (shop() as Graph).nodes[2];
  assert.ok(node);
  const zones = new Map([
    ["one", "eu-1"],
    ["two", "eu-2"],
  ]);
  const groups = (["none", "namespace", "node", "zone", "chain"] as const).map((grouping) =>
    groupOf(node, grouping, zones),
  );
  assert.deepEqual(groups, [null, "demo", "one, two", "eu-1, eu-2", "demo/fast"]);
});

test("health is that of responses", () => {
  const health = (rate: number, failed: number, success: number) => healthOf({ rate, failed, success });
  assert.deepEqual(
    [health(0, 0, 1), health(10, 0, 1), health(10, 0.1, 0.99), health(10, 1, 0.9), health(10, 0, 0.5)],
    ["none", "good", "warning", "bad", "warning"],
  );
});

test("the viewport keeps its point when it zooms, and reveals what is outside", () => {
  const canvas = { width: 400, height: 300 };
  const whole = fit({ width: 4000, height: 1000 }, canvas);
  assert.equal(whole.scale, 0.1);
  const at = { x: 40, y: 30 };
  const place = (view: typeof whole) => [view.x + at.x / view.scale, view.y + at.y / view.scale].map(Math.round);
  assert.deepEqual(place(zoom(whole, 3, at)), place(whole));
  assert.deepEqual(pan(whole, { x: 10, y: 0 }).x, whole.x - 100);
  const seen = reveal(zoom(whole, 10, at), { x: 3900, y: 900 }, canvas);
  assert.equal(Math.round((3900 - seen.x) * seen.scale), 200);
});

test("curves begin and end at their points", () => {
  assert.equal(curve([]), "");
  assert.equal(
    curve([
      { x: 0, y: 0 },
      { x: 9, y: 9 },
    ]),
    "M0.0 0.0L9.0 9.0",
  );
  assert.match(
    curve([
      { x: 0, y: 0 },
      { x: 5, y: 0 },
      { x: 9, y: 9 },
    ]),
    /^M0.0 0.0Q5.0 0.0 9.0 9.0$/,
  );
});
