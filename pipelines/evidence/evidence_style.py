"""The style sheet of the evidence page, light and dark. Holds no content."""

STYLE = """
:root{--bg:#fbfaf8;--card:#fff;--ink:#1d1f23;--quiet:#667085;--line:#e4e2dd;--base:#98a2b3;--cand:#0e7490;
--sim:#b45309;--noise:#eceae4;--good:#047857;--open:#b45309}
@media (prefers-color-scheme:dark){:root{--bg:#15171a;--card:#1d2024;--ink:#e8e6e1;--quiet:#98a2b3;--line:#33373d;
--base:#667085;--cand:#38bdf8;--sim:#fbbf24;--noise:#262a30;--good:#34d399;--open:#fbbf24}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1040px;margin:0 auto;padding:28px 20px 60px}
h1{font-size:24px;line-height:1.25;margin:0 0 4px;text-wrap:balance}
h2{font-size:17px;margin:28px 0 8px}
h3{font-size:14px;margin:18px 0 6px;color:var(--quiet);font-weight:600}
p{margin:6px 0}ul{margin:6px 0;padding-left:20px}li{margin:2px 0}
.sides,.quiet{color:var(--quiet)}
.card{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:16px 18px;margin:12px 0}
.card h2{margin-top:0}
.grade{display:grid;grid-template-columns:auto 1fr;gap:18px;align-items:start}
.letter{font-size:44px;font-weight:700;line-height:1;width:72px;height:72px;border-radius:12px;display:grid;
place-items:center;color:#fff;background:var(--quiet)}
.gA,.gB{background:#047857}.gC{background:#b45309}.gD{background:#b42318}
.finding{font-size:16px;font-weight:600}
.pair{display:grid;grid-template-columns:1fr 1fr;gap:12px}.pair .card{margin:0}
.advice{border-left:5px solid var(--open)}.advice.good{border-left-color:var(--good)}
.scroll{overflow-x:auto;border:1px solid var(--line);border-radius:8px;background:var(--card);margin:8px 0}
table{border-collapse:collapse;width:100%;font-size:13px}
th,td{padding:6px 10px;text-align:left;vertical-align:top;border-bottom:1px solid var(--line)}
tr:last-child td{border-bottom:0}
th{color:var(--quiet);font-weight:600;white-space:nowrap}
.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
figure{margin:8px 0;background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px;overflow-x:auto}
svg{display:block;width:100%;min-width:620px;height:auto}
svg text{font:12px system-ui,sans-serif;fill:var(--ink)}
svg .label{text-anchor:end}svg .tick{text-anchor:middle;fill:var(--quiet)}svg .value{fill:var(--quiet);font-size:11px}
svg .grid{stroke:var(--line)}svg .zero{stroke:var(--quiet)}svg .noise{fill:var(--noise)}
svg line.measured{stroke:var(--cand);stroke-width:2}svg circle.measured{fill:var(--cand)}
svg line.simulated{stroke:var(--sim);stroke-width:2}svg rect.simulated{fill:var(--sim)}
svg rect.base{fill:var(--base)}svg rect.candidate{fill:var(--cand)}
.legend{color:var(--quiet);font-size:13px}
.key{display:inline-block;width:11px;height:11px;border-radius:2px;margin:0 5px 0 10px;vertical-align:-1px}
.key:first-child{margin-left:0}
.key.base{background:var(--base)}.key.candidate,.key.measured{background:var(--cand)}.key.simulated{background:var(--sim)}
details{margin-top:20px;color:var(--quiet)}summary{cursor:pointer}
@media (max-width:720px){.pair,.grade{grid-template-columns:1fr}}
@media print{body{background:#fff}.card,figure,.scroll{break-inside:avoid}}
"""
