// Assembles the page: sections, navigation, search and keys.

const TITLES = { causes: "Causes", findings: "Findings", shares: "Time", timeline: "Timeline", waits: "Waits", ranks: "Ranks", memory: "Memory", devices: "Devices", stacks: "Stacks", evidence: "Evidence" };
const KEYS = [
  ["/", "search: ranks (5, 0-3) and words of calls, lines, hosts"], ["1 … 9", "go to a section"], ["j  k", "next and previous section"],
  ["+  −", "zoom the timeline; or Ctrl and the wheel"], ["[  ]", "move the timeline; or drag it"], ["0", "show the stall, or the slow part"], ["a", "show the whole job"],
  ["g", "group equal ranks in the timeline"], ["↑ ↓ ← →", "in the timeline: choose a rank and a call"], ["Enter", "in the timeline: part or join the ranks of a lane"],
  ["Esc", "clear the search"], ["?", "these keys"],
];

function evidence(job) {
  const it = job.evidence;
  const facts = [["Job", `${job.id}${job.attempt > 0 ? `, restart ${job.attempt}` : ""}`], ["Ranks", `${number(it.ranks_reporting)} seen${it.ranks_expected === null ? "" : ` of ${number(it.ranks_expected)}`}`],
    ["Captured by", job.captured_in || "nothing"], ["Records", `${number(it.records)}, ${it.records_lost > 0 ? `${number(it.records_lost)} lost` : "none lost"}`],
    ["Time zone", "all times are UTC"]];
  if (it.clock_uncertainty_ms > 0) facts.push(["Clock uncertainty", `${trimmed(it.clock_uncertainty_ms)} ms`]);
  if (it.missing_ranks.length > 0) facts.splice(2, 0, ["Never seen", `${plural(rankList(it.missing_ranks))} ${rankList(it.missing_ranks)}`]);
  return section("evidence", "Evidence", null, make("dl", { class: "facts-grid" },
    facts.map(([name, text]) => [make("dt", {}, name), make("dd", {}, text)])),
    make("footer", {}, `ddp-doctor ${DATA.version}`));
}

function show(index) {
  const job = DATA.jobs[index];
  state.job = job;
  state.listeners = [];
  state.timeline = null;
  if (!job.decoded) decode(job);
  job.decoded = true;
  const sections = [answer, causes, findings, sharesSection, timelineSection, graph, ranksSection, memorySection, devicesSection, stacksSection, evidence].map((it) => it(job)).filter(Boolean);
  document.getElementById("main").replaceChildren(...sections);
  const links = sections.map((it) => it.id).filter((id) => TITLES[id]);
  document.getElementById("links").replaceChildren(...links.map((id) => make("a", { href: `#${id}` }, TITLES[id])));
  watch(sections);
}

/** Marks the section in view in the bar. */
function watch(sections) {
  state.observer?.disconnect();
  state.observer = new IntersectionObserver((seen) => {
    for (const it of seen.filter((entry) => entry.isIntersecting)) {
      document.querySelectorAll("#links a").forEach((link) => link.classList.toggle("here", link.hash === `#${it.target.id}`));
    }
  }, { rootMargin: "-30% 0px -60% 0px" });
  sections.forEach((it) => state.observer.observe(it));
}

function search(text) {
  state.query = parseQuery(text);
  state.listeners.forEach((update) => update());
}

/** Scrolls to a section by its index, or by steps from the one in view. */
function go(to, by = 0) {
  const sections = [...document.querySelectorAll("main > section")];
  const here = sections.findLastIndex((it) => it.getBoundingClientRect().top < innerHeight * 0.3);
  const target = sections[by ? Math.min(Math.max(here + by, 0), sections.length - 1) : to];
  target?.scrollIntoView();
}

function pressed(event) {
  const field = document.getElementById("search");
  if (event.key === "Escape" && event.target === field) {
    field.value = "";
    search("");
    field.blur();
  }
  if (event.ctrlKey || event.metaKey || event.altKey || ["INPUT", "SELECT"].includes(event.target.tagName)) return;
  const timeline = state.timeline;
  const pan = (part) => timeline?.show([timeline.window[0] + timeline.span * part, timeline.window[1] + timeline.span * part]);
  const actions = {
    "/": () => field.focus(), "?": help, j: () => go(0, 1), k: () => go(0, -1), "+": () => timeline?.zoom(1 / 1.6), "=": () => timeline?.zoom(1 / 1.6),
    "-": () => timeline?.zoom(1.6), "[": () => pan(-0.25), "]": () => pan(0.25), 0: () => timeline?.show(aroundTrouble(state.job)),
    a: () => timeline?.show(timeline.whole()), g: () => timeline?.toggleGroups(),
  };
  const action = /^[1-9]$/.test(event.key) ? () => go(Number(event.key)) : actions[event.key];
  if (action) {
    event.preventDefault();
    action();
  }
}

function help() {
  const dialog = document.getElementById("help");
  dialog.replaceChildren(make("h2", {}, "Keys"), make("dl", {}, KEYS.map(([key, text]) => [make("dt", {}, make("kbd", {}, key)), make("dd", {}, text)])));
  dialog.showModal();
}

function start() {
  const choice = document.getElementById("job");
  choice.append(...DATA.jobs.map((job, at) => make("option", { value: at }, `${job.id} (${job.verdict})`)));
  choice.hidden = DATA.jobs.length < 2;
  choice.addEventListener("change", () => show(Number(choice.value)));
  const field = document.getElementById("search");
  if (innerWidth < NARROW) field.placeholder = "Search";
  field.addEventListener("input", (event) => search(event.target.value));
  document.getElementById("keys").addEventListener("click", help);
  document.getElementById("help").addEventListener("click", (event) => event.currentTarget === event.target && event.currentTarget.close());
  document.addEventListener("keydown", pressed);
  addEventListener("beforeprint", () => document.querySelectorAll("details:not(.brief)").forEach((it) => { it.open = true; }));
  show(0);
}

start();
