// Memory over time: one chart per kind of memory. Many ranks are drawn as the range between the
// lowest and the highest, with the root causes and the extremes as curves.

/** Up to this number of ranks, each has its curve. */
const CURVES = 16;
const CHART = { width: 460, height: 170, left: 62, bottom: 22 };

function memorySection(job) {
  const kinds = new Map();
  for (const track of job.tracks) {
    for (const [name, points] of track.memory) {
      if (points.length < 2) continue;
      if (!kinds.has(name)) kinds.set(name, []);
      kinds.get(name).push({ rank: track.rank, points });
    }
  }
  if (kinds.size === 0) return null;
  const roots = rootRanks(job);
  return section("memory", "Memory", "Each rank over the whole job, as far as it was recorded.",
    make("div", { class: "charts" }, [...kinds].map(([name, curves]) => chart(job, name, curves, roots))));
}

function chart(job, name, curves, roots) {
  const all = curves.flatMap((it) => it.points);
  const from = all.reduce((least, [at]) => Math.min(least, at), Infinity);
  const to = all.reduce((most, [at]) => Math.max(most, at), 0);
  const top = niceBytes(all.reduce((most, [, value]) => Math.max(most, value), 1));
  const x = (at) => CHART.left + ((at - from) / Math.max(to - from, 1)) * (CHART.width - CHART.left - 8);
  const y = (value) => 8 + (1 - value / top) * (CHART.height - CHART.bottom - 8);
  const path = (points) => points.map(([at, value], nth) => `${nth ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  const svg = draw("svg", { viewBox: `0 0 ${CHART.width} ${CHART.height}`, role: "img", "aria-label": `${name} over time` });
  for (const part of [0, 0.5, 1]) {
    svg.append(draw("line", { class: "tick", x1: CHART.left, x2: CHART.width - 8, y1: y(top * part), y2: y(top * part) }),
      draw("text", { class: "dim small", x: CHART.left - 8, y: y(top * part) + 4, "text-anchor": "end" }, bytes(top * part)));
  }
  const digits = to - from < 10e6 ? 12 : 8;
  svg.append(draw("text", { class: "dim small", x: CHART.left, y: CHART.height - 4 }, clock(from).slice(0, digits)),
    draw("text", { class: "dim small", x: CHART.width - 8, y: CHART.height - 4, "text-anchor": "end" }, clock(to).slice(0, digits)));
  const stall = stallOf(job);
  if (stall !== null && stall >= from && stall <= to) svg.append(draw("line", { class: "now", x1: x(stall), x2: x(stall), y1: 8, y2: y(0) }));
  const note = make("p", { class: "note" }, chartNote(curves));
  const show = (curve) => `rank ${curve.rank}: at most ${bytes(peak(curve))}, ${bytes(curve.points.at(-1)[1])} at the end`;
  for (const curve of drawn(curves, roots, svg, { x, y, from, to })) {
    svg.append(draw("path", { class: roots.has(curve.rank) ? "curve root" : "curve", d: path(curve.points),
      pointerenter: (event) => { note.textContent = show(curve); event.target.classList.add("on"); },
      pointerleave: (event) => { note.textContent = chartNote(curves); event.target.classList.remove("on"); } }));
  }
  return make("div", { class: "chart" }, make("h3", {}, name[0].toUpperCase() + name.slice(1)), note, svg);
}

/** Selects the curves to draw; if there are many, also draws their range. */
function drawn(curves, roots, svg, { x, y, from, to }) {
  if (curves.length <= CURVES) return [...curves].sort((a, b) => roots.has(a.rank) - roots.has(b.rank));
  const columns = 96;
  const low = new Array(columns).fill(Infinity);
  const high = new Array(columns).fill(-Infinity);
  for (const { points } of curves) {
    for (let column = 0, at = 0; column < columns; column += 1) {
      const time = from + ((to - from) * column) / (columns - 1);
      while (at + 1 < points.length && points[at + 1][0] <= time) at += 1;
      if (points[at][0] > time) continue;
      low[column] = Math.min(low[column], points[at][1]);
      high[column] = Math.max(high[column], points[at][1]);
    }
  }
  const known = [...low.keys()].filter((it) => low[it] !== Infinity);
  const spot = (column, value) => `${x(from + ((to - from) * column) / (columns - 1)).toFixed(1)} ${y(value).toFixed(1)}`;
  const line = [...known.map((it) => spot(it, high[it])), ...known.reverse().map((it) => spot(it, low[it]))];
  svg.append(draw("path", { class: "envelope", d: `M${line.join("L")}z` }));
  const byPeak = [...curves].sort((a, b) => peak(a) - peak(b));
  const marked = curves.filter((it) => roots.has(it.rank)).slice(0, CURVES);
  return [...new Set([byPeak[0], byPeak.at(-1), ...marked])];
}

function chartNote(curves) {
  const peaks = curves.map((it) => [peak(it), it.rank]).sort((a, b) => a[0] - b[0]);
  if (peaks.length === 1) return `rank ${peaks[0][1]}: at most ${bytes(peaks[0][0])}`;
  const [least, most] = [bytes(peaks[0][0]), bytes(peaks.at(-1)[0])];
  if (least === most) return `at most ${most} on every rank`;
  return `at most ${least} (rank ${peaks[0][1]}) to ${most} (rank ${peaks.at(-1)[1]})`;
}

function peak(curve) {
  return curve.points.reduce((most, [, value]) => Math.max(most, value), 0);
}

/** The smallest round number of bytes above a value. */
function niceBytes(value) {
  const unit = 1024 ** Math.floor(Math.log(Math.max(value, 1)) / Math.log(1024));
  const step = [1, 1.5, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 512, 640, 768, 1024];
  return unit * step.find((it) => it * unit >= value);
}
