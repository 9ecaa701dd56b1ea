// A server of the page with a mesh that is made up. usage: node server.mjs FOLDER [PORT] [shop|large|hostile]
import { createServer } from "node:http";
import { readFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import * as functions from "./functions.mjs";
import * as graphs from "./graphs.mjs";
import * as listings from "./listings.mjs";
import * as requests from "./requests.mjs";

const POLICY =
  "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'self'";
const TYPES = {
  html: "text/html; charset=utf-8",
  js: "text/javascript; charset=utf-8",
  css: "text/css; charset=utf-8",
};

/** `options.flows`: how many requests nodes keep. `options.signIn`: `token` or `command`, as if there were no session. While `state.silent`, streams have no events. */
export async function start(folder, which = "shop", { port = 0, base = "/", signIn = null, flows: kept = 0 } = {}) {
  const words = which === "hostile" ? graphs.HOSTILE.markup + graphs.HOSTILE.bidi + graphs.HOSTILE.long : "";
  const graph = which === "large" ? graphs.large(200) : which === "hostile" ? graphs.hostile() : graphs.shop();
  const isHostile = which === "hostile";
  const state = { signedIn: signIn === null, silent: false, streams: 0, opened: 0 };
  const server = createServer(
    (request, response) => void answer(request, response).catch((error) => response.destroy(error)),
  );

  async function answer(request, response) {
    const url = new URL(request.url, "http://localhost");
    const send = (status, body, type = "application/json") => {
      response.writeHead(status, {
        "content-type": type,
        "content-security-policy": POLICY,
        "x-content-type-options": "nosniff",
        "cache-control": "no-store",
      });
      const answer = isHostile && status === 200 && body !== graph ? tainted(body) : body;
      response.end(typeof body === "string" || Buffer.isBuffer(body) ? body : JSON.stringify(answer));
    };
    if (!url.pathname.startsWith(base)) return send(404, { error: "there is no such page" });
    const path = url.pathname.slice(base.length);
    if (path === "" || path === "app.js" || path === "app.css") {
      const name = path || "index.html";
      return send(200, await readFile(`${folder}/${name}`), TYPES[name.split(".").at(-1)]);
    }
    if (path === "session") return session(request, send);
    if (!state.signedIn) return send(401, { error: "sign in", sign_in: signIn });
    const question = path.replace(/^api\//, "");
    if (question === "stream") return stream(url, request, response);
    if (question === "mesh")
      return send(200, {
        mode: "up",
        name: "test",
        release: "0.4.0",
        namespaces: null,
        role: "admin",
        sign_out: signIn === "token",
        features: { replay: true },
      });
    if (question === "graph") return send(200, graph);
    if (question === "replay") return send(200, listings.replay());
    if (question === "changes") return send(200, listings.changes(words, url.searchParams.get("after")));
    const rows = listings.listings(graph, words)[question];
    if (rows) return send(200, { rows, missing: [] });
    const [kind, ...rest] = question.split("/").map(decodeURIComponent);
    if (kind === "requests") return send(200, { rows: requests.hops(rest[0], words), missing: [] });
    const found = kind === "functions" ? functions.details(graph, rest.join("/"), words) : null;
    return found ? send(200, found) : send(404, { error: `there is no ${question.slice(0, 200)}` });
  }

  async function session(request, send) {
    let body = "";
    for await (const part of request) body += part;
    if (request.headers["x-leno-dashboard"] !== "1") return send(403, { error: "no header" });
    state.signedIn = request.method === "POST" && JSON.parse(body).token === "secret";
    return state.signedIn || request.method === "DELETE"
      ? send(204, "")
      : send(401, { error: "this token is not valid", sign_in: "token" });
  }

  function stream(url, request, response) {
    const topics = (url.searchParams.get("topics") ?? "").split(",");
    response.writeHead(200, { "content-type": "text/event-stream", "cache-control": "no-store" });
    state.streams += 1;
    state.opened += 1;
    const event = (name, data) => {
      const told = isHostile && name !== "graph" ? tainted(data) : data;
      response.write(`event: ${name}\ndata: ${JSON.stringify(told)}\n\n`);
    };
    const window = topics.find((topic) => topic.startsWith("graph:"))?.slice("graph:".length);
    const flows = () => [
      requests.flow(words ? { path: words, host: words, what: words, rule: words, source: words, target: words } : {}),
      requests.flow({
        kind: "outbound",
        source: "spiffe://mesh/ns/demo/sa/shop",
        target: "demo/stock",
        rule: "demo/shop/callees",
      }),
      ...(words ? [] : [requests.denied()]),
    ];
    let isFirst = true;
    const tell = () => {
      if (state.silent) return;
      const earlier = isFirst ? Array.from({ length: kept }, () => requests.flow()) : [];
      isFirst = false;
      if (isHostile) event("problem", { error: words });
      if (window) event("graph", { ...graph, window: Number(window) });
      if (topics.includes("flows")) event("flows", { flows: [...earlier, ...flows()], missed: 0 });
      if (topics.includes("alerts")) event("alerts", { rows: listings.alerts(words), missing: [] });
      const logs = topics.find((topic) => topic.startsWith("logs:"));
      if (logs)
        event("logs", {
          lines: [
            {
              node: "one",
              instance: 1,
              time: Date.now() / 1000,
              stream: "stdout",
              text: words || `GET /items/7 200 at ${Date.now()}`,
            },
          ],
          dropped: 0,
          missing: [],
        });
    };
    tell();
    const timer = setInterval(tell, 2000);
    request.on("close", () => {
      clearInterval(timer);
      state.streams -= 1;
    });
  }

  await new Promise((done) => server.listen(port, "127.0.0.1", done));
  const address = `http://127.0.0.1:${server.address().port}${base}`;
  const stop = () => {
    server.closeAllConnections();
    return new Promise((done) => server.close(done));
  };
  return { address, state, stop, drop: () => server.closeAllConnections() };
}

/** The same with every text made hostile, also those that only Leno chooses. */
function tainted(value) {
  if (typeof value === "string") return value + graphs.HOSTILE.markup + graphs.HOSTILE.bidi + "x".repeat(2048);
  if (Array.isArray(value)) return value.map(tainted);
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([name, part]) => [name, tainted(part)]));
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const [folder, port, which] = process.argv.slice(2);
  console.log((await start(folder, which, { port: Number(port ?? 0) })).address);
}
