"""Numbers of a benchmark -> one page to look at, and tables to quote.

The page is one file: pictures lie inside, nothing is fetched or run, and what
the results say is escaped. Each table is made once, as a `Table`.
"""

import base64
import html
import importlib.util
import pathlib
import re
from typing import NamedTuple

from specjax.bench.results import LOOPS, numbers, read

DEFINITIONS = {
    "tokens a pass": "Acceptance length: tokens written, over passes of the"
    " target that a prompt took part in, summed over prompts before dividing.",
    "acceptance rate": "Drafts kept, over drafts made.",
    "acceptance by position": "Of the drafts judged at a position, all before"
    " them having passed, the share that passes.",
    "accepted / judged": "Drafts that passed, over drafts that were judged,"
    " before ends of texts cut anything.",
    "mean sum min(p, q)": "The chance with which a judged draft passes, from"
    " the laws of target (p) and drafter (q) alone; under the token rule its"
    " mean equals accepted / judged but for chance.",
    "may differ by": "Three standard deviations of that chance, as a"
    " martingale bounds them, and one draft.",
    "speed-up": "Mean seconds a later token without drafts, over the same with"
    " drafts, of the same engine in turn; the interval is 95 % of a bootstrap"
    " over groups of prompts that are written side by side.",
    "median": "Over those groups, of each one's median over turns of the ratio"
    " within a turn; with quartiles over groups.",
    "looping": f"Texts without drafts of which under {LOOPS:.0%} of the"
    " 4-grams are distinct: they repeat themselves, which is easy to foresee.",
    "of the others": "The speed-up over turns in which no text loops.",
    "first tokens": "Milliseconds from the bare prompt to the first round's"
    " tokens, the median over turns; with drafts and without.",
    "a later token": "Milliseconds from then on, over the tokens that all rows"
    " of a batch wrote in them, the mean over turns.",
    "tokens/s": "A second over the seconds of a later token.",
    "compiling": "Seconds of first runs of each shape, which no other number"
    " holds.",
    "c": "A draft step's time, over that of a round without drafts.",
    "verify": "What checking K drafts takes (the target's pass, its laws and"
    " the rule), over a round without drafts.",
    "theory": "(1 + a1 + a1 a2 + ...) / (K c + verify), where a1, a2, ... is"
    " the measured acceptance by position, a draft not made being a miss.",
    "draft, verify, rule, host": "Milliseconds a round of K draft steps; what"
    " the target's pass adds to them; what accepting and committing add; what"
    " a host loop around rounds adds.",
    "texts alike": "Greedy texts of the peer that equal this engine's from"
    " first to last token; and the share of tokens before the first other one.",
}

STYLE = """
:root{color-scheme:light}
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:0 auto;
padding:0 1rem 3rem;color:#1a1f24;background:#fff;overflow-wrap:anywhere}
h1{font-size:1.6rem;line-height:1.2}
h2{font-size:1.2rem;margin-top:2.2rem;border-bottom:1px solid #d5dadf}
pre{background:#f2f4f6;padding:.7rem;white-space:pre-wrap}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;
font-size:.9rem;overflow-wrap:normal}
caption{text-align:left;font-weight:600;padding:.4rem 0}
th,td{padding:.25rem .6rem;text-align:right;border-bottom:1px solid #e3e7ea}
th{vertical-align:bottom;font-weight:600}
td{white-space:nowrap}
th:first-child,td:first-child{text-align:left}
figure{margin:1.5rem 0}
img{width:45rem;max-width:none;height:auto}
figcaption,.note{font-size:.9rem;color:#48525c}
.mark{background:#fff1d6;border-left:4px solid #b35c00;padding:.6rem .8rem;
font-weight:600}
dt{font-weight:600;margin-top:.5rem}
dd{margin:0 0 0 1rem}
summary{cursor:pointer;padding:.3rem 0}
"""

SAFE = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


class Table(NamedTuple):
  """A title, column names, and rows of cells, all as plain text."""

  title: str
  head: list[str]
  rows: list[list[str]]


def write(folder: str | pathlib.Path) -> dict:
  """Makes index.html, README.md and the pictures of a folder's results.jsonl.

  Returns the numbers. Raises ValueError for a line that is no result.
  """
  folder = pathlib.Path(folder)
  found = numbers(read(folder / "results.jsonl"))
  drawn = pictures(found)
  text = markdown(found)
  for name, (png, caption) in (drawn or {}).items():
    (folder / f"{name}.png").write_bytes(png)
    text += f"\n![{caption}]({name}.png)\n"
  (folder / "README.md").write_text(text, "utf-8")
  (folder / "index.html").write_text(_page(found, drawn), "utf-8")
  return found


