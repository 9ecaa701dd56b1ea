// Requests to the server. All addresses are relative, so the page works below any path.

import { signal } from "@preact/signals";

/** How to begin a session; `null`: there is one, as far as the page knows. */
export type SignIn = "token" | "command";
export const signedOut = signal<SignIn | null>(null);

export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly problems: readonly Problem[] = [],
  ) {
    super(message);
  }
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return ask<T>(path, signal ? { signal } : {});
}

export async function send<T>(method: "POST" | "DELETE", path: string, body?: unknown): Promise<T> {
  const headers = { "x-leno-dashboard": "1", "content-type": "application/json" };
  return ask<T>(path, { method, headers, ...(body === undefined ? {} : { body: JSON.stringify(body) }) });
}

/** Path of a function's answer. */
export function functionPath(name: string): string {
  return `api/functions/${name.split("/").map(encodeURIComponent).join("/")}`;
}

async function ask<T>(path: string, init: RequestInit): Promise<T> {
  let response: Response;
  try {
    response = await fetch(path, { ...init, credentials: "same-origin", cache: "no-store" });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError(0, "The dashboard’s server does not answer.");
  }
  const text = await response.text();
  if (response.ok) return (text ? JSON.parse(text) : undefined) as T;
  const answer = refusal(text);
  if (response.status === 401 && path !== "session") signedOut.value = answer.sign_in ?? "token";
  throw new ApiError(response.status, answer.error ?? `The server answered ${response.status}.`, answer.problems ?? []);
}

/** A problem of a document. */
export interface Problem {
  file: string;
  line: number;
  field: string;
  message: string;
  fix: string;
}

interface Refusal {
  error?: string;
  sign_in?: SignIn;
  problems?: Problem[];
}

function refusal(text: string): Refusal {
  try {
    const answer: unknown = JSON.parse(text);
    return typeof answer === "object" && answer !== null ? answer : {};
  } catch {
    return {};
  }
}
