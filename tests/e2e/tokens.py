#!/usr/bin/env python3
"""tokens.py - what the list of real catalogs costs a client, all in full and as the gateway shows it.

    tokens.py [--sizes 10,50,200,1000,2500] [--json]

Takes the tools of the most used servers in tests/fixtures/catalogs until there are as many as asked for, plays them by
the fake upstream, and prints the table of `toolcrib stats --tokens`. Fails where 10 tools cost more than plain, or 200
and more cost over 2,000 tokens or over a tenth of the plain list. Tokens are estimated at four bytes each.
"""
import argparse
import gzip
import json
import os
import subprocess
import sys

import rpc

CATALOG = os.path.join(rpc.ROOT, "tests", "fixtures", "catalogs", "mcp_servers_full.json.gz")
FAKE = os.path.join(rpc.ROOT, "tests", "fixtures", "fake_upstream.py")
# One process plays many servers; more processes would only measure their start.
PROCESSES = 8


def servers(count):
    with gzip.open(CATALOG, "rt", encoding="utf-8") as f:
        known = json.load(f)["servers"]
    known.sort(key=lambda s: (s["usage_rank"] is None, s["usage_rank"] or 0, s["server"]))
    taken, left = [], count
    for server in known:
        if left <= 0:
            break
        tools = server["tools"][:left]
        taken.append((server["server"], tools))
        left -= len(tools)
    return taken


def measure(count, folder):
    taken = servers(count)
    few = len(taken) <= PROCESSES
    groups = {}
    for i, (name, tools) in enumerate(taken):
        group = groups.setdefault(i if few else i % PROCESSES, (name, []))[1]
        group.extend(tools if few else [{**tool, "name": name + "." + tool["name"]} for tool in tools])
    lines = []
    for name, tools in groups.values():
        scenario = os.path.join(folder, "%s-%d.json" % (name, count))
        with open(scenario, "w", encoding="utf-8") as f:
            json.dump({"tools": tools}, f)
        args = json.dumps([FAKE, "--name", name, "--scenario", scenario])
        lines.append("[mcp_servers.%s]\ncommand = %s\nargs = %s\n" % (name, json.dumps(sys.executable), args))
    config = os.path.join(folder, "tools-%d.toml" % count)
    with open(config, "w", encoding="utf-8") as f:
        f.write("\n".join(lines))
    run = subprocess.run([rpc.BIN, "stats", "--tokens", "--json", "--config", config, "--state", ":memory:"],
                         stdout=subprocess.PIPE, text=True, cwd=folder, timeout=120, check=True)
    return len(taken), json.loads(run.stdout)


def main():
    ap = argparse.ArgumentParser(description="tokens of real tool lists, plain and shown")
    ap.add_argument("--sizes", default="10,50,200,1000,2500")
    ap.add_argument("--json", action="store_true")
    args = ap.parse_args()
    rpc.need_binary()
    rows, bad = [], []
    with rpc.Sandbox() as sandbox:
        for count in map(int, args.sizes.split(",")):
            folder = sandbox.path("tokens")
            os.makedirs(folder, exist_ok=True)
            of, facts = measure(count, folder)
            plain, shown = facts["plain"]["tokens"], facts["shown"]["tokens"]
            rows.append({"tools": count, "servers": of, "plain": plain, "shown": shown,
                         "listed": facts["shown"]["tools"], "saved_percent": facts["saved_percent"]})
            if count <= 10 and shown > plain:
                bad.append("%d tools cost more than plain: %d > %d" % (count, shown, plain))
            if count >= 200 and (shown > 2000 or shown * 10 > plain):
                bad.append("%d tools cost %d tokens of %d" % (count, shown, plain))
    if args.json:
        print(json.dumps(rows, indent=1))
    else:
        print("| upstream tools | servers | plain tokens | shown tokens | tools listed | fewer |")
        print("|--:|--:|--:|--:|--:|--:|")
        for row in rows:
            print("| %(tools)d | %(servers)d | %(plain)d | %(shown)d | %(listed)d | %(saved_percent).1f %% |" % row)
    for line in bad:
        print("FAIL  " + line)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
