// Benchmark tables with intervals, cross-play, and the members of pools.
import { ask, fixed, h, number } from "./page.js";

export const title = "Partners";
const BOUNDS = new Set(["random", "scripted", "blind", "oracle", "best_response"]);

export function make(main) {
  let drawn = null;
  return {
    async update() {
      const content = await ask("partners");
      if (drawn === content) return;
      drawn = content;
      const parts = [...content.benchmarks.flatMap(benchmark), ...content.crossplay.flatMap(crossplay), ...content.pools.flatMap(pool),
        ...content.problems.map(({ id, problem }) => h("p", { class: "quiet" }, `${id} is damaged: ${problem}`))];
      main.replaceChildren(...(parts.length ? parts : [h("div", { class: "card empty" }, "No pools or benchmarks yet. Make one: ",
        h("code", {}, "omg benchmark prisoners_dilemma --budget=tiny"))]));
    },
  };
}

function benchmark({ id, tasks }) {
  return tasks.flatMap(({ task, methods }) => {
    const ends = methods.flatMap((m) => [m.low, m.high, m.score]);
    const low = Math.min(0, ...ends), high = Math.max(1, ...ends), at = (v) => `${(100 * (v - low)) / (high - low)}%`;
    return [h("h2", {}, `${task}: scores with unseen partners`), h("p", { class: "quiet" }, `${id} · 0: random play, 1: a best response to each partner; interquartile means and 95 % intervals over seeds and partners`),
      h("div", { class: "card scroll" }, h("table", { class: "benchmark" },
        h("thead", {}, h("tr", {}, ...["method", "score", "interval", "", "seeds", "partners"].map((name) => h("th", {}, name)))),
        h("tbody", {}, ...methods.map((m) => h("tr", {}, h("td", {}, m.method), h("td", { class: "number" }, fixed(m.score)),
          h("td", {}, m.seeds > 1 ? `[${fixed(m.low)}, ${fixed(m.high)}]` : ""),
          h("td", {}, h("div", { class: "interval" + (BOUNDS.has(m.method) ? " bound" : "") },
            m.seeds > 1 ? h("i", { style: { left: at(m.low), width: `calc(${at(m.high)} - ${at(m.low)})` } }) : null, h("b", { style: { left: at(m.score) } }))),
          h("td", { class: "number" }, String(m.seeds)),
          h("td", {}, h("details", {}, h("summary", {}, String(m.partners.length)), ...m.partners.map((p) => h("div", {}, `${p.partner}: ${number(p.score)}`))))))))) ];
  });
}

function crossplay({ id, names, agents, values }) {
  const all = values.flat(), low = Math.min(...all), high = Math.max(...all);
  const shade = (v) => `color-mix(in srgb, var(--accent) ${Math.round(8 + (72 * (v - low)) / Math.max(high - low, 1e-9))}%, var(--card))`;
  return [h("h2", {}, "Cross-play"), h("p", { class: "quiet" }, `${id} · return of the row's agent with the column's in all other seats`),
    h("div", { class: "card scroll" }, h("table", { class: "heat" }, h("thead", {}, h("tr", {}, h("th"), ...names.map((name) => h("th", {}, name)))),
      h("tbody", {}, ...values.map((row, i) => h("tr", {}, h("th", {}, agents[i]), ...row.map((v, j) => h("td", { style: { background: shade(v) }, title: `${agents[i]} with ${names[j]}` }, number(v))))))))];
}

function pool({ id, env, members }) {
  const columns = [["name", "member"], ["algorithm", "algorithm"], ["split", "split"], ["seed", "seed"], ["steps", "steps"], ["return_mean", "return"]];
  return [h("h2", {}, `Pool: ${env}`), h("p", { class: "quiet" }, `${id} · ${members.length} members`),
    h("div", { class: "card scroll" }, h("details", { open: members.length <= 24 }, h("summary", {}, "members"), h("table", {}, h("thead", {}, h("tr", {}, ...columns.map(([, name]) => h("th", {}, name)))),
      h("tbody", {}, ...members.map((member) => h("tr", {}, ...columns.map(([key]) => h("td", typeof member[key] === "number" ? { class: "number" } : {}, typeof member[key] === "number" ? number(member[key]) : String(member[key] ?? "")))))))))];
}
