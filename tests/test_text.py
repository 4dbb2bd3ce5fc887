"""tokenizer.json files: against the library, and hostile ones."""

import json

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers

from specjax import text

quick = settings(max_examples=100, deadline=None, database=None)


@pytest.fixture(scope="module")
def pieces(like_llama, tmp_path_factory):
  return text.Tokenizer(like_llama(tmp_path_factory.mktemp("pieces")))


class TestTokenizer:
  def test_embedded(self, embedded):
    assert (embedded.bos, embedded.eos, embedded.size) == (0, (0,), 4096)
    table = embedded.token_bytes()
    assert len(table) == 4096 and table[0] == b""
    assert set(table) >= {bytes([b]) for b in range(256)}
    assert len(embedded.encode("\n" + " " * 12)) == 1

  @quick
  @given(st.text())
  def test_round_trip(self, embedded, words):
    ids = embedded.encode(words)
    assert embedded.decode(ids) == words
    assert b"".join(embedded.token_bytes()[i] for i in ids) == words.encode()

  @quick
  @given(st.text(st.characters(exclude_characters="\u2581", codec="utf-8")))
  def test_round_trip_of_pieces(self, pieces, words):
    ids = pieces.encode(words)
    assert pieces.decode(ids) == words
    assert pieces.decode(ids, start=False) == (" " + words if words else "")

  @quick
  @given(st.lists(st.integers(0, 4095), max_size=30))
  def test_decode_is_that_of_the_library(self, embedded, ids):
    assert embedded.decode(ids) == embedded._inner.decode(ids)

  def test_piece_bytes(self, pieces):
    table = pieces.token_bytes()
    assert table[:3] == [b"", b"", b""]
    assert table[3 + 0x0A] == b"\n" and table[3 + 256] == b" "
    assert table[-2:] == [b" c", b"<0xZZ>"]

  def test_added_tokens_stand_for_themselves(self, tmp_path, embedded):
    """Also where some of their letters are in the byte alphabet."""
    inner = tokenizers.Tokenizer.from_str(embedded._inner.to_str())
    added = ["\u00e9\u00a0", "\u00ad", "\u2581x", "  \n", "<tool>"]
    inner.add_tokens(added)
    inner.save(str(tmp_path / "tokenizer.json"))
    tokenizer = text.Tokenizer(tmp_path)
    assert tokenizer.token_bytes()[4096:] == [a.encode() for a in added]
    assert tokenizer.decode([4096, 4098]) == inner.decode([4096, 4098])

  def test_special_only_by_the_config(self, like_llama, tmp_path):
    path = like_llama(tmp_path)
    inner = tokenizers.Tokenizer.from_file(str(path))
    inner.add_tokens(["<turn>"])
    inner.save(str(path))
    turn = inner.token_to_id("<turn>")
    assert text.Tokenizer(path).encode("<turn>")[-1] == turn
    config = json.dumps({"extra_special_tokens": {"turn_token": "<turn>"}})
    (tmp_path / "tokenizer_config.json").write_text(config)
    tokenizer = text.Tokenizer(path)
    assert turn not in tokenizer.encode("<turn>")
    assert tokenizer.encode("a<turn>", special=True)[-1] == turn
    assert tokenizer.decode([turn]) == ""

  def test_unigrams_do_not_find_special_tokens_in_text(self):
    """Like T5's: special tokens are pieces, and text is normalised."""
    letters = [(c, -3.0) for c in "\u2581abc<>/s"]
    inner = tokenizers.Tokenizer(models.Unigram(
        [("<unk>", 0.0), ("</s>", 0.0), *letters], unk_id=0
    ))
    inner.normalizer = normalizers.NFKC()
    inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    inner.decoder = decoders.Metaspace(prepend_scheme="first")
    inner.add_special_tokens(["</s>", "<unk>"])
    tokenizer = text.Tokenizer.from_json(inner.to_str(), "t5", eos=["</s>"])
    for words in ("a</s> b</s>", "</s>", "a\uff1c/s\uff1e"):
      ids = tokenizer.encode(words)
      assert 1 not in ids
      assert tokenizer.decode(ids) == normalizers.NFKC().normalize_str(words)
    assert tokenizer.encode("z")[-1] == 0
    whole = "a b</s>a b</s></s>"
    assert tokenizer.encode(whole, special=True) == inner.encode(whole).ids


