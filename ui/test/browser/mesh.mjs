// `leno up` with the documents of `ui/test/mesh`, and `leno dashboard`.
import { spawn } from "node:child_process";
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

  /** Sends a request through the gateway; answers its status and ID. */
  function ask(method, path, headers = {}) {
    return new Promise((done, fail) => {
      const sent = request({ host: "127.0.0.1", port, method, path, headers }, (response) => {
        response.resume();
        response.on("end", () => done({ status: response.statusCode, id: response.headers["x-request-id"] }));
      });
      sent.on("error", fail);
      sent.end();
    });
  }

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

/** Starts leno, and waits until its output has this text. */
function run(arguments_, text) {
  const child = spawn(LENO, arguments_, { stdio: ["ignore", "pipe", "pipe"] });
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
