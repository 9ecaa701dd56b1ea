import { useEffect } from "preact/hooks";
import { functionPath } from "../api/client";
import { type Resource, useResource } from "../api/resource";
import type { EventRow, FunctionAnswer } from "../api/types";
import { EdgeTable } from "../graph/table";
import { Events } from "../mesh/events";
import { followGraph, graph } from "../mesh-state";
import { State } from "../parts/badge";
import { Loaded, Missing, Section, View } from "../parts/page";
import { Code, Name } from "../parts/text";
import { functionLink, link, place } from "../router";
import { Logs } from "./logs";
import { Overview } from "./overview";
import { Policies, policiesOf } from "./policies";
import { stateOf } from "./state";

const TABS = [
  ["", "Overview"],
  ["policies", "Policies"],
  ["calls", "Calls"],
  ["logs", "Logs"],
  ["events", "Events"],
  ["document", "Document"],
] as const;

export function FunctionView({ name }: { name: string }) {
  useEffect(() => followGraph(60), []);
  const tab = place.value.segments[3] ?? "";
  const answer = useResource<FunctionAnswer>(functionPath(name), 5);
  const row = answer.data?.function;
  return (
    <View title={<Name>{name}</Name>} tools={row && <State>{stateOf(row)}</State>}>
      <nav class="tabs" aria-label="Parts of the function">
        {TABS.map(([key, text]) => (
          <a href={functionLink(name, key)} {...(key === tab ? { "aria-current": "page" as const } : {})}>
            {text}
          </a>
        ))}
        <a href={link(["requests"], { function: name })}>Requests</a>
        <a href={link(["graph"], { focus: name, node: name })}>Graph</a>
      </nav>
      {tab === "logs" ? <Logs name={name} /> : <Tab tab={tab} name={name} answer={answer} />}
    </View>
  );
}

function Tab({ tab, name, answer }: { tab: string; name: string; answer: Resource<FunctionAnswer> }) {
  if (tab === "calls") return <Calls name={name} />;
  return (
    <Loaded of={answer}>
      {(data) => (
        <>
          <Missing
            reasons={data.missing?.filter((reason) => reason.startsWith("document:") === (tab === "document"))}
          />
          <Part tab={tab} name={name} data={data} />
        </>
      )}
    </Loaded>
  );
}

function Part({ tab, name, data }: { tab: string; name: string; data: FunctionAnswer }) {
  const policies = policiesOf(data);
  switch (tab) {
    case "policies":
      return policies ? <Policies policies={policies} /> : <p class="empty">The mesh tells no policies of it.</p>;
    case "events":
      return <Events rows={newestFirst(data.events ?? [])} />;
    case "document":
      return data.document ? (
        <Code text={data.document} label="Document" />
      ) : (
        <p class="empty">The document is not known here.</p>
      );
    default:
      return <Overview name={name} data={data} />;
  }
}

function newestFirst(rows: readonly EventRow[]): EventRow[] {
  return [...rows].sort((one, other) => other.time - one.time);
}

function Calls({ name }: { name: string }) {
  const whole = graph.value;
  if (!whole) return <p class="empty">Asking the mesh…</p>;
  return (
    <>
      <Section title="Callers">
        <EdgeTable caption="Callers" edges={whole.edges.filter((edge) => edge.target === name)} window={whole.window} />
      </Section>
      <Section title="Callees">
        <EdgeTable caption="Callees" edges={whole.edges.filter((edge) => edge.source === name)} window={whole.window} />
      </Section>
    </>
  );
}
