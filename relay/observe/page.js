// The status page: asks for page.json every few seconds and patches what has changed, so focus and scrolling stay.
const BEHIND = 120; // seconds of lag: less passes by itself, as after a start
const MOST_DRAWN = 150; // shards of a source

// ------------------------------------------------------------------ the state of everything

let status = null;
let answered = null; // when, by this browser's clock
let trouble = null;
let counted = []; // of the last minute: when, and how many changes each table has had

const STATES = {
  stalled: ["▲", "stalled"], gap: ["✂", "at a gap"], gone: ["✕", "lost"], retrying: ["↻", "retrying"], behind: ["»", "catching up"],
  snapshot: ["▤", "snapshot"], current: ["●", "up to date"], waiting: ["○", "waiting for its parents"],
  listed: ["○", "not begun"], finished: ["✓", "read to its end"],
};

const ended = (shard) => shard.state === "finished" || shard.state === "gone";
const keyOf = (shard) => `${shard.source}/${shard.stream}/${shard.shard}`;

const isAtGap = (place) => status.sources.some((each) => each.pending_gaps.some((gap) => keyOf(gap) === keyOf(place)));

function stateOf(shard, stalled) {
  if (isAtGap(shard)) return "gap";
  if (stalled.has(keyOf(shard))) return "stalled";
  if (ended(shard)) return shard.state;
  if (shard.failures) return "retrying";
  if (shard.stream.endsWith("/snapshot")) return "snapshot";
  if (shard.waits_for.length) return "waiting";
  if (shard.lag_seconds !== null && shard.lag_seconds > BEHIND) return "behind";
  return shard.state === "reading" ? "current" : "listed";
}

const badge = (state) => h("span", { class: `badge ${state}` }, h("span", { "aria-hidden": "true" }, STATES[state][0]),
  ` ${STATES[state][1]}`);

// ------------------------------------------------------------------ parts of the page

function problem(each) {
  const since = [each.seconds !== null && `For ${span(each.seconds)}`, each.where && `in ${each.where}`].filter(Boolean).join(", ");
  return h("li", { class: each.colour === "bad" ? "bad" : "warn", "data-key": `problem ${each.what} ${each.where}` },
    h("h3", {}, each.what), h("p", {}, [since && `${since}. `, each.reason]), each.commands.map(command),
    each.alert && h("p", { class: "note" }, `Runbook: alert ${each.alert}`));
}

const sample = ([at, rate, lag, latency]) => ({ at, rate, lag, latency });
const asOf = () => Date.parse(status.at) / 1000;

function history() {
  // Samples of several workers that fall into the same few seconds are one.
  const slots = new Map();
  for (const worker of status.workers) {
    for (const { at, rate, lag, latency } of worker.history.map(sample)) {
      const slot = Math.floor(at / EVERY);
      const sum = slots.get(slot) || { at: slot * EVERY, rate: 0, lag: null, latency: null };
      sum.rate += rate;
      if (lag !== null) sum.lag = Math.max(sum.lag || 0, lag);
      if (latency !== null) sum.latency = Math.max(sum.latency || 0, latency);
      slots.set(slot, sum);
    }
  }
  return [...slots.values()].sort((a, b) => a.at - b.at);
}

function charts() {
  const [samples, now] = [history(), asOf()];
  return h("section", { class: "charts", "aria-label": "The last 15 minutes" },
    chart("Lag of the slowest shard", samples, now, "lag", span),
    chart("Changes per second", samples, now, "rate", count),
    chart("Commit to topic, mean", samples, now, "latency", span));
}

function table(columns, rows) {
  const head = h("thead", {}, h("tr", {}, columns.map((column) => h("th", { scope: "col" }, column))));
  const body = rows.map(({ attributes, cells }) => h("tr", attributes,
    cells.map((cell, index) => h("td", { "data-label": columns[index], class: cell === "–" ? "none" : null }, cell))));
  return h("div", { class: "scroll" }, h("table", {}, head, h("tbody", {}, body)));
}

const link = (url, name) => (url ? h("a", { href: `${url}/` }, name) : name);

function spark(title, samples) {
  const { drawing, peak } = curve(title, samples, asOf(), "lag", span);
  return peak === "–" ? peak : h("span", { class: "spark" }, drawing, h("small", {}, ` peak ${peak}`));
}

