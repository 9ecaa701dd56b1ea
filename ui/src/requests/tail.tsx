import { useEffect, useRef, useState } from "preact/hooks";
import type { Flow } from "../api/types";
import { flows, followFlows, forgetFlows, graph, KEPT, missedFlows, type NumberedFlow } from "../mesh-state";
import { Status, Verdict } from "../parts/badge";
import { Choice, Input } from "../parts/field";
import { View } from "../parts/page";
import { Table } from "../parts/table";
import { Name, Text } from "../parts/text";
import { link, place, setQuery } from "../router";
import { bytes, clock, micros } from "../text/format";
import { workload } from "../text/names";
import { type Field, filterOf, isRequestId, KINDS, matches, parameters, VERDICTS } from "./filter";
import { visible } from "../text/safe";

/** Rows on the page at first. */
const SHOWN = 100;
/** Pause after the last key before the server is asked with another filter. */
const TYPED = 400;

export function RequestsView() {
  const filter = filterOf(place.value.query);
  const [stopped, setStopped] = useState<readonly NumberedFlow[] | null>(null);
  const asked = useSettled(JSON.stringify(parameters(filter)));
  useEffect(() => {
    forgetFlows();
    return followFlows(JSON.parse(asked) as Record<string, string>);
  }, [asked]);
  const all = stopped ?? flows.value.items;
  const shown = all.filter((flow) => matches(flow, filter));
  const names = (graph.value?.nodes ?? []).filter((node) => node.kind === "function").map((node) => node.name);
  const set = (field: Field) => (value: string) => setQuery({ [field]: value || undefined });
  const tools = (
    <div class="tools">
      <Choice label="Verdict" value={filter.verdict} options={VERDICTS} onChange={set("verdict")} />
      <Choice label="Kind" value={filter.kind} options={KINDS} onChange={set("kind")} />
      <Input
        label="Function"
        value={filter.function}
        known={names}
        placeholder="namespace/name"
        onInput={set("function")}
      />
      <Input label="Path" value={filter.path} placeholder="/items/*" onInput={set("path")} />
      <Input label="Host" value={filter.host} placeholder="part of it" onInput={set("host")} />
      <Input label="Port" value={filter.port} onInput={set("port")} digits />
      <Input label="Rule" value={filter.rule} placeholder="part of its name" onInput={set("rule")} />
      <button
        type="button"
        aria-pressed={stopped !== null}
        onClick={() => setStopped(stopped ? null : flows.value.items)}
      >
        {stopped ? "Continue" : "Pause"}
      </button>
      <button type="button" onClick={() => (forgetFlows(), setStopped(stopped && []))}>
        Clear
      </button>
    </div>
  );
  return (
    <View title="Requests" tools={tools}>
      <OpenById />
      {missedFlows.value > 0 && <p class="note">{missedFlows.value} events were too many to show.</p>}
      <FlowTable rows={shown} />
      {all.length >= KEPT && <p class="note">The page keeps the latest {KEPT}, and no earlier ones.</p>}
    </View>
  );
}

/** Opens a request of which only the ID is known. */
function OpenById() {
  const [id, setId] = useState("");
  const known = id.trim();
  const isId = isRequestId(known);
  const open = (event: Event) => {
    event.preventDefault();
    if (isId) location.hash = link(["requests", known]);
  };
  return (
    <form class="tools by-id" onSubmit={open}>
      <Input label="Request or trace ID" value={id} placeholder="x-request-id of the response" onInput={setId} />
      <button type="submit" disabled={!isId}>
        Open
      </button>
    </form>
  );
}

function FlowTable({ rows }: { rows: readonly NumberedFlow[] }) {
  return (
    <Table
      caption="Requests, connections and refusals, the latest first"
      rows={rows}
      most={SHOWN}
      id={(flow) => String(flow.number)}
      rowClass={(flow) => `flow ${flow.verdict}`}
      empty="Nothing yet. Requests appear here as they end."
      columns={[
        { name: "Time", cell: (flow) => <When flow={flow} /> },
        { name: "Verdict", cell: (flow) => <Verdict>{flow.verdict}</Verdict> },
        { name: "Call", cell: (flow) => <Ends flow={flow} /> },
        { name: "Request", cell: (flow) => <What flow={flow} /> },
        {
          name: "Status",
          figures: true,
          cell: (flow) => (flow.what === "connect" || isBefore(flow) ? "–" : <Status>{flow.status ?? 0}</Status>),
        },
        { name: "Took", figures: true, cell: (flow) => (flow.time_us === undefined ? "–" : micros(flow.time_us)) },
        { name: "Rule, or why", wide: true, cell: (flow) => <Why flow={flow} /> },
      ]}
    />
  );
}

function isBefore(flow: Flow): boolean {
  return flow.kind === "name" || flow.kind === "system-call";
}

function When({ flow }: { flow: Flow }) {
  const time = <time dateTime={visible(flow.time, 40)}>{clock(flow.time)}</time>;
  if (!flow.request_id) return time;
  return (
    <a href={link(["requests", flow.request_id])} aria-label={`Explain the request of ${clock(flow.time)}`}>
      {time}
    </a>
  );
}

function Ends({ flow }: { flow: Flow }) {
  return (
    <span class="ends">
      <Name>{workload(flow.source)}</Name>
      <span aria-label="to"> → </span>
      <Name>{flow.target ?? flow.host}</Name>
      <span class="note kind">{visible(flow.kind, 20)}</span>
    </span>
  );
}

function What({ flow }: { flow: Flow }) {
  return (
    <code>
      <Text most={16}>{flow.what}</Text> <Text most={90}>{flow.path ?? flow.host}</Text>
      {flow.kind === "connection" && (
        <span class="note"> {`${bytes(flow.sent ?? 0)} sent, ${bytes(flow.received ?? 0)} received`}</span>
      )}
    </code>
  );
}

function Why({ flow }: { flow: Flow }) {
  return (
    <>
      {flow.rule && (
        <code>
          <Text most={90}>{flow.rule}</Text>
        </code>
      )}
      {flow.audit && (
        <>
          {" audit: "}
          <Text most={90}>{flow.audit}</Text>
        </>
      )}
      {flow.reason && (
        <>
          {" "}
          <Text most={140}>{flow.reason}</Text>
        </>
      )}
    </>
  );
}

/** A value, once it has stayed the same for a moment. */
function useSettled(value: string): string {
  const [settled, setSettled] = useState(value);
  const first = useRef(true);
  useEffect(() => {
    if (first.current) {
      first.current = false;
      return;
    }
    const timer = window.setTimeout(() => setSettled(value), TYPED);
    return () => clearTimeout(timer);
  }, [value]);
  return settled;
}
