#!/usr/bin/env python3
"""differential.py - five real MCP servers, each reached directly and through the gateway: the answers must be the same.

    differential.py [--self-test] [--only REGEX] [-v]

For server-everything, filesystem, memory, git and time, in the session era (2025-11-25), and in 2026-07-28 where the
server itself answers `server/discover`:

  * each entry of tools/list is the same but for the name: same fields, same order of keys, same spelling of numbers.
    (Where a server writes its schemas differently in the two eras, either form will do.)
    The gateway may add `_meta["toolcrib/original"]`, and a `title` that tells the original name where there was none;
  * every tool is called at least once with the arguments of the table below, and some with arguments that pass the
    schema and fail in the server. The results are the same in every field. Each side has a fresh folder of its own,
    so side effects do not meet. Times, durations and the two folders' names are made equal before comparing.
    The gateway tells how each call went in `_meta["toolcrib/run"]`.

All answers stay below the gateway's default result budget. Not compared: arguments which violate the input schema (the
gateway answers them itself). Where a server answers a call with a JSON-RPC error, the gateway may pass it on or turn it
into an isError result that carries its message.

--self-test compares the direct connection with a second direct one: it shows that the table and the rules are sound.
Needs tests/e2e/setup. Exit code 1 when anything differs.
"""
import argparse
import base64
import json
import os
import re
import subprocess
import sys
import time

import rpc
from rpc import Failure, Peer, Report, Sandbox, check, short

