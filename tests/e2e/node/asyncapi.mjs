// Parses an AsyncAPI document with the parser of its makers; prints what it finds wrong, and the
// number of operations.
//
//     node asyncapi.mjs FILE
import { readFile } from "node:fs/promises";
import { Parser } from "@asyncapi/parser";

const text = await readFile(process.argv[2], "utf8");
const { document, diagnostics } = await new Parser().parse(text);
// That a newer version of the format exists is no problem of the document.
const problems = diagnostics.filter(({ code }) => code !== "asyncapi-latest-version");
for (const { code, message, path } of problems) {
  console.log(`${code}: ${message} at ${path.join("/")}`);
}
console.log(`${document?.allOperations().length ?? 0} operations`);
process.exitCode = problems.length === 0 ? 0 : 1;
