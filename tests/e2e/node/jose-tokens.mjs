// Makes a token with jose for each algorithm. Reads {"claims": {...}, "keys": {"ALG": "KEY"}} from
// standard input, where a key is a secret or a private key in PEM, and prints {"ALG": "TOKEN"}.
import { text } from "node:stream/consumers";
import { SignJWT, importPKCS8 } from "jose";

const { claims, keys } = JSON.parse(await text(process.stdin));
const tokens = {};
for (const [alg, given] of Object.entries(keys)) {
  const key = alg.startsWith("HS") ? new TextEncoder().encode(given) : await importPKCS8(given, alg);
  const header = { alg, typ: "JWT", kid: alg.toLowerCase() };
  tokens[alg] = await new SignJWT(claims).setProtectedHeader(header).sign(key);
}
console.log(JSON.stringify(tokens));
