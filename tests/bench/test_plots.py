"""Pictures: what they show, that nothing covers anything, that they are small.
"""

import struct

import pytest

pytest.importorskip("matplotlib")

from matplotlib.colors import to_hex  # noqa: E402

from specjax.bench import plots, report  # noqa: E402

LONG = tuple(f"a category with quite a long name {i}" for i in range(11))
CASES = {
    "full": dict(ks=(1, 2, 4, "auto"), batches=(1, 2)),
    "one": dict(drafters=("ngram",), ks=(4,), temperatures=(0.0,),
                batches=(1,), peers=False),
    "names": dict(
        categories=(*LONG, "<script>$x_2$", "_\u4e2d"), peers=False,
        drafters=("a drafter with a long name", "<b>", "_$"), ks=(2,),
        batches=(1,), costs=False, a_category=1,
    ),
    "synthetic": dict(
        drafters=("ngram",), ks=(1, 2, 3, 4, 5, 6, 7, 8), a_category=1,
        batches=(1,), temperatures=(0.0, 0.3, 0.6, 1.0), peers=False,
        synthetic_acceptance=0.8,
    ),
}
SHOWN = {
    "full": {name for name, *_ in plots.PICTURES},
    "one": {"acceptance", "split", "categories"},
    "names": {"acceptance", "categories"},
    "synthetic": {"acceptance", "length", "speedup", "split", "categories"},
}


@pytest.fixture(scope="module", params=CASES)
def case(request, fake):
  """(name, numbers, figures by name)."""
  numbers = report.numbers(fake(**dict(a_category=2) | CASES[request.param]))
  figures = {name: draw(numbers) for name, draw, _ in plots.PICTURES}
  return request.param, numbers, {n: f for n, f in figures.items() if f}


def test_a_plot_without_data_is_left_out(case):
  name, _, figures = case
  assert figures.keys() == SHOWN[name]


def test_nothing_covers_anything(case):
  for name, figure in case[2].items():
    figure.draw_without_rendering()
    whole = figure.bbox
    boxes = [axes.get_tightbbox() for axes in figure.axes]
    boxes += [legend.get_window_extent() for legend in figure.legends]
    boxes.append(figure._suptitle.get_window_extent())
    for i, box in enumerate(boxes):
      assert whole.x0 <= box.x0 and box.x1 <= whole.x1 + 1, name
      assert whole.y0 <= box.y0 and box.y1 <= whole.y1 + 1, name
      assert not any(box.overlaps(other) for other in boxes[:i]), name
    for axes in figure.axes:
      for labels in (axes.get_xticklabels(), axes.get_yticklabels()):
        seen = [x.get_window_extent() for x in labels if x.get_text()]
        assert not any(a.overlaps(b) for a, b in zip(seen, seen[1:])), name


def test_pictures_are_small_and_say_what_is_not_real(case):
  name, numbers, figures = case
  drawn = plots.drawn(numbers)
  assert drawn.keys() == figures.keys()
  for png, caption in drawn.values():
    width, height = struct.unpack(">II", png[16:24])
    assert width <= 1800 and height <= 1080 and len(png) < 150_000
    assert ("not real output" in caption) == (name == "synthetic")
  for figure in figures.values():
    title = figure._suptitle.get_text()
    assert ("not real output" in title) == (name == "synthetic")


@pytest.mark.parametrize("case", ["full"], indirect=True)
def test_a_drafter_keeps_its_colour(case):
  _, numbers, figures = case
  model, ngram = plots.COLOURS[:2]
  assert [*plots._styles(numbers)] == ["model", "ngram"]
  for shown in ("acceptance", "length", "speedup", "batches", "categories"):
    keys = figures[shown].legends[0].get_lines()
    colours = {x.get_label().split(",")[0]: x.get_color() for x in keys}
    assert (colours["model"], colours["ngram"]) == (model, ngram), shown
  bars = {to_hex(x.get_facecolor()) for x in figures["peers"].axes[0].patches}
  assert bars == {model, ngram, plots.PLAIN, plots.PEER}


@pytest.mark.parametrize("case", ["synthetic"], indirect=True)
def test_lines_show_the_numbers(case):
  _, numbers, figures = case
  runs = [r for r in numbers["runs"] if r["temperature"] == 0.3]
  axes = figures["speedup"].axes[1]
  solid, dashed = (
      [x for x in axes.lines if x.get_linestyle() == style
       and len(x.get_xdata()) == 8] for style in ("-", "--")
  )
  assert axes.get_title() == "temperature 0.3"
  assert [*solid[0].get_ydata()] == [r["total"]["speedup"] for r in runs]
  assert [*dashed[0].get_ydata()] == [r["theory"]["speedup"] for r in runs]
  assert [x.get_text() for x in axes.get_xticklabels()] == [*"12345678"]


@pytest.mark.parametrize("case", ["full"], indirect=True)
def test_auto_stands_apart_from_the_line(case):
  axes = case[2]["length"].axes[0]
  shown = [x.get_text() for x in axes.get_xticklabels()]
  assert shown == ["1", "2", "4", "auto"]
  assert [len(x.get_xdata()) for x in axes.lines[:4]] == [3, 1, 3, 1]


@pytest.mark.parametrize("case", ["full"], indirect=True)
def test_peers_stand_at_their_best(case):
  axes = case[2]["peers"].axes[0]
  shown = [x.get_text().split(", ", 2)[1:] for x in axes.get_yticklabels()]
  assert [x[1] for x in shown if x[0] == "transformers"] == [
      "assisted 4", "lookup 4", "plain"
  ]
  assert len(shown) == 6  # and no drafts, and two drafters


def test_names_end_in_what_a_font_can_show():
  assert plots._words("a" * 20 + "bc", 9) == "aaaa…aabc"
  assert plots._words("_$\n\u4e2d", 9) == r"\$??"
  assert plots._words("", 9) == "?"
