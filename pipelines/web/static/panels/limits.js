// What limits the service: bottlenecks by effect, the ceiling, other engine counts, balance.

import { h, panel, svg, table } from "../dom.js";
import { chance, change, clock, digits, interval, percent, words } from "../format.js";

const SHOWN = 6;

/** A horizontal bar from 0 to `value` of `most`, with an interval. */
function bar(name, value, text, { low, high, most, kind = "", below = null }) {
  const at = (x) => `${Math.min(Math.max((100 * x) / most, 0), 100)}%`;
  return h("li", { class: "bar" }, h("span", { class: "name" }, name, below && h("small", {}, below)),
    svg("svg", { "aria-hidden": "true" },
      svg("rect", { class: "track", width: "100%", height: 12, y: 3, rx: 3 }),
      svg("rect", { class: `fill ${kind}`, width: at(value), height: 12, y: 3, rx: 3 }),
      low !== undefined && svg("line", { class: "whisker", x1: at(low), x2: at(high), y1: 9, y2: 9 })),
    h("b", {}, text));
}

export class Bottlenecks {
  constructor() {
    this.uses = ["forecast"];
    this.panel = panel("What limits it", { width: "w4", note: "change of TTFT P95 if this were 10 % cheaper, with its 90 % interval" });
    this.roots = [this.panel.root];
  }

  update({ forecast }) {
    const found = forecast?.fine?.bottlenecks ?? [];
    if (!found.length) {
      this.panel.body.replaceChildren(h("p", { class: "empty small" }, "No ranking yet: it comes with fine forecasts that had time for it."));
      return;
    }
    const shown = found.slice(0, SHOWN);
    const most = Math.max(...shown.map((each) => Math.max(-each.low_ratio, -each.ttft_p95_change_ratio)), 0.02);
    this.panel.body.replaceChildren(h("ol", { class: "bars" }, shown.map((each) => {
      const clear = each.high_ratio < 0;
      return bar(words(each.name), -each.ttft_p95_change_ratio, change(each.ttft_p95_change_ratio), {
        low: -each.high_ratio, high: -each.low_ratio, most, kind: clear ? "" : "none", below: `${each.kind}${clear ? "" : ", effect not clear"}` });
    })));
  }
}

export class Ceiling {
  constructor() {
    this.uses = ["forecast"];
    this.panel = panel("Ceiling and engines", { width: "w4", note: "what other engine counts would give over the longest horizon" });
    this.roots = [this.panel.root];
  }

  update({ forecast }) {
    const fine = forecast?.fine;
    const ceiling = fine?.ceiling_requests_per_s;
    if (!ceiling) {
      this.panel.body.replaceChildren(h("p", { class: "empty small" }, "No ceiling yet: it comes with fine forecasts that had time for it."));
      return;
    }
    const most = Math.max(ceiling.high, ...forecast.horizons.map((each) => each.arrivals_per_s.high)) * 1.05;
    const bars = h("ul", { class: "bars" },
      bar("ceiling", ceiling.value, `${digits(ceiling.value)}/s`, { low: ceiling.low, high: ceiling.high, most, kind: "second" }),
      forecast.horizons.map((each) => bar(`next ${each.horizon_s} s`, each.arrivals_per_s.value, `${digits(each.arrivals_per_s.value)}/s`,
        { low: each.arrivals_per_s.low, high: each.arrivals_per_s.high, most })));
    const responses = fine.responses ?? [];
    const reaches = reached(fine);
    const now = forecast.engines || forecast.balance.length;
    this.panel.body.replaceChildren(bars, reaches.length ? h("ul", { class: "reasons" }, reaches.map((text) => h("li", {}, text))) : "", responses.length ? table("Other engine counts", ["Engines", "Goodput /s", "Interval", "Breach risk"],
      responses.map((each) => [each.engines === now ? `${each.engines} (now)` : String(each.engines), digits(each.goodput_requests_per_s.value),
        interval(each.goodput_requests_per_s.low, each.goodput_requests_per_s.high), chance(each.breach_probability)]), { right: [1, 2, 3] }) : "");
  }
}

/** What is passed already in one line, and what lies ahead. */
function reached({ outlook, as_of_us }) {
  const all = outlook?.reaches ?? [];
  const isPassed = (each) => each.reaches_at_us && each.reaches_at_us <= as_of_us;
  const passed = all.filter(isPassed).map((each) => each.watermark_ratio);
  return [...(passed.length ? [`${percent(Math.max(...passed))} of the ceiling is passed already`] : []), ...all.filter((each) => !isPassed(each)).map(reach)];
}

/** When the offered rate reaches a share of the ceiling, in words. */
function reach({ watermark_ratio, device, reaches_at_us, earliest_us }) {
  const name = `${percent(watermark_ratio)} of the ceiling${device ? ` on ${device}` : ""}`;
  if (reaches_at_us) return `${name} is reached ${clock(reaches_at_us)}${earliest_us && earliest_us < reaches_at_us ? `, perhaps ${clock(earliest_us)}` : ""}`;
  return earliest_us ? `${name} may be reached ${clock(earliest_us)}` : `${name} is not reached within two hours`;
}

export class Balance {
  constructor() {
    this.uses = ["forecast"];
    this.panel = panel("Balance", { width: "w4", note: "expected share of requests and busy time of each engine" });
    this.roots = [this.panel.root];
  }

  update({ forecast }) {
    const shares = forecast?.balance ?? [];
    if (!shares.length) {
      this.panel.body.replaceChildren(h("p", { class: "empty small" }, "No forecast yet."));
      return;
    }
    const even = 1 / shares.length;
    const worst = Math.max(...shares.map((each) => each.requests_ratio / even));
    this.panel.body.replaceChildren(
      h("ul", { class: "bars" }, shares.flatMap((each) => [
        bar(`engine ${each.engine}`, each.requests_ratio, percent(each.requests_ratio), { most: 1, below: "requests" }),
        bar("", each.busy_ratio, percent(each.busy_ratio), { most: 1, kind: "second", below: "busy" })])),
      h("p", { class: "note", style: { "margin-top": "10px" } }, shares.length === 1 ? "One engine takes all requests." : `The most loaded engine gets ${digits(worst, 2)} times its even share.`),
      scenarios(forecast));
  }
}

function scenarios({ scenarios: found }) {
  const told = found.filter((each) => each.breach_probability !== null);
  if (told.length < 2) return "";
  return table("Breach risk by scenario", ["If traffic is", "Breach risk"], told.map((each) => [words(each.scenario), chance(each.breach_probability)]), { right: [1] });
}
