import { useResource } from "../api/resource";
import type { ChangedDocument, ChangeRow, Rows } from "../api/types";
import { Badge, type Tone } from "../parts/badge";
import { Loaded, Missing, View } from "../parts/page";
import { Text } from "../parts/text";
import { moment, plural, relative } from "../text/format";
import { Diff } from "./diff";

const TONES: Record<string, Tone> = {
  added: "good",
  created: "good",
  changed: "info",
  deleted: "bad",
  unchanged: "plain",
};
const SHOWN = 100;

export function ChangesView() {
  const answer = useResource<Rows<ChangeRow>>("api/changes", 10);
  return (
    <View title="Changes">
      <Loaded of={answer}>
        {({ rows, missing }) => (
          <>
            <Missing reasons={missing} />
            {rows.length === 0 && <p class="empty">No changes are recorded.</p>}
            <ol class="changes">
              {[...rows]
                .sort((one, other) => other.time - one.time)
                .slice(0, SHOWN)
                .map((row, index) => (
                  <Change key={`${row.revision} ${row.time}`} row={row} isLatest={index === 0} />
                ))}
            </ol>
            {rows.length > SHOWN && <p class="note">{rows.length - SHOWN} earlier changes are not shown.</p>}
          </>
        )}
      </Loaded>
    </View>
  );
}

function Change({ row, isLatest }: { row: ChangeRow; isLatest: boolean }) {
  return (
    <li class="card change">
      <h2>
        <time title={moment(row.time)}>{relative(row.time)}</time> by <Text most={80}>{row.by}</Text>
      </h2>
      <p class="note">
        {moment(row.time)}
        {row.revision > 0 && `, revision ${row.revision}`}
      </p>
      {row.changes.slice(0, SHOWN).map((change) => (
        <Document change={change} isOpen={isLatest} />
      ))}
      {row.verdicts && (
        <p class="note">
          Of {plural(row.verdicts.judged, "recorded request")}, the dry run before it decided otherwise:{" "}
          <strong>{row.verdicts.newly_denied} newly denied</strong>,{" "}
          <strong>{row.verdicts.newly_allowed} newly allowed</strong>.
        </p>
      )}
    </li>
  );
}

function Document({ change, isOpen }: { change: ChangedDocument; isOpen: boolean }) {
  const head = (
    <>
      <Badge tone={TONES[change.action] ?? "plain"}>{change.action}</Badge> <Text most={120}>{change.what}</Text>
    </>
  );
  if (!change.diff) return <p>{head}</p>;
  return (
    <details open={isOpen}>
      <summary>{head}</summary>
      <Diff text={change.diff} label={`Difference of ${change.what}`} />
    </details>
  );
}
