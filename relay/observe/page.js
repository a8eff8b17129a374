// The status page: asks for page.json every few seconds and patches what has changed, so focus and scrolling stay.
const BEHIND = 120; // seconds of lag; less is usual for an idle shard of DynamoDB
const MOST_DRAWN = 150; // shards of a source

// ------------------------------------------------------------------ the state of everything

let status = null;
let answered = null; // when, by this browser's clock
let trouble = null;

const STATES = {
  stalled: ["▲", "stalled"], gap: ["✂", "at a gap"], gone: ["✕", "lost"], retrying: ["↻", "retrying"], behind: ["»", "catching up"],
  snapshot: ["▤", "snapshot"], current: ["●", "up to date"], waiting: ["○", "waiting for its parents"],
  listed: ["○", "not begun"], finished: ["✓", "read to its end"],
};

const ended = (shard) => shard.state === "finished" || shard.state === "gone";
const keyOf = (shard) => `${shard.source}/${shard.stream}/${shard.shard}`;

function stateOf(shard, stalled) {
  if (stalled.has(keyOf(shard))) return "stalled";
  if (status.sources.some((each) => each.pending_gaps.some((gap) => keyOf(gap) === keyOf(shard)))) return "gap";
  if (ended(shard)) return shard.state;
  if (shard.failures) return "retrying";
  if (shard.stream.endsWith("/snapshot")) return "snapshot";
  if (shard.waits_for.length) return "waiting";
  if (shard.lag_seconds !== null && shard.lag_seconds > BEHIND) return "behind";
  return shard.state === "reading" ? "current" : "listed";
}

const badge = (state) => h("span", { class: `badge ${state}` }, h("span", { "aria-hidden": "true" }, STATES[state][0]),
  ` ${STATES[state][1]}`);

// The worst of all. `found`: what needs attention, as problems() has it.
function overall(stalls, gaps, found) {
  const is = (...states) => status.consumers.some((each) => states.includes(each.state));
  if (stalls.length) return ["bad", "Stalled", "Something makes no progress. See below."];
  if (gaps.length) return ["bad", "Stopped at a gap", "A person has to decide how it goes on. See below."];
  if (is("waiting to try again")) return ["bad", "A consumer fails", "It tries again. See below."];
  if (status.unreachable.some((each) => each.is_peer)) return ["bad", "A process does not answer", "See below."];
  if (status.workers.some((worker) => worker.not_ready.length) || is("starting")) {
    return ["busy", "Starting", "Not everything is ready yet."];
  }
  const source = status.sources.find((each) => each.snapshot);
  if (source) {
    const { rows_read: read, rows_estimated: rows } = source.snapshot;
    return ["busy", "Snapshotting", `${count(read)} of about ${many(rows, "row")} of ${source.source} are read.`];
  }
  const furthest = (all) => all.reduce((most, each) => ((each.lag_seconds || 0) > (most.lag_seconds || 0) ? each : most), {});
  const shard = furthest(status.shards), consumer = furthest(status.consumers);
  if (shard.lag_seconds > BEHIND) return ["busy", "Catching up", `The shard furthest behind is at ${span(shard.lag_seconds)} ago.`];
  if (consumer.lag_seconds > BEHIND) {
    return ["busy", "Catching up", `The consumer ${consumer.consumer} is at ${span(consumer.lag_seconds)} ago.`];
  }
  // Dead letters are counted since the start, which says nothing of those that still wait.
  if (found.some((each) => each.dataset.key !== "letters")) return ["busy", "Needs attention", "Everything makes progress, but something waits for a person. See below."];
  return ["good", "Up to date", "Every shard and consumer makes progress."];
}

// ------------------------------------------------------------------ parts of the page

function problems(stalls, gaps) {
  const found = [];
  const config = status.config;
  const add = (kind, key, title, text, ...commands) => found.push(
    h("li", { class: kind, "data-key": key }, h("h3", {}, title), text && h("p", {}, text), commands));
  for (const stall of stalls) {
    const where = stall.shard || stall.source;
    const inside = [stall.source && `source ${stall.source}`, stall.stream && `stream ${stall.stream}`, stall.from];
    add("bad", `stall ${inside} ${stall.shard} ${stall.what}`, where ? `${where}: ${stall.what}` : stall.what,
      `For ${span(stall.seconds)}, in ${inside.filter(Boolean).join(", ")}.${stall.error ? ` Last error: ${stall.error}` : ""}`,
      stall.source ? command("status", config) : []);
  }
  for (const gap of gaps) {
    const shard = gap.shard ? `shard ${gap.shard}` : `stream ${gap.stream}`;
    const again = status.sources.every((source) => source.source !== gap.source || source.has_snapshots);
    add("bad", `gap ${gap.id}`, `Gap in ${gap.source}: ${gap.reason}`,
      `Changes of ${shard} are lost. The relay waits for a decision: continue after the gap${again ? ", or also read the table again" : ""}.`,
      command("gaps", "accept", config, gap.id, "skip"), again ? command("gaps", "accept", config, gap.id, "resnapshot") : []);
  }
  const letters = [
    ...status.workers.flatMap((worker) => Object.entries(worker.dead_letters)),
    ...status.consumers.map((consumer) => [`consumer ${consumer.consumer}`, consumer.dead_letters || 0]),
  ];
  const total = letters.reduce((sum, [, number]) => sum + number, 0);
  if (total) {
    const by = new Map();
    for (const [name, number] of letters) by.set(name, (by.get(name) || 0) + number);
    const each = [...by].filter(([, number]) => number).map(([name, number]) => `${name}: ${count(number)}`).join(", ");
    add("warn", "letters", `${many(total, "dead letter")} since the start`,
      `${each}. Fix the cause, then send them again.`,
      command("dead-letters", "list", config), command("dead-letters", "redrive", config, "--all"));
  }
  for (const source of status.sources.filter((each) => each.gaps.length)) {
    add("warn", `published ${source.source}`, `${many(source.gaps.length, "gap")} in ${source.source}, published`,
      `Changes are missing where the relay went on: ${source.gaps.map((gap) => gap.id).join(", ")}.`,
      command("gaps", "list", config));
  }
  for (const worker of status.workers) {
    for (const reason of worker.not_ready) add("warn", `ready ${worker.name} ${reason}`, `${worker.name}: ${reason}`);
  }
  for (const each of status.consumers.filter((one) => one.state === "waiting to try again")) {
    add("bad", `consumer ${each.url} ${each.consumer}`, `consumer ${each.consumer} fails, and tries again`, each.error);
  }
  for (const peer of status.unreachable) {
    add(peer.is_peer ? "bad" : "warn", `peer ${peer.url}`, `${peer.url} does not answer`, peer.problem + (peer.is_peer ? ". It is one of the peers in the config."
      : ". A consumer of this relay served its status there: start it again, if it has ended."));
  }
  return found;
}

