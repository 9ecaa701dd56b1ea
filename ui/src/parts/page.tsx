import type { ComponentChildren } from "preact";
import type { Resource } from "../api/resource";
import { Text } from "./text";

/** A view: its heading, its tools and its content. */
export function View({
  title,
  tools,
  children,
}: {
  title: ComponentChildren;
  tools?: ComponentChildren;
  children: ComponentChildren;
}) {
  return (
    <>
      <header class="view">
        <h1 tabIndex={-1} id="title">
          {title}
        </h1>
        {tools}
      </header>
      {children}
    </>
  );
}

export function Section({
  title,
  children,
  note,
}: {
  title: string;
  children: ComponentChildren;
  note?: ComponentChildren;
}) {
  return (
    <section class="card">
      <h2>{title}</h2>
      {note && <p class="note">{note}</p>}
      {children}
    </section>
  );
}

/** Why parts are missing: nodes that did not answer, or parts of a function without an answer. */
export function Missing({ reasons }: { reasons: readonly string[] | undefined }) {
  if (!reasons || reasons.length === 0) return null;
  const shown = reasons.slice(0, 5);
  return (
    <div class="notice warning" role="status">
      <strong>Incomplete.</strong>{" "}
      {shown.map((reason) => (
        <>
          <Text most={300}>{reason}</Text>{" "}
        </>
      ))}
      {reasons.length > shown.length && `And ${reasons.length - shown.length} more.`}
    </div>
  );
}

/** What a view shows of an answer: it is on its way, it failed, or `children` of it. */
export function Loaded<T>({ of, children }: { of: Resource<T>; children: (data: T) => ComponentChildren }) {
  return (
    <>
      {of.error !== undefined && (
        <div class="notice bad" role="alert">
          <Text most={500}>{of.error}</Text>{" "}
          <button type="button" onClick={of.reload}>
            Try again
          </button>
        </div>
      )}
      {of.data === undefined ? of.error === undefined && <p class="empty">Asking the mesh…</p> : children(of.data)}
    </>
  );
}

/** Names and values. */
export function Facts({ children }: { children: ComponentChildren }) {
  return <dl class="facts">{children}</dl>;
}

export function Fact({ name, children }: { name: string; children: ComponentChildren }) {
  if (children === null || children === undefined || children === "" || children === false) return null;
  return (
    <div>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}
