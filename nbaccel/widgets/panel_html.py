"""A picture of a run as HTML that needs nothing but itself: no script, no file, nothing that lives.

So it is the same in a running notebook, in a saved one, and on paper. Colours are those of the place
where it stands: the text's own, and the front end's accent where it names one. Everything that comes
from the user is escaped. Pure functions.
"""

from __future__ import annotations

import html

from nbaccel.launch.progress.model import ENDED, FAILED, RUNNING, STOPPED, Picture
from nbaccel.widgets import panel_curves, panel_text
from nbaccel.widgets.panel_ranks import COLUMNS, DOES, text_rows, used_columns

MOST_CURVES = 12
"""Curves that are drawn; of further names the count is told."""

_MARKS = {RUNNING: "▶", ENDED: "✓", FAILED: "✗", STOPPED: "■"}

_STYLE = """
.nbp{font-size:13px;line-height:1.45;max-width:64em;border:1px solid;border-radius:4px;padding:6px 10px;
border-color:color-mix(in srgb,currentColor 25%,transparent);margin:2px 0;
color:var(--jp-content-font-color1,var(--vscode-foreground,inherit));
--nbp-accent:var(--jp-brand-color1,var(--vscode-charts-blue,#3b82d6));
--nbp-bad:var(--jp-error-color1,var(--vscode-errorForeground,#d64545))}
.nbp .nbp-head{display:flex;flex-wrap:wrap;gap:0 1em;align-items:baseline}
.nbp .nbp-head b{font-weight:600}
.nbp .nbp-far{opacity:.85}
.nbp .nbp-bar{height:4px;border-radius:2px;margin:5px 0;overflow:hidden;
background:color-mix(in srgb,currentColor 15%,transparent)}
.nbp .nbp-bar div{height:100%;background:var(--nbp-accent)}
.nbp table.nbp-ranks{border-collapse:collapse;margin:4px 0 2px 0;border:0;font-size:12px;color:inherit;
table-layout:auto;width:auto;display:table}
.nbp table.nbp-ranks tr,.nbp table.nbp-ranks tr:hover,.nbp table.nbp-ranks tr:nth-child(odd){
background:transparent}
.nbp table.nbp-ranks th,.nbp table.nbp-ranks td{text-align:left;vertical-align:top;border:0;
padding:1px 14px 1px 0;color:inherit;background:transparent;max-width:none;white-space:nowrap}
.nbp table.nbp-ranks td.nbp-does{white-space:normal;min-width:10em}
.nbp table.nbp-ranks th{font-weight:400;opacity:.65}
.nbp table.nbp-ranks td{font-variant-numeric:tabular-nums}
.nbp span.nbp-failed,.nbp table.nbp-ranks tr.nbp-failed td.nbp-does{color:var(--nbp-bad)}
.nbp .nbp-curves{display:grid;grid-template-columns:repeat(auto-fill,minmax(190px,1fr));
gap:6px 18px;margin:6px 0 2px}
.nbp .nbp-name{display:flex;justify-content:space-between;gap:1em}
.nbp .nbp-name span{overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
.nbp .nbp-name b{font-weight:600;font-variant-numeric:tabular-nums}
.nbp .nbp-svg{width:100%;height:56px;display:block;color:var(--nbp-accent)}
.nbp .nbp-foot{font-size:11px;opacity:.65}
""".replace("\n", "")


def document(picture: Picture) -> str:
    """The whole panel."""
    parts = [f"<style>{_STYLE}</style>", f'<div class="nbp nbp-{picture.state}">', _head(picture)]
    parts += [_bar(picture), _table(picture), _curves(picture), "</div>"]
    return "".join(parts)


def _head(picture: Picture) -> str:
    failed = ' class="nbp-failed"' if picture.state == FAILED else ""
    title = html.escape(panel_text.plain(picture.title))
    status = html.escape(panel_text.status(picture))
    far = html.escape(panel_text.how_far(picture))
    head = f"<b>{title}</b> <span{failed}>{_MARKS[picture.state]} {status}</span>"
    return f'<div class="nbp-head">{head} <span class="nbp-far">{far}</span></div>'


def _bar(picture: Picture) -> str:
    if picture.share is None:
        return ""
    percent = f"{100 * min(1.0, max(0.0, picture.share)):.1f}"
    return (
        f'<div class="nbp-bar" role="img" aria-label="{percent} %"><div style="width:{percent}%"></div></div>'
    )


def _table(picture: Picture) -> str:
    rows = text_rows(picture)
    used = used_columns(rows)
    head = "".join(f"<th>{COLUMNS[place]}</th>" for place in used)
    body = "".join(
        f'<tr class="nbp-{row.state}">' + "".join(_cell(place, row.texts[place]) for place in used) + "</tr>"
        for row in rows
    )
    return f'<table class="nbp-ranks"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _cell(place: int, text: str) -> str:
    kind = ' class="nbp-does"' if place == DOES else ""
    return f"<td{kind}>{html.escape(panel_text.plain(text))}</td>"


def _curves(picture: Picture) -> str:
    if not picture.curves:
        return ""
    drawn = "".join(panel_curves.figure(curve) for curve in picture.curves[:MOST_CURVES])
    more = len(picture.curves) - MOST_CURVES + picture.further_names
    told = f'<div class="nbp-foot">and {more} more</div>' if more > 0 else ""
    return f'<div class="nbp-curves">{drawn}</div>{told}'
