"""rpc.py - what the end-to-end scripts share: a raw JSON-RPC client over stdio, gateway set-up, process hunting.

Stdlib only, no SDK: it must be able to say and see what an SDK would not.

    Peer        one server process: sends anything, checks every line that comes back, answers what servers ask
    Gateway     a Peer that is the gateway, in a throw-away HOME, with a rendered tools.toml
    Report      counts what passed and failed, prints it, gives the exit code
    marked      the processes of this run, found by a marker in their command line or environment

The binary is $TOOLCRIB_BIN, or target/debug/toolcrib.
"""
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.normpath(os.path.join(HERE, "..", ".."))
TARGET = os.environ.get("CARGO_TARGET_DIR") or os.path.join(ROOT, "target")
BIN = os.path.abspath(os.environ.get("TOOLCRIB_BIN") or os.path.join(TARGET, "debug", "toolcrib"))
E2E = os.path.join(TARGET, "e2e")
NODE_BIN = os.path.join(E2E, "node_modules", ".bin")
VENV_BIN = os.path.join(E2E, "venv", "bin")
M_SERVER = os.path.join(ROOT, "tests", "fixtures", "m_server.py")
MODERN = "2026-07-28"
META = "io.modelcontextprotocol/"
CLIENT_INFO = {"name": "toolcrib-e2e", "version": "1.0.0"}
CAPABILITIES = {"roots": {"listChanged": True}, "sampling": {}, "elicitation": {"form": {}, "url": {}}}


class Failure(Exception):
    """An expectation that did not hold; its text is the report."""


def check(condition, message):
    if not condition:
        raise Failure(message)


def short(value, limit=400):
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=True)
    return text if len(text) <= limit else text[:limit] + "... (%d characters)" % len(text)


# ---------------------------------------------------------------- strict lines
def no_constant(name):
    raise ValueError("not JSON: " + name)


def strict(line):
    """One line of stdout as a message; raises ValueError when it is not one strict JSON-RPC 2.0 object."""
    if not line.endswith(b"\n"):
        raise ValueError("the last line has no line end")
    body = line[:-1]
    if not body.startswith(b"{") or not body.endswith(b"}"):
        raise ValueError("stray bytes around the object")
    message = json.loads(body.decode("utf-8"), parse_constant=no_constant)
    if message.get("jsonrpc") != "2.0":
        raise ValueError("no jsonrpc 2.0")
    if "method" in message:
        fine = isinstance(message["method"], str) and not {"result", "error"} & set(message)
        fine = fine and ("id" not in message or message["id"] is not None)
    else:
        fine = "id" in message and ("result" in message) != ("error" in message)
        fine = fine and (message["id"] is not None or "error" in message)
        if fine and "error" in message:
            error = message["error"]
            fine = isinstance(error, dict) and type(error.get("code")) is int and isinstance(error.get("message"), str)
    if not fine:
        raise ValueError("neither request, notification, result nor error")
    return message


def key(rid):
    """An id as a dictionary key that keeps 1, "1", 1.0 and true apart."""
    return json.dumps(rid)


