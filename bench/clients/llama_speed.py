"""llama.cpp (the xllamacpp wheel) as the other side of the executor bench: one JSON request a line, one answer a line.

    OMP_WAIT_POLICY=passive python llama_speed.py MODEL.gguf THREADS

OMP_WAIT_POLICY is OpenMP's, which the wheel is built with: threads that wait for each other spin unless it says `passive`.
On cores that others want as well, spinning counts as CPU time and takes it from the thread that is waited for.

Requests: {"prefill": N} computes a prompt of N tokens; {"decode": N, "context": M} computes N tokens after M.
Answers: {"seconds": wall, "cpu_seconds": of the whole process}.
"""

import json
import os
import sys
import time

# The library prints on stdout: the answers get a descriptor of their own.
answers = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)

import xllamacpp  # noqa: E402


def tokens(count, seed):
    """Tokens that look like nothing in particular, other ones for each seed."""
    return [((i + 1) * 2654435761 + seed * 40503 >> 7) % 40000 + 100 for i in range(count)]


def main():
    params = xllamacpp.CommonParams()
    params.model.path = sys.argv[1]
    params.n_ctx = 4096
    params.n_parallel = 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(sys.argv[2])
    if os.environ.get("OMP_WAIT_POLICY") == "passive":
        # A build without OpenMP has its own threads, which poll.
        params.cpuparams.poll = params.cpuparams_batch.poll = 0
    params.warmup = False
    server = xllamacpp.Server(params)

    def complete(prompt, count, cache):
        request = {"prompt": prompt, "n_predict": count, "temperature": 0, "cache_prompt": cache, "ignore_eos": True}
        reply = server.handle_completions(request)
        return (json.loads(reply) if isinstance(reply, str) else reply)["timings"]

    print(json.dumps({"ready": True}), file=answers)
    for seed, line in enumerate(sys.stdin):
        request = json.loads(line)
        if "decode" in request:
            prompt = tokens(request["context"], seed)
            complete(prompt, 1, True)
            before = time.process_time()
            # The prompt is cached but for its last token, whose logits give the first of the tokens.
            timings = complete(prompt, request["decode"], True)
            spent = timings["predicted_ms"] + timings["prompt_ms"]
        else:
            prompt = tokens(request["prefill"], seed)
            before = time.process_time()
            timings = complete(prompt, 1, False)
            spent = timings["prompt_ms"]
        print(json.dumps({"seconds": spent / 1000, "cpu_seconds": time.process_time() - before}), file=answers)


main()