TRICKY = {
    "bos_token": {"content": "<s>"}, "eos_token": "</s>",
    "additional_special_tokens": ["a"],
    "chat_template": [{"name": "default", "template": "x"}],
    "added_tokens_decoder": {"0": {"content": "<s>", "special": True}},
}


class TestHostileFiles:
  @pytest.mark.parametrize(
      "data",
      [
          b"",
          b"null",
          b"[]",
          b"{}",
          b"\xff\xfe{}",
          b'{"model": {"type": "BPE", "vocab": [], "merges": 3}}',
          b'{"version": "1.0", "model": null}',
          b"[" * 100_000,
          b'{"model":' * 100_000,
          b'{"decoder":' + b'{"type":"Sequence","decoders":[' * 5_000,
      ],
      ids=range(10),
  )
  def test_other_contents(self, tmp_path, data):
    (tmp_path / "tokenizer.json").write_bytes(data)
    with pytest.raises(ValueError, match="tokenizer.json"):
      text.Tokenizer(tmp_path)

  def test_truncated(self, like_llama, tmp_path):
    path = like_llama(tmp_path)
    data = path.read_bytes()
    for end in range(0, len(data) - 1, 97):
      path.write_bytes(data[:end])
      with pytest.raises(ValueError):
        text.Tokenizer(path)

  def test_other_decoder(self, like_llama, tmp_path):
    path = like_llama(tmp_path)
    spec = json.loads(path.read_text())
    spec["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    path.write_text(json.dumps(spec))
    with pytest.raises(ValueError, match="WordPiece"):
      text.Tokenizer(path)

  def test_damaged(self, like_llama, tmp_path):
    """A file with some bytes changed loads and works, or is a ValueError."""
    path = like_llama(tmp_path)
    data = np.frombuffer(path.read_bytes(), np.uint8)
    rng = np.random.default_rng(0)
    for _ in range(300):
      damaged = data.copy()
      at = rng.integers(0, len(data), rng.integers(1, 4))
      damaged[at] = rng.choice(data, len(at))
      path.write_bytes(damaged.tobytes())
      try:
        tokenizer = text.Tokenizer(path)
        tokenizer.decode(tokenizer.encode("ab c\n<0x0A> \u00e9", special=True))
      except ValueError:
        pass

  def test_mutations(self, mutations, like_llama, tmp_path):
    """Both files, mutated: loads and works, or is a ValueError."""
    source = like_llama(tmp_path)
    spec = json.loads(source.read_text())
    vocab = {k: v for k, v in spec["model"]["vocab"].items() if "<0x" not in k}
    ids = {token: i for i, token in enumerate(vocab)}
    spec["model"] |= {"vocab": ids, "byte_fallback": False}
    good = {
        source: json.dumps(spec).encode(),
        tmp_path / "tokenizer_config.json": json.dumps(TRICKY).encode(),
    }

    @settings(max_examples=600, deadline=None, database=None)
    @given(st.data())
    def check(data):
      chosen = data.draw(st.sampled_from(list(good)))
      for path, contents in good.items():
        damaged = data.draw(mutations(contents)) if path == chosen else contents
        path.write_bytes(damaged)
      try:
        tokenizer = text.tokenizer(tmp_path)
        ids = tokenizer.encode("ab c</s>\n", special=True)
        assert isinstance(tokenizer.decode(ids), str)
      except ValueError as error:
        assert str(tmp_path) in str(error) or "cannot be encoded" in str(error)

    check()


def test_what_is_saved_is_read_again(tmp_path):
  words = text.Tokenizer.embedded()
  words.chat_template = "{{ messages[0].content }}"
  words.save(tmp_path)
  again = text.tokenizer(tmp_path)
  assert (again.bos, again.eos, again.size) == (
      words.bos, words.eos, words.size
  )
  assert again.chat_template == words.chat_template
  line = "def f(x):\n  return '\u00e9 \U0001f600'\n"
  assert again.encode(line) == words.encode(line)
  assert again.token_bytes() == words.token_bytes()


def test_bytes_that_are_no_text_are_called_so(embedded):
  with pytest.raises(ValueError, match="no UTF-8"):
    embedded.encode("a\udcff")
