// What a forecast may be used for, why not more, and where it comes from.

import { h, panel } from "../dom.js";
import { clock } from "../format.js";

const MAY = {
  advisory: "Advice only: nothing may be executed on it.",
  guarded: "What adds capacity and can be taken back may be executed on it.",
  full: "All proposals may be executed on it.",
};
const LEVELS = { S0: "ends of requests", S1: "ends of requests and engine counts", S2: "arrivals and counts per step", S3: "arrivals and per-request step rows" };

export class Trust {
  constructor() {
    this.uses = ["forecast"];
    this.panel = panel("Authority and credibility", {});
    this.roots = [this.panel.root];
  }

  update({ forecast }) {
    if (!forecast) {
      this.panel.body.replaceChildren(h("p", { class: "empty small" }, "No forecast yet."));
      return;
    }
    const { credibility, lineage } = forecast;
    const fact = (name, ...value) => [h("dt", {}, name), h("dd", {}, ...value)];
    this.panel.body.replaceChildren(
      h("p", {}, h("span", { class: `badge ${forecast.authority}` }, forecast.authority), ` ${MAY[forecast.authority]} `, "Credibility is ",
        h("span", { class: `badge ${credibility.level}` }, credibility.level), credibility.reasons.length ? ", because:" : "."),
      h("ul", { class: "reasons" }, credibility.reasons.map((reason) => h("li", {}, reason))),
      h("dl", { class: "facts" },
        fact("as of", `${clock(forecast.as_of_us)}, ${forecast.phase}, not to be used after ${clock(forecast.expires_us)}`),
        fact("learned from", `${forecast.input_level}: ${LEVELS[forecast.input_level]}; ${lineage.steps_learned.toLocaleString("en")} steps`),
        fact("simulated", `${lineage.replications} futures by the ${lineage.engine || "–"} engine, seed ${lineage.seed}`),
        fact("lineage", h("span", { class: "mono" }, `twincast ${lineage.twincast_version} · settings ${lineage.settings_hash} · costs ${lineage.costs_hash}`))));
  }
}
