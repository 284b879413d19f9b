// The answer: verdict, rank, line, why and fix; then the chain of causes and all findings.

const VERDICTS = {
  healthy: "Healthy", hang: "Hang", crash: "Crash", wrong: "Wrong results", slow: "Slow",
  insufficient: "Insufficient evidence",
};

function leadingFinding(job) {
  return job.findings.find((it) => it.role === "initiating" && it.effect !== "none") ?? job.findings[0];
}

function answer(job) {
  const finding = leadingFinding(job);
  const isWarned = job.verdict === "healthy" && finding && finding.severity !== "note";
  const verdict = make("p", { class: `verdict ${job.verdict}`, id: "verdict" },
    make("strong", { class: isWarned ? "warned" : null }, `${VERDICTS[job.verdict] ?? job.verdict}${isWarned ? ", with a warning" : ""}`),
    finding && make("span", {}, ` ${finding.code} ${finding.name}`),
    finding && badge(finding.confidence),
    finding && attempt(finding));
  const head = [make("p", { class: "about" }, make("b", {}, `job ${job.id}`), ` · ${job.about}`), verdict];
  if (!finding) {
    const text = job.verdict === "healthy" ? "No problems found." : "The evidence does not allow a judgment.";
    return make("section", { id: "answer" }, head, make("h1", {}, text));
  }
  const root = finding.root.length > 0;
  return make("section", { id: "answer" }, head,
    make("h1", { class: finding.summary.length > 130 ? "long" : null }, sentence(finding.summary)),
    make("div", { class: "four" },
      make("div", { class: "who" }, make("h3", {}, finding.root.length === 1 ? "Rank" : "Ranks"),
        make("p", { class: finding.root_text.length > 5 ? "ranks small" : "ranks" }, root ? finding.root_text : "unknown"),
        root && make("p", { class: "note" }, `rank at fault: ${certainty(finding.root_confidence)}`)),
      make("div", { class: "line" }, make("h3", {}, "Line"), excerpts(finding)),
      explanation(finding, "h3")));
}

function badge(confidence) {
  return make("span", { class: `badge ${confidence}` }, `fault: ${certainty(confidence)}`);
}

/** A confidence in the words of a reader. */
function certainty(confidence) {
  return confidence === "supported" ? "likely" : confidence;
}

function attempt(finding) {
  return finding.attempt !== "" && make("span", { class: "severity" }, finding.attempt);
}

/** Why and fix of a finding, as far as they are known, below titles of this level. */
function explanation(finding, level) {
  const why = [...paragraphs(finding.why), causeLine(finding)].filter(Boolean);
  const fix = finding.fix.map((text) => make("li", {}, inline(text)));
  return [why.length > 0 && make("div", { class: "why" }, make(level, {}, "Why"), why),
    fix.length > 0 && make("div", { class: "fix" }, make(level, {}, "Fix"), make("ul", {}, fix))];
}

function paragraphs(texts) {
  return texts.map((text) => make("p", {}, inline(sentence(text))));
}

/** Text between backquotes is code. */
function inline(text) {
  const parts = text.split("`");
  return parts.length % 2 === 0 ? text : parts.map((part, at) => (at % 2 === 0 ? part : make("code", {}, part)));
}

function causeLine(finding) {
  return finding.cause && make("p", { class: "cause" }, make("b", {}, "Likely cause "), finding.cause);
}

/** The source around the lines of a finding. */
function excerpts(finding) {
  if (finding.excerpts.length === 0) {
    return make("p", { class: "note" }, "No line of the program is known.");
  }
  return make("div", { class: "excerpts" }, finding.excerpts.map((it) =>
    make("figure", { class: it.root ? "root" : null },
      make("figcaption", {}, make("span", { class: "by" }, `${plural(it.ranks)} ${shortened(it.ranks, 40)}`),
        make("span", {}, make("code", {}, it.place), it.function && it.function !== "<module>" ? ` in ${it.function}` : "")),
      it.lines.length > 0 && make("pre", {}, it.lines.map(([line, text]) =>
        make("code", { class: line === it.line ? "here" : null },
          make("i", {}, String(line)), `${text}\n`))))));
}

