"""A model's `config.json` as the few dimensions that decide its operators. Reads no file, holds no weights.

Law: every dimension is a whole number in range, and a family that is not known is refused by name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

Config = Mapping[str, object]
MOST = 2**40
MOST_LAYERS = 1_000
"""The graph holds every operator of every layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention: keys and values live in one low-rank vector per token.

    `query_rank` is 0 where queries are not compressed. References: DeepSeek-V2, arXiv 2405.04434, section 2.1.
    """

    query_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Mixture of experts: `per_token` of `count` experts work on a token, beside a shared one of `shared_size`.

    `layers` names the layers that have experts; the others have a dense feed-forward block.
    """

    count: int
    per_token: int
    size: int
    shared_size: int
    layers: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Dimensions of a decoder-only transformer. `dtype` is that of activations, `weight_dtype` that of matrices."""

    family: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    dtype: str = "bf16"
    weight_dtype: str = "bf16"
    tied_embeddings: bool = False
    normed_heads: bool = False
    latent: LatentAttention | None = None
    experts: Experts | None = None

    def has_experts(self, layer: int) -> bool:
        """Whether the feed-forward block of `layer` (from 0) is a mixture of experts."""
        return self.experts is not None and layer in self.experts.layers


def model_from_config(config: Config) -> ModelShape:
    """The shape of a Hugging Face `config.json`, already parsed.

    Raises ValueError that names the field if one is missing or out of range, or if the family is not known.

    >>> tiny = {"model_type": "llama", "hidden_size": 384, "num_hidden_layers": 8, "num_attention_heads": 6,
    ...         "num_key_value_heads": 2, "intermediate_size": 1024, "vocab_size": 32000}
    >>> model_from_config(tiny).head_dim
    64
    """
    family = config.get("model_type")
    if not isinstance(family, str) or family not in _FAMILIES:
        raise ValueError(f"model config: model_type {family!r} is not known; expected one of {', '.join(_FAMILIES)}")
    hidden, heads = _whole(config, "hidden_size"), _whole(config, "num_attention_heads")
    kv_heads = _whole(config, "num_key_value_heads", heads)
    if heads % kv_heads:
        raise ValueError(
            f"model config: num_attention_heads {heads} must be a multiple of num_key_value_heads {kv_heads}"
        )
    latent, experts = _FAMILIES[family](config)
    dtype = _dtype(config)
    return ModelShape(
        family=family,
        layers=_whole(config, "num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=_whole(config, "head_dim", max(hidden // heads, 1)),
        intermediate=_whole(config, "intermediate_size"),
        vocab=_whole(config, "vocab_size"),
        dtype=dtype,
        weight_dtype=_weight_dtype(config, dtype),
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        normed_heads=family.startswith("qwen3"),
        latent=latent,
        experts=experts,
    )


def _dense(config: Config) -> tuple[None, None]:
    return None, None


def _qwen_experts(config: Config) -> tuple[None, Experts]:
    layers, every = _whole(config, "num_hidden_layers"), _whole(config, "decoder_sparse_step", 1)
    dense = config.get("mlp_only_layers") or ()
    if not isinstance(dense, list | tuple):
        raise ValueError(f"model config: mlp_only_layers must be a list of layer numbers, got {dense!r}")
    return None, _experts(
        config,
        count=_whole(config, "num_experts"),
        shared_size=_whole(config, "shared_expert_intermediate_size", 0, least=0),
        layers=frozenset(i for i in range(layers) if (i + 1) % every == 0 and i not in dense),
    )


def _deepseek(config: Config) -> tuple[LatentAttention, Experts | None]:
    latent = LatentAttention(
        query_rank=_whole(config, "q_lora_rank", 0, least=0),
        kv_rank=_whole(config, "kv_lora_rank"),
        nope_dim=_whole(config, "qk_nope_head_dim"),
        rope_dim=_whole(config, "qk_rope_head_dim"),
        value_dim=_whole(config, "v_head_dim"),
    )
    if config.get("n_routed_experts") is None:
        return latent, None
    layers, every = _whole(config, "num_hidden_layers"), _whole(config, "moe_layer_freq", 1)
    dense_first = _whole(config, "first_k_dense_replace", 0, least=0)
    shared = _whole(config, "n_shared_experts", 0, least=0)
    return latent, _experts(
        config,
        count=_whole(config, "n_routed_experts"),
        shared_size=shared * _whole(config, "moe_intermediate_size"),
        layers=frozenset(i for i in range(dense_first, layers) if i % every == 0),
    )


def _experts(config: Config, *, count: int, shared_size: int, layers: frozenset[int]) -> Experts:
    per_token = _whole(config, "num_experts_per_tok")
    if per_token > count:
        raise ValueError(f"model config: num_experts_per_tok {per_token} must be at most the {count} experts")
    size = _whole(config, "moe_intermediate_size")
    return Experts(count=count, per_token=per_token, size=size, shared_size=shared_size, layers=layers)


_FAMILIES: Mapping[str, Callable[[Config], tuple[LatentAttention | None, Experts | None]]] = {
    "llama": _dense,
    "qwen2": _dense,
    "qwen3": _dense,
    "qwen2_moe": _qwen_experts,
    "qwen3_moe": _qwen_experts,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
}

_DTYPES: Mapping[object, str] = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def _dtype(config: Config) -> str:
    name = config.get("torch_dtype") or config.get("dtype") or "bfloat16"
    if name not in _DTYPES:
        raise ValueError(
            f"model config: torch_dtype {name!r} is not known; expected one of {', '.join(map(str, _DTYPES))}"
        )
    return _DTYPES[name]


def _weight_dtype(config: Config, dtype: str) -> str:
    quantization = config.get("quantization_config")
    if not quantization:
        return dtype
    method = quantization.get("quant_method") if isinstance(quantization, Mapping) else quantization
    if method != "fp8":
        raise ValueError(
            f"model config: quantization_config.quant_method {method!r} is not modelled; expected fp8 or none"
        )
    return "fp8"


def _whole(config: Config, name: str, default: int | None = None, *, least: int = 1) -> int:
    value = config.get(name)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"model config: {name} must be a whole number >= {least}, got {value!r}")
    most = MOST_LAYERS if name == "num_hidden_layers" else MOST
    if value > most:
        raise ValueError(f"model config: {name} must be at most {most:,}, got {value:,}")
    return value
