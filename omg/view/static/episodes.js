// A recorded episode: the board, and step by step what the focal agent infers, does and earns.
import { ask, css, go, h, number } from "./page.js";
import { paint } from "./scene.js";

export const title = "Episodes";
const REACH = 24; // pixels of the board within which a click finds an agent

export function make(main, query) {
  const pick = h("select", { "aria-label": "episode", onchange: () => go("episodes", [["id", pick.value]]) });
  const place = h("div", { id: "episode" });
  main.append(h("div", { class: "bar" }, h("label", {}, "episode ", pick)), place);
  let player = null, left = false, wanted = query.get("id"), listed = null;

  async function update() {
    const { episodes } = await ask("episodes");
    const ids = episodes.map((episode) => episode.id);
    if (JSON.stringify(ids) !== listed) {
      listed = JSON.stringify(ids);
      pick.replaceChildren(...ids.map((id) => h("option", { value: id, selected: id === wanted }, id)));
    }
    if (!ids.length) {
      place.replaceChildren(h("div", { class: "card empty" }, "No recorded episodes yet. Record one: ", h("code", {}, "omg evaluate --checkpoint_path=… --save_replay")));
      return;
    }
    if (!player) {
      wanted = wanted ?? ids[0];
      const episode = await ask("episode", [["id", wanted]]);
      if (!left && !player) player = play(place, episode);
    }
  }
  return { update, theme: () => player?.draw(), leave: () => { left = true; player?.leave(); } };
}

function play(place, episode) {
  const last = episode.frames.length - 1;
  let step = 0, timer = null, sight = null;
  const board = h("canvas", { class: "board", "aria-label": "the board" });
  const views = episode.sights.some((s) => s.length);
  const look = (i) => { sight = sight === i ? null : i; draw(); };
  board.classList.toggle("views", views);
  board.addEventListener("click", (event) => {
    const box = board.getBoundingClientRect(), at = [event.clientX - box.left, event.clientY - box.top].map((v) => (v * episode.size[0]) / box.width);
    const near = under(episode, step, at);
    if (views && near !== null) look(near);
  });
  const scale = Math.min(1.6, Math.max(0.6, 460 / episode.size[0]));
  const slider = h("input", { type: "range", min: 0, max: last, value: 0, "aria-label": "step", oninput: () => { stop(); to(Number(slider.value)); } });
  const button = h("button", { onclick: () => (timer ? stop() : start()), "aria-label": "play" }, "▶");
  const speed = h("select", { "aria-label": "speed", onchange: () => { if (timer) { stop(); start(); } } },
    ...[["0.5×", 800], ["1×", 400], ["2×", 200], ["5×", 80]].map(([name, value]) => h("option", { value, selected: value === 400 }, name)));
  const facts = h("div", { class: "facts" });
  const seats = h("div", { class: "seats" });
  const shown = h("div", { class: "card" });
  const back = h("button", { onclick: () => { stop(); to(step - 1); }, "aria-label": "back" }, "‹");
  const on = h("button", { onclick: () => { stop(); to(step + 1); }, "aria-label": "forward" }, "›");
  place.replaceChildren(h("div", { class: "split" },
    h("div", { class: "card" }, facts, board, h("div", { class: "controls" }, button, back, on, slider, speed), seats,
      h("p", { class: "quiet" }, views ? "Click an agent, on the board or here, to see what it sees. " : "", "Space plays, the arrow keys step.")),
    shown));
  const panels = episode.shown.map((entry) => (entry.form === "rows" ? rows(episode, entry) : null));
  const moments = episode.shown.filter((entry) => entry.form !== "rows").map((entry) => ({ entry, canvas: h("canvas"), caption: h("figcaption") }));
  if (moments.length) shown.append(h("div", { class: "shown moments" }, ...moments.map(({ canvas, caption }) => h("figure", {}, caption, canvas))));
  panels.forEach((panel) => panel && shown.append(panel.element));
  const line = h("canvas", { class: "line", "aria-label": "return over the episode" });
  shown.append(h("section", { class: "shown" }, h("h3", {}, "return so far" + (episode.focal !== null && !episode.cooperative ? " (dashed: of the focal agent)" : "")), line));
  if (!episode.shown.length) shown.append(h("p", { class: "quiet" }, "This agent infers nothing about others."));

  function draw() {
    paint(board, episode, step, { scale, sight, dim: css("--dim") });
    board.dataset.step = step;
    const reward = (values) => number(values[step], 2);
    facts.replaceChildren(
      h("div", {}, h("b", {}, `${step}`), ` of ${last}`, h("span", {}, "step")),
      h("div", {}, h("b", { id: "team-return" }, reward(episode.team_return)), h("span", {}, "return so far")),
      ...(episode.focal !== null && !episode.cooperative ? [h("div", {}, h("b", {}, reward(episode.own_return)), h("span", {}, "of the focal agent"))] : []),
      h("div", {}, h("b", {}, episode.env.replaceAll("_", " ")), h("span", {}, "environment")));
    seats.replaceChildren(...episode.seats.map((name, i) => h("button", {
      class: "seat", "aria-pressed": String(sight === i), disabled: !views, onclick: () => look(i),
    }, h("span", { class: "dot", style: { background: episode.colours[i] } }, String(i + 1)), name,
    h("span", { class: "quiet" }, step === last ? "" : episode.alive[step][i] ? `does: ${episode.action_names[episode.actions[step][i]] ?? ""}` : "has left"))));
    for (const { entry, canvas, caption } of moments) {
      if (entry.form === "scenes") {
        const now = Math.min(step, entry.frames.length - 1);
        caption.textContent = entry.title;
        paint(canvas, { ...episode, frames: entry.frames }, now, { scale: scale * 0.62 });
        canvas.dataset.target = now;
        continue;
      }
      const target = entry.steps[Math.min(step, entry.steps.length - 1)];
      caption.textContent = entry.title + (step === last ? "" : entry.ahead ? ` (+${target - step})` : ` (step ${target})`);
      paint(canvas, episode, target, { scale: scale * 0.62 });
      canvas.dataset.target = target;
    }
    panels.forEach((panel) => panel?.draw(Math.min(step, last - 1)));
    slider.value = step;
    earned(line, episode, step);
  }
  function to(next) { step = Math.max(0, Math.min(last, next)); if (step === last) stop(); draw(); }
  function start() { if (step === last) step = 0; timer = setInterval(() => to(step + 1), Number(speed.value)); button.textContent = "❚❚"; button.setAttribute("aria-label", "pause"); draw(); }
  function stop() { clearInterval(timer); timer = null; button.textContent = "▶"; button.setAttribute("aria-label", "play"); }
  function keys(event) {
    if (["SELECT", "INPUT", "BUTTON"].includes(event.target.tagName) && event.key === " ") return;
    if (event.key === " ") { event.preventDefault(); timer ? stop() : start(); }
    else if (event.key === "ArrowRight" && event.target !== slider) { stop(); to(step + 1); }
    else if (event.key === "ArrowLeft" && event.target !== slider) { stop(); to(step - 1); }
  }
  addEventListener("keydown", keys);
  draw();
  return { draw, leave() { stop(); removeEventListener("keydown", keys); } };
}