/** The causal links between findings; drawn if there is more than one finding, apart from notes. */
function causes(job) {
  const isShown = (it) => it.severity !== "note" || it.caused_by.length > 0;
  if (job.findings.filter(isShown).length < 2) return null;
  const followers = (index) => job.findings.map((it, at) => [it, at])
    .filter(([it]) => it.caused_by.includes(index));
  const shown = new Set();
  const branch = (finding, index) => {
    if (shown.has(index)) return null;
    shown.add(index);
    const behind = followers(index).map(([it, at]) => branch(it, at)).filter(Boolean);
    return make("li", {},
      make("a", { href: `#finding-${index}`, class: `cause-link is-${finding.severity}`, click: () => opened(index) },
        make("span", { class: "code" }, finding.code),
        make("span", { class: "what" }, make("b", {}, finding.name), ` ${finding.summary}`),
        make("span", { class: "when" }, clock(finding.blocked ?? finding.detected))),
      behind.length > 0 && make("ol", {}, behind));
  };
  const first = job.findings.map((it, at) => [it, at]).filter(([it]) => it.caused_by.length === 0 && isShown(it));
  const tree = make("ol", { class: "chain" }, first.map(([it, at]) => branch(it, at)));
  return section("causes", "Chain of causes", "The first finding is where it began; what is indented follows from it.", tree);
}

/** All findings. Consequences and notes are one line until they are opened. */
function findings(job) {
  if (job.findings.length === 0) return null;
  const isBrief = (finding) => finding !== leadingFinding(job) && (finding.severity === "note" || finding.role === "cascade");
  return section("findings", job.findings.length === 1 ? "Finding" : "Findings", null,
    job.findings.map((finding, index) => (isBrief(finding)
      ? make("details", { class: `brief is-${finding.severity}`, id: `finding-${index}` },
        make("summary", {}, make("span", { class: "code" }, finding.code), ` ${sentence(finding.summary)}`), findingArticle(finding, null))
      : findingArticle(finding, index))));
}

/** Opens a finding that is one line. */
function opened(index) {
  const finding = document.getElementById(`finding-${index}`);
  if (finding?.tagName === "DETAILS") finding.open = true;
}

function findingArticle(finding, index) {
  const titles = { ranks: "Ranks", state: "State", place: "Line", source: "Source", call: "Call" };
  const keys = Object.keys(titles).filter((key) => finding.sides.some((side) => side[key] !== ""));
  const cells = (side) => keys.map((key) => {
    const inner = key === "place" ? placeCode(side.place) : key === "source" ? make("code", {}, side.source) : side[key];
    const text = key === "ranks" ? shortened(side.ranks, 60) : inner;
    return make("td", { class: key, title: key === "ranks" ? side.ranks : null }, text);
  });
  const table = finding.sides.length > 0 && make("div", { class: "scroll" }, make("table", { class: "sides" },
    make("thead", {}, make("tr", {}, keys.map((it) => make("th", { class: it }, titles[it])))),
    make("tbody", {}, finding.sides.slice(0, 24).map((side) => make("tr", { class: side.root ? "root" : null }, cells(side))))));
  const rest = finding.sides.length - 24;
  // The answer has the sentences of the leading finding, and the line of a brief one its summary.
  const leads = finding === leadingFinding(state.job);
  return make("article", { id: index === null ? null : `finding-${index}`, class: `is-${finding.severity}` },
    make("h3", {}, make("span", { class: "code" }, finding.code), ` ${finding.name}`,
      make("span", { class: "severity" }, finding.severity), attempt(finding)),
    !leads && index !== null && make("p", { class: "summary" }, sentence(finding.summary)),
    make("p", { class: "note" }, finding.context),
    table, rest > 0 && make("p", { class: "note" }, `and ${count(rest, "more row")}`),
    !leads && make("div", { class: "two" }, explanation(finding, "h4")),
    excerptsOf(finding), parameters(finding), more(finding));
}

function excerptsOf(finding) {
  const leads = leadingFinding(state.job) === finding;
  const known = finding.excerpts.some((it) => it.lines.length > 0);
  return !leads && known && make("div", {}, make("h4", {}, "Source"), excerpts(finding));
}

function parameters(finding) {
  if (finding.parameters.length === 0) return null;
  const row = (it) => make("tr", {}, make("td", {}, make("code", {}, it.name)),
    make("td", {}, it.shape.join(" × ")), make("td", {}, rankList(it.missing_on)));
  return make("div", { class: "scroll" }, make("table", {},
    make("thead", {}, make("tr", {}, ["Parameter", "Shape", "No gradient on ranks"].map((it) => make("th", {}, it)))),
    make("tbody", {}, finding.parameters.slice(0, 100).map(row))));
}

function more(finding) {
  const facts = finding.proof && make("details", {},
    make("summary", {}, `Proof: ${finding.proof.kind.replaceAll("-", " ")}, ${count(finding.proof.facts.length, "recorded fact")}`),
    make("ol", { class: "facts" }, finding.proof.facts.slice(0, 200).map((it) => make("li", {}, make("code", {}, it)))));
  const meaning = finding.meaning.length > 0 && make("details", {},
    make("summary", {}, `What ${finding.code} means`), paragraphs(finding.meaning),
    make("p", { class: "note" }, "More: ", make("code", {}, `ddp-doctor explain ${finding.code}`)));
  return make("div", { class: "more" }, facts, meaning);
}
