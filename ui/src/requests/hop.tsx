import type { Hop, Judgement } from "../api/types";
import { Status, Verdict } from "../parts/badge";
import { Rest } from "../parts/more";
import { Fact, Facts } from "../parts/page";
import { Text } from "../parts/text";
import { bytes, clock, micros, plural } from "../text/format";
import { visible } from "../text/safe";

/** Texts of a fact that are shown. */
const LISTED = 20;

const SIDES: Record<Hop["hop"], string> = {
  gateway: "The gateway",
  outbound: "The caller’s sidecar",
  inbound: "The callee’s sidecar",
};

/** The rule of a route, its match and its back end. */
function followed(route: NonNullable<Hop["route"]>): string {
  const backend = route.backend ? ` to ${route.backend}` : "";
  const copy = route.copy ? " (a copy)" : "";
  return `${route.name} rule ${route.rule}: ${route.matched}${backend}${copy}`;
}

/** Host and path as a route wrote them; empty: it changed neither. */
function rewritten({ route, asked }: Hop): string {
  if (!route || (route.authority === undefined && route.path === undefined)) return "";
  return `${route.authority ?? asked.authority}${route.path ?? asked.path}`;
}

/** One side of a call: what its sidecar, or the gateway, recorded. */
export function HopCard({ hop }: { hop: Hop }) {
  const { response, judgement } = hop;
  return (
    <article class="hop-card">
      <header>
        <h3>{SIDES[hop.hop] ?? "Recorded"}</h3>
        {hop.recorded_by && (
          <span class="note">
            on node <Text most={60}>{hop.recorded_by}</Text>
          </span>
        )}
        {judgement ? <Verdict>{judgement.verdict}</Verdict> : <span class="note">not judged</span>}
      </header>
      {judgement && <Decision judgement={judgement} />}
      {response.failure && (
        <p class="notice bad">
          <Text most={400}>{response.failure}</Text>
          {response.flag && (
            <>
              {" "}
              (<Text most={20}>{response.flag}</Text>)
            </>
          )}
        </p>
      )}
      <Facts>
        <Fact name="Response">
          <Status>{response.status}</Status>
          {response.grpc_status !== undefined && ` gRPC ${response.grpc_status}`}
          {response.upgraded && " WebSocket"}
        </Fact>
        <Fact name="Began">{clock(hop.time)}</Fact>
        <Fact name="Took">{micros(hop.stages.end_us)}</Fact>
        <Fact name="Body">{`${bytes(response.bytes_in)} in, ${bytes(response.bytes_out)} out`}</Fact>
        <Fact name="Peer">
          <Text>{hop.peer.identity ?? hop.peer.address}</Text>
        </Fact>
        <Fact name="Host">
          <Text>{hop.asked.authority}</Text>
        </Fact>
        <Fact name="Route">{hop.route && <Text most={200}>{followed(hop.route)}</Text>}</Fact>
        <Fact name="Rewritten">{rewritten(hop) && <Text most={200}>{rewritten(hop)}</Text>}</Fact>
        <Fact name="Protocol">
          <Text>{hop.asked.protocol}</Text>
        </Fact>
        <Fact name="Revision">{hop.revision && <Text>{hop.revision}</Text>}</Fact>
        <Fact name="Sent to node">{hop.node && <Text>{hop.node}</Text>}</Fact>
        <Fact name="Attempts">
          {list(
            (hop.attempts ?? []).map(
              (one) => `${one.endpoint ?? "no endpoint"}: ${one.result} at ${micros(one.at_us)}`,
            ),
          )}
        </Fact>
        <Fact name="Signatures">
          {list((hop.signatures ?? []).map((one) => `${one.algorithm} ${one.key.slice(0, 16)}: ${one.result}`))}
        </Fact>
        <Fact name="Rate limits">
          {list(
            (hop.quotas ?? []).map(
              (one) =>
                `${one.limit}: ${one.remaining === null ? "refused" : `${one.remaining} left`}${one.shared ? " (shared counter)" : ""}`,
            ),
          )}
        </Fact>
        <Fact name="Authorizers">
          {list(
            (hop.authorizers ?? []).map(
              (one) => `${one.name}: ${one.result}${one.remembered ? " (remembered)" : `, ${micros(one.asked_us)}`}`,
            ),
          )}
        </Fact>
        <Fact name="Extensions">
          {list((hop.extensions ?? []).map((one) => `${one.name}, ${one.phase}: ${one.result}, ${micros(one.run_us)}`))}
        </Fact>
        <Fact name="Edits">
          {list([...(hop.request_edits ?? []), ...(hop.response_edits ?? []).map((edit) => `response: ${edit}`)])}
        </Fact>
        <Fact name="Trace">{hop.trace && <Text>{hop.trace.trace_id}</Text>}</Fact>
        <Fact name="Span">{hop.trace && <Text>{hop.trace.span_id}</Text>}</Fact>
      </Facts>
    </article>
  );
}

