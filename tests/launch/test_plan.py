"""launch/plan.py: wrong words are one sentence; a tiny pair is planned."""

import importlib
import importlib.util
import json

import jax
import pytest
from ml_collections import ConfigDict

LLAMA = dict(
    model_type="llama", vocab_size=512, hidden_size=256, head_dim=64,
    num_attention_heads=4, num_key_value_heads=4, intermediate_size=512,
)
PAIR = dict(
    target=dict(LLAMA, num_hidden_layers=3),
    drafter_model=dict(LLAMA, num_hidden_layers=1),
    topology="v4:2x2x1", context=256, k=("2",),
)


@pytest.fixture
def planned(monkeypatch):
  """(the script, its settings by config and flags)."""
  # As the script sets them on its first import, and not beyond a test.
  monkeypatch.setenv("JAX_PLATFORMS", "cpu")
  monkeypatch.setenv("TPU_SKIP_MDS_QUERY", "1")
  monkeypatch.setenv("ALLOW_MULTIPLE_LIBTPU_LOAD", "true")
  shell, plan = (importlib.import_module(n) for n in ("shell", "plan"))
  monkeypatch.setattr("sys.argv", ["launch/plan.py", "--config=configs/x.py"])
  yield plan, lambda config, **given: shell.settings(
      plan.FLAGS, ConfigDict(config), given
  )
  jax.config.update("jax_enable_compilation_cache", True)


@pytest.mark.parametrize(
    "change, says",
    [
        (dict(topology="v3:2x2"), "none of v4, v5e, v5p, v6e"),
        (dict(topology="v4:2x2"), "give 3 sides"),
        (dict(k=("x",)), "--k=x: give a whole number"),
        (dict(k=("0",)), "must lie in 1..64"),
        (dict(batch=("0",)), "must lie in 1..4096"),
        (dict(batch=("1.5",)), "--batch=1.5: give a whole number"),
        (dict(context=100), "multiple of 128"),
        (dict(acceptance=1.5), "must lie in 0..1"),
        (dict(mesh="1x8"), "make up the 4 chips of v4:2x2x1"),
        (dict(mesh="4x1", batch=("6",)), "multiple of the mesh's 4 data"),
        (dict(what_if="v4:8x8x8"), "4 heads do not spread over 512 chips"),
        (dict(what_if="v9:8"), "what_if = 'v9:8'"),
        (dict(dtype="int3"), "is not float32 or bfloat16"),
    ],
    ids=str,
)
def test_a_wrong_word_is_one_sentence(planned, change, says):
  plan, settings = planned
  with pytest.raises(ValueError, match=says) as error:
    plan.main(settings(PAIR, **change))
  assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "change, says",
    [
        (dict(target={}), "target must be the fields of a config.json"),
        (dict(drafter_model=dict(LLAMA, num_hidden_layers=0)), "must be posit"),
        (dict(target=dict(model_type="mamba")), "model_type 'mamba' is none"),
        (dict(target=dict(LLAMA)), "num_hidden_layers is missing"),
        (dict(drafter_model=dict(
            LLAMA, num_hidden_layers=1, vocab_size=640
        )), "640 tokens, the target's 512"),
    ],
    ids=str,
)
def test_shapes_that_are_none_are_one_sentence(planned, change, says):
  plan, settings = planned
  with pytest.raises(ValueError, match=says):
    plan.main(settings(PAIR | change))


def test_a_checkpoint_is_no_shape(planned):
  _, settings = planned
  with pytest.raises(ValueError, match="'Qwen/Qwen3-8B' is not in fields"):
    settings(PAIR | dict(target="Qwen/Qwen3-8B"))


@pytest.mark.parametrize(
    "name", ["chinchilla_70b_4b", "qwen3_8b_0_6b:shapes",
             "qwen3_32b_0_6b:shapes", "llama3_70b_8b:shapes"],
)
def test_the_configs_are_read(planned, request, name):
  plan, settings = planned
  file, _, variant = name.partition(":")
  path = request.config.rootpath / f"configs/{file}.py"
  spec = importlib.util.spec_from_file_location(file, path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  asked = plan.read(settings(module.get_config(*[variant] * bool(variant))))
  known = plan.planner.programs

  def sizes(c):
    one, two = (known.parameters(known.cut(c, n)) for n in (1, 2))
    return one + (c.layers - 1) * (two - one)

  said = {"70b": 70, "8b": 8, "32b": 32, "4b": 4, "0_6b": 0.6}
  _, big, small = file.split("_", 2)
  assert abs(sizes(asked.target) / 1e9 / said[big] - 1) < 0.03
  assert abs(sizes(asked.drafter) / 1e9 / said[small] - 1) < 0.03


@pytest.fixture
def libtpu():
  if importlib.util.find_spec("libtpu") is None:
    pytest.skip("libtpu has no wheel for this platform, or is not installed")


def test_a_pair_that_does_not_fit_is_one_sentence(planned, libtpu):
  plan, settings = planned
  target = dict(LLAMA, num_hidden_layers=8, intermediate_size=2**24)
  c = settings(PAIR | dict(target=target), topology="v5e:2x2")
  with pytest.raises(ValueError, match="GiB more than the 15.75") as error:
    plan.main(c)
  assert "\n" not in str(error.value) and "no batch fits" in str(error.value)


def test_a_tiny_pair_from_end_to_end(planned, libtpu, tmp_path, capsys):
  plan, settings = planned
  out = tmp_path / "plan"
  plan.main(settings(PAIR, out=str(out), what_if="v4:2x2x1"))
  shown = capsys.readouterr().out
  for title in ("Memory of a chip", "Collectives", "A token's time"):
    assert title in shown
  numbers = json.loads((out / "plan.json").read_text())
  (row,) = numbers["memory"]
  assert row["batch"] == 1 and row["unfit"] is None
  assert abs(numbers["fit"]["off"]) < 0.03
  programs = {r["program"]: r for r in numbers["programs"]}
  assert set(programs) == {"plain", "draft", "verify 2"}
  assert numbers["prefill"]["tokens"] == 256
  assert programs["plain"]["bytes"] >= 0.9 * programs["plain"]["once"]
  assert programs["verify 2"]["flops"] > programs["plain"]["flops"]
  # The same slice by formula is the same.
  there = {r["program"]: r for r in numbers["what_if"]["programs"]}
  for name, r in programs.items():
    assert there[name]["total"] == pytest.approx(r["total"], rel=1e-6)
  assert (out / "plan.png").read_bytes().startswith(b"\x89PNG")
  page = (out / "README.md").read_text()
  assert "Left out" in page and "plan.png" in page and shown
