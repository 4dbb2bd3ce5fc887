"""Tokenizers in GGUF metadata give the ids of the file they came from."""

import io
import json
import pathlib

import numpy as np
import pytest

import specjax
from specjax.checkpoint.gguf_tokenizer import tokenizer
from specjax.text import Tokenizer

EMBEDDED = (
    pathlib.Path(specjax.__file__).parent / "embedded" / "tokenizer.json"
)
TEXTS = [
    "", " ", "def f(x):\n    return x\n", "  two  spaces ", "na\u00efve",
    "\u6f22\u5b57 \U0001f600", "12345 0x1F", "don't WE'LL", "\t\n \n", "a" * 40,
    "import os, sys  # <|endoftext|>",
]


def stored(model, tokens, kinds, **more):
  keys = dict(model=model, tokens=list(tokens), token_type=np.array(kinds))
  return {f"tokenizer.ggml.{key}": x for key, x in (keys | more).items()}


@pytest.fixture(scope="module")
def bytewise():
  """The embedded tokenizer as its converter to GGUF would write it."""
  spec = json.loads(EMBEDDED.read_text())
  ids = dict(spec["model"]["vocab"])
  ids |= {t["content"]: t["id"] for t in spec["added_tokens"]}
  special = {t["content"] for t in spec["added_tokens"]}
  tokens = sorted(ids, key=ids.get)
  kinds = [3 if t in special else 1 for t in tokens]
  merges = [m if isinstance(m, str) else " ".join(m)
            for m in spec["model"]["merges"]]
  end = ids["<|endoftext|>"]
  return stored("gpt2", tokens, kinds, merges=merges, bos_token_id=end,
                eos_token_id=end, add_bos_token=True)


def test_bytewise_is_the_same(bytewise):
  ours = tokenizer("m.gguf", bytewise | {"tokenizer.ggml.pre": "gpt-2"})
  spec = json.loads(EMBEDDED.read_text())
  spec["pre_tokenizer"] = spec["decoder"] | dict(  # as GPT-2 has it
      add_prefix_space=False, use_regex=True
  )
  end = "<|endoftext|>"
  theirs = Tokenizer.from_json(json.dumps(spec), "e", bos=end, eos=[end])
  assert (ours.bos, ours.eos, ours.size) == (
      theirs.bos, theirs.eos, theirs.size
  )
  for text in TEXTS:
    for special in (False, True):
      ids = ours.encode(text, special=special)
      assert ids == theirs.encode(text, special=special)
    assert ours.decode(ours.encode(text)) == text
  assert ours.token_bytes() == theirs.token_bytes()


@pytest.mark.parametrize("pre, widest", [
    ("llama-bpe", 3), ("qwen2", 1), ("smollm", 1), ("default", 9),
])
def test_splits_of_numbers(bytewise, pre, widest):
  lists = dict(tokens=("12", "123", "1234"), merges=("1 2", "12 3", "123 4"))
  more = {"tokenizer.ggml.pre": pre, "tokenizer.ggml.token_type": None}
  for key, new in lists.items():  # dict: what is there already stays once
    old = bytewise[f"tokenizer.ggml.{key}"]
    more[f"tokenizer.ggml.{key}"] = list(dict.fromkeys([*old, *new]))
  ours = tokenizer("m.gguf", bytewise | more)
  pieces = [ours.name(i) for i in ours.encode("x 1234")]
  assert max(len(p) for p in pieces if p.isdigit()) == min(widest, 4)
  assert ours.decode(ours.encode("x 1234")) == "x 1234"


@pytest.mark.parametrize("spaced", [True, False])
def test_pieces_are_sentencepiece(spaced):
  sentencepiece = pytest.importorskip("sentencepiece")
  sentencepiece.set_min_log_level(3)
  lines = [f"the cat {i} sat on the mat, they say" for i in range(60)]
  made = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=iter(lines * 3), model_writer=made, vocab_size=320,
      model_type="bpe", byte_fallback=True, character_coverage=1.0,
      normalization_rule_name="identity", remove_extra_whitespaces=False,
      user_defined_symbols=["\n\n", "<x>"], hard_vocab_limit=False,
      minloglevel=3, add_dummy_prefix=spaced,
  )
  spm = sentencepiece.SentencePieceProcessor(model_proto=made.getvalue())
  every = range(spm.get_piece_size())
  kind = lambda i: (
      2 if spm.is_unknown(i) else 3 if spm.is_control(i)
      else 6 if spm.is_byte(i) else 4 if i in (3, 4) else 1
  )
  metadata = stored(
      "llama", spm.id_to_piece(list(every)), [kind(i) for i in every],
      scores=np.array([spm.get_score(i) for i in every], np.float32),
      bos_token_id=1, eos_token_id=2, unknown_token_id=0,
      add_space_prefix=spaced,
  )
  ours = tokenizer("m.gguf", metadata)
  assert (ours.bos, ours.eos) == (1, (2,))
  own = [] if spaced else ["a<x>b\n\n\nthe mat \u00fc", "<x> <x>"]
  for text in [*TEXTS, *lines[:5], " the  cat", *own]:
    assert ours.encode(text) == spm.encode(text), text
    assert ours.decode(ours.encode(text)) == text


@pytest.mark.parametrize("more, match", [
    (dict(pre="odd"), "ggml.pre 'odd' is none of"),
    (dict(model="bert"), "ggml.model 'bert' is none of gpt2, llama"),
    (dict(tokens=["a", "a"], token_type=None), "'a' twice"),
    (dict(tokens=7), "ggml.tokens is missing or no list"),
    (dict(merges=None), "ggml.merges is missing"),
    (dict(merges=["no such"]), "not a readable tokenizer"),
    (dict(token_type=np.ones(3)), "ggml.token_type"),
    (dict(eos_token_id=2**31), "eos_token_id = 2147483648 is no token"),
    (dict(model="llama"), "ggml.scores"),
])
def test_what_does_not_fit_is_named(bytewise, more, match):
  more = {f"tokenizer.ggml.{key}": value for key, value in more.items()}
  with pytest.raises(ValueError, match=match) as error:
    tokenizer("m.gguf", bytewise | more)
  assert "m.gguf" in str(error.value)


def test_no_bos_where_none_is_put(bytewise):
  more = {"tokenizer.ggml.add_bos_token": False,
          "tokenizer.chat_template": "{{ messages }}"}
  ours = tokenizer("m.gguf", bytewise | more)
  assert ours.bos is None and ours.chat_template == "{{ messages }}"
