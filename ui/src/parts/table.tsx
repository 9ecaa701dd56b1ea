import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { More, useCut } from "./more";

export interface Column<T> {
  name: string;
  cell: (row: T) => ComponentChildren;
  /** By what the column sorts; without it, it does not. */
  by?: (row: T) => string | number | null | undefined;
  /** Figures, aligned to the right. */
  figures?: boolean;
  /** Left out where there is little room. */
  wide?: boolean;
}

interface Props<T> {
  caption: string;
  rows: readonly T[];
  columns: readonly Column<T>[];
  id: (row: T) => string;
  /** Rows that are shown at first. */
  most?: number;
  empty?: ComponentChildren;
  rowClass?: (row: T) => string;
}

/** A table that sorts by its headings. The first column heads the rows. */
export function Table<T>({ caption, rows, columns, id, most = 500, empty, rowClass }: Props<T>) {
  const [sorting, setSorting] = useState<{ name: string; down: boolean } | null>(null);
  const by = columns.find((column) => column.name === sorting?.name)?.by;
  const sorted = by ? [...rows].sort((one, other) => compare(by(one), by(other), sorting?.down ?? false)) : rows;
  const { shown, hidden, more } = useCut(sorted, most);
  if (rows.length === 0) return <p class="empty">{empty ?? "Nothing to show."}</p>;
  const turn = (name: string) =>
    setSorting((last) => (last?.name === name && last.down ? null : { name, down: last?.name === name }));
  return (
    <div class="table" tabIndex={0} role="region" aria-label={caption}>
      <table>
        <caption class="only-heard">{caption}</caption>
        <thead>
          <tr>
            {columns.map((column) => {
              const isSorted = sorting?.name === column.name;
              const order = isSorted ? (sorting.down ? "descending" : "ascending") : undefined;
              return (
                <th scope="col" class={kind(column)} {...(order ? { "aria-sort": order } : {})}>
                  {column.by ? (
                    <button type="button" class="sort" onClick={() => turn(column.name)}>
                      {column.name}
                      <span aria-hidden="true">{isSorted ? (sorting.down ? " ↓" : " ↑") : ""}</span>
                    </button>
                  ) : (
                    column.name
                  )}
                </th>
              );
            })}
          </tr>
        </thead>
        <tbody>
          {shown.map((row) => (
            <tr key={id(row)} class={rowClass?.(row) ?? ""}>
              {columns.map((column, index) =>
                index === 0 ? (
                  <th scope="row" class={kind(column)}>
                    {column.cell(row)}
                  </th>
                ) : (
                  <td class={kind(column)} data-column={column.name}>
                    {column.cell(row)}
                  </td>
                ),
              )}
            </tr>
          ))}
        </tbody>
      </table>
      <More hidden={hidden} onMore={more} />
    </div>
  );
}

function kind<T>(column: Column<T>): string {
  return `${column.figures ? "figures" : ""} ${column.wide ? "wide" : ""}`.trim();
}

function compare(one: unknown, other: unknown, down: boolean): number {
  // Rows without a value are last, in both orders.
  const [isNone, isOtherNone] = [one ?? null, other ?? null].map((value) => value === null);
  if (isNone || isOtherNone) return Number(isNone) - Number(isOtherNone);
  const order =
    typeof one === "number" && typeof other === "number" ? one - other : String(one).localeCompare(String(other));
  return down ? -order : order;
}
