#!/usr/bin/env python3
"""Makes a tiny Llama with random weights: one GGUF file, and the same weights as a Hugging Face directory.

usage: make_model.py TOKENIZER --gguf FILE --hf DIR

Rows of the output matrix for special tokens and for tokens that are no printable ASCII are zero, and the others are
scaled up: generation then hardly ever ends early and is nearly always valid UTF-8.
"""

import argparse
import json
import shutil
from pathlib import Path

import gguf
import numpy as np

WIDTH, LAYERS, HEADS, KV_HEADS, FEED_FORWARD, CONTEXT, SEED = 256, 4, 4, 2, 512, 8192, 1
HEAD = WIDTH // HEADS
NORM_EPSILON, ROPE_BASE = 1e-5, 10000.0

Weights = dict[str, np.ndarray]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--gguf", type=Path, required=True)
    parser.add_argument("--hf", type=Path, required=True)
    options = parser.parse_args()
    tokenizer = json.loads((options.tokenizer / "tokenizer.json").read_text())
    config = json.loads((options.tokenizer / "tokenizer_config.json").read_text())
    weights = random_weights(tokenizer)
    write_gguf(options.gguf, tokenizer, config, weights)
    write_hf(options.hf, options.tokenizer, tokenizer, config, weights)


def random_weights(tokenizer: dict) -> Weights:
    """All tensors under the names that Hugging Face gives them."""
    random = np.random.default_rng(SEED)
    size = len(tokenizer["model"]["vocab"])

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (random.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float16)

    weights = {"model.embed_tokens.weight": random.standard_normal((size, WIDTH)).astype(np.float16)}
    output = (random.standard_normal((size, WIDTH)) * (3.0 / np.sqrt(WIDTH))).astype(np.float32)
    output[silent_tokens(tokenizer)] = 0.0
    weights["lm_head.weight"] = output.astype(np.float16)
    ones = np.ones(WIDTH, np.float16)
    weights["model.norm.weight"] = ones
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        shapes = {
            "self_attn.q_proj": (WIDTH, WIDTH),
            "self_attn.k_proj": (KV_HEADS * HEAD, WIDTH),
            "self_attn.v_proj": (KV_HEADS * HEAD, WIDTH),
            "self_attn.o_proj": (WIDTH, WIDTH),
            "mlp.gate_proj": (FEED_FORWARD, WIDTH),
            "mlp.up_proj": (FEED_FORWARD, WIDTH),
            "mlp.down_proj": (WIDTH, FEED_FORWARD),
        }
        weights |= {f"{prefix}{name}.weight": matrix(*shape) for name, shape in shapes.items()}
        weights[prefix + "input_layernorm.weight"] = ones
        weights[prefix + "post_attention_layernorm.weight"] = ones
    return weights


def silent_tokens(tokenizer: dict) -> list[int]:
    """Tokens that the model is never to say: special ones, and those with a byte outside newline and ASCII text."""
    special = {token["content"] for token in tokenizer["added_tokens"]}
    # Byte-level BPE writes a byte as itself where that is printable, and as a character from U+0100 on where not.
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = (byte for byte in range(256) if byte not in printable)
    byte_of = {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}

    def speakable(character: str) -> bool:
        byte = byte_of.get(character, 0)
        return byte == ord("\n") or 32 <= byte < 128

    vocabulary = tokenizer["model"]["vocab"].items()
    return [index for token, index in vocabulary if token in special or not all(map(speakable, token))]


def write_gguf(path: Path, tokenizer: dict, config: dict, weights: Weights) -> None:
    vocabulary = tokenizer["model"]["vocab"]
    tokens = sorted(vocabulary, key=vocabulary.get)
    special = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    kinds = [gguf.TokenType.CONTROL if token in special else gguf.TokenType.NORMAL for token in tokens]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny-random-llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(NORM_EPSILON)
    writer.add_rope_dimension_count(HEAD)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_vocab_size(len(tokens))
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(special[config["bos_token"]])
    writer.add_eos_token_id(special[config["eos_token"]])
    writer.add_add_bos_token(False)
    writer.add_chat_template(config["chat_template"])
    for name, tensor in weights.items():
        writer.add_tensor(gguf_name(name), gguf_tensor(name, tensor))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_name(name: str) -> str:
    top = {"model.embed_tokens": "token_embd", "lm_head": "output", "model.norm": "output_norm"}
    parts = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    stem = name.removesuffix(".weight")
    if stem in top:
        return f"{top[stem]}.weight"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{parts[part]}.weight"


def gguf_tensor(name: str, tensor: np.ndarray) -> np.ndarray:
    """Norms as 32-bit floats; queries and keys with the two halves of each head interleaved, as ggml rotates them."""
    if "norm" in name:
        return tensor.astype(np.float32)
    for part, heads in (("q_proj", HEADS), ("k_proj", KV_HEADS)):
        if part in name:
            rows, columns = tensor.shape
            return tensor.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)
    return tensor


def write_hf(path: Path, tokenizer_path: Path, tokenizer: dict, config: dict, weights: Weights) -> None:
    path.mkdir(parents=True, exist_ok=True)
    for file in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copy(tokenizer_path / file, path / file)
    special = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    ends = {"bos_token_id": special[config["bos_token"]], "eos_token_id": special[config["eos_token"]]}
    (path / "generation_config.json").write_text(json.dumps(ends))
    model = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(tokenizer["model"]["vocab"]),
        "hidden_size": WIDTH,
        "intermediate_size": FEED_FORWARD,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": NORM_EPSILON,
        "rope_theta": ROPE_BASE,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        **ends,
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "float16",
        "initializer_range": 0.02,
        "use_cache": True,
    }
    (path / "config.json").write_text(json.dumps(model, indent=1))
    (path / "model.safetensors").write_bytes(safetensors(weights))


def safetensors(weights: Weights) -> bytes:
    """The format is small enough to write by hand: length of the header, header, tensors end to end."""
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, tensor in weights.items():
        end = offset + tensor.nbytes
        header[name] = {"dtype": "F16", "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(tensor.tobytes() for tensor in weights.values())


if __name__ == "__main__":
    main()
