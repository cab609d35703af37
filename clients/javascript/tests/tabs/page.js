// What tests/e2e/test_tabs.py opens in several tabs.

import { SharedThrong } from "@throng-push/client/tabs";

/** Opens a client that follows a channel, and records what it gets. */
window.follow = ({ url, channel, options, ...subscribe }) => {
  const throng = new SharedThrong(url, options);
  Object.assign(window, { throng, texts: [], replayed: 0, gaps: 0, states: [], here: undefined });
  throng.on("state", ({ state }) => window.states.push(state));
  throng.on("error", (error) => window.states.push(error.code));
  const subscription = throng.subscribe(channel, subscribe, (message) => {
    window.texts.push(message.data);
    if (message.replayed) window.replayed += 1;
  });
  subscription.on("gap", () => {
    window.gaps += 1;
  });
  subscription.on("presence", (event) => {
    window.here = event;
  });
  return new Promise((resolve) => {
    subscription.on("subscribed", () => resolve());
  });
};
