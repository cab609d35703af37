// Builds dist/throng.js, which the server serves, and its compressed form from src/. They are
// committed, so that building the server needs no Node. `node build.js --check` fails if they are
// out of date.
import { readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { gunzipSync, gzipSync } from "node:zlib";
import { buildSync } from "esbuild";

const OUTPUT = fileURLToPath(new URL("dist/throng.js", import.meta.url));
const BANNER = "/* Throng's client, Apache-2.0. Built by clients/javascript/build.js from src/. */";

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

const isCurrent = () => {
  // Compressors differ between versions of Node, so compare the content.
  const both = [readFileSync(OUTPUT), gunzipSync(readFileSync(`${OUTPUT}.gz`))];
  return both.every((bytes) => bytes.toString() === text);
};

if (!process.argv.includes("--check")) {
  writeFileSync(OUTPUT, text);
  writeFileSync(`${OUTPUT}.gz`, gzipSync(text, { level: 9 }));
} else if (!isCurrent()) {
  console.error("dist/throng.js is out of date: run `npm run build`");
  process.exit(1);
}
