import { visible } from "../text/safe";

export type Tone = "good" | "warning" | "bad" | "plain" | "info";

/** A word with a sign, so that colour is not all that tells it apart. */
export function Badge({ tone, children }: { tone: Tone; children: string }) {
  return (
    <span class={`badge ${tone}`}>
      <Sign tone={tone} />
      <span>{visible(children, 64)}</span>
    </span>
  );
}

const SIGNS: Record<Tone, string> = {
  good: "M3 8.5 6.5 12 13 4.5",
  warning: "M8 3v6M8 12.4v.2",
  bad: "M4 4l8 8M12 4l-8 8",
  plain: "M4 8h8",
  info: "M8 7v6M8 3.4v.2",
};

function Sign({ tone }: { tone: Tone }) {
  return (
    <svg class="sign" viewBox="0 0 16 16" aria-hidden="true">
      <path d={SIGNS[tone]} />
    </svg>
  );
}

const VERDICTS: Record<string, Tone> = { allow: "good", deny: "bad", error: "warning" };

export function Verdict({ children }: { children: string }) {
  return <Badge tone={VERDICTS[children] ?? "plain"}>{children}</Badge>;
}

const GOOD = ["ready", "connected", "succeeded", "complete", "closed", "ok", "running", "free", "used"];
const BAD = [
  "failed",
  "failing",
  "unplaced",
  "away",
  "no image",
  "open",
  "lost",
  "expired",
  "critical",
  "error",
  "exhausted",
  "ejected",
];
const WARNING = [
  "starting",
  "draining",
  "drained",
  "cordoned",
  "unhealthy",
  "behind",
  "pulling",
  "pending",
  "warning",
  "audited",
];

/** How good a state of a function, an instance, a node or a job is. */
export function toneOf(state: string): Tone {
  const is = (word: string) => state === word || state.startsWith(`${word} `);
  if (GOOD.some(is)) return "good";
  if (BAD.some(is)) return "bad";
  return WARNING.some(is) ? "warning" : "plain";
}

export function State({ children }: { children: string }) {
  return <Badge tone={toneOf(children)}>{children || "unknown"}</Badge>;
}

const STATUS: [least: number, tone: Tone][] = [
  [500, "bad"],
  [400, "warning"],
  [100, "good"],
];

/** An HTTP status; 0: there was no response. */
export function Status({ children }: { children: number }) {
  const tone = STATUS.find(([least]) => children >= least)?.[1] ?? "bad";
  return <span class={`status ${tone}`}>{children || "none"}</span>;
}
