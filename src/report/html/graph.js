// The graph of waits: ranks that wait in the same call are one node; its arrows lead to the ranks
// that it needs. Ranks whose calls cannot match are joined by a dashed line.

const NODE = { width: 250, height: 84, gapX: 130, gapY: 26 };
/** Width of a ring relative to its height. */
const FLAT = 1.9;
/** How far an edge leads around the nodes of its column. */
const BESIDE = 64;
/** Maximum number of nodes drawn. */
const DRAWN = 24;

function graph(job) {
  const { nodes, edges, more } = waitGraph(job);
  if (edges.length === 0) return null;
  edges.forEach((edge) => {
    edge.fromNode = nodes[edge.from];
    edge.toNode = nodes[edge.to];
  });
  layout(nodes, edges);
  const right = Math.max(...nodes.map((it) => it.x)) + NODE.width;
  const width = right + (innerWidth < NARROW && nodes.length > 2 ? BESIDE : 24);
  const height = Math.max(...nodes.map((it) => it.y)) + NODE.height + 24;
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": sentences(edges) },
    draw("defs", {}, ["", "bad"].map((it) => draw("marker", {
      id: `tip${it}`, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 8, markerHeight: 8, orient: "auto-start-reverse",
    }, draw("path", { class: `tip ${it}`, d: "M0 0.6L8 4L0 7.4z" })))),
    edges.map(edgeShape), nodes.map(nodeShape));
  const clash = edges.some((it) => it.clash);
  const cycle = edges.some((it) => it.cycle);
  const note = [cycle ? "These ranks wait for each other in a cycle: none of the waits can end." : "An arrow leads from ranks that wait to the ranks they need.",
    clash ? "A dashed line joins calls that can never match." : "", more > 0 ? `${count(more, "more node")} not drawn.` : ""];
  return section("waits", "Waits between ranks", note.filter(Boolean).join(" "), make("div", { class: "graph" }, svg));
}

/** Nodes and edges of the waits, and of calls that cannot match. */
function waitGraph(job) {
  const leading = leadingFinding(job);
  const roots = rootRanks(job);
  const sides = (leading?.sides ?? []).map((side) => ({ ...side, set: new Set(parseRanks(side.ranks)) }));
  const nodes = job.waits.map((it) => ({ ranks: it.ranks, text: it.text, needs: it.needs,
    lines: ["waiting", `${it.call}${ofGroup(it.group)}`, it.place] }));
  const at = new Map();
  nodes.forEach((node, index) => node.ranks.forEach((rank) => at.set(rank, index)));
  const add = (ranks, lines) => {
    nodes.push({ ranks, text: rankList(ranks), needs: [], lines: lines.filter(Boolean) });
    ranks.forEach((rank) => at.set(rank, nodes.length - 1));
  };
  // Ranks that are needed and do not wait themselves, those that are in the same state together.
  const others = [...new Set(nodes.flatMap((it) => it.needs))].filter((rank) => !at.has(rank)).sort((a, b) => a - b);
  const groups = new Map();
  for (const rank of others) {
    const side = sides.findIndex((it) => it.set.has(rank));
    const row = job.ranks.find((it) => it.rank === rank);
    const key = side >= 0 ? `side ${side}` : row?.state ?? "not captured";
    const group = groups.get(key) ?? { ranks: [], side: sides[side], row };
    group.ranks.push(rank);
    groups.set(key, group);
  }
  for (const [key, { ranks, side, row }] of groups) {
    add(ranks, side ? linesOf(side) : [row?.exit ?? row?.state ?? key, "", row?.place]);
  }
  const edges = [];
  nodes.forEach((node, from) => {
    const targets = new Set(node.needs.map((rank) => at.get(rank)).filter((it) => it !== undefined));
    targets.forEach((to) => edges.push({ from, to }));
  });
  addClashes(leading, sides, nodes, edges, at, add);
  if (edges.length === 0) addVictims(leading, sides, nodes, edges, at, add);
  nodes.forEach((node) => { node.bad = node.ranks.some((rank) => roots.has(rank)); });
  return limited(nodes, edges);
}

/** Joins the sides of a mismatch: ranks that wait in different calls although no rank is missing. */
function addClashes(leading, sides, nodes, edges, at, add) {
  const needs = new Set(edges.map((it) => it.from));
  const waiting = sides.filter((it) => /^(wait|issued)/.test(it.state) && ![...it.set].some((rank) => needs.has(at.get(rank))));
  const isMismatch = leading?.effect !== "none" && waiting.some((it) => it.root) && new Set(waiting.map((it) => it.call)).size > 1;
  if (!isMismatch) return;
  for (const side of waiting) {
    const ranks = [...side.set].filter((rank) => !at.has(rank));
    if (ranks.length > 0) add(ranks, linesOf(side));
  }
  const nodesOf = (side) => new Set([...side.set].map((rank) => at.get(rank)));
  const joined = new Set();
  for (const root of waiting.filter((it) => it.root)) {
    for (const other of waiting.filter((it) => it.call !== root.call)) {
      for (const from of nodesOf(root)) {
        for (const to of nodesOf(other)) {
          const key = [from, to].sort().join();
          if (from !== to && !joined.has(key)) edges.push({ from, to, clash: true });
          joined.add(key);
        }
      }
    }
  }
}