/** `null`, so that there is no fact without a value. */
function list(texts: readonly string[]) {
  if (texts.length === 0) return null;
  return (
    <ul class="texts">
      {texts.slice(0, LISTED).map((text) => (
        <li>
          <Text>{text}</Text>
        </li>
      ))}
      {texts.length > LISTED && (
        <li>
          <Rest of={texts.length} most={LISTED} />
        </li>
      )}
    </ul>
  );
}

/** The verdict in words, with the rule that decided or came nearest. */
export function Decision({ judgement }: { judgement: Judgement }) {
  const { verdict, rule, clause, policy, principal, audit, engine, runs, sandbox_us, judge_us } = judgement;
  return (
    <div class={`decision ${verdict}`}>
      <p>
        {words(judgement)}{" "}
        {rule && (
          <code>
            <Text most={120}>{rule}</Text>
          </code>
        )}
        {clause && (
          <>
            {": "}
            <Text most={300}>{clause}</Text>
          </>
        )}
      </p>
      {audit && (
        <p class="note">
          Audit: {audit.verdict === "deny" ? "would be denied by" : "would be allowed by"}{" "}
          <code>
            <Text most={120}>{audit.rule}</Text>
          </code>{" "}
          <Text most={200}>{audit.clause ?? ""}</Text>
        </p>
      )}
      <p class="note">
        {policy && (
          <>
            Policy <Text most={60}>{policy}</Text>.{" "}
          </>
        )}
        {principal && (
          <>
            User <Text most={120}>{principal}</Text>.{" "}
          </>
        )}
        Judged in {micros(judge_us)}
        {engine && !judgement.remembered && `, ${runsOf(runs, visible(engine, 20))}, ${micros(sandbox_us)}`}.
        {judgement.remembered && " The decision on an equal request was remembered, so no sandbox ran."}
        {judgement.path_changed && " The path was normalised."}
        {judgement.as_received && " The path is forwarded as it came."}
      </p>
      {judgement.readings && judgement.readings.length > 0 && (
        <p class="note">
          Readings of the path, each judged:{" "}
          {judgement.readings.slice(0, LISTED).map((reading) => (
            <>
              <code>
                <Text most={120}>{reading}</Text>
              </code>{" "}
            </>
          ))}
          <Rest of={judgement.readings.length} most={LISTED} />
        </p>
      )}
    </div>
  );
}

function runsOf(runs: number, engine: string): string {
  if (runs === 0) return `in no sandbox (${engine})`;
  return `in ${plural(runs, "fresh sandbox", "fresh sandboxes")} (${engine})`;
}

function words({ verdict, default: isDefault, rule }: Judgement): string {
  if (verdict === "allow") return "Allowed by";
  if (verdict !== "deny") return "No reliable verdict";
  if (!isDefault) return "Denied by";
  return rule ? "Denied: no rule allows it. Nearest is" : "Denied: no rule allows it.";
}
