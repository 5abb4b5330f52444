#!/usr/bin/env python3
"""run_cases.py - drives an MCP gateway through failure cases (stdlib only).

    run_cases.py --gateway "path/to/gateway --config {config}" [options] [CASE ...]

Options
    --gateway CMD     command line; {config} is replaced by the rendered config file
    --gateway-json CMD  command line for the cases whose config is an mcp.json; {config} is
                      that file, {toml} a tools.toml with the settings only (default: --gateway)
    --profile FILE    JSON that overrides PROFILE below (names, features, config keys)
    --cases DIR       case folders or files, repeatable (default: open, beside this file)
    --only REGEX      run the cases whose id or class matches
    -j N              cases at once (default 4)
    --keep            keep the work folders and print them
    --json FILE       write the results
    --log FILE        rewrite the case table (LOG.md) with these results
    --table FILE      only write the table, status "untried"
    --validate        only check that every case file is well formed
    -v                print why a case failed, with the last traffic

Every case gets its own folder, its own HOME, a rendered config, and fake
upstreams (fake_upstream.py) that write journals. One verdict per case:
PASS, FAIL or SKIP (the profile lacks a feature the case needs).
The final line is 'N passed, N failed, N skipped'; exit status 1 if any failed.

The format of a case file is described in README.md beside this file.
"""
import argparse
import base64
import concurrent.futures
import copy
import json
import os
import queue
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
FAKE = os.path.normpath(os.path.join(HERE, "..", "..", "fixtures", "fake_upstream.py"))
DEFAULT_DIRS = [os.path.join(HERE, "open")]

# What the runner has to know about the gateway. Override with --profile.
PROFILE = {
    # syntax that render_config() writes: "generic" or "draft" (the draft of the product's config)
    "config_syntax": "generic",
    # how an upstream tool is called when it is listed; tried in this order
    "name_templates": ["{u}__{t}", "{u}_{t}", "{u}.{t}", "{u}/{t}", "{u}:{t}", "{u}-{t}", "{t}"],
    # the tool that searches deferred tools, and its argument
    "search_tool": "tool_search", "search_arg": "query",
    # the tool that calls a deferred tool by name, if there is one (null: call directly)
    "dispatch_tool": None, "dispatch_name_arg": "name", "dispatch_args_arg": "arguments",
    # built-in file tools: logical name -> [exposed name, path argument, text argument]
    "file_tools": {"read": ["read_file", "path", None], "write": ["write_file", "path", "content"]},
    # features the gateway has; a case that needs another one is skipped
    "features": ["toml_config", "json_config", "policy", "approvals", "tool_search", "timeouts", "truncation",
                 "reload", "http", "pinning", "server_requests", "progress"],
}


class CaseFail(Exception):
    pass


class CaseSkip(Exception):
    pass


# =============================================================== config rendering
def toml_value(v):
    if isinstance(v, bool):
        return "true" if v else "false"
    if isinstance(v, (int, float)):
        return repr(v)
    if isinstance(v, str):
        return json.dumps(v, ensure_ascii=False)
    if isinstance(v, list):
        return "[" + ", ".join(toml_value(x) for x in v) + "]"
    if isinstance(v, dict):
        return "{ " + ", ".join("%s = %s" % (toml_key(k), toml_value(x)) for k, x in v.items()) + " }"
    raise ValueError(v)


def toml_key(k):
    return k if re.fullmatch(r"[A-Za-z0-9_-]+", k) else json.dumps(k, ensure_ascii=False)


