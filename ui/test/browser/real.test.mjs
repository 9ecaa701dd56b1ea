// The page with a real mesh: `leno up` with real requests, and `leno dashboard`. LENO names the program.
import assert from "node:assert/strict";
import { mkdir } from "node:fs/promises";
import { after, before, test } from "node:test";
import { accessible, fits, launch, open, PHONE, SCREENSHOTS, visit, WIDE } from "./browser.mjs";
import { startMesh } from "./mesh.mjs";

let browser, mesh, opened;
before(async () => {
  [browser, mesh] = [await launch(), await startMesh()];
  opened = await open(browser, await mesh.signIn());
});
after(async () => {
  await opened?.close();
  await mesh?.stop();
  await browser?.close();
});

test("the page paints", async () => {
  const { page } = opened;
  const paint = async () => {
    await page.waitForFunction(() => performance.getEntriesByName("first-contentful-paint").length > 0);
    return page.evaluate(() => Math.round(performance.getEntriesByName("first-contentful-paint")[0].startTime));
  };
  const redirected = await paint();
  const plain = [];
  for (let round = 0; round < 5; round += 1) {
    await page.reload();
    plain.push(await paint());
  }
  console.log(`first paint after ${redirected} ms with the token's redirect, and ${plain} ms without it`);
});

test("a denied request is found and explained within five clicks", async () => {
  const { page } = opened;
  let clicks = 0;
  const click = (locator) => ((clicks += 1), locator.click());
  const { id } = await mesh.ask("DELETE", "/items/7");
  await click(page.getByRole("link", { name: "Requests", exact: true }));
  await page.getByLabel("Verdict").selectOption("deny");
  clicks += 2;
  await click(page.locator("tr.flow.deny", { hasText: "DELETE" }).first().getByRole("link"));
  await page.getByText(id).waitFor();
  await page.getByText("no rule allows it").first().waitFor();
  assert.match(await page.locator(".decision").first().innerText(), /shop\/authorization\/read-only.*DELETE/s);
  assert.ok(clicks <= 5, `${clicks} clicks`);
});

test("the graph has used, unused and refused calls, with figures", async () => {
  const { page } = opened;
  await mesh.ask("GET", "/call/stock");
  await visit(page, "#/graph?as=table&window=0");
  const row = (...names) => names.reduce((found, hasText) => found.filter({ hasText }), page.locator("tr"));
  await row("gateway", "demo/shop", "in use").first().waitFor();
  await row("demo/shop", "demo/stock", "in use").first().waitFor();
  await row("demo/shop", "demo/unused", "allowed, unused").first().waitFor();
  await mesh.ask("GET", "/call/spare");
  await row("demo/shop", "demo/spare", "tried, refused").first().waitFor();
  await mesh.ask("GET", "/call/cart/payments/outside.example");
  await row("demo/payments", "outside.example", "tried, refused").first().waitFor();
  await row("other/broken", "failing").or(row("other/broken", "failed")).first().waitFor();
});

test("a function shows why it fails, and its live output", async () => {
  const { page } = opened;
  await visit(page, "#/functions/other/broken");
  await page.getByText("no database").first().waitFor();
  await visit(page, "#/functions/demo/stock/logs");
  const path = `/call/stock?${Date.now()}`;
  await mesh.ask("GET", path);
  await page.locator(".log-line", { hasText: "/items/7" }).first().waitFor();
});

test("alerts name the function that fails and the refused calls, changes show the difference", async () => {
  const { page } = opened;
  await mesh.ask("GET", "/call/cart/payments/outside.example");
  await visit(page, "#/alerts");
  await page.locator(".alert", { hasText: "other/broken" }).first().waitFor();
  await page.locator(".alert", { hasText: "outside.example" }).first().waitFor();
  await mesh.edit("requests: 100000", "requests: 90000");
  await visit(page, "#/changes");
  await page.locator(".diff .added", { hasText: "90000" }).waitFor();
});

test("both sides of a call are on one time line", async () => {
  const { page } = opened;
  const { id } = await mesh.ask("GET", "/call/stock");
  await visit(page, `#/requests/${id}`);
  await page.locator(".timeline li").nth(2).waitFor();
  assert.equal(await page.locator(".call").count(), 2);
  assert.equal(await page.locator(".call .hop-card").count(), 3);
});

test("hostile requests and output do nothing", async () => {
  const { page } = opened;
  const markup = "<img src=x onerror=globalThis.struck=1>";
  const hostile = [
    `/items/${encodeURIComponent(markup)}`,
    "/items/%E2%80%AE%E2%81%A6",
    `/items/${"x".repeat(8000)}`,
    `/call/${encodeURIComponent(markup)}`,
  ];
  for (const path of hostile)
    await mesh.ask("GET", path, { host: "shop.example", "user-agent": markup, "x-forwarded-for": markup });
  await mesh.ask("BREW", "/items/7");
  await visit(page, "#/requests");
  await page.locator("tr.flow", { hasText: "BREW" }).first().waitFor();
  await visit(page, "#/functions/demo/shop/logs");
  await page.locator(".log-line", { hasText: "<script>" }).first().waitFor();
  assert.equal(await page.evaluate(() => globalThis.struck), undefined);
  assert.equal(await page.locator("#page script, img").count(), 0);
});

test("every view is accessible and fits, light, dark and on a phone", async () => {
  await mkdir(SCREENSHOTS, { recursive: true });
  await mesh.traffic();
  const { id } = await mesh.ask("DELETE", "/items/7");
  const views = {
    graph: "#/graph?window=0",
    "graph-node": "#/graph?window=0&node=demo%2Fshop",
    "graph-table": "#/graph?window=0&as=table",
    functions: "#/functions",
    function: "#/functions/demo/shop",
    policies: "#/functions/demo/shop/policies",
    logs: "#/functions/demo/shop/logs",
    document: "#/functions/demo/shop/document",
    requests: "#/requests",
    request: `#/requests/${id}`,
    nodes: "#/nodes",
    alerts: "#/alerts",
    changes: "#/changes",
    events: "#/events",
    jobs: "#/jobs",
  };
  for (const [name, options] of Object.entries({ light: {}, dark: { scheme: "dark" }, phone: { viewport: PHONE } })) {
    await opened.page.setViewportSize(options.viewport ?? WIDE);
    await opened.page.emulateMedia({ colorScheme: options.scheme ?? "light" });
    for (const [view, hash] of Object.entries(views)) {
      await visit(opened.page, hash);
      // Figures of the stream arrive within two seconds.
      await opened.page.waitForTimeout(view.startsWith("graph") ? 2500 : 700);
      await opened.page.screenshot({ path: `${SCREENSHOTS}/${view}-${name}.png`, fullPage: name === "phone" });
      await accessible(opened.page, `${view}, ${name}`);
      await fits(opened.page, `${view}, ${name}`);
    }
  }
  assert.deepEqual(opened.problems, []);
});
