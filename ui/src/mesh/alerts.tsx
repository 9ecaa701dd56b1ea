import type { AlertRow } from "../api/types";
import { useResource } from "../api/resource";
import type { Rows } from "../api/types";
import { alerts, alertsMissing } from "../mesh-state";
import { More, useCut } from "../parts/more";
import { Badge, type Tone } from "../parts/badge";
import { Loaded, Missing, View } from "../parts/page";
import { Name, Text } from "../parts/text";
import { moment, relative } from "../text/format";

const TONES: Record<string, Tone> = {
  critical: "bad",
  error: "bad",
  warning: "warning",
  info: "info",
  notice: "plain",
};

/** Alerts on the page at first. */
const SHOWN = 200;

const KINDS: Record<string, string> = {
  keySet: "key set",
  rolledBack: "rolled back",
  deniedEgress: "denied egress",
  ruleWithoutEffect: "rule without effect",
};

export function AlertsView() {
  // The stream has newer ones.
  const answer = useResource<Rows<AlertRow>>("api/alerts");
  return (
    <View title="Alerts">
      <Missing reasons={alertsMissing.value} />
      <Loaded of={answer}>
        {({ rows, missing }) => <Alerts rows={alerts.value ?? rows} missing={alerts.value ? [] : missing} />}
      </Loaded>
    </View>
  );
}

function Alerts({ rows, missing }: { rows: readonly AlertRow[]; missing: readonly string[] }) {
  const { shown, hidden, more } = useCut(rows, SHOWN);
  return (
    <>
      <Missing reasons={missing} />
      {rows.length === 0 && <p class="empty">Nothing needs attention.</p>}
      <ul class="alerts">
        {shown.map((row) => (
          <Alert row={row} />
        ))}
      </ul>
      <More hidden={hidden} onMore={more} />
    </>
  );
}

function Alert({ row }: { row: AlertRow }) {
  return (
    <li class="card alert">
      <p>
        <Badge tone={TONES[row.severity] ?? "warning"}>{row.severity}</Badge>{" "}
        <strong>
          <Text most={60}>{KINDS[row.kind] ?? row.kind}</Text>
        </strong>{" "}
        {row.function === undefined ? <Text most={96}>{row.subject}</Text> : <Name linked>{row.function}</Name>}
        {row.node && (
          <span class="note">
            {" "}
            on <Text most={60}>{row.node}</Text>
          </span>
        )}
        {row.since !== undefined && (
          <span class="note">
            {" "}
            {row.at_least ? "at least since" : "since"} <time title={moment(row.since)}>{relative(row.since)}</time>
          </span>
        )}
      </p>
      <p>
        <Text most={600}>{row.text}</Text>
      </p>
      {row.fix && (
        <p class="fix">
          <strong>Fix:</strong> <Text most={600}>{row.fix}</Text>
        </p>
      )}
    </li>
  );
}
