"""Writes text for one prompt, or answers a file of prompts, sooner.

  python launch/generate.py --prompt='def main('
  python launch/generate.py --input=in.jsonl --output=out.jsonl

Without --config, configs/embedded.py decides what no flag says. Lines of
--input are objects with a "prompt"; "id", max_new_tokens, temperature, top_p,
top_k, min_p, seed, stop (a part of --stop) and num_speculative_tokens may
stand beside it. A wrong line gets an "error" in its place, and the job still
ends with code 0. It may be killed at any moment; the same command goes on.
"""

import json
import pathlib
import sys
import time

import jax
import shell
import words

from specjax import (
    chat,
    jobs,
    metrics,
    processes,
    requests,
    serve,
    states,
    stream,
)
from specjax.drafters.nothing import Nothing
from specjax.types import REASONS, STOP

FLAGS = words.FLAGS | words.SYNTHETIC | words.PODS | dict(
    prompt=("", "The text to go on from."),
    chat=(False, "A prompt is a user's turn, by the target's template."),
    input=("", "A JSONL file of prompts, for a batch job."),
    output=("", "Where the job's lines go, in the order of --input."),
    num_speculative_tokens=(
        "4",
        "Drafts a round, K; auto chooses while it runs, and compiles several.",
    ),
    temperature=(1.0, "0 is greedy."),
    top_p=(1.0, "Keep the likeliest tokens of this mass; 1 is off."),
    top_k=(0, "Keep this many tokens; 0 is off."),
    min_p=(0.0, "Keep tokens of this share of the likeliest; 0 is off."),
    repetition_penalty=(1.0, "Divides logits of tokens seen; 1 is off."),
    presence_penalty=(0.0, "Taken off logits of tokens written; 0 is off."),
    frequency_penalty=(0.0, "Taken off once for each time; 0 is off."),
    max_new_tokens=(200, "Where a text ends if nothing else ends it."),
    stop=((), "Text ends before this string, literally; may be repeated."),
    samples=(1, "Texts of one --prompt, from one prefill."),
    logprobs=(-1, "Report log-probs, and those of the n likeliest; -1 off."),
    max_prompt_tokens=(2048, "A longer prompt is refused."),
    truncate=(False, "Keep a longer prompt's end instead."),
    compare=(False, "Run without drafts too and show both."),
    stats=(True, "Show the summary."),
    batch=(8, "Rows that a job answers side by side."),
)
COMPILING = "compiling, most of which a later start finds done ..."
NOT_REAL = "synthetic acceptance: not real output"
# What a job's text does not depend on may differ when it goes on.
FREE = ("prompt", "input", "output", "compare", "stats", "batch", "mesh",
        "samples", "target", "drafter_model", "drafter_shards", *words.PODS)


def main(c):
  if bool(c.prompt) == bool(c.input) or bool(c.input) != bool(c.output):
    raise ValueError(
        "give a --prompt that is not empty, or --input together with --output."
    )
  if c.input and c.samples != 1:
    raise ValueError("--samples is for --prompt; repeat lines of --input.")
  if not 1 <= c.samples <= 4096 or not 1 <= c.batch <= 4096:
    raise ValueError("--samples and --batch must lie in 1..4096.")
  with jax.set_mesh(words.mesh(c.mesh, c.drafter_shards)):
    m = words.models(c)
    if c.chat:  # a turn may end by a token that the tokenizer does not name
      m.tokenizer.eos = chat.ends(m.tokenizer)
    if c.synthetic_acceptance != words.OFF:
      shell.say(f"{NOT_REAL} (--synthetic_acceptance).")
    (job if c.input else text)(c, m, options(c, m))


def options(c, m):
  return requests.Options(
      max_new_tokens=c.max_new_tokens,
      num_speculative_tokens=m.drafter.K,
      sampling=words.sampling(c),
      seed=c.seed,
      stop=tuple(dict.fromkeys(c.stop)),
      logprobs=None if c.logprobs < 0 else c.logprobs,
      max_prompt_tokens=c.max_prompt_tokens,
      truncate=c.truncate,
      apart=m.target.opening is not None,
      chat=c.chat,
  )


def text(c, m, options):
  """One prompt: shows text as it is written; measures by drafter."""
  r = requests.request(c.prompt, 0, options, m.tokenizer)
  if r.truncated:
    print(f"prompt: its first {r.truncated} tokens are left out.",
          file=sys.stderr)
  if c.stats:
    print(COMPILING, file=sys.stderr)
  rate, columns, texts = {}, {}, {}
  with jobs.interruptible(shell.interrupted):
    for name, drafter in runs(c, m).items():
      rate[name], columns[name], texts[name] = write(
          c, m, options, r, drafter, show=drafter is m.drafter
      )
  if c.compare and c.temperature == 0:
    ours, plain = texts.values()
    columns[c.drafter]["same text"] = "yes" if ours == plain else "no"
  report(c, rate, columns)


def runs(c, m) -> dict:
  """The drafters to run: the one asked for, with --compare also none."""
  baseline = {"no drafts": Nothing()} if c.compare else {}
  return {c.drafter: m.drafter} | baseline


def report(c, rate: dict, columns: dict) -> None:
  """Shows the summary, with the speed-up when a baseline was run too."""
  if len(columns) == 2:
    (name, ours), (_, plain) = rate.items()
    columns[name]["speed-up"] = f"{ours / plain:.2f}x" if plain else "-"
  if c.stats and columns:
    shell.report(c.input or "summary", columns)


