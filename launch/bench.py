"""How much sooner drafters write: against no drafts, in turn, with a report.

  python launch/bench.py --out=docs/results/x --prompts=prompts.jsonl
  python launch/bench.py --drafter=ngram --k=4 --k=auto --batch=1 --batch=8

Every drafter, K, temperature and batch runs over all prompts, each time beside
the same engine without drafts (A B, B A). --out becomes a folder: a line of
results.jsonl for everything that was measured, README.md, and index.html with
pictures. It may be killed; the same command goes on where it was.
"""

import functools
import hashlib
import json
import os
import pathlib
import shlex
import sys
import tempfile

import jax
import shell
import words
from ml_collections import ConfigDict

from specjax import (
    auto,
    chat,
    engine,
    metrics,
    processes,
    requests,
    rules,
    sampling,
)
from specjax.bench import (
    costs,
    journal,
    machine,
    measure,
    peers,
    prompts,
    report,
)
from specjax.bench.measure import Side, Task
from specjax.checkpoint import published
from specjax.drafters.nothing import Nothing

FLAGS = words.FLAGS | words.SYNTHETIC | words.PODS | dict(
    drafter=(("autoregressive",), "autoregressive or ngram; repeat for both."),
    k=(("2", "4"), "Drafts a round, or auto; repeat for several."),
    temperatures=(("0", "1"), "Repeat for several."),
    batch=(("1",), "Prompts side by side; repeat for several."),
    prompts=(
        "configs/prompts/heldout.jsonl",
        "JSONL of prompts, or of a benchmark that is known by its fields.",
    ),
    field=("", "The field with the prompt, where its name is not known."),
    category=((), "Only these categories of the file; repeat for several."),
    each=(0, "Only the first so many of a category; 0 is all."),
    chat=(False, "Prompts are users' turns, by the target's template."),
    new_tokens=(128, "The most tokens written after a prompt."),
    ignore_ends=(False, "Write all of them, whatever ends a text."),
    max_prompt_tokens=(2048, "A longer prompt is left out, and counted."),
    repeats=(2, "Turns of A B for each prompt."),
    costs=(True, "Time a round's parts too."),
    peer=((), "transformers: the same models and prompts by it, batch 1."),
    peer_python=("", "The Python that has torch and transformers."),
    out=("bench-results", "The folder of the results."),
)
FREE = ("out", "peer_python", *words.PODS)


def main(c):
  asked = check(c)
  with jax.set_mesh(words.mesh(c.mesh, c.drafter_shards)):
    c.num_speculative_tokens = max(k for k in asked["k"] if k != "auto")
    target, drafters, rule, prints = load(c)
    found, tokens, left_out = texts(c, target)
    settings = {k: v for k, v in c.items() if k not in FREE}
    settings |= dict(
        prompts=len(found), prompts_file=pathlib.Path(c.prompts).name,
        left_out=left_out, prints=prints | dict(prompts=print_of(tokens)),
    )
    if c.synthetic_acceptance == words.OFF:
      settings["synthetic_acceptance"] = None
    command = " ".join(["python", *map(shlex.quote, sys.argv)])
    about = machine.about(command, settings)
    file = pathlib.Path(c.out) / "results.jsonl"
    with journal.open_journal(file, about) as j:
      shell.say("each width compiles first, a minute or so without a line.")
      with shell.bar("bench") as tick:
        run(c, asked, j, target, drafters, rule, found, tokens, tick)
  if not processes.leads():
    return
  report.write(c.out)
  print((pathlib.Path(c.out) / "README.md").read_text())
  print(f"{c.out}/index.html has the pictures.", file=sys.stderr)


def check(c) -> dict:
  """The lists that flags give, as numbers; before minutes are spent."""
  ks = [k if k == "auto" else number("k", k, int) for k in c.k]
  heats = [number("temperatures", t, float) for t in c.temperatures]
  batches = [number("batch", b, int) for b in c.batch]
  if not all(k == "auto" or 1 <= k <= 64 for k in ks):
    raise ValueError(f"--k={', '.join(c.k)}: each must lie in 1..64, or auto.")
  if set(ks) == {"auto"}:
    raise ValueError("--k=auto: name the largest K too, such as --k=8.")
  if not all(1 <= b <= 4096 for b in batches):
    raise ValueError(f"--batch={', '.join(c.batch)}: each must lie in 1..4096.")
  for heat in heats:
    sampling.params(1, temperature=heat)
  if min(c.repeats, c.new_tokens) < 1:
    raise ValueError("--repeats and --new_tokens must be at least 1.")
  if c.each < 0:
    raise ValueError(f"--each={c.each}: give 0 for all, or how many.")
  shards = words.mesh(c.mesh, c.drafter_shards).shape["data"]
  for batch in batches:
    if batch % shards:
      raise ValueError(
          f"--batch={batch} does not spread over the {shards} data shards of"
          f" --mesh={c.mesh}; give a multiple."
      )
  if c.peer and (c.mesh != "1x1" or c.drafter_shards or c.multihost):
    raise ValueError(
        "--peer reads one prompt at a time on one device; give --mesh=1x1, and"
        " neither --drafter_shards nor --multihost."
    )
  if c.peer and (c.quantize or c.drafter_quantize):
    raise ValueError("--peer has no int8 weights; leave --quantize out.")
  if "nothing" in c.drafter:
    raise ValueError("--drafter=nothing is the baseline; name another.")
  for name in c.drafter:
    words.look("drafter", name, words.DRAFTERS)
  for name in c.peer:
    words.look("peer", name, {"transformers": None})
  if len(c.drafter) > 1 and c.cross_vocabulary:
    raise ValueError("--cross_vocabulary is for one --drafter at a time.")
  return dict(k=ks, heat=heats, batch=batches)


