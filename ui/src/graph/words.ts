// Nodes in words, for the drawing and for people who hear the page.

import type { GraphEdge, GraphNode, RevisionShare, Traffic } from "../api/types";
import { duration, percent, rate } from "../text/format";
import { split } from "../text/names";
import { visible } from "../text/safe";

export const KINDS: Record<GraphNode["kind"], string> = {
  gateway: "gateway: clients outside the mesh",
  function: "function",
  external: "external service",
  unknown: "destination that is no callee",
};

export const STATUSES: Record<GraphEdge["status"], string> = {
  active: "in use",
  unused: "allowed, unused",
  refused: "tried, refused",
};

/** The lines of a node in the drawing: its name in two parts, and figures or its state. */
export function drawn(node: GraphNode, window: number): { namespace: string; name: string; figures: string } {
  const [namespace, name] = node.kind === "unknown" ? ["", node.name] : split(node.name);
  return {
    namespace: namespace && `${visible(namespace, 14)}/`,
    name: visible(name, 28),
    figures: figures(node, window),
  };
}

function figures(node: GraphNode, window: number): string {
  if (["failed", "failing", "unplaced", "starting"].includes(node.state)) return node.state;
  if (node.kind === "gateway") return "clients outside";
  if (node.kind === "unknown") return "no callee: refused";
  if (node.rate <= 0) return node.kind === "function" ? node.state || "no requests" : "no requests";
  return `${rate(node.rate, window)} · ${percent(node.success)} · ${duration(node.p99)}`;
}

/** A node in words. They begin with the drawn ones, for people who speak to the page. */
export function nodeLabel(node: GraphNode, window: number): string {
  const { namespace, name, figures } = drawn(node, window);
  const words = [`${namespace}${name} ${figures}`, KINDS[node.kind]];
  if (`${namespace}${name}` !== node.name) words.push(visible(node.name, 200));
  if (node.state) words.push(node.state);
  if (node.kind === "function") words.push(`${node.ready} of ${node.desired} instances ready`);
  if (node.rate > 0) words.push(traffic(node, window));
  if (node.chain) words.push(`chain ${visible(node.chain, 80)}`);
  words.push(...node.shares.slice(0, 16).map(shareInWords));
  if (node.failure) words.push(visible(node.failure, 120));
  return words.join(", ");
}

/** `shop-00002 (next) 10 %`, and the share that it serves if that is another. */
export function shareInWords({ revision, percent, served }: RevisionShare): string {
  const serves = percent === served ? "" : `, serves ${served} %`;
  return `${visible(revision, 80)} ${percent} %${serves}`;
}

function traffic({ rate: all, success, p99, denied }: Traffic, window: number): string {
  const words = [`${rate(all, window)} requests`, `${percent(success)} success`];
  if (p99 !== null) words.push(`99th percentile ${duration(p99)}`);
  if (denied > 0) words.push(`${rate(denied, window)} denied`);
  return words.join(", ");
}
