#!/usr/bin/env python3
"""lifecycle.py - how the gateway, its client and its upstreams end, and what must never be left behind.

    lifecycle.py [--only REGEX]

Each check starts a gateway with the fixture `m` as upstream, in several tempers: `plain` leaves at the end of input;
`deaf` ignores the end of input; `stubborn` ignores SIGTERM and SIGINT; `parent` has a grandchild that holds its stdout
open; `all` is everything at once. Checked, with a limit of 5 s each:

  * end of input, SIGTERM and SIGINT: exit code 0, idle or in the middle of a call;
  * SIGKILL of the gateway, and of a client that wraps it;
  * the client closes its end of stdout;
  * in each case no process of the run is left (found by a marker in its environment or command line);
  * an upstream killed in the middle of a call: that call is answered with an isError result of kind `transport`, a
    call to another upstream goes on, and the killed one is started again;
  * an upstream that is slow to start delays neither the answers before it nor the end.

Linux only: it reads /proc.
"""
import argparse
import os
import re
import signal
import subprocess
import sys
import time

import rpc
from rpc import Report, Sandbox, check, none_left, short

LIMIT = 5
TEMPERS = {
    "plain": [],
    "deaf": ["--ignore-eof"],
    "stubborn": ["--ignore-term"],
    "parent": ["--grandchild"],
    "all": ["--ignore-eof", "--ignore-term", "--grandchild"],
}

# A client program: starts the gateway, opens a session, calls a tool that hangs (again, should it be refused because the
# upstream is not up yet), and waits for ever.
WRAPPER = """
import itertools, json, subprocess, sys, time
p = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
def send(m): p.stdin.write(json.dumps(dict(m, jsonrpc="2.0")).encode() + b"\\n"); p.stdin.flush()
send({"id": 0, "method": "initialize", "params": {"protocolVersion": "2025-11-25", "capabilities": {},
      "clientInfo": {"name": "wrapper", "version": "1"}}})
p.stdout.readline()
send({"method": "notifications/initialized"})
for n in itertools.count(1):
    send({"id": n, "method": "tools/call", "params": {"name": "m_hang", "arguments": {}}})
    while json.loads(p.stdout.readline()).get("id") != n:
        pass
    time.sleep(0.1)
"""


class Run:
    """A gateway with one `m` of the given temper (and a second, polite upstream `n`), in a sandbox."""

    def __init__(self, temper="plain", second=False, **options):
        self.box = Sandbox()
        self.log = self.box.path("m.log")
        self.servers = {"m": rpc.m_entry(*TEMPERS[temper], "--marker", self.box.marker, log=self.log, isolated=True)}
        if second:
            self.servers["n"] = rpc.m_entry("--marker", self.box.marker, log=self.log, name="n", isolated=True)
        for name, value in options.items():
            self.servers["m"][name] = value
        self.temper = temper

    def open(self):
        self.gateway = self.box.gateway(self.servers, capabilities={})
        self.gateway.initialize()
        self.gateway.wait_for_tools(*["%s_plain" % s for s in self.servers])
        return self.gateway

    def hang(self):
        """A call that is in the middle of its work in the upstream."""
        rid = self.gateway.start("tools/call", {"name": "m_hang", "arguments": {}})
        self.started("hang")
        return rid

    def started(self, tool, server="m"):
        return rpc.wait_log(self.log, lambda e: e["event"] == "start" and e["tool"] == tool and e["server"] == server,
                            10, "the start of %s" % tool)

    def warm(self):
        """Makes sure that the upstream process itself is there, not only its cached list."""
        message, _ = self.gateway.call("m_plain")
        check(not message.get("result", {"isError": True}).get("isError"), "m_plain: %s" % short(message))

    def upstream_pid(self):
        return self.started("hang")["pid"]

    def clean(self):
        none_left(self.box.marker, LIMIT)

    def __enter__(self):
        self.box.__enter__()
        return self

    def __exit__(self, *_):
        self.box.__exit__()


