// The page with a mesh that is made up: what a small real mesh does not have.
import assert from "node:assert/strict";
import { readdir, readFile } from "node:fs/promises";
import { after, before, test } from "node:test";
import { gzipSync } from "node:zlib";
import { HOSTILE } from "../server/graphs.mjs";
import { start } from "../server/server.mjs";
import { accessible, fits, launch, open, PAGE, PHONE, visit } from "./browser.mjs";

const VIEWS = [
  "#/graph",
  "#/graph?node=demo%2Fshop&group=namespace",
  "#/graph?group=chain",
  "#/graph?as=table",
  "#/functions",
  "#/functions/demo/shop",
  "#/functions/demo/shop/policies",
  "#/functions/demo/shop/calls",
  "#/functions/demo/shop/logs",
  "#/functions/demo/shop/events",
  "#/functions/demo/shop/document",
  "#/requests",
  "#/requests/denied-1",
  "#/requests/4bf92f3500000001",
  "#/requests/refused-1",
  "#/nodes",
  "#/alerts",
  "#/changes",
  "#/events",
  "#/jobs",
  "#/nothing",
];

let browser;
before(async () => (browser = await launch()));
after(() => browser.close());

/** Runs with a server and a page, and fails if anything goes wrong in the page. */
async function shown(which, options, run) {
  const server = await start(PAGE, which, options.server);
  const opened = await open(browser, server.address, options);
  try {
    await run(opened.page, server);
    assert.deepEqual(opened.problems, []);
  } finally {
    await opened.close();
    await server.stop();
  }
}

test("the page has less than 400 KiB, compressed", async () => {
  let sum = 0;
  for (const file of await readdir(PAGE)) sum += gzipSync(await readFile(`${PAGE}/${file}`)).length;
  console.log(`the page: ${Math.round(sum / 1024)} KiB, compressed`);
  assert.ok(sum < 400 * 1024);
});

for (const scheme of ["light", "dark"]) {
  test(`axe finds nothing in any view, ${scheme}`, async () => {
    await shown("shop", { scheme }, async (page) => {
      for (const view of VIEWS) {
        await visit(page, view);
        if (view === "#/requests") await page.locator("tr.flow").first().waitFor();
        await accessible(page, `${view}, ${scheme}`);
      }
    });
  });
}

test("every view fits a phone", async () => {
  await shown("shop", { viewport: PHONE }, async (page) => {
    for (const view of VIEWS) {
      await visit(page, view);
      await fits(page, view);
      await accessible(page, `${view}, phone`);
    }
  });
});

test("a node that is away has its event, and conditions tell since when they hold", async () => {
  await shown("shop", {}, async (page) => {
    await visit(page, "#/events");
    const away = page.getByRole("row").filter({ hasText: "node away" });
    await away.filter({ hasText: "no other node has a gateway" }).waitFor();
    await visit(page, "#/alerts");
    await page.getByText(/at least since 2 h ago/).waitFor();
    await visit(page, "#/nodes");
    await page.getByRole("row").filter({ hasText: "away" }).getByText("3 min ago").waitFor();
  });
});

test("hostile texts do nothing, and are shown as text", async () => {
  for (const viewport of [undefined, PHONE]) {
    await shown("hostile", viewport ? { viewport } : {}, async (page) => {
      const name = encodeURIComponent(HOSTILE.markup);
      const views = [
        ...VIEWS,
        `#/functions/demo/${name}`,
        `#/functions/demo/${name}/policies`,
        `#/graph?focus=demo%2F${name}`,
      ];
      for (const view of views) {
        await visit(page, view);
        await page.waitForTimeout(100);
        await fits(page, view);
        const found = await page.evaluate(() => ({
          struck: globalThis.struck,
          elements: document.querySelectorAll("#page script, #page iframe, img, [onerror]").length,
          links: [...document.links].filter((link) => !["http:", "data:"].includes(new URL(link.href).protocol)).length,
          hidden: [...document.querySelectorAll("*")]
            .flatMap((element) =>
              [...element.childNodes]
                .filter((node) => node.nodeType === Node.TEXT_NODE)
                .map((node) => [element.tagName, element.className, node.data])
                .concat([
                  ["aria-label", "", element.ariaLabel ?? ""],
                  ["title", "", element.title ?? ""],
                ]),
            )
            .filter(([, , text]) => /[\u202a-\u202e\u2066-\u2069\u200b]/.test(text))
            .map(([tag, kind, text]) => `${tag} ${kind} ${text.slice(0, 40)}`),
          length: document.body.innerText.length,
        }));
        assert.deepEqual(
          { ...found, length: 0 },
          { struck: undefined, elements: 0, links: 0, hidden: [], length: 0 },
          view,
        );
        assert.ok(found.length < 300_000, `${view} shows ${found.length} characters`);
      }
    });
  }
});

