// Writes the pictures of docs/dashboard.md anew, with the real mesh of the tests. usage: LENO=PROGRAM node images.mjs
import { mkdir, writeFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { launch, open, visit } from "./browser.mjs";
import { startMesh } from "./mesh.mjs";

const IMAGES = fileURLToPath(new URL("../../../docs/images", import.meta.url));
/** Largest picture, in bytes. */
const LARGEST = 100 * 1024;
const VIEWPORT = { width: 1200, height: 720 };

const [browser, mesh] = [await launch(), await startMesh()];
try {
  await mkdir(IMAGES, { recursive: true });
  await mesh.traffic();
  const { id } = await mesh.ask("DELETE", "/items/7");
  const { page } = await open(browser, await mesh.signIn(), { viewport: VIEWPORT });
  const session = await page.context().newCDPSession(page);
  const views = {
    graph: "#/graph?window=0",
    function: "#/functions/demo/cart",
    policies: "#/functions/demo/shop/policies",
    requests: "#/requests",
    request: `#/requests/${id}`,
    functions: "#/functions",
    nodes: "#/nodes",
    alerts: "#/alerts",
    changes: "#/changes",
    events: "#/events",
    jobs: "#/jobs",
  };
  for (const scheme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme: scheme });
    for (const [view, hash] of Object.entries(views)) {
      await visit(page, hash);
      await page.waitForTimeout(2500);
      const { data } = await session.send("Page.captureScreenshot", { format: "webp", quality: 80 });
      const picture = Buffer.from(data, "base64");
      if (picture.length > LARGEST) throw new Error(`${view}, ${scheme}: ${picture.length} bytes`);
      await writeFile(`${IMAGES}/dashboard-${view}-${scheme}.webp`, picture);
    }
  }
} finally {
  await mesh.stop();
  await browser.close();
}
