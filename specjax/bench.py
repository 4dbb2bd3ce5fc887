"""Drafts against no drafts, interleaved: speed-ups, costs, and their page.

Timings drift from minute to minute, so what is compared takes turns within
one run, and ratios are formed within a turn before anything is averaged.
"""

import datetime
import json
import os
import pathlib
import platform
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax import engine, metrics, requests, states
from specjax.drafters.nothing import Nothing
from specjax.sharding import spec

LOOP = 100  # rounds, as the promise about overhead has it
TURNS = 7  # of the loops
CHUNK = 64  # tokens of a prompt read at once
LAWS = {"T 1": dict(temperature=1.0), "T 0.6, top-p 0.9": dict(
    temperature=0.6, top_p=0.9
)}


class Setup(NamedTuple):
  """What every measurement of a bench shares; `texts` are token ids."""

  target: Any
  rule: Callable
  texts: list[list[int]]
  new_tokens: int
  repeats: int  # turns of A B for each prompt
  seed: int = 0  # of the first turn


def prompts(
    path: str | pathlib.Path, new_tokens: int, tokenizer, chat: bool = False
) -> list[list[int]]:
  """The token ids of every line of a JSONL file of prompts, with `chat` put
  into the model's template.

  Raises ValueError in one sentence for the first bad line, or an empty file.
  """
  options = requests.Options(max_new_tokens=new_tokens, chat=chat)
  found = [
      requests.parse(raw, n, options, tokenizer)
      for n, raw in requests.lines(pathlib.Path(path))
  ]
  wrong = [r.error for r in found if r.error]
  if not found:
    wrong = ["it is empty; give JSONL lines with a prompt."]
  if wrong:
    raise ValueError(f"{path}: {wrong[0]}")
  return [r.tokens for r in found]


def begin(setup: Setup, drafter, tokens: list[int], **sampling):
  """One row after its prompt; all prompts share one shape of state."""
  longest = max(map(len, setup.texts)) + setup.new_tokens
  return states.prefill(
      setup.target, drafter, [tokens], max_new_tokens=setup.new_tokens,
      chunks=(CHUNK,), sampling=sampling,
      capacity=longest + max(CHUNK, drafter.K + 1),  # the widest window fits
  )


def timed(call: Callable) -> tuple[float, Any]:
  """(seconds, result) of a call, finished and not merely sent off."""
  start = time.perf_counter()
  result = jax.block_until_ready(call())
  return time.perf_counter() - start, result


def turn(setup: Setup, drafter, state, seed: int):
  """Generation from a copy of a prefilled state -> (seconds, Tally, tokens)."""
  copy = jax.block_until_ready(states.fork(state, [0], seed))
  spent, (state, tally) = timed(
      lambda: engine.generate(setup.target, drafter, copy, rule=setup.rule)
  )
  return spent, jax.device_get(tally), states.outputs_of(state)[0]


def distinct(tokens: list[int], n: int = 4) -> float:
  """The share of a text's n-grams that are different ones; a loop has few."""
  grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
  return len(set(grams)) / max(len(grams), 1)


def baseline(setup: Setup) -> tuple[Nothing, dict]:
  """The faster of the windows that a pass without drafts can have.

  Returns its drafter, and what the machine's record says of the choice.
  """
  both = [Nothing(1), Nothing(2)]
  spent = [[], []]
  for tokens in setup.texts[:4]:
    begun = [begin(setup, d, tokens, temperature=0.0) for d in both]
    for i in range(setup.repeats + 1):
      for j in (0, 1) if i % 2 else (1, 0):
        spent[j].append(turn(setup, both[j], begun[j], 0)[0])
  medians = [float(np.median(s[1:])) for s in spent]  # the first compiles
  best = int(np.argmin(medians))
  return both[best], dict(
      baseline_window=best + 1, window_2_over_1=medians[1] / medians[0]
  )


def race(setup: Setup, drafter, plain, temperature: float) -> dict:
  """A record of speed-ups by prompt, and of what the drafts were worth."""
  spent, tally, variety = [], None, []
  for n, tokens in enumerate(setup.texts):
    pair = [
        (d, begin(setup, d, tokens, temperature=temperature))
        for d in (drafter, plain)
    ]
    if not n:  # compiles
      for runner in pair:
        turn(setup, *runner, setup.seed)
    found = np.zeros((setup.repeats, 2))
    for i in range(setup.repeats):
      for j in (0, 1) if (i + n) % 2 else (1, 0):
        found[i, j], t, text = turn(setup, *pair[j], setup.seed + i)
        if j == 0:
          tally = t if tally is None else jax.tree.map(np.add, tally, t)
    spent.append(found)
    variety.append(distinct(text))
  summary = metrics.summary(tally)
  keep = ("acceptance_length", "conditional", "reached_rate", "overlap")
  return dict(
      kind="speed", k=drafter.K, temperature=temperature,
      **speedups(spent, setup.new_tokens, variety),
      **{name: summary[name] for name in keep},
  )


