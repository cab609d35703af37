// Builds what the server serves: dist/throng.js and dist/throng-http-VERSION.js from src/,
// dist/throng-tabs.js from tabs/, and their compressed forms. They are committed, so that building the
// server needs no Node. With `--check`, fails if they are out of date, or larger than they may be.
// With `--package`, builds the CommonJS form, which only the package has.
import { readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { gunzipSync, gzipSync } from "node:zlib";
import { build } from "esbuild";
import { minify } from "terser";

const HERE = fileURLToPath(new URL(".", import.meta.url));
const { version } = JSON.parse(readFileSync(`${HERE}package.json`));
const BANNER = "/* Throng, Apache-2.0 */";

/** The file with the part for HTTP. Its version is that of the file that loads it. */
const HTTP = `throng-http-${version}.js`;

/** The part for shared tabs. Its client is that of its own version. */
const TABS = "throng-tabs.js";

/** The largest compressed sizes in bytes. */
const SIZES_MAX = { "throng.js": 15_450, [HTTP]: 5_950, [TABS]: 5_200 };

/** The largest compressed sizes of the parts that only packages have, in bytes. */
const PARTS_MAX = { react: 2_000 };

/**
 * What the part for HTTP gets from `throng.js`, by module: a copy of its own would be larger, and
 * its errors would be of another class.
 */
const SHARED = {
  "./close.js": ["lossOf"],
  "./emitter.js": ["emit"],
  "./errors.js": ["Loss", "ThrongError"],
  "./http.js": [
    ...["abort", "deadline", "delay", "isForeign", "isOfToken", "isTemporary", "orAborted"],
    ...["retryAfterMs", "toError", "toQuery"],
  ],
  "./message.js": [
    ...["checkText", "isBinary", "isUpTo", "keyOf", "parse", "pathOf", "toBytes", "toHeader", "toJson"],
    ...["toNotice", "typeOf"],
  ],
  "./subscription.js": ["Cursor"],
};
const NAMES = Object.values(SHARED).flat();

/** Properties inside the client, which may get short names. All others are part of an interface. */
const INNER = [
  ...["answer", "attempts", "canRenew", "changed", "client", "connection", "connectionFor"],
  ...["current", "cursor", "cursors", "deliver", "detail", "drop"],
  ...["dropped", "emptied", "endAll", "extend", "fail", "flush", "follow", "gap", "hasCapacity"],
  ...["hintMs", "isAnswer", "isClosed", "isInterrupted", "isLive", "isOpen"],
  ...["isPosting", "isReady", "isSettled", "isSilent", "isUnusable", "isUnused", "isWhole"],
  ...["learn", "link", "lost", "needsStart", "opened", "options", "outbox", "part"],
  ...["pass", "pending", "position", "probe", "published", "queued", "receivedAt", "refuse"],
  ...["refused", "renew", "request", "reservedChannels", "retries", "retriesFor"],
  ...["retryOrRefuse", "ruledOut", "see", "sent", "serverName", "settle"],
  ...["subscription", "suspect", "take", "takeSurplus", "takesReplay", "target", "timer"],
  ...["tokens", "transportIndex", "waitMs", "url", "wake", "isMended", "isSlow", "isForeign"],
  ...["welcomed", "slow", "readMessage", "hear", "isProbing", "latencyMs", "isPlain"],
  ...["messageBytesMax", "expiresAt", "expiresIn", "isOver", "trouble", "doubt", "tookMs"],
  ...["asked", "isFull", "skip", "widen", "wantsState", "endState", "receive", "tellUnread"],
  ...["show"],
];

const common = {
  absWorkingDir: HERE,
  bundle: true,
  minify: true,
  target: "es2022",
  write: false,
  mangleProps: new RegExp(`^(${INNER.join("|")})$`),
};

const virtual = (filter, contents) => ({
  name: String(filter),
  setup({ onResolve, onLoad }) {
    const namespace = String(filter);
    onResolve({ filter }, ({ path }) => ({ path, namespace }));
    onLoad({ filter, namespace }, () => ({ contents, resolveDir: `${HERE}src` }));
  },
});

/** Replaces import-http.js: loads the other file. A browser may remember a path that failed. */
const importHttp = virtual(
  /\/import-http\.js$/,
  `${Object.entries(SHARED)
    .map(([path, names]) => `import { ${names} } from "${path}";`)
    .join("\n")}
  const PATH = "./${HTTP}";
  let loads = 0;
  export const importHttp = async () => {
    const { default: toPart } = await import(PATH + "?" + loads++);
    return toPart([${NAMES}]);
  };`,
);

/** Replaces the shared modules in the other file, which is a function of what they export. */
const shared = virtual(
  new RegExp(`^(${Object.keys(SHARED).join("|").replaceAll(".", "\\.")})$`),
  `export const [${NAMES}] = shared;`,
);

/** In what the server serves, the client is a file beside the part. */
const besideClient = {
  name: "client",
  setup({ onResolve }) {
    const beside = { path: `./throng-${version}.js`, external: true };
    onResolve({ filter: /^@throng-push\/client$/ }, () => beside);
  },
};

/** What esbuild has minified still has some percent to lose. */
async function squeeze({ outputFiles: [{ text }] }) {
  const compress = { passes: 3, hoist_funs: true, lhs_constants: false, pure_getters: true };
  const options = { module: true, ecma: 2022, compress, format: { preamble: BANNER } };
  return (await minify(text, options)).code;
}

async function bundle() {
  const core = await build({
    ...common,
    entryPoints: ["src/throng.js"],
    plugins: [importHttp],
    format: "esm",
    mangleCache: {},
  });
  const http = await build({
    ...common,
    entryPoints: ["src/http-part.js"],
    plugins: [shared],
    format: "iife",
    globalName: "part",
    banner: { js: `export default (shared) => {` },
    footer: { js: "return part; };" },
    mangleCache: core.mangleCache,
  });
  const tabs = await buildPart("tabs", { plugins: [besideClient] });
  return { "throng.js": await squeeze(core), [HTTP]: await squeeze(http), [TABS]: tabs };
}

function check(name, text) {
  // Compressors differ between versions of Node, so compare the content.
  const path = `${HERE}dist/${name}`;
  const both = [readFileSync(path), gunzipSync(readFileSync(`${path}.gz`))];
  if (!both.every((bytes) => bytes.toString() === text)) {
    return `dist/${name} is out of date: run \`npm run build\``;
  }
  const size = gzipSync(text, { level: 9 }).length;
  console.log(`${name}: ${text.length} bytes, ${size} compressed`);
  const most = SIZES_MAX[name];
  return size > most ? `dist/${name} has ${size} bytes compressed, more than ${most}` : undefined;
}

/** What parts import from elsewhere. */
const EXTERNAL = ["@throng-push/client", "react", "node:crypto"];

/** A part as a page's bundler makes it. */
async function buildPart(part, options) {
  const entry = { mangleProps: undefined, entryPoints: [`${part}/index.js`], format: "esm" };
  return squeeze(await build({ ...common, ...entry, ...options }));
}

/** A part without what it imports. */
async function checkPart([part, most]) {
  const text = await buildPart(part, { external: EXTERNAL });
  const size = gzipSync(text, { level: 9 }).length;
  console.log(`${part}: ${text.length} bytes, ${size} compressed`);
  const fault = `${part}/index.js has ${size} bytes compressed, more than ${most}`;
  return size > most ? fault : undefined;
}

async function writePackage() {
  const parts = ["react", "server", "tabs"];
  const sources = parts.map((part) => [`${part}/index.js`, part]);
  for (const [from, to] of [["src/throng.js", "throng"], ...sources]) {
    const { outputFiles } = await build({
      ...{ absWorkingDir: HERE, entryPoints: [from], bundle: true, write: false },
      ...{ format: "cjs", platform: "neutral", target: "es2022", banner: { js: BANNER } },
      external: EXTERNAL,
    });
    writeFileSync(`${HERE}dist/${to}.cjs`, outputFiles[0].text);
  }
  for (const types of ["throng.d", ...parts.map((part) => `${part}/index.d`)]) {
    writeFileSync(`${HERE}${types}.cts`, readFileSync(`${HERE}${types}.ts`));
  }
}

function write(files) {
  for (const name of readdirSync(`${HERE}dist`)) rmSync(`${HERE}dist/${name}`);
  for (const [name, text] of Object.entries(files)) {
    writeFileSync(`${HERE}dist/${name}`, text);
    writeFileSync(`${HERE}dist/${name}.gz`, gzipSync(text, { level: 9 }));
  }
}

if (process.argv.includes("--package")) await writePackage();
else if (!process.argv.includes("--check")) write(await bundle());
else {
  const faults = Object.entries(await bundle()).map(([name, text]) => check(name, text));
  faults.push(...(await Promise.all(Object.entries(PARTS_MAX).map(checkPart))));
  for (const fault of faults.filter(Boolean)) {
    console.error(fault);
    process.exitCode = 1;
  }
}