def load(c):
  """(the target, drafters by name at the largest K, the rule, prints)."""
  first = ConfigDict(dict(c) | dict(drafter=c.drafter[0]))
  m = words.models(first)
  target = words.Model(m.target, m.tokenizer, m.prints["target"])
  drafters = {c.drafter[0]: m.drafter}
  for name in c.drafter[1:]:
    settings = ConfigDict(dict(c) | dict(drafter=name))
    drafters[name], more = words.drafter(settings, target)
    m.prints.update(more)
  return target, drafters, m.rule, {k: f() for k, f in m.prints.items()}


def print_of(tokens) -> str:
  return hashlib.sha256(json.dumps(tokens).encode()).hexdigest()[:16]


def texts(c, target):
  """(prompts, their tokens, how many were too long)."""
  found = prompts.read(
      c.prompts, field=c.field, categories=c.category, each=c.each
  )
  options = requests.Options(
      max_new_tokens=c.new_tokens, chat=c.chat,
      max_prompt_tokens=c.max_prompt_tokens,
      apart=target.module.opening is not None,
  )
  kept, tokens = [], []
  for n, prompt in enumerate(found):
    try:
      tokens.append(
          requests.request(prompt.text, n, options, target.tokenizer).tokens
      )
      kept.append(prompt)
    except requests.TooLong:
      continue  # counted
    except ValueError as error:
      raise ValueError(f"{c.prompts}: {prompt.id}: {error}") from None
  if not kept:
    raise ValueError(
        f"{c.prompts}: every prompt is longer than --max_prompt_tokens ="
        f" {c.max_prompt_tokens}."
    )
  return kept, tokens, len(found) - len(kept)


