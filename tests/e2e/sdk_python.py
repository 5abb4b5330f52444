#!/usr/bin/env python3
"""sdk_python.py - the official Python SDK as the gateway's client, with the fixture `m` behind the gateway.

    target/e2e/venv/bin/python tests/e2e/sdk_python.py [--self-test]

In three ways of connecting - the `initialize` handshake, the SDK's automatic choice, and 2026-07-28 - it opens a
connection, lists and calls tools, sees progress, approves a dangerous call, abandons a call (the fixture must see the
cancellation within 1 s, and the connection must still work), pings, is told of a changed list, and closes: the gateway
must be gone with exit code 0.

--self-test talks to `m` directly. Needs tests/e2e/setup; starts itself again in that environment.
"""
import os
import sys

import rpc

PYTHON = os.path.join(rpc.VENV_BIN, "python")
try:
    import anyio
    from mcp.client import Client
    from mcp.client.stdio import StdioServerParameters, stdio_client
except ImportError:
    if os.environ.get("TC_REEXEC") or not os.access(PYTHON, os.X_OK):
        raise SystemExit("the Python SDK is not installed: run tests/e2e/setup")
    os.execve(PYTHON, [PYTHON, os.path.abspath(__file__), *sys.argv[1:]], {**os.environ, "TC_REEXEC": "1"})

import time
import traceback
import warnings

from rpc import Report, Sandbox, check, none_left, read_log, short

warnings.filterwarnings("ignore")  # ping and friends are deprecated in the SDK, not in the handshake revisions
SELF_TEST = "--self-test" in sys.argv
PREFIX = "" if SELF_TEST else "m_"
# Tells the exit code of the server, which the SDK keeps to itself.
TELL = 'f=$1; shift; "$@"; echo $? >"$f"'


def command(box):
    log = box.path("m.log")
    entry = rpc.m_entry("--marker", box.marker, *(["--modern"] if SELF_TEST else []), log=log)
    if SELF_TEST:
        argv = [entry["command"], *entry["args"]]
    else:
        entry["env"] = {"TC_MARKER": box.marker}
        argv = box.command(box.config({"m": entry}))
    return ["sh", "-c", TELL, "sh", box.path("code"), *argv], log


def unwrap(error):
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def place(error):
    """The error with the last line of this script that it passed through."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == os.path.abspath(__file__)]
    where = "line %d, `%s`: " % (frames[-1].lineno, frames[-1].line) if frames else ""
    return "%s%s: %s" % (where, type(error).__name__, short(str(error), 600))


async def eventually(condition, timeout, what):
    end = time.monotonic() + timeout
    while not condition():
        check(time.monotonic() < end, "waited %g s for %s" % (timeout, what))
        await anyio.sleep(0.02)


def events(log, event, tool):
    return [e for e in read_log(log) if e["event"] == event and e.get("tool") == tool]


async def names(client):
    """Past the SDK's cache: what the server lists now."""
    return [t.name for t in (await client.list_tools(cache_mode="refresh")).tools]


async def wait_listed(client, name, timeout=15):
    end = time.monotonic() + timeout
    while name not in await names(client):
        check(time.monotonic() < end, "%s is not listed after %g s" % (name, timeout))
        await anyio.sleep(0.05)


async def call(client, tool, arguments=None, **options):
    result = await client.call_tool(PREFIX + tool, arguments or {}, **options)
    check(not result.is_error, "%s: %s" % (tool, short(str(result))))
    return result