function processes() {
  const workers = status.workers.map((worker) => ({ attributes: { "data-key": `worker ${worker.process}` }, cells: [
    [link(worker.url, worker.name), worker.url ? null : " (this page)"], whole(worker.process),
    worker.stalls.some((stall) => !isAtGap(stall)) ? badge("stalled") : h("span", { class: `badge ${worker.not_ready.length ? "listed" : "current"}` },
      worker.not_ready.length ? "○ not ready" : "● makes progress"),
    worker.group ? `${worker.group.owned} of ${worker.group.partitions} partitions` : "–",
    many(worker.open, "shard"), span(worker.uptime_seconds), worker.version,
  ] }));
  const state = (each) => each.is_stalled ? badge("stalled") : each.state === "running" ? (each.lag_seconds > BEHIND ? badge("behind") : badge("current"))
    : h("span", { class: `badge ${each.state === "stopped" ? "finished" : "stalled"}` }, each.state);
  const consumers = status.consumers.map((each) => ({ attributes: { "data-key": `consumer ${each.url} ${each.consumer}` },
    cells: [
      h("a", { href: `${each.url}/status.json` }, each.consumer),
      state(each),
      span(each.lag_seconds),
      spark(`Lag of ${each.consumer}`, each.history.map(sample)),
      each.lag_records === null ? "–" : many(each.lag_records, "record"),
      each.error ? beginning(each.error, 100) : "–",
    ] }));
  return [
    h("section", {}, h("h2", {}, "Workers"), table(["Worker", "Process", "State", "Owns", "Reads", "Runs for", "Version"], workers)),
    consumers.length ? h("section", {}, h("h2", {}, "Consumers"),
      table(["Consumer", "State", "Lag", `Lag, ${MINUTES} min`, "Waiting", "Last error"], consumers)) : null,
  ];
}

const nameOf = (each) => `${each.source}/${each.table}`;

function tables() {
  const rate = (each) => {
    const then = counted.find((earlier) => earlier.changes.has(nameOf(each)));
    const more = each.changes - then.changes.get(nameOf(each));
    return then.at < asOf() && more >= 0 ? count(more / (asOf() - then.at)) : "–"; // less: a worker has begun again
  };
  const rows = status.tables.map((each) => ({ attributes: { "data-key": `table ${nameOf(each)}` }, cells: [
    each.table, each.source, h("code", {}, each.topic), rate(each), count(each.changes),
    command(each.look),
  ] }));
  return rows.length ? h("section", {}, h("h2", {}, "Tables"),
    table(["Table", "Source", "Topic", "Changes a second", "Since the start", "Its last changes"], rows)) : null;
}

function events() {
  const rows = status.events.map((each) => ({ attributes: { "data-key": `event ${each.at} ${each.what}` },
    cells: [time(each.at), each.worker, each.kind, each.what] }));
  return rows.length ? h("section", { class: "events" }, h("h2", {}, "Last events"),
    table(["When", "Worker", "Kind", "What"], rows)) : null;
}

// ------------------------------------------------------------------ the lineage of a source

function drawn(shards) {
  // What is still read or waits, and the parents of these, then what has ended most recently.
  const recent = [...shards].sort((a, b) => ended(a) - ended(b) || (b.progress || "").localeCompare(a.progress || ""));
  return recent.slice(0, MOST_DRAWN);
}

const anchor = (shard) => `shard ${keyOf(shard)}`.replace(/\s/g, "_");

function lineage(shards, stalled) {
  const [width, height, across, down] = [176, 26, 216, 36];
  const { places, columns, rows } = layout(drawn(shards));
  const [allWidth, allHeight] = [columns * across - (across - width) + 4, rows * down - (down - height) + 4];
  const edges = [];
  const nodes = [];
  for (const { shard, column, row } of places.values()) {
    const [x, y] = [column * across + 2, row * down + 2];
    const state = stateOf(shard, stalled);
    for (const parent of shard.parents.filter((name) => places.has(name))) {
      const from = places.get(parent);
      const [px, py] = [from.column * across + 2 + width, from.row * down + 2 + height / 2];
      const middle = (px + x) / 2;
      edges.push(s("path", { class: "edge", d: `M${px} ${py}C${middle} ${py} ${middle} ${y + height / 2} ${x} ${y + height / 2}` }));
    }
    const label = `${shard.shard}: ${STATES[state][1]}${shard.lag_seconds === null ? "" : `, ${span(shard.lag_seconds)} behind`}`;
    nodes.push(s("a", { href: `#${encodeURIComponent(anchor(shard))}`, "data-key": shard.shard, "aria-label": label },
      s("title", {}, label),
      s("rect", { x, y, width, height, rx: 6, class: `node ${state}` }),
      s("text", { x: x + 10, y: y + 17, class: state }, `${STATES[state][0]} ${tail(shard.shard, 20)}`)));
  }
  const hidden = shards.length - places.size;
  return [
    h("div", { class: "scroll lineage", tabindex: "0", role: "group", "aria-label": "Lineage of the shards, parents first" },
      s("svg", { width: allWidth, height: allHeight, viewBox: `0 0 ${allWidth} ${allHeight}` }, edges, nodes)),
    hidden > 0 ? h("p", { class: "note" }, `${many(hidden, "more shard")}, read to their end before these, are not drawn.`) : null,
  ];
}

function legend(shards, stalled) {
  const numbers = new Map();
  for (const shard of shards) {
    const state = stateOf(shard, stalled);
    numbers.set(state, (numbers.get(state) || 0) + 1);
  }
  const found = Object.keys(STATES).filter((state) => numbers.has(state));
  return h("p", { class: "legend" }, found.map((state) => [badge(state), h("b", {}, ` ${numbers.get(state)} `)]));
}

