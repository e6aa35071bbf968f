// Forecasts against what then happened: coverage, skill, windows; and what obeying would have been worth.

import { h, panel, table } from "../dom.js";
import { age, change, clock, METRIC_NAMES, percent, quantileName, seconds } from "../format.js";

const WINDOWS = 8;

export class Scores {
  constructor() {
    this.uses = ["scores"];
    this.panel = panel("Scores and coverage", { note: "every closed window, against what happened and against “the last window again”" });
    this.roots = [this.panel.root];
  }

  update({ scores }) {
    if (!scores?.windows && !scores?.intervened) {
      this.panel.body.replaceChildren(h("p", { class: "empty small" }, "No window has closed yet. One closes 60 s after its horizon."));
      return;
    }
    const order = Object.keys(METRIC_NAMES);
    const shown = scores.rows.filter((row) => row.quantile === 0.95).sort((a, b) => order.indexOf(a.metric) - order.indexOf(b.metric) || a.horizon_s - b.horizon_s);
    const covered = scores.cells ? percent(scores.covered / scores.cells) : "–";
    this.panel.body.replaceChildren(
      h("p", { class: "note", style: { "margin-bottom": "6px" } }, `${covered} of ${scores.cells} quantiles in ${scores.windows} windows fell into their intervals`
        + (scores.intervened ? `; ${scores.intervened} windows had a change in them and count for nothing` : "")),
      table("Scores by latency and horizon", ["P95 of", "Next", "Windows", "Inside 90 %", "Skill", "Happened / forecast"], shown.map((row) => [
        quantileName(row.metric, row.quantile).replace(" P95", ""), `${row.horizon_s} s`, String(row.n), percent(row.coverage90),
        row.skill_persistence === null ? "–" : h("span", { class: row.skill_persistence > 0 ? "better" : "worse" }, change(row.skill_persistence)),
        row.bias_ratio === null ? "–" : `${row.bias_ratio.toFixed(2)}×`]), { right: [2, 3, 4, 5] }));
  }
}

export class Ledger {
  constructor() {
    this.uses = ["scores", "actions", "foresight"];
    this.panel = panel("Ledger", { note: "what was foreseen, what was proposed, and how the last windows went" });
    this.roots = [this.panel.root];
  }

  update({ scores, actions = [], foresight }) {
    const last = (scores?.last ?? []).filter((each) => each.cell).slice(-WINDOWS).reverse();
    this.panel.body.replaceChildren(facts(actions, foresight), last.length ? table("Last closed windows", ["Made", "Next", "Forecast", "Interval", "Happened", ""],
      last.map(({ as_of_us, horizon_s, cell }) => [clock(as_of_us), `${horizon_s} s`, seconds(cell.forecast_s), `${seconds(cell.low_s)} to ${seconds(cell.high_s)}`,
        cell.observed_s === undefined || cell.observed_s === null ? "unfinished" : seconds(cell.observed_s),
        h("span", { class: cell.covered ? "badge good" : "badge bad" }, cell.covered ? "inside" : "outside")]), { right: [2, 3, 4] }) : "");
  }
}

function facts(actions, foresight) {
  const ended = (word) => actions.filter((each) => each.ended.startsWith(word)).length;
  const standing = actions.filter((each) => !each.ended).length;
  const fact = (name, text) => [h("dt", {}, name), h("dd", {}, text)];
  return h("dl", { class: "facts", style: { "margin-bottom": "12px" } }, foresight ? told(foresight, fact) : fact("breaches", "not known without a target"),
    fact("proposals", actions.length ? `${standing} open or expired, ${ended("applied")} applied, ${ended("accepted")} accepted, ${ended("rejected")} rejected, ${ended("withdrawn")} withdrawn` : "none so far"));
}

function told({ foreseen, late, missed, needless, lead_s }, fact) {
  const all = foreseen + late + missed;
  return [
    fact("breaches over 20 s", all ? `${all}: ${foreseen} foreseen, ${late} told while they went on, ${missed} missed` : "none in what is held here"),
    fact("median lead", lead_s === null ? "–" : lead_s >= 0 ? `${age(lead_s)} before it began` : `${age(-lead_s)} after it began`),
    fact("needless pages", String(needless)),
  ];
}
