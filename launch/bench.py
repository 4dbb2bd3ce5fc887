"""How much sooner a pair writes the same text: A B A B against no drafts.

  python launch/bench.py --out=docs/results/embedded-2026-11-30

Every prompt is read once; then generation alone is timed, drafts and no
drafts taking turns within one run, and ratios are formed within a turn. Also
timed, in loops of 100: a drafter step, target passes of two widths, and whole
rounds against the propose and verify passes they consist of.
"""

import datetime
import json
import os
import pathlib
import platform
import shlex
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import shell
import words

from specjax import engine, metrics, requests, states
from specjax.drafters.nothing import Nothing
from specjax.sharding import spec

FLAGS = dict(
    target=("embedded", "embedded, or a .safetensors file of train.py."),
    drafter=("autoregressive", "autoregressive or ngram."),
    drafter_model=("embedded", "The autoregressive drafter, as --target."),
    rule=("token", "Acceptance rule: token or block."),
    dtype=("float32", "float32 or bfloat16."),
    mesh=("1x1", "Data x model shards."),
    prompts=("configs/prompts/heldout.jsonl", "JSONL lines with a prompt."),
    k=(("2", "4"), "Drafts a round; repeat for several."),
    temperatures=(("0", "1"), "Repeat for several."),
    new_tokens=(200, "Tokens written after each prompt, ends ignored."),
    repeats=(3, "Turns of A B for each prompt."),
    seed=(0, "Turn i has this seed plus i."),
    out=("", "Writes this .jsonl and .md; by default with today's date."),
)
LOOP = 100  # rounds, as the promise about overhead has it
TURNS = 7  # of the loops
LAWS = {"T 1": dict(temperature=1.0), "T 0.6, top-p 0.9": dict(
    temperature=0.6, top_p=0.9
)}


def main(c):
  ks = [number("k", k, int) for k in c.k]
  heats = [number("temperatures", t, float) for t in c.temperatures]
  if min(c.repeats, c.new_tokens) < 1:
    raise ValueError("--repeats and --new_tokens must be at least 1.")
  if c.drafter == "nothing":
    raise ValueError("--drafter=nothing is the baseline; name another.")
  out = c.out or f"docs/results/embedded-{datetime.date.today()}"
  c.num_speculative_tokens = max(ks)
  with jax.set_mesh(words.mesh(c.mesh)):
    m = words.models(c)
    texts = prompts(c, m.tokenizer)
    plain, windows = baseline(c, m, texts)
    records = [dict(kind="machine", **machine(), **windows)]
    say(records[-1])
    for K in ks:
      c.num_speculative_tokens = K
      drafter = words.look("drafter", c.drafter, words.DRAFTERS)(c)
      parts = {n: costs(c, m, drafter, texts[0], law)
               for n, law in LAWS.items()}
      records.append(dict(kind="cost", k=K, **parts))
      say(records[-1])
      for heat in heats:
        records.append(race(c, m, drafter, plain, texts, heat))
        say(records[-1])
  write(pathlib.Path(out), records)


def number(flag, word, kind):
  try:
    return kind(word)
  except ValueError:
    raise ValueError(f"--{flag}={word}: give a number.") from None


def say(record):
  print(json.dumps(record), flush=True)


def prompts(c, tokenizer) -> list[list[int]]:
  """The token ids of every line; a bad line ends the bench."""
  options = requests.Options(max_new_tokens=c.new_tokens)
  path = pathlib.Path(c.prompts)
  found = [
      requests.parse(raw, n, options, tokenizer)
      for n, raw in requests.lines(path)
  ]
  wrong = [r.error for r in found if r.error] or [] if found else ["empty."]
  if wrong:
    raise ValueError(f"--prompts={c.prompts}: {wrong[0]}")
  return [r.tokens for r in found]


def begin(c, m, drafter, tokens, texts, **sampling):
  """One row after its prompt; all prompts share one shape of state."""
  longest = max(map(len, texts)) + c.new_tokens
  return states.prefill(
      m.target, drafter, [tokens], max_new_tokens=c.new_tokens, chunks=(64,),
      sampling=sampling, capacity=longest + 64,  # the widest window fits
  )


def timed(call):
  """(seconds, result) of a call, finished and not merely sent off."""
  start = time.perf_counter()
  result = jax.block_until_ready(call())
  return time.perf_counter() - start, result


def turn(c, m, drafter, state, seed):
  """Generation from a copy of a prefilled state -> (seconds, Tally)."""
  copy = jax.block_until_ready(states.fork(state, [0], seed))
  spent, (_, tally) = timed(
      lambda: engine.generate(m.target, drafter, copy, rule=m.rule)
  )
  return spent, jax.device_get(tally)


def baseline(c, m, texts):
  """The faster of the windows that a pass without drafts can have."""
  both = [Nothing(1), Nothing(2)]
  spent = [[], []]
  for tokens in texts[:4]:
    states = [begin(c, m, d, tokens, texts, temperature=0.0) for d in both]
    for i in range(c.repeats + 1):
      for j in (0, 1) if i % 2 else (1, 0):
        spent[j].append(turn(c, m, both[j], states[j], 0)[0])
  medians = [float(np.median(s[1:])) for s in spent]
  best = int(np.argmin(medians))
  return both[best], dict(
      baseline_window=best + 1, window_2_over_1=medians[1] / medians[0]
  )


