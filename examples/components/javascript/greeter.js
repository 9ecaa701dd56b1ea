// The greeter of ../rust, in JavaScript: it greets whoever calls, in words that another function gives it.
import { getEnvironment } from "wasi:cli/environment@0.2.10";

addEventListener("fetch", (event) => event.respondWith(answer(event.request)));

async function answer(request) {
  const name = new URL(request.url).pathname.replaceAll("/", "") || "stranger";
  const from = getEnvironment().find(([key]) => key === "GREETING_FROM");
  if (!from) return new Response(`Hello, ${name}!\n`);
  const response = await fetch(from[1]);
  if (!response.ok) return new Response(`no greeting today: ${response.status}\n`, { status: 502 });
  return new Response(`${(await response.text()).trim()}, ${name}!\n`);
}
