"""The style sheet of the HTML report: narrow or wide, light or dark as the reader's system."""

from __future__ import annotations

__all__ = ["STYLE"]

STYLE = """
:root {
  color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --line: #dfe3e8; --text: #1b2430; --soft: #5b6676;
  --code: #f0f2f5; --passed: #1a7f4b; --failed: #c8283a; --declined: #3f6fb5;
  --known: #a86a00; --notrun: #7d5ba6; --zone: #c8283a1c;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #12161c; --card: #1b2129; --line: #323b47; --text: #e6eaf0; --soft: #9aa7b7;
    --code: #141920; --passed: #4cc38a; --failed: #ff6b7a; --declined: #7fa8e8;
    --known: #e0a63c; --notrun: #b897e0; --zone: #ff6b7a26;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
}
main { max-width: 1160px; margin: 0 auto; padding: 24px 20px 56px; }
h1 { font-size: 15px; font-weight: 600; color: var(--soft); margin: 0 0 16px; }
h2 { font-size: 26px; line-height: 1.2; margin: 0; overflow-wrap: anywhere; }
h3 { font-size: 17px; margin: 32px 0 10px; }
p { margin: 0 0 10px; }
code, pre {
  font: 13px/1.5 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
}
pre {
  margin: 0; padding: 12px 14px; background: var(--code); border-radius: 6px;
  white-space: pre-wrap; overflow-wrap: anywhere;
}
.soft { color: var(--soft); }
.card {
  background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 16px;
}
.run + .run { margin-top: 48px; padding-top: 32px; border-top: 1px solid var(--line); }
.verdict { border-left: 6px solid var(--hue); padding: 20px; }
.verdict .word { color: var(--hue); font-weight: 700; letter-spacing: .02em; margin: 6px 0 14px; }
.counts { display: flex; flex-wrap: wrap; gap: 6px 28px; margin: 0 0 14px; }
.counts div { min-width: 64px; }
.counts dt { color: var(--soft); font-size: 13px; }
.counts dd { margin: 0; font-size: 22px; font-weight: 600; font-variant-numeric: tabular-nums; }
.bar { display: flex; gap: 2px; height: 10px; border-radius: 5px; overflow: hidden; }
.bar span { background: var(--hue); min-width: 3px; }
.passed { --hue: var(--passed); } .failed { --hue: var(--failed); }
.declined { --hue: var(--declined); } .known { --hue: var(--known); }
.notrun { --hue: var(--notrun); }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(200px, 1fr)); gap: 10px; }
.area { padding: 12px 14px; border-radius: 8px; }
.area.failed, .area.notrun { border-color: var(--hue); }
.area header { display: flex; justify-content: space-between; gap: 10px; margin-bottom: 8px; }
.area b { overflow-wrap: anywhere; }
.area header span { color: var(--hue); font-size: 13px; text-align: right; }
.dots { display: flex; flex-wrap: wrap; gap: 4px; }
.dots i { width: 10px; height: 10px; border-radius: 3px; background: var(--hue); }
.dots i.declined { background: none; border: 2px solid var(--hue); }
.dots i.failed { border-radius: 0; transform: rotate(45deg) scale(.85); }
.dots i.notrun { background: none; border: 2px dotted var(--hue); }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 0 0 10px; font-size: 13px; }
.legend span { display: inline-flex; align-items: center; gap: 6px; color: var(--soft); }
.failure { margin-bottom: 10px; border-left: 4px solid var(--hue); }
.failure b { overflow-wrap: anywhere; margin-right: 8px; }
.failure .label { color: var(--soft); font-size: 13px; margin: 10px 0 4px; }
.plot { display: grid; grid-template-columns: max-content 1fr max-content; gap: 2px 14px; }
.plot > * { align-self: center; }
.plot svg { display: block; width: 100%; overflow: visible; }
.plot .value { font-variant-numeric: tabular-nums; text-align: right; font-weight: 600; }
.plot circle { fill: var(--declined); fill-opacity: .35; }
.plot circle.least { fill: var(--declined); fill-opacity: 1; stroke: var(--card); }
.plot line { stroke: var(--line); } .plot line.limit { stroke: var(--failed); stroke-width: 2; }
.plot rect { fill: var(--zone); }
.plot text { fill: var(--soft); font-size: 12px; text-anchor: middle; }
.plot text.first { text-anchor: start; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: 6px 14px 6px 0; }
th { color: var(--soft); font-weight: 500; font-size: 13px; }
tr + tr td, tr + tr th { border-top: 1px solid var(--line); }
td { overflow-wrap: anywhere; } td code { white-space: nowrap; }
.off { color: var(--soft); }
.pairs { columns: 2; column-gap: 40px; margin: 0; }
.pairs div { display: flex; gap: 12px; break-inside: avoid; padding: 5px 0; }
.pairs dt { flex: 0 0 132px; color: var(--soft); } .pairs dd { margin: 0; overflow-wrap: anywhere; }
details summary { cursor: pointer; }
details[open] summary { margin-bottom: 10px; }
footer { margin-top: 40px; color: var(--soft); font-size: 13px; }
@media (max-width: 640px) {
  main { padding: 16px 12px 40px; }
  h2 { font-size: 22px; }
  .card { padding: 13px; }
  .grid { grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)); gap: 8px; }
  .area header { flex-direction: column; gap: 0; } .area header span { text-align: left; }
  .plot { grid-template-columns: 1fr max-content; grid-auto-flow: dense; }
  .plot svg { grid-column: 1 / -1; margin-bottom: 6px; }
  .plot .empty { display: none; }
  .pairs { columns: 1; }
  .cases :is(td, th):nth-child(n + 3) { display: none; }
}
@media print { body { background: none; } .card { break-inside: avoid; } }
""".strip()
