// Text of the mesh, which functions and clients choose, made safe to look at.
//
// Preact writes it into text nodes, so markup stays text. What is left are characters that change
// how their neighbours look, and texts of any length.

/**
 * Characters that are not seen, or that change how others are seen: controls, bidirectional
 * controls, zero-width and other ignorable characters, tags, line and paragraph separators, private
 * use, and halves of surrogate pairs.
 */
const HIDDEN =
  /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}\u115F\u1160\u17B4\u17B5\u180B-\u180F\u3164\uFFA0\uFE00-\uFE0F\u2800\u034F]/u;
/** More marks than a letter of any language has. */
const MARKS = /(\p{M}{4})\p{M}+/gu;

/** A part of a text: as it is, or an escaped character. */
export interface Part {
  text: string;
  escaped: boolean;
}

/** The parts of a text of at most `most` characters. */
export function parts(text: string, most: number): Part[] {
  // Code points beyond the cut are not looked at, however long the text is.
  const [cut, isCut] = take(text, most);
  const found: Part[] = [];
  let plain = "";
  for (const character of cut.replace(MARKS, "$1…")) {
    if (!HIDDEN.test(character)) {
      plain += character;
      continue;
    }
    if (plain) found.push({ text: plain, escaped: false });
    plain = "";
    found.push({ text: escape(character), escaped: true });
  }
  if (plain) found.push({ text: plain, escaped: false });
  if (isCut) found.push({ text: "…", escaped: false });
  return found;
}

/** The same as one string, for attributes such as `aria-label`. */
export function visible(text: string, most = 200): string {
  return parts(text, most)
    .map((part) => part.text)
    .join("");
}

/** The parts of several lines; line ends and tabs stay. */
export function lines(text: string, most: number): Part[][] {
  const [cut, isCut] = take(text, most);
  const all = cut.split(/\r?\n/).map((line) => parts(line.replaceAll("\t", "    "), line.length * 4));
  if (isCut) all.push([{ text: "…", escaped: false }]);
  return all;
}

function escape(character: string): string {
  const known: Record<string, string> = { "\n": "\\n", "\r": "\\r", "\t": "\\t", "\0": "\\0" };
  return known[character] ?? `\\u{${(character.codePointAt(0) ?? 0).toString(16)}}`;
}

function take(text: string, most: number): [string, boolean] {
  if (text.length <= most) return [text, false];
  // Not between the halves of a pair.
  const last = text.charCodeAt(most - 1);
  return [text.slice(0, last >= 0xd800 && last < 0xdc00 ? most - 1 : most), true];
}

/** Longest text of a flow that the page keeps. */
const KEPT = 512;

/** A row whose texts are short enough to keep many of them. */
export function bounded<T extends object>(row: T): T {
  const bound = ([name, value]: [string, unknown]) => [
    name,
    typeof value === "string" && value.length > KEPT ? take(value, KEPT)[0] + "…" : value,
  ];
  return Object.fromEntries(Object.entries(row).map(bound)) as T;
}
