import { functionPath } from "../api/client";
import { useResource } from "../api/resource";
import type { FunctionAnswer, GraphEdge, GraphNode } from "../api/types";
import { Shares } from "../functions/revisions";
import { State } from "../parts/badge";
import { Fact, Facts } from "../parts/page";
import { Name, Text } from "../parts/text";
import { functionLink, link, setQuery } from "../router";
import { duration, percent, plural, rate } from "../text/format";
import { KINDS, STATUSES } from "./words";

interface Props {
  node: GraphNode;
  edges: readonly GraphEdge[];
  window: number;
  onClose: () => void;
}

/** The selected node: what it is, and its calls. */
export function Panel({ node, edges, window, onClose }: Props) {
  const isFunction = node.kind === "function";
  const details = useResource<FunctionAnswer>(
    isFunction && node.name.includes("/") ? functionPath(node.name) : null,
    10,
  );
  const callers = edges.filter((edge) => edge.target === node.name);
  const callees = edges.filter((edge) => edge.source === node.name);
  return (
    <aside class="panel card" aria-label="Selected node">
      <header>
        <h2>
          <Name>{node.name}</Name>
        </h2>
        <button type="button" class="quiet" aria-label="Close" onClick={onClose}>
          ✕
        </button>
      </header>
      <p class="note">{KINDS[node.kind]}</p>
      <Facts>
        <Fact name="State">{node.state && <State>{node.state}</State>}</Fact>
        <Fact name="Instances">{isFunction && `${node.ready} of ${node.desired} ready`}</Fact>
        <Fact name="Waiting requests">{node.waiting > 0 && node.waiting}</Fact>
        <Fact name="Requests">{rate(node.rate, window)}</Fact>
        <Fact name="Success">{node.rate > 0 && percent(node.success)}</Fact>
        <Fact name="Denied">{node.denied > 0 && rate(node.denied, window)}</Fact>
        <Fact name="p50, p99">{node.p50 !== null && `${duration(node.p50)}, ${duration(node.p99)}`}</Fact>
        <Fact name="Nodes">{node.hosts.length > 0 && <Text>{node.hosts.join(", ")}</Text>}</Fact>
        <Fact name="Chain">{node.chain && <Text most={80}>{node.chain}</Text>}</Fact>
        <Fact name="Failure">{node.failure && <Text most={400}>{node.failure}</Text>}</Fact>
      </Facts>
      {details.data?.revisions && details.data.revisions.length > 1 && <Shares revisions={details.data.revisions} />}
      <p class="actions">
        {isFunction && <a href={functionLink(node.name)}>Open</a>}
        {node.kind !== "gateway" && <a href={requestsLink(node, "")}>Requests</a>}
        {(node.denied > 0 || node.kind === "unknown") && <a href={requestsLink(node, "deny")}>Denied requests</a>}
        <button type="button" onClick={() => setQuery({ focus: node.name, search: undefined })}>
          Focus
        </button>
      </p>
      <Calls title={plural(callers.length, "caller")} edges={callers} end="source" window={window} />
      <Calls title={plural(callees.length, "callee")} edges={callees} end="target" window={window} />
    </aside>
  );
}

function requestsLink(node: GraphNode, verdict: string): string {
  return node.kind === "function" || node.kind === "external"
    ? link(["requests"], { function: node.name, verdict })
    : link(["requests"], { host: node.name, verdict });
}

interface CallsProps {
  title: string;
  edges: readonly GraphEdge[];
  end: "source" | "target";
  window: number;
}

/** Most calls in the panel; the table has all. */
const SHOWN = 50;

function Calls({ title, edges, end, window }: CallsProps) {
  if (edges.length === 0) return null;
  return (
    <>
      <h3>{title}</h3>
      <ul class="calls">
        {edges.slice(0, SHOWN).map((edge) => {
          return (
            <li key={edge[end]}>
              <button type="button" class="quiet" onClick={() => setQuery({ node: edge[end] })}>
                <Name>{edge[end]}</Name>
              </button>
              <span class={`note ${edge.status}`}>
                {edge.status !== "active" && `${STATUSES[edge.status]} `}
                {edge.rate > 0 && `${rate(edge.rate, window)} · ${percent(edge.success)} · p99 ${duration(edge.p99)}`}
                {edge.denied > 0 && edge.status === "active" && ` · ${rate(edge.denied, window)} denied`}
                {edge.chain && (
                  <>
                    {" · chain "}
                    <Text most={40}>{edge.chain}</Text>
                  </>
                )}
              </span>
            </li>
          );
        })}
      </ul>
      {edges.length > SHOWN && <p class="note">{edges.length - SHOWN} more are in the table.</p>}
    </>
  );
}
