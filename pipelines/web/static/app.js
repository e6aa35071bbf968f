// Which view is shown, and how fresh it is. Views draw themselves.

import { h } from "./dom.js";
import { age } from "./format.js";
import { Store } from "./store.js";
import { FleetView } from "./fleet.js";
import { DeploymentView } from "./deployment.js";

const main = document.getElementById("main");
const crumbs = document.getElementById("crumbs");
const link = document.getElementById("link");
const banner = document.getElementById("banner");
let store = null;
let view = null;
let drawn = false;
let waiting = new Set();

function deploymentOf(hash) {
  const found = /^#\/d\/(.+)$/.exec(hash);
  return found ? decodeURIComponent(found[1]) : "";
}

function show() {
  store?.close();
  view?.destroy?.();
  const deployment = deploymentOf(location.hash);
  waiting = new Set();
  store = new Store(deployment, (names) => later(names));
  view = deployment ? new DeploymentView(deployment, store) : new FleetView(store);
  document.title = deployment ? `${deployment} – Twincast` : "Twincast";
  const here = deployment ? [h("li", {}, h("a", { href: "#/" }, "Fleet")), h("li", { "aria-current": "page" }, deployment)]
    : [h("li", { "aria-current": "page" }, "Fleet")];
  crumbs.replaceChildren(...here);
  main.replaceChildren(view.root);
  tick();
}

/** Draw what changed, once per frame however many events came. */
function later(names) {
  for (const name of names) waiting.add(name);
  if (drawn) return;
  drawn = true;
  requestAnimationFrame(() => {
    drawn = false;
    const changed = waiting;
    waiting = new Set();
    view.update(changed);
    tick();
  });
}

/** Ages go on by themselves, above all when nothing is heard any more. */
function tick() {
  const { state, why } = store.link();
  const { age_s, stale } = view.freshness();
  const shown = state === "live" && stale ? "stale" : state;
  link.dataset.state = shown;
  const text = state === "live" ? `${why}${Number.isFinite(age_s) ? ` · forecast ${age(age_s)} old` : ""}` : why;
  if (link.textContent !== text) link.textContent = text;
  banner.hidden = !stale;
  banner.dataset.state = shown;
  const warning = stale ? `Stale: ${stale}. What is shown below was true then and may not be now.` : "";
  if (banner.textContent !== warning) banner.textContent = warning;
  view.tick();
}

addEventListener("hashchange", () => { show(); main.focus({ preventScroll: true }); scrollTo(0, 0); });
setInterval(tick, 1000);
show();
