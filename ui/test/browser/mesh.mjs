// Meshes with the documents of `ui/test/mesh`: `leno up` with `leno dashboard`, and `leno control`.
import { execFile, spawn } from "node:child_process";
import { chmod, cp, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { request } from "node:http";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { fileURLToPath } from "node:url";

const DOCUMENTS = fileURLToPath(new URL("../mesh", import.meta.url));
const LENO = process.env.LENO;

export async function startMesh() {
  const folder = await mkdtemp(`${tmpdir()}/leno-ui-`);
  // Instances run under accounts of their namespaces.
  await chmod(folder, 0o755);
  const port = await freePort();
  await cp(DOCUMENTS, folder, { recursive: true });
  const file = `${folder}/mesh.yaml`;
  const documents = (await readFile(file, "utf8"))
    .replace("127.0.0.1:0", `127.0.0.1:${port}`)
    .replace("admin: unix:admin.sock", `admin: "unix:${folder}/admin.sock"`);
  await writeFile(file, documents);
  const up = await run(["up", folder], /ready: /);
  const dashboards = [];

  /** Begins a session: the address is valid once. */
  async function signIn() {
    const dashboard = await run(
      ["dashboard", "--no-open", "--admin", `unix:${folder}/admin.sock`],
      /http:\S+token=\S+/,
    );
    dashboards.push(dashboard);
    return dashboard.said;
  }

  const ask = (method, path, headers = {}) => askGateway(port, method, path, headers);

  /** Requests along every call, some of which are refused. */
  async function traffic() {
    const paths = ["stock", "cart/stock", "cart/payments", "spare", "cart/payments/outside.example"];
    for (let round = 0; round < 10; round += 1) await Promise.all(paths.map((path) => ask("GET", `/call/${path}`)));
  }

  /** Changes the documents; `leno up` applies them. */
  async function edit(before, after) {
    await writeFile(file, (await readFile(file, "utf8")).replace(before, after));
  }

  async function stop() {
    for (const program of [...dashboards, up]) await program.stop();
    await rm(folder, { recursive: true });
  }

  return { signIn, ask, traffic, edit, stop };
}

/** Sends a request through a gateway; answers its status and ID. */
function askGateway(port, method, path, headers) {
  return new Promise((done, fail) => {
    const sent = request({ host: "127.0.0.1", port, method, path, headers }, (response) => {
      response.resume();
      response.on("end", () => done({ status: response.statusCode, id: response.headers["x-request-id"] }));
    });
    sent.on("error", fail);
    sent.end();
  });
}

/** Of this namespace, a reader of `demo` sees nothing. */
const HIDDEN = `
---
apiVersion: leno.dev/v1alpha1
kind: Function
metadata: {name: hidden, namespace: other}
spec:
  command: [python3, program.py]
  expose: [{hosts: [hidden.example], path: /}]
  callees: [inner]
---
apiVersion: leno.dev/v1alpha1
kind: Function
metadata: {name: inner, namespace: other}
spec:
  command: [python3, program.py]
---
apiVersion: leno.dev/v1alpha1
kind: Policy
metadata: {name: open, namespace: other}
spec:
  functions: [hidden, inner]
  authorization: {rules: [{name: all, action: allow}]}
`;

/** `leno control --dashboard` with the same documents and those above, a node, and a gateway. */
export async function startControl() {
  const folder = await mkdtemp(`${tmpdir()}/leno-ui-`);
  const [api, nodes, port, ...sidecars] = await Promise.all(Array.from({ length: 7 }, freePort));
  const program = JSON.stringify(await readFile(`${DOCUMENTS}/program.py`, "utf8"));
  const [mesh, ...documents] = `${await readFile(`${DOCUMENTS}/mesh.yaml`, "utf8")}${HIDDEN}`.split("\n---\n");
  // Programs of documents that are applied are on the nodes, or in the documents.
  const applied = documents
    .join("\n---\n")
    .replaceAll("python3, program.py", `python3, -c, ${program}`)
    .replace('hosts: ["*"]', "hosts: [shop.example]");
  const settings = "  instances: {isolation: process, accounts: node}\n";
  await writeFile(`${folder}/mesh.yaml`, `${mesh.slice(0, mesh.indexOf("  gateway:"))}${settings}`);
  await writeFile(`${folder}/app.yaml`, applied);
  const url = `https://127.0.0.1:${api}`;
  const client = {
    LENO_SERVER: url,
    LENO_TOKEN_FILE: `${folder}/data/admin.token`,
    LENO_CA: `${folder}/data/api.pem`,
  };
  const started = [];
  const start = async (arguments_, text) => started.push(await run(arguments_, text, { cwd: folder }));
  const leno = (...arguments_) => said(arguments_, { cwd: folder, env: { ...process.env, ...client } });
  const control = ["control", "--mesh", "mesh.yaml", "--data", "data", "--dashboard"];
  const stop = async () => {
    for (const program of started.reverse()) await program.stop();
    await rm(folder, { recursive: true });
  };
  try {
    await start([...control, "--api", `127.0.0.1:${api}`, "--listen", `127.0.0.1:${nodes}`], /leads/);
    /** A node or a gateway joins with a token that is valid once. */
    const join = async (kind, name, options, more) => {
      await writeFile(`${folder}/${name}.token`, await leno("token", "join", "--node", name, ...options));
      const [inbound, outbound] = sidecars.splice(0, 2);
      const own = ["--control", `127.0.0.1:${nodes}`, "--join", `${name}.token`, "--name", name, "--state", name];
      const listeners = ["--inbound", `127.0.0.1:${inbound}`, "--outbound", `127.0.0.1:${outbound}`];
      await start([kind, ...own, ...listeners, "--admin", `unix:${folder}/${name}.sock`, ...more], / ready/);
    };
    await join("node", "one", [], []);
    await join("gateway", "edge", ["--only-gateway"], ["--gateway-http", `127.0.0.1:${port}`]);
    await leno("apply", "-f", "app.yaml");
  } catch (error) {
    await stop();
    throw error;
  }

  const ask = (method, path, headers = {}) => askGateway(port, method, path, { host: "shop.example", ...headers });
  const token = async (role, namespace) =>
    (await leno("token", "create", "--role", role, ...(namespace ? ["--namespace", namespace] : []))).trim();

  return { address: `${url}/dashboard/`, ask, token, stop };
}

/** Runs leno to its end; answers its standard output. */
function said(arguments_, options) {
  return new Promise((done, fail) => {
    execFile(LENO, arguments_, options, (error, out, errors) =>
      error ? fail(new Error(`leno ${arguments_.join(" ")}: ${errors}`)) : done(out),
    );
  });
}

/** Starts leno, and waits until its output has this text. */
function run(arguments_, text, options = {}) {
  const child = spawn(LENO, arguments_, { stdio: ["ignore", "pipe", "pipe"], ...options });
  const ended = new Promise((done) => child.on("exit", done));
  const stop = () => {
    child.kill("SIGTERM");
    return ended;
  };
  return new Promise((done, fail) => {
    let output = "";
    const read = (part) => {
      output += part;
      const found = text.exec(output);
      // Later output is read and dropped, so that the program does not wait.
      if (found) done({ said: found[0], stop });
      output = output.slice(-65536);
    };
    child.stdout.on("data", read);
    child.stderr.on("data", read);
    child.on("error", fail);
    ended.then((status) => fail(new Error(`leno ${arguments_[0]} ended with ${status}: ${output}`)));
  });
}

/** A port that nothing listens at. */
function freePort() {
  return new Promise((done, fail) => {
    const server = createServer();
    server.on("error", fail);
    server.listen(0, "127.0.0.1", () => {
      const { port } = server.address();
      server.close(() => done(port));
    });
  });
}
