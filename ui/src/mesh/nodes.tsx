import { useResource } from "../api/resource";
import type { NodeRow, Rows } from "../api/types";
import { mesh } from "../mesh-state";
import { Badge, State } from "../parts/badge";
import { Fact, Facts, Loaded, Missing, Section, View } from "../parts/page";
import { Table } from "../parts/table";
import { Text } from "../parts/text";
import { bytes, moment, relative } from "../text/format";

const MODES = {
  up: "leno up: control plane, node and gateway in one process",
  node: "one node",
  control: "control plane",
};

export function NodesView() {
  const answer = useResource<Rows<NodeRow>>("api/nodes", 5);
  const info = mesh.value;
  return (
    <View title="Nodes">
      {info && (
        <Section title="This dashboard">
          <Facts>
            <Fact name="Asks">{MODES[info.mode] ?? "a mesh"}</Fact>
            <Fact name="Name">
              <Text>{info.name}</Text>
            </Fact>
            <Fact name="Release">
              <Text>{info.release}</Text>
            </Fact>
            <Fact name="Licences">
              <a href="licences.txt">of the packages in this page</a>
            </Fact>
            <Fact name="Role">
              <Text>{info.role ?? ""}</Text>
            </Fact>
            <Fact name="Namespaces">
              <Text>{info.namespaces && info.namespaces.length > 0 ? info.namespaces.join(", ") : "all"}</Text>
            </Fact>
          </Facts>
        </Section>
      )}
      <Loaded of={answer}>
        {({ rows, missing }) => (
          <>
            <Missing reasons={missing} />
            <Nodes rows={rows} />
          </>
        )}
      </Loaded>
    </View>
  );
}

function Nodes({ rows }: { rows: NodeRow[] }) {
  return (
    <Table
      caption="Nodes"
      rows={rows}
      id={(row) => row.node}
      columns={[
        { name: "Node", by: (row) => row.node, cell: (row) => <Text most={60}>{row.node}</Text> },
        { name: "State", by: (row) => row.state, cell: (row) => <State>{row.state}</State> },
        {
          name: "Last seen",
          by: (row) => row.last_seen,
          cell: (row) => (row.last_seen ? <time title={moment(row.last_seen)}>{relative(row.last_seen)}</time> : "–"),
        },
        { name: "Roles", cell: (row) => <Text most={40}>{(row.roles ?? []).join(", ") || "node"}</Text> },
        { name: "Release", wide: true, cell: (row) => <Text most={40}>{row.version ?? "–"}</Text> },
        {
          name: "Zone",
          wide: true,
          by: (row) => row.zone,
          cell: (row) => <Text most={60}>{[row.region, row.zone].filter(Boolean).join("/") || "–"}</Text>,
        },
        { name: "Functions", figures: true, by: (row) => row.hosted, cell: (row) => row.hosted ?? "–" },
        {
          name: "Instances",
          figures: true,
          by: (row) => row.instances,
          cell: (row) => `${row.instances ?? "–"}${row.most_instances ? ` of ${row.most_instances}` : ""}`,
        },
        {
          name: "CPU",
          figures: true,
          wide: true,
          cell: (row) => (row.cpu_millis ? `${row.cpu_millis / 1000} cores` : "–"),
        },
        {
          name: "Memory",
          figures: true,
          wide: true,
          cell: (row) => (row.memory_bytes ? bytes(row.memory_bytes) : "–"),
        },
        {
          name: "Rejected",
          figures: true,
          cell: (row) => (row.rejected ? <Badge tone="bad">{`${row.rejected}`}</Badge> : "0"),
        },
        { name: "Certificate", cell: (row) => <Certificate row={row} /> },
      ]}
    />
  );
}

function Certificate({ row }: { row: NodeRow }) {
  if (!row.certificate_expires) return <>–</>;
  const isLate = Boolean(row.overdue) || row.certificate_expires * 1000 < Date.now();
  return <Badge tone={isLate ? "bad" : "good"}>{`ends ${relative(row.certificate_expires)}`}</Badge>;
}