// The agent at a place of the board: what an agent sees is drawn around it.
function under(episode, step, [x, y]) {
  let best = [REACH, null];
  (episode.sights[step] ?? []).forEach((bound, seat) => {
    if (!bound) return;
    const [cx, cy] = bound[0] === "disc" ? [bound[1], bound[2]] : [(bound[1] + bound[3]) / 2, (bound[2] + bound[4]) / 2];
    const far = Math.hypot(cx - x, cy - y);
    if (far < best[0]) best = [far, seat];
  });
  return best[1];
}

// The return along the episode, with a mark at the step that is shown.
function earned(canvas, episode, step) {
  const ratio = devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const pen = canvas.getContext("2d"), last = Math.max(episode.frames.length - 1, 1);
  const both = episode.focal !== null && !episode.cooperative ? [episode.team_return, episode.own_return] : [episode.team_return];
  const all = both.flat(), low = Math.min(0, ...all), high = Math.max(low + 1e-6, ...all);
  const x = (t) => 4 + ((width - 8) * t) / last, y = (v) => height - 6 - ((height - 12) * (v - low)) / (high - low);
  pen.scale(ratio, ratio);
  pen.fillStyle = css("--quiet");
  pen.font = "11px sans-serif";
  pen.fillText(number(high, 2), 4, 11);
  if (low < 0) pen.fillText(number(low, 2), 4, height - 2);
  pen.strokeStyle = css("--line");
  pen.beginPath(); pen.moveTo(x(step), 0); pen.lineTo(x(step), height); pen.stroke();
  both.forEach((values, i) => {
    pen.setLineDash(i ? [4, 3] : []);
    pen.strokeStyle = css("--accent");
    pen.lineWidth = 1.6;
    pen.beginPath();
    values.forEach((v, t) => (t ? pen.lineTo(x(t), y(v)) : pen.moveTo(x(t), y(v))));
    pen.stroke();
  });
}

// Bars for every agent. Probabilities fill their column; values are drawn between the lowest and the highest of the episode.
function rows(episode, entry) {
  const all = entry.values.flat(2).filter((value) => value !== null);
  const [low, high] = entry.probabilities ? [0, 1] : [Math.min(...all), Math.max(...all)];
  const lines = entry.seats.map((seat) => {
    const bins = entry.names.map((name) => {
      const fill = h("div", { class: "fill", style: { background: episode.colours[seat] } });
      const column = h("div", { class: "column" }, fill);
      return { fill, element: h("div", { class: "bin" }, column, h("div", { class: "label", title: name }, name)) };
    });
    return { bins, element: h("div", { class: "row", "data-seat": seat }, h("span", { class: "dot", style: { background: episode.colours[seat] } }, String(seat + 1)), h("div", { class: "bars" }, ...bins.map((bin) => bin.element))) };
  });
  const element = h("section", { class: "shown" }, h("h3", {}, entry.title + (entry.taken ? (entry.own ? " (framed: taken)" : " (framed: what it did)") : "")), ...lines.map((line) => line.element));
  function draw(step) {
    lines.forEach((line, i) => {
      line.element.classList.toggle("dead", !entry.alive[step][i]);
      line.bins.forEach((bin, j) => {
        const value = entry.values[step][i][j];
        bin.element.dataset.value = value ?? "";
        bin.element.title = value === null ? "not available" : `${entry.names[j]}: ${number(value)}`;
        bin.element.classList.toggle("off", value === null);
        bin.element.classList.toggle("taken", Boolean(entry.taken) && entry.taken[step][i] === j);
        bin.fill.style.height = `${value === null ? 0 : 100 * Math.max(0.01, (value - low) / Math.max(high - low, 1e-9))}%`;
      });
    });
  }
  return { element, draw };
}
