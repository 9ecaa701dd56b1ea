// Places of the page, in the address’ fragment: `#/functions/demo/shop/logs?tail=1`.

import { signal } from "@preact/signals";

export interface Place {
  /** Decoded. */
  segments: string[];
  query: URLSearchParams;
}

export const place = signal<Place>(parse(globalThis.location?.hash ?? ""));

export function startRouter(): void {
  window.addEventListener("hashchange", () => {
    place.value = parse(location.hash);
  });
}

export function parse(hash: string): Place {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  return { segments: path.split("/").filter(Boolean).map(decoded), query: new URLSearchParams(query) };
}

function decoded(segment: string): string {
  try {
    return decodeURIComponent(segment);
  } catch {
    return segment;
  }
}

/** A link to a place. Empty parameters are left out. */
export function link(segments: string[], query: Record<string, string | undefined> = {}): string {
  const kept = Object.entries(query).filter((entry): entry is [string, string] => Boolean(entry[1]));
  const text = kept.length > 0 ? `?${new URLSearchParams(kept)}` : "";
  return `#/${segments.map(encodeURIComponent).join("/")}${text}`;
}

export function functionLink(name: string, tab?: string): string {
  return link(["functions", ...name.split("/"), ...(tab ? [tab] : [])]);
}

/** Changes parameters of the present place, without a step in the history. */
export function setQuery(changes: Record<string, string | undefined>): void {
  const query = Object.fromEntries(place.value.query);
  history.replaceState(null, "", link(place.value.segments, { ...query, ...changes }));
  place.value = parse(location.hash);
}