# ---------------------------------------------------------------- one server process
class Peer:
    def __init__(self, command, env=None, cwd=None, capabilities=None, stderr=None):
        self.capabilities = CAPABILITIES if capabilities is None else capabilities
        self.lines, self.messages, self.broken, self.asked = [], [], [], []
        self.answers, self.times = {}, {}
        self.cond, self.write_lock = threading.Condition(), threading.Lock()
        self.ids = itertools.count(1)
        self.modern = False
        self.stderr_path = stderr
        err = open(stderr, "ab") if stderr else subprocess.DEVNULL
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err,
                                        env=env, cwd=cwd, bufsize=0, start_new_session=True)
        if stderr:
            err.close()
        self.ended = False
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    # ---- in
    def _read(self):
        out, rest = self.process.stdout, b""
        while True:
            try:
                data = os.read(out.fileno(), 1 << 16)
            except (OSError, ValueError):
                data = b""
            if not data:
                break
            rest += data
            if b"\n" in data:
                *lines, rest = rest.split(b"\n")
                for line in lines:
                    self._take(line + b"\n")
        if rest:
            self._take(rest)
        with self.cond:
            self.ended = True
            self.cond.notify_all()

    def _take(self, line):
        message = None
        try:
            message = strict(line)
        except ValueError as e:
            self.broken.append("%s: %s" % (e, short(line.decode("utf-8", "backslashreplace"), 300)))
        with self.cond:
            self.lines.append(line)
            if message is not None:
                self.messages.append(message)
                if "method" not in message:
                    self.answers.setdefault(key(message["id"]), []).append((message, line))
                    self.times[key(message["id"])] = time.monotonic()
            self.cond.notify_all()
        if message is not None and "method" in message and "id" in message:
            self.asked.append(message["method"])
            self.send({"jsonrpc": "2.0", "id": message["id"], **self.reply(message["method"], message.get("params") or {})})

    def reply(self, method, params):
        """What this client answers when a server asks it something."""
        try:
            return {"result": self.respond(method, params)}
        except Failure as e:
            return {"error": {"code": -32601, "message": str(e)}}

    @staticmethod
    def respond(method, params):
        if method == "ping":
            return {}
        if method == "roots/list":
            return {"roots": [{"uri": "file:///e2e-root", "name": "e2e"}]}
        if method == "sampling/createMessage":
            return {"role": "assistant", "model": "e2e", "stopReason": "endTurn",
                    "content": {"type": "text", "text": "sampled"}}
        if method == "elicitation/create":
            return {"action": "accept", "content": fill_form(params.get("requestedSchema") or {})}
        raise Failure("method not found: " + method)

    # ---- out
    def send_bytes(self, data):
        with self.write_lock:
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(self.process.stdin.fileno(), view):]
            except (BrokenPipeError, ValueError, OSError):
                pass

    def send(self, message):
        self.send_bytes(json.dumps(message).encode() + b"\n")

    def notify(self, method, params=None):
        self.send({"jsonrpc": "2.0", "method": method, **({} if params is None else {"params": params})})

    def start(self, method, params=None, rid=None):
        """Sends a request and returns its id at once."""
        rid = "r%d" % next(self.ids) if rid is None else rid
        params = dict(params or {})
        if self.modern:
            params["_meta"] = {**modern_meta(self.capabilities), **params.get("_meta", {})}
        self.send({"jsonrpc": "2.0", "id": rid, "method": method, **({"params": params} if params else {})})
        return rid

    def wait(self, rid, timeout=30):
        """The answer to a request; (message, line)."""
        self.until(lambda: key(rid) in self.answers, timeout, "an answer to %s" % short(key(rid), 60))
        return self.answers[key(rid)][0]

    def until(self, condition, timeout, what):
        end = time.monotonic() + timeout
        with self.cond:
            while not condition():
                left = end - time.monotonic()
                if self.ended and not condition():
                    raise Failure("the server ended before %s came%s" % (what, self.last_words()))
                if left <= 0:
                    raise Failure("waited %g s for %s%s" % (timeout, what, self.last_words()))
                self.cond.wait(min(left, 0.2))

    def request(self, method, params=None, timeout=30):
        return self.wait(self.start(method, params), timeout)[0]

    def result(self, method, params=None, timeout=30):
        message = self.request(method, params, timeout)
        check("result" in message, "%s was answered with %s" % (method, short(message.get("error"))))
        return message["result"]

    def initialize(self, version="2025-11-25", timeout=30):
        result = self.result("initialize", {"protocolVersion": version, "capabilities": self.capabilities,
                                            "clientInfo": CLIENT_INFO}, timeout)
        self.notify("notifications/initialized")
        return result

    def call(self, name, arguments=None, meta=None, timeout=60):
        """One tools/call as (message, line); questions of a 2026-07-28 server are answered and the call sent again."""
        params = {"name": name, "arguments": arguments or {}}
        if meta:
            params["_meta"] = meta
        for _ in range(5):
            message, line = self.wait(self.start("tools/call", params), timeout)
            result = message.get("result") or {}
            if result.get("resultType") != "input_required":
                break
            asked = result.get("inputRequests") or {}
            self.asked += [q["method"] for q in asked.values()]
            params["inputResponses"] = {k: self.respond(q["method"], q.get("params") or {}) for k, q in asked.items()}
            params.pop("requestState", None)
            if "requestState" in result:
                params["requestState"] = result["requestState"]
        return message, line

    def tool_names(self):
        return [t["name"] for t in self.result("tools/list")["tools"]]

    def wait_for_tools(self, *names, timeout=20):
        end = time.monotonic() + timeout
        while True:
            have = self.tool_names()
            missing = [n for n in names if n not in have]
            if not missing:
                return have
            check(time.monotonic() < end, "not listed after %g s: %s (listed: %s)%s" % (
                timeout, missing, short(have, 300), self.last_words()))
            time.sleep(0.05)

    # ---- end
    def last_words(self):
        if not self.stderr_path or not os.path.exists(self.stderr_path):
            return ""
        with open(self.stderr_path, "rb") as f:
            text = f.read()[-800:].decode("utf-8", "replace").strip()
        return "; its stderr ends: " + text if text else ""

    def close_stdin(self):
        with self.write_lock:
            try:
                self.process.stdin.close()
            except OSError:
                pass

    def exit_code(self, timeout):
        """The exit code, or None when the process is still there after the time; then all output has been read."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        self.reader.join(2)
        return code

    def end(self, timeout=5):
        """Closes stdin, waits, kills what is left of the process group; the exit code or None."""
        self.close_stdin()
        code = self.exit_code(timeout)
        if code is None:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except OSError:
                pass
            self.exit_code(2)
        return code


def modern_meta(capabilities=None, version=MODERN):
    return {META + "protocolVersion": version, META + "clientInfo": CLIENT_INFO,
            META + "clientCapabilities": CAPABILITIES if capabilities is None else capabilities}


def fill_form(schema):
    """Valid content for a form; where it is an approval, the choice that allows this once."""
    content = {}
    for name, field in (schema.get("properties") or {}).items():
        values = field.get("enum") or [o.get("const") for o in field.get("oneOf") or field.get("anyOf") or []]
        if values:
            once = [v for v in values if re.search("once", str(v), re.I)]
            content[name] = once[0] if once else values[0]
        elif field.get("type") == "array":
            items = field.get("items") or {}
            options = items.get("enum") or [o.get("const") for o in items.get("anyOf") or items.get("oneOf") or []]
            content[name] = options[:max(1, field.get("minItems", 1))]
        elif field.get("type") == "boolean":
            content[name] = True
        elif field.get("type") in ("integer", "number"):
            content[name] = max(1, field.get("minimum", 1))
        else:
            samples = {"email": "a@example.com", "uri": "https://example.com/", "date": "2026-01-02",
                       "date-time": "2026-01-02T03:04:05Z"}
            content[name] = samples.get(field.get("format"), "some text")
    return content


# ---------------------------------------------------------------- the gateway
def toml(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "{ " + ", ".join("%s = %s" % (json.dumps(k), toml(v)) for k, v in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(toml(v) for v in value) + "]"
    return json.dumps(value)


def render(tables):
    """tools.toml from {table name: {key: value}}; a table of tables is written as [outer.inner]."""
    out = []
    for name, table in tables.items():
        inner = {k: v for k, v in table.items() if isinstance(v, dict) and name == "mcp_servers"}
        if inner:
            out += render({"%s.%s" % (name, k): v for k, v in inner.items()}).splitlines()
            continue
        out.append("[%s]" % name)
        out += ["%s = %s" % (k, toml(v)) for k, v in table.items()]
        out.append("")
    return "\n".join(out) + "\n"


def m_entry(*options, name="m", log=None, **fields):
    """A configuration entry that starts the fixture `m`."""
    args = [M_SERVER, "--name", name, *(["--log", log] if log else []), *options]
    return {"command": sys.executable, "args": args, **fields}


SHOW_ALL = {"core": ["*"], "defer_mcp_tools": False}


class Sandbox:
    """A throw-away folder with a HOME of its own; `with` removes it and every process that carries its marker."""

    def __init__(self):
        self.dir = tempfile.mkdtemp(prefix="toolcrib-e2e-")
        self.marker = "mark-" + os.path.basename(self.dir)
        self.home = os.path.join(self.dir, "home")
        os.mkdir(self.home)

    def path(self, *parts):
        return os.path.join(self.dir, *parts)

    def env(self, **more):
        env = {k: v for k, v in os.environ.items()
               if not k.startswith(("XDG_", "TOOLCRIB_", "RUST_", "CARGO")) and k != "TC_MARKER"}
        env.update(HOME=self.home, TC_MARKER=self.marker, **more)
        return env

    def config(self, servers, name="tools.toml", **tables):
        path = self.path(name)
        tables.setdefault("tools", SHOW_ALL)
        with open(path, "w", encoding="utf-8") as f:
            f.write(render({**tables, "mcp_servers": servers}))
        return path

    def command(self, config):
        return [BIN, "serve", "--config", config]

    def gateway(self, servers, capabilities=None, **tables):
        for entry in servers.values():
            entry["env"] = {**entry.get("env", {}), "TC_MARKER": self.marker}
        return Peer(self.command(self.config(servers, **tables)), env=self.env(), cwd=self.dir,
                    capabilities=capabilities, stderr=self.path("stderr.txt"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for pid in marked(self.marker):
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        shutil.rmtree(self.dir, ignore_errors=True)


def marked(marker):
    """{pid: command line} of the living processes with the marker in their command line or environment."""
    found, needle = {}, marker.encode()
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            with open("/proc/%s/cmdline" % entry, "rb") as f:
                line = f.read()
            with open("/proc/%s/environ" % entry, "rb") as f:
                environ = f.read()
            with open("/proc/%s/stat" % entry) as f:
                state = f.read().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if needle in line + environ and state not in "ZX":
            found[int(entry)] = line.replace(b"\0", b" ").decode("utf-8", "replace").strip()
    return found


def none_left(marker, timeout=5):
    """Waits until no process of the run is left; a Failure names those that are."""
    end = time.monotonic() + timeout
    while True:
        left = marked(marker)
        if not left:
            return
        check(time.monotonic() < end, "still running after %g s: %s" % (
            timeout, ", ".join("%d %s" % (p, short(c.replace(ROOT + "/", ""), 120)) for p, c in left.items())))
        time.sleep(0.02)


def read_log(path):
    try:
        with open(path, encoding="utf-8") as f:
            return [json.loads(line) for line in f if line.endswith("\n")]
    except FileNotFoundError:
        return []


def wait_log(path, condition, timeout, what):
    """Waits for an event of the fixture's log and returns it."""
    end = time.monotonic() + timeout
    while True:
        for event in read_log(path):
            if condition(event):
                return event
        check(time.monotonic() < end, "waited %g s for %s in the fixture's log" % (timeout, what))
        time.sleep(0.02)


# ---------------------------------------------------------------- reporting
class Report:
    def __init__(self, title):
        self.title, self.passed, self.failed = title, 0, []
        self.lock, self.started = threading.Lock(), time.monotonic()

    def run(self, name, act, *args):
        began = time.monotonic()
        try:
            act(*args)
            why = None
        except Failure as e:
            why = str(e)
        except Exception:  # a bug in the script or a lost connection: show where
            why = traceback.format_exc()
        took = time.monotonic() - began
        with self.lock:
            if why is None:
                self.passed += 1
                print("ok    %-58s %5.2f s" % (name, took), flush=True)
            else:
                self.failed.append(name)
                print("FAIL  %-58s %5.2f s\n      %s" % (name, took, why.replace("\n", "\n      ")), flush=True)

    def finish(self):
        print("%s: %d passed, %d failed in %.1f s" % (
            self.title, self.passed, len(self.failed), time.monotonic() - self.started))
        return 1 if self.failed or not self.passed else 0


def need_binary():
    if not os.access(BIN, os.X_OK):
        raise SystemExit("no gateway binary at %s: run `cargo build`, or set TOOLCRIB_BIN" % os.path.relpath(BIN))
