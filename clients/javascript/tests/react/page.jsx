// What tests/e2e/test_react.py looks at, in strict mode. The server's URL is behind the `#`.

import { StrictMode, useState } from "react";
import { createRoot } from "react-dom/client";
import { Throng } from "@throng-push/client";
import {
  ThrongProvider, useChannel, useChannelState, usePresence, useThrongState, useUnread,
} from "@throng-push/client/react";

const throng = new Throng(location.hash.slice(1), { user: "ann" });

function Room({ id, name }) {
  const options = { history: 10, keep: 3 };
  const { messages, isSubscribed, ended, error, publish, loadOlder } = useChannel(name, options);
  const place = `${ended ? "end of" : "in"} ${name?.channel ?? name}`;
  return (
    <section id={id}>
      <h2>{error?.code ?? (isSubscribed || ended ? place : "nowhere")}</h2>
      <ol>{messages.map(({ id, data }) => <li key={id}>{data}</li>)}</ol>
      <button className="publish" onClick={() => publish("from the page")}>Publish</button>
      <button className="older" onClick={() => loadOlder(1)}>Older</button>
    </section>
  );
}

function Here({ name }) {
  const { connections, users, isLoading } = usePresence(name);
  return <p id="here">{isLoading ? "" : `${connections} here: ${users.join()}`}</p>;
}

/** Who is at the desk, as they show themselves. */
function Desk() {
  const [name, rename] = useState("Ann");
  const { members } = usePresence("desk", { info: { name } });
  const shown = [...members].map(([user, { info }]) => `${user} is ${info?.name}`);
  return <button id="desk" onClick={() => rename("Anna")}>{shown.join()}</button>;
}

/** A counter that all pages share, and the names of all keys. */
function Counter({ name }) {
  const [count = 0, setCount, { remove, isComplete }] = useChannelState(name, "count");
  const [values] = useChannelState(name);
  return (
    <section id="counter">
      <output>{isComplete ? `${count} of ${[...values.keys()].sort().join()}` : ""}</output>
      <button className="more" onClick={() => setCount(count + 1)}>More</button>
      <button className="none" onClick={() => remove()}>None</button>
    </section>
  );
}

/** The number of unread messages, and a button that reads the message with this id. */
function Badge() {
  const { unread, read = "", markRead } = useUnread();
  return <button id="badge" onClick={() => markRead(window.newest)}>{`${unread} after ${read}`}</button>;
}

/** The same of a channel. */
function ChannelBadge() {
  const { unread, read = "", markRead } = useUnread({ channel: "marked" });
  const text = `${unread} in marked after ${read}`;
  return <button id="marked" onClick={() => markRead(window.newest)}>{text}</button>;
}

/** Two components that follow one channel, which the test chooses. */
function Page() {
  const [name, choose] = useState("a");
  window.choose = choose;
  const state = useThrongState();
  return (
    <>
      <p id="state">{state}</p>
      <Room id="one" name={name} />
      {name && <Room id="two" name={{ channel: name }} />}
      <Here name={name} />
      <Counter name={name} />
      <Desk />
      <Badge />
      <ChannelBadge />
    </>
  );
}

createRoot(document.getElementById("root")).render(
  <StrictMode>
    <ThrongProvider client={throng}>
      <Page />
    </ThrongProvider>
  </StrictMode>,
);
