// Forecasts against what then happened: coverage, skill, windows; and what obeying would have been worth.

import { h, panel, table } from "../dom.js";
import { age, change, clock, percent, quantileName, seconds } from "../format.js";

const WINDOWS = 8;

export class Scores {
  constructor() {
    this.uses = ["scores"];
    this.panel = panel("Scores and coverage", { width: "w6", note: "every closed window, against what happened and against “the last window again”" });
    this.roots = [this.panel.root];
  }

  update({ scores }) {
    if (!scores?.windows && !scores?.intervened) {
      this.panel.body.replaceChildren(h("p", { class: "empty small" }, "No window has closed yet. One closes 60 s after its horizon."));
      return;
    }
    const shown = scores.rows.filter((row) => row.quantile === 0.95);
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
    this.uses = ["scores", "alerts", "actions", "now", "ledger"];
    this.panel = panel("Ledger", { width: "w6", note: "what was foreseen, what was proposed, and how the last windows went" });
    this.roots = [this.panel.root];
  }

  update({ scores, alerts = [], actions = [], ledger = {} }) {
    const last = (scores?.last ?? []).filter((each) => each.cell).slice(-WINDOWS).reverse();
    this.panel.body.replaceChildren(facts(alerts, actions, ledger), last.length ? table("Last closed windows", ["Made", "Next", "Forecast", "Interval", "Happened", ""],
      last.map(({ as_of_us, horizon_s, cell }) => [clock(as_of_us), `${horizon_s} s`, seconds(cell.forecast_s), `${seconds(cell.low_s)} to ${seconds(cell.high_s)}`,
        cell.observed_s === undefined || cell.observed_s === null ? "unfinished" : seconds(cell.observed_s),
        h("span", { class: cell.covered ? "badge good" : "badge bad" }, cell.covered ? "inside" : "outside")]), { right: [2, 3, 4] }) : "");
  }
}

function facts(alerts, actions, { foreseen = 0, missed = 0, false_alarms = 0, lead_s = null, breached = 0 }) {
  const ended = (word) => actions.filter((each) => each.ended.startsWith(word)).length;
  const standing = actions.filter((each) => !each.ended).length;
  const fact = (name, text) => [h("dt", {}, name), h("dd", {}, text)];
  return h("dl", { class: "facts", style: { "margin-bottom": "12px" } },
    fact("breaches", breached ? `${breached} in what is shown: ${foreseen} foreseen, ${missed} missed` : "none in what is shown"),
    fact("median lead", lead_s === null ? "–" : lead_s >= 0 ? `${age(lead_s)} before it happened` : `${age(-lead_s)} after it began`),
    fact("needless pages", String(false_alarms)),
    fact("proposals", actions.length ? `${standing} standing, ${ended("applied")} applied, ${ended("accepted")} accepted, ${ended("rejected")} rejected, ${ended("withdrawn")} withdrawn` : "none so far"));
}
