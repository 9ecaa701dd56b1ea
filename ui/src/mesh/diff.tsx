import { lines } from "../text/safe";
import { visible } from "../text/safe";

/** A unified difference. Signs at the beginning of lines tell added from removed. */
export function Diff({ text, label }: { text: string; label: string }) {
  return (
    <pre class="code diff" tabIndex={0} role="region" aria-label={visible(label)}>
      {lines(text, 128 * 1024).map((line) => {
        const sign = line[0]?.text[0] ?? " ";
        const kind = sign === "+" ? "added" : sign === "-" ? "removed" : "";
        return (
          <span class={`line ${kind}`}>
            {line.map((part) => (part.escaped ? <span class="escape">{part.text}</span> : part.text))}
            {"\n"}
          </span>
        );
      })}
    </pre>
  );
}