/** Waits that were not recorded, such as those of DDP, according to the finding. */
function addVictims(leading, sides, nodes, edges, at, add) {
  if (leading?.effect !== "blocks") return;
  const roots = sides.filter((it) => it.root && !it.state.startsWith("wait"));
  const waiting = sides.filter((it) => !it.root && it.state.startsWith("wait"));
  for (const side of [...roots, ...waiting]) {
    const ranks = [...side.set].filter((rank) => !at.has(rank));
    if (ranks.length > 0) add(ranks, linesOf(side));
  }
  const nodeOf = (side) => at.get([...side.set][0]);
  for (const side of waiting) roots.forEach((root) => edges.push({ from: nodeOf(side), to: nodeOf(root) }));
}

/** State, call without its tensor, and line of ranks. */
function linesOf(side) {
  const call = /^(last call )?\S+( #\d+)?/.exec(side.call);
  return [side.state, call?.[0], side.place];
}

/** Ranks of a text such as "0–4, 6, 7". */
function parseRanks(text) {
  return text.split(", ").flatMap((part) => {
    const [from, to] = part.split("–").map(Number);
    return Array.from({ length: (to ?? from) - from + 1 }, (_, at) => from + at);
  });
}

/** The most relevant nodes, if there are many: cycles and root causes, then the largest. */
function limited(nodes, edges) {
  markCycles(nodes, edges);
  if (nodes.length <= DRAWN) return { nodes, edges, more: 0 };
  const weight = (node) => (node.bad ? 1e9 : 0) + (node.component >= 0 ? 1e6 : 0) + node.ranks.length;
  const kept = nodes.map((node, index) => ({ node, index })).sort((a, b) => weight(b.node) - weight(a.node)).slice(0, DRAWN);
  const place = new Map(kept.map((it, at) => [it.index, at]));
  const rest = edges.filter((it) => place.has(it.from) && place.has(it.to))
    .map((it) => ({ ...it, from: place.get(it.from), to: place.get(it.to) }));
  return { nodes: kept.map((it) => it.node), edges: rest, more: nodes.length - DRAWN };
}

/** Finds strongly connected components (Tarjan): nodes that wait for each other. */
function markCycles(nodes, edges) {
  const next = nodes.map(() => []);
  edges.forEach((edge) => { if (!edge.clash) next[edge.from].push(edge.to); });
  const order = nodes.map(() => -1);
  const low = [...order];
  const stack = [];
  const open = nodes.map(() => false);
  let counter = 0;
  let component = 0;
  const enter = (node) => {
    order[node] = low[node] = counter++;
    stack.push(node);
    open[node] = true;
  };
  for (const start of nodes.keys()) {
    if (order[start] >= 0) continue;
    const path = [{ node: start, edge: 0 }];
    enter(start);
    while (path.length > 0) {
      const top = path.at(-1);
      if (top.edge < next[top.node].length) {
        const to = next[top.node][top.edge++];
        if (order[to] < 0) {
          enter(to);
          path.push({ node: to, edge: 0 });
        } else if (open[to]) low[top.node] = Math.min(low[top.node], order[to]);
        continue;
      }
      path.pop();
      if (path.length > 0) low[path.at(-1).node] = Math.min(low[path.at(-1).node], low[top.node]);
      if (low[top.node] !== order[top.node]) continue;
      const members = stack.splice(stack.indexOf(top.node));
      members.forEach((it) => {
        open[it] = false;
        nodes[it].component = members.length > 1 || next[it].includes(it) ? component : -1;
      });
      component += 1;
    }
  }
  edges.forEach((edge) => {
    const { component: own } = nodes[edge.from];
    edge.cycle = !edge.clash && own >= 0 && own === nodes[edge.to].component;
  });
}

/** Columns, from waiting ranks to the ranks that they wait for; a cycle is a ring in its column. */
function layout(nodes, edges) {
  const depth = nodes.map(() => 0);
  for (let round = 0; round < nodes.length; round += 1) {
    for (const { from, to, cycle, clash } of edges) {
      if (cycle) depth[from] = depth[to] = Math.max(depth[from], depth[to]);
      else if (clash) depth[from] = Math.max(depth[from], 0);
      else depth[from] = Math.max(depth[from], depth[to] + 1);
    }
  }
  // The sides of a mismatch face each other.
  const clashes = edges.filter((it) => it.clash);
  const roots = new Set(clashes.map((it) => it.from));
  clashes.forEach(({ to }) => { if (!roots.has(to)) depth[to] = Math.max(depth[to], 1); });
  const columns = [];
  nodes.forEach((node, at) => (columns[depth[at]] ??= []).push(node));
  const filled = columns.filter(Boolean).reverse();
  if (innerWidth < NARROW) {
    filled.flat().forEach((node, at) => {
      node.x = 24;
      node.y = 24 + at * (NODE.height + 2 * NODE.gapY);
    });
    return;
  }
  const sizes = filled.map((column) => columnSize(column));
  const height = Math.max(...sizes.map((it) => it.height));
  let x = 24;
  filled.forEach((column, at) => {
    place(column, x, 24 + (height - sizes[at].height) / 2, sizes[at]);
    x += sizes[at].width + NODE.gapX;
  });
}

function columnSize(column) {
  const ring = column.length > 1 && column.every((it) => it.component >= 0 && it.component === column[0].component);
  if (!ring) return { ring, width: NODE.width, height: column.length * (NODE.height + NODE.gapY) - NODE.gapY };
  if (column.length === 2) return { ring, width: NODE.width * 2 + NODE.gapX, height: NODE.height };
  const radius = Math.max(110, (column.length * (NODE.height + 34)) / (2 * Math.PI));
  return { ring, radius, width: radius * 2 * FLAT + NODE.width, height: radius * 2 + NODE.height };
}

function place(column, x, y, size) {
  column.forEach((node, at) => {
    if (!size.ring) {
      node.x = x;
      node.y = y + at * (NODE.height + NODE.gapY);
    } else if (column.length === 2) {
      node.x = x + at * (NODE.width + NODE.gapX);
      node.y = y;
    } else {
      const angle = (at / column.length) * 2 * Math.PI - Math.PI / 2;
      node.x = x + size.width / 2 + Math.cos(angle) * size.radius * FLAT - NODE.width / 2;
      node.y = y + size.radius + Math.sin(angle) * size.radius;
    }
  });
}

function nodeShape(node) {
  const many = node.ranks.length > 2;
  const text = shortened(node.text, many ? 15 : 24);
  const title = `${plural(node.text)} ${node.text}: ${node.lines.join(", ")}`;
  return draw("g", { class: node.bad ? "node bad" : "node" }, draw("title", {}, title),
    draw("rect", { x: node.x, y: node.y, width: NODE.width, height: NODE.height, rx: 9 }),
    draw("text", { class: "title", x: node.x + 14, y: node.y + 22 }, `${plural(node.text)} ${text}`),
    many && draw("text", { class: "dim small", x: node.x + NODE.width - 14, y: node.y + 22, "text-anchor": "end" }, `× ${number(node.ranks.length)}`),
    node.lines.map((line, at) => draw("text", { class: at < 2 ? "small" : "dim small", x: node.x + 14, y: node.y + 41 + at * 16 }, shortened(line, 36))));
}

function edgeShape(edge, _, edges) {
  const { fromNode: from, toNode: to } = edge;
  const [a, b] = anchors(from, to, edges.some((it) => it.fromNode === to && it.toNode === from));
  const bend = a.dx === b.dx && a.dx !== 0 ? BESIDE : Math.max(40, Math.abs(b.x - a.x) / 2);
  const path = `M${a.x} ${a.y}C${a.x + a.dx * bend} ${a.y + a.dy * bend} ${b.x + b.dx * bend} ${b.y + b.dy * bend} ${b.x} ${b.y}`;
  const kind = edge.clash ? "edge clash" : edge.cycle ? "edge cycle" : "edge";
  const tip = edge.cycle ? "url(#tipbad)" : "url(#tip)";
  return draw("path", { class: kind, d: path, "marker-end": edge.clash ? null : tip });
}

/** The points at which an edge leaves one node and enters the other, with its directions there. */
function anchors(from, to, both) {
  const center = (it) => [it.x + NODE.width / 2, it.y + NODE.height / 2];
  const [[ax, ay], [bx, by]] = [center(from), center(to)];
  const shift = both ? (ax < bx || (ax === bx && ay < by) ? -13 : 13) : 0;
  if (Math.abs(bx - ax) > NODE.width) {
    const way = Math.sign(bx - ax);
    return [{ x: ax + (way * NODE.width) / 2, y: ay + shift, dx: way, dy: 0 },
      { x: bx - (way * (NODE.width / 2 + 3)), y: by + shift, dx: -way, dy: 0 }];
  }
  if (Math.abs(by - ay) > NODE.height * 2.5) {
    // Beside the nodes between them.
    const side = { x: ax + NODE.width / 2, dx: 1, dy: 0 };
    return [{ ...side, y: ay + shift }, { ...side, x: side.x + 3, y: by + shift }];
  }
  const way = Math.sign(by - ay) || 1;
  return [{ x: ax + shift, y: ay + (way * NODE.height) / 2, dx: 0, dy: way * 0.4 },
    { x: bx + shift, y: by - way * (NODE.height / 2 + 3), dx: 0, dy: -way * 0.4 }];
}

/** The graph in words. */
function sentences(edges) {
  return edges.slice(0, 40).map(({ fromNode, toNode, clash }) =>
    `${plural(fromNode.text)} ${fromNode.text} ${clash ? "cannot match" : "wait for"} ${plural(toNode.text)} ${toNode.text}`).join("; ");
}
