"""Result lines -> numbers: checked, then pooled by run and by category.

A line is one of `LINES`. Files may come from anywhere: whatever is wrong with
one is a ValueError that names the line and the field.
"""

import collections
import json
import pathlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from specjax import metrics, requests, theory

MOST = 1000  # drafts a round
LEAST = 5  # groups that can tell an interval
LOOPS = 0.5  # a text with a smaller share of distinct 4-grams repeats itself


class Leaf(NamedTuple):
  """A field's kind: what holds of it, and the words for that."""

  holds: Callable[[Any], bool]
  words: str


class Run(NamedTuple):
  """What was run; synthetic acceptance: its drafts were made to pass."""

  drafter: str
  k: int | str
  temperature: float
  batch: int
  synthetic_acceptance: float | None

  @classmethod
  def of(cls, found: dict) -> "Run":
    return cls(*(found.get(name) for name in cls._fields))

  def order(self) -> tuple:
    auto = self.k == "auto"
    return (
        self.drafter, self.temperature, self.batch, auto, 0 if auto else self.k,
        self.synthetic_acceptance or 0,
    )


def _number(x) -> bool:
  plain = isinstance(x, int | float) and not isinstance(x, bool)
  return plain and 0 <= x < 2**53  # no NaN either


NUMBER = Leaf(_number, "a number of 0 or more")
MAYBE = Leaf(lambda x: x is None or _number(x), "a number of 0 or more")
COUNT = Leaf(lambda x: _number(x) and isinstance(x, int), "a whole number")
TEXT = Leaf(lambda x: isinstance(x, str), "a text")
NAME = Leaf(lambda x: isinstance(x, str) or _number(x), "a text or a number")
WIDTH = Leaf(
    lambda x: x == "auto" or COUNT.holds(x) and x <= MOST,
    f'a whole number up to {MOST} or "auto"',
)
TRUTH = Leaf(lambda x: x is None or isinstance(x, bool), "true or false")
TABLE = Leaf(lambda x: x is None or isinstance(x, dict), "an object")
RUN = dict(
    drafter=TEXT, k=WIDTH, temperature=NUMBER, batch=COUNT,
    synthetic_acceptance=MAYBE,
)
COUNTS = {name: NUMBER for name in metrics.COUNTS} | {
    name: [NUMBER] for name in metrics.BY_POSITION
}
SIDE = dict(
    seconds=NUMBER, first=NUMBER, later=COUNT, rows=[COUNTS],
    distinct=[NUMBER],
)
PARTS = ("propose", "verify", "one", "both", "rounds", "streamed")
LINES = dict(
    about=dict(command=TEXT, date=TEXT, synthetic_acceptance=MAYBE),
    compile=dict(run=RUN, seconds=NUMBER, calibrating=MAYBE),
    turn=dict(
        run=RUN, group=NAME, turn=NAME, prompts=[NAME], categories=[TEXT],
        drafts=SIDE, plain=SIDE,
    ),
    baseline=dict(batch=COUNT, window=COUNT, two_over_one=NUMBER),
    cost=dict(
        run=RUN, milliseconds=dict.fromkeys(PARTS, NUMBER), narrow=TRUTH,
    ),
    peer=dict(
        peer=TEXT, mode=TEXT, temperature=NUMBER, prompt=NAME, turn=NAME,
        seconds=NUMBER, first=NUMBER, emitted=COUNT, later=MAYBE, agrees=MAYBE,
        of=MAYBE, beside=MAYBE, versions=TABLE,
    ),
)


def read(path: str | pathlib.Path) -> Iterator[dict]:
  """The lines of a file of results.

  A last line without its end was cut by a kill and is left out. Raises
  ValueError in one sentence for any other line that is no JSON object.
  """
  for n, raw in requests.lines(pathlib.Path(path)):
    try:
      found = json.loads(raw or b"")
    except (ValueError, RecursionError):
      if raw and not raw.endswith(b"\n"):
        return
      raise ValueError(
          f"{path}, line {n}: it is no JSON of at most"
          f" {requests.LINE_LIMIT:,} bytes; give one object a line."
      ) from None
    if not isinstance(found, dict):
      raise ValueError(f"{path}, line {n}: give a JSON object.")
    yield found


def _shown(x) -> str:
  kinds = {dict: "an object", list: "a list"}
  return kinds.get(type(x)) or f"{x!r:.40}"


def _check(found, kind, where: str) -> None:
  """Raises ValueError where `found` is not of a `kind` as in LINES."""
  if isinstance(kind, Leaf):
    if not kind.holds(found):
      raise ValueError(f"{where} is {_shown(found)}; give {kind.words}.")
  elif not isinstance(found, type(kind)):
    words = "an object" if isinstance(kind, dict) else "a list"
    raise ValueError(f"{where} is {_shown(found)}; give {words}.")
  elif isinstance(kind, list):
    for i, x in enumerate(found):
      _check(x, kind[0], f"{where}[{i}]")
  else:
    for name, inner in kind.items():
      _check(found.get(name), inner, f"{where}.{name}")


