import type { LimitRow } from "../api/types";
import { State } from "../parts/badge";
import { Fact, Facts } from "../parts/page";
import { Text } from "../parts/text";

/** What is left of limits, and circuit breakers. */
export function Limits({ rows }: { rows: readonly LimitRow[] }) {
  return (
    <ul class="limits">
      {rows.map(({ kind, name, state, ...fields }) => (
        <li>
          <h3>
            <Text most={40}>{String(kind)}</Text> <Text most={100}>{String(name)}</Text>{" "}
            {typeof state === "string" && <State>{state}</State>}
          </h3>
          <Facts>
            {Object.entries(fields).map(([field, value]) => (
              <Fact name={field.replaceAll("_", " ")}>
                {value !== null && value !== undefined && (
                  <Text most={200}>{typeof value === "object" ? JSON.stringify(value) : String(value)}</Text>
                )}
              </Fact>
            ))}
          </Facts>
        </li>
      ))}
    </ul>
  );
}
