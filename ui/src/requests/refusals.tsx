import type { Hop, RefusedAttempt } from "../api/types";
import { Verdict } from "../parts/badge";
import { More, useCut } from "../parts/more";
import { Section } from "../parts/page";
import { Name, Text } from "../parts/text";
import { micros, plural } from "../text/format";
import { attemptWords, inOrder } from "./hops";

/** Attempts on the page at first. */
const SHOWN = 32;

/** What the mesh refused instances while they handled the request. */
export function Refusals({ hops }: { hops: readonly Hop[] }) {
  const refused = inOrder(hops).flatMap((hop) =>
    (hop.refusals ?? []).map((attempt) => ({ attempt, name: hop.target ?? "" })),
  );
  const { shown, hidden, more } = useCut(refused, SHOWN);
  if (refused.length === 0) return null;
  return (
    <Section title="Refused during the request">
      <ul class="refusals">
        {shown.map(({ attempt, name }) => (
          <Refusal attempt={attempt} function={name} />
        ))}
      </ul>
      <More hidden={hidden} onMore={more} />
    </Section>
  );
}

function Refusal({ attempt, function: name }: { attempt: RefusedAttempt; function: string }) {
  const { rule, reason, fix, count, among, at_us } = attempt;
  return (
    <li class="decision deny">
      <p>
        <Verdict>deny</Verdict> <Name linked>{name}</Name> <Text most={200}>{attemptWords(attempt)}</Text>{" "}
        {micros(at_us)} after the start{count > 1 && `, ${count} times`}: <Text most={300}>{reason}</Text>{" "}
        {rule && (
          <code>
            <Text most={120}>{rule}</Text>
          </code>
        )}
      </p>
      {among > 1 && (
        <p class="note">The instance was handling {plural(among, "request")}. The attempt may belong to another one.</p>
      )}
      {fix && (
        <p class="fix">
          <strong>Fix:</strong> <Text most={300}>{fix}</Text>
        </p>
      )}
    </li>
  );
}
