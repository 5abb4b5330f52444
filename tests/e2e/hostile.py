#!/usr/bin/env python3
"""hostile.py - malformed and hostile client input, each file against a fresh gateway.

    hostile.py [--only REGEX] [-j N] [-v]

A file in hostile/ is one case: its first line is a JSON header, everything after that line is written to the gateway
as it is. Header:

    about        what the input is
    expect       the answers that must come back, in any order, and no others; or
    any_of       several such lists, one of which must fit
    initialize   false: do not open a session before the input (default true, protocol 2025-11-25)
    generate     {placeholder: [text, times]}: keeps large inputs out of the repository (also in expected ids)
    repeat       write the input that often in one write, @N@ being 0, 1, 2, ...
    write        "bytes": one write per byte
    eof          true: close stdin right after the input; no following requests
    within       seconds until the exit after the end of input (default 5)
    after        more input, sent when the expected answers are there, with after_expect
    probe        "modern": also try 2026-07-28 requests afterwards
    max_answer   no line may be longer than this
    runs         {tool of m: how often it must have run}

An expected answer: {"id": ID, ...} with ID of that very JSON type, or a list of allowed ids, and
    result: true | codes: [...], or_result: true     result, or an error with one of the codes
    is_error, kind, contains, supported              more about a result (kind as in _meta["toolcrib/error"]) or error
    times: N                                         that answer N times;  from/to: one answer for each id

Checked in every case: each line on stdout is one strict JSON-RPC object and nothing else is there; afterwards a session
still opens (if none was), `ping` and `tools/list` still work; at the end of input the exit code is 0.
"""
import argparse
import concurrent.futures
import json
import os
import re
import sys
import time

import rpc
from rpc import Report, Sandbox, check, key, short

FOLDER = os.path.join(rpc.HERE, "hostile")
NEEDS_M = re.compile(rb'"m_[a-z]+')


def fill(text, header):
    for placeholder, (unit, times) in header.get("generate", {}).items():
        old, new = placeholder, unit * times
        text = text.replace(old.encode(), new.encode()) if isinstance(text, bytes) else text.replace(old, new)
    return text


def expand(expected, header):
    out = []
    for e in expected:
        if "from" in e:
            out += [{**e, "id": n} for n in range(e["from"], e["to"] + 1)]
        else:
            ids = e["id"] if isinstance(e["id"], list) else [e["id"]]
            out += [{**e, "id": [fill(i, header) if isinstance(i, str) else i for i in ids]}] * e.get("times", 1)
    return out


def fits(e, message, line):
    """None when the answer is the expected one, else what is wrong with it."""
    ids = e["id"] if isinstance(e["id"], list) else [e["id"]]
    if key(message["id"]) not in map(key, ids):
        return "id %s is not %s" % (short(key(message["id"]), 60), short(json.dumps(e["id"]), 60))
    if "error" in message:
        if message["error"]["code"] not in e.get("codes", []):
            return "error %s" % short(message["error"], 200)
        if "supported" in e and e["supported"] not in (message["error"].get("data") or {}).get("supported", []):
            return "data.supported lacks %s: %s" % (e["supported"], short(message["error"], 200))
        return None
    result = message["result"]
    if not (e.get("result") or e.get("or_result")):
        return "a result instead of an error: %s" % short(result, 200)
    if "is_error" in e and bool(result.get("isError")) != e["is_error"]:
        return "isError is not %s: %s" % (e["is_error"], short(result, 200))
    if "kind" in e:
        kind = ((result.get("_meta") or {}).get("toolcrib/error") or {}).get("kind")
        if result.get("isError") is not True or kind != e["kind"]:
            return "no %s error result: %s" % (e["kind"], short(result, 200))
    if "contains" in e:
        texts = (line.decode(), json.dumps(result, ensure_ascii=False, separators=(",", ":")))
        if not any(e["contains"] in t for t in texts):
            return "%r is not in %s" % (e["contains"], short(result, 300))
    return None


def match(expected, answers):
    """None when the answers are the expected ones in some order, else the first thing that is wrong."""
    left = list(answers)
    for e in expected:
        reasons = [fits(e, *a) for a in left]
        if None in reasons:
            left.pop(reasons.index(None))
        else:
            wanted = {k: v for k, v in e.items() if k != "times"}
            return "expected %s, got %s" % (short(wanted, 200), "; ".join(r for r in reasons[:3]) or "no answer")
    return "answers nobody expected: %s" % short([a[0] for a in left], 300) if left else None


def own_answers(peer):
    """The answers so far to what the file sent, not to this script's own requests."""
    with peer.cond:
        return [a for k, many in peer.answers.items() if not k.startswith('"probe-') for a in many]


