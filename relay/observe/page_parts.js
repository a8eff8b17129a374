// Elements, texts as people write them, and drawings, for page.js. All text becomes text nodes and attributes, never HTML.
"use strict";

const EVERY = 5; // seconds
const MINUTES = 15;
const SVG = "http://www.w3.org/2000/svg";

// ------------------------------------------------------------------ elements

function element(namespace, name, attributes, children) {
  const node = namespace ? document.createElementNS(namespace, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}
const h = (name, attributes, ...children) => element(null, name, attributes, children);
const s = (name, attributes, ...children) => element(SVG, name, attributes, children);

function patch(old, fresh) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  for (const { name } of [...old.attributes]) {
    // Whether details are open is the reader's affair.
    if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  patchChildren(old, fresh);
}

function patchChildren(old, fresh) {
  const key = (node) => (node.dataset && node.dataset.key) || null;
  const keyed = new Map([...old.childNodes].filter(key).map((node) => [key(node), node]));
  let at = old.firstChild;
  for (const child of [...fresh.childNodes]) {
    const same = key(child) ? keyed.get(key(child)) : at;
    if (!same || same.nodeName !== child.nodeName || key(same) !== key(child)) {
      old.insertBefore(child, at);
      continue;
    }
    if (same === at) at = at.nextSibling;
    else old.insertBefore(same, at);
    patch(same, child);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

// ------------------------------------------------------------------ what people read

function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 59.5) return `${seconds < 10 ? seconds.toFixed(1).replace(".0", "") : Math.round(seconds)} s`;
  const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const whole = Math.round(seconds);
  const first = units.findIndex(([size]) => whole >= size);
  const rest = Math.floor((whole % units[first][0]) / units[first + 1][0]);
  return `${Math.floor(whole / units[first][0])} ${units[first][1]}` + (rest ? ` ${rest} ${units[first + 1][1]}` : "");
}

function count(number) {
  if (number === null || number === undefined) return "–";
  if (number < 10) return String(Math.round(number * 10) / 10);
  return Math.round(number).toLocaleString("en");
}

const many = (number, one, more) => `${count(number)} ${number === 1 ? one : more || `${one}s`}`;

function shortened(text, most = 26) {
  return text.length <= most ? text : `${text.slice(0, most / 2 - 1)}…${text.slice(-(most / 2))}`;
}

const tail = (text, most) => (text.length <= most ? text : `…${text.slice(1 - most)}`);

// An error says what it is at its beginning.
const beginning = (text, most) => h("span", { title: text.length > most ? text : null },
  text.length <= most ? text : `${text.slice(0, most - 1).trimEnd()}…`);

const whole = (text, most) => h("span", { title: text.length > (most || 26) ? text : null }, shortened(text, most));

function time(iso) {
  if (!iso) return "–";
  const at = new Date(iso);
  const today = at.toDateString() === new Date().toDateString();
  const day = { day: "numeric", month: "short" };
  const clock = { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false };
  return h("time", { datetime: iso, title: iso }, at.toLocaleString("en-GB", today ? clock : { ...day, ...clock }));
}

function position(value, key) {
  if (value === null || value === undefined) return "–";
  const text = typeof value === "string" ? value : JSON.stringify(value);
  const main = typeof value === "object" ? value.gtid || value.sequence || value.since || value.type || text : text;
  const shown = shortened(String(main));
  if (shown === String(main) && (main === text || Object.keys(value).length === 1)) return h("code", {}, shown);
  return h("details", { class: "whole", "data-key": key }, h("summary", {}, h("code", {}, shown)), h("code", {}, text));
}

function command(text) {
  return h("p", { class: "command" }, h("code", {}, text),
    h("button", { type: "button", "data-copy": text, "aria-label": `Copy: ${text}` }, "Copy"));
}

// ------------------------------------------------------------------ drawings

function curve(title, samples, now, field, text) {
  const known = samples.filter((sample) => sample[field] !== null && sample.at > now - MINUTES * 60);
  const top = Math.max(...known.map((sample) => sample[field]), 0.001);
  const last = known.length && known.at(-1).at > now - 60 ? known.at(-1)[field] : null;
  const x = (sample) => (300 * (1 - (now - sample.at) / (MINUTES * 60))).toFixed(1);
  const y = (sample) => (58 - 52 * (sample[field] / top)).toFixed(1);
  // A line ends where samples are missing. Latencies are known only where something was published.
  const pieces = [];
  for (const [index, sample] of known.entries()) {
    if (!index || sample.at - known[index - 1].at > (field === "latency" ? 60 : 3 * EVERY)) pieces.push([]);
    pieces.at(-1).push(sample);
  }
  const lines = pieces.map((piece) => piece.map((each) => `${x(each)},${y(each)}`).join(" "));
  const peak = known.length ? text(top) : "–";
  const drawing = s("svg", { viewBox: "0 0 300 60", preserveAspectRatio: "none", role: "img",
    "aria-label": `${title}: now ${text(last)}, at most ${peak} in the last ${MINUTES} minutes` },
  s("line", { x1: 0, y1: 59, x2: 300, y2: 59, class: "axis" }),
  pieces.map((piece, index) => s("polygon", { class: "area",
    points: `${x(piece[0])},59 ${lines[index]} ${x(piece.at(-1))},59` })),
  lines.map((points) => s("polyline", { class: "line", points })));
  return { drawing, last, peak };
}

function chart(title, samples, now, field, text) {
  const { drawing, last, peak } = curve(title, samples, now, field, text);
  return h("figure", {},
    h("figcaption", {}, h("span", {}, title), h("strong", {}, text(last)), h("small", {}, `peak ${peak}`)),
    drawing,
    h("div", { class: "ends" }, h("span", {}, `${MINUTES} min ago`), h("span", {}, "now")));
}

function layout(shards) {
  const byName = new Map(shards.map((shard) => [shard.shard, shard]));
  const depths = new Map();
  const depth = (shard) => {
    if (depths.has(shard.shard)) return depths.get(shard.shard);
    depths.set(shard.shard, 0); // a cycle in what was sent must not hang the page
    const above = shard.parents.filter((name) => byName.has(name)).map((name) => depth(byName.get(name)) + 1);
    depths.set(shard.shard, Math.max(0, ...above));
    return depths.get(shard.shard);
  };
  const columns = [];
  for (const shard of shards) (columns[depth(shard)] ||= []).push(shard);
  const places = new Map();
  for (const [number, column] of columns.entries()) {
    const above = (shard) => {
      const rows = shard.parents.filter((name) => places.has(name)).map((name) => places.get(name).row);
      return rows.length ? rows.reduce((sum, row) => sum + row, 0) / rows.length : 0;
    };
    column.sort((a, b) => above(a) - above(b) || a.shard.localeCompare(b.shard));
    for (const [row, shard] of column.entries()) places.set(shard.shard, { shard, column: number, row });
  }
  return { places, columns: columns.length, rows: Math.max(...columns.map((column) => column.length)) };
}