def pictures(numbers: dict) -> dict[str, tuple[bytes, str]] | None:
  """Names -> (PNG, caption), of those plots that have something to show; None
  where matplotlib is not installed."""
  if importlib.util.find_spec("matplotlib") is None:
    return None
  from specjax.bench import plots

  return plots.drawn(numbers)


def page(numbers: dict) -> str:
  """The report as one HTML file."""
  return _page(numbers, pictures(numbers))


def _page(numbers: dict, drawn: dict | None) -> str:
  mark = _mark(numbers)
  return "\n".join([
      '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
      '<meta name="viewport" content="width=device-width,initial-scale=1">',
      f'<meta http-equiv="Content-Security-Policy" content="{SAFE}">',
      f"<title>{_html(_title(numbers))}</title>",
      f"<style>{STYLE}</style>\n</head>\n<body>",
      f"<h1>{_html(_title(numbers))}</h1>",
      *([f'<p class="mark">{_html(mark)}</p>'] if mark else []),
      f"<p>{_html(verdict(numbers))}</p>",
      f"<h2>What was run</h2>\n<pre>{_html(_command(numbers))}</pre>",
      f"<p>{_html(_settings(numbers))}</p>",
      "<h2>Speed</h2>", *map(_html_table, (speed(numbers), times(numbers))),
      "<h2>Pictures</h2>", *_figures(drawn),
      "<h2>Costs and what they foresee</h2>", _html_table(costs(numbers)),
      "<h2>By category</h2>", *_folded(map(categories, numbers["runs"])),
      "<h2>Acceptance, and a check of it</h2>",
      _html_table(acceptance(numbers)), _html_table(check(numbers)),
      f'<p class="note">{_html(_expected(numbers))}</p>',
      "<h2>Peers</h2>", _html_table(peers(numbers)),
      "<h2>What the words mean</h2>\n<dl>",
      *(f"<dt>{_html(a)}</dt><dd>{_html(b)}</dd>"
        for a, b in DEFINITIONS.items()),
      "</dl>\n</body>\n</html>\n",
  ])


def markdown(numbers: dict) -> str:
  """The short tables, to be quoted, or read in a terminal."""
  mark = _mark(numbers)
  tables = [speed(numbers), times(numbers), costs(numbers), check(numbers),
            peers(numbers)]
  return "\n".join([
      f"# {_markdown(_title(numbers))}", "",
      *([f"**{_markdown(mark)}**", ""] if mark else []),
      f"    {_command(numbers)}", "", _markdown(_settings(numbers)), "",
      _markdown(verdict(numbers)), "",
      *(_markdown_table(t) for t in tables if t.rows),
  ])


def verdict(numbers: dict) -> str:
  """How many runs gained and lost, and the best, in two sentences."""
  ends = [r["total"]["interval"] for r in numbers["runs"]]
  if not ends:
    return "Nothing has been measured yet."
  faster = sum(x is not None and x[0] > 1 for x in ends)
  slower = sum(x is not None and x[1] < 1 for x in ends)
  best = max(numbers["runs"], key=lambda r: r["total"]["speedup"] or 0.0)
  return (
      f"Runs against no drafts: {len(ends)}; faster with their whole interval:"
      f" {faster}; slower: {slower}; undecided: {len(ends) - faster - slower}."
      f" The fastest: {_line(name(best))}, {_speedup(best['total'])}."
  )


def name(run: dict) -> str:
  """A run in words."""
  return (
      f"{run['drafter']}, K {run['k']}, T {run['temperature']:g}, batch"
      f" {run['batch']}"
  )


def speed(numbers: dict) -> Table:
  return Table("Drafts against no drafts", [
      *RUN, "prompts", "tokens a pass", "speed-up (95 %)",
      "median (quartiles)", "looping", "of the others", "theory",
  ], [
      [*_run(r), f"{x['prompts']}", f"{x['acceptance_length']:.2f}",
       _speedup(x), _middle(x), f"{x['looping']} of {x['texts']}",
       _times(x["speedup_others"]),
       _times(r["theory"] and r["theory"]["speedup"])]
      for r, x in _totals(numbers)
  ])


