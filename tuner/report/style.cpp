#include "tuner/report/page.h"

namespace ft {

// Text has a contrast of at least 4.5 with its ground, marks of at least 3, in light and in dark.
std::string_view report_style() {
  return R"css(
:root {
  --ground: #f6f7f9; --panel: #ffffff; --ink: #1b1f24; --soft: #57606a; --rule: #d8dde3; --grid: #e6e9ed;
  --alert: #fdecea; --alert-ink: #8a1c12; --accent: #1f5fbf;
  --resident: #2563c9; --offload: #b45309; --cpu: #1a7f4b; --hybrid: #8a3fb3; --memory: #4b6478; --held: #c0267a; --served: #0e7490;
  --dense: #46566a; --attention: #7d8b9b; --synchronization: #c2413b; --merge: #0e8f9c; --sampling: #94751a; --idle: #9a8468;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #0f1216; --panel: #171b21; --ink: #e6e9ed; --soft: #a3adb8; --rule: #313841; --grid: #262c34;
    --alert: #3a1c1a; --alert-ink: #ffb4aa; --accent: #7fb2ff;
    --resident: #7aa9ff; --offload: #f0a35e; --cpu: #5cc78d; --hybrid: #c792ea; --memory: #9fb4c7; --held: #ff86c0; --served: #4fc3d9;
    --dense: #9db0c4; --attention: #6b7b8d; --synchronization: #f2766e; --merge: #3fc1cf; --sampling: #d7b450; --idle: #b39b7c;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; scroll-behavior: smooth; }
body { margin: 0; background: var(--ground); color: var(--ink); line-height: 1.5;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Liberation Sans", "DejaVu Sans", sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 24px 20px 64px; }
header { margin-bottom: 8px; }
.brand { margin: 0; color: var(--soft); font-size: 0.8rem; font-weight: 600; letter-spacing: 0.06em; text-transform: uppercase; }
h1 { margin: 2px 0 0; font-size: 1.75rem; line-height: 1.2; letter-spacing: -0.01em; overflow-wrap: anywhere; }
h2 { margin: 40px 0 10px; font-size: 1.25rem; line-height: 1.3; }
h3 { margin: 0 0 10px; font-size: 1rem; overflow-wrap: anywhere; color: var(--soft); }
h4 { margin: 0 0 6px; font-size: 1rem; }
p { margin: 0 0 10px; }
.under { color: var(--soft); margin: 4px 0 0; font-size: 0.92rem; overflow-wrap: anywhere; }
.lead { color: var(--soft); max-width: 46rem; }
.note { color: var(--soft); }
nav { display: flex; flex-wrap: wrap; gap: 6px 16px; margin-top: 14px; padding-top: 12px; border-top: 1px solid var(--rule); font-size: 0.9rem; }
a { color: var(--accent); text-decoration: none; }
a:hover, a:focus { text-decoration: underline; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
.panels { display: grid; gap: 16px; grid-template-columns: minmax(0, 1fr); }
.many { grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); }
.panel { container-type: inline-size; min-width: 0; background: var(--panel); border: 1px solid var(--rule); border-radius: 10px; padding: 18px 20px; }
.panel > :last-child { margin-bottom: 0; }
figure { margin: 0; display: grid; gap: 12px 32px; grid-template-columns: minmax(0, 1fr); align-items: start; }
figure + figure { margin-top: 26px; padding-top: 22px; border-top: 1px solid var(--rule); }
figcaption { min-width: 0; }
figcaption > p { color: var(--soft); font-size: 0.94rem; }
.plots { min-width: 0; display: grid; gap: 18px 32px; grid-template-columns: minmax(0, 1fr); }
.plots > * { max-width: 540px; }
.data { min-width: 0; }
@container (min-width: 700px) {
  figure.one { grid-template-columns: minmax(0, 1fr) minmax(0, 1fr); grid-template-rows: auto 1fr; }
  figure.one > .plots { grid-row: 1 / span 2; }
  figure.one > figcaption, figure.one > .data { grid-column: 2; }
  figure.one > figcaption { grid-row: 1; }
  figure.several > .plots { grid-template-columns: minmax(0, 1fr) minmax(0, 1fr); }
}
.plot-title { margin: 0 0 6px; font-size: 0.9rem; font-weight: 600; }
.chart { display: block; width: 100%; height: auto; overflow: visible; }
.chart text { font-family: inherit; fill: var(--ink); }
.chart .tick { font-size: 11px; fill: var(--soft); font-variant-numeric: tabular-nums; }
.chart .label { font-size: 11.5px; fill: var(--soft); font-weight: 600; }
.chart .name { font-size: 12px; }
.chart .value { font-size: 12px; font-weight: 600; font-variant-numeric: tabular-nums; }
.chart .note { font-size: 11px; fill: var(--held); font-weight: 600; paint-order: stroke; stroke: var(--panel); stroke-width: 3px; }
.grid { stroke: var(--grid); stroke-width: 1; }
.axis { stroke: var(--soft); stroke-width: 1; }
.ceiling { stroke: var(--held); stroke-width: 1.5; stroke-dasharray: 5 3; }
.diagonal { stroke: var(--soft); stroke-width: 1; }
.band { fill: var(--soft); opacity: 0.16; }
.whisker { stroke: var(--ink); stroke-width: 1.5; }
.mark { stroke: var(--panel); stroke-width: 1; }
.hollow { fill: var(--panel) !important; stroke: var(--tone); stroke-width: 1.8; }
.stroke { fill: none !important; stroke: var(--tone); stroke-width: 2; }
.line { fill: none !important; stroke: var(--tone); stroke-width: 2; stroke-linejoin: round; }
.dashed { stroke-dasharray: 5 4; }
.part { stroke: var(--panel); stroke-width: 0.8; }
.c-resident, .p-experts { --tone: var(--resident); fill: var(--resident); }
.c-offload, .p-fetch { --tone: var(--offload); fill: var(--offload); }
.c-cpu, .p-cpu { --tone: var(--cpu); fill: var(--cpu); }
.c-hybrid { --tone: var(--hybrid); fill: var(--hybrid); }
.c-memory { --tone: var(--memory); fill: var(--memory); }
.c-held { --tone: var(--held); fill: var(--held); }
.c-served { --tone: var(--served); fill: var(--served); }
.p-dense { --tone: var(--dense); fill: var(--dense); }
.p-attention { --tone: var(--attention); fill: var(--attention); }
.p-synchronization { --tone: var(--synchronization); fill: var(--synchronization); }
.p-merge { --tone: var(--merge); fill: var(--merge); }
.p-sampling { --tone: var(--sampling); fill: var(--sampling); }
.p-idle { --tone: var(--idle); fill: var(--idle); }
.legend { list-style: none; margin: 0 0 12px; padding: 0; display: flex; flex-wrap: wrap; gap: 4px 14px; font-size: 0.9rem; }
.legend li { display: flex; align-items: center; gap: 4px; }
.key { width: 30px; height: 15px; flex: none; }
.hero { display: flex; flex-wrap: wrap; align-items: baseline; gap: 4px 12px; margin: 0; }
.chip { font-size: 1.05rem; font-weight: 650; color: var(--tone); border: 1.5px solid var(--tone); border-radius: 999px; padding: 2px 14px; align-self: center; }
.figure-number { font-size: 2.1rem; font-weight: 680; line-height: 1.1; font-variant-numeric: tabular-nums; letter-spacing: -0.02em; }
.unit { color: var(--soft); }
.alert { background: var(--alert); color: var(--alert-ink); border-radius: 8px; padding: 10px 14px; font-weight: 550; }
dl { margin: 14px 0; display: grid; gap: 8px 28px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 150px), 1fr)); }
dl > div { min-width: 0; }
dt { color: var(--soft); font-size: 0.8rem; }
dd { margin: 0; overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }
ul.items, ul.warnings, ul.steps { margin: 0 0 12px; padding-left: 1.2rem; }
li { margin: 3px 0; overflow-wrap: anywhere; }
.warnings li::marker { color: var(--synchronization); }
details { margin: 6px 0; }
summary { cursor: pointer; color: var(--accent); font-size: 0.92rem; }
.scroll { overflow-x: auto; margin: 2px 0 8px; }
table { border-collapse: collapse; width: 100%; font-size: 0.86rem; font-variant-numeric: tabular-nums; }
.caption { color: var(--soft); font-size: 0.84rem; margin: 8px 0 0; }
th, td { padding: 6px 12px 6px 0; border-bottom: 1px solid var(--rule); vertical-align: top; white-space: pre-line; }
thead th { color: var(--soft); font-weight: 600; vertical-align: bottom; border-bottom-color: var(--soft); }
tbody th { font-weight: 500; }
th.t, td.t { text-align: left; } th.n, td.n { text-align: right; white-space: pre; }
td.t, tbody th.t { min-width: 7rem; }
tr.strong > * { font-weight: 680; }
@media (max-width: 480px) {
  main { padding: 16px 12px 40px; }
  .panel { padding: 14px 12px; }
  h1 { font-size: 1.4rem; }
  h2 { margin-top: 30px; }
}
@media print {
  :root { --ground: #ffffff; --panel: #ffffff; --ink: #000000; --soft: #444444; --rule: #bbbbbb; --grid: #dddddd; --alert: #f3f3f3; --alert-ink: #000000;
    --resident: #2563c9; --offload: #b45309; --cpu: #1a7f4b; --hybrid: #8a3fb3; --memory: #4b6478; --held: #c0267a; --served: #0e7490;
    --dense: #46566a; --attention: #7d8b9b; --synchronization: #c2413b; --merge: #0e8f9c; --sampling: #94751a; --idle: #9a8468; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  main { max-width: none; padding: 0; }
  nav { display: none; }
  h2 { break-after: avoid; }
  .plots > *, figcaption, tr, dl > div { break-inside: avoid; }
  figure.one > .data { grid-column: 1 / -1 !important; grid-row: 3; }
  .panel { border: 0; padding: 0; }
  .scroll { overflow: visible; }
  details::details-content { content-visibility: visible; display: block; }
}
)css";
}

}  // namespace ft
