"""SentencePiece models against the package's own reading, and hostile ones."""

import io
import json
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specjax import pieces, text

quick = settings(max_examples=100, deadline=None, database=None)


LINES = [
    f"the quick brown fox {w} jumps over {i} lazy dogs; isn't it na\u00efve?"
    for i, w in enumerate(
        "alpha beta gamma delta epsilon zeta eta theta".split()
    )
] * 5


def trained(kind, **options):
  """A small SentencePiece model's bytes."""
  trainer = pytest.importorskip("sentencepiece").SentencePieceTrainer
  out = io.BytesIO()
  options = dict(normalization_rule_name="identity") | options
  trainer.train(
      sentence_iterator=iter(LINES), model_writer=out, model_type=kind,
      vocab_size=360 if options.get("byte_fallback") else 80, num_threads=1,
      hard_vocab_limit=False, minloglevel=2, **options,
  )
  return out.getvalue()


MODELS = dict(
    unigram=("unigram", dict(normalization_rule_name="nmt_nfkc")),
    bpe=("bpe", dict(byte_fallback=True, remove_extra_whitespaces=False,
                     user_defined_symbols=["<turn>", "<x>"])),
    bare=("unigram", dict(add_dummy_prefix=False, byte_fallback=True,
                          remove_extra_whitespaces=False, bos_id=-1)),
)


@pytest.fixture(scope="module")
def data():
  return {name: trained(k, **options) for name, (k, options) in MODELS.items()}


@pytest.fixture(scope="module", params=MODELS)
def pair_of(request, data, tmp_path_factory):
  """(our tokenizer, the package's own)."""
  import sentencepiece

  path = tmp_path_factory.mktemp("model") / "tokenizer.model"
  path.write_bytes(data[request.param])
  own = sentencepiece.SentencePieceProcessor(model_file=str(path))
  return text.tokenizer(path.parent), own


@quick
@given(st.text(st.sampled_from("the quick\n<0x>\u00ef\U0001f600\u2581\uff21")
               | st.characters(codec="utf-8")))
def test_as_the_package(pair_of, words):
  ours, own = pair_of
  ids = ours.encode(words)
  assert ids == own.encode(words)
  if own.unk_id() not in ids:
    assert ours.decode(ids) == own.decode(ids)
  assert ours.size == own.get_piece_size()
  if own.is_byte(own.piece_to_id("<0x0A>")):
    same = words.replace("\u2581", " ")  # the same to SentencePiece
    assert ours.decode(ids) == same


def test_increments_join(pair_of):
  ours, _ = pair_of
  ids = ours.encode("the fox \u00ef\u00ef jumps  over")
  stream = ours.stream(start=True)
  parts = [stream.push([i]) for i in ids]
  assert "".join(parts) + stream.flush() == ours.decode(ids)


def test_special_tokens(pair_of):
  ours, own = pair_of
  end = own.piece_to_id("</s>")
  plain = ours.encode("fox </s>dogs</s>")
  assert end not in plain and ours.decode([end]) == ""
  ids = ours.encode("fox</s>dogs</s>", special=True)
  fox = own.encode("fox")
  assert ids[: len(fox) + 1] == [*fox, end] and ids[-1] == end
  assert ours.decode(ids) == "foxdogs"  # no space before dogs
  assert (ours.bos, ours.eos) == (
      None if own.bos_id() < 0 else own.bos_id(), (end,)
  )
  assert ours.name(end) == "</s>" and ours.name(10**6) is None


