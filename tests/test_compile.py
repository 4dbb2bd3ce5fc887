"""What is compiled, how often, and what it costs."""

import contextlib
import logging
import re
import time

import jax
import numpy as np
import pytest

from specjax import auto, engine, rules
from specjax.drafters.autoregressive import Autoregressive
from specjax.drafters.ngram import NGram
from specjax.states import fork, prefill, refill, resume, rewind
from specjax.testing.pair import decoder, encoder_decoder

V, B = 32, 2


@contextlib.contextmanager
def compilations():
  """Collects the names of the programs that XLA compiles meanwhile."""
  names = []

  class Listen(logging.Handler):

    def emit(self, record):
      found = re.match(r"Compiling (\S+)", record.getMessage())
      if found:
        names.append(found[1])

  logger, listen = logging.getLogger("jax"), Listen()
  logger.addHandler(listen)
  before, logger.propagate = logger.propagate, False
  try:
    with jax.log_compiles():
      yield names
  finally:
    logger.removeHandler(listen)
    logger.propagate = before


def test_the_counter_counts():
  """Or zero below would mean nothing."""
  with compilations() as names:
    jax.jit(lambda x: x + 1)(np.ones(7))
    jax.numpy.ones(13) * 3
  assert len(names) >= 3 and "jit(<lambda>)" in names


class Server:
  """Requests of every kind to one pair, over two capacity buckets."""

  def __init__(self):
    self.pair = (
        decoder(V, layers=1),
        Autoregressive(decoder(V, layers=1, seed=1), 3),
    )

  def sampling(self, rng):
    each = lambda *options: rng.choice(options, B)
    return dict(
        temperature=each(0.0, 0.5, 1.0), top_k=each(0, 3, 9),
        top_p=each(0.5, 0.9, 1.0), min_p=each(0.0, 0.1),
        repetition=each(1.0, 1.3), presence=each(0.0, 0.5),
        frequency=each(0.0, 0.5), min_new=each(0, 3),
        bias=[{int(rng.integers(V)): 1.5}, None],
    )

  def prompt(self, rng, longest=500):
    return rng.integers(1, V, rng.integers(1, longest + 1)).tolist()

  def serve(self, rng, prompts):
    """One batch of requests, then every way to go on with it."""
    options = lambda: dict(
        max_new_tokens=rng.integers(1, 9, B), seed=int(rng.integers(2**40)),
        sampling=self.sampling(rng), eos=[int(rng.integers(V))],
        width=rng.integers(0, 4, B),
    )
    state = prefill(*self.pair, prompts, penalties=True, **options())
    state, _ = engine.generate(*self.pair, state, idle=0)
    # Shorter, so that they fit whichever bucket the first prompts chose.
    state = refill(*self.pair, state, [self.prompt(rng, 200), None],
                   **options())
    state, _ = engine.generate(*self.pair, state)
    new = self.prompt(rng, 20), self.prompt(rng, 20)
    room = state.rows.tokens.shape[1] - int(state.rows.length.max())
    if room > 300:
      state = resume(*self.pair, state, new, **options())
    lengths = [int(rng.integers(1, n + 1)) for n in state.rows.length]
    state = rewind(*self.pair, state, lengths)
    state = fork(state, rng.integers(0, B, B), int(rng.integers(99)))
    state, _ = engine.generate(*self.pair, state, rounds=2)


@pytest.mark.usefixtures("quick_compiles")
def test_200_requests_compile_nothing_after_one_priming_pass():
  server, rng = Server(), np.random.default_rng(0)
  for longest in (100, 500):  # buckets of 512 and 1,024 slots
    prompts = [[1] * longest, [2] * (longest - 21)]
    server.serve(rng, prompts)
  server.serve(rng, [[1] * 202, [1]])  # every chunk width in the first bucket
  with compilations() as names:
    for _ in range(50):  # 4 requests each: 2 new, a refill, a further turn
      server.serve(rng, [server.prompt(rng) for _ in range(B)])
  assert not names, f"{len(names)} compilations: {sorted(set(names))}"


@pytest.mark.usefixtures("quick_compiles")
def test_sources_of_any_length_within_their_room_compile_nothing():
  pair = (
      encoder_decoder(V),
      Autoregressive(encoder_decoder(V, seed=1), 2),
  )
  rng = np.random.default_rng(0)

  def serve():
    source = lambda: rng.integers(1, V, rng.integers(17, 33)).tolist()
    options = lambda: dict(
        max_new_tokens=rng.integers(1, 9, B), seed=int(rng.integers(2**40)),
        sampling=dict(temperature=rng.choice([0.0, 1.0], B)), eos=[1],
    )
    state = prefill(*pair, [source(), source()], **options())
    state, _ = engine.generate(*pair, state, idle=0)
    state = refill(*pair, state, [source(), None], **options())
    lengths = [int(rng.integers(1, n + 1)) for n in state.rows.length]
    state = rewind(*pair, state, lengths)
    state = fork(state, rng.integers(0, B, B), int(rng.integers(99)))
    engine.generate(*pair, state)

  serve()
  with compilations() as names:
    for _ in range(10):
      serve()
  assert not names, f"{len(names)} compilations: {sorted(set(names))}"


