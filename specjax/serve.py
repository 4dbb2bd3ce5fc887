"""A batch kept full: rows that finish are refilled from a queue of requests."""

import functools
import math
import time
from collections.abc import Callable, Iterable, Iterator

import jax
import numpy as np

from specjax import engine, metrics, rules, states
from specjax.processes import fetch
from specjax.requests import Options, Request
from specjax.sharding import size
from specjax.stops import cut_at_stop, stop_table
from specjax.types import BUDGET, REASONS, RUNNING, STOP, Tally

CHUNK = 64  # one width, so that a prompt is read alike beside any other
ROUNDS = 32  # before the host looks up, for progress and signals
GROUP = 256  # refused lines written at once

Answers = list[tuple[int, dict]]  # line numbers and what to write for them


class Meter:
  """Sums of what a job did: a Tally, seconds of work, seconds of compiling."""

  def __init__(self):
    self.tally, self.seconds, self.compiling = None, 0.0, 0.0
    self.alarmed = False

  def add(self, tally: Tally, seconds: float) -> None:
    """Adds what some rounds did; `seconds` since the last call."""
    tally = fetch(tally)
    old = self.tally
    self.tally = tally if old is None else jax.tree.map(np.add, old, tally)
    self.seconds += seconds

  def watch(self) -> None:
    """Logs, once, that drafts pass less often than their laws promise."""
    if not self.alarmed:
      self.alarmed = metrics.warn(self.tally)


