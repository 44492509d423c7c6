// Draws the shapes of a recorded state (omg/envs/scene.py) on a canvas.
const pictures = new Map();

export function paint(canvas, episode, step, { scale = 1, sight = null, dim = "rgba(0,0,0,.5)" } = {}) {
  const [width, height] = episode.size, ratio = (devicePixelRatio || 1) * scale;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.width = `${width * scale}px`;
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.fillStyle = episode.ground;
  pen.fillRect(0, 0, width, height);
  for (const shape of [...episode.board, ...episode.frames[step]]) shapes[shape[0]]?.(pen, shape, () => paint(canvas, episode, step, { scale, sight, dim }));
  const bound = sight === null ? null : episode.sights[step]?.[sight];
  if (bound) {
    pen.beginPath();
    pen.rect(0, 0, width, height);
    if (bound[0] === "disc") { pen.moveTo(bound[1] + bound[3], bound[2]); pen.arc(bound[1], bound[2], bound[3], 0, 2 * Math.PI); }
    else pen.rect(bound[1], bound[2], bound[3] - bound[1], bound[4] - bound[2]);
    pen.fillStyle = dim;
    pen.fill("evenodd");
  }
}

function inked(pen, fill, outline) {
  if (fill) { pen.fillStyle = fill; pen.fill(); }
  if (outline) { pen.strokeStyle = outline; pen.lineWidth = 1; pen.stroke(); }
}

const shapes = {
  rectangle(pen, [, left, top, right, bottom, fill, outline]) { pen.beginPath(); pen.rect(left, top, right - left, bottom - top); inked(pen, fill, outline); },
  line(pen, [, x, y, u, v, colour, width]) { pen.beginPath(); pen.moveTo(x, y); pen.lineTo(u, v); pen.strokeStyle = colour; pen.lineWidth = width; pen.stroke(); },
  disc(pen, [, x, y, radius, fill, outline]) { pen.beginPath(); pen.arc(x, y, radius, 0, 2 * Math.PI); inked(pen, fill, outline); },
  level(pen, [, x, y, radius, part, colour]) { pen.beginPath(); pen.arc(x, y, radius, Math.PI * (0.5 - part), Math.PI * (0.5 + part)); pen.closePath(); inked(pen, colour); },
  ring(pen, [, x, y, radius, part, colour]) { pen.beginPath(); pen.arc(x, y, radius, -Math.PI / 2, Math.PI * (2 * part - 0.5)); pen.strokeStyle = colour; pen.lineWidth = 2; pen.stroke(); },
  text(pen, [, x, y, text, colour, right]) { pen.fillStyle = colour; pen.font = "12px system-ui, sans-serif"; pen.textAlign = right ? "right" : "center"; pen.textBaseline = "middle"; pen.fillText(text, x, y); },
  picture(pen, [, data], again) {
    if (!data.startsWith("data:image/png;base64,")) return;
    let image = pictures.get(data);
    if (!image) { image = new Image(); image.src = data; pictures.set(data, image); if (pictures.size > 400) pictures.delete(pictures.keys().next().value); }
    if (image.complete) pen.drawImage(image, 0, 0);
    else image.addEventListener("load", again, { once: true });
  },
};