def speedups(
    spent: list[np.ndarray], new_tokens: int, variety: list[float]
) -> dict:
  """Seconds by prompt, [turns 2] with and without drafts, -> ratios.

  A prompt's is the median over turns of the ratio within a turn. Texts that
  loop (under half of their 4-grams, `variety`, are distinct) are easy to
  foresee: the median of the others stands apart.
  """
  ratios = [float(np.median(x[:, 1] / x[:, 0])) for x in spent]
  apart = [r for r, share in zip(ratios, variety) if share >= 0.5]
  rates = [new_tokens / np.median(x, 0) for x in spent]
  low, middle, high = map(float, np.percentile(ratios, (25, 50, 75)))
  return dict(
      speedup=middle, quartiles=[low, high], by_prompt=ratios,
      distinct_4_grams=variety, looping=len(ratios) - len(apart),
      speedup_not_looping=float(np.median(apart)) if apart else None,
      tokens_per_second=np.median(rates, 0).tolist(),
  )


def costs(setup: Setup, drafter, law: dict) -> dict:
  """What a round's parts cost under a law, by loops of LOOP in one state."""
  K = max(drafter.K, 1)
  state = states.prefill(
      setup.target, drafter, setup.texts[:1], max_new_tokens=LOOP * (K + 2),
      sampling=law, chunks=(CHUNK,),
  )
  draft, _ = jax.jit(engine.propose)(setup.target, drafter, state)
  short = jax.tree.map(lambda x: x[:, :0] if x.ndim > 1 else x * 0, draft)
  args = (setup.target, drafter, state)
  tasks = dict(
      propose=lambda: _propose(*args),
      verify=lambda: _verify(*args, draft),
      both=lambda: _both(*args),
      rounds=lambda: _rounds(*args, rule=setup.rule),
      one=lambda: _verify(*args, short),
  )
  spent = {name: [] for name in tasks}
  for i in range(TURNS + 1):  # the first one compiles
    for name in list(tasks)[:: 1 if i % 2 else -1]:
      spent[name].append(timed(tasks[name])[0])
  return shares({name: np.array(x[1:]) for name, x in spent.items()}, K)


def shares(spent: dict[str, np.ndarray], K: int) -> dict:
  """Seconds of LOOP passes, by turn, -> medians of ratios within a turn."""
  s, middle = spent, lambda x: float(np.median(x))
  return dict(
      rounds_over_parts=middle(s["rounds"] / (s["propose"] + s["verify"])),
      rounds_over_both=middle(s["rounds"] / s["both"]),
      drafter_step_over_target_pass=middle(s["propose"] / K / s["one"]),
      verify_k1_over_1=middle(s["verify"] / s["one"]),
      milliseconds={n: middle(x) * 1e3 / LOOP for n, x in s.items()},
  )


def _varied(state, i, vocab):
  """The state with other keys and tokens, so that a pass hangs on the loop's
  counter and XLA can lift no part of it out of the loop."""
  rows, last = state.rows, state.last
  key = jax.vmap(jax.random.fold_in, (0, None))(rows.key, i)
  move = lambda tokens: (tokens + i) % vocab
  return state._replace(
      rows=rows._replace(key=key, tokens=move(rows.tokens)),
      last=last._replace(tokens=move(last.tokens)),
  )


@jax.jit
def _propose(target, drafter, state):
  def body(i, carry):
    dstate, total = carry
    now = _varied(state._replace(draft=dstate), i, target.vocab)
    draft, now = engine.propose(target, drafter, now)
    return now.draft, total + draft.tokens

  shape = state.rows.length.shape[0], drafter.K
  zero = jnp.zeros(shape, jnp.int32, out_sharding=spec("batch", None))
  return jax.lax.fori_loop(0, LOOP, body, (state.draft, zero))[1]


@jax.jit
def _verify(target, drafter, state, draft):
  def body(i, carry):
    cache, total = carry
    now = _varied(state._replace(cache=cache), i, target.vocab)
    moved = draft._replace(tokens=(draft.tokens + i) % target.vocab)
    scores, now = engine.verify(target, drafter.taps, now, moved)
    return now.cache, total + scores.logp[..., 0] + scores.finite

  B, K = draft.tokens.shape
  zero = jnp.zeros((B, K + 1), out_sharding=spec("batch", None))
  return jax.lax.fori_loop(0, LOOP, body, (state.cache, zero))[1]