async def steps(client, log, mode, seen):
    if mode != rpc.MODERN:  # pinned to that revision, the SDK asks for nothing before the first request
        check(client.server_capabilities.tools is not None, "no tools capability")
    await wait_listed(client, PREFIX + "plain")
    listed = (await client.list_tools()).tools
    check(all(t.input_schema.get("type") == "object" for t in listed), "an input schema without `type: object`")

    echoed = await call(client, "echo", {"a": [1, "\u00fc", None], "b": {"c": 2.5}})
    check(echoed.structured_content == {"a": [1, "\u00fc", None], "b": {"c": 2.5}}, "echo: %s" % short(str(echoed)))
    failed = await client.call_tool(PREFIX + "boom", {"message": "as planned"})
    check(failed.is_error and "as planned" in failed.content[0].text, "boom: %s" % short(str(failed)))

    steps_seen = []

    async def on_progress(progress, total, message):
        steps_seen.append(progress)

    await call(client, "progress", {"count": 5, "every_ms": 20}, progress_callback=on_progress)
    await eventually(lambda: len(steps_seen) >= 5, 2, "five progress callbacks")
    check(steps_seen == sorted(set(steps_seen)), "progress does not only grow: %s" % steps_seen)

    if mode == "legacy" or SELF_TEST:
        await call(client, "danger", {"tag": "approved"})
        check(len(events(log, "run", "danger")) == 1, "danger did not run exactly once")
        check(SELF_TEST or seen["asked"], "danger was not asked about")
    else:
        # Clients of the self-contained era get a ticket, which a person answers in a terminal.
        deferred = await client.call_tool(PREFIX + "danger", {"tag": "deferred"})
        check(deferred.is_error and "ticket" in deferred.content[0].text, "danger: %s" % short(str(deferred)))
        check(not events(log, "run", "danger"), "danger ran before anybody allowed it")

    async with anyio.create_task_group() as group:
        group.start_soon(client.call_tool, PREFIX + "hang", {"tag": "abandoned"})
        await eventually(lambda: events(log, "start", "hang"), 5, "the start of hang")
        group.cancel_scope.cancel()
    await eventually(lambda: events(log, "cancel", "hang"), 1, "the cancellation in the fixture")
    await call(client, "plain")

    if mode == "legacy":
        await client.send_ping()
    else:
        check(client.protocol_version == rpc.MODERN, "connected with %s" % client.protocol_version)
        await client.session.discover()

    async def expect_change(tool, arguments, is_there):
        if mode == "legacy":
            before = seen["changed"]
            await call(client, tool, arguments)
            await eventually(lambda: seen["changed"] > before, 5, "tools/list_changed after %s" % tool)
        else:
            async with client.listen(tools_list_changed=True) as subscription:
                await call(client, tool, arguments)
                with anyio.fail_after(5):
                    async for _ in subscription:
                        break
        end = time.monotonic() + 5
        while ((PREFIX + "extra") in await names(client)) != is_there:
            check(time.monotonic() < end, "the list does not show what %s did" % tool)
            await anyio.sleep(0.05)

    await expect_change("add_tool", {"name": "extra"}, True)
    await call(client, "extra")
    await expect_change("remove_tool", {"name": "extra"}, False)


def connect(mode):
    async def main(box):
        argv, log = command(box)
        seen = {"changed": 0, "asked": []}

        async def on_message(message):
            method = getattr(message, "method", None) or getattr(getattr(message, "root", None), "method", "")
            seen["changed"] += method == "notifications/tools/list_changed"

        async def on_elicit(_context, params):
            from mcp_types import ElicitResult
            seen["asked"].append(params.message)
            return ElicitResult(action="accept", content=rpc.fill_form(params.requested_schema))

        with open(box.path("stderr.txt"), "w", encoding="utf-8") as err:
            server = stdio_client(StdioServerParameters(command=argv[0], args=argv[1:], env=box.env(), cwd=box.dir),
                                  errlog=err)
            async with Client(server, mode=mode, message_handler=on_message, elicitation_callback=on_elicit,
                              read_timeout_seconds=20) as client:
                await steps(client, log, mode, seen)
                closing = time.monotonic()
        check(time.monotonic() - closing < 2, "closing took %.1f s" % (time.monotonic() - closing))

    with Sandbox() as box:
        try:
            anyio.run(main, box)
        except Exception as error:  # task groups bury the one failure that matters
            error = unwrap(error)
            raise error if isinstance(error, rpc.Failure) else rpc.Failure(place(error)) from None
        none_left(box.marker, 5)
        check(os.path.exists(box.path("code")), "the server was killed, not closed")
        with open(box.path("code"), encoding="ascii") as f:
            code = f.read().strip()
        check(code == "0", "exit code %s" % code)


def main():
    if not SELF_TEST:
        rpc.need_binary()
    report = Report("sdk_python")
    for mode in ("legacy", "auto", rpc.MODERN):
        report.run("Python SDK, %s" % mode, connect, mode)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
