"""A plan as tables and sentences; the same for a terminal and for a page."""

from collections.abc import Iterator
from typing import NamedTuple

from specjax.plan.memory import GIB

LEFT_OUT = (
    "Times are the least that the peaks allow: the longer of arithmetic and"
    " HBM traffic, then the transfers between chips, of which none is taken to"
    " overlap with it, over all links of the chip that has the fewest and 1 µs"
    " for each neighbour on the way.",
    "Left out: starting programs and ops, products that do not fill the matrix"
    " units, element-wise work, padding to tiles, the host, other traffic on"
    " the links. A real run takes longer, its draft steps more so than its"
    " passes; ratios of two times are better than either.",
    "Rows are as long as all their slots; branches count by the dearest, so"
    " sampling is that with top-k and top-p. K drafts cost K draft steps. The"
    " drafter's reading of a prompt is not in its time.",
)


class Table(NamedTuple):
  title: str
  columns: tuple[str, ...]
  rows: list[tuple[str, ...]]


def tables(n: dict) -> Iterator[Table]:
  """All tables of the numbers that `planner.foresee` made and launch/plan.py
  added names to."""
  gib = lambda x: f"{x / GIB:.2f}"
  yield Table(
      f"Memory of a chip, GiB of {n['usable'] / GIB:g}",
      ("batch", "weights", "cache", "beside", "together", "left"),
      [
          (str(r["batch"]), gib(r["weights"]), gib(r["cache"]),
           gib(r["beside"]), gib(r["total"]),
           gib(n["usable"] - r["total"]))
          for r in n["memory"]
      ],
  )
  yield from _times(n)
  yield Table(
      "Collectives",
      ("program", "where", "kind", "MB", "chips", "times"),
      [
          (_program(r["program"]), r["where"], r["kind"],
           f"{r['bytes'] / 1e6:.3g}", str(r["group"]), f"{r['times']:.3g}")
          for r in n["collectives"]
      ],
  )
  if n["what_if"]:
    yield from _times(n["what_if"], f", {n['what_if']['topology']} by formula")
  p = n["published"]
  at = [r for r in n["speed"] if p and (r["batch"], r["k"]) == (1, p["k"])]
  if at:
    yield _published(p, at[0])


def _program(name) -> str:
  return name if isinstance(name, str) else f"verify {name}"


def _times(n: dict, where: str = "") -> Iterator[Table]:
  ms = lambda x: f"{1e3 * x:.3f}"
  yield Table(
      f"Programs on a chip{where}",
      ("batch", "program", "TFLOP", "HBM GB", "read once GB", "arith. ms",
       "memory ms", "links ms", "all ms"),
      [
          (str(r["batch"]), r["program"], f"{r['flops'] / 1e12:.4f}",
           f"{r['bytes'] / 1e9:.3f}", f"{r['once'] / 1e9:.3f}",
           ms(r["arithmetic"]), ms(r["memory"]), ms(r["links"]),
           ms(r["total"]))
          for r in n["programs"]
      ],
  )
  plain = {r["batch"]: r["plain_ms"] for r in n["speed"]}
  rows = []
  for batch, base in plain.items():
    rows.append((str(batch), "none", "1", "1", f"{base:.3f}", f"{base:.3f}",
                 "1"))
    rows += [
        (str(batch), str(r["k"]), f"{r['tokens']:.2f}", f"{r['flat']:.3f}",
         f"{r['round_ms']:.3f}", f"{r['token_ms']:.3f}", f"{r['speedup']:.2f}")
        for r in n["speed"] if r["batch"] == batch
    ]
  yield Table(
      f"A token's time{where}",
      ("batch", "K", "tokens a round", "pass / plain", "round ms", "token ms",
       "speed-up"),
      rows,
  )
  yield Table(
      f"Speed-up against batch, at its best K{where}",
      ("batch", "K", "speed-up"),
      [
          (str(r["batch"]), str(r["k"] or "none"), f"{r['speedup']:.2f}")
          for r in n["curve"]
      ],
  )


