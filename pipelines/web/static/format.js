// Numbers and times as people read them.

const MISSING = "–";

/** Seconds, three digits: `0.012` is "12 ms", `11.2` is "11.2 s". What takes days stands for requests that do not end. */
export function seconds(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return MISSING;
  if (value >= 86400) return "unfinished";
  if (value < 0.0995) return `${digits(value * 1000, 2)} ms`;
  if (value >= 600) return `${Math.round(value / 60)} min`;
  return `${digits(value, value < 1 ? 2 : 3)} s`;
}

/** At most so many significant digits, without an exponent. */
export function digits(value, most = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return MISSING;
  if (value === 0) return "0";
  const places = Math.max(0, most - 1 - Math.floor(Math.log10(Math.abs(value))));
  return value.toLocaleString("en", { maximumFractionDigits: Math.min(places, 6) });
}

/** A ratio as per cent: 0.034 is "3.4 %"; what is near 0 or 1 is not called certain. */
export function percent(value, most = 2) {
  if (value === null || value === undefined || !Number.isFinite(value)) return MISSING;
  if (value > 0 && value < 0.01) return "<1 %";
  if (value > 0.99 && value < 1) return ">99 %";
  return `${digits(value * 100, most)} %`;
}

/** A probability as per cent, whole. */
export function chance(value) {
  if (value === null || value === undefined) return MISSING;
  if (value < 0.01) return "<1 %";
  if (value > 0.99) return ">99 %";
  return `${Math.round(value * 100)} %`;
}

/** A change in per cent, with its sign. */
export function change(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return MISSING;
  const shown = Math.abs(value) < 0.0005 ? 0 : value * 100;
  const size = Math.abs(shown);
  const text = size >= 10 && !(size > 99 && size < 100) ? size.toFixed(0) : size.toFixed(1);
  return shown === 0 ? "0 %" : `${shown < 0 ? "−" : "+"}${text} %`;
}

/** An estimate with its interval, each by `unit`. */
export function interval(low, high, unit = digits) {
  return `${unit(low)} to ${unit(high)}`;
}

/** How long ago, in words. */
export function age(value_s) {
  if (!Number.isFinite(value_s)) return MISSING;
  const whole = Math.max(0, value_s);
  if (whole < 100) return `${Math.round(whole)} s`;
  if (whole < 5400) return `${Math.round(whole / 60)} min`;
  return whole < 172800 ? `${digits(whole / 3600, 2)} h` : `${Math.round(whole / 86400)} days`;
}

/** Event time, microseconds, as the clock of this browser's place shows it. */
export function clock(at_us) {
  return at_us ? new Date(at_us / 1000).toLocaleTimeString("en-GB") : MISSING;
}

export const METRIC_NAMES = { ttft_s: "TTFT", tpot_s: "TPOT", e2e_s: "E2E" };

/** "TTFT P95". */
export function quantileName(metric, quantile) {
  return `${METRIC_NAMES[metric] ?? metric} P${digits(quantile * 100)}`;
}

/** "step_fixed" is "step fixed". */
export function words(name) {
  return String(name).replaceAll("_", " ");
}
