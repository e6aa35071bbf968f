"""The style and the script of an incident page, as text. Holds no content.

The script only moves a cursor and shows values that the page holds already; without it the page says the same.
"""

STYLE = """
:root{color-scheme:light dark;--bg:#f6f7f9;--card:#fff;--ink:#1b2430;--soft:#5b6775;--line:#e2e6eb;--grid:#eceff3;
--observed:#14213d;--forecast:#2f6fde;--interval:#2f6fde;--second:#8f9aa8;--ceiling:#b08a2e;--risk0:#c2410c;
--risk1:#7c3aed;--risk2:#0f766e;--known:#1a7f4b;--broke:#d1242f;--trailing:#d97706;--recovered:#6b7a8c;--drift:#7c3aed;
--advisory:#c3cad3;--guarded:#7fb0f5;--full:#2fa36b;--strong:#eef4ff}
@media (prefers-color-scheme:dark){:root{--bg:#0f141b;--card:#171e28;--ink:#e6ebf2;--soft:#9aa7b6;--line:#2a3442;
--grid:#222b37;--observed:#f2f5f9;--forecast:#6ea8ff;--interval:#6ea8ff;--second:#7d8998;--ceiling:#d9b65a;
--risk0:#fb923c;--risk1:#b794f6;--risk2:#4fd1c5;--known:#4ad08a;--broke:#ff6b6b;--trailing:#fbbf4a;--recovered:#93a1b2;
--drift:#b794f6;--advisory:#4a5563;--guarded:#4f86d8;--full:#2f9d68;--strong:#1d2b42}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1120px;margin:0 auto;padding:28px 20px 60px}
h1{font-size:25px;line-height:1.25;margin:0 0 4px;letter-spacing:-.01em}
h2{font-size:17px;margin:34px 0 8px}
p{margin:6px 0;max-width:82ch}
.sub,.note,.intro{color:var(--soft)}.note,.intro{font-size:13.5px}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(185px,1fr));gap:12px;margin:22px 0 8px}
.fact{background:var(--card);border:1px solid var(--line);border-top:3px solid var(--second);border-radius:8px;
padding:12px 14px}
.fact.broke{border-top-color:var(--broke)}.fact.known{border-top-color:var(--known)}
.fact.trailing{border-top-color:var(--trailing)}
.fact b{display:block;font-size:22px;line-height:1.3;letter-spacing:-.01em}.fact span{color:var(--soft);font-size:13px}
figure{background:var(--card);border:1px solid var(--line);border-radius:8px;margin:12px 0;padding:12px 14px 6px}
figcaption{display:flex;flex-wrap:wrap;gap:4px 16px;align-items:baseline;font-weight:600;font-size:14px}
.legend{display:flex;flex-wrap:wrap;gap:4px 14px;font-weight:400;color:var(--soft);font-size:12.5px}
.legend i{display:inline-block;width:16px;height:0;border-top:3px solid;vertical-align:middle;margin-right:5px}
.legend i.box{height:10px;border:0;opacity:.28}
.read{margin-left:auto;font-weight:400;font-size:12.5px;color:var(--soft);font-variant-numeric:tabular-nums;
min-height:1.5em}
svg{display:block;width:100%;height:auto;margin-top:4px}
svg text{font:12px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;fill:var(--soft)}
.grid{stroke:var(--grid)}.line{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
.line.observed{stroke:var(--observed)}.line.forecast{stroke:var(--forecast);stroke-dasharray:6 4}
.line.second{stroke:var(--second);stroke-width:1.3}.line.ceiling{stroke:var(--ceiling);stroke-width:1.5}
.line.risk0{stroke:var(--risk0)}.line.risk1{stroke:var(--risk1)}.line.risk2{stroke:var(--risk2)}
.band{fill:var(--interval);opacity:.17;stroke:none}
.limit{stroke:var(--broke);stroke-dasharray:3 4;stroke-width:1.4}svg .limit-text{fill:var(--broke)}
.mark{stroke-width:1.6}.mark.known{stroke:var(--known)}.mark.broke{stroke:var(--broke)}
.mark.trailing{stroke:var(--trailing)}.mark.recovered{stroke:var(--recovered);stroke-dasharray:5 4}
.mark.drift{stroke:var(--drift);stroke-dasharray:2 3}
.cursor{stroke:var(--soft);stroke-width:1;visibility:hidden}
.advisory{fill:var(--advisory)}.guarded{fill:var(--guarded)}.full{fill:var(--full)}svg text.on{fill:var(--ink)}
.c-observed{color:var(--observed)}.c-forecast{color:var(--forecast)}.c-interval{background:var(--interval)}
.c-second{color:var(--second)}.c-ceiling{color:var(--ceiling)}.c-risk0{color:var(--risk0)}.c-risk1{color:var(--risk1)}
.c-risk2{color:var(--risk2)}.c-known{color:var(--known)}.c-broke{color:var(--broke)}.c-trailing{color:var(--trailing)}
.c-recovered{color:var(--recovered)}.c-drift{color:var(--drift)}
.wide{overflow-x:auto;background:var(--card);border:1px solid var(--line);border-radius:8px;margin:8px 0}
table{border-collapse:collapse;width:100%;font-size:13.5px;font-variant-numeric:tabular-nums}
th,td{padding:7px 12px;text-align:left;border-top:1px solid var(--line);vertical-align:top}
th{color:var(--soft);font-weight:600;border-top:0;white-space:nowrap}tr.strong td{background:var(--strong)}
code,pre{font:12.5px/1.55 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
pre{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:12px 14px;overflow-x:auto;
margin:8px 0}
@media print{body{background:#fff}figure,.wide,.fact{break-inside:avoid}}
"""