def _published(p: dict, at: dict) -> Table:
  """What others measured beside the plan; tokens a round are as they had."""
  took = p["plain_ms"] + p["k"] * p["draft_ms"]
  pairs = [
      ("a pass of the target, ms", p["plain_ms"], at["plain_ms"]),
      ("a draft step, ms", p["draft_ms"], at["draft_ms"]),
      (f"a round of K = {p['k']}, ms", took, at["round_ms"]),
  ]
  for name, ms in p["token_ms"].items():
    tokens = took / ms
    ours = at["round_ms"] / tokens
    pairs += [
        (f"{name}, ms a token at {tokens:.2f} a round", ms, ours),
        (f"{name}, speed-up", p["plain_ms"] / ms, at["plain_ms"] / ours),
    ]
  return Table(
      f"Beside {p['source']}",
      ("batch 1", "measured", "plan", "plan / measured"),
      [(w, f"{a:.2f}", f"{b:.2f}", f"{b / a:.2f}") for w, a, b in pairs],
  )


def sentences(n: dict) -> Iterator[str]:
  """What the tables do not say, a sentence each."""
  for row in n["memory"]:
    if row["unfit"]:
      yield _sentence(row["unfit"])
  if not any(row["unfit"] for row in n["memory"]):
    yield f"The largest batch that fits is {n['memory'][0]['largest']}."
  fit = n["fit"]
  if not fit["refused"]:
    yield (
        f"All layers of generate at batch {fit['batch']}, K = {fit['k']},"
        f" compile to {fit['compiled'] / GIB:.3f} GiB a chip"
        f" ({fit['temporaries'] / GIB:.3f} of it temporaries); slices of few"
        f" layers foretold {fit['foretold'] / GIB:.3f}, {100 * fit['off']:+.1f}"
        " %."
    )
  done, read = n["compiled"], n["prefill"]
  listed = lambda x: ", ".join(map(str, x))
  yield (
      f"Compiled at batch {listed(done['batches'])} and K = 0,"
      f" {listed(done['k'])}; others are on the lines through these."
  )
  yield (
      f"Reading {read['tokens']} tokens of {read['batch']} prompts side by side"
      f" takes the target {1e3 * read['total']:.1f} ms."
  )
  loop = n["loop"]
  yield (
      f"A round of the compiled loop moves {loop['bytes']:.2f} times the bytes"
      f" and does {loop['flops']:.2f} times the operations of its parts, the"
      f" pass over {loop['k']} drafts and {loop['k']} draft steps."
  )
  yield from _choices(n)
  if n["what_if"]:
    there = n["what_if"]
    yield (
        f"{there['topology']} was not compiled for: its counts are those of"
        f" {n['topology']}, shared by {there['chips']} chips" + (
            "." if there["drafter_cut"] else
            "; the drafter stays cut as it was."
        )
    )
    yield from _choices(there, f"On {there['topology']}: ")


def _choices(n: dict, where: str = "") -> Iterator[str]:
  for r in n["best"]:
    found = (
        f"K = {r['k']} is foreseen best, {r['speedup']:.2f} times as fast as no"
        " drafts" if r["k"] else "no drafts are foreseen best"
    )
    yield _sentence(f"{where}at batch {r['batch']} {found}.")
  last = n["curve"][-1]
  yield _sentence(
      f"{where}speculation stops paying at batch {n['vanishes']}."
      if n["vanishes"] else
      f"{where}speculation still pays at batch {last['batch']},"
      f" {last['speedup']:.2f} times."
  )


def _sentence(text: str) -> str:
  return text[0].upper() + text[1:]


def title(n: dict) -> str:
  return (
      f"{n['name']} on {n['topology']}: {n['chips']} chips as {n['mesh']},"
      f" {n['context']} slots a row, acceptance {n['acceptance']:g}"
  )


def page(n: dict) -> str:
  """README.md: the sentences, the picture, the tables, what is left out."""
  billions = lambda x: f"{x['parameters'] / 1e9:.2f} billion parameters"
  lines = [
      f"# {title(n)}", "",
      f"A plan, not a measurement: the engine's programs compiled for this"
      f" slice without a chip, target {billions(n['target'])}, drafter"
      f" {billions(n['drafter'])}, all in {n['dtype']}.", "",
      "```", n["command"], "```", "",
      *(f"* {s}" for s in sentences(n)), "", "![the plan](plan.png)", "",
  ]
  for table in tables(n):
    lines += [f"## {table.title}", "", _row(table.columns)]
    lines += [_row(["---"] + ["---:"] * (len(table.columns) - 1))]
    lines += [*map(_row, table.rows), ""]
  lines += ["## What is in these times, and what is not", ""]
  lines += [f"* {s}" for s in (*LEFT_OUT, *n["remarks"])]
  return "\n".join(lines) + "\n"


def _row(cells) -> str:
  return f"| {' | '.join(cells)} |"
