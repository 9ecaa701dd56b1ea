// What several views share: the mesh, its graph, the latest flows, and alerts.

import { signal } from "@preact/signals";
import { get } from "./api/client";
import { subscribe } from "./api/stream";
import type { AlertRow, Flow, Graph, MeshInfo } from "./api/types";
import { bounded } from "./text/safe";
import { Ring } from "./requests/ring";

export const mesh = signal<MeshInfo | null>(null);
/** Seconds that the graph's rates are of; 0: counts since the nodes started. */
export const graphWindow = signal(60);
export const graph = signal<Graph | null>(null);
export const alerts = signal<AlertRow[] | null>(null);
export const alertsMissing = signal<string[]>([]);

export async function loadMesh(): Promise<void> {
  const info = await get<MeshInfo>("api/mesh");
  mesh.value = { ...info, features: info.features ?? {} };
}

export function followGraph(seconds: number): () => void {
  if (graph.peek() && graphWindow.peek() !== seconds) graph.value = null;
  graphWindow.value = seconds;
  return subscribe(`graph:${seconds}`, (data) => {
    graph.value = data as Graph;
  });
}

/** Flows and alerts that the page keeps; the oldest flows are forgotten. */
export const KEPT = 1000;

export function followAlerts(): () => void {
  return subscribe("alerts", (data) => {
    const { rows, missing } = Array.isArray(data)
      ? { rows: data as AlertRow[], missing: [] }
      : (data as { rows: AlertRow[]; missing?: string[] });
    alerts.value = rows.slice(0, KEPT);
    const beyond = rows.length > KEPT ? [`${rows.length - KEPT} alerts are more than the page keeps.`] : [];
    alertsMissing.value = [...beyond, ...(missing ?? [])];
  });
}

/** Pause between two changes of the list, in milliseconds: under load, people cannot read it anyway. */
const PAUSE = 250;
const PAUSE_UNDER_LOAD = 1000;
/** More flows than these in one pause are load. */
const LOAD = 50;

export type NumberedFlow = Flow & { number: number };
export const flows = signal(new Ring<NumberedFlow>(KEPT));
export const missedFlows = signal(0);
let counted = 0;

export function followFlows(filter: Record<string, string>): () => void {
  let arrived: NumberedFlow[] = [];
  let timer = 0;
  const show = () => {
    timer = 0;
    flows.value = flows.value.with(arrived);
    arrived = [];
  };
  const end = subscribe(
    "flows",
    (data) => {
      const { flows: found, missed } = data as { flows: Flow[]; missed: number };
      arrived.push(...found.map((flow) => ({ ...bounded(flow), number: (counted += 1) })));
      arrived = arrived.slice(-KEPT);
      missedFlows.value += missed;
      const isFirst = flows.peek().items.length === 0;
      timer ||= window.setTimeout(show, isFirst ? 0 : found.length > LOAD ? PAUSE_UNDER_LOAD : PAUSE);
    },
    filter,
  );
  return () => {
    clearTimeout(timer);
    end();
  };
}

export function forgetFlows(): void {
  flows.value = new Ring(KEPT);
  missedFlows.value = 0;
}