def serve(
    target,
    drafter,
    tokenizer,
    requests: Iterable[Request],
    *,
    options: Options,
    batch: int,
    longest: int,
    rule: Callable = rules.token,
    meter: Meter | None = None,
    run: Callable | None = None,
    marks: dict | None = None,
) -> Iterator[Answers]:
  """Answers requests as rows finish, refilling a batch of `batch` rows, or as
  many more as fill up the mesh.

  `longest` bounds the tokens of a request (`survey`). A row's text depends on
  its request alone, not on its place or its neighbours; but `run`, such as an
  `auto.Auto` of this pair, makes rounds in a way of its own and may look at
  them. Yields a list, empty at times, every few rounds, so that the caller can
  look at the clock. `marks` are put into every answer.
  """
  meter = Meter() if meter is None else meter
  batch += -batch % size("batch")
  if run is None:
    run = functools.partial(engine.generate, target, drafter, rule=rule)
  began = time.monotonic()
  state = None
  if longest:  # else no request can be answered
    state = _seats(
        target, drafter, tokenizer, options, batch, longest
    )
    state, _ = run(state, idle=batch - 1, rounds=0)  # compiles
  meter.compiling += time.monotonic() - began
  queue, more = iter(requests), True
  seats: list[Request | None] = [None] * batch
  spent = np.zeros(batch, np.int64)
  # One prefill reads all new rows at the cost of one, so a few are awaited.
  enough = max(1, batch // 4)
  began = time.monotonic()
  while True:
    free = [i for i, seat in enumerate(seats) if seat is None]
    fresh, out = {}, []
    while more and len(free) >= enough and len(fresh) < len(free):
      r = next(queue, None)
      more = r is not None
      if more and r.error is None:
        fresh[free[len(fresh)]] = r
      elif more:
        out.append((r.line, {"line": r.line, **r.echo, "error": r.error}))
        if len(out) == GROUP:
          yield out
          out = []
    if fresh:
      state = _seat(
          target, drafter, state, fresh, options, tokenizer.eos
      )
      for i, r in fresh.items():
        seats[i], spent[i] = r, 0
    if not any(seats):
      yield out
      return
    state, tally = run(
        state, idle=enough - 1 if more else batch - 1, rounds=ROUNDS
    )
    finish, tally = fetch((state.rows.finish, tally))
    now = time.monotonic()
    meter.add(tally, now - began)
    if not marks:  # else they pass by a coin of their own
      meter.watch()
    began = now
    spent += tally.info.rounds
    done = [i for i, r in enumerate(seats) if r and finish[i] != RUNNING]
    if done:
      outputs = states.outputs_of(state)
      logprobs, begins = fetch((state.rows.logprobs, state.rows.prompt))
    for i in done:
      r, seats[i] = seats[i], None
      record = answer(
          r, outputs[i], int(finish[i]), tokenizer, options.apart
      )
      record |= {"rounds": int(spent[i])} | (marks or {})
      if options.logprobs is not None:
        rows = [x[i, begins[i] :] for x in logprobs]
        record["logprobs"] = likelihoods(outputs[i], rows, tokenizer)
      out.append((r.line, record))
    yield out


def tables(options: Options, tokenizer, vocab: int):
  """The automaton of the stop strings, or None, for a vocabulary that may be
  padded past the tokenizer's."""
  if not options.stop:
    return None
  names = tokenizer.token_bytes()
  return stop_table(options.stop, [*names, *[b""] * (vocab - len(names))])


def _seats(target, drafter, tokenizer, options, batch, longest):
  """A state of finished rows; what fills it is compiled."""
  reach, room = max(drafter.K + 1, CHUNK), {}
  if options.apart:
    most = min(longest, options.max_prompt_tokens)
    room = dict(source_capacity=states.source_bucket(most))
  shared = dict(
      max_new_tokens=1, sampling=options.sampling, eos=tokenizer.eos,
      chunks=(CHUNK,),
  )
  state = states.prefill(
      target, drafter, [[0]] * batch, logprobs=options.logprobs,
      stop=tables(options, tokenizer, target.vocab),
      capacity=states.bucket(longest, reach), **room, **shared,
  )
  state = states.refill(target, drafter, state, [[0, 0]] * batch, **shared)
  rows = state.rows._replace(finish=state.rows.finish + BUDGET)
  return state._replace(rows=rows)


def _seat(target, drafter, state, fresh, options, eos):
  """Gives the free rows in `fresh` their requests."""
  batch = state.rows.length.shape[0]
  rows = [fresh.get(i) for i in range(batch)]
  some = next(iter(fresh.values()))  # stands in for rows left alone
  full = [r or some for r in rows]
  bits = [sum(1 << options.stop.index(s) for s in set(r.stop)) for r in full]
  fields = some.sampling
  return states.refill(
      target, drafter, state, [r and r.tokens for r in rows],
      max_new_tokens=[r.new for r in full],
      sampling={k: [r.sampling[k] for r in full] for k in fields},
      seed=[r.seed for r in full],
      width=[r.width for r in full],
      eos=eos,
      stop_mask=bits,
      chunks=(CHUNK,),
  )


def answer(
    r: Request, tokens: list[int], finish: int, tokenizer, apart: bool = False
) -> dict:
  """What to write for a finished row; its text ends before a stop string.

  `apart`: it begins a text, where some tokenizers put a space to be dropped.
  """
  text = tokenizer.decode(tokens, start=apart)
  if finish == STOP:
    text = cut_at_stop(text, r.stop)
  left_out = {"truncated": r.truncated} if r.truncated else {}
  return {
      "line": r.line, **r.echo, **left_out, "text": text,
      "tokens": len(tokens), "finish": REASONS[finish],
  }


def likelihoods(tokens: list[int], rows, tokenizer) -> list[dict]:
  """Log-probs of emitted tokens for JSON; `rows` = fields of Logprobs, [N ...]
  from the first emitted token on. `logprob` is under the sampling law, `raw`
  and `top` under the unmodified model; null for what is not finite."""
  number = lambda x: round(float(x), 5) if math.isfinite(x) else None
  return [
      {
          "token": token,
          "text": tokenizer.decode([token], start=False),
          "logprob": number(sampled),
          "raw": number(raw),
          "top": [[int(t), number(x)] for t, x in zip(ids, top)],
      }
      for token, sampled, raw, top, ids in zip(tokens, *rows)
  ]
