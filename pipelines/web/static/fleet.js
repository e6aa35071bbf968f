// Every deployment in a row, the most endangered first.

import { h, svg, table } from "./dom.js";
import { age, chance, digits, interval, quantileName, seconds } from "./format.js";

const HEADINGS = ["Deployment", "Breach risk", "Forecast against SLO", "Trend", "Arrivals", "Headroom", "Authority", "Alerts", "Actions", "Age"];

export class FleetView {
  constructor(store) {
    this.store = store;
    this.body = h("div");
    this.count = h("p");
    this.root = h("div", {}, h("div", { class: "title" }, h("h1", {}, "Fleet"), this.count),
      h("section", { class: "panel", "aria-label": "Deployments" }, this.body));
    this.ages = new Map();
  }

  freshness() {
    const link = this.store.link();
    return { age_s: NaN, stale: link.state === "down" ? link.why : "" };
  }

  update(changed) {
    if (changed.has("fleet")) this.draw();
  }

  tick() {
    for (const [name, { row, cell, times }] of this.ages) {
      const { age_s, stale } = this.store.freshness(times);
      row.classList.toggle("stale", Boolean(stale));
      cell.textContent = Number.isFinite(age_s) ? age(age_s) : "–";
      cell.title = stale;
      row.setAttribute("aria-label", stale ? `${name}, stale: ${stale}` : name);
    }
  }

  draw() {
    const { deployments, dead_letters, left_out } = this.store.fleet;
    const focused = document.activeElement?.getAttribute?.("href");
    this.count.textContent = [
      `${deployments.length} deployment${deployments.length === 1 ? "" : "s"}`,
      left_out && `${left_out} more not shown`,
      dead_letters && `${dead_letters} records refused since this page's server started`,
    ].filter(Boolean).join(" · ");
    const sorted = [...deployments].sort((a, b) => (b.breach_probability ?? -1) - (a.breach_probability ?? -1));
    if (!sorted.length) {
      this.body.replaceChildren(h("p", { class: "empty" }, "No record of any deployment yet. Records on twincast.requests.v1 make one appear here."));
      return;
    }
    const made = table("Deployments, the most endangered first", HEADINGS, sorted.map((each) => cells(each)), { right: [4, 9] });
    made.classList.add("fleet");
    this.body.replaceChildren(made);
    this.ages = new Map(sorted.map((each, at) => {
      const row = made.querySelectorAll("tbody tr")[at];
      return [each.deployment, { row, cell: row.lastElementChild, times: each }];
    }));
    if (focused?.startsWith("#/d/")) made.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
  }
}

function cells(each) {
  return [
    h("a", { href: `#/d/${encodeURIComponent(each.deployment)}` }, each.deployment),
    risk(each.breach_probability),
    againstSlo(each),
    sparkline(each),
    each.arrivals_per_s ? `${digits(each.arrivals_per_s.value)}/s` : "–",
    headroom(each),
    h("span", { class: `badge ${each.authority ?? ""}` }, each.authority ?? "no forecast"),
    alerts(each.alerts),
    each.actions ? h("span", { class: "badge accent" }, `${each.actions} proposed`) : h("span", { class: "none" }, "none"),
    "",
  ];
}

/** A probability as a bar and a number. */
export function risk(value) {
  if (value === null || value === undefined) return h("span", { class: "none" }, "no target");
  const level = value >= 0.5 ? "bad" : value >= 0.1 ? "warn" : "good";
  return h("span", { class: `risk ${level}` },
    h("span", { class: "meter", "aria-hidden": "true" }, h("span", { style: { width: `${Math.max(value * 100, 2)}%` } })),
    h("b", {}, chance(value)));
}

function againstSlo({ latency, metric, quantile, slo, horizon_s }) {
  if (!latency) return h("span", { class: "none" }, "no forecast");
  const over = slo && latency.value_s > slo.limit_s;
  return h("span", { class: "pair" },
    h("span", {}, `${quantileName(metric, quantile)} `, h("b", { class: over ? "bad" : null }, seconds(latency.value_s)), slo ? ` of ${seconds(slo.limit_s)}` : ""),
    h("small", {}, `next ${horizon_s} s: ${interval(latency.low_s, latency.high_s, seconds)}`));
}

/** The newest forecasts of that latency as a line in its interval, with the target; on a logarithmic scale. */
function sparkline({ trend, slo }) {
  if (trend.length < 2) return h("span", { class: "none" }, "–");
  const [width, height] = [130, 34];
  const log = (value) => Math.log(Math.max(value, 1e-4));
  const known = [...trend.flat(), ...(slo ? [slo.limit_s] : [])].map(log);
  const [least, most] = [Math.min(...known), Math.max(...known)];
  const x = (at) => ((at * width) / (trend.length - 1)).toFixed(1);
  const y = (value) => (2 + ((most - log(value)) / Math.max(most - least, 1e-9)) * (height - 4)).toFixed(1);
  const path = (column, order) => order.map((at) => `${x(at)} ${y(trend[at][column])}`).join("L");
  const forth = trend.map((_, at) => at);
  const limit = slo && y(slo.limit_s);
  return svg("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `last ${trend.length} forecasts, now ${seconds(trend.at(-1)[1])}` },
    svg("path", { class: "band", d: `M${path(2, forth)}L${path(0, [...forth].reverse())}Z` }),
    slo && svg("line", { class: "limit", x1: 0, x2: width, y1: limit, y2: limit }),
    svg("path", { class: "line", d: `M${path(1, forth)}` }));
}

function headroom({ ceiling_requests_per_s, arrivals_per_s }) {
  if (!ceiling_requests_per_s || !arrivals_per_s) return h("span", { class: "none" }, "not known");
  const used = arrivals_per_s.value / Math.max(ceiling_requests_per_s.value, 1e-9);
  const level = used >= 1 ? "bad" : used >= 0.8 ? "warn" : "good";
  const words = used >= 1 ? `${digits((used - 1) * 100, 2)} % over` : `${digits((1 - used) * 100, 2)} % below`;
  return h("span", { class: "pair" }, h("b", { class: level }, words),
    h("small", {}, `ceiling ${digits(ceiling_requests_per_s.value)}/s`));
}

function alerts(firing) {
  if (!firing.length) return h("span", { class: "none" }, "none");
  return h("span", { class: "badge bad", title: firing.map((each) => each.cause).join("\n") },
    firing.length === 1 ? firing[0].kind.replaceAll("_", " ") : `${firing.length} firing`);
}