def _checked(n: int, line: dict) -> dict:
  """A line that holds what its kind must, lists of equal length included."""
  kind = line.get("kind")
  if not isinstance(kind, str) or kind not in LINES:
    raise ValueError(
        f"line {n}: kind is {_shown(kind)}; give one of {', '.join(LINES)}."
    )
  _check(line, LINES[kind], f"line {n}: {kind}")
  if kind == "turn":
    rows = len(line["prompts"])
    lists = [line["categories"]] + [
        line[side][name] for side in ("drafts", "plain")
        for name in ("rows", "distinct")
    ]
    if not rows or any(len(x) != rows for x in lists):
      raise ValueError(
          f"line {n}: prompts, categories, rows and distinct must be equally"
          " long, and not empty."
      )
    for row in line["drafts"]["rows"]:
      if len({len(row[name]) for name in metrics.BY_POSITION}) > 1:
        raise ValueError(
            f"line {n}: {', '.join(metrics.BY_POSITION)} of a row must be of"
            " one length."
        )
  return line


def numbers(lines: Iterable[dict]) -> dict:
  """All that a report shows: about, synthetic, runs, peers.

  A run has its fields, `compile` seconds, `total` and `categories` (`_set`),
  `split` and `theory` where its costs were measured. Of equal lines the last
  counts: a run that was killed may have begun some turns again. Raises
  ValueError naming the first bad line, or what the file lacks.
  """
  about = None
  costs, compiles = {}, collections.Counter()
  calibrating, baselines = collections.Counter(), []
  turns, peers = (collections.defaultdict(dict) for _ in range(2))
  for n, line in enumerate(lines, 1):
    kind = _checked(n, line)["kind"]
    run = Run.of(line["run"]) if "run" in LINES[kind] else None
    if kind == "about":
      about = {name: x for name, x in line.items() if name != "kind"}
    elif kind == "turn":
      turns[run][line["group"], line["turn"]] = line
    elif kind == "baseline":
      baselines.append(line)
    elif kind == "cost":
      costs[run] = line["milliseconds"] | dict(narrow=line.get("narrow"))
    elif kind == "compile":
      compiles[run] += line["seconds"]
      calibrating[run] += line.get("calibrating") or 0.0
    else:
      key = tuple(line[name] for name in ("peer", "mode", "temperature"))
      peers[key][line["prompt"], line["turn"]] = line
  if about is None:
    raise ValueError("no line is of kind 'about'; the first one should be.")
  runs = sorted(turns, key=Run.order)
  marks = [about.get("synthetic_acceptance"), *(r[-1] for r in runs)]
  return dict(
      about=about,
      synthetic=next((x for x in marks if x is not None), None),
      runs=[
          _run(r, [*turns[r].values()], costs.get(r), compiles.get(r))
          | dict(calibrating=calibrating[r])
          for r in runs
      ],
      baselines=baselines,
      peers=[_peer(*key, [*peers[key].values()]) for key in sorted(peers)],
  )


def _run(run: Run, turns: list[dict], cost, compiling) -> dict:
  names = sorted({name for t in turns for name in t["categories"]})
  total = _set(turns)
  return run._asdict() | dict(
      compile=compiling, total=total,
      categories={name: _set(turns, name) for name in names},
      split=cost and _split(cost),
      theory=cost and _theory(run.k, total["counts"], cost),
  )


def _set(turns: list[dict], category: str | None = None) -> dict:
  """Of all prompts of some turns, or of one category.

  Counts are a row's own; seconds are a group's, so that a category has those
  of the groups that are wholly of it.
  """
  mine = [
      (prompt, row) for t in turns for prompt, name, row in zip(
          t["prompts"], t["categories"], t["drafts"]["rows"]
      ) if category in (None, name)
  ]
  counts = metrics.pool([row for _, row in mine])
  gap, may = metrics.gap(counts)
  found = metrics.rates(counts)
  found["conditional"] = [
      rate if n else None
      for rate, n in zip(found["conditional"], counts["reached"])
  ]
  whole = [t for t in turns if category is None
           or set(t["categories"]) == {category}]
  return found | _speed(whole) | dict(
      prompts=len({prompt for prompt, _ in mine}), counts=counts,
      gap=gap, may=may, holds=abs(gap) <= may,
  )


