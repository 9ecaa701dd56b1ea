import type { FunctionReplay, Replay, ReplayExample, ReplayVerdict } from "../api/types";
import { Verdict } from "../parts/badge";
import { Missing } from "../parts/page";
import { Table } from "../parts/table";
import { Name, Text } from "../parts/text";
import { link } from "../router";
import { clock, plural } from "../text/format";
import { visible } from "../text/safe";

/** Recorded requests that documents would decide differently. `request`: the one that is looked at. */
export function ReplayResult({ replay, request }: { replay: Replay; request?: string }) {
  if (replay.functions.length === 0) return <p class="empty">No function’s policies would change.</p>;
  const isSame =
    request !== undefined &&
    !replay.functions.some((one) => one.examples.some((example) => example.requestId === request));
  return (
    <>
      {isSame && (
        <p class="note">This request is not among the examples below: its verdict stays, or it is one of many.</p>
      )}
      {replay.functions.map((one) => (
        <OfFunction one={one} request={request} />
      ))}
      {replay.hidden > 0 && (
        <p class="note">{plural(replay.hidden, "function")} of other namespaces would change too.</p>
      )}
    </>
  );
}

function OfFunction({ one, request }: { one: FunctionReplay; request: string | undefined }) {
  return (
    <div class="replay">
      <h3>
        <Name linked>{one.function}</Name>
      </h3>
      <p>
        {plural(one.judged, "request")} judged again: <strong>{one.newlyDenied} newly denied</strong>,{" "}
        <strong>{one.newlyAllowed} newly allowed</strong>
        {one.skipped > 0 && `, ${one.skipped} skipped for lack of time`}.
      </p>
      {one.unjudged.map(({ reason, requests }) => (
        <p class="note">
          {plural(requests, "request")} not judged: <Text>{reason}</Text>
        </p>
      ))}
      {one.leftOut.length > 0 && <p class="note">Left out: {visible(one.leftOut.join(", "), 200)}.</p>}
      <Missing reasons={one.missing} />
      {one.examples.length > 0 && (
        <Table
          caption="Requests with another verdict"
          rows={one.examples}
          id={(example) => `${example.node} ${example.requestId} ${example.direction}`}
          rowClass={(example) => (example.requestId === request ? "current" : "")}
          columns={[
            {
              name: "Time",
              cell: (example) => <a href={link(["requests", example.requestId])}>{clock(example.time)}</a>,
            },
            { name: "Call", cell: (example) => <Ends example={example} /> },
            { name: "Request", cell: (example) => <Text most={80}>{`${example.method} ${example.path}`}</Text> },
            { name: "Before", cell: (example) => <Judged by={example.before} /> },
            { name: "After", cell: (example) => <Judged by={example.after} /> },
          ]}
        />
      )}
    </div>
  );
}

function Ends({ example }: { example: ReplayExample }) {
  return (
    <>
      <Name>{example.caller}</Name>
      {example.callee && (
        <>
          {" → "}
          <Name>{example.callee}</Name>
        </>
      )}
    </>
  );
}

function Judged({ by }: { by: ReplayVerdict }) {
  return (
    <>
      <Verdict>{by.verdict}</Verdict> <Text most={80}>{by.rule}</Text>
    </>
  );
}
