// Benchmark tables with intervals, cross-play, and the members of pools.
import { ask, css, fixed, go, h, number, palette } from "./page.js";
import { paint } from "./scene.js";

export const title = "Partners";
const NUMBERS = new Set(["score", "seeds", "steps", "return", "seed"]);
const BOUNDS = new Set(["random", "scripted", "blind", "oracle", "best_response"]);

export function make(main) {
  let drawn = null;
  return {
    theme: () => main.querySelectorAll("canvas.scatter").forEach((canvas) => canvas.redraw?.()),
    leave: () => main.querySelectorAll("canvas.scatter").forEach((canvas) => canvas.stop?.()),
    async update() {
      const content = await ask("partners");
      if (drawn === content) return;
      drawn = content;
      const parts = [...content.benchmarks.flatMap(benchmark), ...content.embeddings.flatMap(embeddings), ...content.crossplay.flatMap(crossplay), ...content.pools.flatMap(pool),
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
    return [h("h2", {}, `${task}: scores with unseen partners`), h("p", { class: "quiet" }, `${id} · 0: random play, 1: a best response to each partner; interquartile means and 95 % intervals over seeds`),
      h("div", { class: "card scroll" }, h("table", { class: "benchmark" },
        h("thead", {}, h("tr", {}, ...["method", "score", "interval", "", "seeds", "partners"].map((name) => h("th", NUMBERS.has(name) ? { class: "number" } : {}, name)))),
        h("tbody", {}, ...methods.map((m) => h("tr", {}, h("td", {}, m.method), h("td", { class: "number" }, fixed(m.score)),
          h("td", {}, m.seeds > 1 ? `[${fixed(m.low)}, ${fixed(m.high)}]` : ""),
          h("td", {}, h("div", { class: "interval" + (BOUNDS.has(m.method) ? " bound" : "") },
            m.seeds > 1 ? h("i", { style: { left: at(m.low), width: `calc(${at(m.high)} - ${at(m.low)})` } }) : null, h("b", { style: { left: at(m.score) } }))),
          h("td", { class: "number" }, String(m.seeds)),
          h("td", {}, h("details", {}, h("summary", {}, String(m.partners.length)), ...m.partners.map((p) => h("div", {}, `${p.partner}: ${number(p.score)}`))))))))) ];
  });
}

// The mean embedding of every episode; a ring marks the recorded one. Under the pointer: the partner's name, and its recorded episode plays.
function embeddings({ id, title: name, members }) {
  const canvas = h("canvas", { class: "scatter", "aria-label": "embeddings" }), preview = h("canvas"), caption = h("p", { class: "quiet", role: "status" }, "Point at a dot.");
  const all = members.flatMap((member) => (member.at ? [...member.points, member.at] : member.points)), span = (axis) => [Math.min(...all.map((p) => p[axis])), Math.max(...all.map((p) => p[axis]))];
  const [[left, right], [low, high]] = [span(0), span(1)], size = 420;
  const place = ([x, y]) => [14 + ((size - 28) * (x - left)) / Math.max(right - left, 1e-9), size - 14 - ((size - 28) * (y - low)) / Math.max(high - low, 1e-9)];
  let chosen = null, timer = null;
  canvas.redraw = () => {
    const ratio = devicePixelRatio || 1, pen = canvas.getContext("2d");
    canvas.width = canvas.height = size * ratio;
    canvas.style.width = `${size}px`;
    pen.scale(ratio, ratio);
    members.forEach((member, i) => {
      pen.fillStyle = palette()[i % palette().length];
      pen.globalAlpha = chosen === null ? 0.65 : chosen === i ? 1 : 0.12;
      for (const point of member.points) { const [x, y] = place(point); pen.beginPath(); pen.arc(x, y, 3, 0, 2 * Math.PI); pen.fill(); }
    });
    members.forEach((member, i) => {
      if (!member.at || (chosen !== null && chosen !== i)) return;
      const [x, y] = place(member.at);
      pen.globalAlpha = 1;
      pen.fillStyle = palette()[i % palette().length];
      pen.strokeStyle = css("--ink");
      pen.lineWidth = chosen === i ? 2 : 1;
      pen.beginPath(); pen.arc(x, y, 5, 0, 2 * Math.PI); pen.fill(); pen.stroke();
    });
  };
  canvas.stop = () => clearInterval(timer);
  canvas.addEventListener("mousemove", async (event) => {
    const box = canvas.getBoundingClientRect(), at = [event.clientX - box.left, event.clientY - box.top].map((v) => (v * size) / box.width);
    let best = [14, null];
    members.forEach((member, i) => (member.at ? [...member.points, member.at] : member.points).forEach((point) => { const [x, y] = place(point), d = Math.hypot(x - at[0], y - at[1]); if (d < best[0]) best = [d, i]; }));
    if (best[1] === chosen) return;
    chosen = best[1];
    canvas.redraw();
    clearInterval(timer);
    caption.textContent = chosen === null ? "Point at a dot." : `${members[chosen].name} (${members[chosen].split})` + (members[chosen].recorded ? (members[chosen].at ? "; the ringed episode plays, click to open it" : "; click to open its episode") : "; not recorded: evaluate with --save_replay");
    canvas.dataset.partner = chosen === null ? "" : members[chosen].name;
    if (chosen === null || !members[chosen].recorded) return;
    const now = chosen, episode = await ask("episode", [["id", where(now)]]);
    if (now !== chosen) return;
    let step = 0;
    const next = () => { paint(preview, episode, step, { scale: Math.min(1, 300 / episode.size[0]) }); preview.dataset.step = step; step = (step + 1) % episode.frames.length; };
    next();
    timer = setInterval(next, 250);
  });
  canvas.addEventListener("click", () => { if (chosen !== null && members[chosen].recorded) go("episodes", [["id", where(chosen)]]); });
  const where = (i) => `${id === "." ? "" : `${id}/`}episodes/${members[i].name}/episode.json`;
  canvas.redraw();
  return [h("h2", {}, `Embeddings: ${name}`), h("p", { class: "quiet" }, `${id} · the mean embedding of every episode, along the first two principal components; one colour for each partner${members.some((member) => member.at) ? ", a ring around the recorded episode" : ""}`),
    h("div", { class: "card bar" }, canvas, h("div", {}, preview, caption))];
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
  const shipped = id.startsWith("zoo:");
  return [h("h2", {}, `Pool: ${shipped ? id : env.replaceAll("_", " ")}`),
    h("p", { class: "quiet" }, shipped ? `ships with the package, ${members.length} members: --pool=${id}` : `${id} · ${members.length} members`),
    h("div", { class: "card scroll" }, h("details", { open: !shipped && members.length <= 24 }, h("summary", {}, "members"), h("table", {}, h("thead", {}, h("tr", {}, ...columns.map(([, name]) => h("th", NUMBERS.has(name) ? { class: "number" } : {}, name)))),
      h("tbody", {}, ...members.map((member) => h("tr", {}, ...columns.map(([key]) => h("td", typeof member[key] === "number" ? { class: "number" } : {}, typeof member[key] === "number" ? number(member[key]) : String(member[key] ?? "")))))))))];
}
