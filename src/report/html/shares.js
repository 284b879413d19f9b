// Where the time of a slow job goes, rank by rank: own work, input, waiting.

/** Number of ranks with a row of their own: root causes, and others. */
const ROWS = { roots: 12, others: 12 };
const PARTS = [["compute", "own work"], ["input", "waiting for input"], ["garbage", "garbage collection"], ["waiting", "in calls: waiting for peers, and transfer"]];

function sharesSection(job) {
  if (job.shares === null) return null;
  const roots = rootRanks(job);
  const rows = job.lanes.map((it) => ({ label: `rank ${it.rank}`, root: roots.has(it.rank), parts: partsOf(it) }));
  const late = rows.filter((it) => it.root);
  const others = rows.filter((it) => !it.root);
  const shown = [...late.slice(0, ROWS.roots), ...(others.length > ROWS.others ? [] : others)];
  if (late.length > ROWS.roots) shown.push(average(late.slice(ROWS.roots), "more root causes"));
  if (others.length > ROWS.others) shown.push(average(others, "other ranks"));
  const length = duration(job.shares[1] - job.shares[0]);
  const note = `${length} from ${clock(job.shares[0])}. The ranks marked ▸ spend on their own what the others spend waiting.`;
  return section("shares", "Where the time goes", note,
    make("div", { class: "shares", role: "table", "aria-label": "Share of time per rank" }, shown.map(shareRow)),
    make("div", { class: "legend" }, PARTS.map(([name, text]) => make("span", {}, make("i", { class: `s-${name}` }), text))));
}

/** Shares of a lane, between 0 and 1. */
function partsOf(lane) {
  const [compute, input, waiting, garbage] = lane.shares;
  const sum = Math.max(1, compute + input + waiting + garbage);
  return { compute: compute / sum, input: input / sum, garbage: garbage / sum, waiting: waiting / sum };
}

/** One row for many ranks: their mean. */
function average(rows, text) {
  const mean = (name) => rows.reduce((sum, it) => sum + it.parts[name], 0) / rows.length;
  const parts = Object.fromEntries(PARTS.map(([name]) => [name, mean(name)]));
  return { label: `${number(rows.length)} ${text}, mean`, root: rows[0].root, parts };
}

function shareRow({ label, root, parts }) {
  const percent = (value) => `${Math.round(value * 100)} %`;
  const bars = PARTS.filter(([name]) => parts[name] > 0).map(([name, text]) => {
    const bar = make("span", { class: `s-${name}`, title: `${text}: ${percent(parts[name])}` }, parts[name] >= 0.07 ? percent(parts[name]) : "");
    bar.style.width = `${parts[name] * 100}%`;
    return bar;
  });
  return make("div", { class: root ? "share root" : "share", role: "row" },
    make("span", { class: "who", role: "rowheader" }, `${root ? "▸ " : ""}${label}`), make("div", { class: "parts", role: "cell" }, bars));
}
