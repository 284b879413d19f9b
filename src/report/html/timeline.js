// Ranks × time as SVG. Only the lanes and the times that are visible are drawn.

const ROW = 25;
const HEAD = 30;
/** Widths of the names of lanes on a wide and on a narrow page. */
const LABELS = [190, 96];
/** Maximum number of lanes on paper. */
const PRINTED = 40;

class Timeline {
  constructor(job) {
    this.job = job;
    this.grouped = job.lanes.length > FEW;
    this.expanded = new Set();
    this.stall = stallOf(job);
    this.window = aroundTrouble(job);
    this.chosen = { lane: 0, call: null };
    this.svg = draw("svg", { role: "img", "aria-label": "Calls of the ranks over time" });
    this.room = make("div", {}, this.svg);
    this.box = make("div", { class: "lanes", tabindex: "0", role: "group",
      "aria-label": "Timeline. Arrow keys choose a rank and a call, plus and minus zoom." }, this.room);
    this.detail = make("div", { class: "detail", "aria-live": "polite" }, "Point at a call to see its times.");
    this.tools();
    this.listen();
    this.update();
  }

  tools() {
    const button = (text, title, action) => make("button", { type: "button", title, click: action }, text);
    this.group = button("Group equal ranks", "g", () => this.toggleGroups());
    this.bar = make("div", { class: "tools" },
      hasTrouble(this.job) && button(this.stall === null ? "Slow part" : "Stall", "0", () => this.show(aroundTrouble(this.job))),
      button("Whole job", "a", () => this.show(this.whole())),
      button("−", "minus", () => this.zoom(1.6)), button("+", "plus", () => this.zoom(1 / 1.6)),
      make("span", { class: "grow" }), this.job.lanes.length > GROUPABLE && this.group);
    const swatch = (name, text) => {
      const square = make("i", {});
      square.style.background = `var(--${name})`;
      return make("span", {}, square, text);
    };
    const kinds = this.job.kinds;
    this.legend = make("div", { class: "legend" }, swatch("call", "collective"),
      kinds.some((it) => it.p2p) && swatch("p2p", "message"), kinds.some((it) => it.hidden) && swatch("hidden", "issued by DDP"),
      swatch("wait", "wait that ended"), this.job.tracks.some((it) => it.calls.some((call) => call.open)) && swatch("stuck-wash", "wait that did not end"),
      this.job.tracks.some((it) => it.spent.length > 0) && swatch("input", "input or garbage collection"),
      this.job.shares !== null && make("span", {}, "empty: own work"));
  }

