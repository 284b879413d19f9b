// The lanes of the timeline: decoded calls, ranks that did the same as one lane, search.

/** Number of latest calls that ranks of one lane have in common. */
const ALIKE = 6;
/** Up to this number of ranks, each has its own lane at first. */
const FEW = 16;

/** Decodes the calls of all tracks, once. */
function decode(job) {
  for (const track of job.tracks) {
    let at = 0;
    const end = track.ended ? track.ended[0] : job.until;
    track.end = end;
    track.calls = track.calls.map(([kind, seq, step, since, returned, began, ended, completed, inferred]) => {
      at += since;
      const from = (offset) => (offset < 0 ? null : at + offset);
      const call = {
        kind: job.kinds[kind], index: kind, seq, step, at, returned: from(returned), began: from(began),
        ended: from(ended), completed: from(completed), inferred: inferred === 1,
      };
      call.open = call.began !== null ? call.ended === null : call.returned === null && call.completed === null && !call.kind.hidden;
      call.until = call.open ? end : call.ended ?? call.returned ?? call.completed ?? call.at;
      return call;
    });
  }
  job.lanes = merged(job.tracks);
}

/** One lane per rank: the processes of a rank, after restarts or in several layers, as one. */
function merged(tracks) {
  const lanes = new Map();
  for (const track of tracks) {
    const ends = track.ended ? [track.ended] : [];
    const lane = lanes.get(track.rank);
    if (!lane) lanes.set(track.rank, { ...track, ends });
    else {
      Object.assign(lane, { host: track.host, pid: track.pid, ended: track.ended, ends: [...lane.ends, ...ends] });
      lane.calls = [...lane.calls, ...track.calls].sort((a, b) => a.at - b.at);
      lane.marks = [...lane.marks, ...track.marks].sort((a, b) => a[0] - b[0]);
      lane.spent = [...lane.spent, ...track.spent].sort((a, b) => a[1] - b[1]);
      if (track.shares && lane.shares) lane.shares = lane.shares.map((it, at) => Math.max(it, track.shares[at]));
    }
  }
  return [...lanes.values()];
}

/** Time the first process joined. */
function beginning(job) {
  return job.tracks.reduce((least, it) => Math.min(least, it.began), job.until);
}

/** Time ranks began to block, according to the leading finding; null: nothing blocked. */
function stallOf(job) {
  const leading = leadingFinding(job);
  if (!leading || leading.effect === "none" || leading.effect === "slows") return null;
  return leading.blocked ?? leading.detected;
}

/** Whether there is a part of the timeline to show first. */
function hasTrouble(job) {
  return stallOf(job) !== null || job.shares !== null;
}

/** The part of the timeline to show first. A stall: the last rounds of calls before it, and the time after it. A slow
    job: the last rounds that were slow. */
function aroundTrouble(job) {
  const stall = stallOf(job);
  const begins = beginning(job);
  const whole = [begins, Math.max(job.until, begins + 1)];
  const calls = job.lanes.reduce((most, it) => (it.calls.length > most.length ? it.calls : most), []);
  const end = stall ?? job.shares?.[1] ?? job.until;
  const before = calls.filter((it) => it.at < end && it.seq > 0);
  if (before.length === 0) return whole;
  const first = before[Math.max(0, before.length - 14)].at;
  const rounds = Math.max(end - first, 1000);
  const from = Math.max(begins, end - rounds * 1.1);
  let to = stall === null ? end : Math.min(job.until, end + rounds * 1.2);
  if (stall !== null && job.until - end < rounds * 3) to = job.until;
  if (stall !== null) to = Math.max(to, Math.min(job.until, lastBlocked(job) + rounds * 0.4));
  const margin = (to - from) * 0.03;
  return [from - margin, to + margin];
}

/** Time the last of the root cause ranks began to block. */
function lastBlocked(job) {
  const roots = rootRanks(job);
  const open = job.lanes.filter((it) => roots.has(it.rank)).flatMap((it) => it.calls.filter((call) => call.open));
  return open.reduce((latest, it) => Math.max(latest, it.at), 0);
}

/** Calls that identify the last activity of a rank. */
function signature(track, state) {
  const last = track.calls.slice(-ALIKE).map((it) => `${it.index}#${it.seq}${it.open ? "…" : ""}`);
  return [state, track.ended?.[1] ?? "", ...last].join("|");
}

