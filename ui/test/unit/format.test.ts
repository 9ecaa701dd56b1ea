import assert from "node:assert/strict";
import { test } from "node:test";
import { bytes, duration, figure, micros, percent, rate, relative } from "../../src/text/format";
import { isNamed, split, workload } from "../../src/text/names";

test("figures have at most three digits", () => {
  const shown = [0, 0.001, 0.5, 1, 12.34, 130, 999.6, 12_345, 2_500_000].map(figure);
  assert.deepEqual(shown, ["0", "<0.01", "0.5", "1", "12.3", "130", "1000", "12.3k", "2.5M"]);
  assert.deepEqual([rate(1.5, 60), rate(3, 0)], ["1.5/s", "3"]);
});

test("only all is 100 %, and only none is 0 %", () => {
  const shown = [1, 0.99999, 0.9994, 0.995, 0.5, 0.001, 0.000001, 0, null].map(percent);
  assert.deepEqual(shown, ["100 %", "99.99 %", "99.94 %", "99.5 %", "50 %", "0.1 %", "0.01 %", "0 %", "–"]);
});

test("durations and sizes have units", () => {
  assert.deepEqual([0.02, 1.25, 130, 2400, 90_000, null].map(duration), [
    "20 µs",
    "1.25 ms",
    "130 ms",
    "2.4 s",
    "1.5 min",
    "–",
  ]);
  assert.deepEqual([130, 999.9, 4300].map(micros), ["130 µs", "1000 µs", "4.3 ms"]);
  assert.deepEqual([0, 1023, 1536, 8 << 20].map(bytes), ["0 B", "1023 B", "1.5 KiB", "8 MiB"]);
  assert.deepEqual([relative(100, 160), relative(7300, 100), relative(100, 100)], ["1 min ago", "in 2 h", "now"]);
});

test("callers are named by their functions", () => {
  assert.equal(workload("spiffe://mesh/ns/demo/sa/shop"), "demo/shop");
  assert.equal(workload("demo/shop-00003/12"), "demo/shop");
  assert.equal(workload("192.0.2.10"), "192.0.2.10");
  assert.ok(isNamed("demo/shop", "shop") && isNamed("demo/shop", "demo/shop") && !isNamed("demo/shop", "hop"));
});

test("the path of a file has no namespace", () => {
  assert.deepEqual(split("demo/shop"), ["demo", "shop"]);
  assert.deepEqual(split("/etc/leno/tls.crt"), ["", "/etc/leno/tls.crt"]);
  assert.deepEqual(split("mesh"), ["", "mesh"]);
});
