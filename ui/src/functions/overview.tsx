import type { FunctionAnswer, InstanceRow } from "../api/types";
import { graph } from "../mesh-state";
import { Badge, State } from "../parts/badge";
import { Fact, Facts, Section } from "../parts/page";
import { Table } from "../parts/table";
import { Name, Text } from "../parts/text";
import { duration, moment, percent, period, rate, relative } from "../text/format";
import { Limits } from "./limits";
import { Revisions } from "./revisions";
import { stateOf } from "./state";

export function Overview({ name, data }: { name: string; data: FunctionAnswer }) {
  const row = data.function;
  const traffic = graph.value?.nodes.find((node) => node.name === name);
  const window = graph.value?.window ?? 60;
  const exposed = Array.isArray(row?.exposed) ? row.exposed.join(", ") : row?.exposed ? "yes" : "";
  const audited = Array.isArray(row?.audited) ? row.audited.length > 0 : row?.audited === true;
  // A node names the reason of failures apart from the one of the number of instances.
  const failure = row?.failure ?? (row?.state?.startsWith("fail") ? row.reason : null);
  return (
    <>
      {failure && (
        <div class="notice bad" role="alert">
          <Text most={500}>{failure}</Text>
        </div>
      )}
      <div class="columns">
        <Section title="Function">
          <Facts>
            <Fact name="State">{row && <State>{stateOf(row)}</State>}</Fact>
            <Fact name="Instances">{row && !row.external && `${row.ready ?? 0} of ${row.desired ?? 0} ready`}</Fact>
            <Fact name="Why so many">
              {row?.reason && row.reason !== failure && <Text most={300}>{row.reason}</Text>}
            </Fact>
            <Fact name="Autoscaler">{row?.mode && <Text most={40}>{row.mode}</Text>}</Fact>
            <Fact name="Waiting requests">{row?.waiting}</Fact>
            <Fact name="Exposed">{exposed && <Text most={200}>{exposed}</Text>}</Fact>
            <Fact name="Engine">{row?.engine && <Text most={40}>{row.engine}</Text>}</Fact>
            <Fact name="Protocol">{row?.protocol && <Text most={40}>{row.protocol}</Text>}</Fact>
            <Fact name="Nodes">{row?.nodes && <Text>{row.nodes.join(", ")}</Text>}</Fact>
            <Fact name="Identity">{row?.identity && <Text>{row.identity}</Text>}</Fact>
            <Fact name="Policies">{audited && <Badge tone="warning">some audit only</Badge>}</Fact>
            <Fact name="Limits not enforced">
              {row?.unenforced_limits && <Text most={300}>{row.unenforced_limits}</Text>}
            </Fact>
          </Facts>
        </Section>
        <div>
          <Section title={`Requests, ${period(window)}`}>
            <Facts>
              <Fact name="Requests">{rate(traffic?.rate ?? 0, window)}</Fact>
              <Fact name="Success">{percent(traffic?.success)}</Fact>
              <Fact name="Denied">{rate(traffic?.denied ?? 0, window)}</Fact>
              <Fact name="Failed">{rate(traffic?.failed ?? 0, window)}</Fact>
              <Fact name="p50">{duration(traffic?.p50)}</Fact>
              <Fact name="p99">{duration(traffic?.p99)}</Fact>
            </Facts>
          </Section>
          <Certificate certificate={data.certificate} />
          {row?.callees && row.callees.length > 0 && (
            <Section title="Callees">
              <ul class="names">
                {row.callees.map((callee) => (
                  <li>
                    <Name linked>{callee}</Name>
                  </li>
                ))}
              </ul>
            </Section>
          )}
        </div>
      </div>
      {data.instances && (
        <Section title="Instances">
          <Instances rows={data.instances} />
        </Section>
      )}
      {data.revisions && data.revisions.length > 0 && (
        <Section title="Revisions">
          <Revisions revisions={data.revisions} />
        </Section>
      )}
      {data.limits && data.limits.length > 0 && (
        <Section title="Limits and circuit breakers">
          <Limits rows={data.limits} />
        </Section>
      )}
    </>
  );
}

/** A renewal that is late by this time has failed at least once, in seconds. */
const LATE = 60;

function Certificate({ certificate }: Pick<FunctionAnswer, "certificate">) {
  if (!certificate) return null;
  const now = Date.now() / 1000;
  const isLate = certificate.renew_at !== undefined && certificate.renew_at + LATE < now;
  const [tone, state] =
    certificate.not_after < now
      ? (["bad", "expired"] as const)
      : isLate
        ? (["warning", "renewal is late"] as const)
        : (["good", "valid"] as const);
  return (
    <Section title="Certificate">
      <Facts>
        <Fact name="State">
          <Badge tone={tone}>{state}</Badge>
        </Fact>
        <Fact name="Ends">{`${relative(certificate.not_after)}, ${moment(certificate.not_after)}`}</Fact>
        <Fact name="Renewal">{certificate.renew_at && relative(certificate.renew_at)}</Fact>
        <Fact name="Reason">{certificate.reason && <Text most={300}>{certificate.reason}</Text>}</Fact>
      </Facts>
    </Section>
  );
}

function Instances({ rows }: { rows: InstanceRow[] }) {
  return (
    <Table
      caption="Instances"
      rows={rows}
      id={(row) => `${row.node ?? ""} ${row.instance ?? row.state}`}
      empty="No instances now."
      columns={[
        { name: "Instance", cell: (row) => <Text most={80}>{row.instance ?? "none yet"}</Text> },
        { name: "State", by: (row) => row.state, cell: (row) => <State>{row.state}</State> },
        { name: "Node", wide: true, cell: (row) => <Text most={60}>{row.node ?? "–"}</Text> },
        { name: "Address", wide: true, cell: (row) => <Text most={60}>{row.address ?? "–"}</Text> },
        { name: "Isolation", wide: true, cell: (row) => <Text most={60}>{row.isolation ?? "–"}</Text> },
        { name: "Restarts", figures: true, by: (row) => row.restarts, cell: (row) => row.restarts ?? "–" },
        { name: "Reason", cell: (row) => <Text most={300}>{row.reason ?? ""}</Text> },
      ]}
    />
  );
}
