// One deployment in depth: panels in order, the span that all charts share, and what marks them.

import { choice, h } from "./dom.js";
import { clock, words } from "./format.js";
import { Actions, Events } from "./panels/happenings.js";
import { Balance, Bottlenecks, Ceiling } from "./panels/limits.js";
import { EngineCharts } from "./panels/engines.js";
import { Headline } from "./panels/headline.js";
import { Ledger, Scores } from "./panels/scores.js";
import { LatencyCharts } from "./panels/latencies.js";
import { Trust } from "./panels/trust.js";
import { WhatIf } from "./panels/whatif.js";

const SPANS = [[300, "5 min"], [900, "15 min"], [3600, "1 h"]];
const AHEAD_S = 130;

export class DeploymentView {
  constructor(deployment, store) {
    this.deployment = deployment;
    this.store = store;
    this.span_s = 900;
    this.when = h("p");
    const wide = [new Headline(), new LatencyCharts(), new EngineCharts(), new Bottlenecks(), new Ceiling(), new Balance(), new WhatIf(deployment, store)];
    const left = [new Actions(), new Ledger()];
    const right = [new Events(), new Scores(), new Trust()];
    this.panels = [...wide, ...left, ...right];
    const roots = (some) => some.flatMap((each) => each.roots);
    this.grid = h("div", { class: "grid" }, roots(wide), h("div", { class: "stack" }, roots(left)), h("div", { class: "stack" }, roots(right)));
    this.waiting = h("p", { class: "empty" }, `Waiting for records of ${deployment} …`);
    this.grid.hidden = true;
    this.root = h("div", {},
      h("div", { class: "title" }, h("h1", {}, deployment), this.when,
        h("div", { class: "tools", style: { "margin-left": "auto" } },
          choice("Time shown", SPANS, this.span_s, (span_s) => { this.span_s = span_s; this.update(new Set(Object.keys(this.store.parts))); }))),
      this.waiting, this.grid);
  }

  destroy() {
    for (const each of this.panels) each.destroy?.();
  }

  freshness() {
    return this.store.freshness(this.store.parts.now);
  }

  update(changed) {
    const { parts } = this.store;
    if (!parts.now) return;
    this.waiting.hidden = true;
    this.grid.hidden = false;
    const context = this.context(parts);
    for (const each of this.panels) {
      if (each.uses.some((name) => changed.has(name))) each.update(parts, context);
    }
  }

  /** What all charts share: the span shown, now, and marks of what happened. Seconds of event time. */
  context(parts) {
    const now = parts.now.newest_us / 1e6;
    const from = Math.max(now - this.span_s, (parts.now.first_us || parts.now.newest_us) / 1e6 - 5);
    const until = now + Math.min(AHEAD_S, Math.max((now - from) * 0.5, 35));
    return { now, span: [from, until], marks: marksOf(parts) };
  }

  tick() {
    const { parts } = this.store;
    if (!parts.now) return;
    const { stale } = this.freshness();
    this.grid.classList.toggle("stale", Boolean(stale));
    const text = `event time ${clock(parts.now.newest_us)}${parts.now.forecasts_made ? ` · ${parts.now.forecasts_made} forecasts seen` : ""}`;
    if (this.when.textContent !== text) this.when.textContent = text;
  }
}

const SHOWN_CHANGES = { applied: "", accepted: " accepted", rejected: " rejected" };

function marksOf({ alerts = [], changes = [] }) {
  const risen = new Map();
  const marks = [];
  for (const alert of alerts) {
    const before = risen.get(alert.alert_id);
    risen.set(alert.alert_id, alert.state);
    if (alert.state === "suspected" || before === alert.state) continue;
    marks.push({ at: alert.at_us / 1e6, colour: alert.state === "firing" ? "bad" : "good", text: `${words(alert.kind)} ${alert.state === "firing" ? "fires" : "over"}` });
  }
  for (const change of changes) {
    const count = change.engines_after === undefined || change.engines_after === null ? "" : ` to ${change.engines_after}`;
    marks.push({ at: change.at_us / 1e6, colour: "change", text: `${change.kind}${count}${SHOWN_CHANGES[change.status ?? "applied"]}` });
  }
  return marks;
}
