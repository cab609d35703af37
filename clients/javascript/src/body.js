/** Bodies of responses, and requests that wait. */

import { orAborted } from "./http.js";

/** Waits for the abort and rejects with its reason. */
export function aborted(signal) {
  return orAborted(new Promise(() => {}), signal);
}

/** The body as text. Calls `onChunk` for each chunk, so that callers can extend a deadline. */
export async function readText(response, onChunk) {
  // Some platforms have `fetch` without streams.
  if (!response.body?.getReader) return response.text();
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return text + decoder.decode();
    onChunk();
    text += decoder.decode(value, { stream: true });
  }
}
