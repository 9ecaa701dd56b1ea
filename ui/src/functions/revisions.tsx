import type { RevisionRow } from "../api/types";
import { Badge } from "../parts/badge";
import { Table } from "../parts/table";
import { Text } from "../parts/text";
import { moment, percent } from "../text/format";
import { visible } from "../text/safe";

/** The percentage that a revision serves. */
function servedBy({ percent, served }: RevisionRow): number {
  return served ?? percent ?? 0;
}

/** The percentage that a revision is to get and, if that is another, the one that it serves. */
function shareOf(row: RevisionRow): string {
  const { percent } = row;
  if (percent === null || percent === undefined) return "–";
  return servedBy(row) === percent ? `${percent} %` : `${percent} %, serves ${servedBy(row)} %`;
}

/** The shares that the revisions serve, as a bar and in words. */
export function Shares({ revisions }: { revisions: readonly RevisionRow[] }) {
  const used = revisions.filter((revision) => (revision.percent ?? 0) > 0 || servedBy(revision) > 0);
  if (used.length === 0) return null;
  let before = 0;
  return (
    <figure class="shares">
      <svg viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">
        {used.map((revision, index) => {
          const x = before;
          before += servedBy(revision);
          return <rect class={`share-${index % 4}`} x={x} width={Math.max(servedBy(revision) - 0.4, 0.4)} height="8" />;
        })}
      </svg>
      <figcaption>
        {used.map((revision, index) => (
          <span>
            <i class={`dot share-${index % 4}`} aria-hidden="true" />
            <Text most={60}>{revision.declared ?? revision.revision}</Text> {shareOf(revision)}
            {revision.step && `, step ${visible(revision.step, 30)}`}
          </span>
        ))}
      </figcaption>
    </figure>
  );
}

export function Revisions({ revisions }: { revisions: readonly RevisionRow[] }) {
  return (
    <>
      {revisions.length > 1 && <Shares revisions={revisions} />}
      <Table
        caption="Revisions"
        rows={[...revisions].reverse()}
        id={(row) => row.revision}
        columns={[
          {
            name: "Revision",
            cell: (row) => (
              <>
                <Text most={80}>{row.revision}</Text>{" "}
                {row.declared && <span class="note">({visible(row.declared, 60)})</span>}
              </>
            ),
          },
          { name: "Share", figures: true, cell: shareOf },
          { name: "Rollout", cell: rollout },
          { name: "Requests", figures: true, cell: (row) => row.requests ?? "–" },
          { name: "Failed", figures: true, cell: (row) => share(row.failures, row.requests) },
          { name: "Slow", figures: true, cell: (row) => share(row.slow, row.requests) },
          { name: "Made", wide: true, cell: (row) => (row.created ? moment(row.created) : "–") },
          { name: "Image", wide: true, cell: (row) => <Text most={80}>{row.image ?? "–"}</Text> },
        ]}
      />
    </>
  );
}

function rollout(row: RevisionRow) {
  if (row.failed) {
    return (
      <>
        <Badge tone="bad">rolled back</Badge> <Text most={300}>{row.failed}</Text>
      </>
    );
  }
  if (row.problem) {
    return (
      <>
        <Badge tone="bad">failing</Badge> <Text most={400}>{row.problem}</Text>
      </>
    );
  }
  if (row.paused) return <Badge tone="warning">paused</Badge>;
  return row.step ? <Badge tone="info">{`step ${visible(row.step, 30)}`}</Badge> : "–";
}

function share(part: number | null | undefined, all: number | null | undefined) {
  if (part === null || part === undefined) return "–";
  return all ? `${part} (${percent(part / all)})` : String(part);
}
