import { useEffect, useRef, useState } from "preact/hooks";
import { subscribe } from "../api/stream";
import type { LogLine } from "../api/types";
import { Input, Toggle } from "../parts/field";
import { Text } from "../parts/text";
import { clock } from "../text/format";
import { bounded, visible } from "../text/safe";

/** Lines that the page keeps. */
const KEPT = 1000;

interface Output {
  lines: (LogLine & { key: number })[];
  dropped: number;
  missing: string[];
}

const NONE: Output = { lines: [], dropped: 0, missing: [] };

/** The output of instances, as it is written. */
export function Logs({ name }: { name: string }) {
  const [output, setOutput] = useState(NONE);
  const [search, setSearch] = useState("");
  const [follows, setFollows] = useState(true);
  const end = useRef<HTMLDivElement>(null);
  const count = useRef(0);
  useEffect(() => {
    setOutput(NONE);
    return subscribe(`logs:${name}`, (data) => {
      const page = Array.isArray(data)
        ? { lines: data as LogLine[] }
        : (data as { lines: LogLine[]; dropped?: number; missing?: string[] });
      const added = page.lines.map((line) => ({ ...bounded(line), key: (count.current += 1) }));
      const { dropped = 0, missing = [] } = page as { dropped?: number; missing?: string[] };
      setOutput((last) => ({
        lines: [...last.lines, ...added].slice(-KEPT),
        dropped: last.dropped + dropped,
        missing,
      }));
    });
  }, [name]);
  useEffect(() => {
    const box = end.current?.parentElement;
    if (follows && box) box.scrollTop = box.scrollHeight;
  }, [output, follows]);
  const shown = search ? output.lines.filter((line) => line.text.includes(search)) : output.lines;
  return (
    <>
      <div class="tools">
        <Input label="Find" value={search} placeholder="text" onInput={setSearch} />
        <Toggle label="follow" on={follows} onChange={setFollows} />
      </div>
      {output.dropped > 0 && <p class="note">{output.dropped} lines were dropped before they could be shown.</p>}
      <div class="logs" tabIndex={0} role="region" aria-label="Output of instances">
        {shown.length === 0 && <p class="empty">No output yet.</p>}
        {shown.map((line) => (
          <div key={line.key} class={line.stream === "stderr" ? "log-line stderr" : "log-line"}>
            <time>{clock(line.time)}</time>
            <span class="note">
              {line.node ? `${visible(line.node, 40)} ` : ""}
              {line.instance}
            </span>
            <Text most={512}>{line.text}</Text>
          </div>
        ))}
        <div ref={end} />
      </div>
    </>
  );
}