  listen() {
    this.box.addEventListener("scroll", () => this.later());
    this.box.addEventListener("keydown", (event) => this.key(event));
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => this.cross?.setAttribute("visibility", "hidden"));
    this.svg.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    let drag = null;
    this.svg.addEventListener("pointerdown", (event) => {
      drag = { x: event.clientX, window: this.window, moved: false };
      this.svg.setPointerCapture(event.pointerId);
    });
    this.svg.addEventListener("pointermove", (event) => {
      if (!drag) return;
      const by = ((drag.x - event.clientX) / this.scale) * this.span / this.inner;
      drag.moved ||= Math.abs(drag.x - event.clientX) > 3;
      if (drag.moved) {
        this.svg.classList.add("drag");
        this.show([drag.window[0] + by, drag.window[1] + by]);
      }
    });
    this.svg.addEventListener("pointerup", (event) => {
      if (drag && !drag.moved) this.click(event);
      drag = null;
      this.svg.classList.remove("drag");
    });
    new ResizeObserver(() => this.later()).observe(this.box);
    addEventListener("beforeprint", () => { this.printing = true; this.render(); });
    addEventListener("afterprint", () => { this.printing = false; this.render(); });
  }

  get span() { return this.window[1] - this.window[0]; }
  get inner() { return this.width - this.labels - 14; }
  get labels() { return LABELS[this.width < NARROW ? 1 : 0]; }
  get scale() { return this.svg.clientWidth / this.width || 1; }

  whole() {
    const begins = beginning(this.job);
    const margin = Math.max(this.job.until - begins, 1000) * 0.02;
    return [begins - margin, this.job.until + margin];
  }

  show([from, to]) {
    const [first, last] = this.whole();
    const span = Math.min(Math.max(to - from, 20), last - first);
    const begin = Math.min(Math.max(from, first), last - span);
    this.window = [begin, begin + span];
    this.later();
  }

  zoom(factor, at = (this.window[0] + this.window[1]) / 2) {
    this.show([at - (at - this.window[0]) * factor, at + (this.window[1] - at) * factor]);
  }

  toggleGroups() {
    this.grouped = !this.grouped;
    this.expanded.clear();
    this.update();
  }

  /** Selects the lanes again after a change of the query or the grouping. */
  update() {
    this.lanes = lanesOf(this.job, state.query, this.grouped, this.expanded);
    this.group.setAttribute("aria-pressed", String(this.grouped));
    this.chosen = { lane: 0, call: null };
    this.later();
  }

  later() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = null;
      this.render();
    });
  }

  x(at) {
    return this.labels + ((at - this.window[0]) / this.span) * this.inner;
  }

  render() {
    const visible = this.printing ? Math.min(this.lanes.length, PRINTED) : this.lanes.length;
    const all = HEAD + visible * ROW + 8;
    this.width = Math.max(this.printing ? 1000 : this.box.clientWidth, 280);
    const most = this.printing ? all : Math.max(200, Math.min(544, innerHeight * 0.74));
    const height = Math.min(all, most);
    this.room.style.height = `${all}px`;
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${height}`);
    this.svg.style.height = this.printing ? "auto" : `${height}px`;
    const first = this.printing ? 0 : Math.floor(this.box.scrollTop / ROW);
    const offset = this.printing ? 0 : this.box.scrollTop % ROW;
    const rows = Math.ceil((height - HEAD) / ROW) + 1;
    const lanes = this.lanes.slice(first, Math.min(first + rows, this.printing ? PRINTED : Infinity));
    this.top = { first, offset };
    const body = draw("g", { "clip-path": "url(#lanes-clip)" },
      lanes.map((lane, at) => this.lane(lane, first + at, HEAD + at * ROW - offset)));
    const clip = draw("clipPath", { id: "lanes-clip" }, draw("rect", { x: 0, y: HEAD, width: this.width, height }));
    this.cross = draw("line", { class: "cross", y1: HEAD - 6, y2: height, visibility: "hidden" });
    this.svg.replaceChildren(clip, this.axis(height), body, this.stallLine(height), this.cross);
    if (this.lanes.length === 0) {
      this.svg.append(draw("text", { x: this.labels, y: HEAD + 16, class: "dim" }, "No rank matches the search."));
    }
  }

  axis(height) {
    const group = draw("g", {});
    const origin = this.stall ?? 0;
    const step = niceStep(this.span / Math.max(3, this.inner / 110));
    const from = Math.ceil((this.window[0] - origin) / step) * step;
    for (let at = from; at <= this.window[1] - origin; at += step) {
      const x = this.x(origin + at);
      const text = at === 0 ? (this.stall === null ? "start" : "blocked") : `${at < 0 ? "−" : "+"}${duration(Math.abs(at))}`;
      group.append(draw("line", { class: "tick", x1: x, x2: x, y1: HEAD - 4, y2: height }),
        draw("text", { class: at === 0 ? "small root" : "small dim", x: Math.min(x, this.width - 8 - text.length * 3.2), y: 18, "text-anchor": "middle" }, text));
    }
    return group;
  }

  stallLine(height) {
    if (this.stall === null || this.stall < this.window[0] || this.stall > this.window[1]) return "";
    const x = this.x(this.stall);
    return draw("line", { class: "now", x1: x, x2: x, y1: HEAD - 4, y2: height });
  }

  lane(lane, index, y) {
    const group = draw("g", {}, draw("rect", {
      class: index === this.chosen.lane && document.activeElement === this.box ? "band on" : "band", x: 0, y, width: this.width, height: ROW,
    }));
    const many = lane.ranks.length > 1;
    const isNarrow = this.labels === LABELS[1];
    const label = shortened(lane.label, isNarrow ? 9 : many ? 20 : 24);
    group.append(draw("text", { class: lane.root ? "root" : null, x: 14, y: y + 16 }, `${lane.root ? "▸ " : ""}${many ? "" : "rank "}${label}`,
      draw("title", {}, `${plural(lane.label)} ${lane.label}`)));
    if (many && !isNarrow) group.append(draw("text", { class: "dim small", x: this.labels - 12, y: y + 16, "text-anchor": "end" }, `× ${number(lane.ranks.length)}`));
    this.marks(lane, y, group, false);
    for (const [name, list] of shapes(lane, this.window[0], this.window[1], (at) => this.x(at))) {
      const path = list.map(([a, b]) => `M${a.toFixed(1)} ${y + 5}H${b.toFixed(1)}v${ROW - 11}H${a.toFixed(1)}z`).join("");
      group.append(draw("path", { class: name, d: path }));
    }
    this.names(lane, y, group);
    this.marks(lane, y, group, true);
    return group;
  }

  /** Names of calls, where they fit. */
  names(lane, y, group) {
    for (const call of lane.track.calls) {
      if (call.at > this.window[1]) break;
      if (call.until < this.window[0]) continue;
      const left = Math.max(this.x(call.at), this.labels);
      const right = Math.min(this.x(call.until), this.width - 14);
      if (call.open && this.x(call.at) >= this.labels) {
        group.append(draw("rect", { class: "c-stuckhead", x: left, y: y + 5, width: 3, height: ROW - 11 }));
      }
      const name = call.seq > 0 ? `${call.kind.op} #${call.seq}` : call.kind.op;
      const text = call.open ? `${name} · ${duration(call.until - call.at)}` : name;
      const fits = [text, name].find((it) => right - left > it.length * 6.1 + 14);
      if (fits) group.append(draw("text", { class: "label", x: left + 8, y: y + 16 }, fits));
    }
    const { call } = this.chosen;
    if (call && this.lanes[this.chosen.lane] === lane) {
      const left = Math.max(this.x(call.at), this.labels);
      const width = Math.max(4, Math.min(this.x(call.until), this.width - 14) - left + 2);
      group.append(draw("rect", { class: "chosen", x: left - 1, y: y + 4, width, height: ROW - 9, rx: 2 }));
    }
  }

  /** Steps and phases below the calls; exceptions and the end of the process above them. */
  marks(lane, y, group, above) {
    const track = lane.track;
    const inside = (at) => at >= this.window[0] && at <= this.window[1];
    let phase = null;
    for (const [at, kind, text] of track.marks) {
      if (kind === "phase") phase = at;
      if (!above && kind === "phase-end" && phase !== null) {
        const [a, b] = [Math.max(this.x(phase), this.labels), Math.min(this.x(at), this.width - 14)];
        if (b > a) group.append(draw("rect", { class: "phase", x: a, y: y + ROW - 4, width: b - a, height: 2 }, draw("title", {}, `phase ${text}`)));
        phase = null;
      }
      if (!inside(at)) continue;
      const x = this.x(at);
      if (!above && kind === "step") group.append(draw("line", { class: "step", x1: x, x2: x, y1: y, y2: y + ROW }));
      if (above && (kind === "exception" || kind === "input")) {
        group.append(draw("path", { class: kind === "exception" ? "exc" : "end", d: `M${x} ${y + 3}l5 7-5 7-5-7z` }, draw("title", {}, text)));
      }
    }
    for (const [at, how] of track.ends.filter(([at]) => above && inside(at))) {
      const x = this.x(at);
      const room = this.width - 14 - x;
      group.append(draw("rect", { class: "end", x: x - 1, y: y + 4, width: 2.5, height: ROW - 9 }, draw("title", {}, how)));
      if (room > how.length * 6 + 12) group.append(draw("text", { class: "small dim", x: x + 8, y: y + 16 }, how));
    }
  }

  /** Lane and time at a point of the screen. */
  locate(event) {
    const box = this.svg.getBoundingClientRect();
    const x = (event.clientX - box.left) / this.scale;
    const y = (event.clientY - box.top) / this.scale;
    const row = y < HEAD ? null : this.top.first + Math.floor((y - HEAD + this.top.offset) / ROW);
    return { x, at: this.window[0] + ((x - this.labels) / this.inner) * this.span, lane: row === null ? null : this.lanes[row], row };
  }

  point(event) {
    const { x, at, lane } = this.locate(event);
    if (x >= this.labels) {
      this.cross.setAttribute("visibility", "visible");
      this.cross.setAttribute("x1", x);
      this.cross.setAttribute("x2", x);
    }
    if (!lane) return;
    const call = x >= this.labels && callAt(lane, at, (5 / this.inner) * this.span);
    if (call) this.tell(lane, call);
  }

  click(event) {
    const { x, at, lane, row } = this.locate(event);
    if (!lane) return;
    const call = x >= this.labels ? callAt(lane, at, (8 / this.inner) * this.span) : null;
    this.chosen = { lane: row, call };
    if (x < this.labels && this.grouped) this.expand(lane);
    else if (call) this.tell(lane, call);
    this.later();
  }

  expand(lane) {
    if (this.expanded.has(lane.alike)) this.expanded.delete(lane.alike);
    else if (lane.ranks.length > 1) this.expanded.add(lane.alike);
    this.update();
  }

  wheel(event) {
    const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      this.zoom(Math.exp(event.deltaY / 240), this.locate(event).at);
    } else if (sideways || event.shiftKey) {
      event.preventDefault();
      const by = ((sideways ? event.deltaX : event.deltaY) / this.inner) * this.span;
      this.show([this.window[0] + by, this.window[1] + by]);
    }
  }

  key(event) {
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const move = moves[event.key];
    const lane = this.lanes[this.chosen.lane];
    if (move && lane && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      this.step(move);
    } else if (event.key === "Enter" && lane && this.grouped) {
      this.expand(lane);
    }
  }

  /** Moves the selection to another lane or call, and shows it. */
  step([down, right]) {
    const chosen = this.chosen;
    const before = chosen.call?.at ?? this.stall ?? this.window[1];
    chosen.lane = Math.min(Math.max(chosen.lane + down, 0), this.lanes.length - 1);
    const calls = this.lanes[chosen.lane].track.calls;
    if (right !== 0 && chosen.call) chosen.call = calls[calls.indexOf(chosen.call) + right] ?? chosen.call;
    else chosen.call = calls.findLast((it) => it.at <= before) ?? calls[0] ?? null;
    const y = chosen.lane * ROW;
    if (y < this.box.scrollTop) this.box.scrollTop = y;
    if (y + ROW * 2 + HEAD > this.box.scrollTop + this.box.clientHeight) this.box.scrollTop = y + ROW * 2 + HEAD - this.box.clientHeight;
    if (chosen.call) {
      const { at } = chosen.call;
      if (at < this.window[0] || at > this.window[1]) this.show([at - this.span / 2, at + this.span / 2]);
      this.tell(this.lanes[chosen.lane], chosen.call);
    }
    this.later();
  }

  tell(lane, call) {
    this.detail.replaceChildren(...describeCall(lane, call).flat(2).filter((it) => it !== ""));
  }
}

/** The largest step of the form 1, 2 or 5 × 10ⁿ not above a duration, in microseconds. */
function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(Math.max(least, 1)));
  return [1, 2, 5, 10].map((it) => it * power).find((it) => it >= least);
}

function timelineSection(job) {
  if (job.tracks.length === 0) return null;
  const timeline = new Timeline(job);
  const omitted = job.tracks.reduce((sum, it) => sum + it.omitted, 0);
  state.listeners.push(() => timeline.update());
  state.timeline = timeline;
  const stalled = timeline.stall === null ? `Calls and waits of every rank${job.shares === null ? "" : ", in the latest steps that were slow"}.` : "Calls and waits of every rank, around the moment at which ranks began to block.";
  return section("timeline", "Ranks over time", omitted > 0 ? `${stalled} ${count(omitted, "earlier call")} left out.` : stalled,
    timeline.bar, timeline.box, timeline.legend, timeline.detail);
}
