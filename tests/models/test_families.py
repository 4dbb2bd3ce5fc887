"""Configs as they are published: read whole, with the numbers that they mean.

Each has the fields of a file on the hub; what a forward pass reads is checked.
"""

import pytest

from specjax.models.families import read

LLAMA = dict(
    architectures=["LlamaForCausalLM"], attention_bias=False,
    attention_dropout=0.0, bos_token_id=128000,
    eos_token_id=[128001, 128008, 128009], hidden_act="silu", hidden_size=4096,
    initializer_range=0.02, intermediate_size=14336,
    max_position_embeddings=131072, mlp_bias=False, model_type="llama",
    num_attention_heads=32, num_hidden_layers=32, num_key_value_heads=8,
    pretraining_tp=1, rms_norm_eps=1e-05, rope_theta=500000.0,
    rope_scaling=dict(
        factor=8.0, high_freq_factor=4.0, low_freq_factor=1.0,
        original_max_position_embeddings=8192, rope_type="llama3",
    ), tie_word_embeddings=False, torch_dtype="bfloat16",
    transformers_version="4.43.0.dev0", use_cache=True, vocab_size=128256,
)
MISTRAL = dict(
    architectures=["MistralForCausalLM"], bos_token_id=1, eos_token_id=2,
    hidden_act="silu", hidden_size=4096, initializer_range=0.02,
    intermediate_size=14336, max_position_embeddings=32768,
    model_type="mistral", num_attention_heads=32, num_hidden_layers=32,
    num_key_value_heads=8, rms_norm_eps=1e-05, rope_theta=10000.0,
    tie_word_embeddings=False, torch_dtype="bfloat16",
    transformers_version="4.34.0", use_cache=True, vocab_size=32000,
)
GEMMA2 = dict(
    architectures=["Gemma2ForCausalLM"], attention_bias=False,
    attention_dropout=0.0, attn_logit_softcapping=50.0, bos_token_id=2,
    cache_implementation="hybrid", eos_token_id=1, final_logit_softcapping=30.0,
    head_dim=256, hidden_act="gelu_pytorch_tanh",
    hidden_activation="gelu_pytorch_tanh", hidden_size=3584,
    initializer_range=0.02, intermediate_size=14336,
    max_position_embeddings=8192, model_type="gemma2", num_attention_heads=16,
    num_hidden_layers=42, num_key_value_heads=8, pad_token_id=0,
    query_pre_attn_scalar=256, rms_norm_eps=1e-06, rope_theta=10000.0,
    sliding_window=4096, sliding_window_size=4096, torch_dtype="bfloat16",
    transformers_version="4.42.0.dev0", use_cache=True, vocab_size=256000,
)
PHI = dict(
    architectures=["Phi3ForCausalLM"], attention_bias=False,
    attention_dropout=0.0, bos_token_id=199999, embd_pdrop=0.0,
    eos_token_id=199999, full_attn_mod=1, hidden_act="silu", hidden_size=3072,
    initializer_range=0.02, intermediate_size=8192, interpolate_factor=1,
    lm_head_bias=False, max_position_embeddings=131072, mlp_bias=False,
    model_type="phi3", num_attention_heads=24, num_hidden_layers=32,
    num_key_value_heads=8, original_max_position_embeddings=4096,
    pad_token_id=199999, partial_rotary_factor=0.75, resid_pdrop=0.0,
    rms_norm_eps=1e-05, rope_scaling=dict(
        long_factor=[1.0] * 48, short_factor=[1.0] * 48, type="longrope",
    ), rope_theta=10000.0, sliding_window=262144, tie_word_embeddings=True,
    torch_dtype="bfloat16", transformers_version="4.45.0", use_cache=True,
    vocab_size=200064, auto_map={"AutoConfig": "configuration_phi3.Phi3Config"},
)
GPT2 = dict(
    activation_function="gelu_new", architectures=["GPT2LMHeadModel"],
    attn_pdrop=0.1, bos_token_id=50256, embd_pdrop=0.1, eos_token_id=50256,
    initializer_range=0.02, layer_norm_epsilon=1e-05, model_type="gpt2",
    n_ctx=1024, n_embd=1024, n_head=16, n_layer=24, n_positions=1024,
    n_special=0, predict_special_tokens=True, resid_pdrop=0.1,
    summary_activation=None, summary_first_dropout=0.1,
    summary_proj_to_labels=True, summary_type="cls_index",
    summary_use_proj=True, vocab_size=50257, _num_labels=1,
    task_specific_params={"text-generation": {"max_length": 50}},
)
QWEN3_MOE = dict(
    architectures=["Qwen3MoeForCausalLM"], attention_bias=False,
    attention_dropout=0.0, bos_token_id=151643, decoder_sparse_step=1,
    eos_token_id=151645, head_dim=128, hidden_act="silu", hidden_size=2048,
    initializer_range=0.02, intermediate_size=6144,
    max_position_embeddings=40960, max_window_layers=48, mlp_only_layers=[],
    model_type="qwen3_moe", moe_intermediate_size=768, norm_topk_prob=True,
    num_attention_heads=32, num_experts=128, num_experts_per_tok=8,
    num_hidden_layers=48, num_key_value_heads=4, output_router_logits=False,
    rms_norm_eps=1e-06, rope_scaling=None, rope_theta=1000000.0,
    router_aux_loss_coef=0.001, sliding_window=None,
    tie_word_embeddings=False, torch_dtype="bfloat16",
    transformers_version="4.51.0", use_cache=True, use_sliding_window=False,
    vocab_size=151936,
)
QWEN2 = dict(
    architectures=["Qwen2ForCausalLM"], attention_dropout=0.0,
    bos_token_id=151643, eos_token_id=151645, hidden_act="silu",
    hidden_size=896, initializer_range=0.02, intermediate_size=4864,
    max_position_embeddings=32768, max_window_layers=21, model_type="qwen2",
    num_attention_heads=14, num_hidden_layers=24, num_key_value_heads=2,
    rms_norm_eps=1e-06, rope_theta=1000000.0, sliding_window=32768,
    tie_word_embeddings=True, torch_dtype="bfloat16",
    transformers_version="4.43.1", use_cache=True, use_sliding_window=False,
    vocab_size=151936,
)
MIXTRAL = dict(
    architectures=["MixtralForCausalLM"], attention_dropout=0.0,
    bos_token_id=1, eos_token_id=2, hidden_act="silu", hidden_size=4096,
    initializer_range=0.02, intermediate_size=14336,
    max_position_embeddings=32768, model_type="mixtral",
    num_attention_heads=32, num_experts_per_tok=2, num_hidden_layers=32,
    num_key_value_heads=8, num_local_experts=8, output_router_logits=False,
    rms_norm_eps=1e-05, rope_theta=1000000.0, router_aux_loss_coef=0.02,
    sliding_window=None, tie_word_embeddings=False, torch_dtype="bfloat16",
    transformers_version="4.36.0.dev0", use_cache=True, vocab_size=32000,
)
T5 = dict(
    architectures=["T5ForConditionalGeneration"], d_ff=2048, d_kv=64,
    d_model=512, decoder_start_token_id=0, dropout_rate=0.1, eos_token_id=1,
    initializer_factor=1.0, is_encoder_decoder=True, layer_norm_epsilon=1e-06,
    model_type="t5", n_positions=512, num_heads=8, num_layers=6,
    output_past=True, pad_token_id=0, relative_attention_num_buckets=32,
    task_specific_params={"summarization": {"num_beams": 4}},
    vocab_size=32128,
)


