// The page of a real control plane: `leno control --dashboard`, a node and a gateway. LENO names the program.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { accessible, launch, open, visit } from "./browser.mjs";
import { startControl } from "./mesh.mjs";

let browser, mesh;
before(async () => {
  [browser, mesh] = [await launch(), await startControl()];
  await answered("GET", "/items/7");
});
after(async () => {
  await mesh?.stop();
  await browser?.close();
});

/** The first answer that is not of a gateway without the documents, or of a function that starts. */
async function answered(method, path, headers) {
  for (let attempt = 0; ; attempt += 1) {
    const answer = await mesh.ask(method, path, headers);
    if (answer.status !== 404 && answer.status < 500) return answer;
    assert.ok(attempt < 300, `${method} ${path} gets ${answer.status}`);
    await new Promise((done) => setTimeout(done, 100));
  }
}

/** A page in which the user has signed in with a token. */
async function signedIn(token) {
  const opened = await open(browser, mesh.address);
  await opened.page.getByLabel("Token").fill(token);
  await opened.page.getByRole("button", { name: "Sign in" }).click();
  await opened.page.getByRole("button", { name: "Sign out" }).waitFor();
  return opened;
}

test("an administrator tries a denied request again against an edited policy", async () => {
  const { page, problems, close } = await signedIn(await mesh.token("admin"));
  const { status, id } = await answered("DELETE", "/items/7");
  assert.equal(status, 403);
  await page.getByRole("link", { name: "Requests", exact: true }).click();
  await page.getByLabel("Verdict").selectOption("deny");
  await page.locator("tr.flow.deny", { hasText: "DELETE" }).first().getByRole("link").click();
  await page.getByText(id).waitFor();
  // The stored policy is there to be edited.
  const editor = page.getByRole("textbox", { name: "Documents" });
  await page.waitForFunction(() => /kind: Policy/.test(document.querySelector("textarea")?.value ?? ""));
  const policy = await editor.inputValue();
  const tryAgain = page.getByRole("button", { name: "Try again" });

  await tryAgain.click();
  await page.locator(".try [aria-live] :text('No function’s policies would change'), .try .replay").first().waitFor();
  assert.equal(await page.getByText("1 newly allowed").count(), 0, "the policy in force decides as it did");

  await editor.fill(
    policy.replace('methods: [GET], paths: ["/items/{id}"', 'methods: [GET, DELETE], paths: ["/items/{id}"'),
  );
  await tryAgain.click();
  const row = page.locator("tr.current", { hasText: "DELETE" });
  await row.waitFor();
  assert.match(await row.innerText(), /deny[\s\S]*allow[\s\S]*shop\/authorization\/read-only/);
  await page.getByText(/[1-9]\d* newly allowed/).waitFor();
  await accessible(page, "replay at a control plane");

  await editor.fill(policy.replace("methods: [GET]", "methods: [GET, ]]"));
  await tryAgain.click();
  await page.locator(".try .notice.bad").waitFor();
  // Nothing was applied.
  assert.equal((await mesh.ask("DELETE", "/items/7")).status, 403);
  assert.deepEqual(
    problems.filter((problem) => !/status of 422/.test(problem)),
    [],
  );
  await close();
});

test("a reader of one namespace sees it, and nothing of another", async () => {
  await mesh.ask("GET", "/call/stock");
  await mesh.ask("GET", "/call/cart/payments/outside.example");
  const hidden = await answered("GET", "/call/inner", { host: "hidden.example" });
  const denied = await mesh.ask("DELETE", "/items/7");
  const { page, problems, close } = await signedIn(await mesh.token("reader", "demo"));

  // By the page.
  const shown = { "#/functions": "demo/shop", "#/requests": "DELETE", "#/changes": "Function demo/shop" };
  Object.assign(shown, { "#/alerts": "outside.example", "#/graph?as=table&window=0": "demo/stock" });
  Object.assign(shown, { "#/events": "demo/shop", "#/jobs": "", "#/nodes": "" });
  for (const [view, own] of Object.entries(shown)) {
    await visit(page, view);
    if (own) await page.locator("#page", { hasText: own }).waitFor();
    // Figures of the stream arrive within two seconds.
    await page.waitForTimeout(2500);
    const text = await page.locator("body").innerText();
    assert.doesNotMatch(text, /other\/|hidden|no database/, view);
  }
  await visit(page, "#/functions/other/hidden");
  await page.getByText("there is no function other/hidden").waitFor();
  await visit(page, `#/requests/${hidden.id}`);
  await page.waitForTimeout(500);
  assert.doesNotMatch(await page.locator("#page").innerText(), /other\/|hidden\.example/);

  // By a path that is typed by hand.
  const get = (path) => page.request.get(`${mesh.address}${path}`);
  for (const listing of [
    "functions",
    "instances",
    "revisions",
    "events",
    "identities",
    "limits",
    "alerts",
    "changes",
  ]) {
    const answer = await get(`api/${listing}`);
    const text = await answer.text();
    assert.equal(answer.status(), 200, listing);
    if (listing !== "identities") assert.match(text, /demo/, listing);
    assert.doesNotMatch(text, /other\/|hidden|no database/, listing);
  }
  for (const path of ["functions/other/hidden", "functions/other/broken", `requests/${hidden.id}`])
    assert.equal((await get(`api/${path}`)).status(), 404, path);
  assert.equal((await get(`api/requests/${denied.id}`)).status(), 200);
  assert.doesNotMatch(await (await get("api/graph?window=0")).text(), /other\/|hidden/);
  for (const query of ["", "?namespace=other", "?namespaces=other", "?function=other/hidden"])
    assert.doesNotMatch(await (await get(`api/functions${query}`)).text(), /other\/hidden"/, query);

  // By the stream.
  const events = await page.evaluate(async () => {
    const topics = "graph:0,flows,alerts,logs:other/hidden";
    const ending = new AbortController();
    const answer = await fetch(`api/stream?topics=${topics}&function=other/hidden`, { signal: ending.signal });
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    const has = (kind) => text.includes(`event: ${kind}\n`);
    while (!["graph", "alerts", "problem"].every(has)) {
      const { value, done } = await reader.read();
      if (done) break;
      text += value;
    }
    ending.abort();
    return text.split("\n\n");
  });
  assert.ok(events.some((event) => event.includes("event: graph") && event.includes("demo/shop")));
  for (const event of events.filter((event) => !event.includes("event: problem")))
    assert.doesNotMatch(event, /other\/|hidden|no database/);
  const problem = events.find((event) => event.includes("event: problem"));
  assert.doesNotMatch(problem, /hidden\.example|inner|no database/);
  assert.deepEqual(problems, []);
  await close();
});

test("a session ends for the page when its user signs out", async () => {
  const { page, close } = await signedIn(await mesh.token("reader", "demo"));
  await page.getByRole("button", { name: "Sign out" }).click();
  await page.getByLabel("Token").waitFor();
  assert.equal((await page.request.get(`${mesh.address}api/functions`)).status(), 401);
  await close();
});
