"""Drives an endpoint with the `openai` package as its users do: models, chat, completions, streaming, usage, errors.

    python openai_check.py http://127.0.0.1:8000/v1 MODEL [REQUESTS]

Prints one JSON object {"checks": N, "requests": N, "failures": [...]}; ends with status 1 if anything failed.
"""

import asyncio
import json
import sys

import openai

QUESTION = [{"role": "user", "content": "Name three rivers of Europe."}]


class Checks:
    def __init__(self):
        self.done = 0
        self.requests = 0
        self.failures = []

    def check(self, holds, what):
        self.done += 1
        if not holds:
            self.failures.append(what)

    def refused(self, kind, what, call):
        """The call must raise exactly this class of error, with OpenAI's error object in it."""
        self.requests += 1
        try:
            call()
        except kind as error:
            body = error.body if isinstance(error.body, dict) else {}
            self.check(bool(body.get("message")) and bool(body.get("type")), f"{what}: no error object: {error}")
        except openai.OpenAIError as error:
            self.check(False, f"{what}: {type(error).__name__} instead of {kind.__name__}: {error}")
        else:
            self.check(False, f"{what}: accepted")


def usage_adds_up(checks, usage, what):
    whole = usage is not None and usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    checks.check(whole and usage.prompt_tokens > 0, f"{what}: usage {usage}")


def chat(checks, client, model):
    checks.requests += 3
    plain = client.chat.completions.create(model=model, messages=QUESTION, max_tokens=16, temperature=0, logprobs=True)
    choice = plain.choices[0]
    checks.check(choice.message.role == "assistant", f"role {choice.message.role}")
    checks.check(choice.finish_reason in ("stop", "length"), f"finish_reason {choice.finish_reason}")
    checks.check(plain.object == "chat.completion" and plain.model == model, f"{plain.object} of {plain.model}")
    usage_adds_up(checks, plain.usage, "chat")
    checks.check(len(choice.logprobs.content) == plain.usage.completion_tokens, "a logprob for each token")
    checks.check(all(t.logprob <= 0 for t in choice.logprobs.content), "logprobs are at most 0")

    text, reasons, usage = "", [], None
    stream = client.chat.completions.create(
        model=model, messages=QUESTION, max_tokens=16, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    for chunk in stream:
        checks.check(chunk.object == "chat.completion.chunk" and chunk.id.startswith("chatcmpl"), f"chunk {chunk.id}")
        for part in chunk.choices:
            text += part.delta.content or ""
            reasons += [part.finish_reason] if part.finish_reason else []
        usage = chunk.usage or usage
    checks.check(text == (choice.message.content or ""), f"streamed {text!r}, whole {choice.message.content!r}")
    checks.check(reasons == [choice.finish_reason], f"finish reasons of the stream: {reasons}")
    usage_adds_up(checks, usage, "stream")
    checks.check(usage == plain.usage or usage.completion_tokens == plain.usage.completion_tokens, "usage of the stream")

    sampled = client.chat.completions.create(
        model=model, messages=[{"role": "system", "content": "Be brief."}, *QUESTION], max_completion_tokens=8, seed=7, temperature=0.9, top_p=0.9
    )
    checks.check(0 < sampled.usage.completion_tokens <= 8, f"{sampled.usage.completion_tokens} of 8 tokens")


def completions(checks, client, model):
    checks.requests += 3
    plain = client.completions.create(model=model, prompt="The river", max_tokens=12, temperature=0, logprobs=2)
    choice = plain.choices[0]
    checks.check(plain.object == "text_completion", plain.object)
    usage_adds_up(checks, plain.usage, "completion")
    checks.check(len(choice.logprobs.tokens) == plain.usage.completion_tokens, "a token for each logprob")
    text = "".join(
        chunk.choices[0].text
        for chunk in client.completions.create(model=model, prompt="The river", max_tokens=12, temperature=0, stream=True)
        if chunk.choices
    )
    checks.check(text == choice.text, f"streamed {text!r}, whole {choice.text!r}")
    # A stop string out of the answer's own middle.
    middle = choice.text[len(choice.text) // 2 :][:2]
    stopped = client.completions.create(model=model, prompt="The river", max_tokens=12, temperature=0, stop=[middle or "\n"])
    if middle:
        checks.check(middle not in stopped.choices[0].text, "text past the stop string")
        checks.check(stopped.choices[0].finish_reason == "stop", f"stopped by {stopped.choices[0].finish_reason}")


def errors(checks, client, model):
    ask = lambda **changes: client.chat.completions.create(**{"model": model, "messages": QUESTION, "max_tokens": 2, **changes})
    checks.refused(openai.NotFoundError, "unknown model", lambda: ask(model="no-such-model"))
    checks.refused(openai.BadRequestError, "no messages", lambda: ask(messages=[]))
    checks.refused(openai.BadRequestError, "temperature -1", lambda: ask(temperature=-1))
    checks.refused(openai.BadRequestError, "max_tokens as text", lambda: ask(max_tokens="many"))
    checks.refused(openai.BadRequestError, "unknown role", lambda: ask(messages=[{"role": "judge", "content": "x"}]))
    checks.refused(openai.BadRequestError, "streamed refusal", lambda: list(ask(stream=True, temperature=-1)))


async def many(checks, client, model, requests):
    """All of them, eight at a time, each streamed to its end."""
    gate = asyncio.Semaphore(8)

    async def one(number):
        async with gate:
            stream = await client.chat.completions.create(
                model=model,
                messages=[{"role": "user", "content": f"Tell me about the number {number}."}],
                max_tokens=8,
                seed=number,
                stream=True,
                stream_options={"include_usage": True},
            )
            finish, usage = None, None
            async for chunk in stream:
                usage = chunk.usage or usage
                for part in chunk.choices:
                    finish = part.finish_reason or finish
            return finish in ("stop", "length") and usage is not None

    for number, answer in enumerate(await asyncio.gather(*map(one, range(requests)), return_exceptions=True)):
        checks.requests += 1
        checks.check(answer is True, f"request {number}: {answer!r}")


def main():
    url, model = sys.argv[1], sys.argv[2]
    requests = int(sys.argv[3]) if len(sys.argv) > 3 else 100
    checks = Checks()
    options = {"base_url": url, "api_key": "none", "timeout": 120, "max_retries": 0}
    with openai.OpenAI(**options) as client:
        checks.requests += 1
        checks.check(model in [m.id for m in client.models.list()], f"{model} is not listed")
        for part in (chat, completions, errors):
            try:
                part(checks, client, model)
            except openai.OpenAIError as error:
                checks.check(False, f"{part.__name__}: {type(error).__name__}: {error}")

    async def run():
        async with openai.AsyncOpenAI(**options) as client:
            await many(checks, client, model, requests)

    asyncio.run(run())
    print(json.dumps({"checks": checks.done, "requests": checks.requests, "failures": checks.failures}))
    sys.exit(1 if checks.failures else 0)


main()