function sourceSection(source, stalled) {
  const shards = status.shards.filter((shard) => shard.source === source.source);
  const lag = Math.max(...shards.filter((shard) => shard.lag_seconds !== null).map((shard) => shard.lag_seconds));
  const facts = [
    ["Lag", Number.isFinite(lag) ? span(lag) : "–"], ["Complete up to", time(source.low_watermark)],
    ["Not read to their end", many(source.unfinished_shards, "shard")], ["Stream", whole(source.stream)],
  ];
  const columns = ["Shard", "State", "Lag", "Read by", "Position", "Read up to", "Remarks"];
  const row = (shard) => ({ attributes: { id: anchor(shard), "data-key": keyOf(shard) }, cells: [
    whole(shard.shard, 34), badge(stateOf(shard, stalled)), span(shard.lag_seconds),
    shard.open ? shard.worker : "–", position(shard.position, "position"), time(shard.progress),
    shard.error ? beginning(shard.error, 100) : shard.waits_for.length ? `waits for ${shard.waits_for.join(", ")}` : "–",
  ] });
  // What needs a person comes first, in the order of STATES; the others stay as they are.
  const rank = (shard) => Math.min(Object.keys(STATES).indexOf(stateOf(shard, stalled)), 4);
  const unfinished = shards.filter((shard) => !ended(shard)).sort((a, b) => rank(a) - rank(b));
  const over = shards.filter(ended);
  const snapshot = source.snapshot;
  const names = new Set(shards.map((shard) => shard.shard));
  const hasLineage = shards.some((shard) => shard.parents.some((name) => names.has(name)));
  return h("section", { "data-key": `source ${source.source}` },
    h("h2", {}, source.source),
    h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
    snapshot && h("p", { class: "snapshot" }, "Snapshot ",
      h("progress", { max: Math.max(snapshot.rows_estimated, snapshot.rows_read, 1), value: snapshot.rows_read,
        "aria-label": "rows of the snapshot" }),
      ` ${count(snapshot.rows_read)} of about ${many(snapshot.rows_estimated, "row")}`),
    shards.length ? [shards.length > 1 && legend(shards, stalled), hasLineage && lineage(shards, stalled), table(columns, unfinished.map(row)),
      over.length ? h("details", {}, h("summary", {}, `${many(over.length, "shard")} read to ${over.length === 1 ? "its" : "their"} end`),
        table(columns, over.map(row))) : null]
      : h("p", { class: "note" }, "No shards are listed yet."));
}

// ------------------------------------------------------------------ the page

function render() {
  const stalls = status.workers.flatMap((worker) => worker.stalls);
  const stalled = new Set(stalls.filter((stall) => stall.shard).map(keyOf));
  document.title = `${status.state} – relay ${status.name}`;
  const age = (Date.now() - answered) / 1000;
  const main = h("main", {},
    h("header", {},
      h("h1", {}, "relay ", h("b", {}, status.name)),
      h("p", { class: `overall ${status.colour}`, role: "status" }, h("strong", {}, status.state), ` ${status.sentence}`),
      h("p", { class: "note" }, trouble ? `No answer for ${span(age)}: ${trouble}. This is the status of ` : "As of ", time(status.at),
        ` ${Intl.DateTimeFormat().resolvedOptions().timeZone}`)),
    status.problems.length ? h("section", { "aria-label": "Needs attention" },
      h("ul", { class: "problems" }, status.problems.map(problem))) : null,
    charts(), processes(), tables(),
    status.sources.map((source) => sourceSection(source, stalled)),
    events(),
    status.shards_left_out ? h("p", { class: "note" }, `${many(status.shards_left_out, "more shard")} are in the JSON.`) : null,
    h("footer", {}, [["metrics", "metrics"], ["healthz", "health"], ["readyz", "readiness"], ["status.json", "all of this as JSON"]]
      .map(([path, name]) => h("a", { href: path }, name))));
  document.body.classList.toggle("old", trouble !== null);
  const shown = document.querySelector("main");
  const isFirst = shown.dataset.live === undefined;
  patch(shown, main);
  shown.dataset.live = "";
  if (isFirst) for (const each of document.querySelectorAll(".lineage")) each.scrollLeft = each.scrollWidth;
}

async function refresh() {
  try {
    const answer = await fetch("page.json", { signal: AbortSignal.timeout(10000) });
    if (!answer.ok) throw new Error(`it answers ${answer.status}`);
    const found = await answer.json();
    if (status !== null && status.version !== found.version) return location.reload(); // its page shows what it has
    status = found;
    [answered, trouble] = [Date.now(), null];
    counted.push({ at: asOf(), changes: new Map(status.tables.map((each) => [nameOf(each), each.changes])) });
    counted = counted.filter((each) => each.at > asOf() - 60);
  } catch (error) {
    trouble = error.name === "TimeoutError" ? "it takes longer than 10 s" : error.message;
  }
  if (status !== null) render();
}

async function go() {
  if (!document.hidden) await refresh();
  setTimeout(go, EVERY * 1000);
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const code = button.parentElement.querySelector("code");
  getSelection().selectAllChildren(code); // what is left to do where a page may not write to the clipboard
  if (navigator.clipboard) await navigator.clipboard.writeText(button.dataset.copy).then(() => {
    button.textContent = "Copied";
  }, () => {});
});

go();
