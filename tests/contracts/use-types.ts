// Compiled, not run, with the types that openapi-typescript has generated.
import type { components, paths } from "./generated";

type History = paths["/channels/{channel}/history"]["get"];
type Page = History["responses"][200]["content"]["application/json"];

export const query: History["parameters"]["query"] = { limit: 10, after: "k3v9x2-17" };
export const newest = (page: Page): string | undefined => page.messages.at(-1)?.id;
export const code: components["schemas"]["Error"]["error"] = "bad_name";

// @ts-expect-error there is no such code
export const unknown: components["schemas"]["Error"]["error"] = "nonsense";
// @ts-expect-error the page has no such field
export const missing = (page: Page) => page.nonsense;