def ends_with_zero(run, gateway):
    code = gateway.exit_code(LIMIT)
    check(code is not None, "still running after %d s" % LIMIT)
    check(code == 0, "exit code %d%s" % (code, gateway.last_words()))
    run.clean()
    check(not gateway.broken, "a line that is no JSON-RPC: %s" % gateway.broken[:1])


def end_by(how, temper, busy):
    with Run(temper) as run:
        gateway = run.open()
        if busy:
            run.hang()
        else:
            run.warm()
        if how == "eof":
            gateway.close_stdin()
        else:
            gateway.process.send_signal(getattr(signal, how))
        ends_with_zero(run, gateway)


def end_before_start(how):
    """The end comes while an upstream is still starting."""
    with Run("plain") as run:
        run.servers["m"]["args"] += ["--start-delay-ms", "20000"]
        gateway = run.box.gateway(run.servers, capabilities={})
        gateway.initialize(timeout=2)
        gateway.result("tools/list", timeout=3)
        gateway.start("tools/call", {"name": "m_plain", "arguments": {}})
        if how == "eof":
            gateway.close_stdin()
        else:
            gateway.process.send_signal(getattr(signal, how))
        ends_with_zero(run, gateway)


def end_at_once(how):
    """The end comes before the first message."""
    with Run("plain") as run:
        gateway = run.box.gateway(run.servers, capabilities={})
        if how == "eof":
            gateway.close_stdin()
        else:
            # No message can tell when the handler is in place; a child that appears is early enough.
            time.sleep(0.3)
            gateway.process.send_signal(getattr(signal, how))
        ends_with_zero(run, gateway)


def twice_signalled():
    with Run("all") as run:
        gateway = run.open()
        run.hang()
        gateway.process.send_signal(signal.SIGINT)
        gateway.process.send_signal(signal.SIGTERM)
        gateway.close_stdin()
        ends_with_zero(run, gateway)


def killed(temper):
    with Run(temper) as run:
        gateway = run.open()
        run.hang()
        gateway.process.kill()
        check(gateway.exit_code(LIMIT) == -signal.SIGKILL, "the gateway survived SIGKILL")
        run.clean()


def wrapper_killed(temper):
    with Run(temper) as run:
        for entry in run.servers.values():
            entry["env"] = {"TC_MARKER": run.box.marker}
        command = run.box.command(run.box.config(run.servers))
        with open(run.box.path("stderr.txt"), "wb") as err:
            client = subprocess.Popen([sys.executable, "-c", WRAPPER, *command], env=run.box.env(), cwd=run.box.dir,
                                      stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=err)
        run.started("hang")
        client.kill()
        client.wait()
        run.clean()


def stdout_closed(temper):
    with Run(temper) as run:
        gateway = run.open()
        run.warm()
        # A second reader of the pipe must not keep it open: the reading thread ends with the descriptor.
        os.dup2(os.open(os.devnull, os.O_RDONLY), gateway.process.stdout.fileno())
        for n in range(20):
            gateway.notify("notifications/none")
            gateway.send({"jsonrpc": "2.0", "id": n, "method": "ping"})
            time.sleep(0.01)
        code = gateway.exit_code(LIMIT)
        check(code is not None, "still running %d s after the client closed stdout" % LIMIT)
        check(code in (0, 1), "exit code %d%s" % (code, gateway.last_words()))
        run.clean()