def times(numbers: dict) -> Table:
  both = lambda values, form: " / ".join(map(form, values))
  return Table("Times, with drafts / without", [
      *RUN, "first tokens, ms", "a later token, ms", "tokens/s",
      "compiling, s", "of it calibrating, s",
  ], [
      [*_run(r), both(x["first"], _ms), both(x["seconds"], _ms),
       both(x["seconds"], _rate), _number(r["compile"], ".1f"),
       _number(r["calibrating"] or None, ".1f")]
      for r, x in _totals(numbers)
  ])


def costs(numbers: dict) -> Table:
  return Table("A round's parts, ms, and speed-ups foreseen from them", [
      *RUN, "draft", "verify", "rule", "host", "c", "verify / one token",
      "tokens a pass foreseen", "speed-up foreseen", "measured",
      "measured / foreseen",
  ], [
      [*_run(r), *(f"{x:.2f}" for x in r["split"].values()),
       f"{t['c']:.3f}", f"{t['verify']:.2f}", f"{t['tokens']:.2f}",
       _times(t["speedup"]), _times(x["speedup"]),
       _number(x["speedup"] and x["speedup"] / t["speedup"], ".2f")]
      for r, x in _totals(numbers) if (t := r["theory"])
  ])


def categories(run: dict) -> Table:
  return Table(name(run), [
      "category", "prompts", "tokens a pass", "acceptance by position",
      "speed-up (95 %)", "median (quartiles)", "looping",
  ], [
      [_line(category), f"{x['prompts']}", f"{x['acceptance_length']:.2f}",
       _positions(x), _speedup(x), _middle(x),
       f"{x['looping']} of {x['texts']}"]
      for category, x in run["categories"].items()
  ])


def acceptance(numbers: dict) -> Table:
  return Table("Acceptance", [
      *RUN, "acceptance rate", "acceptance by position",
  ], [
      [*_run(r), f"{x['acceptance_rate']:.3f}", _positions(x)]
      for r, x in _totals(numbers)
  ])


def check(numbers: dict) -> Table:
  rule = numbers["about"].get("rule")
  return Table("What passed against what the laws promise", [
      *RUN, "judged", "accepted / judged", "mean sum min(p, q)", "difference",
      "may differ by", "holds",
  ], [
      [*_run(r), f"{sum(x['counts']['reached']):.0f}",
       f"{x['reached_rate']:.4f}", f"{x['overlap']:.4f}", f"{x['gap']:+.4f}",
       f"{x['may']:.4f}",
       "yes" if x["holds"] else "no" if rule == "token" else "-"]
      for r, x in _totals(numbers) if sum(x["counts"]["reached"])
  ])


def peers(numbers: dict) -> Table:
  return Table("Other software, the same prompts, one at a time", [
      "peer", "mode", "T", "prompts", "first token, ms", "a later token, ms",
      "tokens/s", "specjax without drafts, in turn", "texts alike",
      "tokens alike", "versions",
  ], [
      [_line(x["peer"]), _line(x["mode"]), f"{x['temperature']:g}",
       f"{x['prompts']}", _ms(x["first"]), _ms(x["seconds"]),
       _rate(x["seconds"]), _times(x["beside"]),
       f"{x['same']} of {x['texts']}" if x["texts"] else "-",
       f"{x['same_tokens'] / x['tokens']:.1%}" if x["tokens"] else "-",
       ", ".join(f"{_line(a)} {_line(b)}" for a, b in x["versions"].items())]
      for x in numbers["peers"]
  ])


RUN = ["drafter", "K", "T", "batch"]


def _run(run: dict) -> list[str]:
  return [
      _line(run["drafter"]), f"{run['k']}", f"{run['temperature']:g}",
      f"{run['batch']}",
  ]


def _totals(numbers: dict) -> list[tuple[dict, dict]]:
  return [(r, r["total"]) for r in numbers["runs"]]


def _title(numbers: dict) -> str:
  about = numbers["about"]
  target = f"{about['target']}: " if about.get("target") else ""
  return _line(f"{target}drafts against no drafts, {about['date']}")


def _command(numbers: dict) -> str:
  return _line(numbers["about"]["command"])


