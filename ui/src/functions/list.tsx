import { useEffect } from "preact/hooks";
import { useResource } from "../api/resource";
import type { FunctionRow, GraphNode, Rows } from "../api/types";
import { followGraph, graph } from "../mesh-state";
import { State } from "../parts/badge";
import { Input } from "../parts/field";
import { Loaded, Missing, View } from "../parts/page";
import { Table } from "../parts/table";
import { Name, Text } from "../parts/text";
import { place, setQuery } from "../router";
import { duration, percent, rate } from "../text/format";
import { stateOf } from "./state";

export function FunctionsView() {
  useEffect(() => followGraph(60), []);
  const answer = useResource<Rows<FunctionRow>>("api/functions", 5);
  const search = place.value.query.get("search") ?? "";
  const traffic = new Map((graph.value?.nodes ?? []).map((node) => [node.name, node]));
  const tools = (
    <div class="tools">
      <Input
        label="Find"
        value={search}
        placeholder="name"
        onInput={(text) => setQuery({ search: text || undefined })}
      />
    </div>
  );
  return (
    <View title="Functions" tools={tools}>
      <Loaded of={answer}>
        {({ rows, missing }) => (
          <>
            <Missing reasons={missing} />
            <Functions
              rows={rows.filter((row) => row.function.toLowerCase().includes(search.toLowerCase()))}
              traffic={traffic}
            />
          </>
        )}
      </Loaded>
    </View>
  );
}

function Functions({ rows, traffic }: { rows: FunctionRow[]; traffic: ReadonlyMap<string, GraphNode> }) {
  const of = (row: FunctionRow) => traffic.get(row.function);
  const window = graph.value?.window ?? 60;
  return (
    <Table
      caption="Functions"
      rows={rows}
      id={(row) => row.function}
      empty="No function matches."
      columns={[
        { name: "Function", by: (row) => row.function, cell: (row) => <Name linked>{row.function}</Name> },
        { name: "State", by: stateOf, cell: (row) => <State>{stateOf(row)}</State> },
        {
          name: "Instances",
          figures: true,
          by: (row) => row.ready ?? 0,
          cell: (row) => (row.external ? "–" : `${row.ready ?? 0}/${row.desired ?? 0}`),
        },
        {
          name: "Requests",
          figures: true,
          by: (row) => of(row)?.rate ?? 0,
          cell: (row) => rate(of(row)?.rate ?? 0, window),
        },
        { name: "Success", figures: true, by: (row) => of(row)?.success, cell: (row) => percent(of(row)?.success) },
        {
          name: "Denied",
          figures: true,
          by: (row) => of(row)?.denied ?? 0,
          cell: (row) => ((of(row)?.denied ?? 0) > 0 ? rate(of(row)?.denied ?? 0, window) : "–"),
        },
        { name: "p99", figures: true, by: (row) => of(row)?.p99, cell: (row) => duration(of(row)?.p99) },
        {
          name: "Waiting",
          figures: true,
          wide: true,
          by: (row) => row.waiting ?? 0,
          cell: (row) => row.waiting || "–",
        },
        { name: "Why", wide: true, cell: (row) => <Text most={120}>{row.failure ?? row.reason ?? ""}</Text> },
      ]}
    />
  );
}
