// The page of the list: it loads the list, and then applies the changes that Throng tells it.
import { StrictMode, useCallback, useEffect, useReducer } from "react";
import { createRoot } from "react-dom/client";
import { Throng } from "@throng-push/client";
import { ThrongProvider, useChannel, usePresence } from "@throng-push/client/react";

const name = new URLSearchParams(location.search).get("name") ?? "somebody";
const throng = new Throng(THRONG_URL, {
  // Whom the others see.
  user: name,
  async getToken() {
    const response = await fetch(`/push-token?name=${encodeURIComponent(name)}`);
    if (!response.ok) throw new Error(`the application answered ${response.status}`);
    return response.text();
  },
});

/** The list after a change, or after it was loaded. */
function reduce(list, { version, items, item, isGone }) {
  if (version <= list.version) return list;
  if (items) return { version, items, isComplete: true };
  // Changes are missing: what is shown stays until the list is loaded.
  if (version > list.version + 1) return { ...list, isComplete: false };
  const others = list.items.filter(({ id }) => id !== item.id);
  const at = list.items.findIndex(({ id }) => id === item.id);
  if (!isGone) others.splice(at < 0 ? others.length : at, 0, item);
  return { version, items: others, isComplete: true };
}

const change = (item) => fetch("/changes", { method: "POST", body: JSON.stringify(item) });

function List() {
  const [list, apply] = useReducer(reduce, { version: -1, items: [], isComplete: false });
  const load = useCallback(async () => {
    const response = await fetch("/items");
    if (response.ok) apply(await response.json());
  }, []);
  const { isSubscribed, error } = useChannel("list", {
    keep: 1,
    onMessage: ({ data }) => apply(data),
    onGap: load,
  });
  const { users } = usePresence("list");
  // Whatever changes after the subscription has begun, is told.
  useEffect(() => {
    if (isSubscribed && !list.isComplete) load();
  }, [isSubscribed, list.isComplete, load]);

  const add = (event) => {
    event.preventDefault();
    const { text } = event.target.elements;
    change({ text: text.value });
    text.value = "";
  };
  if (error) return <p role="alert">{error.message}</p>;
  return (
    <>
      <h1>Shopping list</h1>
      <p role="status">{isSubscribed ? `here: ${users.join(", ")}` : "connecting …"}</p>
      <ul>
        {list.items.map((item) => (
          <li key={item.id}>
            <label>
              <input type="checkbox" checked={item.isDone} onChange={() => change({ ...item, isDone: !item.isDone })} />
              {item.text}
            </label>{" "}
            <button onClick={() => change({ ...item, isGone: true })}>Remove {item.text}</button>
          </li>
        ))}
      </ul>
      <form onSubmit={add}>
        <label>Item <input name="text" autoComplete="off" required /></label> <button>Add</button>
      </form>
    </>
  );
}

createRoot(document.querySelector("main")).render(
  <StrictMode>
    <ThrongProvider client={throng}>
      <List />
    </ThrongProvider>
  </StrictMode>,
);
