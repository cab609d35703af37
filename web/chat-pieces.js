/** Building blocks of the chat page: elements, avatars, short notices. */

const TOAST_MS = 2_500;

let toastTimer;

export const $ = (id) => document.getElementById(id);

export function create(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

export function hueOf(text) {
  let sum = 0;
  for (const character of text) sum = (sum * 31 + character.codePointAt(0)) % 9973;
  return `hue-${sum % 8}`;
}

/** A letter on the person's colour. Hidden from screen readers, which read the name beside it. */
export function avatar(from) {
  const [initial = "?"] = from;
  const face = create("span", from ? `avatar ${hueOf(from)}` : "avatar", initial.toUpperCase());
  face.setAttribute("aria-hidden", "true");
  return face;
}

export function toast(text) {
  $("toast").textContent = text;
  $("toast").classList.add("shown");
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => $("toast").classList.remove("shown"), TOAST_MS);
}
