// Makes dist/throng.js, the one small file that the server serves, of src/. It is committed, so
// that building the server needs no Node. `node build.js --check` fails where it is not up to date.
import { readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { buildSync } from "esbuild";

const OUTPUT = fileURLToPath(new URL("dist/throng.js", import.meta.url));
const BANNER = "/* Throng's client, Apache-2.0. Made by clients/javascript/build.js from src/. */";

const { outputFiles } = buildSync({
  absWorkingDir: fileURLToPath(new URL(".", import.meta.url)),
  entryPoints: ["src/throng.js"],
  banner: { js: BANNER },
  bundle: true,
  format: "esm",
  minify: true,
  target: "es2022",
  write: false,
});
const [{ text }] = outputFiles;

if (!process.argv.includes("--check")) {
  writeFileSync(OUTPUT, text);
} else if (readFileSync(OUTPUT, "utf8") !== text) {
  console.error("dist/throng.js does not follow from src/: run `npm run build`");
  process.exit(1);
}
