// Forecasts against what then happened: coverage, skill, windows; and what obeying would have been worth.

import { h, panel, table } from "../dom.js";
import { age, change, clock, digits, METRIC_NAMES, percent, quantileName, seconds } from "../format.js";

const WINDOWS = 8;

export class Scores {
  constructor() {
    this.uses = ["scores"];
    this.panel = panel("Scores and coverage", { note: "every closed window, against what happened and against “the last window again”" });
    this.roots = [this.panel.root];
  }

  update({ scores }) {
    if (!scores?.rows.length && !scores?.intervened) {
      this.panel.body.replaceChildren(h("p", { class: "empty small" }, "No window with enough requests in it has closed yet. One closes 60 s after its horizon."));
      return;
    }
    const order = Object.keys(METRIC_NAMES);
    const shown = scores.rows.filter((row) => row.quantile === 0.95).sort((a, b) => order.indexOf(a.metric) - order.indexOf(b.metric) || a.horizon_s - b.horizon_s);
    const covered = scores.cells ? percent(scores.covered / scores.cells) : "–";
    this.panel.body.replaceChildren(
      h("p", { class: "note", style: { "margin-bottom": "6px" } }, `${covered} of ${scores.cells} quantiles in ${scores.windows} windows fell into their intervals`
        + (scores.intervened ? `; ${scores.intervened} windows had a change in them and count for nothing` : "")),
      ...replayed(scores.replay),
      table("Scores by latency and horizon", ["P95 of", "Next", "Windows", "Inside 90 %", "Skill", "Happened / forecast"], shown.map((row) => [
        quantileName(row.metric, row.quantile).replace(" P95", ""), `${row.horizon_s} s`, String(row.n), percent(row.coverage90),
        row.skill_persistence === null ? "–" : h("span", { class: row.skill_persistence > 0 ? "better" : "worse" }, change(row.skill_persistence)),
        row.bias_ratio === null ? "–" : `${row.bias_ratio.toFixed(2)}×`]), { right: [2, 3, 4, 5] }));
  }
}

function replayed(replay) {
  if (!replay?.cause) return [];
  const off = (log) => change(Math.expm1(log));
  const why = replay.cause === "none" ? "within the usual" : replay.cause;
  const parts = `traffic ${off(replay.traffic_log)}, costs ${off(replay.costs_log)}, the rest ${off(replay.rest_log)}`;
  const grows = replay.grows.length ? `; bias grows at ${replay.grows.map((each) => `P${Math.round(each * 100)}`).join(", ")}` : "";
  return [h("p", { class: "note", title: replay.evidence, style: { "margin-bottom": "6px" } },
    `Replayed with what really came, ${clock(replay.as_of_us)} and ${replay.window_s} s on: latencies ${off(replay.error_log)} off, ${why} (${parts})${grows}`)];
}

export class Ledger {
  constructor() {
    this.uses = ["scores", "ledger"];
    this.panel = panel("Ledger", { note: "what was foreseen, what was proposed, and how the last windows went" });
    this.roots = [this.panel.root];
  }

  update({ scores, ledger }) {
    const last = (scores?.last ?? []).filter((each) => each.cell).slice(-WINDOWS).reverse();
    this.panel.body.replaceChildren(facts(ledger), last.length ? table("Last closed windows", ["Made", "Next", "Forecast", "Interval", "Happened", ""],
      last.map(({ as_of_us, horizon_s, cell }) => [clock(as_of_us), `${horizon_s} s`, seconds(cell.forecast_s), `${seconds(cell.low_s)} to ${seconds(cell.high_s)}`,
        cell.observed_s === undefined || cell.observed_s === null ? "unfinished" : seconds(cell.observed_s),
        h("span", { class: cell.covered ? "badge good" : "badge bad" }, cell.covered ? "inside" : "outside")]), { right: [2, 3, 4] }) : "");
  }
}

function facts(ledger) {
  if (!ledger) return h("p", { class: "empty small" }, "No request has finished yet.");
  const fact = (name, text) => [h("dt", {}, name), h("dd", {}, text)];
  const { breaches, foreseen, covered, lead_s, pages, false_pages, proposals, fates, needless, engine_hours, engine_hours_obeyed, reversals_done, reversals_proposed } = ledger;
  const hours = (value) => (value === null ? "not known" : digits(value));
  return h("dl", { class: "facts", style: { "margin-bottom": "12px" } },
    fact("breaches over 20 s", !ledger.targets ? "not known without a target" : breaches
      ? `${breaches}: ${foreseen} foreseen, ${breaches - foreseen} missed, ${covered} a proposal would have met in time` : "none in what is held here"),
    fact("lead", lead_s === null ? "–" : `${age(lead_s)} before it began, in the median`),
    fact("pages", pages ? `${pages}, ${false_pages} of them without a breach so far` : "none"),
    fact("proposals", proposals ? `${proposals}: ${["obeyed", "refused", "withdrawn", "left"].filter((fate) => fates[fate]).map((fate) => `${fates[fate]} ${fate}`).join(", ")}; ${needless} needless so far` : "none"),
    fact("engine-hours", `${hours(engine_hours)} as it ran, ${hours(engine_hours_obeyed)} had every proposal been obeyed`),
    fact("reversals", `${reversals_done} done, ${reversals_proposed} proposed`));
}
