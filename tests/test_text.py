"""Tokenizers, incremental decoding and stop strings against brute force."""

import json

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers

from specjax import text

quick = settings(max_examples=100, deadline=None, database=None)


@pytest.fixture(scope="module")
def embedded():
  return text.Tokenizer.embedded()


def sentencepiece(path):
  """Writes a Llama-2-like file: word marks, byte tokens, a space in front."""
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


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
  return text.Tokenizer(sentencepiece(tmp_path_factory.mktemp("pieces")))


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

  @quick
  @given(st.data(), st.lists(st.integers(0, 260), max_size=30))
  def test_increments_join_to_the_text(self, embedded, pieces, data, ids):
    for tokenizer in (embedded, pieces):
      stream = tokenizer.stream(start=True)
      cuts = data.draw(st.lists(st.integers(0, len(ids)), max_size=5))
      cuts = [0, *sorted(cuts), len(ids)]
      parts = [stream.push(ids[a:b]) for a, b in zip(cuts, cuts[1:])]
      assert "".join(parts) + stream.flush() == tokenizer.decode(ids)

  @quick
  @given(st.text())
  def test_no_half_characters(self, embedded, words):
    stream, seen = embedded.stream(), ""
    for i in embedded.encode(words):
      seen += stream.push([i])
      assert words.startswith(seen)
    assert seen == words and stream.flush() == ""

  def test_special_tokens_are_text_unless_asked_for(self, embedded):
    name = "<|endoftext|>"
    assert embedded.encode(name, special=True) == [0]
    assert 0 not in embedded.encode(name)
    assert embedded.decode(embedded.encode(name)) == name
    assert embedded.decode([0, 0]) == ""

  def test_ids_outside_the_vocabulary_are_nothing(self, embedded):
    ids = embedded.encode("abc")
    assert embedded.decode([-1, *ids, 4096, 10**9]) == "abc"

  def test_piece_bytes(self, pieces):
    table = pieces.token_bytes()
    assert table[:3] == [b"", b"", b""]
    assert table[3 + 0x0A] == b"\n" and table[3 + 256] == b" "
    assert table[-2:] == [b" c", b"<0xZZ>"]

  def test_only_the_first_space_is_dropped(self, pieces):
    stream = pieces.stream(start=True)
    mark = pieces.encode("c")
    assert [stream.push(ids) for ids in ([0], mark, mark)] == ["", "c", " c"]
    assert pieces.decode(mark + mark, start=False) == " c c"

  def test_added_tokens_stand_for_themselves(self, tmp_path, embedded):
    """Also where some of their letters are in the byte alphabet."""
    inner = tokenizers.Tokenizer.from_str(embedded._inner.to_str())
    added = ["\u00e9\u00a0", "\u00ad", "\u2581x", "  \n", "<tool>"]
    inner.add_tokens(added)
    inner.save(str(tmp_path / "tokenizer.json"))
    tokenizer = text.Tokenizer(tmp_path)
    assert tokenizer.token_bytes()[4096:] == [a.encode() for a in added]
    assert tokenizer.decode([4096, 4098]) == inner.decode([4096, 4098])

  def test_unreadable_text(self, embedded):
    with pytest.raises(ValueError, match="cannot be encoded"):
      embedded.encode("\ud800")

  def test_ends_from_the_files_beside(self, tmp_path):
    sentencepiece(tmp_path)
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

  def test_truncated(self, tmp_path):
    path = sentencepiece(tmp_path)
    data = path.read_bytes()
    for end in range(0, len(data) - 1, 97):
      path.write_bytes(data[:end])
      with pytest.raises(ValueError):
        text.Tokenizer(path)

  @pytest.mark.parametrize("size", [2**31, 2**23])
  def test_stray_id(self, tmp_path, size):
    path = sentencepiece(tmp_path)
    spec = json.loads(path.read_text())
    spec["model"]["vocab"]["zz"] = size
    path.write_text(json.dumps(spec))
    with pytest.raises(ValueError, match="ids up to"):
      text.Tokenizer(path)

  def test_other_decoder(self, tmp_path):
    path = sentencepiece(tmp_path)
    spec = json.loads(path.read_text())
    spec["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    path.write_text(json.dumps(spec))
    with pytest.raises(ValueError, match="WordPiece"):
      text.Tokenizer(path)

  def test_too_long(self, tmp_path, monkeypatch):
    path = sentencepiece(tmp_path)
    monkeypatch.setattr(text, "FILE_LIMIT", 1000)
    with pytest.raises(ValueError, match="longer than 1000 bytes"):
      text.Tokenizer(path)

  def test_damaged(self, tmp_path):
    """A file with some bytes changed loads and works, or is a ValueError."""
    path = sentencepiece(tmp_path)
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


def brute(strings, table, ids):
  """The strings that end inside each token, by looking at all of the text."""
  out, so_far = [], b""
  for i in ids:
    bits = 0
    for byte in table[i]:
      so_far += bytes([byte])
      for bit, string in enumerate(strings):
        bits |= so_far.endswith(string) << bit
    out.append(bits)
  return out


def follow(following, hit, ids):
  """What the engine does: one look-up a token."""
  state, out = 0, []
  for i in ids:
    out.append(int(hit[state, i]))
    state = following[state, i]
  return out


class TestStops:
  @quick
  @given(st.data())
  def test_against_brute_force(self, data):
    some = st.text("ab", min_size=1, max_size=5).map(str.encode)
    strings = data.draw(st.lists(some, min_size=1, max_size=31))
    table = data.draw(
      st.lists(st.text("abc", max_size=5).map(str.encode), min_size=1)
    )
    ids = st.integers(0, len(table) - 1)
    ids = data.draw(st.lists(ids, max_size=20))
    following, hit = text.stop_table(strings, table)
    assert follow(following, hit, ids) == brute(strings, table, ids)

  @quick
  @given(st.text("ab\u00e9\n "), st.text("ab\u00e9\n ", min_size=1, max_size=4))
  def test_words_across_tokens(self, embedded, before, stop):
    words = before + stop + "ab"
    following, hit = text.stop_table([stop], embedded.token_bytes())
    ids = embedded.encode(words)
    hits = follow(following, hit, ids)
    kept = embedded.decode(ids[: hits.index(1) + 1])
    assert text.cut_at_stop(kept, [stop]) == words[: words.index(stop)]

  def test_shapes(self):
    for count, rows in ((0, 32), (31, 32), (32, 64), (127, 128), (128, 256)):
      strings = ["x" * count] if count else []
      following, hit = text.stop_table(strings, [b"x", b"", b"xx"])
      assert following.shape == hit.shape == (rows, 3)
      assert (following.dtype, hit.dtype) == (np.int16, np.int32)
      assert (following[: count + 1, 1] == np.arange(count + 1)).all()
      assert not following[count + 1 :].any() and not hit[count + 1 :].any()
    assert text.stop_table(["a"], [])[0].shape == (32, 0)

  def test_highest_bit(self):
    strings = [f"{i:02d}" for i in range(31)]
    _, hit = text.stop_table(strings, [b"30", b"0"])
    assert hit[0, 0] == 1 << 30 and hit.min() >= 0

  @pytest.mark.parametrize(
    "strings, match",
    [
      (["a", ""], "Stop string 1 is empty"),
      ([b""], "Stop string 0 is empty"),
      (["a"] * 32, "32 stop strings"),
      (["a" * 600, "b" * 401], "1001 bytes"),
      ("stop", "give a list"),
    ],
  )
  def test_refusals(self, strings, match):
    with pytest.raises(ValueError, match=match):
      text.stop_table(strings, [b"a"])
    with pytest.raises(ValueError, match=match):
      text.cut_at_stop("a", strings)

  def test_cut(self):
    assert text.cut_at_stop("one two", []) == "one two"
    assert text.cut_at_stop("one two", ["x"]) == "one two"
    assert text.cut_at_stop("one two", ["two", "e t"]) == "on"
    assert text.cut_at_stop("abcd", ["abcd", "bc"]) == "a"
    assert text.cut_at_stop("abc", ["bc", "abc"]) == ""
