import { useResource } from "../api/resource";
import type { EventRow, JobRow, Rows } from "../api/types";
import { State } from "../parts/badge";
import { Input } from "../parts/field";
import { Loaded, Missing, View } from "../parts/page";
import { Table } from "../parts/table";
import { Name, Text } from "../parts/text";
import { place, setQuery } from "../router";
import { moment, relative } from "../text/format";

const KINDS: Record<string, string> = {
  nodeJoined: "node joined",
  nodeAway: "node away",
  nodeBack: "node back",
  nodeRemoved: "node removed",
};

export function EventsView() {
  const answer = useResource<Rows<EventRow>>("api/events", 5);
  const search = place.value.query.get("search") ?? "";
  const tools = (
    <div class="tools">
      <Input
        label="Find"
        value={search}
        placeholder="function, node or kind"
        onInput={(text) => setQuery({ search: text || undefined })}
      />
    </div>
  );
  return (
    <View title="Events" tools={tools}>
      <Loaded of={answer}>
        {({ rows, missing }) => (
          <>
            <Missing reasons={missing} />
            <Events rows={rows.filter((row) => isFound(row, search)).reverse()} />
          </>
        )}
      </Loaded>
    </View>
  );
}

function isFound(row: EventRow, search: string): boolean {
  return [row.function, row.kind, row.node].some((text) => text?.includes(search));
}

/** Decisions on instances, rollouts and jobs, and events of nodes, newest first. */
export function Events({ rows }: { rows: readonly EventRow[] }) {
  return (
    <Table
      caption="Events, the latest first"
      rows={rows}
      id={(row) =>
        `${row.time} ${row.kind} ${row.function ?? ""} ${row.instance ?? ""} ${row.from ?? ""} ${row.node ?? ""}`
      }
      empty="Nothing has happened yet."
      columns={[
        { name: "When", cell: (row) => <time title={moment(row.time)}>{relative(row.time)}</time> },
        { name: "Kind", by: (row) => row.kind, cell: (row) => <Text most={40}>{KINDS[row.kind] ?? row.kind}</Text> },
        {
          name: "Function",
          by: (row) => row.function,
          cell: (row) => (row.function ? <Name linked>{row.function}</Name> : "–"),
        },
        { name: "Change", cell: (row) => change(row) },
        { name: "Why", cell: (row) => <Text most={300}>{row.reason ?? ""}</Text> },
        { name: "Node", wide: true, cell: (row) => <Text most={60}>{row.node ?? "–"}</Text> },
      ]}
    />
  );
}

function change(row: EventRow) {
  if (row.from === undefined || row.from === null) return <Text most={80}>{row.instance ?? ""}</Text>;
  const unit = row.kind === "rollout" ? " %" : "";
  return <Text most={80}>{`${row.from}${unit} → ${row.to ?? ""}${unit}`}</Text>;
}

export function JobsView() {
  const answer = useResource<Rows<JobRow>>("api/jobs", 5);
  return (
    <View title="Jobs">
      <Loaded of={answer}>
        {({ rows, missing }) => (
          <>
            <Missing reasons={missing} />
            <Table
              caption="Jobs"
              rows={rows}
              id={(row) => row.job}
              empty="The mesh has no jobs."
              columns={[
                { name: "Job", by: (row) => row.job, cell: (row) => <Name>{row.job}</Name> },
                { name: "State", by: (row) => row.state, cell: (row) => <State>{row.state}</State> },
                { name: "Completions", figures: true, cell: (row) => <Text most={20}>{row.completions ?? "–"}</Text> },
                { name: "Active", figures: true, by: (row) => row.active, cell: (row) => row.active ?? "–" },
                { name: "Failed", figures: true, by: (row) => row.failed, cell: (row) => row.failed ?? "–" },
                { name: "Began", by: (row) => row.start, cell: (row) => (row.start ? relative(row.start) : "–") },
                { name: "Ended", by: (row) => row.end, cell: (row) => (row.end ? relative(row.end) : "–") },
                { name: "Node", wide: true, cell: (row) => <Text most={60}>{row.node ?? "–"}</Text> },
                { name: "Reason", cell: (row) => <Text most={300}>{row.reason ?? ""}</Text> },
              ]}
            />
          </>
        )}
      </Loaded>
    </View>
  );
}
