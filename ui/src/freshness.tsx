import { useEffect, useState } from "preact/hooks";
import { heardAt, problem, streamState } from "./api/stream";
import { Badge, type Tone } from "./parts/badge";
import { Text } from "./parts/text";
import { clock } from "./text/format";
import { visible } from "./text/safe";

/** Without an event for this time, the page is behind, in milliseconds. */
const BEHIND = 15_000;

/** Whether the page is live, and as of when. */
export function Freshness() {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = window.setInterval(() => document.hidden || setNow(Date.now()), 5000);
    return () => clearInterval(timer);
  }, []);
  const heard = heardAt.value;
  const isBehind = streamState.value === "live" && heard !== null && now - heard > BEHIND;
  const [tone, text]: [Tone, string] = problem.value
    ? ["bad", "no answer"]
    : isBehind
      ? ["warning", "behind"]
      : STATES[streamState.value];
  return (
    <span class="freshness">
      <span role="status">
        <Badge tone={tone}>{text}</Badge>
      </span>
      {heard !== null && (tone !== "good" || isBehind) && <span class="note">as of {clock(heard / 1000, false)}</span>}
      {problem.value && (
        <span class="note why" title={visible(problem.value, 500)}>
          <Text most={120}>{problem.value}</Text>
        </span>
      )}
    </span>
  );
}

const STATES: Record<typeof streamState.value, [Tone, string]> = {
  connecting: ["plain", "connecting"],
  live: ["good", "live"],
  waiting: ["warning", "connection lost, trying again"],
  paused: ["plain", "paused"],
};
