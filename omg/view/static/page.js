// What all tabs share: elements, requests, numbers. Text from files is only ever set as text, never as HTML.
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === null) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "class" || key.includes("-") || key === "for" || key === "role") element.setAttribute(key, value);
    else if (key === "style") Object.assign(element.style, value);
    else element[key] = value;
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

const token = new URLSearchParams(location.search).get("token");
const headers = () => (token ? { "X-Token": token } : {});
const kept = new Map();

export async function ask(what, query = []) {
  const address = `api/${what}?${new URLSearchParams(query)}`;
  const before = kept.get(what);
  const same = before && before.address === address;
  const answer = await fetch(address, { headers: { ...headers(), ...(same ? { "If-None-Match": before.stamp } : {}) } });
  if (answer.status === 304) return before.content;
  const content = await answer.json();
  if (!answer.ok) throw new Error(content.error ?? `the server answered ${answer.status}`);
  kept.set(what, { address, stamp: answer.headers.get("ETag"), content });
  return content;
}

export async function download(what, query, name) {
  const answer = await fetch(`api/${what}?${new URLSearchParams(query)}`, { headers: headers() });
  if (!answer.ok) throw new Error((await answer.json()).error);
  save(await answer.blob(), name);
}

export function save(blob, name) {
  const link = h("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

export function problem(text) {
  const place = document.getElementById("problem");
  place.textContent = text ?? "";
  place.hidden = !text;
}

// For what a click starts: a mistake is shown like one of an update.
export const guard = (promise) => promise.then(() => problem(null), (error) => problem(error.message));

export const fixed = (value) => (value === null || value === undefined ? "" : Number(value).toFixed(3));
export const number = (value, digits = 3) =>
  value === null || value === undefined ? "" : Number(value).toLocaleString("en", { maximumFractionDigits: digits });

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  const s = Math.round(seconds), m = Math.floor(s / 60), two = (x) => String(x).padStart(2, "0");
  return m >= 60 ? `${Math.floor(m / 60)}:${two(m % 60)}:${two(s % 60)}` : `${m}:${two(s % 60)}`;
}

const light = ["#29629b", "#c0392b", "#277d5a", "#7850a0", "#be781e", "#5b6770", "#a83279", "#2a9d8f"];
const dark = ["#6fb1ee", "#f0796c", "#5fc79a", "#b794e6", "#eab35a", "#a9b4bf", "#ea7fbd", "#63d3c5"];
export const palette = () => (document.documentElement.dataset.theme === "dark" ? dark : light);
export const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export function go(tab, query = []) {
  location.hash = `${tab}?${new URLSearchParams(query)}`;
}
