"""llama.cpp (the xllamacpp wheel) in single precision: what it would have said at each token of given answers.

    python llama_tokens.py MODEL.gguf CACHE_DIRECTORY QUESTIONS.jsonl

Questions, one a line: {"prompt": token ids, "answer": token ids}. Answers, one a line: {"prompt_tokens": as it counts,
"best": for each token of the answer the best few after all before it, [id, logprob], best first}.

llama.cpp multiplies quantised weights with activations of 8 bits. So the file's tensors are first written as F32,
exactly the values they stand for, and keys and values stay F32 as well: what is left to differ is the order of sums.
"""

import hashlib
import json
import os
import pathlib
import sys
import tempfile

# The library prints on stdout: the answers get a descriptor of their own.
answers = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)

import gguf  # noqa: E402
import numpy  # noqa: E402
import xllamacpp  # noqa: E402

BEST = 5


def widened(path, cache):
    """The model with every tensor as F32: made once, found by the hash of the file it comes from."""
    with open(path, "rb") as file:
        wide = pathlib.Path(cache) / f"{hashlib.sha256(file.read()).hexdigest()}.f32.gguf"
    if wide.is_file():
        return wide
    wide.parent.mkdir(parents=True, exist_ok=True)
    reader = gguf.GGUFReader(path)
    # Whoever is ended half-way leaves no file under the final name.
    with tempfile.TemporaryDirectory(dir=wide.parent) as scratch:
        partial = pathlib.Path(scratch) / wide.name
        writer = gguf.GGUFWriter(partial, reader.fields["general.architecture"].contents())
        for name, field in reader.fields.items():
            if not name.startswith("GGUF.") and name not in ("general.architecture", "general.file_type"):
                kind, *inner = field.types
                writer.add_key_value(name, field.contents(), kind, sub_type=inner[-1] if inner else None)
        writer.add_file_type(gguf.LlamaFileType.ALL_F32)
        for tensor in reader.tensors:
            shape = [int(size) for size in reversed(tensor.shape)]
            writer.add_tensor_info(tensor.name, shape, numpy.dtype("float32"), 4 * int(tensor.n_elements))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for tensor in reader.tensors:
            writer.write_tensor_data(gguf.dequantize(tensor.data, tensor.tensor_type))
        writer.close()
        partial.rename(wide)
    return wide


def serve(model, context):
    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.n_ctx = context
    params.n_parallel = 1
    # Its threads spin while they wait for each other: on a machine with other work, one is many times faster than two.
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.cache_ram_mib = 0
    params.warmup = False
    return xllamacpp.Server(params)


def best(server, tokens):
    """The best few tokens after these, and how many these are. All but the new ones are in the server's cache."""
    request = {"prompt": tokens, "n_predict": 1, "temperature": 0, "n_probs": BEST, "cache_prompt": True}
    # Of a sampled token that is part of a character the server tells nothing, so it has to sample a letter. The bias
    # leaves the logprobs alone: they are of the model's own logits.
    request["logit_bias"] = [["a", 100]]
    reply = server.handle_completions(request)
    reply = json.loads(reply) if isinstance(reply, str) else reply
    (token,) = reply["choices"][0]["logprobs"]["content"]
    return [(one["id"], one["logprob"]) for one in token["top_logprobs"]], reply["usage"]["prompt_tokens"]


def main():
    model, cache, questions = sys.argv[1:]
    questions = [json.loads(line) for line in open(questions)]
    longest = max(len(question["prompt"]) + len(question["answer"]) for question in questions)
    server = serve(widened(model, cache), longest + 8)
    for question in questions:
        prompt, answer = question["prompt"], question["answer"]
        told = [best(server, prompt + answer[:known]) for known in range(len(answer))]
        print(json.dumps({"prompt_tokens": told[0][1], "best": [top for top, _ in told]}), file=answers)


main()