def upstream_killed(temper):
    with Run(temper, second=True) as run:
        gateway = run.open()
        doomed = run.hang()
        other = gateway.start("tools/call", {"name": "n_sleep", "arguments": {"ms": 1500}})
        run.started("sleep", "n")
        pid = run.upstream_pid()
        os.kill(pid, signal.SIGKILL)
        message, _ = gateway.wait(doomed, LIMIT)
        result = message.get("result")
        check(result is not None, "the call was answered with %s" % short(message))
        error = (result.get("_meta") or {}).get("toolcrib/error") or {}
        check(result.get("isError") is True, "not an error result: %s" % short(result))
        check(error.get("kind") == "transport", "not of kind transport: %s" % short(result))
        check(error.get("retryable") is True, "not retryable: %s" % short(error))
        check(any(c.get("text") for c in result.get("content", [])), "the error says nothing: %s" % short(result))
        check("result" in gateway.request("ping", timeout=2), "ping is not answered")
        message, _ = gateway.wait(other, 10)
        check(not message.get("result", {"isError": True}).get("isError"), "the other call: %s" % short(message))
        deadline = time.monotonic() + 20
        while True:
            message, _ = gateway.call("m_count", {"key": "again"})
            if not message.get("result", {"isError": True}).get("isError"):
                break
            check(time.monotonic() < deadline, "m was not started again: %s" % short(message))
            time.sleep(0.2)
        again = [e["pid"] for e in rpc.read_log(run.log) if e["event"] == "launch" and e["server"] == "m"]
        check(len(set(again)) >= 2 and pid in again, "the answer did not come from a new process")
        runs = [e for e in rpc.read_log(run.log) if e["event"] == "run" and e["tool"] == "hang"]
        check(len(runs) == 1, "the killed call was sent %d times" % len(runs))
        gateway.wait_for_tools("m_plain")
        gateway.close_stdin()
        ends_with_zero(run, gateway)


def upstream_dies_by_itself():
    with Run("parent") as run:
        gateway = run.open()
        message, _ = gateway.call("m_die", {"code": 7}, timeout=10)
        error = (message.get("result", {}).get("_meta") or {}).get("toolcrib/error") or {}
        check(error.get("kind") == "transport", "m_die: %s" % short(message))
        check("result" in gateway.request("ping", timeout=2), "ping is not answered")
        gateway.close_stdin()
        ends_with_zero(run, gateway)


def upstream_never_starts():
    """A program that is not there costs its own tools only."""
    with Run("plain") as run:
        run.servers["gone"] = {"command": run.box.path("no-such-program"), "args": []}
        gateway = run.box.gateway(run.servers, capabilities={})
        gateway.initialize(timeout=2)
        gateway.wait_for_tools("m_plain")
        message, _ = gateway.call("m_plain")
        check(not message.get("result", {"isError": True}).get("isError"), "m_plain: %s" % short(message))
        gateway.close_stdin()
        ends_with_zero(run, gateway)


def main():
    ap = argparse.ArgumentParser(description="how everything ends")
    ap.add_argument("--only", default="")
    args = ap.parse_args()
    rpc.need_binary()
    if not os.path.isdir("/proc/self"):
        print("lifecycle: skipped, there is no /proc")
        return 0
    report = Report("lifecycle")

    def run(name, act, *arguments):
        if re.search(args.only, name):
            report.run(name, act, *arguments)

    for how in ("eof", "SIGTERM", "SIGINT"):
        for temper in TEMPERS:
            run("%s while idle, upstream %s" % (how, temper), end_by, how, temper, False)
        for temper in ("plain", "all"):
            run("%s in a call, upstream %s" % (how, temper), end_by, how, temper, True)
        run("%s while an upstream starts" % how, end_before_start, how)
        run("%s at once" % how, end_at_once, how)
    run("two signals and the end of input together", twice_signalled)
    for temper in TEMPERS:
        run("SIGKILL of the gateway, upstream %s" % temper, killed, temper)
    for temper in TEMPERS:
        run("SIGKILL of the client, upstream %s" % temper, wrapper_killed, temper)
    for temper in ("plain", "all"):
        run("stdout closed by the client, upstream %s" % temper, stdout_closed, temper)
    for temper in TEMPERS:
        run("SIGKILL of an upstream in a call, %s" % temper, upstream_killed, temper)
    run("an upstream that ends by itself in a call", upstream_dies_by_itself)
    run("an upstream that cannot be started", upstream_never_starts)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
