"""Notes when aiohttp began each request, and when it had handed it to its socket.

vLLM's benchmark starts its clock and then leaves it to aiohttp to encode the request, to find or open a connection and
to come round to writing, and does not say how long that takes. aiohttp does, to whoever asks (its request tracing).
Python loads a module of this name by itself from its path: STREAMGAUGE_SENT=FILE PYTHONPATH=tests/tools/sent. Each
request that has an X-Request-ID is a line of FILE: {"id", "before_s", "reused"}; `before_s` ends with the last write.
"""

import json
import os
import time

import aiohttp

file = open(os.environ["STREAMGAUGE_SENT"], "a", buffering=1)


async def began(session, context, params):
    context.began, context.reused, context.id = time.perf_counter(), False, params.headers.get("x-request-id")


async def reused(session, context, params):
    context.reused = True


async def wrote(session, context, params):
    context.wrote = time.perf_counter()


async def answered(session, context, params):
    if context.id is not None:
        told = {"id": context.id, "before_s": context.wrote - context.began, "reused": context.reused}
        file.write(json.dumps(told) + "\n")


def tracing():
    config = aiohttp.TraceConfig()
    config.on_request_start.append(began)
    config.on_connection_reuseconn.append(reused)
    config.on_request_headers_sent.append(wrote)
    config.on_request_chunk_sent.append(wrote)
    config.on_request_end.append(answered)
    return config


init = aiohttp.ClientSession.__init__
aiohttp.ClientSession.__init__ = lambda self, *args, **more: init(self, *args, trace_configs=[tracing()], **more)
