"""Result lines as a benchmark might write them, from a seed, in no time."""

import numpy as np
import pytest

ALPHA = {"ngram": 0.45, "model": 0.75}
COST = {"ngram": 0.01, "model": 0.15}  # of a draft step, in passes
CATEGORIES = ("math", "qa", "rag", "summarization", "translation")


def row(rng, alpha, K, new_tokens):
  """Counts of one text: each draft passes with the chance of its overlap."""
  out = dict(rounds=0, drafted=0, accepted=0, emitted=0, bonus=0, dropped=0,
             reached=[0] * K, passed=[0] * K, overlap=[0.0] * K)
  while out["emitted"] < new_tokens:
    n = 0
    for i in range(K):
      chance = float(rng.beta(4 * alpha, 4 * (1 - alpha)))
      out["reached"][i] += 1
      out["overlap"][i] += chance
      if rng.random() >= chance:
        break
      out["passed"][i] += 1
      n += 1
    kept = min(n + 1, new_tokens - out["emitted"])
    out["rounds"] += 1
    out["drafted"] += K
    out["accepted"] += min(n, kept)
    out["emitted"] += kept
    out["bonus"] += n == K
    out["dropped"] += n + 1 - kept
  return out


def side(rng, rows, slowness):
  """`slowness`: seconds a round."""
  rounds = max(r["rounds"] for r in rows)
  noise = rng.lognormal(0, 0.04)
  return dict(
      seconds=(rounds - 1) * slowness * noise, first=0.3 + slowness, rows=rows,
      later=sum(r["emitted"] for r in rows) - 2 * len(rows),
      distinct=[float(x) for x in rng.choice([0.3, 0.9], len(rows),
                                             p=[0.1, 0.9])],
  )


def lines(
    drafters=("model", "ngram"), ks=(1, 2, 4, 8, "auto"),
    temperatures=(0.0, 1.0), batches=(1, 4, 8), categories=CATEGORIES,
    a_category=5, costs=True, peers=True, seed=0, **about,
):
  """All lines of a run; `about` adds to its first."""
  rng = np.random.default_rng(seed)
  yield dict(
      kind="about", command="python launch/bench.py --k=1,2,4,8,auto",
      date="2026-11-30", cpu="A processor", cores=2, device="cpu",
      python="3.11", jax="0.10.2", specjax="0.1", target="smollm2",
      dtype="bfloat16", prompts_file="questions.jsonl", new_tokens=48,
      chat=True, rule="token", prompts=len(categories) * a_category, seed=0,
  ) | about
  prompts = [(f"p{i}", categories[i // a_category])
             for i in range(len(categories) * a_category)]
  for drafter in drafters:
    for temperature in temperatures:
      for k, batch in [(k, 1) for k in ks] + [(ks[0], b) for b in batches[1:]]:
        run = dict(drafter=drafter, k=k, temperature=temperature, batch=batch)
        if about.get("synthetic_acceptance"):
          run["synthetic_acceptance"] = about["synthetic_acceptance"]
        yield from _run(rng, run, prompts, costs)
  modes = {"plain": 60, "assisted 4": 55, "lookup 2": 50, "lookup 4": 40}
  for mode, pace in modes.items() if peers else ():
    for prompt, category in prompts:
      agrees = int(rng.choice([48, 20], p=[0.9, 0.1]))
      yield dict(
          kind="peer", peer="transformers", mode=mode, temperature=0.0,
          prompt=prompt, category=category, turn=0, first=0.5, emitted=48,
          seconds=0.047 * pace * rng.lognormal(0, 0.05), agrees=agrees, of=48,
          versions=dict(torch="2.13.0", transformers="5.24.0"),
      )


def _run(rng, run, prompts, costs):
  K = 3 if run["k"] == "auto" else run["k"]
  alpha = ALPHA.get(run["drafter"], 0.6) - 0.1 * run["temperature"]
  c, batch = COST.get(run["drafter"], 0.1), run["batch"]
  one = 0.04 * (1 + 0.1 * batch)
  verify = one * (1 + 0.04 * K * batch)
  yield dict(kind="compile", run=run, seconds=12.5)
  for g in range(0, len(prompts), batch):
    group = [prompts[i % len(prompts)] for i in range(g, g + batch)]
    for t in range(2):
      tilt = [len(name) % 5 * 0.03 for _, name in group]
      rows = [row(rng, alpha + x, K, 48) for x in tilt]
      yield dict(
          kind="turn", run=run, group=g // batch, turn=t,
          prompts=[p for p, _ in group], categories=[x for _, x in group],
          drafts=side(rng, rows, K * c * one + verify),
          plain=side(rng, [row(rng, 0.5, 0, 48) for _ in group], one),
      )
  if costs and run["k"] != "auto":
    ms = dict(propose=K * c * one, verify=verify, one=one)
    ms["both"] = ms["propose"] + verify * 1.02
    ms["rounds"] = ms["both"] * 1.04
    ms["streamed"] = ms["rounds"] + 2e-4
    yield dict(kind="cost", run=run, law=f"T {run['temperature']:g}",
               milliseconds={name: x * 1e3 for name, x in ms.items()})


@pytest.fixture(scope="session")
def fake():
  return lines