def write(c, m, options, r, drafter, show: bool):
  """Streams samples of one request -> (tokens/s, measures, tokens)."""
  started = time.monotonic()
  run = m.run if drafter is m.drafter else None
  next(stream.stream(  # compiles what is timed below
      m.target, drafter, begin(c, m, options, r, drafter), rule=m.rule, run=run
  ))
  compiling = time.monotonic() - started
  pace = metrics.Pace()
  state = begin(c, m, options, r, drafter)
  readers = [
      m.tokenizer.stream(start=options.apart) for _ in range(c.samples)
  ]
  shown = [stream.Visible(options.stop) for _ in range(c.samples)]
  parts = [[] for _ in range(c.samples)]
  if show and c.synthetic_acceptance != words.OFF:
    print(f"[{NOT_REAL}]")
  for event in stream.stream(m.target, drafter, state, rule=m.rule, run=run):
    pace.saw(sum(map(len, event.tokens)))
    for i, new in enumerate(event.tokens):
      parts[i].append(shown[i].push(readers[i].push(new)))
    if show and c.samples == 1:
      print(parts[0][-1], end="", flush=True)
  for i, finish in enumerate(event.finish):
    rest = shown[i].push(readers[i].flush())
    parts[i].append(rest + shown[i].close(finish == STOP))
  if show:
    tell(c, m, parts, event)
  if c.synthetic_acceptance == words.OFF:
    metrics.warn(event.tally)
  return pace.rate, {
      "tokens/s after the first": f"{pace.rate:.1f}" if pace.rate else "-",
      "time to first token": f"{1e3 * pace.wait:.0f} ms",
      "finish": ", ".join(dict.fromkeys(REASONS[f] for f in event.finish)),
      **metrics.words(metrics.summary(event.tally)),
      "compiling, apart": f"{compiling:.1f} s",
  }, states.outputs_of(event.state)


def begin(c, m, options, r, drafter):
  """The prompt read once, as many rows as there are samples."""
  state = states.prefill(
      m.target, drafter, [r.tokens], max_new_tokens=r.new,
      sampling=r.sampling, seed=r.seed, eos=m.tokenizer.eos,
      stop=serve.tables(options, m.tokenizer, m.target.vocab),
      logprobs=options.logprobs,
  )
  return state if c.samples == 1 else states.fork(
      state, [0] * c.samples, r.seed
  )


def tell(c, m, parts, event):
  """What streaming has not shown: a text's end, samples, log-probs."""
  outputs = states.outputs_of(event.state)
  kept = processes.fetch(event.state.rows.logprobs)
  begins = event.state.rows.prompt
  for i, pieces in enumerate(parts):
    if c.samples > 1:
      print(f"--- sample {i}: {REASONS[event.finish[i]]}")
    print("".join(pieces) if c.samples > 1 else pieces[-1])
    if kept is not None:
      rows = [x[i, int(begins[i]) :] for x in kept]
      for entry in serve.likelihoods(outputs[i], rows, m.tokenizer):
        print(json.dumps(entry, ensure_ascii=False))


def job(c, m, options):
  """Answers --input's lines into --output; measures of this session."""
  settings = {k: c[k] for k in FLAGS if k not in FREE}
  settings |= {name: digest() for name, digest in m.prints.items()}
  meters = {name: serve.Meter() for name in runs(c, m)}
  asked = []

  def answers(requests, longest, drafter=m.drafter, meter=meters[c.drafter]):
    return serve.serve(
        m.target, drafter, m.tokenizer, requests, options=options,
        batch=c.batch, longest=longest, rule=m.rule, meter=meter,
        run=m.run if drafter is m.drafter else None,
        marks=marks(c),
    )

  def noted(requests, longest):
    if c.stats:
      print(COMPILING, file=sys.stderr)
    keep = lambda r: asked.append((r, longest)) or r
    return answers(map(keep, requests) if c.compare else requests, longest)

  with jobs.interruptible(stopping) as stopped, shell.bar(c.output) as tick:
    done = jobs.run(
        c.input, c.output, settings, noted, options=options,
        tokenizer=m.tokenizer, tick=tick, stopped=stopped,
    )
  if not done.new:
    print(f"{c.output}: all lines are there.", file=sys.stderr)
  elif c.compare:  # the same lines without drafts, written nowhere
    plain = [r._replace(width=0) for r, _ in asked]
    for _ in answers(plain, asked[0][1], Nothing(), meters["no drafts"]):
      pass
  report(c, *measures(meters))
  if done.wrong:
    shell.say(
        f"{c.input}: {done.wrong} of {done.total} lines could not be answered;"
        f' their lines of {c.output} say why, under "error".'
    )


def marks(c) -> dict:
  """What stands in every line of a job whose text is not the target's."""
  if c.synthetic_acceptance == words.OFF:
    return {}
  return {"synthetic_acceptance": c.synthetic_acceptance, "note": NOT_REAL}


def stopping():
  shell.say(
      "stopping after the step in flight, which takes longer while compiling;"
      " a second signal ends it at once."
  )


def measures(meters: dict) -> tuple[dict, dict]:
  """Tokens/s and measures by drafter; none if no line could be answered."""
  rate, columns = {}, {}
  for name, meter in meters.items():
    if meter.tally is None:
      return {}, {}
    figures = metrics.summary(meter.tally)
    rate[name] = figures["emitted"] / meter.seconds
    columns[name] = {
        "tokens/s": f"{rate[name]:.1f}",
        **metrics.words(figures),
        "compiling, apart": f"{meter.compiling:.1f} s",
    }
  return rate, columns


if __name__ == "__main__":
  file = pathlib.Path(__file__).parent / "../configs/embedded.py"
  shell.run(main, FLAGS, str(file))
