// Server-sent events: one connection for the page, open while it is looked at.

import { effect, signal } from "@preact/signals";
import { ApiError, get, signedOut } from "./client";

export type StreamState = "connecting" | "live" | "waiting" | "paused";

/** Whether events arrive. */
export const streamState = signal<StreamState>("connecting");
/** Why the mesh does not answer the server; empty: it does. */
export const problem = signal("");
/** When the last event arrived, in milliseconds since 1970. */
export const heardAt = signal<number | null>(null);

type Receiver = (data: unknown) => void;

/** Shortest and longest pause before another attempt, in milliseconds. */
const PAUSES = [1000, 30_000] as const;
/** Changes of topics within this time make one connection. */
const SETTLE = 50;

interface Subscription {
  topic: string;
  parameters: Record<string, string>;
}

const wanted = signal<readonly Subscription[]>([]);
const receivers = new Map<string, Set<Receiver>>();

/**
 * Subscribes to a topic, such as `graph:60`; `receive` gets the data of its events. `parameters` are
 * added to the address. The answer ends the subscription.
 */
export function subscribe(topic: string, receive: Receiver, parameters: Record<string, string> = {}): () => void {
  const event = topic.split(":", 1)[0] ?? topic;
  const all = receivers.get(event) ?? new Set();
  receivers.set(event, all.add(receive));
  const own: Subscription = { topic, parameters };
  wanted.value = [...wanted.peek(), own];
  return () => {
    all.delete(receive);
    wanted.value = wanted.peek().filter((other) => other !== own);
  };
}

/** The stream's address. */
export function address(subscriptions: readonly Subscription[]): string {
  const topics = new Set(subscriptions.map((subscription) => subscription.topic));
  const query = new URLSearchParams({ topics: [...topics].sort().join(",") });
  for (const { parameters } of subscriptions) {
    for (const [name, value] of Object.entries(parameters)) if (value) query.set(name, value);
  }
  return `api/stream?${query}`;
}

/** Keeps the connection in step with subscriptions, and closes it while the page is hidden. */
export function startStream(): void {
  const hidden = signal(document.hidden);
  document.addEventListener("visibilitychange", () => (hidden.value = document.hidden));
  let source: EventSource | undefined;
  let timer = 0;
  let failures = 0;

  const close = () => {
    clearTimeout(timer);
    source?.close();
    source = undefined;
  };
  const open = (url: string) => {
    const opened = new EventSource(url, { withCredentials: true });
    source = opened;
    opened.onopen = () => {
      failures = 0;
      streamState.value = "live";
    };
    opened.onerror = () => {
      // The browser's own attempts have no back-off.
      opened.close();
      if (source !== opened) return;
      streamState.value = "waiting";
      failures += 1;
      timer = window.setTimeout(() => void again(url), pause(failures));
    };
    opened.addEventListener("problem", (message: MessageEvent<string>) => {
      problem.value = errorOf(message.data);
    });
    // The session is over; the answer tells how to begin another one.
    opened.addEventListener("ended", () => {
      close();
      get("api/mesh").catch(() => undefined);
    });
    for (const event of ["graph", "flows", "alerts", "logs"]) {
      opened.addEventListener(event, (message) => deliver(event, message));
    }
  };
  const again = async (url: string) => {
    // An event source does not tell why it failed.
    try {
      await get("api/mesh");
    } catch (error) {
      if (error instanceof ApiError && error.status === 401) return;
    }
    open(url);
  };

  effect(() => {
    const url = address(wanted.value);
    const isIdle = hidden.value || signedOut.value !== null || wanted.value.length === 0;
    close();
    failures = 0;
    streamState.value = hidden.value ? "paused" : "connecting";
    if (!isIdle) timer = window.setTimeout(() => open(url), SETTLE);
  });
}

function deliver(event: string, message: MessageEvent<string>): void {
  let data: unknown;
  try {
    data = JSON.parse(message.data);
  } catch {
    return;
  }
  heardAt.value = Date.now();
  problem.value = "";
  for (const receive of receivers.get(event) ?? []) receive(data);
}

function errorOf(text: string): string {
  try {
    const { error } = JSON.parse(text) as { error?: unknown };
    return typeof error === "string" ? error : text;
  } catch {
    return text;
  }
}

/** Doubles with each failure; half of it is random, so that pages do not come back together. */
export function pause(failures: number, random = Math.random()): number {
  const longest = Math.min(PAUSES[1], PAUSES[0] * 2 ** Math.min(failures - 1, 10));
  return longest / 2 + (longest / 2) * random;
}