GIT_ENV = {"GIT_AUTHOR_DATE": "2026-01-02T03:04:05Z", "GIT_COMMITTER_DATE": "2026-01-02T03:04:05Z",
           "GIT_AUTHOR_NAME": "e2e", "GIT_AUTHOR_EMAIL": "e2e@example.com", "GIT_COMMITTER_NAME": "e2e",
           "GIT_COMMITTER_EMAIL": "e2e@example.com", "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}
PNG = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")


# ---------------------------------------------------------------- the servers and what to call
def folder(base):
    """A small tree of files; the same on each side."""
    for name, data in {"a.txt": "one\ntwo\nthree\n", "b.txt": "zwei \u00fcber \U0001f600\n", "docs/c.md": "# c\n",
                       "docs/deep/d.json": "{\"d\": 1.50}\n", "empty/keep": ""}.items():
        path = os.path.join(base, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as f:
            f.write(data)
    with open(os.path.join(base, "dot.png"), "wb") as f:
        f.write(PNG)


def repository(base):
    """A repository with two commits, a branch, and something staged, unstaged and untracked."""
    def git(*args):
        subprocess.run(["git", "-C", base, *args], check=True, stdout=subprocess.DEVNULL,
                       env={**os.environ, **GIT_ENV})

    def write(name, text):
        with open(os.path.join(base, name), "w", encoding="utf-8") as f:
            f.write(text)

    git("init", "-q", "-b", "main")
    write("a.txt", "one\n")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    git("branch", "side")
    write("a.txt", "one\ntwo\n")
    write("b.txt", "b\n")
    git("add", ".")
    git("commit", "-q", "-m", "second: \u00fcber")
    write("a.txt", "one\ntwo\nthree\n")
    write("b.txt", "b\nstaged\n")
    git("add", "b.txt")
    write("new.txt", "new\n")


def entities(*names):
    return {"entities": [{"name": n, "entityType": "person", "observations": ["likes " + n]} for n in names]}


def relation(a, b):
    return {"relations": [{"from": a, "to": b, "relationType": "knows"}]}


# @DIR@ is the side's own folder. A tool may appear several times; order matters.
SERVERS = {
    "everything": {
        "command": [os.path.join(rpc.NODE_BIN, "mcp-server-everything"), "stdio"],
        "env": {"E2E_PROBE": "present"},
        "calls": [
            ("echo", {"message": "hello \u00fc \U0001f600 \"quoted\" \\ \u0007"}),
            ("echo", {"message": ""}),
            ("get-annotated-message", {"messageType": "error", "includeImage": True}),
            ("get-annotated-message", {"messageType": "debug"}),
            ("get-env", {}),
            ("get-resource-links", {"count": 4}),
            ("get-resource-reference", {"resourceType": "Text", "resourceId": 1}),
            ("get-resource-reference", {"resourceType": "Blob", "resourceId": 2}),
            ("get-resource-reference", {"resourceType": "Text", "resourceId": -1}),
            ("get-structured-content", {"location": "Chicago"}),
            ("get-sum", {"a": 0.1, "b": 0.2}),
            ("get-sum", {"a": 9007199254740991, "b": 1}),
            ("get-tiny-image", {}),
            ("gzip-file-as-resource", {"name": "x.gz", "data": "data:text/plain;base64,aGVsbG8=",
                                       "outputType": "resource"}),
            ("gzip-file-as-resource", {"name": "y.gz", "data": "data:text/plain;base64,aGVsbG8=",
                                       "outputType": "resourceLink"}),
            ("gzip-file-as-resource", {"name": "z.gz", "data": "ftp://127.0.0.1/none"}),
            ("trigger-long-running-operation", {"duration": 0.2, "steps": 2}),
            ("get-roots-list", {}),
            ("trigger-elicitation-request", {}),
            ("trigger-url-elicitation", {"url": "https://example.com/sign", "elicitationId": "e2e-1"}),
            ("trigger-sampling-request", {"prompt": "hello", "maxTokens": 5}),
            ("simulate-research-query", {"topic": "tools"}),
            ("toggle-simulated-logging", {}),
            ("toggle-simulated-logging", {}),
            ("toggle-subscriber-updates", {}),
            ("toggle-subscriber-updates", {}),
        ],
    },
    "filesystem": {
        "command": [os.path.join(rpc.NODE_BIN, "mcp-server-filesystem"), "@DIR@"],
        "prepare": folder,
        "no_roots": True,
        "calls": [
            ("list_allowed_directories", {}),
            ("read_file", {"path": "@DIR@/a.txt"}),
            ("read_text_file", {"path": "@DIR@/b.txt"}),
            ("read_text_file", {"path": "@DIR@/a.txt", "tail": 1}),
            ("read_text_file", {"path": "@DIR@/a.txt", "head": 1, "tail": 1}),
            ("read_text_file", {"path": "@DIR@/missing.txt"}),
            ("read_text_file", {"path": "@DIR@/docs"}),
            ("read_text_file", {"path": "/etc/hostname"}),
            ("read_media_file", {"path": "@DIR@/dot.png"}),
            ("read_multiple_files", {"paths": ["@DIR@/a.txt", "@DIR@/missing.txt", "@DIR@/docs/c.md"]}),
            ("write_file", {"path": "@DIR@/new.txt", "content": "new\n\u00fc\n"}),
            ("write_file", {"path": "@DIR@/no/such/folder/x.txt", "content": ""}),
            ("edit_file", {"path": "@DIR@/a.txt", "edits": [{"oldText": "two", "newText": "2"}], "dryRun": True}),
            ("edit_file", {"path": "@DIR@/a.txt", "edits": [{"oldText": "two", "newText": "2"}]}),
            ("edit_file", {"path": "@DIR@/a.txt", "edits": [{"oldText": "absent", "newText": ""}]}),
            ("create_directory", {"path": "@DIR@/made/twice"}),
            ("list_directory", {"path": "@DIR@"}),
            ("list_directory", {"path": "@DIR@/missing"}),
            ("list_directory_with_sizes", {"path": "@DIR@", "sortBy": "size"}),
            ("directory_tree", {"path": "@DIR@", "excludePatterns": ["deep"]}),
            ("move_file", {"source": "@DIR@/new.txt", "destination": "@DIR@/made/moved.txt"}),
            ("move_file", {"source": "@DIR@/new.txt", "destination": "@DIR@/again.txt"}),
            ("search_files", {"path": "@DIR@", "pattern": "**/*.md"}),
            ("search_files", {"path": "@DIR@", "pattern": "nothing-matches"}),
            ("get_file_info", {"path": "@DIR@/b.txt"}),
            ("get_file_info", {"path": "@DIR@/missing.txt"}),
        ],
    },
    "memory": {
        "command": [os.path.join(rpc.NODE_BIN, "mcp-server-memory")],
        "env": {"MEMORY_FILE_PATH": "@DIR@/memory.jsonl"},
        "calls": [
            ("read_graph", {}),
            ("create_entities", entities("ada", "bob", "\u00e7a")),
            ("create_entities", entities("ada")),
            ("create_relations", relation("ada", "bob")),
            ("add_observations", {"observations": [{"entityName": "ada", "contents": ["counts", "weaves"]}]}),
            ("add_observations", {"observations": [{"entityName": "nobody", "contents": ["x"]}]}),
            ("read_graph", {}),
            ("search_nodes", {"query": "weaves"}),
            ("open_nodes", {"names": ["ada", "nobody"]}),
            ("delete_observations", {"deletions": [{"entityName": "ada", "observations": ["counts"]}]}),
            ("delete_relations", relation("ada", "bob")),
            ("delete_entities", {"entityNames": ["bob", "nobody"]}),
            ("read_graph", {}),
        ],
    },
    "git": {
        "command": [os.path.join(rpc.VENV_BIN, "mcp-server-git")],
        "env": GIT_ENV,
        "prepare": repository,
        "no_roots": True,
        "destructive": ["git_reset"],
        "calls": [
            ("git_status", {"repo_path": "@DIR@"}),
            ("git_status", {"repo_path": "@DIR@/missing"}),
            ("git_diff_unstaged", {"repo_path": "@DIR@"}),
            ("git_diff_staged", {"repo_path": "@DIR@", "context_lines": 0}),
            ("git_diff", {"repo_path": "@DIR@", "target": "side"}),
            ("git_diff", {"repo_path": "@DIR@", "target": "no-such-branch"}),
            ("git_diff", {"repo_path": "@DIR@", "target": "--output=x"}),
            ("git_commit", {"repo_path": "@DIR@", "message": "third"}),
            ("git_add", {"repo_path": "@DIR@", "files": ["new.txt"]}),
            ("git_add", {"repo_path": "@DIR@", "files": ["missing.txt"]}),
            ("git_reset", {"repo_path": "@DIR@"}),
            ("git_log", {"repo_path": "@DIR@", "max_count": 2}),
            ("git_log", {"repo_path": "@DIR@", "start_timestamp": "2030-01-01"}),
            ("git_create_branch", {"repo_path": "@DIR@", "branch_name": "feature", "base_branch": "side"}),
            ("git_create_branch", {"repo_path": "@DIR@", "branch_name": "feature"}),
            ("git_branch", {"repo_path": "@DIR@", "branch_type": "local"}),
            ("git_branch", {"repo_path": "@DIR@", "branch_type": "nonsense"}),
            ("git_show", {"repo_path": "@DIR@", "revision": "side"}),
            ("git_show", {"repo_path": "@DIR@", "revision": "nowhere"}),
            ("git_checkout", {"repo_path": "@DIR@", "branch_name": "nowhere"}),
            ("git_checkout", {"repo_path": "@DIR@", "branch_name": "main"}),
        ],
    },
    "time": {
        "command": [os.path.join(rpc.VENV_BIN, "mcp-server-time"), "--local-timezone", "Etc/UTC"],
        "calls": [
            ("get_current_time", {"timezone": "Europe/London"}),
            ("get_current_time", {"timezone": "Mars/Olympus"}),
            ("convert_time", {"source_timezone": "Asia/Tokyo", "time": "16:30", "target_timezone": "Asia/Kolkata"}),
            ("convert_time", {"source_timezone": "Asia/Tokyo", "time": "99:99", "target_timezone": "Asia/Kolkata"}),
        ],
    },
}

# What may differ between two runs of the same call.
VARYING = [
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:?\d\d)?"), "@TIME@"),
    (re.compile(r"[A-Z][a-z]{2} [A-Z][a-z]{2} \d\d \d{4} \d\d:\d\d:\d\d GMT[+-]\d{4} \([^)]*\)"), "@TIME@"),
    (re.compile(r"\b\d{1,2}:\d\d:\d\d[\s\u202f](AM|PM)"), "@TIME@"),
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"), "@UUID@"),
]


# ---------------------------------------------------------------- comparing
class Number(str):
    """A number as it was spelled."""


class Fields(list):
    """The members of an object, in order."""

    def pop_field(self, name):
        for i, (k, v) in enumerate(self):
            if k == name:
                del self[i]
                return v
        return None

    def field(self, name, default=None):
        return next((v for k, v in self if k == name), default)


def parse(text):
    return json.loads(text, object_pairs_hook=Fields, parse_int=Number, parse_float=Number)


def plain(value):
    if isinstance(value, Fields):
        return {k: plain(v) for k, v in value}
    if isinstance(value, list):
        return [plain(v) for v in value]
    return value


def steady(value):
    """The value with whatever varies from run to run replaced."""
    if isinstance(value, Fields):
        return Fields((k, steady(v)) for k, v in value)
    if isinstance(value, list):
        return [steady(v) for v in value]
    if isinstance(value, str) and not isinstance(value, Number):
        for pattern, stand_in in VARYING:
            value = pattern.sub(stand_in, value)
    return value


def difference(a, b, path="$"):
    """The first place where two parsed values differ, or None."""
    if type(a) is not type(b):
        return "%s: %s became %s" % (path, short(plain(a), 200), short(plain(b), 200))
    if isinstance(a, Fields):
        ka, kb = [k for k, _ in a], [k for k, _ in b]
        lost, new = [k for k in ka if k not in kb], [k for k in kb if k not in ka]
        if lost or new:
            return "%s: lost %s, new %s" % (path, lost, {k: short(plain(b.field(k)), 200) for k in new})
        if ka != kb:
            return "%s: order of keys %s became %s" % (path, ka, kb)
        return next(filter(None, (difference(v, b[i][1], "%s.%s" % (path, k)) for i, (k, v) in enumerate(a))), None)
    if isinstance(a, list):
        if len(a) != len(b):
            return "%s: %d elements became %d: %s" % (path, len(a), len(b), short(plain(b), 200))
        return next(filter(None, (difference(v, b[i], "%s[%d]" % (path, i)) for i, v in enumerate(a))), None)
    return None if a == b else "%s: %s became %s" % (path, short(plain(a), 300), short(plain(b), 300))


def without_envelope(result):
    """Drops what belongs to the connection rather than to the answer."""
    result.pop_field("resultType")
    meta = result.field("_meta")
    if isinstance(meta, Fields):
        meta.pop_field(rpc.META + "serverInfo")
        meta.pop_field("toolcrib/run")
        if not meta:
            result.pop_field("_meta")
    return result


def compare_entry(server, direct, gateway):
    """`direct` holds the entry as the server gives it in each era it speaks; the gateway chooses one for itself."""
    found = [entry_difference(server, entry, Fields(gateway)) for entry in direct]
    check(None in found, found[0])


def entry_difference(server, direct, gateway):
    original = direct.pop_field("name")
    gateway.pop_field("name")
    meta = gateway.field("_meta")
    if isinstance(meta, Fields):
        meta = Fields(meta)
        meta.pop_field("toolcrib/original")
        gateway[:] = [(k, meta if k == "_meta" else v) for k, v in gateway]
        if not meta and direct.field("_meta") is None:
            gateway.pop_field("_meta")
    if direct.field("title") is None and gateway.field("title") in (original, "%s/%s" % (server, original)):
        gateway.pop_field("title")
    return difference(direct, gateway)


def keep_configured(result, names):
    """`get-env` shows the whole environment, which differs by design: only what was configured counts."""
    for block in result.field("content", []):
        try:
            shown = json.loads(block.field("text", ""))
        except ValueError:
            continue
        block[:] = Fields([("type", "text"), ("text", json.dumps({k: shown.get(k) for k in names}))])


# ---------------------------------------------------------------- the two sides
class Side:
    def __init__(self, sandbox, server, label, modern, direct):
        self.server, self.direct = server, direct
        spec = SERVERS[server]
        self.dir = sandbox.path(label)
        os.mkdir(self.dir)
        spec.get("prepare", lambda base: None)(self.dir)
        command = [self.place(c) for c in spec["command"]]
        env = {k: self.place(v) for k, v in spec.get("env", {}).items()}
        capabilities = dict(rpc.CAPABILITIES)
        if spec.get("no_roots"):
            del capabilities["roots"]
        if direct:
            self.peer = Peer(command, env=sandbox.env(**env), cwd=self.dir, capabilities=capabilities,
                             stderr=sandbox.path(label + ".stderr"))
        else:
            entry = {"command": command[0], "args": command[1:], "env": env, "cwd": self.dir}
            policy = {"tier": "full"}
            if modern:
                # Only session-era clients are asked by a form; here exact rules say yes to what declares that it asks.
                policy["rules"] = {"%s/%s" % (server, tool): "allow" for tool in spec.get("destructive", [])}
            self.peer = sandbox.gateway({server: entry}, capabilities=capabilities, policy=policy,
                                        builtins={"enabled": []})
        self.names = {}
        if modern:
            self.peer.modern = True
        else:
            self.peer.initialize("2025-11-25")

    def place(self, value):
        if isinstance(value, str):
            return value.replace("@DIR@", self.dir)
        if isinstance(value, list):
            return [self.place(v) for v in value]
        if isinstance(value, dict):
            return {k: self.place(v) for k, v in value.items()}
        return value

    def unplace(self, line):
        return line.decode("utf-8").replace(self.dir, "@DIR@")

    def list(self):
        """{original name: entry}"""
        _, line = self.peer.wait(self.peer.start("tools/list"))
        answer = parse(self.unplace(line))
        check(answer.field("result") is not None, "tools/list was answered with " + short(plain(answer)))
        found = {}
        for entry in answer.field("result").field("tools"):
            wire = original = entry.field("name")
            if not self.direct:
                original = self.original(entry)
            if original == "read_result" and not self.direct:
                continue
            found[original] = entry
            self.names[original] = wire
        return found

    def original(self, entry):
        wire = entry.field("name")
        told = plain(entry.field("_meta", Fields())).get("toolcrib/original")
        if isinstance(told, dict):
            told = told.get("tool") or told.get("name")
        if isinstance(told, str):
            return told.removeprefix(self.server + "/")
        for tool, _ in SERVERS[self.server]["calls"]:
            folded = re.sub("[-./: ]", "_", tool)
            if wire in (folded if folded.startswith(self.server + "_") else self.server + "_" + folded,):
                return tool
        return wire

    def listed(self, count, timeout=15):
        """The list once it holds that many tools: some servers add theirs a moment after the handshake."""
        end = time.monotonic() + timeout
        while True:
            tools = self.list()
            if len(tools) >= count or time.monotonic() > end:
                return tools
            time.sleep(0.05)

    def call(self, tool, arguments):
        check(tool in self.names, "not listed")
        _, line = self.peer.call(self.names[tool], self.place(arguments))
        return steady(parse(self.unplace(line)))


def compare_call(server, tool, arguments, left, right):
    a, b = left.call(tool, arguments), right.call(tool, arguments)
    error = a.field("error")
    if error is not None and b.field("result") is not None:
        result = plain(b.field("result"))
        kind = result.get("_meta", {}).get("toolcrib/error", {}).get("kind")
        said = "".join(c.get("text", "") for c in result.get("content", []))
        check(result.get("isError") is True and kind == "execution" and error.field("message") in said,
              "the error %s became %s" % (short(plain(error)), short(result)))
        return
    if error is not None:
        check(b.field("error") is not None, "an error became " + short(plain(b)))
        found = difference(error, b.field("error"), "$.error")
    else:
        check(b.field("result") is not None, "a result became " + short(plain(b)))
        a, b = without_envelope(a.field("result")), without_envelope(b.field("result"))
        if tool == "get-env":
            for side in (a, b):
                keep_configured(side, SERVERS[server]["env"])
        found = difference(a, b)
    check(not found, found)


def sound(side):
    check(not side.peer.broken, "lines that are no JSON-RPC: " + short(side.peer.broken))
    code = side.peer.end()
    check(side.direct or code == 0, "exit code %s at the end of input" % code)


def other_era(sandbox, server, modern):
    """What the server lists in the other era, if it speaks both; some spell their schemas differently."""
    side = Side(sandbox, server, "side-c", not modern, True)
    try:
        if not modern and "result" not in side.peer.request("server/discover"):
            return {}
        return side.list()
    finally:
        side.peer.end()


def run_server(report, server, modern, self_test, verbose):
    era = rpc.MODERN if modern else "2025-11-25"
    with Sandbox() as sandbox:
        left = Side(sandbox, server, "side-a", modern, True)
        right = None
        sides = []
        try:
            if modern and "result" not in left.peer.request("server/discover"):
                print("      %s does not speak %s" % (server, era))
                return
            time.sleep(0.3)  # server-everything adds tools after `initialized`, without an end to wait for
            tools = left.list()
            other = other_era(sandbox, server, modern)

            def open_right():
                sides.append(Side(sandbox, server, "side-b", modern, self_test))
                sides.append(sides[0].listed(len(tools)))

            report.run("%s %s opens" % (server, era), open_right)
            if len(sides) < 2:
                return
            right, through = sides

            def same_names():
                lost, new = sorted(set(tools) - set(through)), sorted(set(through) - set(tools))
                check(not lost and not new, "lost %s, new %s" % (lost, new))

            report.run("%s %s lists the same tools" % (server, era), same_names)
            for name in sorted(set(tools) & set(through)):
                report.run("%s %s entry %s" % (server, era, name), compare_entry, server,
                           [e[name] for e in (tools, other) if name in e], through[name])
            untried = set(tools) - {t for t, _ in SERVERS[server]["calls"]}
            if untried:
                report.run("%s %s calls every tool" % (server, era), check, False, "no call for %s" % sorted(untried))
            for number, (tool, arguments) in enumerate(SERVERS[server]["calls"], 1):
                if tool in tools:
                    report.run("%s %s call %d %s" % (server, era, number, tool), compare_call, server, tool,
                               arguments, left, right)
                    if verbose:
                        print("        " + short(arguments, 100))
        finally:
            report.run("%s %s ends cleanly" % (server, era), lambda: [sound(s) for s in (left, right) if s])


def main():
    ap = argparse.ArgumentParser(description="real servers, directly and through the gateway")
    ap.add_argument("--self-test", action="store_true")
    ap.add_argument("--only", default="")
    ap.add_argument("-v", "--verbose", action="store_true")
    args = ap.parse_args()
    if not args.self_test:
        rpc.need_binary()
    report = Report("differential")
    for server in SERVERS:
        if not re.search(args.only, server):
            continue
        if not os.access(SERVERS[server]["command"][0], os.X_OK):
            raise SystemExit("%s is not installed: run tests/e2e/setup" % server)
        for modern in (False, True):
            try:
                run_server(report, server, modern, args.self_test, args.verbose)
            except Failure as e:
                report.run("%s %s" % (server, rpc.MODERN if modern else "2025-11-25"), check, False, str(e))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