def _speed(turns: list[dict]) -> dict:
  """Speed-ups of some turns, and both sides' seconds.

  Seconds a later token are a mean over turns, so that the pooled speed-up is
  their ratio; None where no turn wrote tokens after its first round.
  """
  looping = [min(t["plain"]["distinct"]) < LOOPS for t in turns]
  texts = [x < LOOPS for t in turns for x in t["plain"]["distinct"]]
  groups, others = _groups(turns), _groups(
      [t for t, loops in zip(turns, looping) if not loops]
  )
  ratios = [float(np.median(x[:, 1] / x[:, 0])) for x in groups]
  side = lambda i: _mean([x[:, i] for x in groups])
  first = lambda name: _median([t[name]["first"] for t in turns])
  return dict(
      speedup=_ratio(groups), interval=_interval(groups),
      median=_median(ratios),
      quartiles=np.percentile(ratios, (25, 75)).tolist() if ratios else None,
      looping=sum(texts), texts=len(texts), speedup_others=_ratio(others),
      seconds=[side(0), side(1)], first=[first("drafts"), first("plain")],
  )


def _groups(turns: list[dict]) -> list[np.ndarray]:
  """[turns, 2] seconds a later token with and without drafts, by group."""
  out = collections.defaultdict(list)
  for t in turns:
    pair = [t[side]["later"] and t[side]["seconds"] / t[side]["later"]
            for side in ("drafts", "plain")]
    if all(pair):
      out[t["group"]].append(pair)
  return [np.array(x) for x in out.values()]


def _ratio(groups: list[np.ndarray]) -> float | None:
  if not groups:
    return None
  drafts, plain = np.concatenate(groups).sum(0)
  return float(plain / drafts)


def _interval(groups: list[np.ndarray]) -> list[float] | None:
  """Of the pooled speed-up, over groups; a few groups have none."""
  if len(groups) < LEAST:
    return None
  over = lambda sums: sum(b for _, b in sums) / sum(a for a, _ in sums)
  return [*metrics.bootstrap([tuple(x.sum(0).tolist()) for x in groups], over)]


def _mean(parts: list[np.ndarray]) -> float | None:
  return float(np.concatenate(parts).mean()) if parts else None


def _median(values: list[float]) -> float | None:
  return float(np.median(values)) if values else None


def _split(ms: dict) -> dict[str, float]:
  """Milliseconds of a round by its parts, each what it adds to those before:
  a part that adds nothing may come out below 0, by noise, and is 0 then."""
  parts = dict(
      draft=ms["propose"], verify=ms["both"] - ms["propose"],
      rule=ms["rounds"] - ms["both"], host=ms["streamed"] - ms["rounds"],
  )
  return {name: max(x, 0.0) for name, x in parts.items()}


def _theory(k, counts: dict, ms: dict) -> dict | None:
  """What measured acceptance and costs foresee; None where K is not fixed.

  Position i's acceptance is passed[i] / passed[i - 1]: over judged drafts,
  as long as every round has all K, and a draft that was not made is a miss.
  Where rounds may be narrow, one without drafts is a pass of one token. Costs
  are of whole rounds: to check a draft, the target's pass, its laws and the
  rule; over a round without drafts.
  """
  if not isinstance(k, int) or not k or not ms["one"]:
    return None
  passed = [counts["rounds"], *counts["passed"], *[0] * k][: k + 1]
  onward = [b / a if a else 0.0 for a, b in zip(passed, passed[1:])]
  c = ms["propose"] / k / ms["one"]
  wide = 1.0
  if ms["narrow"] and counts["rounds"]:
    wide = sum(counts["reached"][:1]) / counts["rounds"]
  whole = max(ms["rounds"], ms["both"] if ms["narrow"] else 0.0)
  verify = max(whole - ms["propose"], 0.0) / ms["one"]
  verify = wide * verify + (1 - wide)
  if not k * c + verify:
    return None
  return dict(
      c=c, verify=verify, tokens=theory.expected_tokens(onward),
      speedup=theory.speedup(onward, c, verify),
  )


def _peer(peer: str, mode: str, temperature: float, lines: list[dict]) -> dict:
  """`later` tokens took a line's seconds; by default all but the first."""
  later = [x["emitted"] - 1 if x.get("later") is None else x["later"]
           for x in lines]
  timed = [x["seconds"] / n for x, n in zip(lines, later)
           if n > 0 and x["seconds"]]
  compared = [x for x in lines if x.get("of")]
  agrees = [x.get("agrees") or 0 for x in compared]
  return dict(
      peer=peer, mode=mode, temperature=temperature,
      prompts=len({x["prompt"] for x in lines}),
      seconds=float(np.mean(timed)) if timed else None,
      first=_median([x["first"] for x in lines]),
      texts=len(compared),
      beside=_beside(lines),
      same=sum(n == x["of"] for n, x in zip(agrees, compared)),
      tokens=sum(x["of"] for x in compared), same_tokens=sum(agrees),
      versions=lines[-1].get("versions") or {},
  )


def _beside(lines: list[dict]) -> float | None:
  """How many times as fast this engine was without drafts, in turn with it:
  `beside` is its seconds a token."""
  pairs = [(x["seconds"] / x["later"], x["beside"]) for x in lines
           if x.get("later") and x.get("beside")]
  return sum(a for a, _ in pairs) / sum(b for _, b in pairs) if pairs else None
