#!/usr/bin/env python3
"""cases.py - runs the failure cases of cases/ against the gateway and holds the result to cases/expected.txt.

    cases.py [--only REGEX] [-j N] [--update] [-v]

A listed case that does not pass is a failure. Any other case may fail: it is printed as "not yet". A case that passes
without being listed is named, so that it can be added (--update does it).
"""
import argparse
import json
import os
import re
import shlex
import subprocess
import sys

import rpc

FOLDER = os.path.join(rpc.HERE, "cases")
EXPECTED = os.path.join(FOLDER, "expected.txt")


def main():
    ap = argparse.ArgumentParser(description="the failure cases against their list of expectations")
    ap.add_argument("--only", default="")
    ap.add_argument("-j", type=int, default=2)
    ap.add_argument("--update", action="store_true")
    ap.add_argument("-v", "--verbose", action="store_true", help="show the traffic of every case that fails")
    args = ap.parse_args()
    rpc.need_binary()
    with open(EXPECTED, encoding="utf-8") as f:
        expected = [line.split("#")[0].strip() for line in f if line.split("#")[0].strip()]
    os.makedirs(rpc.E2E, exist_ok=True)
    results_path = os.path.join(rpc.E2E, "cases.json")
    if os.path.exists(results_path):
        os.remove(results_path)
    # A state, a configuration or a log level of the caller must not reach the gateway.
    env = {k: v for k, v in os.environ.items() if not k.startswith(("XDG_", "TOOLCRIB_", "RUST_"))}
    binary = shlex.quote(rpc.BIN)
    run = subprocess.Popen(
        [sys.executable, os.path.join(FOLDER, "run_cases.py"), "--profile", os.path.join(FOLDER, "profile.toolcrib.json"),
         "--gateway", binary + " serve --config {config}",
         "--gateway-json", binary + " serve --config {toml} --mcp-config {config}",
         "-j", str(args.j), "-v", "--only", args.only, "--json", results_path],
        stdout=subprocess.PIPE, text=True, env=env)
    details, current = {}, None
    for line in run.stdout:
        head = re.match(r"(PASS|FAIL|SKIP) +([A-Z]+-\d+)\b", line)
        if head:
            current = head.group(2)
            details[current] = []
        if current:
            details[current].append(line)
        if args.verbose:
            print(line, end="", flush=True)
    run.wait()
    if not os.path.exists(results_path):
        print("cases: the runner ended with %d and without results" % run.returncode)
        return 1
    with open(results_path, encoding="utf-8") as f:
        results = json.load(f)
    broken = [c for c in expected if c in results and results[c] != "PASS"]
    missing = [] if args.only else [c for c in expected if c not in results]
    fresh = sorted(c for c, verdict in results.items() if verdict == "PASS" and c not in expected)
    waiting = sorted(c for c, verdict in results.items() if verdict != "PASS" and c not in expected)
    for case in waiting:
        print("not yet " + "".join(details[case][:2]).rstrip())
    for case in broken:
        print("BROKEN  " + "".join(details[case]).rstrip())
    if missing:
        print("BROKEN  in expected.txt, but there is no such case: " + " ".join(missing))
    if fresh and args.update:
        with open(EXPECTED, "a", encoding="utf-8") as f:
            f.writelines(c + "\n" for c in fresh)
        print("added to expected.txt: " + " ".join(fresh))
    elif fresh:
        print("pass, but not in expected.txt: " + " ".join(fresh))
    print("cases: %d of %d expected ones pass, %d others pass, %d not yet" % (
        len(expected) - len(broken) - len(missing), len(expected), len(fresh), len(waiting)))
    return 1 if broken or missing else 0


if __name__ == "__main__":
    sys.exit(main())