def _settings(numbers: dict) -> str:
  about = [
      f"{_line(name)}: {_text(x)}" for name, x in numbers["about"].items()
      if name != "command"
  ]
  return "; ".join(about + [
      f"no drafts at batch {x['batch']}: a window of {x['window']} (one of 2"
      f" takes {x['two_over_one']:.2f} times one of 1)"
      for x in numbers["baselines"]
  ])


def _mark(numbers: dict) -> str:
  given = numbers["synthetic"]
  return "" if given is None else (
      f"Synthetic acceptance {given:g}: not real output. Drafts were made to"
      " pass that often, so texts and acceptance mean nothing here."
  )


def _expected(numbers: dict) -> str:
  """What to make of the column `holds`."""
  if numbers["synthetic"] is not None:
    return "Nothing is promised of synthetic acceptance."
  if numbers["about"].get("rule") == "token":
    return "Under the token rule each should hold, 997 times of 1,000."
  return "Only the token rule promises this; others may accept more."


def _number(x: float | None, form: str) -> str:
  return "-" if x is None else format(x, form)


def _times(x: float | None) -> str:
  return "-" if x is None else f"{x:.2f}x"


def _ms(seconds: float | None) -> str:
  return "-" if seconds is None else f"{seconds * 1e3:.1f}"


def _rate(seconds: float | None) -> str:
  return "-" if seconds is None else f"{1 / seconds:.1f}"


def _between(x: float | None, ends: list[float] | None) -> str:
  return _times(x) + (f" ({ends[0]:.2f} to {ends[1]:.2f})" if ends else "")


def _speedup(found: dict) -> str:
  return _between(found["speedup"], found["interval"])


def _middle(found: dict) -> str:
  return _between(found["median"], found["quartiles"])


def _positions(found: dict) -> str:
  return " ".join(_number(x, ".2f") for x in found["conditional"]) or "-"


def _line(text) -> str:
  """Anything as one line of printable text."""
  return " ".join(
      "".join(c if c.isprintable() else " " for c in str(text)).split()
  )


def _text(x) -> str:
  """A setting as the page tells it; of what lies deeper, only that it does."""
  plain = lambda v: (
      "..." if isinstance(v, dict | list) else
      {True: "yes", False: "no"}[v] if isinstance(v, bool) else _line(v)
  )
  if isinstance(x, dict):
    return ", ".join(f"{_line(k)} {plain(v)}" for k, v in x.items())
  return ", ".join(map(plain, x)) if isinstance(x, list) else plain(x)


def _html(text: str) -> str:
  return html.escape(text)


def _markdown(text: str) -> str:
  return re.sub(r"([\\`*|<>\[\]&])", r"\\\1", text)


def _html_table(table: Table) -> str:
  if not table.rows:
    return '<p class="note">Nothing of this was measured.</p>'
  cells = lambda kind, row: "".join(
      f"<{kind}>{_html(x)}</{kind}>" for x in row
  )
  title = f"<caption>{_html(table.title)}</caption>" if table.title else ""
  head = cells("th", table.head)
  body = "\n".join(f"<tr>{cells('td', row)}</tr>" for row in table.rows)
  return (
      f'<div class="wide"><table>{title}<thead><tr>{head}</tr></thead>'
      f"<tbody>{body}</tbody></table></div>"
  )


def _markdown_table(table: Table) -> str:
  row = lambda cells: "| " + " | ".join(cells) + " |"
  return "\n".join([
      f"## {_markdown(table.title)}", "", row(table.head),
      "|" + "--|" * len(table.head),
      *(row(map(_markdown, cells)) for cells in table.rows), "",
  ])


def _folded(tables) -> list[str]:
  """Tables under their titles, the first one open."""
  return [
      f"<details{'' if i else ' open'}><summary>{_html(t.title)}</summary>"
      f"{_html_table(t._replace(title=''))}</details>"
      for i, t in enumerate(tables)
  ] or [_html_table(Table("", [], []))]


def _figures(drawn: dict | None) -> list[str]:
  if drawn is None:
    return [
        '<p class="note">There are none: matplotlib was not installed when'
        " this page was made.</p>"
    ]
  return [
      f'<figure><div class="wide"><img alt="{_html(caption)}" src="data:'
      f'image/png;base64,{base64.b64encode(png).decode()}"></div>'
      f"<figcaption>{_html(caption)}</figcaption></figure>"
      for png, caption in drawn.values()
  ] or [_html_table(Table("", [], []))]
