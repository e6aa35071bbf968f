// Proposed actions with their simulated effect; alerts, deploys and other changes in order.

import { h, panel, table } from "../dom.js";
import { chance, clock, digits, percent, quantileName, seconds, words } from "../format.js";

const SHOWN = 4;

export class Actions {
  constructor() {
    this.uses = ["actions", "forecast"];
    this.panel = panel("Proposed actions", { note: "each was tried in the twin first: without it, and with it, on the same futures" });
    this.roots = [this.panel.root];
  }

  update({ actions = [], now }) {
    const told = actions.map((each) => (each.ended || each.action.expires_us >= now.newest_us ? each : { ...each, ended: "expired", ended_us: each.action.expires_us }));
    const shown = told.sort((a, b) => Number(Boolean(a.ended)) - Number(Boolean(b.ended)) || b.action.at_us - a.action.at_us).slice(0, SHOWN);
    this.panel.body.replaceChildren(shown.length ? h("ul", { class: "actions-list" }, shown.map(one))
      : h("p", { class: "empty small" }, "Nothing is proposed."));
  }
}

function one({ action, ended, ended_us }) {
  const state = ended || action.state;
  const effect = (name, before, after, better) => [name, before, h("span", { class: better ? "better" : null }, after)];
  const { before, after } = action;
  const rows = [
    effect("breach risk", chance(before.breach_probability), chance(after.breach_probability), after.breach_probability < before.breach_probability),
    effect("goodput", `${digits(before.goodput_requests_per_s.value)}/s`, `${digits(after.goodput_requests_per_s.value)}/s`,
      after.goodput_requests_per_s.value > before.goodput_requests_per_s.value),
    ...(after.latencies ?? []).map((each) => {
      const was = (before.latencies ?? []).find((other) => other.metric === each.metric && other.quantile === each.quantile);
      return effect(quantileName(each.metric, each.quantile), was ? seconds(was.value_s) : "–", `${seconds(each.value_s)} (${seconds(each.low_s)} to ${seconds(each.high_s)})`, was && each.value_s < was.value_s);
    }),
  ];
  return h("li", { class: `action ${ended ? "ended" : ""}` },
    h("header", {}, h("h3", {}, what(action.what)), h("span", { class: `badge ${ended ? "" : action.state === "proposed" ? "accent" : "confirmed"}` }, state),
      h("span", { class: "badge" }, action.executable ? "may be executed" : "advice only")),
    h("p", {}, ended ? `Ended ${clock(ended_us)}. ` : `Act before ${clock(action.act_before_us)}; expires ${clock(action.expires_us)}. `,
      `Better in ${percent(action.confidence_ratio)} of futures, costs ${digits(action.cost_engine_hours_per_hour)} engine-hours per hour.`),
    h("p", { class: "note" }, action.reasons.join("; ")),
    table("Simulated effect", [`over ${after.horizon_s} s`, "without", "with"], rows));
}

/** The action in words. */
function what(found) {
  switch (found.kind) {
    case "scale": return `${found.engines_after > found.engines_before ? "Scale out" : "Scale in"}: ${found.engines_before} → ${found.engines_after} engines${found.device ? ` on ${found.device}` : ""}`;
    case "shift_traffic": return `Shift traffic: ${found.weights.map((each) => `${each.engine} ${percent(each.weight)}`).join(", ")}`;
    case "set_limit": return `Set ${words(found.limit)}: ${digits(found.before)} → ${digits(found.after)}`;
    case "hold_back": return `${found.how === "shed" ? "Shed" : "Defer"} priority ${found.priority_from} and below, ${percent(found.traffic_ratio)} of traffic`;
    case "cut_over": return `Cut over from ${found.engine} to ${found.to.join(", ")}`;
    default: return words(found.kind);
  }
}

export class Events {
  constructor() {
    this.uses = ["alerts", "changes"];
    this.panel = panel("Alerts, deploys and other changes", { note: "newest first; the same marks stand in the charts" });
    this.roots = [this.panel.root];
  }

  update({ alerts = [], changes = [] }) {
    const events = [
      ...alerts.map((alert) => ({ at_us: alert.at_us, badge: alert.state, title: words(alert.kind), text: `${alert.cause}${alert.evidence ? `: ${alert.evidence}` : ""}` })),
      ...changes.map((change) => ({ at_us: change.at_us, badge: change.status ?? "applied", title: change.kind, text: changeWords(change) })),
    ].sort((a, b) => b.at_us - a.at_us);
    this.panel.body.replaceChildren(events.length ? h("ol", { class: "events", tabindex: 0, "aria-label": "Alerts and changes" }, events.map((each) =>
      h("li", {}, h("time", {}, clock(each.at_us)), h("span", { class: `badge ${each.badge}` }, each.badge), h("b", {}, each.title), each.text && h("p", {}, each.text))))
      : h("p", { class: "empty small" }, "Nothing happened."));
  }
}

function changeWords({ engines_before, engines_after, engine, detail, ready_at_us }) {
  const counted = engines_after === undefined || engines_after === null ? "" : `${engines_before ?? "?"} → ${engines_after} engines`;
  return [engine && `engine ${engine}`, counted, detail, ready_at_us && `ready ${clock(ready_at_us)}`].filter(Boolean).join("; ");
}
