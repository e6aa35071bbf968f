// What the server has told so far, kept together from events; and how old it is. Draws nothing.

import { age } from "./format.js";

const SILENT_MS = 4000;
const RETRY_MS = 1000;
const KEYED = ["bands", "observed", "engine_rows"];

/** A connection for one deployment ("" for the fleet alone). Calls `changed(names)` with the parts that changed. */
export class Store {
  constructor(deployment, changed) {
    this.deployment = deployment;
    this.changed = changed;
    this.fleet = null;
    this.parts = {};
    this.status = null;
    this.ahead_us = 0;
    this.heard = 0;
    this.opened = Date.now();
    this.closed = false;
    this.open();
  }

  open() {
    const query = this.deployment ? `?deployment=${encodeURIComponent(this.deployment)}` : "";
    this.source = new EventSource(`api/events${query}`);
    const on = (name, act) => this.source.addEventListener(name, (event) => {
      this.heard = Date.now();
      act(JSON.parse(event.data));
    });
    on("status", (status) => this.onStatus(status));
    on("fleet", (fleet) => { this.fleet = fleet; this.changed(["fleet"]); });
    on("parts", ({ parts }) => this.onParts(parts));
    this.source.onopen = () => { this.parts = {}; };
    this.source.onerror = () => this.onError();
  }

  /** A browser gives up for good on some errors; this does not. */
  onError() {
    if (this.source.readyState !== EventSource.CLOSED || this.closed) return;
    setTimeout(() => { if (!this.closed) this.open(); }, RETRY_MS);
  }

  onStatus(status) {
    this.status = status;
    this.ahead_us = status.now_us - Date.now() * 1000;
    this.changed(["status"]);
  }

  onParts(parts) {
    for (const name of Object.keys(parts)) {
      this.parts[name] = KEYED.includes(name) ? merged(this.parts[name], parts[name]) : parts[name];
    }
    this.changed(Object.keys(parts));
  }

  close() {
    this.closed = true;
    this.source.close();
  }

  /** The server's clock, microseconds. */
  now_us() {
    return Date.now() * 1000 + this.ahead_us;
  }

  /** `{state, why}` of the connection: live, or down with the reason in words. */
  link() {
    const silent_ms = Date.now() - (this.heard || this.opened);
    if (!this.heard && silent_ms < SILENT_MS) return { state: "wait", why: "connecting" };
    if (silent_ms >= SILENT_MS) return { state: "down", why: `no word from the page's server for ${age(silent_ms / 1000)}` };
    const { up, since_us, detail, where } = this.status.link;
    if (up) return { state: "live", why: where };
    const since = since_us ? ` for ${age((this.now_us() - since_us) / 1e6)}` : "";
    return { state: "down", why: `${where} does not answer${since}${detail ? ` (${detail})` : ""}` };
  }

  /** Why times (of a deployment) are stale, empty where they are fresh; and how old the forecast is, seconds. */
  freshness(times) {
    const link = this.link();
    if (!times?.made_us) return { age_s: NaN, stale: link.state === "down" ? link.why : "" };
    const age_s = Math.max(0, (this.now_us() - times.made_us) / 1e6);
    const valid_s = (times.expires_us - times.as_of_us) / 1e6;
    if (link.state === "down") return { age_s, stale: link.why };
    if (times.newest_us > times.expires_us) {
      return { age_s, stale: `no new forecast though events went on for ${age((times.newest_us - times.as_of_us) / 1e6)}` };
    }
    return { age_s, stale: age_s > valid_s ? `the newest forecast is ${age(age_s)} old` : "" };
  }
}

/** Rows keyed by their first column, the changed ones put in. */
function merged(before, { rows, ...rest }) {
  const byTime = before?.byTime ?? new Map();
  for (const row of rows) byTime.set(row[0], row);
  const sorted = [...byTime.keys()].sort((a, b) => a - b);
  while (sorted.length > 2000) byTime.delete(sorted.shift());
  return { ...rest, byTime, rows: sorted.map((at) => byTime.get(at)) };
}