def render_draft(entries, gateway, rules, default):
    """tools.toml as the product's design draft has it; called by render_config only."""
    def section(name, pairs):
        return ["[%s]" % name] + ["%s = %s" % (toml_key(k), toml_value(v)) for k, v in pairs.items()] + [""] if pairs else []
    out = section("tools", {"defer_mcp_tools": True} if gateway.get("mode") == "search" else {"core": ["*"], "defer_mcp_tools": False})
    table = {"%s/%s" % (r["upstream"], r["tool"]) if r["upstream"] != "*" or r["tool"] != "*" else "*": r["action"] for r in rules}
    if default != "allow":
        table.setdefault("*", default)
    out += section("policy", {"pin": "ask"} if gateway.get("pin_tools") else {})
    out += section("policy.rules", table)
    out += section("approvals", {"timeout_ms": int(gateway["ask_timeout_s"] * 1000)} if "ask_timeout_s" in gateway else {})
    out += section("results", {"max_chars": gateway["result_limit_bytes"] // 4} if "result_limit_bytes" in gateway else {})
    out += section("builtins", {"roots": [gateway["files_root"]]} if "files_root" in gateway else {})
    for name, entry in entries.items():
        e = {("http_headers" if k == "headers" else k): v for k, v in entry.items() if k != "type"}
        if "startup_timeout_s" in gateway:
            e["startup_timeout_sec"] = gateway["startup_timeout_s"]
        if "call_timeout_s" in gateway:
            e["tool_timeout_sec"] = gateway["call_timeout_s"]
        out += section("mcp_servers." + toml_key(name), e)
    return "\n".join(out)


def render_config(entries, gateway, policy, fmt, syntax="generic"):
    """THE one place that knows the gateway's config syntax.

    entries: {upstream name: {command, args, env, cwd, url, headers, type, ...}}
    gateway: abstract settings: mode ("direct": upstream tools are listed,
             "search": they are deferred behind the search tool), call_timeout_s,
             startup_timeout_s, ask_timeout_s, result_limit_bytes, files_root, pin_tools
    policy:  [{"tool": "alpha/danger" | "alpha/*" | "*", "action": "allow|ask|deny"}],
             or {"default": "deny", "rules": [...]}
    fmt:     "toml" or "json".  Returns the text of the config file.
    """
    if isinstance(policy, list):
        policy = {"rules": policy}
    rules = []
    for r in policy.get("rules", []):
        up, _, tool = r["tool"].partition("/")
        rules.append({"upstream": up, "tool": tool or "*", "action": r["action"]})
    if fmt == "toml" and syntax == "draft":
        return render_draft(entries, gateway, rules, policy.get("default", "allow"))
    if fmt == "json" and syntax == "draft":
        return json.dumps({"mcpServers": entries}, indent=2, ensure_ascii=False)
    if fmt == "json":
        doc = {"mcpServers": entries}
        if gateway:
            doc["gateway"] = gateway
        if rules or "default" in policy:
            doc["policy"] = {"default": policy.get("default", "allow"), "rules": rules}
        return json.dumps(doc, indent=2, ensure_ascii=False)
    out = []
    if gateway:
        out.append("[gateway]")
        out += ["%s = %s" % (k, toml_value(v)) for k, v in gateway.items()]
        out.append("")
    if rules or "default" in policy:
        out.append("[policy]")
        out.append("default = %s" % toml_value(policy.get("default", "allow")))
        out.append("")
        for r in rules:
            out.append("[[policy.rules]]")
            out += ["%s = %s" % (k, toml_value(v)) for k, v in r.items()]
            out.append("")
    for name, entry in entries.items():
        out.append("[upstreams.%s]" % toml_key(name))
        out += ["%s = %s" % (toml_key(k), toml_value(v)) for k, v in entry.items()]
        out.append("")
    return "\n".join(out)


# =============================================================== one gateway process
def strict_json(line):
    def bad(c):
        raise ValueError("not JSON: " + c)
    return json.loads(line.decode("utf-8"), parse_constant=bad)


def id_key(rid):
    return json.dumps(rid)


class Gateway:
    def __init__(self, cmd, cwd, env, client):
        self.client = client
        self.err_chunks, self.violations, self.messages, self.trace = [], [], [], []
        self.cond = threading.Condition()
        self.responses, self.sent_ids, self.requests_seen = {}, {}, []
        self.elicit_count = 0
        self.next_id = 100
        self.batch_ok = False
        self.stdout_closed = self.drop_stdout = False
        self.p = subprocess.Popen(cmd, cwd=cwd, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, start_new_session=True, bufsize=0)
        self.started = time.time()
        self.outq = queue.Queue()
        for fn in (self._read_out, self._read_err, self._write):
            threading.Thread(target=fn, daemon=True).start()

    # ---- io
    def _write(self):
        while True:
            data = self.outq.get()
            try:
                if data is None:
                    self.p.stdin.close()
                    return
                view = memoryview(data)
                while view:
                    view = view[self.p.stdin.write(view):]
            except (OSError, ValueError):
                return

    def _read_err(self):
        while True:
            try:
                b = os.read(self.p.stderr.fileno(), 65536)
            except (OSError, ValueError):
                return
            if not b:
                return
            self.err_chunks.append(b)

    def _read_out(self):
        buf = b""
        while True:
            try:
                if self.drop_stdout:
                    self.p.stdout.close()
                    break
                if not select.select([self.p.stdout], [], [], 0.1)[0]:
                    continue
                b = os.read(self.p.stdout.fileno(), 1 << 20)
            except (OSError, ValueError):
                break
            if not b:
                break
            buf += b
            if b"\n" not in b:
                continue
            *lines, buf = buf.split(b"\n")
            for line in lines:
                self._line(line)
        if buf.strip():
            self._line(buf)
        with self.cond:
            self.stdout_closed = True
            self.cond.notify_all()

    def _line(self, line):
        self.trace.append(("<", line[:600]))
        if not line.strip():
            return
        try:
            msg = strict_json(line)
        except Exception as e:
            self.violations.append("stdout line is not strict JSON (%s): %r" % (str(e)[:80], line[:160]))
            return
        items = msg if isinstance(msg, list) else [msg]
        if isinstance(msg, list) and not self.batch_ok:
            self.violations.append("array on stdout though no batch was sent")
        for m in items:
            if not isinstance(m, dict) or m.get("jsonrpc") != "2.0":
                self.violations.append("stdout message is not JSON-RPC 2.0: %r" % line[:160])
                continue
            self._message(m, line)

    def _message(self, m, line):
        now = time.time()
        if "method" in m and "id" in m:
            self.requests_seen.append(m)
            threading.Thread(target=self._serve, args=(m,), daemon=True).start()
        elif "method" in m:
            pass
        elif "id" in m:
            key = id_key(m["id"])
            with self.cond:
                if m["id"] is None:
                    pass
                elif key not in self.sent_ids:
                    self.violations.append("response to an id that was never sent: %r" % line[:160])
                elif key in self.responses and self.sent_ids[key] <= len(self.responses[key]):
                    self.violations.append("second response to id %s" % key)
                self.responses.setdefault(key, []).append((now, m, line))
        else:
            self.violations.append("message without method and id: %r" % line[:160])
        with self.cond:
            self.messages.append((now, m, line))
            self.cond.notify_all()

    def send_bytes(self, data):
        self.trace.append((">", data[:600]))
        self.outq.put(data)

    def send(self, msg):
        self.send_bytes(json.dumps(msg, ensure_ascii=True).encode() + b"\n")

    def request(self, method, params=None, rid=None, has_id=False):
        if not has_id:
            rid = self.next_id
            self.next_id += 1
        msg = {"jsonrpc": "2.0", "id": rid, "method": method}
        if params is not None:
            msg["params"] = params
        with self.cond:
            self.sent_ids[id_key(rid)] = self.sent_ids.get(id_key(rid), 0) + 1
        t0 = time.time()
        self.send(msg)
        return {"id": rid, "sent": t0, "nth": self.sent_ids[id_key(rid)]}

    def wait_response(self, handle, timeout):
        key, nth = id_key(handle["id"]), handle["nth"]
        end = time.time() + timeout
        with self.cond:
            while True:
                got = self.responses.get(key, [])
                if len(got) >= nth:
                    t, m, line = got[nth - 1]
                    return {"response": m, "raw": line, "elapsed": t - handle["sent"], "at": t}
                if self.stdout_closed:
                    return None
                left = end - time.time()
                if left <= 0:
                    return None
                self.cond.wait(min(left, 0.5))

    def wait_message(self, pred, timeout, since=0):
        end = time.time() + timeout
        with self.cond:
            while True:
                for t, m, line in self.messages[since:]:
                    if pred(m):
                        return m
                left = end - time.time()
                if left <= 0 or self.stdout_closed:
                    return None
                self.cond.wait(min(left, 0.5))

    # ---- answers to the gateway's requests
    def _serve(self, m):
        method, params = m["method"], m.get("params") or {}
        caps = self.client.get("capabilities", {})
        needs = {"roots/list": "roots", "sampling/createMessage": "sampling", "elicitation/create": "elicitation"}
        if method in needs and needs[method] not in caps:
            self.violations.append("%s sent though the client did not declare %s" % (method, needs[method]))
        if method == "ping":
            return self.send({"jsonrpc": "2.0", "id": m["id"], "result": {}})
        if method == "roots/list" and "roots" in caps:
            if self.client.get("roots") == "silent":
                return None
            return self.send({"jsonrpc": "2.0", "id": m["id"], "result": {"roots": self.client.get("roots", [])}})
        if method == "sampling/createMessage" and "sampling" in caps:
            beh = self.client.get("sampling", {})
            time.sleep(beh.get("delay_s", 0))
            ask = json.dumps(params.get("messages"))
            return self.send({"jsonrpc": "2.0", "id": m["id"], "result": {
                "role": "assistant", "model": "m", "content": {"type": "text", "text": "sampled:" + ask}}})
        if method == "elicitation/create" and "elicitation" in caps:
            return self._elicit(m, params)
        return self.send({"jsonrpc": "2.0", "id": m["id"], "error": {"code": -32601, "message": "Method not found"}})

    def _elicit(self, m, params):
        plan = self.client.get("elicitation", ["decline"])
        nth = self.elicit_count
        self.elicit_count += 1
        beh = None
        for b in plan:
            if isinstance(b, dict) and "match" in b and re.search(b["match"], json.dumps(params)):
                beh = b
                break
        if beh is None:
            plain = [b for b in plan if not (isinstance(b, dict) and "match" in b)] or ["decline"]
            beh = plain[min(nth, len(plain) - 1)]
        if isinstance(beh, str):
            beh = {"action": beh}
        time.sleep(beh.get("delay_s", 0))
        if beh.get("silent"):
            return
        if beh.get("error"):
            return self.send({"jsonrpc": "2.0", "id": m["id"], "error": beh["error"]})
        action = beh["action"]
        result = {"action": "accept" if action.startswith("accept") else action}
        if action.startswith("accept"):
            result["content"] = self._fill(params.get("requestedSchema") or {}, action != "accept_no")
        self.send({"jsonrpc": "2.0", "id": m["id"], "result": result})

    def _fill(self, schema, yes):
        content, expressed = {}, yes
        for key, prop in (schema.get("properties") or {}).items():
            values = prop.get("enum") or [x.get("const") for x in prop.get("oneOf", []) if isinstance(x, dict)]
            if prop.get("type") == "boolean":
                negative = re.search(r"deny|reject|block|refuse", key, re.I)
                content[key] = yes != bool(negative)
                expressed = True
            elif values:
                no = re.compile(r"deny|reject|no\b|refuse|block|decline|never", re.I)
                pick = [v for v in values if bool(no.search(str(v))) != yes]
                if pick:
                    content[key] = pick[0]
                    expressed = True
                else:
                    content[key] = values[0]
            elif prop.get("type") in ("integer", "number"):
                content[key] = prop.get("minimum", 0)
            else:
                content[key] = "yes" if yes else "no"
        if not expressed:
            self.violations.append("SKIP: the approval form cannot say no")
        return content

    # ---- end
    def stderr_text(self):
        return b"".join(self.err_chunks).decode("utf-8", "replace")

    def alive(self):
        return self.p.poll() is None

    def wait_exit(self, timeout):
        try:
            return self.p.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def shut(self):
        self.outq.put(None)
        if self.wait_exit(2.5) is None:
            self.p.terminate()
            if self.wait_exit(1.5) is None:
                try:
                    os.killpg(self.p.pid, signal.SIGKILL)
                except OSError:
                    pass
                self.wait_exit(2)
        for f in (self.p.stdout, self.p.stderr):
            try:
                f.close()
            except OSError:
                pass


# =============================================================== one case
def norm(s):
    return re.sub(r"[^a-z0-9]+", "_", s.lower()).strip("_")


def dig(value, path):
    cur = value
    for part in [p for p in path.split(".") if p != ""]:
        if isinstance(cur, list):
            cur = cur[int(part)]
        elif isinstance(cur, dict):
            cur = cur[part]
        else:
            raise KeyError(part)
    return cur


def proc_state(pid):
    try:
        with open("/proc/%d/stat" % pid) as f:
            s = f.read()
        rest = s[s.rindex(")") + 2:].split()
        return rest[0], int(rest[1])
    except (OSError, ValueError, IndexError):
        return None, None


class Run:
    def __init__(self, case, args, profile):
        self.case, self.args, self.profile = case, args, profile
        self.dir = tempfile.mkdtemp(prefix="case-%s-" % case["id"])
        self.saved, self.tools, self.gw, self.https = {}, [], None, {}
        self.upstreams = copy.deepcopy(case.get("upstreams", {}))
        self.policy = copy.deepcopy(case.get("policy", []))
        self.gateway_settings = dict({"mode": "direct"}, **case.get("gateway", {}))
        self.last_skip = None

    # ---- placeholders and files
    def sub(self, v):
        if isinstance(v, str):
            v = v.replace("@DIR@", self.dir).replace("@PY@", sys.executable).replace("@FAKE@", FAKE)

            def entry(mm):
                return json.dumps(self.entry(mm.group(1)), ensure_ascii=False)
            v = re.sub(r"@ENTRY:([^@]+)@", entry, v)
            v = re.sub(r"@ARGS:([^@]+)@", lambda mm: json.dumps(self.entry(mm.group(1))["args"])[1:-1], v)
            v = re.sub(r"@URL:([^@]+)@", lambda mm: self.entry(mm.group(1))["url"], v)
            v = re.sub(r"@NAME:([^@]+)@", lambda mm: self.guess(mm.group(1)), v)
            return re.sub(r"@BIG:(\d+)@", lambda mm: "x" * int(mm.group(1)), v)
        if isinstance(v, list):
            return [self.sub(x) for x in v]
        if isinstance(v, dict):
            return {self.sub(k): self.sub(x) for k, x in v.items()}
        return v

    def safe(self, name):
        return re.sub(r"[^A-Za-z0-9_-]", lambda m: "%%%02x" % ord(m.group()), name)

    def path(self, name, ext):
        return os.path.join(self.dir, self.safe(name) + ext)

    def journal_path(self, name):
        return self.path(name, ".journal")

    def write_file(self, rel, content):
        p = self.sub(rel)
        p = p if os.path.isabs(p) else os.path.join(self.dir, p)
        os.makedirs(os.path.dirname(p), exist_ok=True)
        if isinstance(content, dict) and "symlink" in content:
            os.symlink(self.sub(content["symlink"]), p)
        elif isinstance(content, dict) and "fifo" in content:
            os.mkfifo(p)
        elif isinstance(content, dict) and "b64" in content:
            with open(p, "wb") as f:
                f.write(base64.b64decode(content["b64"]))
        elif isinstance(content, dict) and "exec" in content:
            with open(p, "w") as f:
                f.write(self.sub(content["exec"]))
            os.chmod(p, 0o755)
        else:
            with open(p, "w", encoding="utf-8") as f:
                f.write(self.sub(content))

    def write_scenario(self, name):
        with open(self.path(name, ".scenario.json"), "w", encoding="utf-8") as f:
            json.dump(self.sub(self.upstreams[name].get("scenario", {})), f)

    def entry(self, name):
        """The config entry of one upstream, as a plain dict."""
        up = self.upstreams[name]
        if "entry" in up:
            base = self.sub(up["entry"])
            return base
        if up.get("transport") == "http":
            out = {"url": self.sub(up["url"]) if "url" in up else "http://127.0.0.1:%d/mcp" % self.https[name][1]}
            out.update(self.sub(up.get("fields", {})))
            return out
        args = [FAKE, "--name", name, "--scenario", self.path(name, ".scenario.json"),
                "--journal", self.journal_path(name)]
        if up.get("wrapper"):
            args.append("--wrapper")
        args += self.sub(up.get("args", []))
        out = {"command": self.sub(up.get("command", sys.executable)), "args": args}
        for key in ("env", "cwd"):
            if key in up:
                out[key] = self.sub(up[key])
        out.update(self.sub(up.get("fields", {})))
        return out

    def start_http(self, name):
        pf = self.path(name, ".port")
        old = self.https.get(name)
        if os.path.exists(pf):
            os.unlink(pf)
        port = old[1] if old else self.upstreams[name].get("port", 0)
        cmd = [sys.executable, FAKE, "--name", name, "--scenario", self.path(name, ".scenario.json"),
               "--journal", self.journal_path(name), "--http", str(port), "--port-file", pf]
        p = subprocess.Popen(cmd, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.time() + 10
        while not os.path.exists(pf):
            if time.time() > end:
                raise CaseFail("the fake HTTP upstream did not start")
            time.sleep(0.02)
        with open(pf) as f:
            self.https[name] = (p, int(f.read()))

    def stop_http(self, name):
        p, port = self.https[name]
        p.terminate()
        p.wait(5)
        self.https[name] = (None, port)

    def render(self):
        fmt = self.case.get("config_format", "toml")
        names = [n for n in self.upstreams if not self.upstreams[n].get("unlisted")]
        if "config_text" in self.case:
            return self.sub(self.case["config_text"])
        return render_config({n: self.entry(n) for n in names}, self.sub(self.gateway_settings), self.policy, fmt,
                             self.profile["config_syntax"])

    def config_path(self):
        fmt = self.case.get("config_format", "toml")
        return os.path.join(self.dir, self.case.get("config_name", "tools.toml" if fmt == "toml" else "mcp.json"))

    def prepare(self):
        os.makedirs(os.path.join(self.dir, "home"))
        for rel, content in self.case.get("files", {}).items():
            self.write_file(rel, content)
        for name, up in self.upstreams.items():
            if up.get("transport") == "http" and "url" not in up:
                self.write_scenario(name)
                self.start_http(name)
                if up.get("late"):         # only to reserve a port
                    self.stop_http(name)
        for name in self.upstreams:
            self.write_scenario(name)
        data = self.render().encode("utf-8")
        if self.case.get("config_bom"):
            data = b"\xef\xbb\xbf" + data
        with open(self.config_path(), "wb") as f:
            f.write(data)

    def launch(self):
        template = self.args.gateway
        if self.case.get("config_format") == "json" and self.args.gateway_json:
            template = self.args.gateway_json
            with open(os.path.join(self.dir, "settings.toml"), "w", encoding="utf-8") as f:
                f.write(render_config({}, self.sub(self.gateway_settings), self.policy, "toml", self.profile["config_syntax"]))
        cmd = [c.replace("{config}", self.config_path()).replace("{toml}", os.path.join(self.dir, "settings.toml"))
               for c in shlex.split(template)]
        # the gateway runs in the case's folder: make relative paths of the command absolute
        cmd = [os.path.abspath(c) if i < 4 and os.path.isfile(c) else c for i, c in enumerate(cmd)]
        env = {k: v for k, v in os.environ.items() if not k.startswith(("CASE_",))}
        env["HOME"] = os.path.join(self.dir, "home")
        env["XDG_CONFIG_HOME"] = os.path.join(self.dir, "home", ".config")
        env["XDG_STATE_HOME"] = os.path.join(self.dir, "home", ".state")
        for k, v in self.case.get("env", {}).items():
            env[k] = self.sub(v)
        client = dict({"capabilities": {}, "protocolVersion": "2025-06-18"}, **self.case.get("client", {}))
        self.gw = Gateway(cmd, self.dir, env, client)

    def handshake(self, timeout=10):
        c = self.gw.client
        h = self.gw.request("initialize", {"protocolVersion": c["protocolVersion"], "capabilities": c["capabilities"],
                                           "clientInfo": {"name": "case-runner", "version": "1"}})
        r = self.gw.wait_response(h, timeout)
        self.saved["init"] = self.result(h, r)
        if r is None or "result" not in r["response"]:
            raise CaseFail("initialize was not answered: %s" % (r and r["response"]))
        self.gw.send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def result(self, handle, r):
        out = {"handle": handle, "answered": r is not None}
        if r is not None:
            out.update(raw=r["raw"], elapsed=r["elapsed"], at=r["at"])
            resp = r["response"]
            if "result" in resp:
                out["result"] = resp["result"]
            if "error" in resp:
                out["error"] = resp["error"]
        return out

    # ---- names
    def list_tools(self, timeout=10, method="tools/list", key="tools"):
        tools, cursor, pages = [], None, 0
        while True:
            h = self.gw.request(method, {"cursor": cursor} if cursor is not None else {})
            r = self.gw.wait_response(h, timeout)
            if r is None:
                raise CaseFail("tools/list was not answered within %gs" % timeout)
            if "result" not in r["response"]:
                raise CaseFail("tools/list failed: %s" % r["response"].get("error"))
            res = r["response"]["result"]
            if not isinstance(res, dict) or not isinstance(res.get(key), list):
                raise CaseFail("tools/list result has no array: %s" % str(res)[:200])
            tools += res[key]
            cursor = res.get("nextCursor")
            pages += 1
            if not cursor:
                return tools
            if pages > 60:
                raise CaseFail("the gateway's own tools/list never ends")

    def resolve(self, ref, must=True):
        """ref: "upstream/tool" or "ref:TOKEN" (a token in the description)."""
        if ref.startswith("ref:"):
            for t in self.tools:
                if ref[4:] in str(t.get("description", "")):
                    return t["name"]
            if must:
                raise CaseFail("no listed tool has %r in its description" % ref[4:])
            return None
        u, _, t = ref.partition("/")
        names = [x.get("name") for x in self.tools if isinstance(x, dict)]
        # other upstreams may be listed too: a bare tool name is the last resort
        for tpl in self.profile["name_templates"]:
            for uu in dict.fromkeys([u, re.sub(r"[^A-Za-z0-9_-]", "_", u)]):
                for tt in dict.fromkeys([t, re.sub(r"[^A-Za-z0-9_-]", "_", t)]):
                    cand = tpl.format(u=uu, t=tt)
                    if cand in names:
                        return cand
        hits = [n for n in names if norm(str(n)) == norm(u) + "_" + norm(t)]
        if len(hits) == 1:
            return hits[0]
        if must:
            raise CaseFail("tool %s is not listed; listed: %s" % (ref, ", ".join(map(str, names))[:400]))
        return None

    def guess(self, ref):
        """Exposed name of a tool that is not listed (deferred or denied)."""
        got = self.resolve(ref, must=False)
        if got:
            return got
        u, _, t = ref.partition("/")
        return self.profile["name_templates"][0].format(u=u, t=t)

    # ---- steps
    def run(self):
        missing = [n for n in self.case.get("needs", []) if n not in self.profile["features"]]
        if missing:
            raise CaseSkip("needs " + ", ".join(missing))
        self.prepare()
        if not self.case.get("manual"):
            self.launch()
            self.handshake(self.case.get("handshake_timeout", 10))
        for i, step in enumerate(self.case["steps"]):
            self.step_no = i
            self.step(step)
        self.invariants()

    def invariants(self):
        skip = self.case.get("skip_invariants", [])
        if skip is True or self.gw is None:
            return
        for v in self.gw.violations:
            if v.startswith("SKIP:"):
                raise CaseSkip(v[5:].strip())
            if not any(s in v for s in skip):
                raise CaseFail("invariant: " + v)

    def step(self, s):
        fn = getattr(self, "op_" + s["op"], None)
        if fn is None:
            raise ValueError("unknown op " + s["op"])
        return fn(s)

    def op_launch(self, s):
        self.launch()

    def op_handshake(self, s):
        self.handshake(s.get("timeout", 10))

    def op_ready(self, s):
        end = time.time() + s.get("timeout", 10)
        while True:
            self.tools = self.list_tools()
            missing = [r for r in s["has"] if self.resolve(r, must=False) is None]
            if not missing:
                return
            if time.time() > end:
                raise CaseFail("not listed in time: %s (listed: %s)" % (
                    missing, ", ".join(str(t.get("name")) for t in self.tools)[:300]))
            time.sleep(0.2)

    def op_list(self, s):
        self.tools = self.list_tools(s.get("timeout", 10))
        self.saved[s.get("save", "L")] = self.tools

    def call_params(self, s):
        args = self.sub(s.get("args", {}))
        if "name" in s:
            name = self.sub(s["name"])
        elif "guess" in s:
            name = self.guess(s["guess"])
        else:
            name = self.resolve(s["tool"], must=self.gateway_settings["mode"] == "direct") or self.guess(s["tool"])
        listed = [t.get("name") for t in self.tools]
        if self.profile["dispatch_tool"] and name not in listed and not s.get("direct"):
            params = {"name": self.profile["dispatch_tool"], "arguments": {
                self.profile["dispatch_name_arg"]: name, self.profile["dispatch_args_arg"]: args}}
        else:
            params = {"name": name, "arguments": args}
            if s.get("no_args"):
                del params["arguments"]
        if "meta" in s:
            params["_meta"] = s["meta"]
        return params

    def finish(self, s, h):
        if s.get("wait", True):
            r = self.gw.wait_response(h, s.get("timeout", 10))
            res = self.result(h, r)
            if r is None and not s.get("may_hang"):
                self.saved[s.get("save", "r")] = res
                raise CaseFail("step %d: no answer within %gs" % (self.step_no, s.get("timeout", 10)))
        else:
            res = {"handle": h, "answered": False}
        self.saved[s.get("save", "r")] = res

    def op_call(self, s):
        params = self.call_params(s)
        h = self.gw.request("tools/call", params, s.get("id"), "id" in s)
        self.finish(s, h)

    def op_rpc(self, s):
        h = self.gw.request(s["method"], self.sub(s.get("params")), s.get("id"), "id" in s)
        self.finish(s, h)

    def op_await(self, s):
        for name in s["save"] if isinstance(s["save"], list) else [s["save"]]:
            h = self.saved[name]["handle"]
            r = self.gw.wait_response(h, s.get("timeout", 10))
            self.saved[name] = self.result(h, r)
            if r is None and not s.get("may_hang"):
                raise CaseFail("step %d: %s was not answered within %gs" % (self.step_no, name, s.get("timeout", 10)))

    def op_parallel(self, s):
        calls = s["calls"]
        if "times" in s:
            calls = [json.loads(json.dumps(c).replace('"@I@"', str(i)).replace("@I@", str(i)))
                     for i in range(s["times"]) for c in calls]
        handles = []
        for c in calls:
            handles.append(self.gw.request("tools/call", self.call_params(c)))
        end = time.time() + s.get("timeout", 15)
        out = []
        for h in handles:
            out.append(self.result(h, self.gw.wait_response(h, max(0.01, end - time.time()))))
        self.saved[s.get("save", "P")] = out
        lost = sum(not o["answered"] for o in out)
        if lost and not s.get("may_hang"):
            raise CaseFail("%d of %d parallel calls were not answered" % (lost, len(out)))
        for c, o in zip(calls, out):
            if s.get("echo"):
                self.check_response(o, {"echo_args": c.get("args", {})}, "parallel")

    def op_search(self, s):
        args = {self.profile["search_arg"]: self.sub(s["query"])} if "query" in s else self.sub(s.get("args", {}))
        end = time.time() + s.get("until", 0)
        while True:
            h = self.gw.request("tools/call", {"name": self.profile["search_tool"], "arguments": args})
            self.finish(s, h)
            if "until" not in s:
                return
            text = self.text_of(self.saved[s.get("save", "r")])
            if all(t in text for t in s.get("until_has", [])) and not any(t in text for t in s.get("until_lacks", [])):
                return
            if time.time() > end:
                raise CaseFail("search %r: after %gs still %r" % (s.get("query"), s["until"], text[:200]))
            time.sleep(0.2)

    def op_file(self, s):
        exposed, path_arg, text_arg = self.profile["file_tools"][s["tool"]]
        args = {path_arg: self.sub(s["path"])}
        if text_arg:
            args[text_arg] = s.get("text", "x")
        h = self.gw.request("tools/call", {"name": exposed, "arguments": args})
        self.finish(s, h)

    def op_notify(self, s):
        msg = {"jsonrpc": "2.0", "method": s["method"]}
        if "params" in s:
            msg["params"] = self.sub(s["params"])
        self.gw.send(msg)

    def op_cancel(self, s):
        self.gw.send({"jsonrpc": "2.0", "method": "notifications/cancelled",
                      "params": {"requestId": self.saved[s["call"]]["handle"]["id"], "reason": "user"}})

    def op_raw(self, s):
        data = base64.b64decode(s["b64"]) if "b64" in s else self.sub(s["text"]).encode("utf-8")
        for rid in s.get("ids", []):
            with self.gw.cond:
                self.gw.sent_ids[id_key(rid)] = self.gw.sent_ids.get(id_key(rid), 0) + 1
            self.saved["id:" + id_key(rid)] = {"handle": {"id": rid, "sent": time.time(),
                                                          "nth": self.gw.sent_ids[id_key(rid)]}}
        if s.get("batch"):
            self.gw.batch_ok = True
        for _ in range(s.get("repeat", 1)):
            self.gw.send_bytes(data)

    def op_sleep(self, s):
        time.sleep(s["s"])

    def op_wait_notification(self, s):
        m = self.gw.wait_message(lambda m: m.get("method") == s["method"] and "id" not in m, s.get("timeout", 5))
        if m is None and not s.get("optional"):
            raise CaseFail("no %s within %gs" % (s["method"], s.get("timeout", 5)))

    def op_wait_journal(self, s):
        end = time.time() + s.get("timeout", 5)
        while time.time() < end:
            if self.count_journal(s) >= s.get("min", 1):
                return
            time.sleep(0.05)
        raise CaseFail("the upstream did not see it in time: %s" % {k: v for k, v in s.items() if k != "op"})

    def op_close_stdin(self, s):
        self.gw.outq.put(None)

    def op_close_stdout(self, s):
        self.gw.drop_stdout = True
        time.sleep(0.4)

    def op_signal(self, s):
        self.gw.p.send_signal(getattr(signal, "SIG" + s["name"]))

    def op_expect_exit(self, s):
        code = self.gw.wait_exit(s.get("within", 5))
        if code is None:
            raise CaseFail("the gateway did not exit within %gs" % s.get("within", 5))
        if "code" in s and code not in s["code"]:
            raise CaseFail("exit status %s, expected one of %s" % (code, s["code"]))

    def op_restart(self, s):
        self.gw.shut()
        self.invariants()
        self.launch()
        self.handshake()

    def op_write_file(self, s):
        self.write_file(s["path"], s.get("content", ""))

    def op_set_scenario(self, s):
        self.upstreams[s["upstream"]]["scenario"] = s["scenario"]
        self.write_scenario(s["upstream"])

    def op_start_http(self, s):
        self.start_http(s["upstream"])

    def op_stop_http(self, s):
        self.stop_http(s["upstream"])

    def op_set_config(self, s):
        for name, up in s.get("upstreams", {}).items():
            if up is None:
                self.upstreams.pop(name)
            else:
                self.upstreams[name] = up
                self.write_scenario(name)
        if "policy" in s:
            self.policy = s["policy"]
        text = self.sub(s["text"]) if "text" in s else self.render()
        path = self.config_path()
        how = s.get("how", "atomic")
        if how == "atomic":
            with open(path + ".new", "w", encoding="utf-8") as f:
                f.write(text)
            os.replace(path + ".new", path)
        elif how == "in_place":
            with open(path, "w", encoding="utf-8") as f:
                f.write(text)
        elif how == "slow":
            with open(path, "w", encoding="utf-8") as f:
                f.write(text[:len(text) // 2])
                f.flush()
                time.sleep(s.get("pause", 0.7))
                f.write(text[len(text) // 2:])

    def op_any_of(self, s):
        errors = []
        for branch in s["branches"]:
            try:
                for st in branch:
                    self.step(st)
                return
            except CaseFail as e:
                errors.append(str(e))
        raise CaseFail("none of the accepted outcomes: " + " | ".join(errors))

    # ---- assertions
    def text_of(self, res):
        if "error" in res:
            return json.dumps(res["error"], ensure_ascii=False)
        parts = []
        result = res.get("result")
        content = result.get("content") if isinstance(result, dict) else None
        for c in content if isinstance(content, list) else []:
            if isinstance(c, dict) and isinstance(c.get("text"), str):
                parts.append(c["text"])
        return "\n".join(parts)

    def check_response(self, res, s, what):
        def fail(msg):
            shown = res.get("raw", b"")[:300]
            raise CaseFail("step %d (%s): %s; got %r" % (self.step_no, what, msg, shown))
        if s.get("unanswered"):
            h = res["handle"]
            if self.gw.wait_response(h, 0.05):
                fail("an answer came though none is due")
            return
        if not res.get("answered"):
            fail("no answer")
        result = res.get("result")
        is_error = "error" in res or (isinstance(result, dict) and result.get("isError") is True)
        if s.get("ok") and is_error:
            fail("should succeed")
        if s.get("fails") and not is_error:
            fail("should be refused or fail")
        if s.get("tool_error") and not (isinstance(result, dict) and result.get("isError") is True):
            fail("should be a result with isError")
        if s.get("rpc_error") and "error" not in res:
            fail("should be a JSON-RPC error")
        if "error_code" in s and (res.get("error") or {}).get("code") not in s["error_code"]:
            fail("error code should be one of %s" % s["error_code"])
        text = self.text_of(res)
        for want in s.get("text_contains", []):
            if self.sub(want) not in text:
                fail("text should contain %r" % want)
        for bad in s.get("text_not_contains", []):
            if self.sub(bad) in text:
                fail("text should not contain %r" % bad)
        if "text_matches" in s and not re.search(s["text_matches"], text, re.S):
            fail("text should match %r" % s["text_matches"])
        if "text_not_matches" in s and re.search(s["text_not_matches"], text, re.S):
            fail("text should not match %r" % s["text_not_matches"])
        if "text_max_bytes" in s and len(text.encode("utf-8", "replace")) > s["text_max_bytes"]:
            fail("text has %d bytes, at most %d" % (len(text.encode("utf-8", "replace")), s["text_max_bytes"]))
        if "text_equals" in s and text != self.sub(s["text_equals"]):
            fail("text should equal %r" % s["text_equals"])
        for want in s.get("raw_contains", []):
            if want.encode() not in res["raw"]:
                fail("the reply line should contain %r" % want)
        for bad in s.get("raw_not_contains", []):
            if bad.encode() in res["raw"]:
                fail("the reply line should not contain %r" % bad)
        if "raw_max_bytes" in s and len(res["raw"]) > s["raw_max_bytes"]:
            fail("the reply line has %d bytes" % len(res["raw"]))
        if "within" in s and res["elapsed"] > s["within"]:
            fail("took %.1fs, at most %gs" % (res["elapsed"], s["within"]))
        if "echo_args" in s:
            try:
                got = json.loads(text)["arguments"]
            except Exception:
                return fail("not the echo result")
            if got != self.sub(s["echo_args"]):
                fail("arguments arrived as %s" % str(got)[:200])
        if "answers" in s:
            try:
                got = json.loads(text)["answers"]
            except Exception:
                return fail("no answers to the upstream's requests in the result")
            for i, want in enumerate(s["answers"]):
                have = json.dumps(got[i])
                if want == "error" and "error" not in got[i]:
                    fail("answer %d should be an error: %s" % (i, have))
                elif want == "result" and "result" not in got[i]:
                    fail("answer %d should be a result: %s" % (i, have))
                elif want == "any" and ("timeout" in got[i]):
                    fail("request %d of the upstream was never answered" % i)
                elif want not in ("error", "result", "any") and want not in have:
                    fail("answer %d should contain %r: %s" % (i, want, have))
        if "path" in s:
            self.check_path(result if "result" in res else res, s, fail)
        for p in s.get("paths", []):
            self.check_path(result if "result" in res else res, p, fail)

    def check_path(self, base, s, fail):
        try:
            v = dig(base, s["path"])
            found = True
        except (KeyError, IndexError, ValueError, TypeError):
            v, found = None, False
        if s.get("absent"):
            if found:
                fail("%s should be absent" % s["path"])
            return
        if not found:
            fail("%s is missing" % s["path"])
        if "equals" in s and (v != self.sub(s["equals"]) or type(v) is not type(s["equals"])):
            fail("%s is %r, expected %r" % (s["path"], str(v)[:200], str(s["equals"])[:200]))
        if "contains" in s and s["contains"] not in v:
            fail("%s lacks %r" % (s["path"], s["contains"]))
        if "type" in s:
            types = {"array": list, "object": dict, "string": str, "number": (int, float), "boolean": bool}
            if not isinstance(v, types[s["type"]]):
                fail("%s should be of type %s" % (s["path"], s["type"]))
        if "len" in s and len(v) != s["len"]:
            fail("%s has %d items, expected %d" % (s["path"], len(v), s["len"]))
        if "one_of" in s and v not in s["one_of"]:
            fail("%s is %r, expected one of %s" % (s["path"], v, s["one_of"]))

    def check_tools(self, s):
        tools = self.saved[s["tools"]]

        def fail(msg):
            raise CaseFail("step %d (tools/list): %s" % (self.step_no, msg))
        names = [t.get("name") for t in tools]
        if s.get("unique") and len(set(names)) != len(names):
            fail("names are not unique: %s" % sorted(n for n in names if names.count(n) > 1)[:6])
        if s.get("safe_names"):
            for n in names:
                if not isinstance(n, str) or not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", n):
                    fail("name %r is not accepted by model APIs" % n)
        for ref in s.get("has", []):
            self.tools = tools
            if self.resolve(ref, must=False) is None:
                fail("%s is missing; listed: %s" % (ref, ", ".join(map(str, names))[:300]))
        for ref in s.get("lacks", []):
            self.tools = tools
            if self.resolve(ref, must=False) is not None:
                fail("%s should not be listed" % ref)
        for bad in s.get("lacks_text", []):
            if bad in json.dumps(tools, ensure_ascii=False):
                fail("the list should not contain %r" % bad)
        if "max_bytes" in s:
            size = len(json.dumps(tools, ensure_ascii=False).encode())
            if size > s["max_bytes"]:
                fail("%d bytes, at most %d" % (size, s["max_bytes"]))
        if s.get("all_object_roots"):
            for t in tools:
                sch = t.get("inputSchema")
                if not isinstance(sch, dict) or sch.get("type") != "object":
                    fail("%s has inputSchema %s" % (t.get("name"), str(sch)[:80]))
        if "count" in s and len(tools) != s["count"]:
            fail("%d tools, expected %d" % (len(tools), s["count"]))
        if "not_matches" in s:
            m = re.search(s["not_matches"], json.dumps(tools, ensure_ascii=False) if not s.get("values_only")
                          else "\n".join(strings_in(tools)))
            if m:
                fail("the list matches %r: %r" % (s["not_matches"], m.group()[:60]))
        for ref, checks in (s.get("schema") or {}).items():
            self.tools = tools
            name = self.resolve(ref, must=False)
            if name is None:
                fail("%s is missing" % ref)
            tool = [t for t in tools if t["name"] == name][0]
            schema = tool.get("inputSchema")
            for c in checks:
                self.check_schema(tool, schema, c, fail, ref)

    def check_schema(self, tool, schema, c, fail, ref):
        if c == "object_root":
            if not isinstance(schema, dict) or schema.get("type") != "object":
                fail("%s: inputSchema must be an object with type \"object\": %s" % (ref, str(schema)[:160]))
        elif c == "no_root_combinators":
            bad = [k for k in ("anyOf", "oneOf", "allOf", "not", "if", "enum") if k in (schema or {})]
            if bad:
                fail("%s: inputSchema has %s at the root, which model APIs refuse" % (ref, bad))
        elif c == "refs_resolve":
            for where in ("inputSchema", "outputSchema"):
                doc = tool.get(where)
                for r in refs_in(doc):
                    if not r.startswith("#"):
                        fail("%s: %s points outside: %s" % (ref, where, r))
                    try:
                        dig_pointer(doc, r[1:])
                    except Exception:
                        fail("%s: %s has a dangling reference %s" % (ref, where, r))
        elif c == "no_external_refs":
            for r in refs_in(schema):
                if not r.startswith("#"):
                    fail("%s: reference %s points outside" % (ref, r))
        elif c == "safe_keys":
            for k in (schema or {}).get("properties", {}):
                if not re.fullmatch(r"[a-zA-Z0-9_.-]{1,64}", k):
                    fail("%s: property key %r is refused by model APIs" % (ref, k))
        elif c == "output_object":
            out = tool.get("outputSchema")
            if out is not None and not (isinstance(out, dict) and out.get("type") == "object"):
                fail("%s: outputSchema must be left out or be of type object" % ref)
        elif c == "arrays_have_items":
            for sub in subschemas(schema):
                if sub.get("type") == "array" and "items" not in sub and "prefixItems" not in sub:
                    fail("%s: array without items" % ref)
        elif c.startswith("mentions:"):
            if c[9:] not in json.dumps(tool, ensure_ascii=False):
                fail("%s: does not mention %r" % (ref, c[9:]))
        else:
            raise ValueError("unknown schema check " + c)

    def records(self, name):
        out = []
        for n in (self.upstreams if name == "*" else [name]):
            p = self.journal_path(n)
            if os.path.exists(p):
                with open(p, "rb") as f:
                    for line in f:
                        try:
                            out.append(json.loads(line))
                        except ValueError:
                            pass
        return out

    def count_journal(self, s):
        n = 0
        for rec in self.records(s["journal"]):
            if "event" in s:
                if rec.get("event") != s["event"]:
                    continue
                if "tool" in s and rec.get("tool") != s["tool"]:
                    continue
                if "arguments" in s and rec.get("arguments") != self.sub(s["arguments"]):
                    continue
            elif "method" in s:
                if rec["dir"] != "in":
                    continue
                try:
                    m = json.loads(rec["raw"])
                except ValueError:
                    continue
                if not isinstance(m, dict) or m.get("method") != s["method"]:
                    continue
            elif "in_matches" in s:
                if rec["dir"] != "in" or not re.search(s["in_matches"], rec["raw"]):
                    continue
            elif "header" in s:
                if rec["dir"] != "in" or (rec.get("headers") or {}).get(s["header"][0]) != self.sub(s["header"][1]):
                    continue
            n += 1
        return n

    def pids(self, name):
        recs = self.records(name)
        return list(dict.fromkeys([r["pid"] for r in recs if r.get("event") in ("start", "start_wrapper", "start_grandchild")]
                                  + [r["child"] for r in recs if r.get("event") == "grandchild"]))

    def live(self, name):
        return [p for p in self.pids(name) if proc_state(p)[0] not in (None, "Z", "X")]

    def op_assert(self, s):
        if "that" in s:
            names = s["that"] if isinstance(s["that"], list) else [s["that"]]
            for name in names:
                res = self.saved
                for part in name.split("/"):
                    res = res[int(part)] if isinstance(res, list) else res[part]
                for one in res if isinstance(res, list) else [res]:
                    self.check_response(one, s, name)
        if "tools" in s:
            self.check_tools(s)
        if "journal" in s:
            n = self.count_journal(s)
            desc = {k: v for k, v in s.items() if k not in ("op",)}
            if "count" in s and n != s["count"]:
                raise CaseFail("step %d: journal %s: %d, expected %d" % (self.step_no, desc, n, s["count"]))
            if n > s.get("max", 10 ** 9) or n < s.get("min", 0):
                raise CaseFail("step %d: journal %s: %d" % (self.step_no, desc, n))
        if "stderr_contains" in s:
            end = time.time() + s.get("within_s", 2)
            while s["stderr_contains"] not in self.log_text() and time.time() < end:
                time.sleep(0.1)
            if s["stderr_contains"] not in self.log_text():
                raise CaseFail("the log (stderr, files below HOME) does not mention %r" % s["stderr_contains"])
        for bad in s.get("nowhere", []):
            self.check_nowhere(bad)
        if "processes" in s:
            end = time.time() + s.get("within_s", 0)
            while len(self.live(s["processes"])) != s["alive"] and time.time() < end:
                time.sleep(0.1)
            n = len(self.live(s["processes"]))
            if n != s["alive"]:
                raise CaseFail("%d processes of %s are alive, expected %d" % (n, s["processes"], s["alive"]))
        if "zombies" in s:
            end = time.time() + s.get("within_s", 0)
            while True:
                z = [p for p in self.pids("*") if proc_state(p) == ("Z", self.gw.p.pid)]
                if len(z) <= s["zombies"]:
                    break
                if time.time() > end:
                    raise CaseFail("%d dead upstreams were never reaped (zombies)" % len(z))
                time.sleep(0.1)
        if "notifications" in s:
            with self.gw.cond:
                n = sum(m.get("method") == s["notifications"] and "id" not in m
                        and (s.get("params_match") is None or re.search(s["params_match"], json.dumps(m)) is not None)
                        for _, m, _ in self.gw.messages)
            if n > s.get("max", 10 ** 9) or n < s.get("min", 0):
                raise CaseFail("step %d: %d x %s reached the client" % (self.step_no, n, s["notifications"]))
        if "client_requests" in s:
            seen = [m for m in self.gw.requests_seen if m["method"] == s["client_requests"]]
            if "count" in s and len(seen) != s["count"]:
                raise CaseFail("%d x %s reached the client, expected %d" % (
                    len(seen), s["client_requests"], s["count"]))
            if len(seen) < s.get("min", 0):
                raise CaseFail("%d x %s reached the client" % (len(seen), s["client_requests"]))
            blob = "\n".join(t for m in seen for t in strings_in(m.get("params", {})))
            for want in s.get("contains", []):
                if want not in blob:
                    raise CaseFail("%s does not show %r to the user" % (s["client_requests"], want))
            if "not_matches" in s and re.search(s["not_matches"], blob):
                raise CaseFail("%s shows hidden or control characters" % s["client_requests"])
        if s.get("gateway_alive") and not self.gw.alive():
            raise CaseFail("the gateway died: %s" % self.gw.stderr_text()[-300:])
        if "same" in s:
            a, b = (sorted(t.get("name") for t in self.saved[x]) for x in s["same"])
            if a != b:
                raise CaseFail("tool names differ: %s / %s" % (a, b))
        if "same_map" in s:
            a, b = ({str(t.get("description")): t.get("name") for t in self.saved[x]} for x in s["same_map"])
            if a != b:
                raise CaseFail("the same tools have other names now: %s / %s" % (a, b))
        if "null_id_messages" in s:
            with self.gw.cond:
                n = sum("method" not in m and m.get("id") is None for _, m, _ in self.gw.messages)
            if n != s["null_id_messages"]:
                raise CaseFail("%d replies without an id, expected %d" % (n, s["null_id_messages"]))
        if "no_progress_after" in s:
            at = self.saved[s["no_progress_after"]]["at"]
            with self.gw.cond:
                late = [m for t, m, _ in self.gw.messages if m.get("method") == "notifications/progress" and t > at]
            if late:
                raise CaseFail("progress for a finished call reached the client: %s" % late[0])
        if "cancel_reaches" in s:
            recs = self.records(s["cancel_reaches"])
            calls = [r["id"] for r in recs if r.get("event") == "call"]
            gone = [r["id"] for r in recs if r.get("event") == "cancelled"]
            if not gone or gone[-1] not in calls:
                raise CaseFail("cancelled ids %s do not name a call the upstream knows (%s)" % (gone, calls))
        if "file_absent" in s and os.path.exists(self.sub(s["file_absent"])):
            raise CaseFail("file was written: %s" % s["file_absent"])

    def log_text(self):
        parts = [self.gw.stderr_text()]
        for base, _, files in os.walk(os.path.join(self.dir, "home")):
            for fn in files:
                try:
                    with open(os.path.join(base, fn), encoding="utf-8", errors="replace") as f:
                        parts.append(f.read())
                except OSError:
                    pass
        return "\n".join(parts)

    def check_nowhere(self, bad):
        with self.gw.cond:
            lines = [line for _, _, line in self.gw.messages]
        if any(bad.encode() in line for line in lines):
            raise CaseFail("%r reached the client" % bad)
        if bad in self.gw.stderr_text():
            raise CaseFail("%r is in the gateway's stderr" % bad)
        for base, _, files in os.walk(os.path.join(self.dir, "home")):
            for fn in files:
                with open(os.path.join(base, fn), "rb") as f:
                    if bad.encode() in f.read():
                        raise CaseFail("%r is in a file the gateway wrote (%s)" % (bad, fn))

    # ---- end
    def cleanup(self):
        if self.gw:
            try:
                self.gw.shut()
            except Exception:
                pass
        for name, (p, _) in self.https.items():
            if p and p.poll() is None:
                p.kill()
                p.wait(3)
        for pid in self.pids("*"):     # only fakes of this very case, told by their own journal
            try:
                with open("/proc/%d/cmdline" % pid, "rb") as f:
                    if self.dir.encode() in f.read():
                        os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        if not self.args.keep:
            shutil.rmtree(self.dir, ignore_errors=True)


def strings_in(v):
    if isinstance(v, str):
        yield v
    elif isinstance(v, list):
        for x in v:
            yield from strings_in(x)
    elif isinstance(v, dict):
        for k, x in v.items():
            yield k
            yield from strings_in(x)


def refs_in(v):
    if isinstance(v, dict):
        if isinstance(v.get("$ref"), str):
            yield v["$ref"]
        for x in v.values():
            yield from refs_in(x)
    elif isinstance(v, list):
        for x in v:
            yield from refs_in(x)


def subschemas(v):
    if isinstance(v, dict):
        yield v
        for x in v.values():
            yield from subschemas(x)
    elif isinstance(v, list):
        for x in v:
            yield from subschemas(x)


def dig_pointer(doc, ptr):
    cur = doc
    for part in ptr.split("/")[1:] if ptr else []:
        part = part.replace("~1", "/").replace("~0", "~")
        cur = cur[int(part)] if isinstance(cur, list) else cur[part]
    return cur


# =============================================================== all cases
REQUIRED = ("id", "title", "class", "visibility", "source", "expect", "check", "steps")


def load_cases(dirs):
    cases = []
    for d in dirs:
        files = [d] if os.path.isfile(d) else sorted(
            os.path.join(d, f) for f in os.listdir(d) if f.endswith(".json")) if os.path.isdir(d) else []
        for f in files:
            with open(f, encoding="utf-8") as fh:
                case = json.load(fh)
            case["_file"] = f
            missing = [k for k in REQUIRED if k not in case]
            if missing:
                raise SystemExit("%s: missing %s" % (f, missing))
            for s in all_steps(case["steps"]):
                if not hasattr(Run, "op_" + s["op"]):
                    raise SystemExit("%s: unknown op %s" % (f, s["op"]))
            cases.append(case)
    ids = [c["id"] for c in cases]
    dup = {i for i in ids if ids.count(i) > 1}
    if dup:
        raise SystemExit("duplicate ids: %s" % sorted(dup))
    return cases


def all_steps(steps):
    for s in steps:
        yield s
        for b in s.get("branches", []):
            yield from all_steps(b)


def run_case(case, args, profile):
    run = Run(case, args, profile)
    t0 = time.time()
    try:
        run.run()
        verdict, why = "PASS", ""
    except CaseSkip as e:
        verdict, why = "SKIP", str(e)
    except CaseFail as e:
        verdict, why = "FAIL", str(e)
        if run.gw and any(v.startswith("SKIP:") for v in run.gw.violations):
            verdict, why = "SKIP", "the approval form cannot say no"
    except Exception as e:
        verdict, why = "FAIL", "%s: %s (step %s)" % (type(e).__name__, e, getattr(run, "step_no", "-"))
    detail = ""
    if verdict == "FAIL" and args.verbose and run.gw:
        for d, line in run.gw.trace[-12:]:
            detail += "      %s %s\n" % (d, line.decode("utf-8", "replace").rstrip()[:300])
        detail += "      stderr: %s\n" % run.gw.stderr_text()[-400:].replace("\n", "\n              ")
    if args.keep:
        detail += "      kept %s\n" % run.dir
    run.cleanup()
    return case, verdict, why, time.time() - t0, detail


def write_table(path, cases, results):
    rows = ["# Cases", "",
            "%d cases, %d of them open. Status is the last recorded run." % (
                len(cases), sum(c["visibility"] == "open" for c in cases)), "",
            "| id | class | set | title | source | status |", "| --- | --- | --- | --- | --- | --- |"]
    for c in sorted(cases, key=lambda c: c["id"]):
        rows.append("| %s | %s | %s | %s | %s | %s |" % (
            c["id"], c["class"], c["visibility"], c["title"].replace("|", "\\|"),
            "; ".join(c["source"]).replace("|", "\\|"), results.get(c["id"], "untried")))
    with open(path, "w", encoding="utf-8") as f:
        f.write("\n".join(rows) + "\n")


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--gateway")
    ap.add_argument("--gateway-json")
    ap.add_argument("--profile")
    ap.add_argument("--cases", action="append")
    ap.add_argument("--only")
    ap.add_argument("-j", type=int, default=4)
    ap.add_argument("--keep", action="store_true")
    ap.add_argument("--json")
    ap.add_argument("--log")
    ap.add_argument("--table")
    ap.add_argument("--validate", action="store_true")
    ap.add_argument("-v", "--verbose", action="store_true")
    ap.add_argument("ids", nargs="*")
    args = ap.parse_args()
    cases = load_cases(args.cases or DEFAULT_DIRS)
    if args.table:
        write_table(args.table, cases, {})
        return 0
    if args.validate:
        print("%d cases are well formed" % len(cases))
        return 0
    if not args.gateway:
        ap.error("--gateway is needed")
    profile = dict(PROFILE)
    if args.profile:
        with open(args.profile) as f:
            profile.update(json.load(f))
    picked = [c for c in cases if (not args.ids or c["id"] in args.ids)
              and (not args.only or re.search(args.only, c["id"] + " " + c["class"]))]
    counts = {"PASS": 0, "FAIL": 0, "SKIP": 0}
    results = {}
    with concurrent.futures.ThreadPoolExecutor(args.j) as pool:
        for case, verdict, why, took, detail in pool.map(lambda c: run_case(c, args, profile), picked):
            counts[verdict] += 1
            results[case["id"]] = verdict
            print("%-4s %-7s %-5s %5.1fs %s%s" % (verdict, case["id"], case["visibility"], took, case["title"],
                                                 ("\n      " + why) if why else ""))
            if detail:
                print(detail, end="")
            sys.stdout.flush()
    if args.json:
        with open(args.json, "w") as f:
            json.dump(results, f, indent=1)
    if args.log:
        write_table(args.log, cases, results)
    print("%d passed, %d failed, %d skipped" % (counts["PASS"], counts["FAIL"], counts["SKIP"]))
    return 1 if counts["FAIL"] else 0


if __name__ == "__main__":
    sys.exit(main())
