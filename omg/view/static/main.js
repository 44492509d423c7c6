// The frame of the page: tabs by the part of the address after #, live updates, light and dark.
import { ask, go, h, problem } from "./page.js";
import * as runs from "./runs.js";
import * as curves from "./curves.js";
import * as episodes from "./episodes.js";
import * as partners from "./partners.js";

const tabs = { runs, curves, episodes, partners };
const EVERY = 2000;
let shown = null;
let updating = false;

function where() {
  const [tab, query] = location.hash.slice(1).split("?");
  return { tab: tab in tabs ? tab : "runs", query: new URLSearchParams(query ?? "") };
}

async function show() {
  const { tab, query } = where();
  shown?.leave?.();
  const main = document.getElementById("main");
  main.replaceChildren();
  document.querySelectorAll("#tabs a").forEach((link) => {
    if (link.dataset.tab === tab) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  });
  shown = tabs[tab].make(main, query);
  await update();
}

async function update() {
  if (updating || document.hidden) return;
  updating = true;
  const current = shown;
  try {
    await current.update();
    problem(null);
  } catch (error) {
    if (current === shown) problem(error instanceof TypeError ? "the server does not answer: is omg view still running?" : error.message);
  } finally {
    updating = false;
  }
}

function theme(name) {
  document.documentElement.dataset.theme = name;
  localStorage.setItem("theme", name);
  shown?.theme?.();
}

document.getElementById("tabs").append(
  ...Object.keys(tabs).map((tab) => h("a", { href: `#${tab}`, "data-tab": tab }, tabs[tab].title)),
);
theme(localStorage.getItem("theme") ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
document.getElementById("theme").addEventListener("click", () =>
  theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
addEventListener("hashchange", show);
addEventListener("visibilitychange", update);
setInterval(update, EVERY);
if (!location.hash) history.replaceState(null, "", "#runs");
show();
ask("runs").then((content) => { document.getElementById("root").textContent = content.root; }, () => {});
export { go };
