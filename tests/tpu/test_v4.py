"""What the engine becomes on sixteen TPU v4 chips, compiled without one."""

import collections
import dataclasses

import jax
import pytest

pytest.importorskip(
    "libtpu", reason="libtpu, the TPU compiler, has no wheel here"
)

from specjax import engine  # noqa: E402
from specjax.drafters.autoregressive import Autoregressive  # noqa: E402
from specjax.drafters.ngram import NGram  # noqa: E402
from specjax.drafters.nothing import Nothing  # noqa: E402
from specjax.models.decoder import Config  # noqa: E402
from specjax.plan import hlo, programs  # noqa: E402
from specjax.plan.chips import slice_of  # noqa: E402
from specjax.plan.programs import Shape  # noqa: E402

V4 = slice_of("v4:2x2x4")
K, SLOTS = 4, 2048
# The 70 B and 4 B of configs/chinchilla_70b_4b.py, fewer layers.
TARGET = Config(
    vocab=32000, width=8192, layers=4, heads=64, kv_heads=64, dim=128,
    mlp=24576, dtype="bfloat16",
)
SMALL = dataclasses.replace(
    TARGET, width=6144, heads=48, kv_heads=48, mlp=16384, layers=2
)
GROUPED = dataclasses.replace(TARGET, kv_heads=8)  # Llama's: each twice
DRAFTERS = dict(
    autoregressive=lambda: Autoregressive(programs.model(SMALL), K),
    narrow=lambda: Autoregressive(programs.drafting(SMALL, 1), K),
    ngram=lambda: NGram(K),
    nothing=lambda: Nothing(),
)


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
  monkeypatch.setenv("TPU_SKIP_MDS_QUERY", "1")
  monkeypatch.setenv("ALLOW_MULTIPLE_LIBTPU_LOAD", "true")


def compiled(c, drafter, batch=1, narrow=0):
  """(program, its state's shape, text) of the whole loop."""
  with jax.set_mesh(programs.mesh(V4, narrow=narrow)):
    target, drafter = programs.model(c), drafter()
    state = programs.state(target, drafter, Shape(batch, SLOTS))
    program = engine.generate.lower(target, drafter, state).compile()
  return program, state, program.as_text()


def reduced(text, c, window):
  """(all-reduces of the target's stream, bfloat16 [1 window width]; all other
  collectives by kind and bytes)."""
  found = collections.Counter((x.kind, x.bytes) for x in hlo.collectives(text))
  stream = found.pop(("all-reduce", 2 * window * c.width), 0)
  return stream, dict(found)


@pytest.mark.parametrize(
    "c, name", [*((TARGET, name) for name in DRAFTERS), (GROUPED, "narrow")],
    ids=[*DRAFTERS, "grouped-narrow"],
)
def test_the_loop_writes_in_place_and_moves_nothing_large(name, c):
  narrow = int(name == "narrow")
  program, state, text = compiled(c, DRAFTERS[name], narrow=narrow)
  caches = programs.held((state.cache, state.draft))
  assert program.memory_analysis().alias_size_in_bytes >= caches
  layer = programs.held(state.cache[0].k)
  assert not hlo.copies(text, layer)
  stream, outside = reduced(text, c, state.last.tokens.shape[1])
  # Behind attention and behind the MLP; and the embedding, cut by vocabulary.
  assert stream == 2 * c.layers + 1
  # A law; a cache is larger. A gather may be told as a sum with zeros.
  assert all(size < 4 * c.vocab for _, size in outside)
  print(f"{name}: outside the target's layers {outside}")


def test_a_planted_gather_and_a_planted_copy_are_seen():
  """What the checks above must not miss: a law moved to every chip, and a
  cache that is kept while it is written."""
  with jax.set_mesh(programs.mesh(V4)):
    target, drafter = programs.model(TARGET), Nothing()
    state = programs.state(target, drafter, Shape(1, SLOTS))

    def bad(target, state):
      draft, now = engine.propose(target, drafter, state)
      scores, now = engine.verify(target, (), now, draft)
      return jax.reshard(scores.logp, jax.P()), now, state.cache[0]

    text = jax.jit(bad).lower(target, state).compile().as_text()
    layer = programs.held(state.cache[0].k)
  assert hlo.copies(text, layer)
  assert any(x.bytes == 4 * TARGET.vocab for x in hlo.collectives(text))


@pytest.mark.long  # 80 layers compile in six minutes
def test_all_of_70b_fits_sixteen_chips():
  c = dataclasses.replace(TARGET, layers=80)
  with jax.set_mesh(programs.mesh(V4)):
    target = programs.model(c)
    shape = Shape(1, SLOTS)
    facts = programs.compiled(programs.verify(target, shape, K), cost=False)
    state = programs.state(target, Nothing(), shape)
    cache = programs.held(state.cache)
  assert facts.arguments + facts.beside < V4.chip.usable * 2**30
  assert facts.temporaries < 0.05 * cache + 0.2e9


def test_scores_of_a_prompt_of_8k_stay_on_the_chip():
  """A chunk's scores over 8k slots, 35 MB a layer, live in a v4's own memory:
  no kernel could move fewer bytes of HBM, and no temporary grows with them."""
  facts = {}
  for slots in (SLOTS, 8192 + programs.CHUNK):
    with jax.set_mesh(programs.mesh(V4)):
      lowered = programs.prefill(programs.model(TARGET), Shape(1, slots))
      facts[slots] = programs.compiled(lowered)
  short, long = facts.values()
  assert long.temporaries < 8e6
  # What a longer cache may cost: its keys and values, read once.
  slot = 2 * 2 * TARGET.layers * TARGET.kv_heads * TARGET.dim / V4.chips
  more = slot * (8192 + programs.CHUNK - SLOTS)
  assert long.cost.bytes - short.cost.bytes < 1.5 * more
