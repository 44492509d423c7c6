// The table of runs: filter, sort, choose; progress; configurations and their differences.
import { ask, duration, go, h, number } from "./page.js";

export const title = "Runs";
const COLUMNS = [
  ["path", "run"], ["name", "method"], ["env", "environment"], ["seed", "seed"], ["state", "state"], ["steps", "steps"],
  ["test_return", "return"], ["focal_return", "focal return"], ["seconds", "time"],
];
const NUMBERS = new Set(["seed", "steps", "test_return", "focal_return", "seconds"]);
const chosen = new Set();
let sort = { by: "changed", up: false };
let words = "";

export function make(main) {
  const filter = h("input", { type: "search", placeholder: "filter: words in any column", value: words, "aria-label": "filter",
    oninput: () => { words = filter.value; draw(); } });
  const count = h("span", { class: "quiet", role: "status" });
  const curves = h("button", { onclick: () => go("curves", [...chosen].map((id) => ["id", id])) }, "Curves");
  const compare = h("button", { onclick: () => configurations() }, "Configurations");
  const none = h("button", { onclick: () => { chosen.clear(); draw(); } }, "Choose none");
  const body = h("tbody");
  const head = h("tr");
  const table = h("div", { class: "card scroll" }, h("table", {}, h("thead", {}, head), body));
  const below = h("div", { id: "configurations" });
  main.append(h("div", { class: "bar" }, filter, curves, compare, none, count), table, below);
  let rows = null, drawn = null;

  function draw() {
    if (!rows) return;
    const state = JSON.stringify([rows, sort, words, [...chosen]]);
    if (state === drawn) return;
    drawn = state;
    head.replaceChildren(h("th"), ...COLUMNS.map(([key, name]) => h("th", {
      class: "sorts" + (NUMBERS.has(key) ? " number" : ""), tabIndex: 0, onclick: () => order(key),
      onkeydown: (e) => e.key === "Enter" && order(key),
      "aria-sort": sort.by === key ? (sort.up ? "ascending" : "descending") : "none",
    }, name + (sort.by === key ? (sort.up ? " ↑" : " ↓") : ""))));
    const asked = words.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = (row) => { const text = COLUMNS.map(([key]) => row[key]).join(" ").toLowerCase(); return asked.every((w) => text.includes(w)); };
    const listed = rows.filter(fits).sort(compareBy(sort));
    body.replaceChildren(...listed.map(line));
    count.textContent = `${listed.length} of ${rows.length} runs` + (chosen.size ? `, ${chosen.size} chosen` : "");
    curves.disabled = compare.disabled = none.disabled = chosen.size === 0;
    if (!rows.length) body.append(h("tr", {}, h("td", { colSpan: 10 }, h("div", { class: "empty" },
      "No runs yet. Start one: ", h("code", {}, "omg train --config=iql --env-config=foraging")))));
  }

  function order(key) {
    sort = { by: key, up: sort.by === key ? !sort.up : !NUMBERS.has(key) };
    draw();
  }

  function line(row) {
    const pick = () => { chosen.has(row.id) ? chosen.delete(row.id) : chosen.add(row.id); draw(); };
    const part = row.t_max ? Math.min(row.steps / row.t_max, 1) : 0;
    const progress = row.state === "running" ? h("progress", { value: part, max: 1, title: `${number(100 * part, 0)} %` }) : null;
    const cells = {
      path: h("td", { class: "path", title: row.problem || row.path }, row.path || "."),
      state: h("td", {}, h("span", { class: `state ${row.state}`, title: row.problem }, row.state), " ", progress ?? ""),
      seconds: h("td", { class: "number" }, duration(row.seconds)),
      seed: h("td", { class: "number" }, row.seeds > 1 ? `${row.seed} … (${row.seeds})` : String(row.seed ?? "")),
    };
    return h("tr", { class: chosen.has(row.id) ? "chosen" : "", "data-id": row.id },
      h("td", {}, h("input", { type: "checkbox", checked: chosen.has(row.id), onchange: pick, "aria-label": `choose ${row.path}` })),
      ...COLUMNS.map(([key]) => cells[key] ?? h("td", NUMBERS.has(key) ? { class: "number" } : {}, NUMBERS.has(key) ? number(row[key]) : String(row[key] ?? ""))));
  }

  async function configurations() {
    const found = await Promise.all([...chosen].map((id) => ask("config", [["id", id]]).catch((e) => ({ id, config: { problem: e.message } }))));
    const flat = found.map(({ config }) => flatten(config));
    const keys = [...new Set(flat.flatMap((config) => Object.keys(config)))].sort();
    const differs = (key) => new Set(flat.map((config) => config[key])).size > 1;
    const rowsOf = (some) => some.map((key) => h("tr", { class: differs(key) ? "differs" : "" }, h("td", {}, key), ...flat.map((config) => h("td", {}, config[key] ?? ""))));
    const heading = () => h("tr", {}, h("th", {}, "setting"), ...found.map(({ id }) => h("th", {}, id)));
    const different = keys.filter(differs);
    below.replaceChildren(h("h2", {}, found.length > 1 ? `Configurations: ${different.length} settings differ` : "Configuration"),
      h("div", { class: "card scroll" },
        found.length > 1 ? h("table", {}, h("thead", {}, heading()), h("tbody", {}, rowsOf(different))) : null,
        h("details", { open: found.length === 1 }, h("summary", {}, "all settings"), h("table", {}, h("thead", {}, heading()), h("tbody", {}, rowsOf(keys))))));
    below.scrollIntoView({ behavior: "smooth" });
  }

  return { async update() { rows = (await ask("runs")).runs; draw(); } };
}

function compareBy({ by, up }) {
  return (a, b) => {
    const [x, y] = [a[by], b[by]];
    if (x === null || x === undefined) return 1;
    if (y === null || y === undefined) return -1;
    return (x < y ? -1 : x > y ? 1 : 0) * (up ? 1 : -1);
  };
}

function flatten(config, before = "") {
  return Object.assign({}, ...Object.entries(config).map(([key, value]) =>
    value !== null && typeof value === "object" && !Array.isArray(value) && Object.keys(value).length
      ? flatten(value, `${before}${key}.`) : { [before + key]: JSON.stringify(value) }));
}
