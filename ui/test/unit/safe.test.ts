import assert from "node:assert/strict";
import { test } from "node:test";
import { bounded, lines, parts, visible } from "../../src/text/safe";

test("characters that are not seen, or that move others, are escaped", () => {
  const hidden = [
    "\u0000",
    "\u001b",
    "\u007f",
    "\u0085",
    "\u00ad",
    "\u061c",
    "\u200b",
    "\u200f",
    "\u202e",
    "\u2028",
    "\u2066",
    "\ufeff",
    "\u3164",
    "\u{e0041}",
    "\ud800",
    "\ue000",
  ];
  for (const character of hidden) {
    const code = character.codePointAt(0) ?? 0;
    const shown = visible(`a${character}b`);
    assert.ok(!shown.includes(character), `U+${code.toString(16)}`);
    assert.equal(shown, code === 0 ? "a\\0b" : `a\\u{${code.toString(16)}}b`);
  }
  assert.equal(visible("two\nlines\t"), "two\\nlines\\t");
});

test("texts of all languages stay as they are", () => {
  for (const text of ["/items/{id}?q=1&x=<b>", "größe", "日本語", "עברית", "हिन्दी", "é", "😀"]) {
    assert.deepEqual(parts(text, 100), [{ text, escaped: false }]);
  }
});

test("long texts are cut, between characters", () => {
  assert.equal(visible("x".repeat(64 * 1024), 10), `${"x".repeat(10)}…`);
  assert.equal(visible("xx😀", 3), "xx…");
  assert.ok(visible(`a${"\u0301".repeat(500)}`, 600).length < 10);
  assert.equal(bounded({ path: "x".repeat(9000), status: 200 }).path.length, 513);
});

test("lines of a document keep their breaks", () => {
  const all = lines("a: 1\n\tb: \u202e\r\n", 1000);
  assert.deepEqual(
    all.map((line) => line.map((part) => part.text).join("")),
    ["a: 1", "    b: \\u{202e}", ""],
  );
  assert.equal(lines("x".repeat(100), 10).length, 2);
});
