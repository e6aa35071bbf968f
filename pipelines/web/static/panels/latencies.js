// Forecast bands against what then happened, for each latency. A window stands at its end, in both.

import { choice, panel } from "../dom.js";
import { METRIC_NAMES, quantileName, seconds } from "../format.js";
import { TimeChart } from "../charts.js";

const LINES = [
  { label: "low", colour: "band-edge", width: 0.75 },
  { label: "high", colour: "band-edge", width: 0.75, band: 0, fill: "band" },
  { label: "forecast", colour: "accent", width: 2 },
  { label: "happened", colour: "seen", width: 1.5, points: 4.5 },
];
const KEY = [["area", "band-edge", "interval as forecast"], ["line", "accent", "forecast"], ["dots", "seen", "happened"], ["dash", "slo", "target"]];

function read([low, high, value, seen]) {
  const forecast = value === null ? "" : `forecast ${seconds(value)} (${seconds(low)} to ${seconds(high)})`;
  return [forecast, seen === null ? "" : `happened ${seconds(seen)}`].filter(Boolean).join(", ");
}
const METRICS = ["ttft_s", "tpot_s", "e2e_s"];

export class LatencyCharts {
  constructor() {
    this.uses = ["bands", "observed", "alerts", "changes", "now", "setup"];
    this.quantile = 0.95;
    this.horizon_s = null;
    this.charts = METRICS.map((metric) => new TimeChart(`${METRIC_NAMES[metric]}: forecast and what happened`, {
      lines: LINES, key: KEY, read, y: { log: true, unit: seconds }, height: metric === "ttft_s" ? 300 : 220,
    }));
    this.panels = METRICS.map((metric, at) => {
      const made = panel(`${METRIC_NAMES[metric]} as forecast, and as it happened`, { width: at ? "w6" : "" });
      made.body.append(this.charts[at].frame);
      return made;
    });
    this.roots = this.panels.map((each) => each.root);
    this.note = null;
    this.offered = "";
  }

  destroy() {
    for (const chart of this.charts) chart.destroy();
  }

  update(parts, context) {
    this.last = [parts, context];
    const { bands, observed } = parts;
    if (!bands) return;
    this.offer(bands);
    METRICS.forEach((metric, at) => {
      const target = (parts.setup?.targets ?? []).find((each) => each.metric === metric && each.quantile === this.quantile);
      const limits = target ? [{ at: target.limit_s, colour: "slo", text: `target ${seconds(target.limit_s)}` }] : [];
      const band = bandTable(bands, metric, this.quantile, this.horizon_s, context.span[0]);
      const seen = seenTable(observed, metric, this.quantile, this.horizon_s, context.span[0]);
      this.charts[at].set({ tables: [band, seen], ...context, limits, summary: summary(band, seen, metric, this.quantile, limits),
        nothing: "No forecast yet. The first comes once requests and their ends were seen for a while." });
    });
  }

  /** The horizons that forecasts have, as they come to be known. */
  offer(bands) {
    const key = bands.horizons_s.join();
    if (this.offered === key) return;
    this.offered = key;
    if (!bands.horizons_s.includes(this.horizon_s)) this.horizon_s = bands.horizons_s[0];
    const again = () => this.update(...this.last);
    this.panels[0].tools.replaceChildren(
      choice("Quantile", bands.quantiles.map((q) => [q, `P${q * 100}`]), this.quantile, (q) => { this.quantile = q; again(); }),
      choice("Window", bands.horizons_s.map((s) => [s, `next ${s} s`]), this.horizon_s, (s) => { this.horizon_s = s; again(); }));
  }
}

function columnOf({ horizons_s, metrics, quantiles }, metric, quantile, horizon_s) {
  return (horizons_s.indexOf(horizon_s) * metrics.length + metrics.indexOf(metric)) * quantiles.length + quantiles.indexOf(quantile);
}

/** Ends of windows, low, high and value of the forecast made at their beginning. */
function bandTable(bands, metric, quantile, horizon_s, from) {
  const at = 1 + 3 * columnOf(bands, metric, quantile, horizon_s);
  const rows = bands.rows.filter((row) => row[at] !== null && row[0] / 1e6 + horizon_s >= from);
  const positive = (value) => Math.max(value, 1e-4);
  return [rows.map((row) => row[0] / 1e6 + horizon_s), rows.map((row) => positive(row[at + 1])), rows.map((row) => positive(row[at + 2])), rows.map((row) => positive(row[at]))];
}

/** Ends of windows, and the quantile of the requests that arrived in them. */
function seenTable(observed, metric, quantile, horizon_s, from) {
  if (!observed?.horizons_s.includes(horizon_s)) return [[], []];
  const at = 1 + columnOf(observed, metric, quantile, horizon_s);
  const rows = observed.rows.filter((row) => row[at] !== null && row[0] / 1e6 >= from);
  return [rows.map((row) => row[0] / 1e6), rows.map((row) => Math.max(row[at], 1e-4))];
}

function summary(band, seen, metric, quantile, limits) {
  const last = (column) => column.at(-1);
  const parts = [];
  if (band[0].length) parts.push(`Newest forecast of ${quantileName(metric, quantile)} ${seconds(last(band[3]))}, interval ${seconds(last(band[1]))} to ${seconds(last(band[2]))}`);
  if (seen[0].length) parts.push(`last seen ${seconds(last(seen[1]))}`);
  if (limits.length) parts.push(limits[0].text);
  return `${parts.join("; ")}. Arrow keys move along the points.`;
}
