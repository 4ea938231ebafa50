#!/usr/bin/env python3
"""Trains a small byte-level BPE tokenizer and writes it as a Hugging Face tokenizer directory.

usage: make_tokenizer.py OUT

The text is that of the licences which every Debian system carries: real English, and the same everywhere.
"""

import json
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 2048
END, TURN, END_OF_TURN = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def main() -> None:
    out = Path(sys.argv[1])
    texts = sorted(str(path) for path in Path("/usr/share/common-licenses").iterdir() if path.is_file())
    if not texts:
        sys.exit("make_tokenizer: /usr/share/common-licenses holds no text; remedy: apt-get install base-files")
    tokenizer = Tokenizer(models.BPE(byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END, TURN, END_OF_TURN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train(texts, trainer)

    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"))
    special = {"bos_token": END, "eos_token": END_OF_TURN, "unk_token": END, "pad_token": END}
    (out / "special_tokens_map.json").write_text(json.dumps(special))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **special,
        "model_max_length": 8192,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=1))
    print(f"{out}: {tokenizer.get_vocab_size()} tokens", file=sys.stderr)


if __name__ == "__main__":
    main()