SCRIPT = """
(() => {
  const data = JSON.parse(document.getElementById('series').textContent);
  const charts = [...document.querySelectorAll('svg.chart')];
  const two = (n) => String(n).padStart(2, '0');
  const nearest = (xs, x) => {
    let low = 0, high = xs.length - 1;
    if (high < 0) return -1;
    while (low < high) { const mid = (low + high) >> 1; if (xs[mid] < x) low = mid + 1; else high = mid; }
    return low > 0 && x - xs[low - 1] < xs[low] - x ? low - 1 : low;
  };
  const show = (at) => {
    const day = Math.round(data.start + at) % 86400;
    const time = two(Math.floor(day / 3600)) + ':' + two(Math.floor(day / 60) % 60) + ':' + two(day % 60);
    for (const svg of charts) {
      const x = data.left + (data.width - data.left - data.right) * at / data.span;
      const cursor = svg.querySelector('.cursor');
      cursor.setAttribute('x1', x); cursor.setAttribute('x2', x); cursor.style.visibility = 'visible';
      const words = [time];
      for (const line of data.lines[svg.dataset.key] || []) {
        const i = nearest(line.x, at);
        const near = i >= 0 && Math.abs(line.x[i] - at) <= data.reach && line.y[i] !== null;
        if (near) words.push(line.n + ' ' + line.y[i]);
      }
      svg.parentNode.querySelector('.read').textContent = words.join('   ');
    }
  };
  const hide = () => {
    for (const svg of charts) {
      svg.querySelector('.cursor').style.visibility = 'hidden';
      svg.parentNode.querySelector('.read').textContent = '';
    }
  };
  for (const svg of charts) {
    svg.addEventListener('pointermove', (event) => {
      const box = svg.getBoundingClientRect();
      const x = (event.clientX - box.left) * data.width / box.width;
      const share = (x - data.left) / (data.width - data.left - data.right);
      if (share >= 0 && share <= 1) show(share * data.span); else hide();
    });
    svg.addEventListener('pointerleave', hide);
  }
})();
"""
