import assert from "node:assert/strict";
import { test } from "node:test";
import { pause } from "../../src/api/stream";
import type { Flow, Hop } from "../../src/api/types";
import { linesOf } from "../../src/requests/document";
import { filterOf, matches, parameters } from "../../src/requests/filter";
import { calls, deciding, inOrder, microsOf, outcome, stages } from "../../src/requests/hops";
import { Ring } from "../../src/requests/ring";
import { functionLink, link, parse } from "../../src/router";
import { details } from "../server/functions.mjs";
import { shop } from "../server/graphs.mjs";
import { denied, flow, hops } from "../server/requests.mjs";

test("a ring keeps the latest, newest first", () => {
  const ring = new Ring<number>(5).with([1, 2, 3]).with([4, 5, 6]);
  assert.deepEqual(ring.items, [6, 5, 4, 3, 2]);
  assert.deepEqual(ring.with([7, 8, 9, 10, 11, 12]).items, [12, 11, 10, 9, 8]);
});

test("filters are those of leno observe", () => {
  const one = denied() as Flow;
  const own = flow({
    kind: "outbound",
    source: "spiffe://mesh/ns/demo/sa/shop",
    target: "demo/stock",
    path: "/items/7",
  }) as Flow;
  const is = (query: string, of: Flow) => matches(of, filterOf(new URLSearchParams(query)));
  assert.ok(is("", one) && is("verdict=deny", one) && !is("verdict=deny", own));
  assert.ok(is("function=shop", own) && is("function=demo/stock", own) && !is("function=other/stock", own));
  assert.ok(is("path=/items/*", own) && is("path=/items/7", own) && !is("path=/items", own));
  assert.ok(is("port=443", one) && !is("port=80", one) && is("rule=read-only", one) && is("kind=outbound", own));
  assert.ok(is("host=shop.example:443", one) && !is("host=evil.example", one));
  assert.deepEqual(Object.keys(parameters(filterOf(new URLSearchParams("port=x&host=h")))), [
    "verdict",
    "kind",
    "function",
    "path",
    "rule",
  ]);
});

test("both sides of a call are found, whatever the order of the answers", () => {
  const all = hops("1") as Hop[];
  assert.deepEqual(
    inOrder(all).map((hop) => hop.hop),
    ["gateway", "outbound", "inbound"],
  );
  const found = calls(all);
  assert.deepEqual(
    found.map((call) => [call.callee, call.sides.length]),
    [
      ["demo/shop", 1],
      ["demo/stock", 2],
    ],
  );
  assert.deepEqual([outcome(all), outcome(hops("denied-1") as Hop[])], ["allow", "deny"]);
  assert.equal(deciding(hops("denied-1") as Hop[])?.judgement?.default, true);
});

test("stages are on one axis, and add up", () => {
  const [first] = inOrder(hops("1") as Hop[]);
  assert.ok(first);
  const found = stages(first, microsOf(first.time) - 500);
  assert.equal(found[0]?.from, 500);
  assert.equal(found.at(-1)?.to, 500 + first.stages.end_us);
  found.slice(1).forEach((stage, index) => assert.equal(stage.from, found[index]?.to));
  const refused = stages((hops("denied-1") as Hop[])[0] as Hop, 0);
  assert.equal(refused.length, 3);
  assert.equal(microsOf("2026-01-01T00:00:00.123456789Z") % 1e6, 123_456);
  assert.equal(microsOf("no time"), 0);
});

test("rules are found in their documents", () => {
  const text = details(shop(), "demo/shop")?.document as string;
  const all = text.split("\n");
  const marked = (rule: string) => linesOf(text, rule).map((line) => all[line]?.trim());
  assert.deepEqual(marked("shop/authorization/read-only"), [
    "- name: read-only",
    `to: [{methods: [GET], paths: ["/items", "/items/{id}"]}]`,
  ]);
  assert.deepEqual(marked("shop/authorization/staff"), ["- name: staff", "from: [{claims: {role: staff}}]"]);
  assert.deepEqual(marked("shop/rateLimits/per-client"), [
    "- {name: per-client, requests: 100, per: 1m, key: [address]}",
  ]);
  assert.deepEqual(marked("demo/shop/callees"), ["callees: [stock, checkout]"]);
  assert.deepEqual(marked("other/authorization/read-only"), []);
  assert.deepEqual(linesOf("", "a/b/c"), []);
  assert.deepEqual(linesOf(text, ".*/authorization/("), []);
});

test("places survive any name", () => {
  const name = "demo/a b?c#d%";
  assert.deepEqual(parse(functionLink(name, "logs")).segments, ["functions", "demo", "a b?c#d%", "logs"]);
  assert.equal(parse(link(["graph"], { node: name, empty: "" })).query.get("node"), name);
  assert.deepEqual(parse("#/functions/%zz").segments, ["functions", "%zz"]);
  assert.deepEqual(parse("").segments, []);
});

test("pauses double, up to half a minute, and are not all alike", () => {
  assert.deepEqual(
    [1, 2, 3, 50].map((failures) => pause(failures, 1)),
    [1000, 2000, 4000, 30_000],
  );
  assert.equal(pause(1, 0), 500);
});
