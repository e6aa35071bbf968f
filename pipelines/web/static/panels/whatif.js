// What if: sliders, answered by the coarse engine from the newest stored state, on the same futures as the base.

import { h, panel, table } from "../dom.js";
import { age, chance, change, clock, digits, percent, quantileName, seconds } from "../format.js";
import { TimeChart } from "../charts.js";

const PAUSE_MS = 25;
const RATES = [0.25, 0.5, 0.75, 0.9, 1, 1.1, 1.25, 1.5, 2, 3, 4];
const BATCHES = [0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4];
const HITS = [null, 0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9];
const MORE_ENGINES = 5;

const LINES = [
  { label: "waiting as it is", colour: "faint", width: 1.75, dash: [5, 4] },
  { label: "waiting what if", colour: "accent", width: 2 },
  { label: "what if P95", colour: null, band: 1, fill: "band" },
];

const KEY = [["dash", "faint", "waiting as it is"], ["line", "accent", "waiting what if"], ["area", "band-edge", "up to its P95"]];

function read([base, changed, high]) {
  return base === null ? "" : `as it is ${digits(base)}, what if ${digits(changed)} (P95 ${digits(high)}) waiting`;
}

export class WhatIf {
  constructor(deployment, store) {
    this.deployment = deployment;
    this.store = store;
    this.uses = ["setup", "forecast"];
    this.panel = panel("What if", { note: "moves are answered at once, from the state that the worker stored last" });
    this.roots = [this.panel.root];
    this.chosen = { rate: 1, engines: null, batch: 1, hit: null };
    this.chart = new TimeChart("Requests waiting, as it is and what if", { lines: LINES, key: KEY, read, y: { unit: (value) => digits(value, 3), from: 0 }, height: 285 });
    this.words = h("p", { class: "note", role: "status" }, "Asking …");
    this.numbers = h("div");
    this.answer = h("div", { class: "answer" }, this.numbers, this.chart.frame, this.words);
    this.reset = h("button", { type: "button", disabled: true, onclick: () => this.clear() }, "As it is");
    this.sliders = h("div", { class: "sliders" });
    this.panel.body.append(h("div", { class: "whatif" }, this.sliders, this.answer));
    this.chart.nothing.textContent = "The queue ahead is drawn here.";
    this.known = "";
    this.inSight = false;
    this.sight = new IntersectionObserver((entries) => { this.inSight = entries.at(-1).isIntersecting; if (this.inSight) this.renew(); });
    this.sight.observe(this.panel.root);
  }

  destroy() {
    this.chart.destroy();
    this.asking?.abort();
    this.sight.disconnect();
  }

  /** Ask again when there is a newer forecast, and so perhaps a newer state, if anybody can see the answer. */
  renew() {
    const as_of_us = this.store.parts.forecast?.as_of_us;
    if (!this.inSight || !this.now || !as_of_us || as_of_us === this.renewed_us) return;
    this.renewed_us = as_of_us;
    this.ask();
  }

  update({ setup, forecast }) {
    const engines = forecast?.engines || forecast?.balance.length || setup?.engines.length || 0;
    const seqs = setup?.engines[0]?.max_num_seqs ?? null;
    const key = `${engines}/${seqs}`;
    if (!engines || key === this.known) { this.renew(); return; }
    this.known = key;
    this.now = { engines, seqs };
    this.chosen.engines = engines;
    const counts = Array.from({ length: engines + MORE_ENGINES }, (_, at) => at + 1);
    this.inputs = {
      rate: slider("Arrival rate", RATES, 1, (value) => (value === 1 ? "as expected" : `${value}×`), (value) => this.set({ rate: value })),
      engines: slider("Engines", counts, engines, (value) => (value === engines ? `${value}, as now` : String(value)), (value) => this.set({ engines: value })),
      batch: slider("Largest batch (max num seqs)", BATCHES, 1, (value) => (seqs === null ? (value === 1 ? "as now" : "not known") : `${batchOf(seqs, value)}${value === 1 ? ", as now" : ""}`), (value) => this.set({ batch: value }), seqs === null),
      hit: slider("Prefix cache hit ratio", HITS, null, (value) => (value === null ? "as seen" : percent(value)), (value) => this.set({ hit: value })),
    };
    this.sliders.replaceChildren(...Object.values(this.inputs).map((each) => each.root), this.reset);
    this.renew();
  }

  set(change_) {
    Object.assign(this.chosen, change_);
    this.reset.disabled = false;
    clearTimeout(this.pause);
    this.pause = setTimeout(() => this.ask(), PAUSE_MS);
  }

  clear() {
    this.chosen = { rate: 1, engines: this.now.engines, batch: 1, hit: null };
    this.inputs.rate.put(1);
    this.inputs.engines.put(this.now.engines);
    this.inputs.batch.put(1);
    this.inputs.hit.put(null);
    this.ask();
    this.reset.disabled = true;
  }

