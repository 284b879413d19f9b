// The table of GPUs and of links with faults.

/** Maximum number of rows. */
const DEVICE_ROWS = 256;
const DEVICE_COLUMNS = [
  ["Rank", (it) => it.rank, true], ["GPU", (it) => it.device?.index, true], ["Model", (it) => it.device?.name],
  ["Does", (it) => (it.device?.activity === "unknown" ? null : it.device?.activity)], ["Busy", (it) => withUnit(it.device?.busy_percent, "%"), true],
  ["Slowed by", (it) => (it.device?.slowdown === "none" ? null : it.device?.slowdown)],
  ["Xids", (it) => it.device?.xids.join(", "), true], ["Memory errors", (it) => it.device?.memory_errors || null, true],
  ["Clock", (it) => ofMost(it.device?.clock_mhz, it.device?.max_clock_mhz, "MHz"), true],
  ["Power", (it) => ofMost(it.device?.power_watts, it.device?.power_limit_watts, "W"), true],
  ["Heat", (it) => withUnit(it.device?.celsius, "°C"), true], ["Memory used", (it) => deviceMemory(it.device), true],
  ["Links with faults", (it) => it.ports.join("; ")],
];

function withUnit(value, unit) {
  return value === null || value === undefined ? null : `${number(value)} ${unit}`;
}

function ofMost(value, most, unit) {
  return most ? withUnit(value, `of ${number(most)} ${unit}`) : withUnit(value, unit);
}

function deviceMemory(device) {
  if (!device?.memory_total_bytes || device.memory_free_bytes === null) return null;
  return `${bytes(device.memory_total_bytes - device.memory_free_bytes)} of ${bytes(device.memory_total_bytes)}`;
}

function isInTrouble(row) {
  return row.ports.length > 0 || row.device?.xids.length > 0 || row.device?.memory_errors > 0 || Boolean(row.device?.is_slowed);
}

function devicesSection(job) {
  const rows = job.ranks.filter((it) => it.device || it.ports.length > 0);
  if (rows.length === 0) return null;
  const columns = DEVICE_COLUMNS.filter(([, value]) => rows.some((it) => (value(it) ?? "") !== ""));
  rows.sort((a, b) => isInTrouble(b) - isInTrouble(a) || a.rank - b.rank);
  const body = make("tbody", {});
  const more = make("p", { class: "note" });
  const update = () => {
    const shown = rows.filter((it) => matchesRank(state.query, it.rank)
      && matchesWords(state.query, columns.map(([, value]) => value(it) ?? "").join(" ")));
    body.replaceChildren(...shown.slice(0, DEVICE_ROWS).map((it) => make("tr", { class: isInTrouble(it) ? "root" : null },
      columns.map(([, value, isNumber]) => make("td", { class: isNumber ? "num" : null }, value(it) ?? "")))));
    more.textContent = shown.length > DEVICE_ROWS ? `${number(shown.length - DEVICE_ROWS)} more; the search finds them` : "";
  };
  state.listeners.push(update);
  update();
  return section("devices", "Devices", "Latest measurement while the rank ran.",
    make("div", { class: "scroll" }, make("table", {}, make("thead", {}, make("tr", {}, columns.map(([title, , isNumber]) => make("th", { class: isNumber ? "num" : null }, title)))), body)), more);
}
