// Places of rules in documents.

/**
 * The lines of a rule in a text of YAML documents, from 0; empty: it is not there. `rule` is
 * `policy/section/name`, or `namespace/function/callees`.
 */
export function linesOf(text: string, rule: string): number[] {
  const lines = text.split(/\r?\n/);
  const parts = rule.split("/");
  if (parts.at(-1) === "callees") return block(lines, findKey(lines, "callees", 0, lines.length));
  const [policy = "", section = "", ...rest] = parts;
  const name = rest.join("/");
  for (const [from, to] of documents(lines)) {
    if (!isNamed(lines.slice(from, to), policy)) continue;
    const at = findKey(lines, section, from, to);
    if (at < 0) continue;
    const own = block(lines, at);
    const found = own.find((number) => itemName(lines[number] ?? "") === name);
    if (found !== undefined) return item(lines, found);
    if (name === "" || own.length < 40) return own;
  }
  return [];
}

/** Ranges of lines of the documents of a text. */
function documents(lines: readonly string[]): [number, number][] {
  const found: [number, number][] = [];
  let from = 0;
  lines.forEach((line, number) => {
    if (!/^---(\s|$)/.test(line)) return;
    found.push([from, number]);
    from = number + 1;
  });
  return [...found, [from, lines.length]];
}

function isNamed(lines: readonly string[], policy: string): boolean {
  const text = lines.join("\n");
  const escaped = policy.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  return new RegExp(`^metadata:[^]*?\\bname:\\s*["']?${escaped}["']?\\s*([,}\\n]|$)`, "m").test(text);
}

function findKey(lines: readonly string[], key: string, from: number, to: number): number {
  for (let number = from; number < to; number += 1) {
    if (lines[number]?.trimStart().startsWith(`${key}:`)) return number;
  }
  return -1;
}

/** The name of a list's item that begins on this line, or that the line holds. */
function itemName(line: string): string | undefined {
  return /(?:^\s*-\s+|[{,]\s*|^\s+)name:\s*["']?([^"',}\s]+)/.exec(line)?.[1];
}

/** A line and those below that are set deeper; a list may be as deep as its key. */
function block(lines: readonly string[], at: number): number[] {
  if (at < 0) return [];
  const depth = depthOf(lines[at] ?? "");
  const found = [at];
  for (let number = at + 1; number < lines.length; number += 1) {
    const line = lines[number] ?? "";
    if (line.trim() === "") continue;
    const isItem = depthOf(line) === depth && line.trimStart().startsWith("- ");
    if (depthOf(line) <= depth && !isItem) break;
    found.push(number);
  }
  return found;
}

/** The item of a list that a line is in. */
function item(lines: readonly string[], at: number): number[] {
  let first = at;
  while (first > 0 && !lines[first]?.trimStart().startsWith("- ")) first -= 1;
  const depth = depthOf(lines[first] ?? "");
  const found = [first];
  for (let number = first + 1; number < lines.length; number += 1) {
    const line = lines[number] ?? "";
    if (line.trim() === "") continue;
    if (depthOf(line) <= depth) break;
    found.push(number);
  }
  return found;
}

function depthOf(line: string): number {
  return line.length - line.trimStart().length;
}
