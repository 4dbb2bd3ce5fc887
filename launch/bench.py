"""How much sooner a pair writes the same text: A B A B against no drafts.

  python launch/bench.py --out=docs/results/embedded-2026-11-30

Every prompt is read once; then generation alone is timed, drafts and no
drafts taking turns within one run, and ratios are formed within a turn. Also
timed, in loops of 100: a drafter step, target passes of two widths, and whole
rounds against the propose and verify passes they consist of.
"""

import datetime
import json
import shlex
import sys

import jax
import shell
import words

from specjax import bench, sampling

FLAGS = words.FLAGS | dict(
    drafter=("autoregressive", "autoregressive or ngram."),
    prompts=("configs/prompts/heldout.jsonl", "JSONL lines with a prompt."),
    chat=(False, "Prompts are users' turns, by the target's template."),
    k=(("2", "4"), "Drafts a round; repeat for several."),
    temperatures=(("0", "1"), "Repeat for several."),
    new_tokens=(200, "Tokens written after each prompt, ends ignored."),
    repeats=(3, "Turns of A B for each prompt."),
    out=("", "Writes this .jsonl and .md; by default with today's date."),
)


def main(c):
  ks = [number("k", k, int) for k in c.k]
  heats = [number("temperatures", t, float) for t in c.temperatures]
  if not all(1 <= k <= 64 for k in ks):
    raise ValueError(f"--k={', '.join(c.k)}: each must lie in 1..64.")
  for heat in heats:
    sampling.params(1, temperature=heat)  # before minutes are spent
  if min(c.repeats, c.new_tokens) < 1:
    raise ValueError("--repeats and --new_tokens must be at least 1.")
  if c.drafter == "nothing":
    raise ValueError("--drafter=nothing is the baseline; name another.")
  out = c.out or f"docs/results/embedded-{datetime.date.today()}"
  bench.writable(out)
  c.num_speculative_tokens = max(ks)
  with jax.set_mesh(words.mesh(c.mesh)):
    m = words.models(c)
    target = words.Model(m.target, m.tokenizer, m.prints["target"])
    texts = bench.prompts(c.prompts, c.new_tokens, m.tokenizer, c.chat)
    setup = bench.Setup(
        m.target, m.rule, texts, c.new_tokens, c.repeats, c.seed
    )
    found = measured(c, target, setup, ks, heats)
    records = list(map(said, found))
  print(bench.write(out, records))


def measured(c, target, setup, ks, heats):
  """The records, each as soon as it is there."""
  plain, windows = bench.baseline(setup)
  command = " ".join(["python", *map(shlex.quote, sys.argv)])
  yield dict(kind="machine", **bench.machine(command), **windows)
  for K in ks:
    c.num_speculative_tokens = K
    drafter, _ = words.drafter(c, target)
    parts = {
        name: bench.costs(setup, drafter, law)
        for name, law in bench.LAWS.items()
    }
    yield dict(kind="cost", k=K, **parts)
    for heat in heats:
      yield bench.race(setup, drafter, plain, heat)


def number(flag, word, kind):
  try:
    return kind(word)
  except ValueError:
    raise ValueError(f"--{flag}={word}: give a number.") from None


def said(record):
  print(json.dumps(record), flush=True)
  return record


if __name__ == "__main__":
  shell.run(main, FLAGS)