test("200 functions are laid out, and can be moved over", async () => {
  await shown("large", {}, async (page) => {
    for (const group of ["none", "namespace", "node", "chain"]) {
      await visit(page, `#/graph?group=${group}`);
      await page.waitForFunction(() => document.querySelectorAll(".node").length === 201);
      const took = await page.evaluate(() => performance.getEntriesByName("layout", "measure").at(-1)?.duration);
      console.log(`200 functions, grouped by ${group}: laid out in ${Math.round(took)} ms`);
    }
    const viewBox = () => page.locator(".canvas > svg").getAttribute("viewBox");
    const whole = await viewBox();
    await page.getByRole("button", { name: "Zoom in" }).click();
    assert.notEqual(await viewBox(), whole);
    await page.getByRole("button", { name: "Fit" }).click();
    assert.equal(await viewBox(), whole);
  });
});

test("the graph can be used by keyboard alone", async () => {
  await shown("shop", {}, async (page) => {
    await page.locator(".node .box[tabindex='0']").focus();
    const focused = () => page.evaluate(() => document.activeElement?.getAttribute("data-name"));
    assert.equal(await focused(), "gateway");
    await page.keyboard.press("ArrowDown");
    assert.equal(await focused(), "demo/shop");
    await page.keyboard.press("Enter");
    await page.getByRole("complementary", { name: "Selected node" }).waitFor();
    await page.keyboard.press("Escape");
    await page.getByRole("complementary", { name: "Selected node" }).waitFor({ state: "detached" });
    // One stop for the tab key, however many nodes there are.
    assert.equal(await page.locator(".node .box[tabindex='0']").count(), 1);
  });
});

test("refused attempts of an instance are marked and told at the request", async () => {
  await shown("shop", {}, async (page) => {
    await visit(page, "#/requests/refused-1");
    await page.getByRole("heading", { name: "Refused during the request" }).waitFor();
    const told = await page.locator(".refusals li").allInnerTexts();
    assert.equal(told.length, 2);
    assert.match(told[0], /demo\/shop looked up ledger 900 µs after the start, 2 times.*demo\/shop\/callees/s);
    assert.match(told[0], /Fix: .*`callees`/);
    assert.match(told[1], /handling 3 requests\. The attempt may belong to another one/);
    assert.equal(await page.locator(".timeline rect.attempt").count(), 2);
    await visit(page, "#/requests/4bf92f3500000001");
    assert.equal(await page.locator(".refusals, rect.attempt").count(), 0);
  });
});

