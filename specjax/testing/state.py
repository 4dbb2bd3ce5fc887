"""What a round leaves behind: memory, lengths, stops, independence.

None of it shows in the law at once: a spoilt slot of a drafter only lowers
acceptance, and a neighbour's influence looks like chance.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from specjax import engine, rules
from specjax.sampling import DEFAULTS
from specjax.states import outputs_of, prefill, source_of
from specjax.testing.law import begun, highest
from specjax.types import BUDGET, END, RUNNING, STOP, Commit, Source


def any_count(key, draft, logp):
  """A rule for tests of memory: keeps 0 .. count drafts, equally often.

  What a drafter proposes is kept whatever it is worth, so every accept count
  occurs. It has no exactness at all; the checks of the law refuse it.
  """
  coin, extra = jax.random.split(key)
  n = jax.random.randint(coin, (), 0, draft.count + 1)
  here = jnp.arange(logp.shape[0]) == n
  law = jnp.sum(jnp.where(here[:, None], jnp.exp(logp), 0), 0)
  token = jax.random.categorical(extra, jnp.log(law))
  tokens = jnp.where(here, token, jnp.pad(draft.tokens, (0, 1)))
  return tokens.astype(jnp.int32), n + 1


any_count.__qualname__ = "lossy_any_count"  # says it to `refuse_lossy`


@jax.jit(static_argnames="rule")
def _round(target, drafter, state, rule):
  return engine.step(target, drafter, state, rule=rule)


@jax.jit
def _fresh(target, drafter, tokens, source):
  """(target cache, drafter memory) after reading tokens [B L] in one pass."""
  B, L = tokens.shape
  zero = jnp.zeros(B, jnp.int32)
  cache, _ = target.start(*source, L)
  _, features, cache = target(tokens, zero, cache, drafter.taps)
  before = jnp.pad(features, ((0, 0), (1, 0), (0, 0)))[:, :L]
  dstate = drafter.init(target, source, L)
  whole = Commit(tokens, before, zero + L, zero)
  return cache, drafter.ingest(target, dstate, whole)


def _memory(target, drafter, state):
  """(0 for the target, 1 for the drafter; its memory; by leaf the axis of its
  slots; [B] slots below which it is final): for the text, for the source.

  That axis is the one that grows with the capacity, or with the source's
  room; leaves without one have -1 and are not judged.
  """
  source, last = source_of(state.rows), state.last
  B, L = state.rows.tokens.shape
  N = source.tokens.shape[1]
  int32 = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.int32)

  def shapes(capacity, room):
    run = lambda t, d, s: (t.start(*s, capacity)[0], d.init(t, s, capacity))
    source = Source(int32(B, room), int32(B))
    return jax.eval_shape(run, target, drafter, source)

  grows = lambda a, b: next(
      (i for i, n in enumerate(a.shape) if n != b.shape[i]), -1
  )
  larger = {(L + 1, N): (state.rows.length - 1, last.start)}
  if state.rows.source is not None:
    larger[L, N + 1] = source.length, source.length
  here, mine = shapes(L, N), (state.cache, state.draft)
  for size, bounds in larger.items():
    axes = jax.tree.map(grows, here, shapes(*size))
    yield from zip((0, 1), mine, axes, bounds)


def _compare(target, drafter, state, when, tolerance=1e-5):
  """Asserts that all final slots hold what a fresh pass would write."""
  rows = state.rows
  fresh = _fresh(target, drafter, rows.tokens, source_of(rows))
  for which, kept, axis, bound in _memory(target, drafter, state):
    who, new = ("target", "drafter")[which], fresh[which]
    bound = np.asarray(bound)
    kept = jax.tree_util.tree_leaves_with_path(kept)
    for (path, a), b, at in zip(
        kept, jax.tree.leaves(new), jax.tree.leaves(axis)
    ):
      if at < 1 or not jnp.issubdtype(a.dtype, jnp.floating):
        continue
      a, b = (np.moveaxis(np.asarray(x, np.float32), at, 1) for x in (a, b))
      far = ~(abs(a - b) <= tolerance * (1 + abs(b)))
      far = far.reshape(*far.shape[:2], -1).any(-1)
      far &= np.arange(far.shape[1]) < bound[:, None]
      row, slot = np.argwhere(far)[0] if far.any() else (0, 0)
      assert not far.any(), (
          f"state: {when}, the {who}'s memory{jax.tree_util.keystr(path)} of"
          f" row {row} differs from a fresh prefill at slot {slot} of"
          f" {bound[row]}."
      )


def _begin(target, drafter, prompts, new, **options):
  need = _need(target, drafter, prompts, new)
  options = dict(capacity=need, chunks=(4,)) | options
  return prefill(
      target, drafter, list(prompts), max_new_tokens=new, **options
  )


def _need(target, drafter, prompts, new):
  """The fewest slots that will do, with prompts read four tokens at a time."""
  return begun(target, prompts) + int(np.max(new)) + max(drafter.K + 1, 4)


def _ragged(target, drafter, prompts, seed):
  """Rows of every width and of many budgets, in as few slots as will do."""
  K = drafter.K
  rows = list(prompts) * (-(-4 * (K + 1) // len(prompts)))
  new = [2 + (5 * i) % (4 * K + 3) for i in range(len(rows))]
  width = [K - i % (K + 1) for i in range(len(rows))]
  return _begin(target, drafter, rows, new, seed=seed, width=width)


@highest
def check_state(
    target, drafter, prompts: Sequence[Sequence[int]], *, seed: int = 0
) -> set[int]:
  """After the prompt and every round, memory equals that of a fresh prefill.

  Target keys in slots < length - 1 and drafter keys in slots < last.start,
  in float32, for ragged rows, every width and every accept count 0..K;
  finished rows do not change. Raises AssertionError. Returns the accept
  counts that were seen.
  """
  state = _ragged(target, drafter, prompts, seed)
  _compare(target, drafter, state, "after the prompt")
  seen, number = set(), 0
  while (np.asarray(state.rows.finish) == RUNNING).any():
    number += 1
    before = state.rows
    state, info = _round(target, drafter, state, any_count)
    _compare(target, drafter, state, f"after round {number}")
    seen |= set(np.asarray(info.accepted)[np.asarray(info.rounds) > 0].tolist())
    frozen = np.asarray(before.finish) != RUNNING
    for a, b in zip(before[:5], state.rows[:5]):
      a, b = np.asarray(a)[frozen], np.asarray(b)[frozen]
      if a.ndim == 2:
        text = np.arange(a.shape[1]) < np.asarray(before.length)[frozen, None]
        a, b = np.where(text, a, 0), np.where(text, b, 0)
      assert (a == b).all(), f"state: round {number} changed a finished row."
  return seen


def _poisoned(target, drafter, state):
  """The largest number in every slot that is not final, wrong tokens above.

  Also where a source ends, in what was read of it.
  """

  def spoil(x, at, bound):
    if at < 1 or not jnp.issubdtype(x.dtype, jnp.floating):
      return x
    slot = jax.lax.broadcasted_iota(jnp.int32, x.shape, at)
    bound = bound.reshape((-1,) + (1,) * (x.ndim - 1))
    return jnp.where(slot < bound, x, jnp.finfo(x.dtype).max)

  memory = [state.cache, state.draft]
  for which, _, axes, bound in _memory(target, drafter, state):
    memory[which] = jax.tree.map(
        lambda x, at, n=bound: spoil(x, at, n), memory[which], axes
    )
  rows, last = state.rows, state.last
  above = lambda x, n: jnp.where(
      jnp.arange(x.shape[1]) < n[:, None], x, (x + 1) % target.vocab
  )
  rows = rows._replace(tokens=above(rows.tokens, rows.length))
  if rows.source is not None:
    tokens, length = rows.source
    rows = rows._replace(source=Source(above(tokens, length), length))
  last = last._replace(tokens=above(last.tokens, last.count))
  return state._replace(
      rows=rows, last=last, cache=memory[0], draft=memory[1]
  )


@highest
def check_poison(
    target, drafter, prompts: Sequence[Sequence[int]], *, seed: int = 0
) -> None:
  """What lies above the final slots is rubbish that nobody sees.

  Fills it with the largest number of its type, and with other tokens, before
  every round; the texts must come out the same. Raises AssertionError.
  """
  clean = _ragged(target, drafter, prompts, seed)
  dirty, number = clean, 0
  while (np.asarray(clean.rows.finish) == RUNNING).any():
    number += 1
    dirty = _poisoned(target, drafter, dirty)
    clean, _ = _round(target, drafter, clean, any_count)
    dirty, _ = _round(target, drafter, dirty, any_count)
    assert outputs_of(clean) == outputs_of(dirty), (
        f"poison: in round {number} a text changed with what lies above the"
        " final slots."
    )


@highest
def check_capacity(target, drafter, *, chunk: int = 96) -> None:
  """No window, of a prompt or a round, is written past the last slot.

  `dynamic_update_slice` clamps such a write and spoils good slots in
  silence. A prompt ends where a bucket of slots has room for the text but
  not for the chunk that reads it; a cache that is too small is refused.
  Raises AssertionError. (`check_state` runs to the last slot.)
  """
  prompt = [i % target.vocab for i in range(chunk + 4)]
  text = begun(target, [prompt])
  new = 128 - text - (drafter.K + 1)  # fits a bucket of 128
  if new < 1:
    raise ValueError(
        f"check_capacity: K = {drafter.K} leaves no room; give a smaller"
        " chunk."
    )
  state = prefill(
      target, drafter, [prompt, prompt[:7]], max_new_tokens=new,
      chunks=(chunk,),
  )
  _compare(target, drafter, state, "after a prompt read in wide chunks")
  reach = max(drafter.K + 1, 4)
  tight = text + new + reach
  refused = False
  try:
    _begin(target, drafter, [prompt], new, capacity=tight - 1)
  except ValueError:
    refused = True
  assert refused, (
      f"capacity: prefill took {tight - 1} slots for a text of"
      f" {text + new} tokens and windows of {reach}."
  )


def _texts(
    target, drafter, prompts, settings, seeds, rule, new, eos=None, **options
):
  params = {
      name: np.array([s.get(name, default) for s in settings])
      for name, default in DEFAULTS.items()
  }
  state = _begin(
      target, drafter, prompts, new, seed=list(seeds), sampling=params,
      eos=(0,) if eos is None else (eos,), **options,
  )
  if eos is None:  # one shape for texts with and without an end
    none = jnp.full_like(state.rows.eos, -1)
    state = state._replace(rows=state.rows._replace(eos=none))
  return engine.generate(target, drafter, state, rule=rule)


@highest
def check_batch_invariance(
    target, drafter, prompts: Sequence[Sequence[int]],
    settings: Sequence[dict] = (dict(), dict(temperature=0.6, top_p=0.9)),
    *, rule: Callable = rules.token, tokens: int = 12,
) -> None:
  """A row's text hangs on its own prompt, seed and setting alone.

  The same row among other neighbours, at another place, with other padding
  and a larger cache, and alone, writes the same. Raises AssertionError.
  """
  rows = [
      (list(p), settings[i % len(settings)], i)
      for i, p in enumerate([*prompts] * 2)
  ]

  def texts(rows, **options):
    state, _ = _texts(
        target, drafter, *zip(*rows), rule, tokens, **options
    )
    return outputs_of(state)

  need = _need(target, drafter, prompts, tokens)
  base = texts(rows, capacity=need)
  turned = texts(rows[::-1], capacity=need)[::-1]
  other = dict(temperature=1.7, top_k=2)
  strange = [
      row if i % 2 else (row[0][:1], other, 1000 + i)
      for i, row in enumerate(rows)
  ]
  among = texts(strange, capacity=need)
  alone = texts(rows[-1:], capacity=need + 64)
  for what, found, wanted in (
      ("in another order", turned, base),
      ("among other rows", among[1::2], base[1::2]),
      ("alone in a larger cache", alone, base[-1:]),
  ):
    assert found == wanted, (
        f"batch: a row's text is another {what}: {found} instead of {wanted}."
    )


@highest
def check_stops(
    target, drafter, prompts: Sequence[Sequence[int]], *,
    rule: Callable = rules.token, tokens: int = 12,
) -> None:
  """Ends, stop strings and budgets cut a text and change nothing before.

  An end token or a string over two tokens may fall anywhere in a block and
  across its border: the text must be the uncut one up to and with the
  completing token. Greedy texts of budgets 1 .. K+2 must be prefixes of the
  long one, and the tally must count what was kept. Raises AssertionError.
  """
  rows = list(prompts) * 2
  run = lambda settings, new, rule, **options: _texts(
      target, drafter, rows, settings, range(len(rows)), rule, new,
      capacity=_need(target, drafter, rows, tokens), **options,
  )
  plain = [dict()] * len(rows)
  table = np.zeros((2, 2, target.vocab), np.int32)  # next state, strings hit
  cut = lambda **options: run(
      plain, tokens, any_count, stop=tuple(table), **options
  )
  whole = outputs_of(cut()[0])
  pairs = [pair for text in whole for pair in zip(text, text[1:])]
  first, second = max(sorted(set(pairs)), key=pairs.count)
  table[0, :, first], table[1, 1, second] = 1, 1
  every = sum(whole, [])
  end = max(sorted(set(every)), key=every.count)
  for what, reason, options, ends in (
      (
          "end token", END, dict(eos=end, stop_mask=0),
          lambda text, i: text[i] == end,
      ),
      (
          "stop string", STOP, dict(),
          lambda text, i: i > 0 and (text[i - 1], text[i]) == (first, second),
      ),
  ):
    state, tally = cut(**options)
    found, finish = outputs_of(state), np.asarray(state.rows.finish)
    for row, text in enumerate(whole):
      at = next((i + 1 for i in range(tokens) if ends(text, i)), None)
      wanted, why = text[:at], BUDGET if at is None else reason
      assert found[row] == wanted and finish[row] == why, (
          f"stops: row {row} wrote {found[row]} and finished as"
          f" {finish[row]}; cut at its {what} it is {wanted}."
      )
    info = jax.tree.map(lambda x: np.asarray(x).sum(), tally.info)
    kept = sum(map(len, found))
    assert info.emitted == kept == info.accepted + info.rounds - info.dropped, (
        f"stops: {kept} tokens were kept; the tally has {info.emitted}"
        f" emitted, {info.accepted} accepted, {info.rounds} rounds,"
        f" {info.dropped} dropped."
    )
  greedy = [dict(temperature=0.0)] * len(rows)
  long = outputs_of(run(greedy, tokens, rule)[0])
  new = [1 + i % (drafter.K + 2) for i in range(len(rows))]
  state, _ = run(greedy, new, rule)
  wanted = [text[:n] for text, n in zip(long, new)]
  assert outputs_of(state) == wanted, (
      f"stops: budgets {new} gave {outputs_of(state)}, not {wanted}."
  )
  assert (np.asarray(state.rows.finish) == BUDGET).all(), (
      "stops: a row that used up its budget finished otherwise."
  )
