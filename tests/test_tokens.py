"""What all tokenizers share: streams, special tokens, the files beside."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specjax import text, tokens

quick = settings(max_examples=100, deadline=None, database=None)


@pytest.fixture(scope="module")
def pieces(like_llama, tmp_path_factory):
  return text.Tokenizer(like_llama(tmp_path_factory.mktemp("pieces")))


@quick
@given(st.data(), st.lists(st.integers(0, 260), max_size=30))
def test_increments_join_to_the_text(embedded, pieces, data, ids):
  for tokenizer in (embedded, pieces):
    stream = tokenizer.stream(start=True)
    cuts = data.draw(st.lists(st.integers(0, len(ids)), max_size=5))
    cuts = [0, *sorted(cuts), len(ids)]
    parts = [stream.push(ids[a:b]) for a, b in zip(cuts, cuts[1:])]
    assert "".join(parts) + stream.flush() == tokenizer.decode(ids)


@quick
@given(st.text())
def test_no_half_characters(embedded, words):
  stream, seen = embedded.stream(), ""
  for i in embedded.encode(words):
    seen += stream.push([i])
    assert words.startswith(seen)
  assert seen == words and stream.flush() == ""


def test_special_tokens_are_text_unless_asked_for(embedded):
  name = "<|endoftext|>"
  assert embedded.encode(name, special=True) == [0]
  assert 0 not in embedded.encode(name)
  assert embedded.decode(embedded.encode(name)) == name
  assert embedded.decode([0, 0]) == ""


def test_ids_outside_the_vocabulary_are_nothing(embedded):
  ids = embedded.encode("abc")
  assert embedded.decode([-1, *ids, 4096, 10**9]) == "abc"


def test_only_the_first_space_is_dropped(pieces):
  stream = pieces.stream(start=True)
  mark = pieces.encode("c")
  assert [stream.push(ids) for ids in ([0], mark, mark)] == ["", "c", " c"]
  assert pieces.decode(mark + mark, start=False) == " c c"


def test_unreadable_text(embedded):
  with pytest.raises(ValueError, match="cannot be encoded"):
    embedded.encode("\ud800")


def test_ends_from_the_files_beside(like_llama, tmp_path):
  like_llama(tmp_path)
  config = {"bos_token": {"content": "<s>"}, "eos_token": "</s>"}
  (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
  more = json.dumps({"eos_token_id": [1, 2, -5, 10**9, "x"]})
  (tmp_path / "generation_config.json").write_text(more)
  tokenizer = text.Tokenizer(tmp_path)
  assert (tokenizer.bos, tokenizer.eos) == (0, (1, 2))
  tokenizer = text.Tokenizer(tmp_path, bos="</s>", eos=["<unk>"])
  assert (tokenizer.bos, tokenizer.eos) == (1, (2,))
  with pytest.raises(ValueError, match="no token '<x>'"):
    text.Tokenizer(tmp_path, eos=["<x>"])
  (tmp_path / "generation_config.json").write_text("[1]")
  with pytest.raises(ValueError, match="not an object"):
    text.Tokenizer(tmp_path)


@pytest.mark.parametrize("size", [2**31, 2**23])
def test_stray_id(like_llama, tmp_path, size):
  path = like_llama(tmp_path)
  spec = json.loads(path.read_text())
  spec["model"]["vocab"]["zz"] = size
  path.write_text(json.dumps(spec))
  with pytest.raises(ValueError, match="ids up to"):
    text.Tokenizer(path)


def test_too_long(like_llama, tmp_path, monkeypatch):
  path = like_llama(tmp_path)
  monkeypatch.setattr(tokens, "FILE_LIMIT", 1000)
  with pytest.raises(ValueError, match="longer than 1000 bytes"):
    text.Tokenizer(path)


def test_chat_templates(like_llama, tmp_path):
  several = [
      {"name": "tools", "template": "y"}, {"name": "default", "template": "x"},
  ]
  like_llama(tmp_path)
  assert text.tokenizer(tmp_path).chat_template is None
  path = tmp_path / "tokenizer_config.json"
  for found, template in (
      ("x", "x"), (several, "x"), ([3, {}], None), (5, None),
      ([{"name": "tools", "template": "y"}], None),
  ):
    path.write_text(json.dumps({"chat_template": found}))
    assert text.tokenizer(tmp_path).chat_template == template
  (tmp_path / "chat_template.jinja").write_text("alone")
  assert text.tokenizer(tmp_path).chat_template == "alone"
