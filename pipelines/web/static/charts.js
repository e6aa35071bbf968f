// Charts over event time, all with the same span, cursor and keys. Knows no meaning of what it draws.

/* global uPlot */
import { h } from "./dom.js";
import { clock } from "./format.js";

const SYNC = uPlot.sync("time");
const KEY_STEP = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 };

/** A colour of the page's tokens, as it is in this scheme. */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/**
 * A chart. `lines`: [{label, colour, width, dash, points, band: index of the lower line, fill}], `key`: [[kind, colour, text]], `read(values)`: text, `y`: {log, unit, from, to}.
 * `set({tables, span, now, marks, limits, summary})`: tables are [xs, ...ys] of which each line is one column, in order.
 */
export class TimeChart {
  constructor(label, { lines, y, key, read, height = 220 }) {
    this.read = read;
    this.readout = h("output", {});
    this.key = h("figcaption", { class: "key" },
      key.map(([kind, shade, text]) => h("span", {}, h("i", { class: kind, style: { [kind === "area" || kind === "dots" ? "background" : "border-color"]: `var(--${shade})` } }), text)), this.readout);
    this.lines = lines;
    this.y = y;
    this.height = height;
    this.label = label;
    this.marks = [];
    this.frame = h("figure", { class: "chart", tabindex: 0, role: "group", "aria-roledescription": "chart", "aria-label": label,
      onkeydown: (event) => this.onKey(event) });
    this.nothing = h("p", { class: "empty" }, "Nothing to draw yet.");
    this.frame.append(this.nothing, this.key);
    this.key.hidden = true;
    this.sizes = new ResizeObserver(() => this.resize());
    this.sizes.observe(this.frame);
    this.scheme = matchMedia("(prefers-color-scheme: dark)");
    this.onScheme = () => this.rebuild();
    this.scheme.addEventListener("change", this.onScheme);
  }

  destroy() {
    this.sizes.disconnect();
    this.scheme.removeEventListener("change", this.onScheme);
    this.drop();
  }

  drop() {
    if (!this.plot) return;
    SYNC.unsub(this.plot);
    this.plot.destroy();
    this.plot = null;
  }

  rebuild() {
    this.drop();
    if (this.told) this.set(this.told);
  }

  set(told) {
    this.told = told;
    const data = uPlot.join(told.tables);
    const empty = data[0].length === 0;
    this.nothing.hidden = !empty;
    this.nothing.textContent = told.nothing ?? "Nothing to draw yet.";
    this.key.hidden = empty;
    if (empty) { this.drop(); return; }
    if (!this.plot) this.plot = new uPlot(this.options(), data, (plot, init) => { this.frame.insertBefore(plot.root, this.key); init(); });
    this.plot.setData(data, false);
    this.plot.setScale("x", { min: told.span[0], max: told.span[1] });
    if (told.summary) this.frame.setAttribute("aria-label", `${this.label}. ${told.summary}`);
  }

  resize() {
    const width = this.frame.clientWidth;
    if (this.plot && width > 0 && width !== this.plot.width) this.plot.setSize({ width, height: this.height });
  }

  /** Arrow keys move the cursor from point to point, as the mouse does. */
  onKey(event) {
    const step = KEY_STEP[event.key];
    const plot = this.plot;
    if (!plot || (step === undefined && event.key !== "Escape")) return;
    event.preventDefault();
    if (event.key === "Escape") { plot.setCursor({ left: -10, top: -10 }); return; }
    const xs = plot.data[0];
    const from = plot.cursor.idx ?? plot.valToIdx(this.told.now);
    const idx = Math.min(Math.max(from + step, 0), xs.length - 1);
    plot.setCursor({ left: plot.valToPos(xs[idx], "x"), top: this.height / 3 });
  }