@jax.jit
def _both(target, drafter, state):
  """Propose and verify in turn: each finds the processor's cache as the
  other leaves it, as in a round, and not full of its own weights."""
  def body(i, carry):
    now, total = carry
    moved = _varied(now, i, target.vocab)
    draft, moved = engine.propose(target, drafter, moved)
    scores, moved = engine.verify(target, drafter.taps, moved, draft)
    now = now._replace(cache=moved.cache, draft=moved.draft)
    return now, total + scores.logp[..., 0] + scores.finite

  shape = state.rows.length.shape[0], drafter.K + 1
  zero = jnp.zeros(shape, out_sharding=spec("batch", None))
  return jax.lax.fori_loop(0, LOOP, body, (state, zero))[1]


@jax.jit(static_argnames="rule")
def _rounds(target, drafter, state, *, rule):
  """Whole rounds in one place: the length is set back each time."""
  rows = state.rows

  def body(i, carry):
    now = _varied(carry[0], i, target.vocab)
    now, info = engine.step(target, drafter, now, rule=rule)
    back = dict(length=rows.length, finish=rows.finish, key=rows.key)
    now = now._replace(
        rows=now.rows._replace(**back),
        last=now.last._replace(start=rows.length - now.last.count),
    )
    return now, engine.add(carry[1], info)

  start = (state, engine.empty_tally(state, drafter.K))
  return jax.lax.fori_loop(0, LOOP, body, start)[1]


def machine(command: str) -> dict:
  """What the numbers were measured with, and how."""
  model = platform.processor() or platform.machine()
  info = pathlib.Path("/proc/cpuinfo")
  if info.is_file():
    names = [x for x in info.read_text().splitlines() if "model name" in x]
    model = names[0].partition(":")[2].strip() if names else model
  return dict(
      command=command, date=str(datetime.date.today()), cpu=model,
      cores=os.cpu_count(), device=jax.devices()[0].device_kind,
      python=platform.python_version(), jax=jax.__version__,
  )


def writable(out: str | pathlib.Path) -> None:
  """Raises OSError when `write` could not write there, before the hours."""
  out = pathlib.Path(out)
  out.parent.mkdir(parents=True, exist_ok=True)
  with open(out.with_name(out.name + ".jsonl"), "a"):
    pass


def write(out: str | pathlib.Path, records: list[dict]) -> str:
  """Writes the records as `out`.jsonl and `out`.md; returns the page."""
  out = pathlib.Path(out)
  out.parent.mkdir(parents=True, exist_ok=True)
  lines = "".join(json.dumps(r) + "\n" for r in records)
  out.with_name(out.name + ".jsonl").write_text(lines)
  page = markdown(records)
  out.with_name(out.name + ".md").write_text(page)
  return page


def markdown(records: list[dict]) -> str:
  """The page of a machine's record, its speeds and its costs."""
  of = lambda kind: [r for r in records if r["kind"] == kind]
  (about,) = of("machine")
  return "\n".join([
      f"# Drafts against no drafts, {about['date']}", "",
      f"    {about['command']}", "",
      f"{about['cpu']}, {about['cores']} cores, device {about['device']},"
      f" jax {about['jax']}, Python {about['python']}. Generation alone,"
      " interleaved; the baseline's window is"
      f" {about['baseline_window']} wide (2 against 1 took"
      f" {about['window_2_over_1']:.2f} times as long).", "",
      "| K | T | speed-up, median (quartiles) | of texts that do not loop"
      " | looping | AL | acceptance by position | accepted / judged"
      " | mean sum min(p, q) |",
      "|--|--|--|--|--|--|--|--|--|", *map(_speed, of("speed")),
      "", f"Loops of {LOOP}: c = a drafter step / a target pass of one token;"
      " rounds / (propose + verify), these two in one loop in turn, and in a"
      " loop each.", "",
      "| K | law | c | verify(K+1) / verify(1) | rounds / parts in turn"
      " | rounds / parts apart |",
      "|--|--|--|--|--|--|",
      *(_cost(r["k"], law, r[law]) for r in of("cost") for law in LAWS), "",
  ])


def _speed(r: dict) -> str:
  low, high = r["quartiles"]
  by = " ".join(f"{x:.2f}" for x in r["conditional"])
  apart = r["speedup_not_looping"]
  apart = "-" if apart is None else f"{apart:.2f}"
  return (
      f"| {r['k']} | {r['temperature']:g} | {r['speedup']:.2f}"
      f" ({low:.2f} to {high:.2f}) | {apart} | {r['looping']} of"
      f" {len(r['by_prompt'])} | {r['acceptance_length']:.2f}"
      f" | {by} | {r['reached_rate']:.3f} | {r['overlap']:.3f} |"
  )


def _cost(k: int, law: str, x: dict) -> str:
  return (
      f"| {k} | {law} | {x['drafter_step_over_target_pass']:.3f}"
      f" | {x['verify_k1_over_1']:.2f} | {x['rounds_over_both']:.2f}"
      f" | {x['rounds_over_parts']:.2f} |"
  )