def race(c, m, drafter, plain, texts, heat):
  """Speed-ups by prompt: medians over turns of ratios within a turn."""
  ratios, rates, tally = [], [], None
  for n, tokens in enumerate(texts):
    pair = [
        (d, begin(c, m, d, tokens, texts, temperature=heat))
        for d in (drafter, plain)
    ]
    if not n:  # compiles
      for d, state in pair:
        turn(c, m, d, state, c.seed)
    found = []
    for i in range(c.repeats):
      spent = [0.0, 0.0]
      for j in (0, 1) if (i + n) % 2 else (1, 0):
        spent[j], t = turn(c, m, *pair[j], c.seed + i)
        if j == 0:
          tally = t if tally is None else jax.tree.map(np.add, tally, t)
      found.append(spent)
    found = np.array(found)
    ratios.append(float(np.median(found[:, 1] / found[:, 0])))
    rates.append(c.new_tokens / np.median(found, 0))
  low, middle, high = np.percentile(ratios, (25, 50, 75))
  summary = metrics.summary(tally)
  keep = ("acceptance_length", "conditional", "reached_rate", "overlap")
  return dict(
      kind="speed", k=drafter.K, temperature=heat, speedup=float(middle),
      quartiles=[float(low), float(high)], by_prompt=ratios,
      tokens_per_second=np.median(rates, 0).tolist(),
      **{name: summary[name] for name in keep},
  )


def costs(c, m, drafter, tokens, law):
  """Costs in loops of LOOP passes, one state for all of them."""
  K = max(drafter.K, 1)
  state = states.prefill(
      m.target, drafter, [tokens], max_new_tokens=100 * (K + 2), sampling=law,
      chunks=(64,),
  )
  draft, _ = jax.jit(engine.propose)(m.target, drafter, state)
  short = jax.tree.map(lambda x: x[:, :0] if x.ndim > 1 else x * 0, draft)
  args = (m.target, drafter, state)
  tasks = dict(
      propose=lambda: _propose(*args),
      verify=lambda: _verify(*args, draft),
      rounds=lambda: _rounds(*args, rule=m.rule),
      one=lambda: _verify(*args, short),
  )
  spent = {name: [] for name in tasks}
  for i in range(TURNS + 1):  # the first one compiles
    for name in list(tasks)[:: 1 if i % 2 else -1]:
      spent[name].append(timed(tasks[name])[0])
  s = {name: np.array(x[1:]) for name, x in spent.items()}
  middle = lambda x: float(np.median(x))
  return dict(
      rounds_over_parts=middle(s["rounds"] / (s["propose"] + s["verify"])),
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


def machine() -> dict:
  """What the numbers were measured with, and how."""
  model = platform.processor() or platform.machine()
  info = pathlib.Path("/proc/cpuinfo")
  if info.is_file():
    names = [x for x in info.read_text().splitlines() if "model name" in x]
    model = names[0].partition(":")[2].strip() if names else model
  command = ["python", *map(shlex.quote, sys.argv)]
  return dict(
      command=" ".join(command), date=str(datetime.date.today()), cpu=model,
      cores=os.cpu_count(), device=jax.devices()[0].device_kind,
      python=platform.python_version(), jax=jax.__version__,
  )


def write(out: pathlib.Path, records: list[dict]) -> None:
  """The records as JSONL, and as a page."""
  out.parent.mkdir(parents=True, exist_ok=True)
  lines = "".join(json.dumps(r) + "\n" for r in records)
  out.with_name(out.name + ".jsonl").write_text(lines)
  page = "\n".join(markdown(records)) + "\n"
  out.with_name(out.name + ".md").write_text(page)
  print(page)


def markdown(records: list[dict]) -> list[str]:
  about = records[0]
  speeds = [r for r in records if r["kind"] == "speed"]
  by = lambda xs: " ".join(f"{x:.2f}" for x in xs)
  out = [
      f"# Drafts against no drafts, {about['date']}", "",
      f"    {about['command']}", "",
      f"{about['cpu']}, {about['cores']} cores, device {about['device']},"
      f" jax {about['jax']}, Python {about['python']}. Generation alone,"
      " interleaved; the baseline's window is"
      f" {about['baseline_window']} wide (2 against 1 took"
      f" {about['window_2_over_1']:.2f} times as long).", "",
      "| K | T | speed-up, median (quartiles) | AL | acceptance by position"
      " | accepted / judged | mean sum min(p, q) |",
      "|--|--|--|--|--|--|--|",
  ]
  for r in speeds:
    low, high = r["quartiles"]
    out.append(
        f"| {r['k']} | {r['temperature']:g} | {r['speedup']:.2f}"
        f" ({low:.2f} to {high:.2f}) | {r['acceptance_length']:.2f}"
        f" | {by(r['conditional'])} | {r['reached_rate']:.3f}"
        f" | {r['overlap']:.3f} |"
    )
  out += [
      "", f"Loops of {LOOP}: c = a drafter step / a target pass of one token;"
      " rounds / (propose + verify).", "",
      "| K | law | c | verify(K+1) / verify(1) | rounds / parts |",
      "|--|--|--|--|--|",
  ]
  for r in (r for r in records if r["kind"] == "cost"):
    for name in LAWS:
      x = r[name]
      out.append(
          f"| {r['k']} | {name} | {x['drafter_step_over_target_pass']:.3f}"
          f" | {x['verify_k1_over_1']:.2f} | {x['rounds_over_parts']:.2f} |"
      )
  return out


if __name__ == "__main__":
  shell.run(main, FLAGS)
