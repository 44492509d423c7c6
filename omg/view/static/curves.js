// Learning curves of chosen runs: mean and band over seeds, the same numbers as `omg plot`.
import { ask, css, download, guard, h, palette, save } from "./page.js";

export const title = "Curves";
const short = (v) => (v >= 1e6 ? `${v / 1e6}M` : v >= 1e4 ? `${v / 1e3}k` : String(v));
const BY = [["config", "configuration"], ["run", "run"], ["seed", "first seed"]];
let options = { metric: "", by: "config", x: "steps", smooth: "0" };

export function make(main, query) {
  const ids = query.getAll("id");
  const set = (key) => (event) => { options[key] = event.target.value; guard(update()); };
  const metric = h("select", { onchange: set("metric"), "aria-label": "number" });
  const by = h("select", { onchange: set("by"), "aria-label": "groups" },
    ...BY.map(([value, name]) => h("option", { value, selected: options.by === value }, name)));
  const x = h("select", { onchange: set("x"), "aria-label": "axis" }, ...["steps", "seconds"].map((value) => h("option", { value, selected: options.x === value }, value)));
  const smooth = h("input", { type: "range", min: 0, max: 0.98, step: 0.02, value: options.smooth, oninput: set("smooth"), "aria-label": "smoothing" });
  const place = h("div", { class: "card", id: "plot" });
  const count = h("span", { class: "quiet" });
  main.append(h("div", { class: "bar" }, h("label", {}, "number ", metric), h("label", {}, "one curve for each ", by), h("label", {}, "over ", x),
    h("label", {}, "smooth ", smooth),
    h("button", { onclick: () => guard(download("figure", [...asked(), ["format", "png"]], "curves.png")) }, "PNG"),
    h("button", { onclick: () => guard(download("figure", [...asked(), ["format", "svg"]], "curves.svg")) }, "SVG"),
    h("button", { onclick: () => csv() }, "CSV"), count), place);
  let plot = null, content = null, drawn = null, left = false, ways = BY;

  const asked = () => [...chosen().map((id) => ["id", id]), ...Object.entries(options).filter(([, value]) => value !== "")];
  let everything = [], environment = "";
  const chosen = () => (ids.length ? ids : everything);

  async function update() {
    if (!ids.length) {
      const drawable = (await ask("runs")).runs.filter((run) => run.state !== "damaged" && run.steps > 0).sort((a, b) => a.changed - b.changed);
      if (!drawable.some((run) => run.env === environment)) environment = drawable.at(-1)?.env ?? "";
      everything = drawable.filter((run) => run.env === environment).slice(-12).map((run) => run.id);
      if (!everything.length) {
        place.replaceChildren(h("div", { class: "empty" }, "No runs to draw yet."));
        return;
      }
    }
    count.textContent = ids.length ? `${ids.length} run${ids.length === 1 ? "" : "s"}` : `the last ${everything.length === 1 ? "run" : `${everything.length} runs`} on ${environment.replaceAll("_", " ")}; choose others under Runs`;
    if (!ways.some(([value]) => value === options.by)) {
      // A setting of other runs: these need not have it.
      const wanted = options.by;
      options.by = "config";
      const known = (await ask("curves", asked())).differing;
      if (known.includes(wanted)) options.by = wanted;
    }
    content = await ask("curves", asked());
    if (left) return;
    const offered = [...BY, ...content.differing.map((name) => [name, name])];
    if (JSON.stringify(offered) !== JSON.stringify(ways)) {
      ways = offered;
      by.replaceChildren(...ways.map(([value, name]) => h("option", { value, selected: options.by === value }, name)));
    }
    metric.replaceChildren(...content.metrics.map((name) => h("option", { value: name, selected: name === content.metric }, name.replaceAll("_", " "))));
    draw();
  }

  function draw() {
    if (!content) return;
    const width = place.clientWidth - 28;
    const state = JSON.stringify([content, width, document.documentElement.dataset.theme]);
    if (state === drawn) return;
    drawn = state;
    const places = [...new Set(content.curves.flatMap((curve) => curve.x))].sort((a, b) => a - b);
    const at = new Map(places.map((value, i) => [value, i]));
    // No number is shown before the pointer is on the plot.
    const value = (_, v) => (v == null ? "" : short(Number(v.toPrecision(4))));
    const series = [{ label: options.x, value }], data = [places], bands = [];
    content.curves.forEach((curve, i) => {
      const colour = palette()[i % palette().length], name = curve.name + (curve.seeds > 1 ? ` (${curve.seeds} seeds)` : "");
      const on = (values) => { const row = places.map(() => undefined); curve.x.forEach((v, j) => { row[at.get(v)] = values[j]; }); return row; };
      series.push({ label: name, stroke: colour, width: 2, spanGaps: true, value });
      data.push(on(curve.mean));
      if (curve.seeds > 1) {
        const first = series.length;
        for (const side of ["high", "low"]) { series.push({ label: `${name} ${side}`, edge: true, stroke: "transparent", spanGaps: true, points: { show: false } }); data.push(on(curve[side])); }
        bands.push({ series: [first, first + 1], fill: colour + "2e" });
      }
    });
    const axis = { stroke: css("--quiet"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line") } };
    plot?.destroy();
    place.replaceChildren();
    plot = new uPlot({
      width, height: Math.max(280, Math.min(520, innerHeight - 240)), series, bands, scales: { x: { time: false } }, padding: [10, 30, 0, 0],
      axes: [{ ...axis, label: options.x === "steps" ? "environment steps" : "seconds", values: (_, ticks) => ticks.map(short), space: 60 }, { ...axis, label: content.metric.replaceAll("_", " "), size: 66 }],
      cursor: { focus: { prox: 24 } }, legend: { live: true },
    }, data, place);
    place.querySelectorAll(".u-legend .u-series").forEach((row, i) => { if (series[i].edge) row.style.display = "none"; });
  }

  function csv() {
    const cell = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
    const lines = [["curve", options.x, "mean", "low", "high"].join(",")];
    for (const curve of content.curves) curve.x.forEach((v, i) => lines.push([cell(curve.name), v, curve.mean[i], curve.low[i], curve.high[i]].join(",")));
    save(new Blob([lines.join("\n") + "\n"], { type: "text/csv" }), "curves.csv");
  }

  const resized = () => draw();
  addEventListener("resize", resized);
  return { update, theme: draw, leave() { left = true; removeEventListener("resize", resized); plot?.destroy(); } };
}
