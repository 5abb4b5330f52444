#!/usr/bin/env node
// sdk_typescript.mjs - the official TypeScript SDK as the gateway's client, with the fixture `m` behind the gateway.
//
//     node tests/e2e/sdk_typescript.mjs [--self-test]
//
// It opens a session, lists and calls tools, sees progress, approves a dangerous call, cancels a call (the fixture must
// see that within 1 s, and the session must still work), pings, is told of a changed list, and closes: the gateway must
// be gone with exit code 0. The binary is $TOOLCRIB_BIN, or target/debug/toolcrib.
//
// --self-test talks to `m` directly. Needs tests/e2e/setup.
import { existsSync, mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..', '..');
const target = process.env.CARGO_TARGET_DIR ?? path.join(root, 'target');
const bin = path.resolve(process.env.TOOLCRIB_BIN ?? path.join(target, 'debug', 'toolcrib'));
const selfTest = process.argv.includes('--self-test');
const prefix = selfTest ? '' : 'm_';

function stop(message) {
  console.error(message);
  process.exit(2);
}

const require = createRequire(pathToFileURL(path.join(target, 'e2e', 'x.js')));
async function load(name) {
  try {
    return await import(pathToFileURL(require.resolve(`@modelcontextprotocol/sdk/${name}`)));
  } catch {
    return stop('the TypeScript SDK is not installed: run tests/e2e/setup');
  }
}
const { Client } = await load('client/index.js');
const { StdioClientTransport } = await load('client/stdio.js');
const types = await load('types.js');
if (!selfTest && !existsSync(bin)) stop(`no gateway binary: run \`cargo build\`, or set TOOLCRIB_BIN`);

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
function check(condition, message) {
  if (!condition) throw new Error(message);
}
async function eventually(condition, ms, what) {
  const end = Date.now() + ms;
  while (!(await condition())) {
    check(Date.now() < end, `waited ${ms} ms for ${what}`);
    await sleep(20);
  }
}

const dir = mkdtempSync(path.join(tmpdir(), 'toolcrib-e2e-'));
const home = path.join(dir, 'home');
const log = path.join(dir, 'm.log');
const marker = `mark-${path.basename(dir)}`;
mkdirSync(home);

/** The fixture's events of one kind for one tool. */
function events(event, tool) {
  if (!existsSync(log)) return [];
  const lines = readFileSync(log, 'utf8').split('\n').filter(Boolean);
  return lines.map((line) => JSON.parse(line)).filter((e) => e.event === event && e.tool === tool);
}

/** Processes that carry the marker in their environment or command line; none where there is no /proc. */
function marked() {
  if (!existsSync('/proc/self/environ')) return [];
  return readdirSync('/proc').filter((pid) => {
    if (!/^\d+$/.test(pid) || Number(pid) === process.pid) return false;
    try {
      const line = readFileSync(`/proc/${pid}/cmdline`, 'utf8') + readFileSync(`/proc/${pid}/environ`, 'utf8');
      return line.includes(marker);
    } catch {
      return false;
    }
  });
}

/** Valid content for a form; where it is an approval, the choice that allows this once. */
function fillForm(schema) {
  const content = {};
  for (const [name, field] of Object.entries(schema?.properties ?? {})) {
    const values = field.enum ?? (field.oneOf ?? field.anyOf ?? []).map((option) => option.const);
    content[name] = values.length ? (values.find((v) => /once/i.test(String(v))) ?? values[0])
      : field.type === 'boolean' ? true : field.type === 'string' ? 'text' : 1;
  }
  return content;
}

const server = [process.env.PYTHON ?? 'python3', path.join(root, 'tests', 'fixtures', 'm_server.py'),
  '--log', log, '--marker', marker];
let command = server;
if (!selfTest) {
  const config = path.join(dir, 'tools.toml');
  writeFileSync(config, [
    '[tools]', 'core = ["*"]', 'defer_mcp_tools = false', '',
    '[mcp_servers.m]', `command = ${JSON.stringify(server[0])}`, `args = ${JSON.stringify(server.slice(1))}`,
    `env = { TC_MARKER = ${JSON.stringify(marker)} }`, '',
  ].join('\n'));
  command = [bin, 'serve', '--config', config];
}
// Tells the exit code of the server, which the SDK keeps to itself.
const code = path.join(dir, 'code');
const argv = ['-c', 'f=$1; shift; "$@"; echo $? >"$f"', 'sh', code, ...command];

let changed = 0;
const asked = [];
const client = new Client({ name: 'toolcrib-e2e', version: '1.0.0' }, { capabilities: { elicitation: { form: {} } } });
client.setNotificationHandler(types.ToolListChangedNotificationSchema, () => { changed += 1; });
client.setRequestHandler(types.ElicitRequestSchema, async (request) => {
  asked.push(request.params.message);
  return { action: 'accept', content: fillForm(request.params.requestedSchema) };
});
const stray = [];
client.onerror = (error) => {
  if (!/progress notification for an unknown token/.test(String(error))) stray.push(String(error));
};
const transport = new StdioClientTransport({
  command: 'sh', args: argv, cwd: dir, stderr: 'ignore', env: { PATH: process.env.PATH, HOME: home, TC_MARKER: marker },
});

const names = async () => (await client.listTools()).tools.map((tool) => tool.name);
async function call(tool, args = {}, options = {}) {
  const result = await client.callTool({ name: prefix + tool, arguments: args }, undefined, { timeout: 20000, ...options });
  check(!result.isError, `${tool}: ${JSON.stringify(result)}`);
  return result;
}

const steps = {
  async 'opens a session'() {
    await client.connect(transport, { timeout: 5000 });
    check(client.getServerCapabilities()?.tools?.listChanged === true, 'tools.listChanged is not advertised');
    check(client.getServerVersion()?.name, 'no server name');
  },
  async 'lists tools'() {
    await eventually(async () => (await names()).includes(`${prefix}plain`), 15000, 'the tools of m');
    const { tools } = await client.listTools();
    check(tools.every((tool) => tool.inputSchema.type === 'object'), 'an input schema without `type: object`');
  },
  async 'calls a tool'() {
    const sent = { a: [1, 'ü', null], b: { c: 2.5 } };
    const echoed = await call('echo', sent);
    check(JSON.stringify(echoed.structuredContent) === JSON.stringify(sent), `echo: ${JSON.stringify(echoed)}`);
    const failed = await client.callTool({ name: `${prefix}boom`, arguments: { message: 'as planned' } });
    check(failed.isError && failed.content[0].text.includes('as planned'), `boom: ${JSON.stringify(failed)}`);
  },
  async 'has an error for an unknown tool'() {
    const error = await client.callTool({ name: 'no_such_tool', arguments: {} }).then(() => null, (e) => e);
    check(error?.code === -32602, `an unknown tool gave ${error}`);
  },
  async 'sees progress'() {
    const seen = [];
    await call('progress', { count: 5, every_ms: 20 }, { onprogress: (p) => seen.push(p.progress) });
    // The SDK drops a notification that arrives in one piece with the answer.
    check(seen.length >= 4, `progress callbacks: ${seen}`);
    check(seen.every((p, i) => i === 0 || p > seen[i - 1]), `progress does not only grow: ${seen}`);
  },
  async 'approves a dangerous call'() {
    await call('danger', { tag: 'approved' });
    check(events('run', 'danger').length === 1, 'danger did not run exactly once');
    check(selfTest || asked.length === 1, `asked ${asked.length} times`);
  },
  async 'cancels a call'() {
    const abort = new AbortController();
    const hanging = client.callTool({ name: `${prefix}hang`, arguments: { tag: 'abandoned' } }, undefined,
      { signal: abort.signal, timeout: 20000 }).then(() => 'answered', () => 'abandoned');
    await eventually(() => events('start', 'hang').length === 1, 5000, 'the start of hang');
    abort.abort('enough');
    check((await hanging) === 'abandoned', 'the cancelled call was answered');
    await eventually(() => events('cancel', 'hang').length === 1, 1000, 'the cancellation in the fixture');
    await call('plain');
  },
  async 'pings'() {
    await client.ping({ timeout: 2000 });
  },
  async 'is told of a changed list'() {
    for (const [tool, there] of [['add_tool', true], ['remove_tool', false]]) {
      const before = changed;
      await call(tool, { name: 'extra' });
      await eventually(() => changed > before, 5000, `tools/list_changed after ${tool}`);
      await eventually(async () => (await names()).includes(`${prefix}extra`) === there, 5000, `the list after ${tool}`);
    }
  },
  async 'closes'() {
    const began = Date.now();
    await client.close();
    check(Date.now() - began < 2000, `closing took ${Date.now() - began} ms`);
    await eventually(() => existsSync(code) && readFileSync(code, 'utf8').trim() !== '', 2000, 'the exit code');
    check(readFileSync(code, 'utf8').trim() === '0', `exit code ${readFileSync(code, 'utf8').trim()}`);
    await eventually(() => marked().length === 0, 5000, 'the end of every process of this run');
    check(stray.length === 0, `the client complained: ${stray[0]}`);
  },
};

let passed = 0;
const started = Date.now();
let failure = null;
for (const [name, step] of Object.entries(steps)) {
  const began = Date.now();
  try {
    await step();
    passed += 1;
    console.log(`ok    ${`TypeScript SDK ${name}`.padEnd(58)} ${((Date.now() - began) / 1000).toFixed(2).padStart(5)} s`);
  } catch (error) {
    failure = name;
    console.log(`FAIL  TypeScript SDK ${name}\n      ${error?.message ?? error}`);
    if (name === 'opens a session' || name === 'lists tools') break;
  }
}
await client.close().catch(() => {});
for (const pid of marked()) {
  try {
    process.kill(Number(pid), 'SIGKILL');
  } catch {
    // It ended by itself.
  }
}
rmSync(dir, { recursive: true, force: true });
const failed = Object.keys(steps).length - passed;
console.log(`sdk_typescript: ${passed} passed, ${failed} failed or not tried in ${((Date.now() - started) / 1000).toFixed(1)} s`);
process.exit(failure ? 1 : 0);