def start(capacity, *, length=256, new=64, rows=4, drafts=3, **shape):
  pair = decoder(V, layers=2, **shape), Autoregressive(decoder(V), drafts)
  return pair, prefill(
      *pair, [[1 + i] * length for i in range(rows)], max_new_tokens=new,
      capacity=capacity, chunks=(64,),
  )


@pytest.mark.usefixtures("quick_compiles")
@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("capacity", [256, 1024])
def test_the_loop_updates_its_caches_in_place(capacity, rows):
  # With 3 drafts, 4 tokens x 2 heads of scores would have the cache's shape.
  pair, state = start(capacity, length=2, rows=rows, drafts=2)
  program = engine.generate.lower(*pair, state).compile()
  caches = jax.tree.leaves((state.cache, state.draft))
  size = sum(x.nbytes for x in caches)
  assert program.memory_analysis().alias_size_in_bytes >= size
  shape = "f32[" + ",".join(map(str, caches[0].shape)) + "]"
  text = program.as_text()
  assert shape in text
  copies = re.findall(rf"= {re.escape(shape)}\S* copy\(", text)
  assert len(copies) <= COPIES, f"{len(copies)} copies of a whole cache"


COPIES = 0


@pytest.mark.usefixtures("quick_compiles")
def test_rounds_of_several_widths_update_the_cache_in_place():
  pair = decoder(V, layers=2), NGram(3)
  state = prefill(
      *pair, [[1, 2]], max_new_tokens=64, capacity=1024, chunks=(64,)
  )
  program = engine.generate.lower(*pair, state).compile()
  text, whole = program.as_text(), state.cache[0].k
  shape = "f32[" + ",".join(map(str, whole.shape)) + "]"
  assert shape in text
  copies = re.findall(rf"= {re.escape(shape)}\S* copy\(", text)
  assert not copies, f"{len(copies)} copies of a whole cache"
  size = sum(x.nbytes for x in jax.tree.leaves(state.cache))
  assert program.memory_analysis().alias_size_in_bytes >= size


@pytest.mark.usefixtures("quick_compiles")
def test_rounds_without_drafts_feed_the_drafter_in_place():
  (target, drafter), state = start(1024, length=2, rows=1, drafts=2)
  program = auto.rest.lower(
      target, drafter, state, rule=rules.token, window=1, idle=0, rounds=64
  ).compile()
  caches = jax.tree.leaves((state.cache, state.draft))
  shape = "f32[" + ",".join(map(str, caches[0].shape)) + "]"
  copies = re.findall(rf"= {re.escape(shape)}\S* copy\(", program.as_text())
  assert not copies, f"{len(copies)} copies of a whole cache"
  size = sum(x.nbytes for x in caches)
  assert program.memory_analysis().alias_size_in_bytes >= size


@pytest.mark.usefixtures("quick_compiles")
@pytest.mark.parametrize("rows", [1, 4])
def test_the_loop_moves_neither_its_text_nor_its_source(rows):
  shape = dict(layers=2, heads=3, dim=8)
  model = encoder_decoder(V, **shape)
  pair = model, Autoregressive(encoder_decoder(V, seed=1, **shape), 2)
  state = prefill(
      *pair, [[2]] * rows, max_new_tokens=64, capacity=256, chunks=(64,),
      source_capacity=512,
  )
  program = engine.generate.lower(*pair, state).compile()
  memory = state.cache, state.draft
  size = sum(x.nbytes for x in jax.tree.leaves(memory))
  assert program.memory_analysis().alias_size_in_bytes >= size
  text = program.as_text()
  for part in (state.cache.own, state.cache.cross):
    whole = "f32[" + ",".join(map(str, part[0].k.shape)) + "]"
    assert whole in text
    copies = re.findall(rf"= {re.escape(whole)}\S* copy\(", text)
    assert not copies, f"{len(copies)} copies of all {whole}"


@pytest.mark.slow
def test_the_cost_of_a_round_follows_length_not_capacity():
  """Medians of interleaved runs, and only their ratio: timings drift."""
  shape = dict(width=64, heads=4, kv_heads=4, dim=32)
  pairs = [start(n, length=230, **shape) for n in (512, 8192)]
  times = [[], []]
  for i in range(41):
    for (pair, state), taken in zip(pairs, times):
      state = fork(state, range(4), i)
      jax.block_until_ready(state)
      begin = time.perf_counter()
      out, _ = engine.generate(*pair, state, rounds=6)
      jax.block_until_ready(out)
      taken.append(time.perf_counter() - begin)
  small, large = (np.median(t[1:]) for t in times)
  assert large <= 1.3 * small, f"{large / small:.2f} times the cost"
