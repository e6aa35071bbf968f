// Queue, KV blocks and utilisation: what engines told, and what the newest forecast expects.

import { panel } from "../dom.js";
import { digits, percent } from "../format.js";
import { TimeChart } from "../charts.js";

const past = (label, colour) => ({ label, colour, width: 1.75 });
const ahead = (label, colour, fill, lower) => [
  { label: `${label} expected`, colour, width: 1.5, dash: [5, 4] },
  { label: `${label} P95`, colour: null, width: 0, band: lower, fill },
];
const whole = (value) => digits(value, value < 10 ? 2 : 3);
const share = (value) => percent(value);

const SHOWN = [
  { title: "Queue", note: "requests waiting and running, all engines together", unit: whole, columns: [1, 2], curves: ["waiting_requests", "running_requests"], names: ["waiting", "running"] },
  { title: "KV blocks in use", note: "share of blocks, of the fullest engine", unit: share, columns: [3], curves: ["kv_ratio"], names: ["KV"], to: 1.02 },
  { title: "Utilisation", note: "share of time in steps, and of step time with requests waiting", unit: share, columns: [4, 5], curves: ["busy_ratio", "saturated_ratio"], names: ["busy", "saturated"], to: 1.02 },
];
const COLOURS = [["accent", "band"], ["second", "second-band"]];

export class EngineCharts {
  constructor() {
    this.uses = ["engine_rows", "forecast", "alerts", "changes"];
    this.charts = SHOWN.map((each) => new TimeChart(each.title, {
      lines: each.names.flatMap((name, at) => [past(name, COLOURS[at][0]), ...ahead(name, ...COLOURS[at], at * 3 + 1)]),
      key: [...each.names.map((name, at) => ["line", COLOURS[at][0], name]), ["dash", "muted", "expected"], ["area", "band-edge", "up to its P95"]],
      read: (values) => read(each, values),
      y: { unit: each.unit, from: 0, to: each.to },
    }));
    this.roots = SHOWN.map((each, at) => {
      const made = panel(each.title, { width: "w4", note: each.note });
      made.body.append(this.charts[at].frame);
      return made.root;
    });
  }

  destroy() {
    for (const chart of this.charts) chart.destroy();
  }

  update({ engine_rows, forecast }, context) {
    const rows = (engine_rows?.rows ?? []).filter((row) => row[0] / 1e6 >= context.span[0]);
    SHOWN.forEach((each, at) => {
      const tables = each.names.flatMap((_, place) => [pastTable(rows, each.columns[place]), aheadTable(forecast, each.curves[place])]);
      this.charts[at].set({ tables, ...context, summary: summary(each, rows), nothing: "No engine has told of this yet." });
    });
  }
}

function read({ names, unit }, values) {
  return names.map((name, at) => {
    const [seen, mean, high] = values.slice(at * 3, at * 3 + 3);
    if (seen !== null) return `${name} ${unit(seen)}`;
    return mean === null ? "" : `${name} ${unit(mean)} expected, P95 ${unit(high)}`;
  }).filter(Boolean).join("; ");
}

function pastTable(rows, column) {
  const told = rows.filter((row) => row[column] !== null);
  return [told.map((row) => row[0] / 1e6), told.map((row) => row[column])];
}

/** The newest forecast's curve from its `as_of` on: mean and P95 over replications. */
function aheadTable(forecast, name) {
  const curve = forecast?.curves.find((each) => each.name === name);
  if (!curve) return [[], [], []];
  const from = forecast.as_of_us / 1e6;
  return [curve.mean.map((_, at) => from + at * curve.interval_s), curve.mean, curve.high];
}

function summary({ names, columns, unit }, rows) {
  const last = rows.at(-1);
  if (!last) return "";
  return `Now ${names.map((name, at) => `${name} ${unit(last[columns[at]] ?? NaN)}`).join(", ")}. Arrow keys move along the points.`;
}
