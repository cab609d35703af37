/** The package, and the files that the server serves, as their users get them. */

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import {
  copyFileSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { next } from "./context.js";
import { StandIn } from "./stand-in.js";

const HERE = fileURLToPath(new URL("..", import.meta.url));
const { name, version } = JSON.parse(readFileSync(join(HERE, "package.json")));
const PART = `throng-http-${version}.js`;

function makeDirectory(t) {
  const directory = mkdtempSync(join(tmpdir(), "throng-package-"));
  t.after(() => rmSync(directory, { recursive: true }));
  return directory;
}

test("the package is for import and for require, with types for both", (t) => {
  const directory = makeDirectory(t);
  const installed = join(directory, "node_modules", name);
  mkdirSync(installed, { recursive: true });
  const pack = ["pack", "--silent", "--pack-destination", directory];
  const printed = execFileSync("npm", pack, { cwd: HERE, encoding: "utf8" });
  const archive = printed.trim().split("\n").at(-1);
  execFileSync("tar", ["-xzf", join(directory, archive), "--strip-components=1", "-C", installed]);
  const script = `
    const check = ({ Throng, ThrongError }) => {
      const client = new Throng("http://127.0.0.1:1", { transports: ["sse"] });
      client.close();
      return client.publish("a", 1).catch((error) => error instanceof ThrongError && error.code);
    };
    const both = [import("${name}").then(check), check(require("${name}"))];
    const hooks = [import("${name}/react"), require("${name}/react")];
    const named = async () => (await Promise.all(hooks)).map(({ useChannel }) => useChannel.name);
    const { makeToken } = require("${name}/server");
    const served = import("${name}/server").then(({ Webhook }) => Webhook.name);
    const tabs = [import("${name}/tabs"), require("${name}/tabs")];
    const shared = Promise.all(tabs).then((both) => both.map(({ SharedThrong }) => SharedThrong.name));
    Promise.all([...both, named(), served, makeToken.name, shared]).then((found) => console.log(found.flat().join()));
  `;
  const run = (command, parameters) =>
    execFileSync(command, parameters, { cwd: directory, encoding: "utf8" }).trim();
  for (const package_ of ["react", join("@types", "react"), "csstype"]) {
    mkdirSync(join(directory, "node_modules", "@types"), { recursive: true });
    const link = join(directory, "node_modules", package_);
    symlinkSync(join(HERE, "node_modules", package_), link);
  }
  const expected = "closed,closed,useChannel,useChannel,Webhook,makeToken,SharedThrong,SharedThrong";
  assert.equal(run(process.execPath, ["-e", script]), expected);
  const program = `import { Throng } from "${name}";
    import { useChannel } from "${name}/react";
    import { Publisher } from "${name}/server";
    import { SharedThrong } from "${name}/tabs";
    new Publisher("http://a").publish("a", 1);
    new SharedThrong({ user: "ann" }).logout();
    export const use = () => useChannel<string>("a").messages[0]?.data.length;
    new Throng().publish("a", 1);
  `;
  writeFileSync(join(directory, "a.mts"), program);
  writeFileSync(join(directory, "b.cts"), program);
  const compiler = join(HERE, "node_modules", "typescript", "bin", "tsc");
  const options = ["--noEmit", "--strict", "--module", "nodenext", "--target", "es2022"];
  const files = ["--lib", "es2022,dom", "a.mts", "b.cts"];
  assert.equal(run(process.execPath, [compiler, ...options, ...files]), "");
});

test("the served client says that its part for HTTP is missing, and tries again", async (t) => {
  const directory = makeDirectory(t);
  writeFileSync(join(directory, "package.json"), '{ "type": "module" }');
  copyFileSync(join(HERE, "dist", "throng.js"), join(directory, "throng.js"));
  const { Throng, ThrongError } = await import(join(directory, "throng.js"));
  const server = await StandIn.start();
  const client = new Throng(server.url, { transports: ["sse"], random: () => 0.05 });
  t.after(async () => {
    client.close();
    await server.stop();
  });
  const failed = await client.history("a").catch((error) => error);
  assert.ok(failed instanceof ThrongError && failed.code === "unreachable" && failed.cause);
  client.subscribe("a");
  const { reason } = await next(client, "state", ({ state }) => state === "waiting");
  assert.match(reason, /^cannot load a part of the client: /);
  copyFileSync(join(HERE, "dist", PART), join(directory, PART));
  await next(client, "state", ({ state }) => state === "open");
  await client.publish("a", "x");
  const { messages } = await client.history("a");
  assert.deepEqual(messages.map(({ data }) => data), ["x"]);
});
