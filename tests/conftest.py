"""Eight fake devices for every test, and one tiny pair that many share."""

import os

if "device_count" not in os.environ.get("XLA_FLAGS", ""):
  # Before jax is imported; compiling and running cost the same as with one.
  os.environ["XLA_FLAGS"] = (
      os.environ.get("XLA_FLAGS", "")
      + " --xla_force_host_platform_device_count=8"
  ).strip()

import jax  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402


@pytest.fixture(scope="module")
def quick_compiles():
  """Half the compile time: for tests of what a program does, not how fast."""
  name = "jax_disable_most_optimizations"
  before = jax.config.read(name)
  jax.config.update(name, True)
  yield
  jax.config.update(name, before)


class Tiny:
  """A target of 32 tokens, a drafter that often agrees, ragged prompts.

  Every test that keeps to these shapes shares its compiled programs.
  """

  V, K, B = 32, 3, 4
  PROMPTS = ([7], [3, 9, 4], list(range(1, 10)), [5, 6] * 8)
  ROOM = dict(capacity=64, chunks=(8,))
  BYTES = [bytes([97 + i]) for i in range(26)] + [b"ab"] * 6

  def __init__(self):
    from specjax.drafters.autoregressive import Autoregressive
    from specjax.testing.pair import decoder

    self.target = decoder(self.V, layers=2)
    self.drafter = Autoregressive(decoder(self.V, layers=2, boost=4.0), self.K)

  def prefill(self, prompts=PROMPTS, new=16, *, drafter=None, **options):
    from specjax.states import prefill

    return prefill(
        self.target, drafter or self.drafter, prompts, max_new_tokens=new,
        **self.ROOM | options,
    )

  def rich(self, prompts=PROMPTS, new=16, *, sampling=None, **options):
    """With every optional buffer: stops, counts, log-probs, bias."""
    from specjax.text import stop_table

    sampling = dict(bias={31: 0.0}) | (sampling or {})
    options = dict(stop=stop_table(["never"], self.BYTES[:26])) | options
    return self.prefill(
        prompts, new, sampling=sampling, penalties=True, logprobs=3,
        **dict(eos=[0]) | options,
    )

  def outputs(self, state, *, drafter=None, **options):
    from specjax import engine
    from specjax.states import outputs_of

    state, _ = engine.generate(
        self.target, drafter or self.drafter, state, **options
    )
    return outputs_of(state)

  def logits(self, text):
    """[len(text) V] by one pass without a cache; row i follows text[i]."""
    padded = np.zeros((1, 64), np.int32)
    padded[0, : len(text)] = text
    return np.asarray(uncached(self.target, padded))[0, : len(text)]

  def greedy(self, prompt, new):
    """The naive decoder: the whole text again for every token."""
    text = list(prompt)
    for _ in range(new):
      text.append(int(self.logits(text)[-1].argmax()))
    return text[len(prompt) :]


@jax.jit
def uncached(target, tokens):
  hidden = target(tokens, jax.numpy.zeros(len(tokens), int))[0]
  return target.head(target.norm(hidden))


@pytest.fixture(scope="session")
def tiny():
  return Tiny()