def run(c, asked, j, target, drafters, rule, found, tokens, tick):
  """Measures all that is not in the journal yet."""
  eos = () if c.ignore_ends else tuple(
      chat.ends(target.tokenizer) if c.chat else target.tokenizer.eos
  )
  ways = [
      (batch, heat, name, k) for batch in asked["batch"]
      for heat in asked["heat"] for name in drafters for k in asked["k"]
  ]
  total = sum(-(-len(found) // w[0]) * c.repeats for w in ways)
  done = sum(x["kind"] == "turn" for x in j.lines)
  tick(done, total)
  plain, autos = {}, {}
  for batch, heat, name, k in ways:
    groups = measure.groups(found, tokens, batch)
    key = dict(drafter=name, k=k, temperature=heat, batch=batch)
    if c.synthetic_acceptance != words.OFF:
      key["synthetic_acceptance"] = c.synthetic_acceptance
    has = lambda g, t: j.has(kind="turn", run=key, group=g, turn=t)  # noqa: B023
    law = dict(temperature=heat)
    if batch not in plain:
      marks = {k: x for k, x in key.items() if k == "synthetic_acceptance"}
      plain[batch] = baseline(j, target, batch, groups[0], marks)
    base = plain[batch]
    drafter = drafters[name]
    if k == "auto":
      if (batch, name) not in autos:
        autos[batch, name] = auto.Auto(target.module, drafter, rule=rule)
      runner = autos[batch, name]
    else:
      drafter = auto.with_k(drafter, k)
      runner = bound(target.module, drafter, rule)
      if c.costs and heat == asked["heat"][0]:
        cost(j, key, target, drafter, rule, groups[0], asked["heat"], base)
    if all(has(g, t) for g in range(len(groups)) for t in range(c.repeats)):
      continue
    sides = (
        Side(target.module, drafter, runner),
        Side(target.module, base, bound(target.module, base, rule)),
    )
    # One shape for all prompts, since each has its own programs and costs.
    rooms = [measure.room(g, c.new_tokens, drafter.K) for g in groups]
    room = max(rooms) if k == "auto" else None
    task = Task(c.new_tokens, law, c.seed, eos, room)
    before = runner.calibrating if k == "auto" else 0.0
    for kind, line in measure.race(sides, groups, task, c.repeats, has):
      if kind == "compile" and k == "auto":
        line["calibrating"] = runner.calibrating - before
        before = runner.calibrating
      j.add(kind=kind, run=key, **line)
      if kind == "turn":
        done += 1
        tick(done, total)
    alarm(j, key)
  if c.peer:
    peer(c, asked, j, target, drafters, found, tokens)


def bound(target, drafter, rule):
  return functools.partial(engine.generate, target, drafter, rule=rule)


def peer(c, asked, j, target, drafters, found, tokens):
  """The same prompts by transformers, each text beside ours at T 0."""
  plain = Nothing()
  ours = Side(target.module, plain, bound(target.module, plain, rules.token))
  modes = ["plain"]
  if "ngram" in drafters:
    modes += [f"lookup {k}" for k in asked["k"] if k != "auto"]
  small = drafters.get("autoregressive")
  model = None if small is None or c.cross_vocabulary else small.model
  if model is not None:
    modes += [f"assisted {k}" for k in asked["k"] if k != "auto"]
  jobs = [
      (dict(kind="peer", peer="transformers", mode=mode, temperature=heat,
            prompt=found[n].id, turn=turn), n)
      for heat in asked["heat"] for turn in range(c.repeats)
      for n in range(len(found)) for mode in modes
  ]
  if all(j.has(**key) for key, _ in jobs):
    return
  with tempfile.TemporaryDirectory() as folder:
    places = [published_folder(c, "target", target.module, folder)]
    if model is not None:
      places.append(published_folder(c, "drafter_model", model, folder))
    with peers.Peer(
        places[0], (places[1:] or [None])[0], c.dtype,
        len(os.sched_getaffinity(0)), c.peer_python or sys.executable,
    ) as other, shell.bar("transformers") as tick:
      warm = set()
      for done, (key, n) in enumerate(jobs):
        if not j.has(**key):
          if key["mode"] not in warm:
            beside(c, ours, other, found[n], tokens[n], key)
            warm.add(key["mode"])
          j.add(**key, category=found[n].category, versions=other.versions,
                **beside(c, ours, other, found[n], tokens[n], key))
        tick(done + 1, len(jobs))


def beside(c, ours, other, prompt, tokens, key) -> dict:
  """A text of theirs, right after ours without drafts."""
  group = measure.Group([prompt.id], [prompt.category], [tokens])
  task = Task(c.new_tokens, dict(temperature=key["temperature"]), c.seed)
  part, (text,) = measure.once(ours, group, task, key["turn"])
  mode, _, k = key["mode"].partition(" ")
  got = other.generate(
      tokens, c.new_tokens, mode, key["temperature"], int(k or 1),
      c.seed + key["turn"],
  )
  same = {}
  if key["temperature"] == 0:
    alike = len(os.path.commonprefix([text, got["tokens"]]))
    same = dict(agrees=alike, of=len(text))
  return dict(
      seconds=got["seconds"], first=got["first"], emitted=len(got["tokens"]),
      later=got["later"], beside=part["seconds"] / max(part["later"], 1),
      **same,
  )


def published_folder(c, flag, module, folder) -> pathlib.Path:
  """Where transformers finds a model: its own folder, or one written here."""
  word, place = c[flag], pathlib.Path(folder) / flag
  if words.own(word, flag) is not None:
    peers.export(module, place, c.dtype)
    return place
  found = words.find(flag, word)
  if found.path.is_dir() and (found.path / "config.json").is_file():
    return found.path
  published.save(module, found.config, place, c.dtype)
  return place


def baseline(j, target, batch, group, marks):
  """Without drafts, the window that was the faster when it was first asked."""
  found = j.first(kind="baseline", batch=batch)
  if found is None:
    drafter, ratio = costs.baseline(target.module, group.tokens)
    found = j.add(kind="baseline", batch=batch, window=drafter.K + 1,
                  two_over_one=ratio, **marks)
  return Nothing(found["window"])


def cost(j, key, target, drafter, rule, group, heats, base):
  for heat in heats:
    own = dict(key, temperature=heat)
    if not j.has(kind="cost", run=own):
      parts = costs.costs(
          target.module, drafter, rule, group.tokens, dict(temperature=heat),
          base.K + 1,
      )
      narrow = len(group.tokens) == 1 and hasattr(drafter, "widths")
      j.add(kind="cost", run=own, milliseconds=parts, narrow=narrow)


def alarm(j, key):
  """Says so when drafts pass less often than their laws promise."""
  rows = [
      row for x in j.lines if x["kind"] == "turn" and x["run"] == key
      for row in x["drafts"]["rows"]
  ]
  said = metrics.alarm(metrics.pool(rows)) if rows else None
  if said and "synthetic_acceptance" not in key:
    shell.say(f"{key['drafter']}, K {key['k']}: {said}")


def number(flag, word, kind):
  try:
    return kind(word)
  except ValueError:
    raise ValueError(f"--{flag}={word}: give a number.") from None


if __name__ == "__main__":
  shell.run(main, FLAGS)
