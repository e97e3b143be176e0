"""The style sheet of the report: light, dark, narrow and on paper."""

CSS = """
:root {
  color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --ink: #16202c; --soft: #566373;
  --rule: #dde2e8; --real: #3f7fc1; --real-fill: #a9c8e8; --made: #d3541a;
  --plus: #1f6fb8; --minus: #c2410c; --empty: #eef1f4;
  --warn-back: #fff4d6; --warn-rule: #d99a00; --warn-ink: #5b4100;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #0f141a; --card: #18202a; --ink: #e8edf3; --soft: #9fadbd;
    --rule: #2b3643; --real: #6fb0f2; --real-fill: #35608c; --made: #ff9d5c;
    --plus: #4c9eea; --minus: #f0803c; --empty: #212b37;
    --warn-back: #33290e; --warn-rule: #d99a00; --warn-ink: #ffe3a0;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; scroll-behavior: smooth; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans',
    'DejaVu Sans', sans-serif;
}
main { max-width: 1160px; margin: 0 auto; padding: 40px 24px 64px; }
a { color: var(--plus); }
h1 { font-size: clamp(1.6rem, 4vw, 2.2rem); line-height: 1.2;
  margin: 0 0 6px; letter-spacing: -.015em; overflow-wrap: anywhere; }
h2 { font-size: 1.35rem; margin: 52px 0 4px; letter-spacing: -.01em; }
h3 { font-size: 1rem; margin: 0; overflow-wrap: anywhere; }
p { margin: 8px 0; max-width: 74ch; }
.lead, .note { color: var(--soft); }
.note { font-size: .875rem; }
nav { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 18px 0 0;
  font-size: .925rem; }
.warning { margin: 24px 0; padding: 14px 18px; border-radius: 10px;
  background: var(--warn-back); color: var(--warn-ink);
  border-left: 6px solid var(--warn-rule); }
.warning strong { display: block; }
.warning p { margin: 4px 0 0; max-width: none; }
.tiles { display: grid; gap: 14px; margin: 24px 0 0;
  grid-template-columns: repeat(auto-fit, minmax(200px, 1fr)); }
.tile, .card { background: var(--card); border: 1px solid var(--rule);
  border-radius: 12px; }
.tile { padding: 14px 16px 12px; }
.tile dt { color: var(--soft); font-size: .85rem; }
.tile dd { margin: 0; }
.tile .value { font-size: 1.7rem; line-height: 1.3; font-weight: 650;
  letter-spacing: -.02em; font-variant-numeric: tabular-nums; }
.tile .hint { font-size: .83rem; color: var(--soft); }
dl.tiles { padding: 0; }
.grid { display: grid; gap: 14px; margin-top: 16px;
  grid-template-columns: repeat(auto-fill, minmax(262px, 1fr)); }
.matrices { display: grid; gap: 14px; margin-top: 16px;
  grid-template-columns: repeat(auto-fit, minmax(320px, 1fr)); }
.matrices.wide { grid-template-columns: repeat(auto-fit, minmax(520px, 1fr)); }
@media (max-width: 600px) {
  .matrices, .matrices.wide { grid-template-columns: 1fr; }
  main { padding: 24px 16px 48px; }
}
.card { padding: 12px 14px; min-width: 0; break-inside: avoid; margin: 0; }
.card header { display: flex; flex-wrap: wrap; align-items: baseline;
  justify-content: space-between; gap: 0 10px; }
.grid .card { display: flex; flex-direction: column;
  justify-content: space-between; }
.card figcaption { font-weight: 600; margin-bottom: 6px; }
.badge { font-size: .8rem; color: var(--soft); white-space: nowrap;
  font-variant-numeric: tabular-nums; }
.badge.far { color: var(--made); font-weight: 650; }
svg { display: block; width: 100%; height: auto; font-family: inherit; }
svg.matrix { max-width: 860px; margin: 0 auto; }
svg.dumbbell { width: 160px; height: 22px; }
svg .tick { fill: var(--soft); font-size: 11px; }
svg .name { fill: var(--soft); }
svg .axis { stroke: var(--rule); stroke-width: 1.2; }
svg rect.real { fill: var(--real-fill); }
svg rect.made { fill: var(--made); }
svg circle.real { fill: var(--real); }
svg circle.made { fill: var(--made); }
svg .gap { stroke: var(--soft); stroke-width: 2; stroke-opacity: .6; }
svg .line { fill: none; stroke: var(--made); stroke-width: 1.9;
  stroke-linejoin: round; }
svg .hover { fill: transparent; }
svg g:hover > .hover { fill: var(--ink); fill-opacity: .07; }
svg .diagonal { fill: var(--empty); }
svg .cell.plus { fill: var(--plus); }
svg .cell.minus { fill: var(--minus); }
svg .number { fill: var(--ink); font-size: 10px;
  font-variant-numeric: tabular-nums; }
svg .number.strong { fill: #fff; }
@media (prefers-color-scheme: dark) { svg .number.strong { fill: #08121d; } }
.legend { display: flex; flex-wrap: wrap; gap: 4px 20px; font-size: .9rem;
  color: var(--soft); margin: 10px 0 0; padding: 0; list-style: none; }
.key { display: inline-block; vertical-align: -1px; margin-right: 7px; }
.key.real { width: 16px; height: 12px; background: var(--real-fill);
  border-radius: 2px; }
.key.made { width: 16px; height: 0; border-top: 3px solid var(--made);
  vertical-align: 4px; border-radius: 2px; }
.key.dot { width: 11px; height: 11px; border-radius: 50%; border: 0; }
.key.dot.made { background: var(--made); vertical-align: -1px; }
.key.dot.real { background: var(--real); }
.key.plus { width: 12px; height: 12px; background: var(--plus); }
.key.minus { width: 12px; height: 12px; background: var(--minus); }
.scroll { overflow-x: auto; margin-top: 16px; padding: 4px 14px; }
table { border-collapse: collapse; width: 100%; font-size: .925rem;
  font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--soft); padding: 8px 0;
  font-size: .875rem; }
th, td { padding: 7px 12px 7px 0; text-align: right;
  border-top: 1px solid var(--rule); white-space: nowrap; }
thead th { border-top: 0; color: var(--soft); font-weight: 600;
  vertical-align: bottom; }
thead th[colspan] { text-align: center; padding-bottom: 0; }
thead tr.below th { border-top: 0; text-align: right; font-weight: 500;
  padding-top: 0; }
th[scope=row], thead tr:first-child th:first-child {
  text-align: left; font-weight: 500; white-space: normal;
  overflow-wrap: anywhere; min-width: 9em; }
td svg { display: inline-block; }
tr.mean th, tr.mean td { font-weight: 700; }
tr.chance th, tr.chance td { color: var(--soft); }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: 0;
  font: .86rem/1.6 ui-monospace, 'Cascadia Mono', Menlo, Consolas,
    'DejaVu Sans Mono', monospace; }
pre.card { padding: 16px 18px; margin-top: 16px; }
footer { margin-top: 56px; padding-top: 14px; color: var(--soft);
  border-top: 1px solid var(--rule); font-size: .875rem; }
@media print {
  :root { color-scheme: light; --page: #fff; --card: #fff; --ink: #000;
    --soft: #444; --rule: #ccc; --real: #3f7fc1; --real-fill: #a9c8e8;
    --made: #c2410c; --plus: #1f6fb8; --minus: #c2410c;
    --warn-back: #fff; --warn-ink: #000; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  body { font-size: 11pt; }
  main { max-width: none; padding: 0; }
  nav { display: none; }
  h2 { break-after: avoid; }
  .tile, tr { break-inside: avoid; }
  .warning { border: 1px solid #000; border-left-width: 6px; }
  .grid { grid-template-columns: repeat(3, 1fr); }
  .matrices { grid-template-columns: repeat(2, 1fr); }
  .matrices.wide { grid-template-columns: 1fr; }
  svg .number.strong { fill: #fff; }
}
"""