def config(fields):
  return read("x", fields)[1]


def test_llama():
  c = config(LLAMA)
  assert (c.dim, c.kv_heads, c.tied, c.windows) == (128, 8, False, ())
  assert (c.rope.scaling, c.rope.factor) == ("llama3", 8.0)
  with pytest.raises(ValueError, match="sliding_window"):  # never reads one
    config(LLAMA | dict(sliding_window=4096))


def test_mistral_has_a_window_unless_its_file_says_null():
  assert config(MISTRAL).windows == (4096,) * 32
  assert config(MISTRAL | dict(sliding_window=None)).windows == ()
  assert config(MISTRAL | dict(sliding_window=7)).windows == (7,) * 32


def test_gemma2_says_its_window_twice():
  c = config(GEMMA2)
  assert c.windows == (4096, 0) * 21 and c.score_cap == 50.0
  with pytest.raises(ValueError, match="sliding_window_size = 4095"):
    config(GEMMA2 | dict(sliding_window_size=4095))


def test_phi_reads_longrope_as_far_as_its_short_factors_reach():
  c = config(PHI)
  assert c.rope.scaling == "longrope" and c.max_positions == 4096
  assert c.rope.amplitude() == pytest.approx((1 + 5 / 12) ** 0.5)
  with pytest.raises(ValueError, match="longrope needs 48 factors"):
    config(PHI | dict(partial_rotary_factor=0.75, rope_scaling=dict(
        long_factor=[1.0] * 4, short_factor=[1.0] * 4, type="longrope")))


def test_gpt2():
  c = config(GPT2)
  assert (c.mlp, c.act, c.tied, c.max_positions) == (
      4096, "gelu_tanh", True, 1024
  )


def test_mixtures():
  c = config(QWEN3_MOE)
  assert (c.experts, c.chosen, c.renormalise, c.dense) == (128, 8, True, ())
  sparse = config(QWEN3_MOE | dict(decoder_sparse_step=4, num_hidden_layers=4))
  assert sparse.dense == (0, 1, 2)
  c = config(MIXTRAL)
  assert (c.experts, c.chosen, c.expert_mlp) == (8, 2, 14336)
  bare = {n: x for n, x in MIXTRAL.items() if n not in (
      "rope_theta", "rms_norm_eps")}
  assert config(bare) == c  # the family's defaults


def test_qwen2_uses_its_window_only_when_told_and_in_its_last_layers():
  assert config(QWEN2).windows == ()
  used = config(QWEN2 | dict(use_sliding_window=True)).windows
  assert used == (0,) * 21 + (32768,) * 3


def test_t5():
  c = config(T5)
  assert (c.gated, c.act, c.tied, c.encoder_layers) == (False, "relu", True, 6)
