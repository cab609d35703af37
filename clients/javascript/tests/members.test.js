// Members of a channel: the list that a cursor keeps, and what subscriptions are told.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Cursor, Subscription } from "../src/subscription.js";

/** A cursor whose events are collected. */
function followed() {
  const cursor = new Cursor({ channel: "room" }, { presence: true });
  const subscription = new Subscription({ channel: "room" });
  const seen = [];
  subscription.on("presence", (event) => {
    const infos = [...event.members].map(([key, { info }]) => [key, info?.n]);
    const { joined, updated, left, partial } = event;
    const told = { infos, joined, updated, left: left?.map(({ user }) => user) };
    seen.push(partial ? { ...told, partial } : told);
  });
  cursor.join(subscription, {});
  const see = (event, user, n, more) => {
    const info = n === undefined ? undefined : { n };
    const member = { user, info };
    cursor.see({ type: "presence", channel: "room", event, id: "e-1", time: 7, member, ...more });
  };
  const follow = () => cursor.follow({ id: "e-0" });
  follow();
  return { cursor, subscription, seen, see, follow };
}

test("nothing is told before the list is complete, and then each change", () => {
  const { seen, see } = followed();
  see("join", "ann", 1);
  see("leave", "zoe");
  see("join", "bob");
  assert.deepEqual(seen, []);
  see("state");
  const infos = [["ann", 1], ["bob", undefined]];
  assert.deepEqual(seen.shift(), { infos, joined: undefined, updated: undefined, left: undefined });
  see("update", "ann", 1);
  assert.deepEqual(seen, [], "nothing has changed");
  see("update", "ann", 2);
  see("join", "cy");
  see("leave", "bob");
  see("leave", "nobody");
  assert.deepEqual(
    seen.map(({ joined, updated, left }) => [joined, updated, left]),
    [[[], ["ann"], []], [["cy"], [], []], [[], [], ["bob"]]],
  );
  assert.deepEqual(seen[2].infos, [["ann", 2], ["cy", undefined]]);
});

test("a list that comes again tells the difference", () => {
  const { seen, see, follow } = followed();
  for (const user of ["ann", "bob", "cy"]) see("join", user, 1);
  see("state");
  seen.length = 0;
  follow();
  see("join", "ann", 1);
  see("update", "bob", 2);
  see("state");
  assert.deepEqual(
    seen.map(({ joined, updated, left }) => [joined, updated, left]),
    [[[], ["bob"], []], [[], [], ["cy"]]],
  );
  seen.length = 0;
  follow();
  see("join", "ann", 1);
  see("join", "bob", 2);
  see("state");
  assert.deepEqual(seen, [], "a reconnect without a change");
});

test("a member may have a connection for a key", () => {
  const { cursor, seen } = followed();
  const join = { type: "presence", channel: "room", event: "join", id: "e-1", time: 7 };
  cursor.see({ ...join, member: { connection: "c1", user: "ann" } });
  cursor.see({ ...join, member: { connection: "c2", user: "ann" } });
  cursor.see({ ...join, member: { connection: "c3" } });
  let users;
  const later = new Subscription({ channel: "room" });
  later.on("presence", (event) => ({ users } = event));
  cursor.join(later, {});
  cursor.see({ ...join, event: "state" });
  assert.deepEqual(seen[0].infos.map(([key]) => key), ["c1", "c2", "c3"]);
  assert.deepEqual(users, ["ann"]);
});

test("a list of a node that is cut off is partial until the next one", () => {
  const { seen, see, follow } = followed();
  see("join", "ann", 1);
  see("state", undefined, undefined, { partial: true });
  see("join", "bob", 1);
  follow();
  see("join", "ann", 1);
  see("join", "bob", 1);
  see("state");
  assert.deepEqual(seen.map(({ partial, joined }) => [partial, joined]), [
    [true, undefined],
    [true, ["bob"]],
    [undefined, []],
  ]);
  seen.length = 0;
  follow();
  see("join", "ann", 1);
  see("join", "bob", 1);
  see("state");
  assert.deepEqual(seen, [], "nothing has changed");
});

test("a list that becomes partial, or whole, is told", () => {
  const { cursor, seen, see, follow } = followed();
  const tell = (event, partial) => {
    cursor.see({ type: "presence", channel: "room", event, id: "e-1", time: 7, partial });
  };
  tell("partial", true);
  assert.deepEqual(seen, [], "there is no list");
  see("join", "ann", 1);
  see("state");
  tell("partial", true);
  tell("partial", true);
  // As after a poll that has failed: what comes is no list.
  follow();
  see("leave", "ann");
  see("join", "bob", 1);
  tell("whole");
  tell("whole");
  assert.deepEqual(seen.map(({ partial, infos, joined, left }) => [partial, infos, joined, left]), [
    [undefined, [["ann", 1]], undefined, undefined],
    [true, [["ann", 1]], [], []],
    [true, [], [], ["ann"]],
    [true, [["bob", 1]], ["bob"], []],
    [undefined, [["bob", 1]], [], []],
  ]);
});
