// The JavaScript client as a server serves it: its files, imported from a directory of their own,
// because Node imports no modules over HTTP.
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

export async function importServed(url) {
  const directory = mkdtempSync(join(tmpdir(), "throng-client-"));
  process.on("exit", () => rmSync(directory, { recursive: true }));
  const save = async (name) => {
    const text = await (await fetch(`${url}/${name}`)).text();
    writeFileSync(join(directory, name), text);
    return text;
  };
  writeFileSync(join(directory, "package.json"), '{ "type": "module" }');
  const [part] = /throng-http-[^"]+\.js/.exec(await save("throng.js"));
  await save(part);
  return import(join(directory, "throng.js"));
}