def test_tokens_from_the_files_beside(data, tmp_path):
  (tmp_path / "spiece.model").write_bytes(data["bpe"])
  plain = pieces.Pieces(tmp_path)
  turn = plain.encode("<turn>")[-1]
  assert plain.token_bytes()[turn] == b"<turn>"
  config = {
      "bos_token": None, "eos_token": "<end>", "extra_ids": 3,
      "additional_special_tokens": ["<turn>"],
      "added_tokens_decoder": {
          "1": {"content": "<s>", "special": True},
          "370": {"content": "<tool>", "special": False},
          "371": {"content": "<end>", "special": True, "rstrip": True},
      },
      "chat_template": "a",
  }
  (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
  (tmp_path / "added_tokens.json").write_text('{"<more>": 372}')
  tokenizer = text.tokenizer(tmp_path)
  assert (tokenizer.bos, tokenizer.eos) == (None, (371,))
  assert (tokenizer.size, tokenizer.chat_template) == (373, "a")
  assert turn not in tokenizer.encode("fox <turn> <end>")
  named = tokenizer.encode(
      "fox<turn><tool><end> <extra_id_0><extra_id_2>", special=True
  )
  assert named[-5:] == [turn, 370, 371, plain.size + 2, plain.size]
  assert tokenizer.decode([*named, 372]) == "fox<tool><more>"
  # What is not special stays what the model makes of it.
  assert tokenizer.encode("<x>") == plain.encode("<x>")
  for wrong in (
      {"extra_ids": -1}, {"extra_ids": 1e9}, {"added_tokens_decoder": [1]},
      {"added_tokens_decoder": {"x": {"content": "y"}}},
      {"added_tokens_decoder": {"9": {}}},
      {"added_tokens_decoder": {str(2**40): {"content": "y"}}},
  ):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(wrong))
    with pytest.raises(ValueError, match="tokenizer_config.json: "):
      text.tokenizer(tmp_path)


def test_which_file(like_llama, data, tmp_path):
  with pytest.raises(ValueError, match="has 0 SentencePiece models"):
    text.tokenizer(tmp_path)
  (tmp_path / "sentencepiece.bpe.model").write_bytes(data["bpe"])
  with pytest.raises(ValueError, match="has 0 SentencePiece models"):
    text.tokenizer(tmp_path)
  (tmp_path / "a.model").write_bytes(data["bpe"])
  assert text.tokenizer(tmp_path).size == 360
  (tmp_path / "b.model").write_bytes(data["bpe"])
  with pytest.raises(ValueError, match="has 2 SentencePiece models"):
    text.tokenizer(tmp_path)
  assert text.tokenizer(tmp_path / "b.model").size == 360
  like_llama(tmp_path)
  assert type(text.tokenizer(tmp_path)) is text.Tokenizer


def test_what_streaming_cannot_do(tmp_path):
  path = tmp_path / "tokenizer.model"
  path.write_bytes(trained("bpe", treat_whitespace_as_suffix=True))
  with pytest.raises(ValueError, match="spaces at the end of words"):
    pieces.Pieces(path)


def test_without_the_package(data, tmp_path, monkeypatch):
  path = tmp_path / "tokenizer.model"
  path.write_bytes(data["bpe"])
  monkeypatch.setitem(sys.modules, "sentencepiece", None)
  with pytest.raises(ValueError, match=r"pip install 'specjax\[sentencep"):
    pieces.Pieces(path)


@pytest.mark.parametrize("name", MODELS)
def test_hostile(mutations, data, tmp_path, name):
  """Loads and works, or is a ValueError; in all, some seconds."""
  path = tmp_path / "tokenizer.model"
  counts = {True: 0, False: 0}

  @settings(max_examples=200, deadline=None, database=None)
  @given(mutations(data[name]))
  def check(damaged):
    path.write_bytes(damaged)
    try:
      tokenizer = pieces.Pieces(path)
      ids = tokenizer.encode("the fox</s>\u00ef \uff21\n", special=True)
      assert isinstance(tokenizer.decode(ids), str)
      assert len(tokenizer.token_bytes()) == tokenizer.size
      counts[True] += 1
    except ValueError as error:
      assert str(error).startswith((str(path), "The text cannot"))
      assert "\n" not in str(error)
      counts[False] += 1

  begin = time.monotonic()
  check()
  assert min(counts.values()) > 10, counts
  assert time.monotonic() - begin < 60


def test_too_many_pieces(tmp_path, monkeypatch):
  monkeypatch.setattr(pieces, "SIZE_LIMIT", 1000)
  path = tmp_path / "tokenizer.model"
  path.write_bytes(b"\x0a\x00" * 1001)
  with pytest.raises(ValueError, match="more than 1000 pieces"):
    pieces.Pieces(path)
