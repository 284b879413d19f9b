"use strict";
// Helpers: elements, numbers, ranks and the query of the search field. Text from ranks reaches the
// page through text nodes and attributes only.

const DATA = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";
/** Width of the page, in pixels, below which sections are laid out for a phone. */
const NARROW = 640;
/** Minimum number of ranks for which the page offers to group equal ones. */
const GROUPABLE = 4;

/** State shared by the sections. */
const state = { job: null, query: parseQuery(""), listeners: [] };

/** Creates an element. Attributes that are functions become event listeners. */
function make(name, attributes, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** Creates an SVG element. */
function draw(name, attributes, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(key, value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat(3).filter((it) => it !== null && it !== undefined && it !== false));
  return element;
}

function count(n, word) {
  return `${number(n)} ${word}${n === 1 ? "" : "s"}`;
}

function number(n) {
  return n.toLocaleString("en-US");
}

/** Capitalizes a sentence, unless it may begin with a name of the program. */
function sentence(text) {
  return text.replace(/^(ranks?|it|the|an?|one|no|some|all) /, (word) => word[0].toUpperCase() + word.slice(1));
}

/** A line of a file as code. Tables on narrow pages leave its folder out. */
function placeCode(place) {
  const name = place.lastIndexOf("/") + 1;
  return make("code", { title: place, class: place.length - name < 24 ? "short" : null }, name > 0 && make("span", { class: "folder" }, place.slice(0, name)), place.slice(name));
}

function plural(ranks) {
  return /^\d+$/.test(ranks) ? "rank" : "ranks";
}

/** Formats microseconds. */
function duration(us) {
  if (us < 1000) return `${Math.round(us)} µs`;
  if (us < 1e6) return `${trimmed(us / 1e3)} ms`;
  if (us < 60e6) return `${trimmed(us / 1e6)} s`;
  const seconds = Math.round(us / 1e6);
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  const minutes = Math.round(seconds / 60);
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

function trimmed(value) {
  return value.toFixed(value < 10 ? 2 : value < 100 ? 1 : 0).replace(/\.0+$|(\.\d)0$/, "$1");
}

/** Formats a time of the job as UTC, with milliseconds. */
function clock(us) {
  return new Date((state.job.base + us) / 1000).toISOString().slice(11, 23);
}

function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? value : trimmed(value)} ${units[unit]}`;
}

/** Ranks as text: three or more consecutive ranks become a range. */
function rankList(ranks) {
  const parts = [];
  for (let at = 0; at < ranks.length; ) {
    let end = at;
    while (end + 1 < ranks.length && ranks[end + 1] === ranks[end] + 1) end += 1;
    if (end - at >= 2) parts.push(`${ranks[at]}–${ranks[end]}`);
    else for (let i = at; i <= end; i += 1) parts.push(String(ranks[i]));
    at = end + 1;
  }
  return parts.join(", ");
}

/** Shortens text in the middle, where paths differ least. */
function shortened(text, most) {
  if (text.length <= most) return text;
  const tail = Math.ceil((most - 1) * 0.65);
  return `${text.slice(0, most - 1 - tail)}…${text.slice(text.length - tail)}`;
}

/** A query: ranks ("5", "0-3"), at least one of which must match, and words, all of which must match. */
function parseQuery(text) {
  const query = { ranks: [], words: [], text: text.trim() };
  for (const word of query.text.toLowerCase().split(/[\s,]+/)) {
    const range = /^(\d+)(?:[-–](\d+))?$/.exec(word);
    if (range) query.ranks.push([Number(range[1]), Number(range[2] ?? range[1])]);
    else if (word && word !== "rank" && word !== "ranks") query.words.push(word);
  }
  return query;
}

function matchesRank(query, rank) {
  return query.ranks.length === 0 || query.ranks.some(([from, to]) => rank >= from && rank <= to);
}

function matchesWords(query, text) {
  const lower = text.toLowerCase();
  return query.words.every((word) => lower.includes(word));
}

function isSearching(query) {
  return query.ranks.length + query.words.length > 0;
}

/** Root cause ranks of the initiating findings that affect the job, or of the first finding. */
function rootRanks(job) {
  const leading = job.findings.filter((it) => it.role === "initiating" && it.effect !== "none");
  return new Set((leading.length > 0 ? leading : job.findings.slice(0, 1)).flatMap((it) => it.root));
}

function section(id, title, note, ...content) {
  return make("section", { id, "aria-labelledby": `${id}-title` },
    make("header", { class: "head" }, make("h2", { id: `${id}-title` }, title), note && make("p", { class: "note" }, note)),
    content);
}

/** The group of a call, after its name: " of the default group". */
function ofGroup(group) {
  if (!group) return "";
  return group.startsWith("group ") ? ` of ${group}` : ` of the ${group}`;
}
