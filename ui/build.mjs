// Bundles the page into a folder: index.html, app.js, app.css, and the licences of the packages inside. usage: node build.mjs [FOLDER]
import { build } from "esbuild";
import { cp, mkdir, readdir, readFile, writeFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";

const here = fileURLToPath(new URL(".", import.meta.url));
const folder = process.argv[2] ?? `${here}../target/ui`;
await mkdir(folder, { recursive: true });
const { metafile } = await build({
  absWorkingDir: here,
  entryPoints: { app: "src/main.tsx" },
  outdir: folder,
  bundle: true,
  minify: true,
  format: "esm",
  target: ["es2022"],
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "none",
  metafile: true,
  logLevel: "warning",
});

const packages = new Set();
for (const input of Object.keys(metafile.inputs)) {
  const name = /^node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(input)?.[1];
  if (name) packages.add(name);
}
let licences = "";
for (const name of [...packages].sort()) {
  const place = `${here}node_modules/${name}`;
  const { version, license } = JSON.parse(await readFile(`${place}/package.json`, "utf8"));
  const file = (await readdir(place)).find((file) => /^licen[cs]e/i.test(file));
  if (!file) throw new Error(`the package ${name} has no text of its licence`);
  licences += `${name} ${version} (${license})\n\n${await readFile(`${place}/${file}`, "utf8")}\n\n`;
}
await writeFile(`${folder}/licences.txt`, licences);
// Last: `make ui` compares its time with those of the sources.
await cp(`${here}index.html`, `${folder}/index.html`, { preserveTimestamps: false });
