#!/usr/bin/env python3
"""tickets.py - a client that cannot ask gets a ticket; a person answers it in another process; the same call runs once.

    tickets.py        (TOOLCRIB_BIN names the binary; default: target/debug/toolcrib)
"""
import json
import os
import subprocess
import sys

import rpc

M = os.path.join(rpc.HERE, "..", "fixtures", "m_server.py")


def main():
    rpc.need_binary()
    failed = []

    def check(holds, what):
        print("%-5s %s" % ("ok" if holds else "FAIL", what))
        if not holds:
            failed.append(what)

    with rpc.Sandbox() as sandbox:
        log = sandbox.path("m.log")
        entry = {"command": sys.executable, "args": [M, "--log", log]}
        peer = sandbox.gateway({"m": entry}, capabilities={})
        peer.initialize("2025-06-18")

        def danger(tag):
            reply = peer.request("tools/call", {"name": "m_danger", "arguments": {"tag": tag}})
            result = reply["result"]
            return result, (result.get("_meta") or {}).get("toolcrib/error", {})

        def approvals(*words):
            return subprocess.run([rpc.BIN, "approvals", *words], env=sandbox.env(), cwd=sandbox.dir,
                                  capture_output=True, text=True, timeout=20)

        def runs():
            with open(log, encoding="utf-8") as f:
                return sum(e.get("event") == "run" and e.get("tool") == "danger" for e in map(json.loads, f))

        _, error = danger("a")
        check(error.get("kind") == "approval_deferred" and error.get("ticket"), "the call is deferred with a ticket")
        _, again = danger("a")
        check(again.get("ticket") == error.get("ticket"), "the same call has the same ticket")
        check(error["ticket"] in approvals("list").stdout, "the ticket is listed in another process")
        check(approvals("allow", error["ticket"]).returncode == 0, "it is allowed there")
        result, _ = danger("a")
        check(not result.get("isError") and runs() == 1, "the same call now runs")
        _, third = danger("a")
        check(third.get("kind") == "approval_deferred" and runs() == 1, "the ticket is used up")
        _, other = danger("b")
        check(other.get("ticket") not in (None, third.get("ticket")), "other arguments have a ticket of their own")
        check(approvals("deny", other["ticket"]).returncode == 0, "it is denied")
        _, denied = danger("b")
        check(denied.get("reason") == "user_denied" and runs() == 1, "a denied call is refused and not run")
        check(approvals("allow", "zzzzzz").returncode != 0, "an unknown ticket is an error")
        peer.close_stdin()
        check(peer.exit_code(5) == 0, "the gateway leaves with its client")
    print("tickets: %d failed" % len(failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
