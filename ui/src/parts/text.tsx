import { lines, parts, visible } from "../text/safe";
import { functionLink } from "../router";
import { split } from "../text/names";

/** Longest text in a line. */
const SHORT = 160;

/** A text that a function or a client chose. */
export function Text({ children, most = SHORT }: { children: string; most?: number }) {
  const found = parts(children, most);
  const isCut = children.length > most;
  return (
    <bdi class="text" {...(isCut ? { title: visible(children, 1000) } : {})}>
      {found.map((part) => (part.escaped ? <span class="escape">{part.text}</span> : part.text))}
    </bdi>
  );
}

/** A function's name, with its namespace set back; `linked`: it leads to the function. */
export function Name({ children, linked = false }: { children: string; linked?: boolean }) {
  const [namespace, name] = split(children);
  const shown = (
    <span class="name">
      {namespace && (
        <span class="namespace">
          <Text most={64}>{namespace}</Text>/
        </span>
      )}
      <Text most={96}>{name}</Text>
    </span>
  );
  return linked && namespace ? <a href={functionLink(children)}>{shown}</a> : shown;
}

interface CodeProps {
  text: string;
  label: string;
  /** Lines to point at, from 0. */
  marked?: readonly number[];
  /** The number of the first line, from 0. */
  first?: number;
}

/** Several lines in a fixed-width font. */
export function Code({ text, label, marked = [], first = 0 }: CodeProps) {
  const all = lines(text, 256 * 1024);
  return (
    <pre class="code" tabIndex={0} role="region" aria-label={label}>
      {all.map((line, number) => {
        const isMarked = marked.includes(first + number);
        return (
          <span class={isMarked ? "line marked" : "line"}>
            <span class="number" aria-hidden="true">
              {first + number + 1}
            </span>
            {isMarked && <span class="only-heard">Marked: </span>}
            {line.map((part) => (part.escaped ? <span class="escape">{part.text}</span> : part.text))}
            {"\n"}
          </span>
        );
      })}
    </pre>
  );
}