/** The lanes to show: root causes first, then by rank. */
function lanesOf(job, query, grouped, expanded) {
  const roots = rootRanks(job);
  const states = new Map(job.ranks.map((it) => [it.rank, it.state]));
  const kinds = new Set(job.kinds.flatMap((kind, index) =>
    matchesWords(query, `${kind.call} ${kind.group} ${kind.place} ${kind.function} ${kind.layer}`) ? [index] : []));
  const lanes = new Map();
  for (const track of job.lanes) {
    if (!matchesRank(query, track.rank)) continue;
    const state = states.get(track.rank) ?? "unknown";
    const own = matchesWords(query, `${track.host} ${track.pid} ${state} ${track.ended?.[1] ?? ""}`);
    if (!own && !track.calls.some((call) => kinds.has(call.index))) continue;
    const alike = `${roots.has(track.rank)}|${signature(track, state)}`;
    const key = grouped && !expanded.has(alike) ? alike : `rank ${track.rank}`;
    const lane = lanes.get(key) ?? { alike, tracks: [], root: roots.has(track.rank), kinds: own ? null : kinds };
    lane.tracks.push(track);
    lanes.set(key, lane);
  }
  const order = (lane) => [lane.root ? 0 : 1, lane.tracks[0].rank];
  const list = [...lanes.values()].sort((a, b) => order(a)[0] - order(b)[0] || order(a)[1] - order(b)[1]);
  for (const lane of list) {
    lane.ranks = lane.tracks.map((it) => it.rank);
    lane.track = lane.tracks[0];
    lane.label = rankList(lane.ranks);
  }
  return list;
}

/** The class of a call by its kind. */
function classOf(kind) {
  if (kind.hidden) return "c-hidden";
  return kind.p2p ? "c-p2p" : "c-call";
}

/** The rectangles of a lane in a window, by class. Rectangles that touch on the screen are merged. */
function shapes(lane, from, to, x) {
  const found = new Map();
  const add = (name, a, b, faded) => {
    if (b < from || a > to) return;
    const key = faded ? `${name} faded` : name;
    const list = found.get(key) ?? [];
    const left = x(Math.max(a, from));
    const right = Math.max(x(Math.min(b, to)), left + 1.5);
    const last = list.at(-1);
    if (last && left <= last[1] + 0.4 && left >= last[0]) last[1] = Math.max(last[1], right);
    else list.push([left, right]);
    found.set(key, list);
  };
  for (const [, at, length] of lane.track.spent) add("c-input", at, at + length, false);
  for (const call of lane.track.calls) {
    if (call.at > to) break;
    if (call.until < from) continue;
    const faded = lane.kinds !== null && !lane.kinds.has(call.index);
    if (call.open) {
      add("c-stuck", call.at, call.until, faded);
      continue;
    }
    if (call.ended !== null) add("c-wait", call.began, call.ended, faded);
    add(classOf(call.kind), call.at, call.returned ?? call.completed ?? call.at, faded);
  }
  return found;
}

/** The call of a lane at a time, or the nearest within `reach`. */
function callAt(lane, at, reach) {
  let best = null;
  let least = reach;
  for (const call of lane.track.calls) {
    const distance = at < call.at ? call.at - at : Math.max(0, at - call.until);
    if (distance < least || (distance === least && best !== null)) {
      best = call;
      least = distance;
    }
  }
  return best;
}

/** A call as text for the line below the timeline. */
function describeCall(lane, call) {
  const kind = call.kind;
  const name = call.seq > 0 ? `${kind.op} #${call.seq}` : kind.op;
  const rest = kind.call.slice(kind.op.length);
  const times = [`issued ${clock(call.at)}`];
  if (call.open) {
    times.push(`${call.inferred ? "waits, as its finding establishes, " : "waits "}for ${duration(call.until - call.at)}`);
  } else {
    times.push(`took ${duration(call.until - call.at)}`);
    if (call.ended !== null) times.push(`${duration(call.ended - call.began)} of it waiting`);
  }
  return [
    make("b", {}, `${plural(lane.label)} ${shortened(lane.label, 50)}  ${name}`), rest,
    kind.group ? ` · ${kind.group}` : "", kind.place ? [" · ", make("code", {}, kind.place)] : "",
    kind.function && kind.function !== "<module>" ? ` in ${kind.function}` : "",
    call.step > 0 ? ` · step ${call.step}` : "", kind.hidden ? " · issued by the framework" : "",
    make("br"), times.join(" · "),
  ];
}
