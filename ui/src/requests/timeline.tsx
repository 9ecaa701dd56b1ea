import type { Hop, RefusedAttempt } from "../api/types";
import { micros } from "../text/format";
import { visible } from "../text/safe";
import { attemptWords, calleeOf, inOrder, microsOf, type Stage, stages, verdictOf } from "./hops";

const ROW = 34;
const WIDTH = 1000;
/** Refused attempts that are marked on one bar. */
const MARKS = 32;
/** Kinds of stages, as classes. */
const CLASSES: Record<string, string> = {
  routing: "routing",
  judgement: "judging",
  "an instance": "finding",
  "waiting for it": "waiting",
  "the response": "body",
};

/** All hops of a request on one axis: its trace across nodes. */
export function Timeline({ hops }: { hops: readonly Hop[] }) {
  const ordered = inOrder(hops);
  const begin = Math.min(...ordered.map((hop) => microsOf(hop.time)));
  const bars = ordered.map((hop) => ({ hop, parts: stages(hop, begin) }));
  const end = Math.max(1, ...bars.flatMap(({ parts }) => parts.map((part) => part.to)));
  return (
    <div class="timeline">
      <ol>
        {bars.map(({ hop, parts }) => (
          <li>
            <span class="who">
              <span class="hop">{visible(hop.hop, 20)}</span> {visible(calleeOf(hop), 50)}
              {hop.recorded_by && <span class="note"> on {visible(hop.recorded_by, 40)}</span>}
            </span>
            <Bar parts={parts} end={end} verdict={verdictOf(hop)} refusals={hop.refusals ?? []} />
            <span class="figures">{micros(hop.stages.end_us)}</span>
            <span class="only-heard">
              {[
                ...parts.map((part) => `${part.name} ${micros(part.to - part.from)}`),
                ...(hop.refusals ?? []).slice(0, MARKS).map((one) => `refused: ${visible(attemptWords(one), 90)}`),
              ].join(", ")}
            </span>
          </li>
        ))}
      </ol>
      <p class="legend">
        {Object.entries(CLASSES).map(([name, kind]) => (
          <span>
            <i class={`dot ${kind}`} aria-hidden="true" />
            {name}
          </span>
        ))}
        {ordered.some((hop) => hop.refusals?.length) && (
          <span>
            <i class="dot attempt" aria-hidden="true" />
            refused meanwhile
          </span>
        )}
      </p>
    </div>
  );
}

interface BarProps {
  parts: readonly Stage[];
  end: number;
  verdict: string;
  refusals: readonly RefusedAttempt[];
}

function Bar({ parts, end, verdict, refusals }: BarProps) {
  const x = (at: number) => (at / end) * WIDTH;
  const start = parts[0]?.from ?? 0;
  const last = parts.at(-1)?.to ?? 0;
  return (
    <svg class="stages" viewBox={`0 0 ${WIDTH} ${ROW}`} preserveAspectRatio="none" aria-hidden="true">
      <path class="axis" d={`M0 ${ROW / 2}H${WIDTH}`} />
      {parts.map((part) => (
        <rect
          class={CLASSES[part.name] ?? ""}
          x={x(part.from)}
          y="6"
          width={Math.max(1.5, x(part.to) - x(part.from))}
          height={ROW - 12}
        >
          <title>{`${part.name}: ${micros(part.to - part.from)}`}</title>
        </rect>
      ))}
      {refusals.slice(0, MARKS).map((attempt) => (
        <rect class="attempt" x={Math.min(x(start + attempt.at_us), WIDTH - 3)} y="0" width="3" height={ROW}>
          <title>{`refused: ${visible(attemptWords(attempt), 90)}, ${micros(attempt.at_us)} after the start`}</title>
        </rect>
      ))}
      {verdict !== "allow" && (
        <rect class="refusal" x={Math.min(x(last), WIDTH - 6)} y="2" width="6" height={ROW - 4} />
      )}
    </svg>
  );
}
