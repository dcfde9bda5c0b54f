"""Answers as real servers send them, and what they say. Each case was seen in a public report."""

from __future__ import annotations

from dataclasses import dataclass

from servewise.types import Api


@dataclass(frozen=True, kw_only=True)
class Stream:
    """Packets of a body, and what is to be read from them."""

    name: str
    packets: tuple[bytes, ...]
    chunks: tuple[int, ...]
    """Numbers of the packets that bring chunks with tokens, one for each chunk."""
    api: Api = "openai-chat"
    text: str = ""
    first_answer: int | None = None
    """Number of the packet with the first text of the answer; that of the first chunk when None."""
    input_tokens: int = -1
    output_tokens: int = -1
    cached_tokens: int = -1
    finish_reason: str = ""
    error: str = ""
    is_complete: bool = True
    content_type: str = "text/event-stream"
    stream: bool = True


def delta(inside: str, finish: str = "null", more: str = "") -> bytes:
    """One event of a chat."""
    return b'data: {"choices":[{"index":0,"delta":{%b},"finish_reason":%b}]%b}\n\n' % (
        inside.encode(),
        finish.encode(),
        more.encode(),
    )


def usage(output: int, inputs: int = 9) -> bytes:
    return b'data: {"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d}}\n\n' % (inputs, output)


ROLE = delta('"role":"assistant","content":""')
A, B = delta('"content":"a"'), delta('"content":"b"')
STOP = delta("", '"stop"')
DONE = b"data: [DONE]\n\n"
COUNTED = {"input_tokens": 9, "output_tokens": 2, "finish_reason": "stop", "text": "ab"}

