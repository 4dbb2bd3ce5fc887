"""A plan as a picture: a token's time against K, the gain against batch."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specjax.bench.plots import COLOURS, GREY, INK, MARKERS, SIZE, dress
from specjax.plan.report import title


def draw(n: dict) -> Figure:
  """Left a line a batch, right the best K's gain and where memory ends."""
  figure = Figure(SIZE, layout="constrained")
  figure.suptitle(title(n), fontsize=10)
  times, gains = figure.subplots(1, 2)
  _times(times, n)
  _gains(gains, n)
  figure.legend(
      *times.get_legend_handles_labels(), loc="outside lower center", ncols=4,
      frameon=False, fontsize=9,
  )
  return figure


def _times(axes: Axes, n: dict) -> None:
  dress(axes)
  for i, batch in enumerate(dict.fromkeys(r["batch"] for r in n["speed"])):
    own = [r for r in n["speed"] if r["batch"] == batch]
    own.sort(key=lambda r: r["k"])
    x = [0, *(r["k"] for r in own)]
    y = [own[0]["plain_ms"], *(r["token_ms"] for r in own)]
    axes.plot(
        x, y, label=f"batch {batch}", color=COLOURS[i % len(COLOURS)],
        marker=MARKERS[i % len(MARKERS)], markersize=5,
    )
  axes.set_xticks(x)
  axes.set_ylim(0)
  axes.set(
      xlabel="K, drafts a round (0 = none)", ylabel="milliseconds a token",
  )
  axes.set_title("least time of a row's token", fontsize=10)


def _gains(axes: Axes, n: dict) -> None:
  dress(axes)
  batches = [r["batch"] for r in n["curve"]]
  gains = [r["speedup"] for r in n["curve"]]
  axes.plot(batches, gains, color=INK, marker="o", markersize=4)
  for r in n["curve"][::2]:
    axes.annotate(
        f"K {r['k']}" if r["k"] else "off", (r["batch"], r["speedup"]),
        (0, 7), textcoords="offset points", ha="center", fontsize=8,
    )
  axes.axhline(1.0, color=INK, linewidth=1)
  most = n["memory"][0]["largest"]
  if most < batches[-1]:
    axes.axvspan(most, batches[-1] * 1.6, color="#eef1f3", zorder=0)
    axes.annotate(
        f"more than {most}\ndo not fit", (most, 1), (4, -4),
        textcoords="offset points", va="top", fontsize=8, color=GREY,
    )
  axes.set_xscale("log", base=2)
  axes.set_xlim(batches[0] / 1.6, batches[-1] * 1.6)
  axes.set_ylim(0, 1.15 * max(gains))
  axes.xaxis.set_major_formatter("{x:g}")
  axes.set(xlabel="batch, rows", ylabel="speed-up (times)")
  axes.set_title("speed-up at the best K", fontsize=10)
