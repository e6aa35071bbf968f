// The first glance: risk, latency against the target, headroom, queue, trust.

import { h } from "../dom.js";
import { chance, digits, interval, percent, quantileName, seconds } from "../format.js";

function card(title, big, level, ...lines) {
  return h("section", { class: "card" }, h("h2", {}, title), h("p", { class: `big ${level}` }, big), lines.filter(Boolean).map((line) => h("p", {}, line)));
}

export class Headline {
  constructor() {
    this.uses = ["now", "forecast", "setup", "alerts"];
    this.root = h("div", { class: "cards" });
    this.roots = [this.root];
  }

  update(parts) {
    this.root.replaceChildren(risk(parts), latency(parts), headroom(parts), queue(parts), trust(parts));
  }
}

function risk({ forecast }) {
  if (!forecast) return card("Breach risk", "–", "", "no forecast yet");
  const all = forecast.horizons.flatMap((horizon) => horizon.slo_risks.map((one) => ({ ...one, horizon_s: horizon.horizon_s })));
  if (!all.length) return card("Breach risk", "–", "", "no target is set; slos.toml sets one");
  const worst = all.reduce((a, b) => (b.breach_probability > a.breach_probability ? b : a));
  const level = worst.breach_probability >= 0.5 ? "bad" : worst.breach_probability >= 0.1 ? "warn" : "good";
  const byHorizon = forecast.horizons.map((horizon) => {
    const most = Math.max(...horizon.slo_risks.map((one) => one.breach_probability));
    return `${horizon.horizon_s} s ${chance(most)}`.replaceAll(" ", "\u00a0");
  }).join(", ");
  return card("Breach risk", chance(worst.breach_probability), level, `${quantileName(worst.metric, worst.quantile)} over ${seconds(worst.limit_s)}`, `next ${byHorizon}`);
}

function latency({ forecast, setup }) {
  const target = setup?.targets?.find((each) => each.metric === "ttft_s") ?? { metric: "ttft_s", quantile: 0.95 };
  const name = quantileName(target.metric, target.quantile);
  const first = forecast?.horizons[0];
  const found = first?.latencies.find((each) => each.metric === target.metric && each.quantile === target.quantile);
  if (!found) return card(`${name}, next`, "–", "", forecast ? "too little traffic to tell" : "no forecast yet");
  const level = target.limit_s && found.value_s > target.limit_s ? "bad" : "";
  return card(`${name}, next ${first.horizon_s} s`, seconds(found.value_s), level,
    `${percent(forecast.interval_level)} interval ${interval(found.low_s, found.high_s, seconds)}`,
    target.limit_s ? `target ${seconds(target.limit_s)}` : "no target is set");
}

function headroom({ forecast }) {
  const ceiling = forecast?.fine?.ceiling_requests_per_s;
  const arrivals = forecast?.horizons[0]?.arrivals_per_s;
  if (!ceiling || !arrivals) return card("Ceiling headroom", "–", "", "no ceiling computed yet");
  const used = arrivals.value / Math.max(ceiling.value, 1e-9);
  const level = used >= 1 ? "bad" : used >= 0.8 ? "warn" : "good";
  return card("Ceiling headroom", used >= 1 ? `${digits((used - 1) * 100, 2)} % over` : `${digits((1 - used) * 100, 2)} %`, level,
    `${digits(arrivals.value)} requests/s expected`, `ceiling ${digits(ceiling.value)} (${interval(ceiling.low, ceiling.high)})`);
}

function queue({ now, forecast }) {
  const waiting = now.waiting ?? null;
  const level = waiting > 0 && now.running !== null && waiting > now.running ? "warn" : "";
  return card("Waiting and running now", waiting === null ? "–" : `${waiting} / ${now.running ?? "–"}`, level,
    now.kv_ratio === null || now.kv_ratio === undefined ? "KV use is not told" : `KV blocks ${percent(now.kv_ratio)} in use`,
    forecast?.engines ? `${forecast.engines} engine${forecast.engines === 1 ? "" : "s"}${forecast.engines_starting ? `, ${forecast.engines_starting} starting` : ""}` : "");
}

function trust({ forecast }) {
  if (!forecast) return card("Authority", "–", "", "no forecast yet");
  const skill = forecast.skill ?? null;
  return card("Authority", forecast.authority, "", `credibility ${forecast.credibility.level}`,
    skill === null ? "too few windows closed for skill" : `skill ${skill >= 0 ? "+" : "−"}${Math.abs(skill).toFixed(2)} over ${forecast.scored_rounds} rounds`);
}
