import type { FunctionAnswer, FunctionPolicies, PolicyRule, PolicySection } from "../api/types";
import { Badge, type Tone } from "../parts/badge";
import { Missing, Section } from "../parts/page";
import { Name, Text } from "../parts/text";
import { figure, moment } from "../text/format";
import { visible } from "../text/safe";

const ACTIONS: Record<string, Tone> = {
  allow: "good",
  deny: "bad",
  route: "info",
  limit: "info",
  authenticate: "info",
};
const VERDICTS: Record<string, string> = {
  allow: "allowed",
  deny: "denied",
  error: "without a verdict",
  audit_allow: "would be allowed",
  audit_deny: "would be denied",
};

/** The policies in force, rule by rule, with their hits. */
export function Policies({ policies }: { policies: FunctionPolicies }) {
  const { since, inbound, outbound, gateway, callers, hidden_callers = 0 } = policies;
  return (
    <>
      <Missing reasons={policies.missing} />
      <p class="note">
        {since ? `Hits since ${moment(since)}, when the node that counts longest started. ` : ""}
        The first policy that objects refuses a request.
      </p>
      <p>
        Callers: {callers.length === 0 && hidden_callers === 0 && "no function lists it as a callee."}
        {callers.map((caller) => (
          <>
            <Name linked>{caller}</Name>{" "}
          </>
        ))}
        {hidden_callers > 0 && `and ${hidden_callers} of other namespaces`}
      </p>
      <Direction title="Requests to it" sections={inbound} />
      <Direction title="Its own calls" sections={outbound} />
      <Direction title="At the gateway" sections={gateway} />
    </>
  );
}

/** The server answers one, or a list of one. */
export function policiesOf({ policies }: FunctionAnswer): FunctionPolicies | null {
  return (Array.isArray(policies) ? policies[0] : policies) ?? null;
}

/** The rules of a function's policies with this name. */
export function rulesNamed({ inbound, outbound, gateway }: FunctionPolicies, name: string): PolicyRule[] {
  const sections = [...inbound, ...outbound, ...gateway];
  return sections.flatMap((section) => section.rules).filter((rule) => rule.name === name);
}

function Direction({ title, sections }: { title: string; sections: readonly PolicySection[] }) {
  if (sections.length === 0) return null;
  return (
    <Section title={title}>
      {sections.map((section) => (
        <div class="policy">
          <h3>{visible(section.policy, 60)}</h3>
          <ol class="rules">
            {section.rules.map((rule) => (
              <Rule rule={rule} />
            ))}
          </ol>
          {section.otherwise && (
            <p class="note otherwise">
              Otherwise: <Text most={200}>{section.otherwise}</Text>.
            </p>
          )}
        </div>
      ))}
    </Section>
  );
}

/** A rule with its clauses and hits. */
export function Rule({ rule }: { rule: PolicyRule }) {
  const hits = Object.entries(rule.hits ?? {}).filter(([, count]) => count > 0);
  return (
    <li class={rule.without_effect ? "rule idle" : "rule"}>
      <div class="rule-head">
        <Badge tone={ACTIONS[rule.action] ?? "plain"}>{visible(rule.action, 30)}</Badge>
        <code>
          <Text>{rule.name}</Text>
        </code>
        {rule.audited && <Badge tone="warning">audit only</Badge>}
        <span class="hits">
          {hits.length === 0
            ? "no hits"
            : hits
                .map(([verdict, count]) => `${figure(count)} ${VERDICTS[verdict] ?? visible(verdict, 30)}`)
                .join(", ")}
        </span>
      </div>
      {rule.without_effect && (
        <p class="notice warning">
          No effect: <Text most={300}>{rule.without_effect}</Text>
        </p>
      )}
      {rule.clauses && rule.clauses.length > 0 && (
        <ul class="clauses">
          {rule.clauses.slice(0, 100).map((clause) => (
            <li>
              <Text most={300}>{clause}</Text>
            </li>
          ))}
        </ul>
      )}
    </li>
  );
}