  question() {
    const { rate, engines, batch, hit } = this.chosen;
    return {
      rate_factor: rate,
      ...(engines !== this.now.engines ? { engines } : {}),
      ...(batch !== 1 ? { max_num_seqs: batchOf(this.now.seqs, batch) } : {}),
      ...(hit !== null ? { hit_ratio: hit } : {}),
    };
  }

  async ask() {
    this.asking?.abort();
    const asking = (this.asking = new AbortController());
    this.answer.setAttribute("aria-busy", "true");
    const began = performance.now();
    try {
      const response = await fetch("api/whatif", { method: "POST", headers: { "content-type": "application/json" }, signal: asking.signal,
        body: JSON.stringify({ deployment: this.deployment, question: this.question() }) });
      const found = await response.json();
      if (found.problem) this.words.textContent = `No answer: ${found.problem}.`;
      else this.show(found, performance.now() - began);
    } catch (error) {
      if (error.name === "AbortError") return;
      this.words.textContent = "No answer: the page's server cannot be reached.";
    }
    if (this.asking === asking) this.answer.setAttribute("aria-busy", "false");
  }

  show({ base, changed, as_of_us }, took_ms) {
    const old_s = (this.store.parts.now.newest_us - as_of_us) / 1e6;
    const shown = base.horizons.length - 1;
    this.numbers.replaceChildren(numbers(base.horizons[0], changed.horizons[0], base.horizons[shown], changed.horizons[shown]));
    const curve = (side) => side.curves.find((each) => each.name === "waiting_requests");
    const from = as_of_us / 1e6;
    const times = curve(base).mean.map((_, at) => from + at * curve(base).interval_s);
    this.chart.set({ tables: [[times, curve(base).mean, curve(changed).mean, curve(changed).high]], span: [times[0], times.at(-1)], now: from, marks: [] });
    this.words.textContent = `${changed.replications} futures of ${changed.engines} engine${changed.engines === 1 ? "" : "s"}, answered in ${Math.round(took_ms)} ms`
      + `, from the state at ${clock(as_of_us)}${old_s > 1 ? `, ${age(old_s)} before the newest event` : ""}.`;
  }
}

function batchOf(seqs, factor) {
  return Math.max(1, Math.round((seqs ?? 1) * factor));
}

function slider(label, values, value, text, chosen, disabled = false) {
  const output = h("output", {}, text(value));
  const input = h("input", { type: "range", min: 0, max: values.length - 1, step: 1, value: values.indexOf(value), "aria-label": label, "aria-valuetext": text(value), disabled,
    oninput: () => { tell(); chosen(values[input.value]); } });
  const tell = () => {
    output.textContent = text(values[input.value]);
    input.setAttribute("aria-valuetext", output.textContent);
  };
  return { root: h("label", { class: "slider" }, h("span", {}, label), output, input), put(one) { input.value = values.indexOf(one); tell(); } };
}

/** Of the shortest horizon latencies, of the longest what builds up. */
function numbers(base, changed, baseLong, changedLong) {
  const rows = [];
  const put = (name, was, is, unit, lessIsBetter) => {
    const ratio = was ? is / was - 1 : NaN;
    const kind = Math.abs(ratio) < 0.005 || !Number.isFinite(ratio) ? null : ratio < 0 === lessIsBetter ? "better" : "worse";
    rows.push([name, unit(was), unit(is), h("span", { class: kind }, Number.isFinite(ratio) ? change(ratio) : "–")]);
  };
  for (const [metric, quantile] of [["ttft_s", 0.5], ["ttft_s", 0.95], ["tpot_s", 0.95], ["e2e_s", 0.95]]) {
    const of = (side) => side.latencies.find((each) => each.metric === metric && each.quantile === quantile)?.value_s ?? NaN;
    put(`${quantileName(metric, quantile)}, next ${base.horizon_s} s`, of(base), of(changed), seconds, true);
  }
  const worst = (side) => (side.slo_risks.length ? Math.max(...side.slo_risks.map((each) => each.breach_probability)) : null);
  if (worst(baseLong) !== null) rows.push([`breach risk, next ${baseLong.horizon_s} s`, chance(worst(baseLong)), h("span", { class: worst(changedLong) < worst(baseLong) - 0.005 ? "better" : worst(changedLong) > worst(baseLong) + 0.005 ? "worse" : null }, chance(worst(changedLong))), ""]);
  put(`goodput /s, next ${baseLong.horizon_s} s`, baseLong.goodput_requests_per_s.value, changedLong.goodput_requests_per_s.value, (value) => digits(value), false);
  put("most waiting", baseLong.waiting_peak_requests.value, changedLong.waiting_peak_requests.value, (value) => digits(value), true);
  put("fullest KV", baseLong.kv_peak_ratio.value, changedLong.kv_peak_ratio.value, (value) => percent(value), true);
  return table("What if", ["", "as it is", "what if", "change"], rows, { right: [1, 2, 3] });
}
