// Chromium, pages that report what goes wrong in them, and axe.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";

export const PAGE = fileURLToPath(new URL("../../../target/ui", import.meta.url));
export const SCREENSHOTS = fileURLToPath(new URL("../../../target/ui-screenshots", import.meta.url));
export const WIDE = { width: 1360, height: 860 };
export const PHONE = { width: 360, height: 740 };

/** Rules for the page as a whole. `region` and others of good practice are among the default ones. */
const axe = await readFile(fileURLToPath(import.meta.resolve("axe-core/axe.min.js")), "utf8");

export function launch() {
  // Chromium's own sandbox does not work for root, as in containers.
  const args = process.getuid?.() === 0 ? ["--no-sandbox"] : [];
  return chromium.launch({ executablePath: "/usr/bin/chromium", args });
}

/** A page in a fresh profile. `problems` has errors of scripts, refusals by the policy, and requests to elsewhere. */
export async function open(browser, address, { scheme = "light", viewport = WIDE } = {}) {
  // The certificate of a test's control plane is of no authority that the browser knows.
  const context = await browser.newContext({ viewport, colorScheme: scheme, ignoreHTTPSErrors: true });
  const page = await context.newPage();
  const problems = [];
  page.on("pageerror", (error) => problems.push(String(error.stack)));
  page.on("dialog", (dialog) => {
    problems.push(`dialog: ${dialog.message()}`);
    void dialog.dismiss();
  });
  page.on("console", (message) => {
    // That there is no session, or no such function, is an answer.
    const isAnswer = /status of (401|404)/.test(message.text()) && /\/(api|session)\b/.test(message.location().url);
    if (message.type() === "error" && !isAnswer) problems.push(message.text());
  });
  const origin = new URL(address).origin;
  page.on("request", (request) => {
    const url = request.url();
    if (!url.startsWith(origin) && !url.startsWith("data:")) problems.push(`request to ${url}`);
  });
  page.setDefaultTimeout(20_000);
  await page.goto(address);
  return { page, problems, close: () => context.close() };
}

/** Goes to a place of the page, and waits for its heading and content. */
export async function visit(page, hash) {
  await page.evaluate((to) => (location.hash = to), hash);
  await page.locator("h1").first().waitFor();
  await page.waitForFunction(() => !/Asking the mesh/.test(document.body.innerText));
}

/** Fails with each violation that axe finds. */
export async function accessible(page, place) {
  await page.evaluate(axe);
  const violations = await page.evaluate(async () => {
    const found = await globalThis.axe.run(document, { resultTypes: ["violations"] });
    return found.violations.map(
      ({ id, nodes }) => `${id}: ${nodes.map((node) => `${node.target} ${node.failureSummary}`).slice(0, 3)}`,
    );
  });
  assert.deepEqual(violations, [], `axe, ${place}`);
}

/** Fails if the page is wider than its window. */
export async function fits(page, place) {
  const [content, window] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
  assert.ok(content <= window, `${place} is ${content} pixels wide in a window of ${window}`);
}