function history() {
  // Samples of several workers that fall into the same few seconds are one.
  const slots = new Map();
  for (const worker of status.workers) {
    for (const [at, rate, lag, latency] of worker.history) {
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
  const samples = history();
  const now = Date.parse(status.at) / 1000;
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

function processes() {
  const workers = status.workers.map((worker) => ({ attributes: { "data-key": `worker ${worker.process}` }, cells: [
    [link(worker.url, worker.name), worker.url ? null : " (this page)"], whole(worker.process),
    worker.stalls.length ? badge("stalled") : h("span", { class: `badge ${worker.not_ready.length ? "listed" : "current"}` },
      worker.not_ready.length ? "○ not ready" : "● makes progress"),
    worker.group ? `${worker.group.owned} of ${worker.group.partitions} partitions` : "–",
    many(worker.open, "shard"),
  ] }));
  const state = (each) => each.state === "running" ? (each.lag_seconds > BEHIND ? badge("behind") : badge("current"))
    : h("span", { class: `badge ${each.state === "stopped" ? "finished" : "stalled"}` }, each.state);
  const consumers = status.consumers.map((each) => ({ attributes: { "data-key": `consumer ${each.url} ${each.consumer}` },
    cells: [
      h("a", { href: `${each.url}/status.json` }, each.consumer),
      each.stalled ? badge("stalled") : state(each),
      span(each.lag_seconds), each.lag_records === null ? "–" : many(each.lag_records, "record"),
      each.error ? beginning(each.error, 100) : "–",
    ] }));
  return [
    h("section", {}, h("h2", {}, "Workers"), table(["Worker", "Process", "State", "Owns", "Reads"], workers)),
    consumers.length ? h("section", {}, h("h2", {}, "Consumers"),
      table(["Consumer", "State", "Lag", "Waiting", "Last error"], consumers)) : null,
  ];
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
  return h("section", { "data-key": `source ${source.source}` },
    h("h2", {}, source.source),
    h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
    snapshot && h("p", { class: "snapshot" }, "Snapshot ",
      h("progress", { max: Math.max(snapshot.rows_estimated, snapshot.rows_read, 1), value: snapshot.rows_read,
        "aria-label": "rows of the snapshot" }),
      ` ${count(snapshot.rows_read)} of about ${many(snapshot.rows_estimated, "row")}`),
    shards.length ? [legend(shards, stalled), lineage(shards, stalled), table(columns, unfinished.map(row)),
      over.length ? h("details", {}, h("summary", {}, `${many(over.length, "shard")} read to ${over.length === 1 ? "its" : "their"} end`),
        table(columns, over.map(row))) : null]
      : h("p", { class: "note" }, "No shards are listed yet."));
}

// ------------------------------------------------------------------ the page

function render() {
  const stalls = [
    ...status.workers.flatMap((worker) => worker.stalls.map((stall) => ({ ...stall, from: worker.name }))),
    ...status.consumer_stalls.map((stall) => ({ ...stall, from: "the consumers" })),
  ];
  const stalled = new Set(stalls.filter((stall) => stall.shard).map(keyOf));
  const gaps = status.sources.flatMap((source) => source.pending_gaps);
  const found = problems(stalls, gaps);
  const [kind, word, sentence] = overall(stalls, gaps, found);
  document.title = `${word} – relay ${status.name}`;
  const age = (Date.now() - answered) / 1000;
  const main = h("main", {},
    h("header", {},
      h("h1", {}, "relay ", h("b", {}, status.name)),
      h("p", { class: `overall ${kind}`, role: "status" }, h("strong", {}, word), ` ${sentence}`),
      h("p", { class: "note" }, trouble ? `No answer for ${span(age)}: ${trouble}. This is the status of ` : "As of ", time(status.at))),
    found.length ? h("section", { "aria-label": "Needs attention" }, h("ul", { class: "problems" }, found)) : null,
    charts(), processes(),
    status.sources.map((source) => sourceSection(source, stalled)),
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
    status = await answer.json();
    [answered, trouble] = [Date.now(), null];
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
