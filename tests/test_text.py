"""Tokenizers, incremental decoding and stop strings against brute force."""

import io
import json
import sys
import time

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers

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


LINES = [
  f"the quick brown fox {w} jumps over {i} lazy dogs; isn't it na\u00efve?"
  for i, w in enumerate("alpha beta gamma delta epsilon zeta eta theta".split())
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


class TestPieces:
  @quick
  @given(st.text(st.sampled_from("the quick\n<0x>\u00ef\U0001f600\u2581\uff21")
                 | st.characters(codec="utf-8")))
  def test_as_the_package(self, pair_of, words):
    ours, own = pair_of
    ids = ours.encode(words)
    assert ids == own.encode(words)
    if own.unk_id() not in ids:
      assert ours.decode(ids) == own.decode(ids)
    assert ours.size == own.get_piece_size()
    if own.is_byte(own.piece_to_id("<0x0A>")):
      same = words.replace("\u2581", " ")  # the same to SentencePiece
      assert ours.decode(ids) == same

  def test_increments_join(self, pair_of):
    ours, _ = pair_of
    ids = ours.encode("the fox \u00ef\u00ef jumps  over")
    stream = ours.stream(start=True)
    parts = [stream.push([i]) for i in ids]
    assert "".join(parts) + stream.flush() == ours.decode(ids)

  def test_special_tokens(self, pair_of):
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

  def test_tokens_from_the_files_beside(self, data, tmp_path):
    (tmp_path / "spiece.model").write_bytes(data["bpe"])
    plain = text.Pieces(tmp_path)
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

  def test_which_file(self, data, tmp_path):
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
    sentencepiece(tmp_path)
    assert type(text.tokenizer(tmp_path)) is text.Tokenizer

  def test_what_streaming_cannot_do(self, tmp_path):
    path = tmp_path / "tokenizer.model"
    path.write_bytes(trained("bpe", treat_whitespace_as_suffix=True))
    with pytest.raises(ValueError, match="spaces at the end of words"):
      text.Pieces(path)

  def test_without_the_package(self, data, tmp_path, monkeypatch):
    path = tmp_path / "tokenizer.model"
    path.write_bytes(data["bpe"])
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(ValueError, match=r"pip install 'specjax\[sentencep"):
      text.Pieces(path)

  @pytest.mark.parametrize("name", MODELS)
  def test_hostile(self, data, tmp_path, name):
    """Loads and works, or is a ValueError; in all, some seconds."""
    path = tmp_path / "tokenizer.model"
    counts = {True: 0, False: 0}

    @settings(max_examples=200, deadline=None, database=None)
    @given(mutations(data[name]))
    def check(damaged):
      path.write_bytes(damaged)
      try:
        tokenizer = text.Pieces(path)
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

  def test_too_many_pieces(self, tmp_path, monkeypatch):
    monkeypatch.setattr(text, "SIZE_LIMIT", 1000)
    path = tmp_path / "tokenizer.model"
    path.write_bytes(b"\x0a\x00" * 1001)
    with pytest.raises(ValueError, match="more than 1000 pieces"):
      text.Pieces(path)


@st.composite
def mutations(draw, data):
  """Truncated, overwritten, with a number blown up, or with a part doubled."""
  out = bytearray(data)
  at = draw(st.integers(0, len(out) - 1) | st.integers(0, min(2000, len(out))))
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


TRICKY = {
  "bos_token": {"content": "<s>"}, "eos_token": "</s>",
  "additional_special_tokens": ["a"], "chat_template": [
    {"name": "default", "template": "x"}, {"name": "tools", "template": "y"},
  ],
  "added_tokens_decoder": {"0": {"content": "<s>", "special": True}},
}


class TestConfigs:
  def test_chat_templates(self, tmp_path):
    sentencepiece(tmp_path)
    assert text.tokenizer(tmp_path).chat_template is None
    path = tmp_path / "tokenizer_config.json"
    for found, template in (
      ("x", "x"), (TRICKY["chat_template"], "x"), ([3, {}], None), (5, None),
      ([{"name": "tools", "template": "y"}], None),
    ):
      path.write_text(json.dumps({"chat_template": found}))
      assert text.tokenizer(tmp_path).chat_template == template
    (tmp_path / "chat_template.jinja").write_text("alone")
    assert text.tokenizer(tmp_path).chat_template == "alone"

  def test_tokens_that_only_the_config_calls_special(self, tmp_path):
    path = sentencepiece(tmp_path)
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

  def test_hostile(self, tmp_path):
    """Both files, mutated: loads and works, or is a ValueError."""
    source = sentencepiece(tmp_path)
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
