// The table of ranks, and the merged stacks.

const COLUMNS = [
  ["rank", "Rank", (it) => it.rank], ["state", "State", (it) => it.exit ?? it.state], ["step", "Step", (it) => it.step],
  ["call", "Waits in", (it) => it.call ?? ""], ["waited", "For", (it) => it.waited_ms ?? -1],
  ["place", "Last line", (it) => it.place ?? ""], ["host", "Host", (it) => it.host], ["pid", "Pid", (it) => it.pid],
];
/** Columns that are left out if no rank has a value. */
const OPTIONAL = ["step", "call", "waited", "place"];
/** Number of rows added at a time. */
const PAGE = 100;

function ranksSection(job) {
  if (job.ranks.length === 0) return null;
  const roots = rootRanks(job);
  const view = { grouped: job.ranks.length > FEW, sort: "rank", down: false };
  const body = make("tbody", {});
  const group = make("button", { type: "button", click: () => { view.grouped = !view.grouped; update(); } }, "Group equal ranks");
  const isEmpty = ([key, , value]) => OPTIONAL.includes(key) && job.ranks.every((it) => !value(it) || value(it) < 0);
  const columns = COLUMNS.filter((it) => !isEmpty(it));
  const heads = columns.map(([key, title]) => make("th", { class: numeric(key) }, make("button", { type: "button", click: () => {
    view.down = view.sort === key && !view.down;
    view.sort = key;
    update();
  } }, title)));
  const more = make("p", { class: "note" });
  let rows = [];
  let shown = 0;
  const extend = (room) => {
    body.append(...rows.slice(shown, shown + room).map((it) => rankRow(it, roots, columns)));
    shown = Math.min(rows.length, shown + room);
    more.textContent = shown < rows.length ? `${number(rows.length - shown)} more rows below` : "";
  };
  const update = () => {
    group.setAttribute("aria-pressed", String(view.grouped));
    heads.forEach((it, at) => {
      if (columns[at][0] === view.sort) it.setAttribute("aria-sort", view.down ? "descending" : "ascending");
      else it.removeAttribute("aria-sort");
    });
    rows = tableRows(job, view, roots);
    body.replaceChildren();
    shown = 0;
    extend(PAGE);
  };
  new IntersectionObserver((seen) => { if (seen.some((it) => it.isIntersecting)) extend(PAGE); }).observe(more);
  state.listeners.push(update);
  update();
  return section("ranks", "Ranks", rankNote(job), job.ranks.length > GROUPABLE && make("div", { class: "tools" }, make("span", { class: "grow" }), group),
    make("div", { class: "scroll" }, make("table", {}, make("thead", {}, make("tr", {}, heads)), body)), more);
}

function numeric(key) {
  return ["step", "waited", "pid"].includes(key) ? "num" : null;
}

/** Number of ranks per state. */
function rankNote(job) {
  const states = new Map();
  job.ranks.forEach((it) => states.set(it.exit ?? it.state, (states.get(it.exit ?? it.state) ?? 0) + 1));
  const missing = job.evidence.missing_ranks;
  const parts = [...states].map(([word, n]) => `${number(n)} ${word}`);
  if (missing.length > 0) parts.push(`never seen: ${shortened(rankList(missing), 60)}`);
  return `At the end of the evidence: ${parts.join(", ")}.`;
}

/** Rows that match the query, sorted; ranks with the same state, step, call and line as one. */
function tableRows(job, view, roots) {
  const matching = job.ranks.filter((it) => matchesRank(state.query, it.rank)
    && matchesWords(state.query, `${it.state} ${it.exit ?? ""} ${it.call ?? ""} ${it.place ?? ""} ${it.host} ${it.pid}`));
  let rows = matching.map((it) => ({ ...it, ranks: [it.rank] }));
  if (view.grouped) {
    const groups = new Map();
    for (const row of rows) {
      const key = [roots.has(row.rank), row.exit ?? row.state, row.step, row.call, row.place].join("|");
      const known = groups.get(key);
      if (!known) groups.set(key, row);
      else {
        known.ranks.push(row.rank);
        known.waited_ms = Math.max(known.waited_ms ?? 0, row.waited_ms ?? 0) || null;
        if (known.host !== row.host) known.host = "several";
        known.pid = null;
      }
    }
    rows = [...groups.values()];
  }
  const value = COLUMNS.find(([key]) => key === view.sort)[2];
  const compare = (a, b) => (typeof a === "string" ? a.localeCompare(b) : a - b);
  const order = (a, b) => compare(value(a), value(b)) * (view.down ? -1 : 1);
  const first = (row) => (view.sort === "rank" && !view.down && roots.has(row.rank) ? 0 : 1);
  return rows.sort((a, b) => first(a) - first(b) || order(a, b));
}

