"""Model configs: published sizes come out, and bad ones are refused by field."""

import pytest

from twin.graph.build import operator_graph
from twin.graph.model import model_from_config

LLAMA_8B: dict[str, object] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
}
QWEN2_7B = {
    "model_type": "qwen2",
    "hidden_size": 3584,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "intermediate_size": 18944,
    "vocab_size": 152064,
}
QWEN3_06B = {
    "model_type": "qwen3",
    "hidden_size": 1024,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3072,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
}
QWEN3_30B_A3B = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 6144,
    "vocab_size": 151936,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
QWEN2_57B_A14B = {
    "model_type": "qwen2_moe",
    "hidden_size": 3584,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "intermediate_size": 18944,
    "vocab_size": 151936,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2560,
    "shared_expert_intermediate_size": 20480,
}
DEEPSEEK_V2_LITE = {
    "model_type": "deepseek_v2",
    "hidden_size": 2048,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "intermediate_size": 10944,
    "vocab_size": 102400,
    "q_lora_rank": None,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 64,
    "num_experts_per_tok": 6,
    "n_shared_experts": 2,
    "moe_intermediate_size": 1408,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
}
DEEPSEEK_V3 = {
    **DEEPSEEK_V2_LITE,
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "intermediate_size": 18432,
    "vocab_size": 129280,
    "q_lora_rank": 1536,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3,
}


@pytest.mark.parametrize(
    ("config", "billions"),
    [
        (LLAMA_8B, 8.03),
        (QWEN2_7B, 7.62),
        (QWEN3_06B, 0.596),
        (QWEN3_30B_A3B, 30.5),
        (QWEN2_57B_A14B, 57.4),
        (DEEPSEEK_V2_LITE, 15.7),
        (DEEPSEEK_V3, 671.0),
    ],
    ids=lambda value: str(value.get("model_type")) if isinstance(value, dict) else None,
)
def test_the_operators_hold_the_published_number_of_parameters(config: dict[str, object], billions: float) -> None:
    weights = operator_graph(model_from_config(config)).weight_bytes / 2
    assert weights / 1e9 == pytest.approx(billions, rel=0.003)


@pytest.mark.parametrize(
    ("config", "kv_bytes"),
    [(LLAMA_8B, 32 * 2 * 8 * 128 * 2), (DEEPSEEK_V3, 61 * (512 + 64) * 2)],
    ids=["heads", "latent"],
)
def test_the_kv_cache_holds_what_the_attention_keeps(config: dict[str, object], kv_bytes: int) -> None:
    assert operator_graph(model_from_config(config)).kv_bytes_per_token == kv_bytes


def test_quantised_weights_are_half_as_large_and_activations_are_not() -> None:
    full = operator_graph(model_from_config(LLAMA_8B)).operators["qkv_proj"]
    half = operator_graph(model_from_config({**LLAMA_8B, "quantization_config": {"quant_method": "fp8"}}))
    assert half.operators["qkv_proj"].weight_bytes == full.weight_bytes / 2
    assert half.operators["qkv_proj"].moved_bytes == full.moved_bytes
    assert half.operators["qkv_proj"].dtype == "fp8"
    assert half.operators["attention"].dtype == "bf16"


def test_layers_without_experts_are_dense() -> None:
    model = model_from_config(DEEPSEEK_V3)
    assert [model.has_experts(layer) for layer in (0, 2, 3, 60)] == [False, False, True, True]
    sparse = model_from_config({**QWEN3_30B_A3B, "decoder_sparse_step": 2, "mlp_only_layers": [1]})
    assert [model_layer for model_layer in range(6) if sparse.has_experts(model_layer)] == [3, 5]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba' is not known; expected one of llama, qwen2"),
        ({"model_type": None}, "model_type None is not known"),
        ({"hidden_size": None}, "hidden_size must be a whole number >= 1, got None"),
        ({"num_hidden_layers": -1}, "num_hidden_layers must be a whole number >= 1, got -1"),
        ({"num_hidden_layers": 1_000_000}, "num_hidden_layers must be at most 1,000, got 1,000,000"),
        ({"vocab_size": 2**60}, "vocab_size must be at most"),
        ({"vocab_size": 1.5}, "vocab_size must be a whole number"),
        ({"num_key_value_heads": 5}, "num_attention_heads 32 must be a multiple of num_key_value_heads 5"),
        ({"torch_dtype": "int3"}, "torch_dtype 'int3' is not known"),
        ({"quantization_config": {"quant_method": "awq"}}, "quant_method 'awq' is not modelled"),
    ],
)
def test_a_bad_config_is_refused_by_field(change: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        model_from_config({**LLAMA_8B, **change})


def test_more_experts_per_token_than_experts_is_refused() -> None:
    with pytest.raises(ValueError, match="num_experts_per_tok 200 must be at most the 128 experts"):
        model_from_config({**QWEN3_30B_A3B, "num_experts_per_tok": 200})