  options() {
    const axis = { stroke: colour("muted"), grid: { stroke: colour("grid"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
    return {
      width: Math.max(this.frame.clientWidth, 200),
      height: this.height,
      padding: [12, 10, 0, 0],
      cursor: { sync: { key: SYNC.key, setSeries: false }, drag: { x: false, y: false }, points: { size: 7 } },
      legend: { show: false },
      scales: { x: { time: true, auto: false }, y: this.scaleY() },
      axes: [
        { ...axis, space: 70, size: 34, values: (_, ticks) => ticks.map((t) => clock(t * 1e6).slice(0, this.told.span[1] - this.told.span[0] > 600 ? 5 : 8)) },
        { ...axis, size: 62, space: 26, values: (_, ticks) => ticks.map((t) => (t === null ? null : this.y.unit(t))), ...(this.y.log ? { splits: (plot, _, least, most) => decades(least, most), filter: (plot, splits) => splits } : {}) },
      ],
      series: [{}, ...this.lines.map((line) => this.series(line))],
      bands: this.lines.flatMap((line, at) => (line.band === undefined ? [] : [{ series: [at + 1, line.band + 1], fill: colour(line.fill), dir: -1 }])),
      hooks: { setCursor: [(plot) => this.tell(plot)], drawClear: [(plot) => this.drawFuture(plot)], draw: [(plot) => this.drawMarks(plot)] },
    };
  }

  /** The numbers under the cursor, in words. */
  tell(plot) {
    const { idx } = plot.cursor;
    const text = idx === null || idx === undefined ? "" : `${clock(plot.data[0][idx] * 1e6)}  ${this.read(plot.data.slice(1).map((column) => column[idx] ?? null))}`;
    if (this.readout.textContent !== text) this.readout.textContent = text;
  }

  scaleY() {
    const { log, from, to } = this.y;
    return {
      distr: log ? 3 : 1,
      range: (plot, low, high) => {
        const fixed = (this.told.limits ?? []).map((limit) => limit.at);
        const known = [low, high, ...fixed].filter((value) => value !== null && Number.isFinite(value) && (!log || value > 0));
        if (!known.length) return log ? [0.01, 1] : [from ?? 0, to ?? 1];
        const [least, most] = [Math.min(...known), Math.max(...known)];
        if (log) return [least / 1.4, Math.max(most, least * 2) * 1.4];
        return [from ?? Math.min(0, least), to ?? (most > 0 ? most * 1.12 : 1)];
      },
    };
  }

  series(line) {
    const stroke = line.colour ? colour(line.colour) : "transparent";
    return {
      label: line.label,
      stroke,
      width: line.width ?? 0,
      dash: line.dash,
      spanGaps: line.span ?? false,
      points: line.points ? { show: true, size: line.points, fill: stroke, stroke, width: 0 } : { show: false },
    };
  }

  /** What lies ahead of now is a shade darker. */
  drawFuture(plot) {
    const { left, top, width, height } = plot.bbox;
    const x = Math.max(plot.valToPos(this.told.now, "x", true), left);
    if (x >= left + width) return;
    plot.ctx.save();
    plot.ctx.fillStyle = colour("future");
    plot.ctx.fillRect(x, top, left + width - x, height);
    plot.ctx.restore();
  }

  /** Level lines across the chart, such as a target. */
  drawLimits(plot, px) {
    const { left, top, width, height } = plot.bbox;
    const { ctx } = plot;
    ctx.textBaseline = "bottom";
    for (const limit of this.told.limits ?? []) {
      const y = Math.round(plot.valToPos(limit.at, "y", true)) + 0.5;
      if (y < top || y > top + height) continue;
      ctx.strokeStyle = ctx.fillStyle = colour(limit.colour);
      ctx.lineWidth = 1.5 * px;
      ctx.setLineDash([6 * px, 4 * px]);
      ctx.beginPath();
      ctx.moveTo(left, y);
      ctx.lineTo(left + width, y);
      ctx.stroke();
      ctx.fillText(limit.text, left + width - ctx.measureText(limit.text).width - 4 * px, y - 2 * px);
    }
  }

  drawMarks(plot) {
    const { left, top, width, height } = plot.bbox;
    const { ctx } = plot;
    const px = devicePixelRatio || 1;
    ctx.save();
    ctx.font = `${11 * px}px system-ui, sans-serif`;
    ctx.textAlign = "left";
    this.drawLimits(plot, px);
    ctx.textBaseline = "top";
    let free = -Infinity;
    const marks = [...this.told.marks, ...(this.told.now > this.told.span[0] ? [{ at: this.told.now, colour: "faint", text: "now", dash: [2, 3] }] : [])];
    for (const mark of marks.sort((a, b) => a.at - b.at)) {
      const x = Math.round(plot.valToPos(mark.at, "x", true)) + 0.5;
      if (x < left || x > left + width) continue;
      ctx.strokeStyle = ctx.fillStyle = colour(mark.colour);
      ctx.lineWidth = px;
      ctx.setLineDash((mark.dash ?? []).map((length) => length * px));
      ctx.beginPath();
      ctx.moveTo(x, top);
      ctx.lineTo(x, top + height);
      ctx.stroke();
      const wide = ctx.measureText(mark.text).width;
      const place = x + wide + 8 * px > left + width ? x - wide - 4 * px : x + 4 * px;
      if (mark.text && place > free) {
        ctx.fillText(mark.text, place, top + 2 * px);
        free = place + wide + 6 * px;
      }
    }
    ctx.restore();
  }
}

/**
 * Places of a logarithmic axis: 1, 2 and 5 of each decade, 1 alone where there are many decades. The library's own go on
 * without end where an axis does not begin at a power of ten.
 */
export function decades(least, most) {
  if (!(least > 0 && most >= least && Number.isFinite(most))) return [];
  const [first, last] = [Math.floor(Math.log10(least)), Math.ceil(Math.log10(most))];
  const steps = Math.log10(most / least) > 2.6 ? [1] : [1, 2, 5];
  const all = Array.from({ length: last - first + 1 }, (_, at) => steps.map((step) => Number(`${step}e${first + at}`))).flat();
  return all.filter((value) => value >= least && value <= most);
}
