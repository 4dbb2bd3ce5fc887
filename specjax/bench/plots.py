"""Numbers of a benchmark -> pictures.

A function returns a Figure, or None where there is nothing to show. A drafter
has one colour and one marker throughout (Okabe and Ito's colours, which the
colour-blind tell apart); legends stand below the axes, never on data.
"""

import io
import math
from collections.abc import Callable

from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

SIZE = (7.2, 4.3)  # inches of 100 CSS pixels
DPI = 200
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
MARKERS = "osD^vP"
INK, GREY, PLAIN, PEER = "#20262c", "#6b7680", "#b4bcc3", "#59636d"
PARTS = dict(draft=INK, verify="#69747e", rule="#a9b2ba", host="#dde2e6")
BARS = 16  # more of them in one picture are not readable
PANELS = 4
THEORY = dict(linestyle="--", markerfacecolor="white", linewidth=1.2)

Runs = list[dict]
Value = Callable[[dict], float | None]


def acceptance(numbers: dict) -> Figure | None:
  """Conditional acceptance by position, at each drafter's largest K."""
  runs = _smallest(numbers["runs"])
  figure, panels = _panels(numbers, runs, "Acceptance by position of a draft")
  most = 0
  for temperature, axes in panels.items():
    for drafter, own in _drafters(runs, temperature):
      run = max(own, key=_width)
      found = enumerate(run["total"]["conditional"], 1)
      points = [(i, x) for i, x in found if x is not None]
      if points:
        axes.plot(*zip(*points), **_styles(numbers)[drafter])
        most = max(most, points[-1][0])
    axes.set(xlabel="position in the draft", ylim=(0, 1.04))
  if not most:
    return None
  for axes in panels.values():
    axes.set_xticks(range(1, most + 1, -(-most // 8)))
    axes.set_xlim(0.6, most + 0.4)
  return _finish(figure, numbers, runs, "share of judged drafts that pass")


def length(numbers: dict) -> Figure | None:
  """Tokens written a target pass, against K."""
  runs = _smallest(numbers["runs"])
  figure, panels = _panels(numbers, runs, "Tokens a target pass")
  value = lambda run: run["total"]["acceptance_length"] or None
  if not _against("k", numbers, runs, panels, value):
    return None
  return _finish(figure, numbers, runs, "tokens a target pass")


def speedup(numbers: dict) -> Figure | None:
  """Speed-up against K with its interval, and what theory foresees."""
  runs = _smallest(numbers["runs"])
  figure, panels = _panels(numbers, runs, "Speed-up over no drafts")
  if not _against("k", numbers, runs, panels, _pooled, bars=True):
    return None
  value = lambda run: run["theory"] and run["theory"]["speedup"]
  more = []
  if any(map(value, runs)):
    _against("k", numbers, runs, panels, value, **THEORY)
    more = [Line2D([], [], color=GREY, label="theory", marker="o", **THEORY)]
  return _finish(figure, numbers, runs, "speed-up (times)", more)


def batches(numbers: dict) -> Figure | None:
  """Speed-up against the batch, each drafter at the K run at most batches."""
  runs = []
  for _, own in _drafters(numbers["runs"]):
    sizes = lambda k: len({r["batch"] for r in own if r["k"] == k})  # noqa: B023
    k = max((r["k"] for r in own), key=sizes)
    runs += [r for r in own if r["k"] == k]
  figure, panels = _panels(numbers, runs, "Speed-up over no drafts", False)
  if not _against("batch", numbers, runs, panels, _pooled, bars=True):
    return None
  return _finish(figure, numbers, runs, "speed-up (times)", widths=True)


def split(numbers: dict) -> Figure | None:
  """A round's time by its parts, stacked."""
  runs = [r for r in numbers["runs"] if r["split"]]
  if not runs:
    return None
  if len(runs) > BARS:  # temperatures hardly differ in this
    hottest = max(r["temperature"] for r in runs)
    runs = [r for r in runs if r["temperature"] == hottest][:BARS]
  figure, axes = _single(numbers, "Where a round's time goes")
  left = [0.0] * len(runs)
  for part, colour in PARTS.items():
    width = [r["split"][part] for r in runs]
    axes.barh(
        range(len(runs)), width, left=left, color=colour, label=part,
        edgecolor="white", linewidth=0.6,
    )
    left = [a + b for a, b in zip(left, width)]
  _label_rows(axes, [
      f"{_words(r['drafter'], 18)}, K {r['k']}, T {r['temperature']:g}, batch"
      f" {r['batch']}" for r in runs
  ])
  axes.set_xlabel("milliseconds a round")
  figure.legend(loc="outside lower center", ncols=len(PARTS), frameon=False)
  return figure


def categories(numbers: dict) -> Figure | None:
  """Speed-up by category with its interval, each drafter at its best K."""
  runs = _best(_smallest(numbers["runs"]))
  names = sorted({
      name for r in runs for name, x in r["categories"].items()
      if x["speedup"] is not None
  })[:BARS]
  if len(names) < 2:
    return None
  figure, panels = _panels(numbers, runs, "Speed-up by category")
  for temperature, axes in panels.items():
    found = _drafters(runs, temperature)
    height = 0.8 / max(len(found), 1)
    for i, (drafter, (run, *_)) in enumerate(found):
      for n, name in enumerate(names):
        x = run["categories"].get(name)
        if x and x["speedup"] is not None:
          axes.barh(
              n + (i - (len(found) - 1) / 2) * height, x["speedup"], height,
              xerr=_error([x]), error_kw=dict(linewidth=1, capsize=1.5),
              ecolor=INK, color=_styles(numbers)[drafter]["color"],
          )
    axes.axvline(1.0, color=INK, linewidth=1)
    _label_rows(axes, [_words(name, 22) for name in names])
    axes.set_xlabel("speed-up (times)")
  return _finish(figure, numbers, runs, "", widths=True)


def peers(numbers: dict) -> Figure | None:
  """Tokens a second of other software, beside this engine's."""
  bars, own = [], [r for r in numbers["runs"] if r["batch"] == 1]
  for t in sorted({x["temperature"] for x in numbers["peers"]}):
    here = [r for r in own if r["temperature"] == t]
    plain = [r["total"]["seconds"][1] for r in here]
    plain = [x for x in plain if x is not None]
    if plain:
      mean = sum(plain) / len(plain)
      bars.append((f"T {t:g}, specjax, no drafts", mean, PLAIN))
    bars += [
        (f"T {t:g}, specjax, {_words(r['drafter'], 14)}, K {r['k']}",
         r["total"]["seconds"][0], _styles(numbers)[r["drafter"]]["color"])
        for r in _best(here)
    ]
    bars += [
        (f"T {t:g}, {_words(x['peer'], 14)}, {_words(x['mode'], 12)}",
         x["seconds"], PEER)
        for x in _fastest([x for x in numbers["peers"]
                           if x["temperature"] == t])
    ]
  bars = [bar for bar in bars if bar[1] is not None][:BARS]
  if not bars:
    return None
  figure, axes = _single(numbers, "Tokens a second, one prompt at a time")
  names, seconds, colours = zip(*bars)
  drawn = axes.barh(
      range(len(bars)), [1 / x for x in seconds], 0.7, color=colours
  )
  axes.bar_label(drawn, fmt="%.1f", padding=3)
  axes.margins(x=0.12)
  _label_rows(axes, names)
  axes.set_xlabel("tokens a second after the first")
  return figure


PICTURES = (
    ("acceptance", acceptance, "Of the drafts judged at each position, the"
     " share that passes; each drafter at its largest K."),
    ("length", length, "Tokens the text gains by one pass of the target; 1 is"
     " what it gains without drafts."),
    ("speedup", speedup, "Speed-up over no drafts with 95 % intervals over"
     " prompts, and what theory foresees from measured acceptance and costs."),
    ("batches", batches, "Speed-up over no drafts as more prompts are written"
     " together, with 95 % intervals over prompts."),
    ("split", split, "Milliseconds of a round by its parts; of more than"
     f" {BARS} runs, the first at the highest temperature."),
    ("categories", categories, "Speed-up by kind of prompt with 95 % intervals"
     " over prompts; each drafter at the K that gained most."),
    ("peers", peers, "Tokens a second of other software on the same prompts,"
     " beside this engine's; each at the K that gained most."),
)


def drawn(numbers: dict) -> dict[str, tuple[bytes, str]]:
  """Names -> (PNG, caption), of those that have something to show."""
  figures = [(name, draw(numbers), text) for name, draw, text in PICTURES]
  mark = _mark(numbers)
  return {
      name: (png(figure), text + (f" {mark.capitalize()}." if mark else ""))
      for name, figure, text in figures if figure
  }


def png(figure: Figure) -> bytes:
  out = io.BytesIO()
  figure.savefig(out, format="png", dpi=DPI, metadata=dict(Software=None))
  return out.getvalue()


def _mark(numbers: dict) -> str:
  given = numbers["synthetic"] is not None
  return "synthetic acceptance: not real output" if given else ""


def _words(text: str, most: int) -> str:
  """A name as the font can show it: short, in one line, and no formula."""
  font = font_manager.get_font(font_manager.findfont("DejaVu Sans"))
  known = lambda c: c.isprintable() and font.get_char_index(ord(c))
  text = "".join(c if known(c) else "?" for c in text).lstrip("_") or "?"
  if len(text) > most:  # both ends tell names apart
    text = text[: most - most // 2 - 1] + "…" + text[-(most // 2) :]
  return text.replace("$", r"\$")


def _styles(numbers: dict) -> dict[str, dict]:
  """How each drafter is drawn, by its place among all of them."""
  names = dict.fromkeys(r["drafter"] for r in numbers["runs"])
  return {
      name: dict(
          color=COLOURS[i % len(COLOURS)], marker=MARKERS[i % len(MARKERS)],
          markersize=5,
      )
      for i, name in enumerate(names)
  }


def _smallest(runs: Runs) -> Runs:
  """Those at the smallest batch."""
  least = min((r["batch"] for r in runs), default=1)
  return [r for r in runs if r["batch"] == least]


def _drafters(
    runs: Runs, temperature: float | None = None
) -> list[tuple[str, Runs]]:
  """Drafters and their runs (at one temperature)."""
  runs = [r for r in runs if temperature in (None, r["temperature"])]
  names = dict.fromkeys(r["drafter"] for r in runs)
  return [(n, [r for r in runs if r["drafter"] == n]) for n in names]


def _best(runs: Runs) -> Runs:
  """Those at each drafter's K of the largest mean speed-up."""
  out = []
  for _, own in _drafters(runs):
    gains: dict = {}
    for r in own:
      gains.setdefault(r["k"], []).append(_pooled(r) or 0.0)
    k = max(gains, key=lambda k: sum(gains[k]) / len(gains[k]))  # noqa: B023
    out += [r for r in own if r["k"] == k]
  return out


def _fastest(peers: list[dict]) -> list[dict]:
  """Of each peer's way to draft, the first word of its mode, the fastest."""
  out: dict = {}
  for x in peers:
    if x["seconds"] is not None:
      out.setdefault((x["peer"], x["mode"].partition(" ")[0]), []).append(x)
  return [min(same, key=lambda x: x["seconds"]) for same in out.values()]


def _width(run: dict) -> int:
  return len(run["total"]["conditional"])


def _pooled(run: dict) -> float | None:
  return run["total"]["speedup"]


def _error(found: list[dict]) -> list[list[float]]:
  """Lengths of error bars below and above speed-ups; NaN draws none."""
  ends = [x["interval"] or [math.nan] * 2 for x in found]
  return [
      [max(x["speedup"] - low, 0.0) for x, (low, _) in zip(found, ends)],
      [max(high - x["speedup"], 0.0) for x, (_, high) in zip(found, ends)],
  ]


def _against(
    field: str, numbers: dict, runs: Runs, panels: dict[float, Axes],
    value: Value, bars: bool = False, **style,
) -> bool:
  """Draws a value of runs against their K or batch, evenly spaced.

  Numbers are joined by lines; "auto" stands apart. False, and nothing drawn,
  where there is but one of them. `bars`: these are speed-ups, with intervals.
  """
  spots = sorted(
      {r[field] for r in runs}, key=lambda x: (x == "auto", str(x).zfill(9))
  )
  if len(spots) < 2:
    return False
  names = [*_styles(numbers)]
  for temperature, axes in panels.items():
    for drafter, own in _drafters(runs, temperature):
      aside = 0.06 * (names.index(drafter) - (len(names) - 1) / 2)
      own = [r for r in own if value(r) is not None]
      look = _styles(numbers)[drafter] | style
      for some in (
          sorted((r for r in own if r[field] != "auto"),
                 key=lambda r: r[field]),  # noqa: B023
          [r for r in own if r[field] == "auto"],
      ):
        if some:
          x = [spots.index(r[field]) + aside for r in some]
          y = [value(r) for r in some]
          axes.plot(x, y, **look)
          if bars:
            axes.errorbar(
                x, y, _error([r["total"] for r in some]), linestyle="none",
                color=look["color"], capsize=2.5, linewidth=1,
            )
    axes.set_xticks(range(len(spots)), [f"{x}" for x in spots])
    axes.set_xlim(-0.5, len(spots) - 0.5)
    axes.set_xlabel("K, drafts a round" if field == "k" else "batch, prompts")
    axes.axhline(1.0, color=INK, linewidth=1)
  return True


def _single(numbers: dict, title: str) -> tuple[Figure, Axes]:
  figure = Figure(SIZE, layout="constrained")
  mark = _mark(numbers)
  figure.suptitle(title + (f"\n{mark}" if mark else ""), fontsize=12)
  axes = figure.subplots()
  dress(axes)
  return figure, axes


def dress(axes: Axes) -> None:
  axes.spines[["top", "right"]].set_visible(False)
  axes.grid(color="#e3e7ea", linewidth=0.8)
  axes.set_axisbelow(True)


def _panels(
    numbers: dict, runs: Runs, title: str, batch: bool = True
) -> tuple[Figure, dict[float, Axes]]:
  """A figure with one panel for each of the first temperatures of runs."""
  found = sorted({r["temperature"] for r in runs})[:PANELS]
  figure = Figure(SIZE, layout="constrained")
  if batch and runs:
    title += f", batch {runs[0]['batch']}"
  mark = _mark(numbers)
  figure.suptitle(title + (f"\n{mark}" if mark else ""), fontsize=12)
  if not found:
    return figure, {}
  figure.get_layout_engine().set(wspace=0.06)
  (panels,) = figure.subplots(
      1, len(found), sharex=True, sharey=True, squeeze=False
  )
  for t, axes in zip(found, panels):
    axes.set_title(f"temperature {t:g}", fontsize=10)
    dress(axes)
  return figure, dict(zip(found, panels))


def _label_rows(axes: Axes, names) -> None:
  """Names rows of bars, the first on top; a few stay slim, in the middle."""
  axes.set_yticks(range(len(names)), names, fontsize=9)
  beyond = 0.5 + max(5 - len(names), 0) / 2
  axes.set_ylim(len(names) - 1 + beyond, -beyond)
  axes.grid(False, axis="y")


def _finish(
    figure: Figure, numbers: dict, runs: Runs, ylabel: str,
    more: list[Line2D] = (), widths: bool = False,
) -> Figure:
  """Names the y axis, and the drafters (and their K) below all panels."""
  figure.axes[0].set_ylabel(ylabel)
  keys = [
      Line2D([], [], label=_words(name, 24) + (
          f", K {own[0]['k']}" if widths else ""
      ), **_styles(numbers)[name])
      for name, own in _drafters(runs)
  ]
  figure.legend(
      handles=[*keys, *more], loc="outside lower center", ncols=4,
      frameon=False, fontsize=9,
  )
  return figure