test("a request is opened by its ID", async () => {
  await shown("shop", {}, async (page) => {
    await visit(page, "#/requests");
    const field = page.getByRole("searchbox", { name: "Request or trace ID" });
    const button = page.getByRole("button", { name: "Open" });
    await field.fill("no ID, ../..");
    assert.ok(await button.isDisabled());
    await field.fill(" denied-1 ");
    await field.press("Enter");
    await page.getByRole("heading", { name: "Time line" }).waitFor();
    assert.match(page.url(), /#\/requests\/denied-1$/);
  });
});

test("lists that are cut end with the number of hidden rows, and show more", async () => {
  await shown("shop", { server: { flows: 250 } }, async (page) => {
    await visit(page, "#/requests");
    // The requests before the page was opened are there at once.
    const rows = page.locator("tr.flow");
    await rows.first().waitFor();
    assert.equal(await rows.count(), 100);
    await page.getByText(/^1\d\d more are not shown\./).waitFor();
    await page.getByRole("button", { name: "More" }).click();
    await settled(async () => (await rows.count()) === 200);
    await page.getByRole("button", { name: "More" }).click();
    await page.getByRole("button", { name: "More" }).waitFor({ state: "detached" });
    await visit(page, "#/changes");
    await page.getByText("There are earlier ones.").waitFor();
    assert.equal(await page.locator("li.change").count(), 2);
    await page.getByRole("button", { name: "More" }).click();
    await page.getByText("Function demo/first").waitFor();
    assert.equal(await page.locator("li.change").count(), 3);
    assert.equal(await page.getByRole("button", { name: "More" }).count(), 0);
  });
});

test("an edited policy is tried against recorded requests", async () => {
  await shown("shop", {}, async (page) => {
    await visit(page, "#/requests/denied-1");
    assert.equal(await page.locator(".line.marked").count(), 2);
    await page.getByRole("textbox", { name: "Documents" }).fill("kind: Policy");
    await page.getByRole("button", { name: "Try again" }).click();
    await page.getByText("3 newly allowed").waitFor();
    await page.locator("tr.current").waitFor();
  });
});

test("a session begins with a token, below any path", async () => {
  await shown("shop", { server: { base: "/tools/mesh/", signIn: "token" } }, async (page, server) => {
    await accessible(page, "sign in");
    await page.getByLabel("Token").fill("wrong");
    await page.getByRole("button", { name: "Sign in" }).click();
    await page.getByText("this token is not valid").waitFor();
    await page.getByLabel("Token").fill("secret");
    await page.getByRole("button", { name: "Sign in" }).click();
    await page.locator(".node").first().waitFor();
    await page.getByRole("button", { name: "Sign out" }).click();
    await page.getByLabel("Token").waitFor();
    await settled(() => server.state.streams === 0);
  });
  await shown("shop", { server: { signIn: "command" } }, async (page) => {
    await page.getByText("leno dashboard").waitFor();
  });
});

test("nothing of a session is left for the next one", async () => {
  await shown("shop", { server: { signIn: "token" } }, async (page, server) => {
    const signIn = async () => {
      await page.getByLabel("Token").fill("secret");
      await page.getByRole("button", { name: "Sign in" }).click();
      await page.getByRole("button", { name: "Sign out" }).waitFor();
    };
    const ends = {
      "by its user": () => page.getByRole("button", { name: "Sign out" }).click(),
      "by the server": () => {
        server.state.signedIn = false;
        return page.getByRole("link", { name: "Nodes" }).click();
      },
    };
    for (const [how, end] of Object.entries(ends)) {
      server.state.silent = false;
      await signIn();
      await page.locator(".node").first().waitFor();
      await page.locator(".views .count").waitFor();
      await page.evaluate(() => (globalThis.former = true));
      await end();
      // Whatever the next session shows now is of the last one.
      server.state.silent = true;
      await page.getByLabel("Token").waitFor();
      assert.doesNotMatch(await page.title(), /test/, how);
      await signIn();
      await page.getByRole("link", { name: "Graph" }).click();
      await page.getByRole("heading", { name: "Graph", exact: true }).waitFor();
      await settled(() => server.state.streams === 1);
      assert.equal(await page.locator(".node, .views .count").count(), 0, how);
      assert.equal(await page.evaluate(() => globalThis.former), undefined, how);
      await page.getByRole("button", { name: "Sign out" }).click();
      await page.getByLabel("Token").waitFor();
    }
  });
});

test("a page has one stream, comes back after a loss, and none while it is hidden", async () => {
  const server = await start(PAGE, "shop");
  const { page, close } = await open(browser, server.address);
  try {
    for (const view of ["#/graph", "#/requests", "#/functions/demo/shop/logs", "#/graph"]) {
      await visit(page, view);
      await page.waitForTimeout(200);
    }
    await settled(() => server.state.streams === 1);
    const opened = server.state.opened;
    server.drop();
    await page.getByText("connection lost").waitFor();
    await settled(() => server.state.streams === 1 && server.state.opened > opened);
    await page.getByText("live", { exact: true }).waitFor();
    await page.evaluate(() => {
      Object.defineProperty(document, "hidden", { configurable: true, get: () => true });
      document.dispatchEvent(new Event("visibilitychange"));
    });
    await settled(() => server.state.streams === 0);
  } finally {
    await close();
    await server.stop();
  }
});

async function settled(is) {
  for (let attempt = 0; !(await is()); attempt += 1) {
    assert.ok(attempt < 200, `it never was: ${is}`);
    await new Promise((done) => setTimeout(done, 100));
  }
}
