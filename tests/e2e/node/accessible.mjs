// What accessibility tests share: axe-core in a page, and a walk through it with the keyboard alone.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

/** Sizes of a window, and colours; each page is tried in all four combinations. */
export const SIZES = { desktop: { width: 1280, height: 800 }, phone: { width: 390, height: 800 } };
export const SCHEMES = ["light", "dark"];

/** The rules of axe-core that have to do with colours. */
const ABOUT_COLOURS = ["color-contrast", "link-in-text-block"];

/** What can be operated. Of a group of radio buttons, the tab key reaches only one. */
const OPERABLE =
  'a[href], button, input:not([type="hidden"]):not([type="radio"]), select, textarea, summary, [tabindex="0"]';
const STEPS_MAX = 500;

/**
 * The violations of the rules of axe-core in the page as it is, as lines of text. `only` lists the rules
 * that are applied, and none stands for the usual ones.
 */
async function violations(page, what, without, only) {
  await page.evaluate(AXE);
  const found = await page.evaluate(async ([ids, runOnly]) => {
    const rules = Object.fromEntries(ids.map((id) => [id, { enabled: false }]));
    return (await globalThis.axe.run({ rules, ...(runOnly && { runOnly: { type: "rule", values: runOnly } }) })).violations;
  }, [without, only]);
  return found.flatMap(({ id, impact, help, nodes }) =>
    nodes.map(({ target, failureSummary }) =>
      `${what}: ${id} (${impact}): ${help}: ${target.join(" ")}: ${failureSummary}`),
  );
}

/**
 * What the tab key does not reach, or reaches without showing where it is.
 *
 * It begins at the top of the page and ends where it has been before.
 */
async function unreachable(page, what) {
  await page.evaluate((selector) => {
    const isShown = (element) =>
      element.checkVisibility({ visibilityProperty: true }) && !element.closest("[inert]");
    // Behind a modal dialog nothing can be operated.
    const top = document.querySelector("dialog:modal") ?? document;
    globalThis.expected = [...top.querySelectorAll(selector)].filter(
      (element) => isShown(element) && !element.disabled && element.tabIndex >= 0,
    );
    globalThis.reached = new Set();
    globalThis.unmarked = new Set();
    document.activeElement?.blur();
    getSelection()?.removeAllRanges();
    scrollTo(0, 0);
  }, OPERABLE);
  for (let step = 0; step < STEPS_MAX; step += 1) {
    await page.keyboard.press("Tab");
    const goesOn = await page.evaluate(() => {
      const at = document.activeElement;
      if (!at || at === document.body || reached.has(at)) return reached.size < expected.length && !reached.has(at);
      reached.add(at);
      const style = getComputedStyle(at);
      const isMarked = (style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0) ||
        style.boxShadow !== "none" || style.opacity === "0";
      if (!isMarked) unmarked.add(at);
      return true;
    });
    if (!goesOn) break;
  }
  const left = await page.evaluate(() => {
    const name = (element) => element.outerHTML.slice(0, 160);
    return {
      missed: expected.filter((element) => !reached.has(element)).map(name),
      unmarked: [...unmarked].map(name),
    };
  });
  return [
    ...left.missed.map((element) => `${what}: the tab key does not reach ${element}`),
    ...left.unmarked.map((element) => `${what}: nothing shows that this has the focus: ${element}`),
  ];
}

/**
 * Opens a page in each size and colour scheme, and returns all findings. `prepare` brings the page
 * into the state that is looked at, and waits for it. `without` names rules that are not applied,
 * `pictures` a directory for a picture of each.
 */
export async function findings(browser, url, name, { prepare = async () => {}, without = [], pictures } = {}) {
  const found = [];
  for (const [size, viewport] of Object.entries(SIZES)) {
    for (const colorScheme of SCHEMES) {
      const context = await browser.newContext({ viewport, colorScheme, reducedMotion: "reduce" });
      const page = await context.newPage();
      const what = `${name}, ${size}, ${colorScheme}`;
      await page.goto(url);
      await prepare(page, size);
      // What the page is made of is the same in both schemes.
      const only = colorScheme === "dark" ? ABOUT_COLOURS : null;
      found.push(...(await violations(page, what, without, only)));
      if (await page.evaluate(() => document.documentElement.scrollWidth > innerWidth)) {
        found.push(`${what}: the page scrolls sideways`);
      }
      if (pictures) await page.screenshot({ path: `${pictures}/${what.replace(/\W+/g, "-")}.png` });
      if (colorScheme === "light") found.push(...(await unreachable(page, what)));
      await context.close();
    }
  }
  return found;
}
