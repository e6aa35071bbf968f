"""A tiny random Llama for vLLM's dummy loader: a folder with `config.json` and nothing else."""

import json
import sys
from pathlib import Path

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 384, "intermediate_size": 1024,
    "num_hidden_layers": 8, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 32000,
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
}  # fmt: skip
SERVE_ARGUMENTS = (
    "--load-format", "dummy", "--skip-tokenizer-init", "--dtype", "bfloat16", "--max-model-len", "4096",
    "--max-num-seqs", "24", "--max-num-batched-tokens", "256", "--enforce-eager", "--block-size", "32",
    "--num-gpu-blocks-override", "160", "--no-async-scheduling", "--distributed-executor-backend", "uni",
    "--disable-uvicorn-access-log", "--served-model-name", "tiny", "--enable-prefix-caching",
)  # fmt: skip
"""Small on purpose: 160 blocks of 32 tokens, so that KV pressure and preemption happen."""


def write_model(folder: Path) -> Path:
    """Make the folder; returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=1) + "\n", encoding="utf-8")
    return folder


if __name__ == "__main__":
    print(write_model(Path(sys.argv[1])))
