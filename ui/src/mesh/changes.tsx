import { useRef, useState } from "preact/hooks";
import { get } from "../api/client";
import { useResource } from "../api/resource";
import type { ChangedDocument, ChangeRow, Page } from "../api/types";
import { Badge, type Tone } from "../parts/badge";
import { More, Rest, useCut } from "../parts/more";
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
/** Changes on the page at first, and documents of each. */
const SHOWN = 100;

export function ChangesView() {
  const answer = useResource<Page<ChangeRow>>("api/changes", 10);
  return (
    <View title="Changes">
      <Loaded of={answer}>
        {({ rows, missing, after }) => (
          <>
            <Missing reasons={missing} />
            <Changes latest={rows} after={after} />
          </>
        )}
      </Loaded>
    </View>
  );
}

/** The latest changes, and earlier ones as far as they were asked for. */
function Changes({ latest, after }: { latest: readonly ChangeRow[]; after: string | undefined }) {
  // Changes that left the latest ones since the page opened stay.
  const known = useRef(new Map<string, ChangeRow>()).current;
  const [earlier, setEarlier] = useState<{ after: string | undefined; error?: string } | null>(null);
  const [isAsking, setAsking] = useState(false);
  const add = (rows: readonly ChangeRow[]) => rows.forEach((row) => known.set(`${row.revision} ${row.time}`, row));
  add(latest);
  const rows = [...known].sort(([, one], [, other]) => other.time - one.time);
  const { shown, hidden, more } = useCut(rows, SHOWN);
  const next = earlier ? earlier.after : after;
  const ask = async () => {
    if (!next) return;
    setAsking(true);
    try {
      const page = await get<Page<ChangeRow>>(`api/changes?after=${encodeURIComponent(next)}`);
      add(page.rows);
      setEarlier({ after: page.after });
    } catch (error) {
      setEarlier({ after: next, error: error instanceof Error ? error.message : String(error) });
    }
    setAsking(false);
  };
  if (rows.length === 0) return <p class="empty">No changes are recorded.</p>;
  return (
    <>
      <ol class="changes">
        {shown.map(([key, row], index) => (
          <Change key={key} row={row} isLatest={index === 0} />
        ))}
      </ol>
      {earlier?.error && (
        <p class="notice bad" role="alert">
          <Text most={300}>{earlier.error}</Text>
        </p>
      )}
      {hidden > 0 ? (
        <More hidden={hidden} onMore={more} />
      ) : (
        next && <More hidden={null} onMore={() => void ask()} isAsking={isAsking} />
      )}
    </>
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
      <Rest of={row.changes.length} most={SHOWN} />
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
