"""Lays the tokenizer of a GGUF file out as a local model-hub cache, for clients that count tokens themselves.

    python tokenizer.py MODEL.gguf CACHE_DIRECTORY NAME

Afterwards HF_HOME=CACHE_DIRECTORY HF_HUB_OFFLINE=1 finds a tokenizer called NAME ("owner/name"). Byte-level BPE
(GPT-2 family) only, with the pre-tokenizers `smollm` and `gpt-2`.
"""

import hashlib
import json
import pathlib
import sys

import gguf
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

CONTROL = 3


def read(path):
    """Value of a metadata key, or None."""
    reader = gguf.GGUFReader(path)

    def value(key):
        field = reader.fields.get(key)
        return field.contents() if field is not None else None

    return value


def build(value):
    if value("tokenizer.ggml.model") != "gpt2":
        sys.exit(f"not a byte-level BPE tokenizer: {value('tokenizer.ggml.model')}")
    split = {
        "smollm": [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)],
        "gpt-2": [pre_tokenizers.ByteLevel(add_prefix_space=False)],
    }.get(value("tokenizer.ggml.pre"))
    if split is None:
        sys.exit(f"unknown pre-tokenizer {value('tokenizer.ggml.pre')}")
    tokens, types = value("tokenizer.ggml.tokens"), value("tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ", 1)) for merge in value("tokenizer.ggml.merges")]
    tokenizer = tokenizers.Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(split)
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, types) if kind == CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return tokenizer, tokens


def main():
    path, cache, name = sys.argv[1:4]
    value = read(path)
    tokenizer, tokens = build(value)
    text = tokenizer.to_str()
    revision = hashlib.sha1(text.encode()).hexdigest()
    home = pathlib.Path(cache) / "hub" / ("models--" + name.replace("/", "--"))
    snapshot = home / "snapshots" / revision
    snapshot.mkdir(parents=True, exist_ok=True)
    (home / "refs").mkdir(exist_ok=True)
    (home / "refs" / "main").write_text(revision)
    (snapshot / "tokenizer.json").write_text(text)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    for role in ("bos", "eos", "unknown", "padding"):
        token = value(f"tokenizer.ggml.{role}_token_id")
        if token is not None:
            settings[{"unknown": "unk", "padding": "pad"}.get(role, role) + "_token"] = tokens[token]
    template = value("tokenizer.chat_template")
    if template:
        settings["chat_template"] = template
    (snapshot / "tokenizer_config.json").write_text(json.dumps(settings))
    (snapshot / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": len(tokens)}))
    print(json.dumps({"tokens": len(tokens), "snapshot": str(snapshot)}))


main()