function rankRow(row, roots, columns) {
  const text = rankList(row.ranks);
  const cells = {
    rank: [shortened(text, 42), row.ranks.length > 2 ? make("span", { class: "note" }, ` × ${number(row.ranks.length)}`) : null],
    state: row.exit ?? row.state, step: row.step > 0 ? number(row.step) : "—", call: row.call ?? "",
    waited: row.waited_ms ? duration(row.waited_ms * 1000) : "", place: placeCode(row.place ?? ""),
    host: row.host, pid: row.pid || "",
  };
  return make("tr", { class: roots.has(row.rank) ? "root" : null },
    columns.map(([key]) => make("td", { class: numeric(key), title: key === "rank" && text.length > 42 ? text : null }, cells[key])));
}

// --- Stacks --------------------------------------------------------------------------------------

function stacksSection(job) {
  if (job.stacks.length === 0) return null;
  const box = make("div", { class: "stack" });
  const update = () => box.replaceChildren(stackTree(job));
  state.listeners.push(update);
  update();
  return section("stacks", "Merged stacks", "Main threads, outermost call first. Ranks part where their stacks differ.", box);
}

/** The stacks that match the query as one tree; frames that all ranks of a branch share are one line each. */
function stackTree(job) {
  const roots = rootRanks(job);
  const root = { children: new Map(), ranks: [], ends: [] };
  for (const stack of job.stacks) {
    const ranks = stack.ranks.filter((rank) => matchesRank(state.query, rank));
    const text = stack.frames.map((it) => it.join(" ")).join(" ");
    if (ranks.length === 0 || !matchesWords(state.query, `${text} ${stack.state}`)) continue;
    let node = root;
    for (const frame of stack.frames) {
      const key = frame.join("\n");
      if (!node.children.has(key)) node.children.set(key, { frame, children: new Map(), ranks: [], ends: [] });
      node = node.children.get(key);
      node.ranks.push(...ranks);
    }
    node.ends.push({ ...stack, ranks });
  }
  if (root.children.size === 0) return make("p", { class: "empty" }, "No stack matches the search.");
  return make("ul", {}, branches(root, roots, true));
}

/** Whether stacks diverge below a frame. */
function parts(node) {
  return node.children.size + node.ends.length > 1;
}

/** The lines below a frame. Ranks are listed where stacks diverge. */
function branches(node, roots, isFirst) {
  const lines = [];
  const children = [...node.children.values()].sort((a, b) => a.ranks.length - b.ranks.length);
  for (const child of children) {
    const ranks = [...new Set(child.ranks)].sort((a, b) => a - b);
    const inner = branches(child, roots, false);
    lines.push(make("li", {}, (parts(node) || isFirst) && rankBadge(ranks, roots), frameText(child.frame)));
    if (parts(node) || parts(child)) lines.push(make("li", {}, make("ul", {}, inner)));
    else lines.push(...inner);
  }
  for (const end of node.ends) {
    const text = [end.state, end.trouble].filter(Boolean).join(" · ");
    if (text || parts(node)) lines.push(make("li", { class: "leaf" }, parts(node) && rankBadge(end.ranks, roots), text));
  }
  return lines;
}

function rankBadge(ranks, roots) {
  const text = rankList(ranks);
  return make("span", { class: ranks.every((it) => roots.has(it)) ? "ranks root" : "ranks", title: text }, `${plural(text)} ${shortened(text, 40)}`);
}

function frameText([name, place, source]) {
  return [name, " ", make("span", { class: "place" }, place), source ? make("span", { class: "source" }, `  ${source}`) : null];
}
