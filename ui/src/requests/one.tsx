import { functionPath } from "../api/client";
import { useResource } from "../api/resource";
import type { FunctionAnswer, Hop, Rows } from "../api/types";
import { policiesOf, Rule, rulesNamed } from "../functions/policies";
import { mesh } from "../mesh-state";
import { Status, Verdict } from "../parts/badge";
import { Loaded, Missing, Section, View } from "../parts/page";
import { Code, Name, Text } from "../parts/text";
import { functionLink, link } from "../router";
import { clock, micros } from "../text/format";
import { linesOf } from "./document";
import { Decision, HopCard } from "./hop";
import { calls, deciding, inOrder, outcome } from "./hops";
import { Refusals } from "./refusals";
import { Timeline } from "./timeline";
import { TryAgain } from "./try-again";
import { visible } from "../text/safe";

export function RequestView({ id }: { id: string }) {
  const answer = useResource<Rows<Hop>>(`api/requests/${encodeURIComponent(id)}`);
  return (
    <View title={<Title answer={answer.data?.rows} id={id} />}>
      <p class="note">
        <a href={link(["requests"])}>All requests</a>
      </p>
      <Loaded of={answer}>
        {({ rows, missing }) => (
          <>
            <Missing reasons={missing} />
            {rows.length === 0 ? (
              <p class="empty">No node that answered remembers this request: each keeps the latest ones only.</p>
            ) : (
              <Request hops={rows} />
            )}
          </>
        )}
      </Loaded>
    </View>
  );
}

function Title({ answer, id }: { answer: Hop[] | undefined; id: string }) {
  const first = answer && inOrder(answer)[0];
  if (!first) return <>Request {visible(id, 40)}</>;
  return (
    <code>
      <Text most={16}>{first.asked.method}</Text> <Text most={120}>{first.asked.path}</Text>
    </code>
  );
}

function Request({ hops }: { hops: Hop[] }) {
  const ordered = inOrder(hops);
  const [first] = ordered;
  const decided = deciding(hops);
  if (!first) return null;
  return (
    <>
      <p class="summary">
        <Verdict>{outcome(hops)}</Verdict> <Status>{first.response.status}</Status> {micros(first.stages.end_us)},{" "}
        {clock(first.time)}
        <span class="note">
          {" "}
          ID <Text>{first.request_id}</Text>
        </span>
      </p>
      <Section title="Time line">
        <Timeline hops={hops} />
      </Section>
      <Refusals hops={hops} />
      {decided?.judgement && <Deciding key={decided.judgement.function} hop={decided} />}
      {calls(hops).map(({ caller, callee, sides }) => (
        <section class="card call">
          <h2>
            <Name linked>{caller}</Name>
            <span aria-label="calls"> → </span>
            <Name linked>{callee}</Name>
          </h2>
          <div class="sides">
            {sides.map((side) => (
              <HopCard hop={side} />
            ))}
          </div>
        </section>
      ))}
    </>
  );
}

/** The rule that decided, in the text of its document. */
function Deciding({ hop }: { hop: Hop }) {
  const judgement = hop.judgement;
  const name = judgement?.function ?? "";
  const answer = useResource<FunctionAnswer>(name.includes("/") ? functionPath(name) : null);
  if (!judgement) return null;
  const text = answer.data?.document ?? null;
  const marked = text === null ? [] : linesOf(text, judgement.rule);
  const policies = answer.data && policiesOf(answer.data);
  const rules = policies ? rulesNamed(policies, judgement.rule) : [];
  return (
    <>
      <Section title={judgement.default && judgement.verdict === "deny" ? "Nearest rule" : "Deciding rule"}>
        <Decision judgement={judgement} />
        <p class="actions">
          <a href={functionLink(name, "policies")}>
            Policies of <Name>{name}</Name>
          </a>
        </p>
        {rules.length > 0 && (
          <ul class="rules">
            {rules.map((rule) => (
              <Rule rule={rule} />
            ))}
          </ul>
        )}
        {text !== null && marked.length > 0 && (
          <Code text={excerpt(text, marked)} first={start(marked)} marked={marked} label="Document of the rule" />
        )}
      </Section>
      {mesh.value?.features.replay && <TryAgain document={text ?? ""} request={hop} />}
    </>
  );
}

/** Lines before and behind the marked ones. */
const AROUND = 6;

function start(marked: readonly number[]): number {
  return Math.max(0, Math.min(...marked) - AROUND);
}

function excerpt(text: string, marked: readonly number[]): string {
  return text
    .split(/\r?\n/)
    .slice(start(marked), Math.max(...marked) + AROUND + 1)
    .join("\n");
}