def settle(peer, alternatives, timeout, patience=0.3):
    """Waits until the answers fit one alternative, or for the time; None or what is wrong.

    An alternative without answers fits at once, so a moment is left for the others when there are several."""
    end = time.monotonic() + timeout
    calm = time.monotonic() + (patience if len(alternatives) > 1 else 0)
    while True:
        answers = own_answers(peer)
        wrong = [match(expected, answers) for expected in alternatives]
        now = time.monotonic()
        if None in wrong and now >= calm:
            return None
        if now > end or peer.ended:
            return wrong[0] if None not in wrong else None
        time.sleep(0.005)


def run_case(path, verbose):
    with open(path, "rb") as f:
        head, _, body = f.read().partition(b"\n")
    header = json.loads(head)
    alternatives = [expand(e, header) for e in header.get("any_of", [header.get("expect", [])])]
    uses_m = bool(NEEDS_M.search(body))
    payload = fill(body, header)
    if "repeat" in header:
        payload = b"".join(payload.replace(b"@N@", b"%d" % n) for n in range(header["repeat"]))
    with Sandbox() as sandbox:
        log = sandbox.path("m.log")
        peer = sandbox.gateway({"m": rpc.m_entry(log=log)}, capabilities={})
        ask = Probe(peer)
        if header.get("initialize", True):
            ask.initialize()
            if uses_m:
                ask.wait_for_tool("m_plain")
        if header.get("write") == "bytes":
            for i in range(len(payload)):
                peer.send_bytes(payload[i:i + 1])
        else:
            peer.send_bytes(payload)
        if header.get("eof"):
            peer.close_stdin()
        wrong = settle(peer, alternatives, 0 if header.get("eof") else 15)
        if header.get("eof"):
            finish(peer, header)
            wrong = settle(peer, alternatives, 0, 0)
        check(not wrong, wrong)
        if verbose and not header.get("eof"):
            print("      " + short([a[0] for a in own_answers(peer)], 300))
        if header.get("eof"):
            return
        if "after" in header:
            peer.send_bytes(header["after"].encode())
            alternatives = [a + expand(header.get("after_expect", []), header) for a in alternatives]
            wrong = settle(peer, alternatives, 15)
            check(not wrong, "afterwards: %s" % wrong)
        if header.get("probe") == "modern":
            ask.modern()
        ask.session(opened=header.get("initialize", True))
        for tool, times in header.get("runs", {}).items():
            ran = sum(e["event"] == "run" and e["tool"] == tool for e in rpc.read_log(log))
            check(ran == times, "m ran `%s` %d times instead of %d" % (tool, ran, times))
        finish(peer, header)
        wrong = settle(peer, alternatives, 0, 0)
        check(not wrong, "at the end: %s" % wrong)


def finish(peer, header):
    code = peer.end(header.get("within", 5))
    check(code is not None, "still running %g s after the end of input" % header.get("within", 5))
    check(code == 0, "exit code %d%s" % (code, peer.last_words()))
    check(not peer.broken, "a line that is no JSON-RPC: " + "; ".join(peer.broken[:2]))
    limit = header.get("max_answer")
    check(not limit or max(map(len, peer.lines), default=0) <= limit, "an answer longer than %s bytes" % limit)


class Probe:
    """Requests of this script, with ids that no file uses."""

    def __init__(self, peer):
        self.peer, self.n = peer, 0

    def ask(self, method, params=None):
        self.n += 1
        rid = self.peer.start(method, params, "probe-%d" % self.n)
        message = self.peer.wait(rid, 10)[0]
        check("result" in message, "%s afterwards was answered with %s" % (method, short(message.get("error"), 300)))
        return message["result"]

    def initialize(self):
        self.ask("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": rpc.CLIENT_INFO})
        self.peer.notify("notifications/initialized")

    def wait_for_tool(self, name):
        end = time.monotonic() + 15
        while not any(t["name"] == name for t in self.ask("tools/list")["tools"]):
            check(time.monotonic() < end, "%s is never listed%s" % (name, self.peer.last_words()))
            time.sleep(0.03)

    def modern(self):
        meta = {"_meta": rpc.modern_meta({})}
        found = self.ask("server/discover", meta)
        check(rpc.MODERN in found.get("supportedVersions", []), "server/discover afterwards: %s" % short(found))
        check(isinstance(self.ask("tools/list", meta).get("tools"), list), "tools/list afterwards has no tools")

    def session(self, opened):
        if not opened:
            self.initialize()
        check(self.ask("ping") == {}, "ping afterwards is not answered with {}")
        check(isinstance(self.ask("tools/list").get("tools"), list), "tools/list afterwards has no tools")


def main():
    ap = argparse.ArgumentParser(description="hostile client input")
    ap.add_argument("--only", default="")
    ap.add_argument("-j", type=int, default=2)
    ap.add_argument("-v", "--verbose", action="store_true")
    args = ap.parse_args()
    rpc.need_binary()
    report = Report("hostile")
    names = sorted(n for n in os.listdir(FOLDER) if re.search(args.only, n) and n.endswith((".txt", ".bin")))
    with concurrent.futures.ThreadPoolExecutor(args.j) as pool:
        list(pool.map(lambda n: report.run(n, run_case, os.path.join(FOLDER, n), args.verbose), names))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
