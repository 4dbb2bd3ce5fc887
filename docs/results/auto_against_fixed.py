"""A K chosen while it runs, against the best fixed K and against no drafts.

  python docs/results/auto_against_fixed.py > docs/results/auto.md

Three texts of the embedded target: predictable (T 0, after what it was trained
on, where it repeats itself), adversarial (T 1, after random tokens, the
drafter's weights random too, so that nearly no draft passes), and a batch of 32
(T 1). All ways take turns over the same prompts and seeds, several turns of
seeds of their own; ratios are of seconds a token, pooled, their intervals by
bootstrap over the groups of prompts that are generated together.
"""

import functools
import pathlib
import sys
import time

import jax
import numpy as np
from flax import nnx

from specjax import embedded, engine, metrics, rules, sharding
from specjax.auto import Auto, with_k
from specjax.bench import costs, machine, measure
from specjax.bench.measure import Group, Side, Task
from specjax.drafters.autoregressive import Autoregressive
from specjax.models.decoder import Decoder
from specjax.train import corpus

FIXED = (1, 2, 4, 8)
TURNS = 3
BOUND = 0.90  # that both intervals should stay above


def bound(target, drafter):
  return functools.partial(engine.generate, target, drafter, rule=rules.token)


def fixed(target, drafter, K):
  own = with_k(drafter, K)
  return Side(target, own, bound(target, own))


def pace(side, group, task, turn):
  """Seconds a token of one generation."""
  part, _ = measure.once(side, group, task, turn)
  return part["seconds"] / max(part["later"], 1)


def groups(found, batch):
  """Of a list of token ids, each a prompt."""
  return [
      Group([str(n)] * batch, ["x"] * batch, found[n : n + batch])
      for n in range(0, len(found), batch)
  ]


def best_k(target, drafter, some, task):
  """The fixed K of the least seconds a token over some groups."""
  sides = {K: fixed(target, drafter, K) for K in FIXED}
  spent = {K: 0.0 for K in FIXED}
  for side in sides.values():
    measure.once(side, some[0], task)  # compiles
  for turn in range(2):
    for group in some:
      for K, side in sides.items():
        spent[K] += pace(side, group, task, turn)
  return min(spent, key=spent.get)


def compare(name, target, drafter, some, task):
  """One row of the table: three ways in turn over all groups."""
  runner = Auto(target, drafter)
  K = best_k(target, drafter, some[:3], task)
  plain, _ = costs.baseline(target, some[0].tokens)
  sides = [
      Side(target, drafter, runner), fixed(target, drafter, K),
      Side(target, plain, bound(target, plain)),
  ]
  for side in sides:
    measure.once(side, some[0], task)
  runner.rounds = dict.fromkeys(runner.rounds, 0)
  spent = np.zeros((len(some), 3))
  for turn in range(TURNS):
    for n, group in enumerate(some):
      for i in np.roll(range(3), n + turn):
        spent[n, i] += pace(sides[i], group, task, turn * len(some) + n)
  rows = [tuple(x) for x in spent]
  words, holds = [], True
  for j in (1, 2):
    ratio = lambda part: sum(x[j] for x in part) / sum(x[0] for x in part)  # noqa: B023
    low, high = metrics.bootstrap(rows, ratio)
    words.append(f"{ratio(rows):.2f} ({low:.2f} to {high:.2f})")
    holds &= low >= BOUND
  used = ", ".join(f"K {k}: {n}" for k, n in runner.rounds.items() if n)
  return (
      f"| {name} | {len(some)} | {task.new_tokens} | {K} | {words[0]} |"
      f" {words[1]} | {used} | {runner.calibrating:.0f} |"
      f" {'yes' if holds else 'NO'} |"
  )


def main():
  with jax.set_mesh(sharding.mesh(1, 1)):
    words = embedded.tokenizer()
    target, small = embedded.model("target"), embedded.model("drafter")
    drafter = Autoregressive(small, max(FIXED))
    noise = Autoregressive(Decoder(small.c, rngs=nnx.Rngs(0)), max(FIXED))
    texts = [
        [words.bos, *words.encode(p)]
        for p in corpus.prompts(corpus.load("train", allow_changed=True), 40)
    ]
    rng = np.random.default_rng(0)
    rubbish = rng.integers(3, target.vocab, (20, 24)).tolist()
    length = max(map(len, texts))
    about = machine.about(" ".join(["python", *sys.argv]), {})
    print("# K chosen while it runs, against fixed ones\n")
    print(f"    {about['command']}\n")
    print(f"{about['cpu']}, {about['cores']} cores, jax {about['jax']},"
          f" {about['date']}; embedded pair, float32.\n")
    print("| text | groups | tokens a row | best fixed K"
          " | over the best fixed K (95 %) | over no drafts (95 %)"
          " | rounds at each K | calibrating, s | both"
          f" at least {BOUND:.2f} |")
    print("|--|--|--|--|--|--|--|--|--|", flush=True)

    def task(temperature, new):
      room = measure.states.bucket(length + new, max(measure.CHUNKS))
      return Task(new, dict(temperature=temperature), 0, (), room)

    cases = [
        ("predictable, T 0", drafter, groups(texts, 1), task(0.0, 200)),
        ("adversarial, T 1", noise, groups(rubbish, 1), task(1.0, 200)),
        ("batch of 32, T 1", drafter, groups(texts * 8, 32),
         task(1.0, 48)),
    ]
    for name, own, some, asked in cases:
      print(compare(name, target, own, some, asked), flush=True)


if __name__ == "__main__":
  cache = pathlib.Path("~/.cache/specjax").expanduser()
  jax.config.update("jax_compilation_cache_dir", str(cache))
  began = time.monotonic()
  main()
  print(f"\nIt took {(time.monotonic() - began) / 60:.0f} minutes.")