STREAMS = [
    Stream(name="role first", packets=(ROLE, A, B, STOP, usage(2), DONE), chunks=(1, 2), **COUNTED),
    Stream(
        name="role with the first token",
        packets=(delta('"role":"assistant","content":"a"'), B, STOP, usage(2) + DONE),
        chunks=(0, 1),
        **COUNTED,
    ),
    Stream(
        name="comment alone", packets=(b":\n\n", b": ping\n\n", A, B, STOP, usage(2), DONE), chunks=(2, 3), **COUNTED
    ),
    Stream(
        name="comment with data",
        packets=(b": ping\n\n" + A, b":\n" + B, STOP, usage(2), DONE),
        chunks=(0, 1),
        **COUNTED,
    ),
    Stream(
        name="error in mid-stream",
        packets=(A, b'data: {"error":{"message":"EngineDeadError","code":500}}\n\n' + DONE),
        chunks=(0,),
        text="a",
        error="EngineDeadError",
    ),
    Stream(
        name="error as vLLM once sent it",
        packets=(A, b'data: {"object":"error","message":"it broke"}\n\n', DONE),
        chunks=(0,),
        text="a",
        error="it broke",
    ),
    Stream(
        name="CRLF",
        packets=tuple(p.replace(b"\n", b"\r\n") for p in (ROLE, A, B, STOP, usage(2), DONE)),
        chunks=(1, 2),
        **COUNTED,
    ),
    Stream(
        name="CR alone",
        packets=tuple(p.replace(b"\n", b"\r") for p in (A, B, STOP, usage(2), DONE)),
        chunks=(0, 1),
        **COUNTED,
    ),
    Stream(
        name="no space after data:",
        packets=tuple(p.replace(b"data: ", b"data:") for p in (A, B, STOP, usage(2), DONE)),
        chunks=(0, 1),
        **COUNTED,
    ),
    Stream(
        name="event and id lines, space after the JSON",
        packets=tuple(b"event: message\nid: 7\n" + p.replace(b"\n\n", b" \n\n") for p in (A, B, STOP, usage(2), DONE)),
        chunks=(0, 1),
        **COUNTED,
    ),
    Stream(
        name="events that one line end parts",
        packets=(A[:-1] + B[:-1], STOP, usage(2), DONE),
        chunks=(1, 1),
        first_answer=1,
        **COUNTED,
    ),
    Stream(
        name="several tokens in one chunk",
        packets=(delta('"content":"one two three"'), delta('"content":" four"'), STOP, usage(4), DONE),
        chunks=(0, 1),
        text="one two three four",
        input_tokens=9,
        output_tokens=4,
        finish_reason="stop",
    ),
    Stream(
        name="reasoning_content",
        packets=(
            delta('"role":"assistant","content":null'),
            delta('"reasoning_content":"hm","content":null'),
            A,
            B,
            STOP,
            usage(3),
        ),
        chunks=(1, 2, 3),
        first_answer=2,
        text="ab",
        input_tokens=9,
        output_tokens=3,
        finish_reason="stop",
        is_complete=False,
    ),
    Stream(
        name="reasoning",
        packets=(delta('"reasoning":"hm"'), A, B, STOP, usage(3), DONE),
        chunks=(0, 1, 2),
        first_answer=1,
        text="ab",
        input_tokens=9,
        output_tokens=3,
        finish_reason="stop",
    ),
    Stream(
        name="tool calls",
        packets=(ROLE, delta('"tool_calls":[{"index":0,"function":{"name":"f"}}]'), delta("", '"tool_calls"'), DONE),
        chunks=(1,),
        finish_reason="tool_calls",
    ),
    Stream(
        name="usage on the finish chunk, null before",
        packets=(
            delta('"content":"a"', more=',"usage":null'),
            delta('"content":"b"', '"stop"', ',"usage":{"prompt_tokens":9,"completion_tokens":2}'),
            DONE,
        ),
        chunks=(0, 1),
        **COUNTED,
    ),
    Stream(
        name="zero usage on every chunk but the last",
        packets=(
            delta('"content":"a"', more=',"usage":{"prompt_tokens":0,"completion_tokens":0}'),
            delta('"content":"b"', '"stop"', ',"usage":{"prompt_tokens":0,"completion_tokens":0}'),
            usage(2),
            DONE,
        ),
        chunks=(0, 1),
        **COUNTED,
    ),
    Stream(
        name="usage of what a prefix cache gave",
        packets=(
            A,
            delta(
                "",
                '"length"',
                ',"usage":{"prompt_tokens":9,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":8}}',
            ),
            DONE,
        ),
        chunks=(0,),
        text="a",
        input_tokens=9,
        output_tokens=1,
        cached_tokens=8,
        finish_reason="length",
    ),
    Stream(name="no usage", packets=(A, B, STOP, DONE), chunks=(0, 1), text="ab", finish_reason="stop"),
    Stream(
        name="a letter of several bytes, split",
        packets=(
            *(p for p in (delta('"content":"é"')[:40], delta('"content":"é"')[40:46], delta('"content":"é"')[46:])),
            STOP,
            DONE,
        ),
        chunks=(2,),
        text="é",
        finish_reason="stop",
    ),
    Stream(
        name="a chunk over 64 KiB",
        packets=(delta(f'"content":"{"x" * 70_000}"'), STOP, usage(2), DONE),
        chunks=(0,),
        text="x" * 70_000,
        input_tokens=9,
        output_tokens=2,
        finish_reason="stop",
    ),
    Stream(
        name="empty text as a token, when the count says so",
        packets=(ROLE, delta('"content":""'), delta('"content":null'), A, STOP, usage(2), DONE),
        chunks=(1, 3),
        first_answer=3,
        text="a",
        input_tokens=9,
        output_tokens=2,
        finish_reason="stop",
    ),
    Stream(
        name="empty text as a filler, when the count says so",
        packets=(delta('"content":""'), delta('"content":""'), A, STOP, usage(1), DONE),
        chunks=(2,),
        text="a",
        input_tokens=9,
        output_tokens=1,
        finish_reason="stop",
    ),
    Stream(
        name="the end-of-text token as vLLM sends it",
        packets=(ROLE, A, delta('"content":""', '"stop"'), usage(2), DONE),
        chunks=(1, 2),
        text="a",
        input_tokens=9,
        output_tokens=2,
        finish_reason="stop",
    ),
    Stream(
        name="empty text with the end as llama.cpp sends it",
        api="openai-completions",
        packets=(
            b'data: {"choices":[{"index":0,"text":"a","finish_reason":null}]}\n\n',
            b'data: {"choices":[{"index":0,"text":"b","finish_reason":null}]}\n\n',
            b'data: {"choices":[{"index":0,"text":"","finish_reason":"length"}]}\n\n',
            usage(2) + DONE,
        ),
        chunks=(0, 1),
        text="ab",
        input_tokens=9,
        output_tokens=2,
        finish_reason="length",
    ),
    Stream(
        name="empty text at both ends and no count",
        packets=(delta('"content":""'), A, delta('"content":""'), B, delta('"content":""', '"stop"'), DONE),
        chunks=(1, 2, 3),
        text="ab",
        finish_reason="stop",
    ),
    Stream(
        name="an empty first event",
        packets=(b'data: {"choices":[],"prompt_filter_results":[]}\n\n', A, B, STOP, usage(2), DONE),
        chunks=(1, 2),
        **COUNTED,
    ),
    Stream(
        name="no token at all",
        packets=(ROLE, STOP, usage(0), DONE),
        chunks=(),
        input_tokens=9,
        output_tokens=0,
        finish_reason="stop",
    ),
    Stream(
        name="invalid UTF-8",
        packets=(delta('"content":"#"').replace(b"#", b"\xff"), B, DONE),
        chunks=(0, 1),
        text="\ufffdb",
        api="openai-chat",
        error="",
    ),
    Stream(name="not JSON", packets=(A, b"data: {oops\n\n", DONE), chunks=(0,), text="a", error="not JSON: {oops"),
    Stream(
        name="another form",
        packets=(A, b'data: {"choices":7}\n\n', DONE),
        chunks=(0,),
        text="a",
        error="unexpected form",
    ),
    Stream(
        name="given up by the engine",
        packets=(A, delta("", '"abort"'), DONE),
        chunks=(0,),
        text="a",
        finish_reason="abort",
        error="the engine ended the request: abort",
    ),
    Stream(
        name="completions",
        api="openai-completions",
        packets=(
            b'data: {"choices":[{"index":0,"text":"a","finish_reason":null}],"usage":null}\n\n',
            b'data: {"choices":[{"index":0,"text":"b","finish_reason":"stop"}]}\n\n',
            usage(2),
            DONE,
        ),
        chunks=(0, 1),
        **COUNTED,
    ),
    Stream(
        name="Ollama generate",
        api="ollama-generate",
        content_type="application/x-ndjson",
        packets=(
            b'{"response":"","thinking":"hm","done":false}\n',
            b'{"response":"a","done":false}\n{"response":"b","done":false}\n',
            b'{"response":"","done":true,"done_reason":"stop","prompt_eval_count":9,"eval_count":3,"eval_duration":7}\n',
        ),
        chunks=(0, 1, 1),
        first_answer=1,
        text="ab",
        input_tokens=9,
        output_tokens=3,
        finish_reason="stop",
    ),
    Stream(
        name="Ollama chat with an error line",
        api="ollama-chat",
        content_type="application/x-ndjson",
        packets=(b'{"message":{"role":"assistant","content":"a"},"done":false}\n', b'{"error":"out of memory"}\n'),
        chunks=(0,),
        text="a",
        error="out of memory",
        is_complete=False,
    ),
    Stream(
        name="TGI",
        api="tgi-generate",
        packets=(
            b'data:{"index":1,"token":{"id":5,"text":"a","special":false},"generated_text":null,"details":null}\n\n',
            b'data:{"index":2,"token":{"id":2,"text":"","special":true},"generated_text":"a",'
            b'"details":{"finish_reason":"eos_token","generated_tokens":2,"input_length":9}}\n\n',
        ),
        chunks=(0, 1),
        text="a",
        input_tokens=9,
        output_tokens=2,
        finish_reason="eos_token",
    ),
    Stream(
        name="TGI with an error",
        api="tgi-generate",
        packets=(
            b'data:{"token":{"id":5,"text":"a"},"generated_text":null}\n\n',
            b'data:{"error":"boom","error_type":"generation"}\n\n',
        ),
        chunks=(0,),
        text="a",
        error="boom",
        is_complete=False,
    ),
    Stream(
        name="in one piece",
        stream=False,
        content_type="application/json",
        packets=(
            b'{"choices":[{"message":{"role":"assistant","content":"ab"},',
            b'"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":2}}',
        ),
        chunks=(),
        **COUNTED,
    ),
    Stream(
        name="in one piece although a stream was asked for",
        content_type="application/json",
        packets=(
            b'{"choices":[{"message":{"content":"ab"},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":2}}',
        ),
        chunks=(),
        **COUNTED,
    ),
    Stream(
        name="Ollama in one piece",
        api="ollama-generate",
        stream=False,
        content_type="application/json",
        packets=(b'{"response":"ab","done":true,"done_reason":"stop","prompt_eval_count":9,"eval_count":2}',),
        chunks=(),
        **COUNTED,
    ),
    Stream(
        name="TGI in one piece",
        api="tgi-generate",
        stream=False,
        content_type="application/json",
        packets=(b'{"generated_text":"ab","details":{"finish_reason":"stop","generated_tokens":2,"prefill":[{},{}]}}',),
        chunks=(),
        text="ab",
        input_tokens=2,
        output_tokens=2,
        finish_reason="stop",
    ),
]
