"""Eight fake devices for every test, and one tiny pair that many share."""

import gc
import json
import os
import pathlib
import types

if "device_count" not in os.environ.get("XLA_FLAGS", ""):
  # Before jax is imported; compiling and running cost the same as with one.
  os.environ["XLA_FLAGS"] = (
      os.environ.get("XLA_FLAGS", "")
      + " --xla_force_host_platform_device_count=8"
  ).strip()

import jax  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402
import tokenizers  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from tokenizers import (  # noqa: E402
    decoders,
    models,
    normalizers,
    pre_tokenizers,
)

TEMPLATE = """{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>
{%- endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"""
ROLES = ["<|user|>", "<|system|>", "<|assistant|>", "<|end|>"]


def pytest_collection_modifyitems(items):
  if not os.environ.get("SPECJAX_LONG"):
    skip = pytest.mark.skip(reason="takes long; set SPECJAX_LONG=1 to run it")
    for item in items:
      if item.get_closest_marker("long"):
        item.add_marker(skip)


@pytest.fixture(scope="module")
def quick_compiles():
  """Half the compile time: for tests of what a program does, not how fast."""
  name = "jax_disable_most_optimizations"
  before = jax.config.read(name)
  jax.config.update(name, True)
  yield
  jax.config.update(name, before)


@pytest.fixture(scope="module", autouse=True)
def few_maps():
  """Lets go of compiled programs before they have used up a process's memory
  maps, of which Linux gives it 65,530; then a compilation ends in a crash."""
  yield
  maps = pathlib.Path("/proc/self/maps")
  if maps.exists() and maps.read_bytes().count(b"\n") > 20_000:
    jax.clear_caches()
    gc.collect()


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
    from specjax.stops import stop_table

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


@pytest.fixture(scope="session")
def embedded():
  from specjax.text import Tokenizer

  return Tokenizer.embedded()


@pytest.fixture(scope="session")
def like_llama():
  """Writes a Llama-2-like file: word marks, byte tokens, a space in front."""

  def write(path):
    vocab = ["<s>", "</s>", "<unk>", *(f"<0x{b:02X}>" for b in range(256))]
    vocab += ["\u2581", *"abcd", "ab", "\u2581c", "<0xZZ>"]
    model = models.BPE(
        {piece: i for i, piece in enumerate(vocab)},
        [("a", "b"), ("\u2581", "c")],
        unk_token="<unk>",
        byte_fallback=True,
    )
    out = tokenizers.Tokenizer(model)
    out.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    out.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    out.add_special_tokens(["<s>", "</s>", "<unk>"])
    out.enable_truncation(3)  # must have no effect
    out.save(str(path / "tokenizer.json"))
    return path / "tokenizer.json"

  return write


@pytest.fixture(scope="session")
def mutations():
  """Bytes cut, overwritten, with a number blown up, or with a part doubled."""

  @st.composite
  def mutated(draw, data):
    out = bytearray(data)
    early = st.integers(0, min(2000, len(out)))
    at = draw(st.integers(0, len(out) - 1) | early)
    kind = draw(st.sampled_from(["cut", "byte", "bit", "long", "double"]))
    if kind == "cut":
      del out[at:]
    elif kind == "byte":
      out[at : at + 1] = draw(st.binary(min_size=1, max_size=3))
    elif kind == "bit":
      out[at % len(out)] ^= 1 << draw(st.integers(0, 7))
    elif kind == "long":
      out[at : at + 1] = b"\xff" * draw(st.integers(1, 9)) + b"\x01"
    else:
      out[at:at] = out[at : at + draw(st.integers(1, 500))]
    return bytes(out)

  return mutated


@pytest.fixture(scope="session")
def chatty():
  """A pair of 32 tokens, letters and those of its chat template."""
  from specjax import rules
  from specjax.drafters.autoregressive import Autoregressive
  from specjax.testing.pair import decoder
  from specjax.text import Tokenizer

  letters = "abcdefghijklmnopqrstu<|>/\u0120\u010a\u00e9"
  inner = tokenizers.Tokenizer(
      models.BPE({c: i for i, c in enumerate(letters)}, [])
  )
  inner.pre_tokenizer = pre_tokenizers.ByteLevel(
      add_prefix_space=False, use_regex=False
  )
  inner.decoder = decoders.ByteLevel()
  inner.add_special_tokens(ROLES)
  tokenizer = Tokenizer.from_json(
      inner.to_str(), "letters", eos=["<|end|>"], chat_template=TEMPLATE
  )
  return types.SimpleNamespace(
      target=decoder(32), drafter=Autoregressive(decoder(32, boost=4.0), 3),
      rule=rules.token, tokenizer=tokenizer,
  )


@pytest.fixture
def templates_here(monkeypatch):
  """Templates of chats that a test trusts render in this process."""
  from specjax import chat

  monkeypatch.setattr(
      chat, "_elsewhere", lambda job: chat._answer(json.loads(job))
  )
