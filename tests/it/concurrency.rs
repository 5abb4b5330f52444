//! Who runs beside whom: claims, order of arrival, limits and lost updates, as `m` and programs log them.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::support::{BARE, G, M, World, err_kind, facts, text, until};

/// What `m_sleep` touches, as REQUIREMENTS.md says it.
pub const CLAIMS: &str = "[tools.claims]\n\
    \"m_sleep\" = { paths = [\"path\", \"dest\"], nodes = [\"node\"], sessions = [\"session\"] }\n";

/// Of calls that never end by themselves; they are cancelled.
pub const LONG: u64 = 25_000;

/// A command that logs like `m` and in between waits until others have begun, each by its tag. A call that
/// names one can only end well beside it.
pub fn step(name: &str, more: &str) -> String {
    let script = r#"
        printf '{"event":"start","tool":"step","tag":"%s","pid":%s}\n' "$2" $$ >>"$1"
        : >"$1.$2"
        for tag in $3; do
            n=0
            until [ -e "$1.$tag" ]; do n=$((n+1)); [ $n -gt 4000 ] && exit 1; sleep 0.005; done
        done
        [ "$4" = 0 ] || sleep "$4"
        printf '{"event":"end","tool":"step","tag":"%s"}\n' "$2" >>"$1"
    "#;
    let args = "\"{{tag}}\", \"{{meets}}\", \"{{pause}}\"";
    format!(
        "[commands.{name}]\nrun = [\"sh\", \"-c\", '''{script}''', \"step\", \"@dir@/m.log\", {args}]\n\
         params.tag = \"string\"\n\
         params.meets = {{ type = \"string\", default = \"\" }}\n\
         params.pause = {{ type = \"string\", default = \"0\" }}\n\
         params.path = {{ type = \"string\", required = false }}\n{more}"
    )
}

/// `bash` claims everything, `ro` reads, `write` changes its path.
pub fn steps() -> String {
    [step("bash", ""), step("ro", "read_only = true\n"), step("write", "claim = { paths = [\"path\"] }\n")]
        .concat()
}

/// When a call ran: positions in the log, to which `m` and the commands append while their call is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    pub start: usize,
    /// Where it ended, or where `m` was told that nobody waits for it any more, which may be before its
    /// thread came to say that it has begun. A program that was killed cannot say when: it has no length.
    pub end: usize,
}

impl Span {
    pub fn overlaps(self, other: Span) -> bool {
        self.start < other.end && other.start < self.end
    }

    pub fn is_before(self, other: Span) -> bool {
        self.end < other.start
    }
}

/// The calls in a log by their tags, each of which may be used once.
pub fn spans(world: &World) -> BTreeMap<String, Span> {
    let log = world.log();
    let mut given_up: BTreeMap<String, usize> = BTreeMap::new();
    let mut ends: BTreeMap<&str, usize> = BTreeMap::new();
    for (at, event) in log.iter().enumerate() {
        match (event["event"].as_str(), event["tag"].as_str()) {
            (Some("notification"), _) if event["requestId"].is_number() => {
                given_up.insert(event["requestId"].to_string(), at);
            }
            (Some("end" | "cancel"), Some(tag)) => drop(ends.insert(tag, at)),
            _ => {}
        }
    }
    let mut spans = BTreeMap::new();
    for (start, event) in log.iter().enumerate().filter(|(_, event)| event["event"] == "start") {
        let Some(tag) = event["tag"].as_str() else { continue };
        let told = [ends.get(tag), given_up.get(&event["id"].to_string())];
        let end = told.into_iter().flatten().min().copied().unwrap_or(start);
        let was = spans.insert(tag.to_owned(), Span { start, end });
        assert!(was.is_none(), "the tag `{tag}` was used twice");
    }
    spans
}

/// Whether a call with this tag has begun.
pub fn has_begun(world: &World, tag: &str) -> bool {
    world.log().iter().any(|event| event["event"] == "start" && event["tag"] == tag)
}

/// The tags of calls that ran, in the order in which they began.
fn order(world: &World) -> Vec<String> {
    let mut begun: Vec<(usize, String)> =
        spans(world).into_iter().map(|(tag, span)| (span.start, tag)).collect();
    begun.sort();
    begun.into_iter().map(|(_, tag)| tag).collect()
}

/// Gives a call up.
pub fn cancel(g: &mut G, id: &Value) {
    let params = json!({ "requestId": id });
    g.send(&json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params }));
}

/// The trace of a call in its result.
pub fn run_of(reply: &Value) -> &Value {
    &reply["result"]["_meta"]["toolcrib/run"]
}

/// A session with `m` up, its claims, and the commands of [`steps`].
fn workshop() -> G {
    let mut g = G::new(&format!("{BARE}{CLAIMS}{M}{}", steps()));
    g.list();
    g
}

/// Arguments of `m_sleep`.
fn sleep(touched: &Value, tag: &str, ms: u64) -> Value {
    let mut arguments = touched.clone();
    arguments["tag"] = json!(tag);
    arguments["ms"] = json!(ms);
    arguments
}

/// Both run at once: neither ends by itself, and both begin.
fn beside(g: &mut G, first: &Value, second: &Value) {
    let n = g.world.log().len();
    let tags = [format!("first-{n}"), format!("second-{n}")];
    let ids = [
        g.post_call("m_sleep", sleep(first, &tags[0], LONG)),
        g.post_call("m_sleep", sleep(second, &tags[1], LONG)),
    ];
    let world = std::rc::Rc::clone(&g.world);
    let what = format!("{second} runs beside {first}");
    until(&what, || tags.iter().all(|tag| has_begun(&world, tag)));
    ids.iter().for_each(|id| cancel(g, id));
    until("both are cancelled", || {
        world.events("cancel", "sleep").iter().filter(|e| tags.iter().any(|tag| e["tag"] == **tag)).count()
            == 2
    });
}

/// The second waits for the first: a third one, sent last, that is in nobody's way, reaches `m` before it.
fn behind(g: &mut G, first: &Value, second: &Value, bystander: &Value) {
    let n = g.world.log().len();
    let tags = [format!("first-{n}"), format!("second-{n}"), format!("bystander-{n}")];
    let world = std::rc::Rc::clone(&g.world);
    let holding = g.post_call("m_sleep", sleep(first, &tags[0], LONG));
    until("the first call runs", || has_begun(&world, &tags[0]));
    let runs = world.runs("sleep");
    let waiting = g.post_call("m_sleep", sleep(second, &tags[1], 1));
    g.done("m_sleep", sleep(bystander, &tags[2], 1));
    assert_eq!(world.runs("sleep"), runs + 1, "{second} did not wait for {first}");
    cancel(g, &holding);
    let reply = g.reply(&waiting);
    assert_eq!(err_kind(&reply), None, "{reply}");
    let spans = spans(&world);
    assert!(spans[&tags[0]].is_before(spans[&tags[1]]), "{first} {second} {spans:?}");
    assert!(run_of(&reply)["waited_ms"].as_f64().is_some_and(|waited| waited > 0.0), "{reply}");
}

/// Posts calls one behind the other and waits for all; each has to succeed.
pub fn pipelined(g: &mut G, calls: &[(&str, Value)]) -> Vec<Value> {
    let ids: Vec<Value> =
        calls.iter().map(|(tool, arguments)| g.post_call(tool, arguments.clone())).collect();
    let replies: Vec<Value> = ids.iter().map(|id| g.reply(id)).collect();
    for (reply, (tool, arguments)) in replies.iter().zip(calls) {
        assert!(
            reply["result"].is_object() && reply["result"]["isError"] != true,
            "{tool} {arguments}: {reply}"
        );
    }
    replies
}

#[test]
fn s44_what_claims_everything_runs_beside_nothing() {
    let mut g = workshop();
    let calls = [
        ("m_ro", json!({ "tag": "ro-1", "ms": 20 })),
        ("m_ro", json!({ "tag": "ro-2", "ms": 20 })),
        ("bash", json!({ "tag": "bash", "pause": "0.02" })),
        ("m_ro", json!({ "tag": "ro-3", "ms": 20 })),
        ("m_sleep", json!({ "tag": "unknown", "ms": 20 })),
        ("m_sleep", json!({ "tag": "path", "ms": 20, "path": "a" })),
        ("m_plain", json!({ "tag": "plain", "ms": 20 })),
        ("m_sleep", json!({ "tag": "node", "ms": 20, "node": "n" })),
        ("m_sleep", json!({ "tag": "both kinds", "ms": 20, "node": "n", "path": "a" })),
        ("m_sleep", json!({ "tag": "session", "ms": 20, "session": "s" })),
    ];
    let replies = pipelined(&mut g, &calls);
    let spans = spans(&g.world);
    let alone = ["bash", "unknown", "plain", "both kinds"];
    let tags: Vec<&str> =
        calls.iter().map(|(_, arguments)| arguments["tag"].as_str().expect("a tag")).collect();
    for (at, tag) in tags.iter().enumerate().filter(|(_, tag)| alone.contains(tag)) {
        assert_eq!(run_of(&replies[at])["claim"], "exclusive", "{tag}");
        for (other, _) in tags.iter().enumerate().filter(|(other, _)| *other != at) {
            let (first, second) = (spans[tags[at.min(other)]], spans[tags[at.max(other)]]);
            assert!(first.is_before(second), "{tag} and {}: {spans:?}", tags[other]);
        }
    }
}

#[test]
fn s45_paths_are_apart_unless_one_holds_the_other() {
    let mut g = workshop();
    let path = |path: &str| json!({ "path": path });
    let root = g.world.path("").canonicalize().expect("the folder exists");
    let absolute = |path: &str| json!({ "path": root.join(path).to_string_lossy() });
    let elsewhere = path("elsewhere/z");
    for (a, b) in [
        (path("a/x"), path("a/y")),
        (path("./a/x"), path("a/../a/y")),
        (absolute("a/x"), path("a/y")),
        (json!({ "path": "p", "dest": "q" }), json!({ "path": "r", "dest": "s" })),
    ] {
        beside(&mut g, &a, &b);
    }
    for (a, b) in [
        (path("a"), path("a/y")),
        (path("a/y"), path("a")),
        (path("a"), path("./a/y")),
        (path("a"), path("b/../a/y")),
        (path("a/x/.."), path("a/y")),
        (path("a//x/"), path("a/x")),
        (absolute("a"), path("a/y")),
        (path("a/y"), absolute("a/./z/../y")),
        (json!({ "path": "p", "dest": "q" }), json!({ "path": "r", "dest": "p/below" })),
    ] {
        behind(&mut g, &a, &b, &elsewhere);
    }
}

#[cfg(unix)]
#[test]
fn s45_a_link_is_what_it_points_to() {
    let mut g = workshop();
    g.world.write("real/file", "");
    std::os::unix::fs::symlink(g.world.path("real"), g.world.path("link")).expect("a link can be made");
    let path = |path: &str| json!({ "path": path });
    behind(&mut g, &path("link/file"), &path("real/file"), &path("elsewhere"));
    behind(&mut g, &path("real/new/file"), &path("link"), &path("elsewhere"));
    beside(&mut g, &path("link/file"), &path("real/other"));
}

/// A call that waited is in the way of what its path names when its turn comes, not when it arrived.
#[cfg(unix)]
#[test]
fn s45_a_link_that_changes_while_a_call_waits_is_looked_at_again() {
    let mut g = workshop();
    let world = std::rc::Rc::clone(&g.world);
    ["one/file", "two/file"].iter().for_each(|file| world.write(file, ""));
    let link_to = |folder: &str| {
        let fresh = world.path("fresh");
        std::os::unix::fs::symlink(world.path(folder), &fresh).expect("a link can be made");
        std::fs::rename(&fresh, world.path("link")).expect("it can take the other's place");
    };
    link_to("one");
    let hold = |g: &mut G, folder: &str| {
        let id = g.post_call("m_sleep", json!({ "tag": folder, "ms": LONG, "path": folder }));
        until("the holding call runs", || has_begun(&world, folder));
        id
    };
    let (one, two) = (hold(&mut g, "one"), hold(&mut g, "two"));
    let waiting = g.post_call("m_sleep", json!({ "tag": "waiting", "ms": 1, "path": "link/file" }));
    g.request("ping", json!({}));
    link_to("two");
    cancel(&mut g, &one);
    until("the first one is gone", || world.events("cancel", "sleep").len() == 1);
    for tag in ["bystander", "another"] {
        g.done("m_sleep", json!({ "tag": tag, "ms": 1, "path": "elsewhere" }));
    }
    assert!(!has_begun(&world, "waiting"), "{:?}", spans(&world));
    cancel(&mut g, &two);
    let reply = g.reply(&waiting);
    assert_eq!(err_kind(&reply), None, "{reply}");
    let spans = spans(&world);
    assert!(spans["two"].is_before(spans["waiting"]), "{spans:?}");
}

#[test]
fn s46_nodes_are_apart_unless_they_are_the_same() {
    let mut g = workshop();
    let node = |node: &str| json!({ "node": node });
    beside(&mut g, &node("n1"), &node("n2"));
    beside(&mut g, &node("n1"), &json!({ "path": "n1" }));
    behind(&mut g, &node("n1"), &node("n1"), &node("n3"));
}

#[test]
fn s47_sessions_are_apart_unless_they_are_the_same() {
    let mut g = workshop();
    let session = |session: &str| json!({ "session": session });
    beside(&mut g, &session("s1"), &session("s2"));
    behind(&mut g, &session("s1"), &session("s1"), &session("s3"));
    // An agent may touch anything, so whatever is no session waits for it, and it for that.
    let session = |tag: &str| json!({ "tag": tag, "ms": 10, "session": "s1" });
    let calls = [
        ("m_sleep", json!({ "tag": "path", "ms": 10, "path": "a" })),
        ("m_sleep", session("1")),
        ("m_sleep", json!({ "tag": "node", "ms": 10, "node": "n" })),
        ("m_sleep", session("2")),
        ("m_ro", json!({ "tag": "read", "ms": 10 })),
        ("m_sleep", session("3")),
    ];
    pipelined(&mut g, &calls);
    let spans = spans(&g.world);
    for pair in ["path", "1", "node", "2", "read", "3"].windows(2) {
        assert!(spans[pair[0]].is_before(spans[pair[1]]), "{pair:?} {spans:?}");
    }
}

#[test]
fn s51_a_name_that_only_begins_like_another_is_another() {
    let mut g = workshop();
    beside(&mut g, &json!({ "path": "src/a" }), &json!({ "path": "src/ab" }));
    beside(&mut g, &json!({ "path": "src/ab" }), &json!({ "path": "src/a" }));
}

#[test]
fn s52_a_folder_and_what_lies_in_it_run_in_order_of_arrival() {
    let mut g = workshop();
    let (folder, file) = (json!({ "path": "src/a" }), json!({ "path": "src/a/b.rs" }));
    behind(&mut g, &folder, &file, &json!({ "path": "src/c" }));
    behind(&mut g, &file, &folder, &json!({ "path": "src/c" }));
    let world = std::rc::Rc::clone(&g.world);
    let holding = g.post_call("m_sleep", sleep(&folder, "q-0", LONG));
    until("the first call runs", || has_begun(&world, "q-0"));
    let ids: Vec<Value> = (1..8)
        .map(|n| {
            let touched = if n % 3 == 0 { &folder } else { &file };
            g.post_call("m_sleep", sleep(touched, &format!("q-{n}"), 3))
        })
        .collect();
    cancel(&mut g, &holding);
    for id in ids {
        assert_eq!(err_kind(&g.reply(&id)), None);
    }
    let begun: Vec<String> = order(&world).into_iter().filter(|tag| tag.starts_with("q-")).collect();
    let sent: Vec<String> = (0..8).map(|n| format!("q-{n}")).collect();
    assert_eq!(begun, sent);
    let spans = spans(&world);
    for pair in sent.windows(2) {
        assert!(spans[&pair[0]].is_before(spans[&pair[1]]), "{pair:?} {spans:?}");
    }
}

/// What waits is in the way of what comes later: a stream of small calls cannot keep a large one waiting.
#[test]
fn s52_nobody_overtakes_a_waiting_call_that_is_in_the_way() {
    let mut g = workshop();
    let world = std::rc::Rc::clone(&g.world);
    let holding = g.post_call("m_sleep", json!({ "tag": "first", "ms": LONG, "path": "a" }));
    until("the first call runs", || has_begun(&world, "first"));
    let both = g.post_call("m_sleep", json!({ "tag": "both", "ms": 3, "path": "a", "dest": "b" }));
    let last = g.post_call("m_sleep", json!({ "tag": "last", "ms": 3, "path": "b" }));
    g.done("m_sleep", json!({ "tag": "bystander", "ms": 0, "path": "z" }));
    assert_eq!(world.runs("sleep"), 2, "{:?}", spans(&world));
    cancel(&mut g, &holding);
    g.reply(&both);
    g.reply(&last);
    assert_eq!(order(&world), ["first", "bystander", "both", "last"]);
    let spans = spans(&world);
    assert!(spans["both"].is_before(spans["last"]), "{spans:?}");
}

/// Two sleeps, a command that claims everything, a sleep.
fn s56_calls(round: &str) -> Vec<(&'static str, Value)> {
    let sleep = |name: &str| {
        ("m_sleep", json!({ "tag": format!("{round}{name}"), "ms": 10, "path": format!("{round}/{name}") }))
    };
    vec![sleep("a"), sleep("b"), ("bash", json!({ "tag": format!("{round}bash") })), sleep("c")]
}

fn s56_holds(spans: &BTreeMap<String, Span>, round: &str) {
    let span = |name: &str| spans[&format!("{round}{name}")];
    assert!(span("a").is_before(span("bash")) && span("b").is_before(span("bash")), "{round} {spans:?}");
    assert!(span("bash").is_before(span("c")), "{round} {spans:?}");
}

/// Four writers that only end well if all four run at once.
fn s57_calls(round: &str) -> Vec<(&'static str, Value)> {
    let tag = |n: usize| format!("{round}w{n}");
    let all: Vec<String> = (0..4).map(tag).collect();
    let call = |n: usize| {
        ("write", json!({ "tag": tag(n), "path": format!("{round}/{n}"), "meets": all.join(" ") }))
    };
    (0..4).map(call).collect()
}

/// The most calls that ran at the same time.
fn most_at_once<'a>(spans: impl Iterator<Item = &'a Span>) -> usize {
    let mut steps: Vec<(usize, i64)> = spans.flat_map(|span| [(span.start, 1), (span.end, -1)]).collect();
    steps.sort_unstable();
    let (mut now, mut most) = (0, 0);
    for (_, change) in steps {
        now += change;
        most = most.max(now);
    }
    usize::try_from(most).expect("who ends has begun")
}

fn s57_holds(spans: &BTreeMap<String, Span>, round: &str) {
    let own = (0..4).map(|n| &spans[&format!("{round}w{n}")]);
    assert_eq!(most_at_once(own), 4, "{round} {spans:?}");
}

/// Two reads that have to meet, a command alone, two writes that have to meet.
fn s58_calls(round: &str) -> Vec<(&'static str, Value)> {
    // Once at leisure, so that whoever begins too early is seen; then in haste.
    let pause = if round.is_empty() { "0.1" } else { "0" };
    let tag = |name: &str| format!("{round}{name}");
    let pair = |a: &str, b: &str| {
        [(tag(a), tag(b)), (tag(b), tag(a))]
            .map(|(tag, other)| json!({ "path": tag.clone(), "tag": tag, "meets": other, "pause": pause }))
    };
    let ([r1, r2], [w1, w2]) = (pair("r1", "r2"), pair("p1", "p2"));
    let bash = json!({ "tag": tag("sh"), "pause": pause });
    vec![("ro", r1), ("ro", r2), ("bash", bash), ("write", w1), ("write", w2)]
}

fn s58_holds(spans: &BTreeMap<String, Span>, round: &str) {
    let names = ["r1", "r2", "sh", "p1", "p2"];
    let span = |name: &str| spans[&format!("{round}{name}")];
    let mut overlaps = Vec::new();
    for (i, a) in names.iter().enumerate() {
        for b in &names[i + 1..] {
            if span(a).overlaps(span(b)) {
                overlaps.push((*a, *b));
            }
        }
    }
    assert_eq!(overlaps, [("r1", "r2"), ("p1", "p2")], "{round} {spans:?}");
}

/// A read, a command alone, a read.
fn s59_calls(round: &str) -> Vec<(&'static str, Value)> {
    let ro = |name: &str| ("m_ro", json!({ "tag": format!("{round}{name}"), "ms": 5 }));
    vec![ro("x1"), ("bash", json!({ "tag": format!("{round}alone") })), ro("x2")]
}

fn s59_holds(spans: &BTreeMap<String, Span>, round: &str) {
    let span = |name: &str| spans[&format!("{round}{name}")];
    assert!(span("x1").is_before(span("alone")) && span("alone").is_before(span("x2")), "{round} {spans:?}");
}

/// The calls of a row, and what has to hold of how they ran.
pub type Row = (fn(&str) -> Vec<(&'static str, Value)>, fn(&BTreeMap<String, Span>, &str));
pub const S56: Row = (s56_calls, s56_holds);
pub const S57: Row = (s57_calls, s57_holds);
pub const S58: Row = (s58_calls, s58_holds);
pub const S59: Row = (s59_calls, s59_holds);

fn holds_pipelined((calls, holds): Row) {
    let mut g = workshop();
    for reply in pipelined(&mut g, &calls("")) {
        assert_eq!(run_of(&reply)["group"], Value::Null);
    }
    holds(&spans(&g.world), "");
}

#[test]
fn s56_what_claims_everything_waits_for_all_before_it_and_holds_up_all_behind_it() {
    holds_pipelined(S56);
}

#[test]
fn s57_t28_calls_that_touch_different_files_run_at_once() {
    holds_pipelined(S57);
}

#[test]
fn s58_reads_together_the_shell_alone_then_writes_together() {
    holds_pipelined(S58);
}

#[test]
fn s59_a_read_behind_the_shell_waits_for_it() {
    holds_pipelined(S59);
}

#[test]
fn c9_fifty_rounds_of_pipelined_calls_in_one_session() {
    let mut g = workshop();
    let rows = [S56, S57, S58, S59];
    let named = |round: usize, row: usize| format!("{round}.{row}.");
    for round in 0..50 {
        let calls: Vec<(&str, Value)> =
            rows.iter().enumerate().flat_map(|(row, (calls, _))| calls(&named(round, row))).collect();
        pipelined(&mut g, &calls);
    }
    let spans = spans(&g.world);
    assert_eq!(spans.len(), 50 * 16);
    for round in 0..50 {
        rows.iter().enumerate().for_each(|(row, (_, holds))| holds(&spans, &named(round, row)));
    }
}

/// A sequence of numbers that look random, and the seed they come from in the output.
pub struct Dice(u64);

impl Dice {
    /// `TOOLCRIB_SEED` repeats a run.
    pub fn new() -> Dice {
        use std::hash::{BuildHasher, Hasher, RandomState};
        let given = std::env::var("TOOLCRIB_SEED").ok().and_then(|text| text.parse().ok());
        let seed = given.unwrap_or_else(|| RandomState::new().build_hasher().finish());
        eprintln!("TOOLCRIB_SEED={seed}");
        Dice(seed | 1)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 11).expect("it has 53 bits") % n
    }

    /// One of several.
    pub fn of<'a, T: ?Sized>(&mut self, several: &[&'a T]) -> &'a T {
        several[self.below(several.len())]
    }
}

/// Whether two calls must not overlap, from their arguments alone.
pub fn conflict(a: (&str, &Value), b: (&str, &Value)) -> bool {
    /// What a call touches: its kind and its names.
    fn touched<'a>((tool, arguments): (&str, &'a Value)) -> (&'static str, Vec<&'a str>) {
        let names =
            |keys: &[&str]| keys.iter().filter_map(|key| arguments[*key].as_str()).collect::<Vec<_>>();
        let kinds = [
            ("paths", names(&["path", "dest"])),
            ("nodes", names(&["node"])),
            ("sessions", names(&["session"])),
        ];
        match tool {
            "m_ro" => ("reads m", Vec::new()),
            "ro" | "reads" => ("reads", Vec::new()),
            "m_hang" => ("nodes", names(&["tag"])),
            "write" | "m_sleep" | "touches" | "slow" => {
                let mut given = kinds.into_iter().filter(|(_, names)| !names.is_empty());
                match (given.next(), given.next()) {
                    (Some(kind), None) => kind,
                    _ => ("everything", Vec::new()),
                }
            }
            _ => ("everything", Vec::new()),
        }
    }
    let below = |a: &str, b: &str| a == b || a.strip_prefix(b).is_some_and(|rest| rest.starts_with('/'));
    let one_way = |(a, these): &(&str, Vec<&str>), (b, those): &(&str, Vec<&str>)| match (*a, *b) {
        ("reads" | "reads m", "reads" | "reads m") => false,
        ("everything", _) | ("sessions", "paths" | "nodes" | "reads" | "reads m") => true,
        ("reads", "paths" | "nodes") => true,
        ("paths", "paths") => these.iter().any(|a| those.iter().any(|b| below(a, b) || below(b, a))),
        ("nodes", "nodes") | ("sessions", "sessions") => these.iter().any(|a| those.contains(a)),
        _ => false,
    };
    let (a, b) = (touched(a), touched(b));
    one_way(&a, &b) || one_way(&b, &a)
}

/// Calls of all kinds with small footprints that often meet.
pub fn any_call(dice: &mut Dice, tag: &str, most_ms: usize) -> (&'static str, Value) {
    let ms = dice.below(most_ms);
    let mut arguments = json!({ "tag": tag, "ms": ms });
    let path = dice.of(&["a", "a/x", "a/y", "ab", "b", "b/c/d", "b/c", "c"]);
    match dice.below(10) {
        0 => return ("m_plain", arguments),
        1..3 => return ("m_ro", arguments),
        3 => arguments["node"] = json!(dice.of(&["n1", "n2", "n3"])),
        4 => arguments["session"] = json!(dice.of(&["s1", "s2"])),
        5 => (arguments["path"], arguments["dest"]) = (json!(path), json!(dice.of(&["c", "d"]))),
        6 if dice.below(3) == 0 => {}
        _ => arguments["path"] = json!(path),
    }
    ("m_sleep", arguments)
}

/// No two calls in each other's way overlap, and they began in the order in which they were sent.
pub fn assert_no_conflict(spans: &BTreeMap<String, Span>, sent: &[(&str, Value)]) {
    let ran: Vec<(&str, &Value, Span)> = sent
        .iter()
        .filter_map(|(tool, arguments)| {
            Some((*tool, arguments, *spans.get(arguments["tag"].as_str().expect("a tag"))?))
        })
        .collect();
    for (i, (tool, arguments, span)) in ran.iter().enumerate() {
        for (other_tool, other_arguments, other) in &ran[i + 1..] {
            if conflict((tool, arguments), (other_tool, other_arguments)) {
                let pair = format!("{tool} {arguments} {span:?}, {other_tool} {other_arguments} {other:?}");
                assert!(!span.overlaps(*other), "in each other's way: {pair}");
                assert!(
                    span.start.min(span.end) < other.start,
                    "not in the order in which they were sent: {pair}"
                );
            }
        }
    }
}

#[test]
fn c9_of_two_hundred_random_calls_no_two_in_each_others_way_overlap() {
    let mut g = workshop();
    let mut dice = Dice::new();
    let calls: Vec<(&str, Value)> = (0..200)
        .map(|n| match dice.below(25) {
            0 => ("bash", json!({ "tag": n.to_string() })),
            1 => ("ro", json!({ "tag": n.to_string() })),
            2 => ("write", json!({ "tag": n.to_string(), "path": dice.of(&["a/x", "b"]) })),
            _ => any_call(&mut dice, &n.to_string(), 8),
        })
        .collect();
    pipelined(&mut g, &calls);
    let spans = spans(&g.world);
    assert_eq!(spans.len(), 200);
    assert_no_conflict(&spans, &calls);
}

#[test]
fn c9_a_read_does_not_wait_for_a_long_read() {
    let mut g = workshop();
    let world = std::rc::Rc::clone(&g.world);
    let long = g.post_call("m_ro", json!({ "tag": "long", "ms": 10_000 }));
    until("the long call runs", || has_begun(&world, "long"));
    g.done("m_ro", json!({ "tag": "short" }));
    g.done("ro", json!({ "tag": "a command" }));
    assert!(!g.has_reply(&long));
    let end = world.events("end", "ro").iter().map(|event| event["tag"].clone()).collect::<Vec<_>>();
    assert_eq!(end, ["short"], "the long call is still running");
    cancel(&mut g, &long);
    until("the long call is cancelled", || world.events("cancel", "ro").len() == 1);
}

#[test]
fn t26_commands_that_are_not_parallel_safe_run_one_by_one_in_order_of_arrival() {
    let unsafe_step = |name: &str| step(name, "parallel_safe = false\n");
    let config = [BARE, &unsafe_step("one"), &unsafe_step("two"), &unsafe_step("three")].concat();
    let mut g = G::new(&config);
    for round in 0..5 {
        let calls = ["three", "one", "two"]
            .map(|tool| (tool, json!({ "tag": format!("{round}-{tool}"), "pause": "0.01" })));
        pipelined(&mut g, &calls);
        let spans = spans(&g.world);
        let span = |tool: &str| spans[&format!("{round}-{tool}")];
        assert!(span("three").is_before(span("one")) && span("one").is_before(span("two")), "{spans:?}");
    }
}

#[test]
fn t26_one_call_at_a_time_is_serial_even_for_reads_and_within_a_batch() {
    let config = format!("{BARE}[tools]\nmax_parallel_calls = 1\nbatch = true\n{CLAIMS}{M}{}", steps());
    let mut g = G::new(&config);
    g.list();
    let world = std::rc::Rc::clone(&g.world);
    let holding = g.post_call("m_ro", json!({ "tag": "0", "ms": LONG }));
    until("the first call runs", || has_begun(&world, "0"));
    let calls = [
        ("m_ro", json!({ "tag": "1" })),
        ("m_sleep", json!({ "tag": "2", "ms": 1, "path": "a" })),
        ("ro", json!({ "tag": "3" })),
        ("m_sleep", json!({ "tag": "4", "ms": 1, "path": "b" })),
    ];
    let ids: Vec<Value> =
        calls.iter().map(|(tool, arguments)| g.post_call(tool, arguments.clone())).collect();
    g.request("ping", json!({}));
    cancel(&mut g, &holding);
    for id in &ids {
        assert_eq!(err_kind(&g.reply(id)), None);
    }
    assert_eq!(order(&world), ["0", "1", "2", "3", "4"]);
    let in_batch: Vec<Value> = ["5", "6", "7"]
        .iter()
        .map(|tag| json!({ "name": "m_ro", "arguments": { "tag": tag, "ms": 3 } }))
        .collect();
    g.done("call_tools", json!({ "calls": in_batch }));
    let spans = spans(&world);
    assert_eq!(most_at_once(spans.values()), 1, "{spans:?}");
}

/// The default is sixteen, in order of arrival.
#[test]
fn c9_at_most_sixteen_calls_run_at_once() {
    let mut g = workshop();
    let world = std::rc::Rc::clone(&g.world);
    let mut ids: Vec<Value> =
        (0..20).map(|n| g.post_call("m_ro", json!({ "tag": format!("{n:02}"), "ms": LONG }))).collect();
    until("sixteen calls run", || world.events("start", "ro").len() >= 16);
    g.request("ping", json!({}));
    assert_eq!(world.events("start", "ro").len(), 16);
    for more in 17..=20 {
        let first = ids.remove(0);
        cancel(&mut g, &first);
        until("one ends, one begins", || world.events("start", "ro").len() == more);
    }
    ids.iter().for_each(|id| cancel(&mut g, id));
    until("all are cancelled", || world.events("cancel", "ro").len() == 20);
    assert_eq!(most_at_once(spans(&world).values()), 16);
}

#[test]
fn s45_a_hundred_edits_of_one_file_are_all_in_it() {
    let world = World::new("[builtins]\nenabled = [\"file_edit\"]\nroots = [\"@dir@/files\"]\n");
    let line = |n: usize, what: &str| format!("line {n:03} is {what}.\n");
    world.write("files/one.txt", &(0..100).map(|n| line(n, "old")).collect::<String>());
    let mut g = world.session();
    let spelling = |n: usize| match n % 3 {
        0 => "one.txt".to_owned(),
        1 => "./../files/one.txt".to_owned(),
        _ => world.path("files/one.txt").to_string_lossy().into_owned(),
    };
    let calls: Vec<(&str, Value)> = (0..100)
        .map(|n| {
            let (old, new) = (line(n, "old"), line(n, "new"));
            ("file_edit", json!({ "path": spelling(n), "old_text": old, "new_text": new }))
        })
        .collect();
    pipelined(&mut g, &calls);
    let text = std::fs::read_to_string(world.path("files/one.txt")).expect("the file is there");
    assert_eq!(text, (0..100).map(|n| line(n, "new")).collect::<String>());
}

#[test]
fn s45_a_hundred_edits_of_a_hundred_files_are_all_made() {
    let config = format!(
        "[builtins]\nenabled = [\"file_edit\"]\nroots = [\"@dir@/files\"]\n{}",
        step("edit", "claim = { paths = [\"path\"] }\n")
    );
    let world = World::new(&config);
    let name = |n: usize| format!("files/{n}.txt");
    (0..100).for_each(|n| world.write(&name(n), "before"));
    let mut g = world.session();
    let edits: Vec<(&str, Value)> = (0..100)
        .map(|n| {
            (
                "file_edit",
                json!({ "path": format!("{n}.txt"), "old_text": "before", "new_text": n.to_string() }),
            )
        })
        .collect();
    let replies = pipelined(&mut g, &edits);
    for (n, reply) in replies.iter().enumerate() {
        let text = std::fs::read_to_string(world.path(&name(n))).expect("the file is there");
        assert_eq!(text, n.to_string());
        assert_eq!(run_of(reply)["claim"], format!("exclusive paths {n}.txt"));
    }
    // The same claims, with programs: each ends only beside its neighbour.
    let steps: Vec<(&str, Value)> = (0..100)
        .map(|n| ("edit", json!({ "path": name(n), "tag": format!("t{n}"), "meets": format!("t{}", n ^ 1) })))
        .collect();
    pipelined(&mut g, &steps);
    let spans = spans(&world);
    assert!((0..50).all(|n| spans[&format!("t{}", 2 * n)].overlaps(spans[&format!("t{}", 2 * n + 1)])));
}

/// The client has all the time it wants; the budget is the tool's alone, and nobody waits for a person.
#[test]
fn s62_a_person_who_thinks_costs_the_call_nothing_and_delays_nobody() {
    let config = format!("{BARE}[tools.limits]\nm_danger = 1000\n{M}");
    let mut g = G::asking(&config, "nothing");
    g.list();
    let waiting = g.post_call("m_danger", json!({ "tag": "t" }));
    let question = g.question();
    // Both claim everything, as the one that waits does.
    g.done("m_plain", json!({}));
    g.done("m_sleep", json!({ "ms": 1 }));
    assert!(!g.has_reply(&waiting));
    // The one pause of these tests: the answer has to come after the limit.
    std::thread::sleep(std::time::Duration::from_millis(1200));
    let yes = json!({ "action": "accept", "content": { "decision": "allow_once" } });
    g.send(&json!({ "jsonrpc": "2.0", "id": question["id"], "result": yes }));
    let reply = g.reply(&waiting);
    assert_eq!(text(&reply["result"]), "done", "{reply}");
    assert_eq!((g.prompts.len(), g.world.runs("danger")), (1, 1));
    // Nor is it told as a wait for other calls.
    assert!(run_of(&reply)["waited_ms"].as_f64().is_some_and(|waited| waited < 1000.0), "{reply}");
}

/// What is known about a server from an earlier start is enough for a place.
#[test]
fn s52_a_call_for_a_known_server_that_is_still_starting_keeps_its_place() {
    let world = World::new(&format!("{BARE}{CLAIMS}{M}{}", steps()));
    world.session().list();
    let mut g = world.session();
    g.list();
    let calls = [("m_plain", json!({ "tag": "early" })), ("bash", json!({ "tag": "late" }))];
    pipelined(&mut g, &calls);
    assert_eq!(order(&world), ["early", "late"]);
}

/// What a tool touches is not known before the tool is: until then such calls keep their own order, hold up nobody else,
/// and overlap nobody whom they must not.
#[test]
fn s52_calls_for_a_server_that_was_never_up_keep_their_order_among_themselves() {
    let mut g = G::new(&format!("{BARE}{CLAIMS}{M}{}", steps()));
    let calls = [
        ("m_plain", json!({ "tag": "first", "ms": 20 })),
        ("bash", json!({ "tag": "other" })),
        ("m_plain", json!({ "tag": "second", "ms": 20 })),
        ("m_plain", json!({ "tag": "third" })),
    ];
    pipelined(&mut g, &calls);
    let order = order(&g.world);
    let own: Vec<&str> = order.iter().map(String::as_str).filter(|tag| *tag != "other").collect();
    assert_eq!(own, ["first", "second", "third"]);
    assert!(order.iter().any(|tag| tag == "other"), "{order:?}");
}

#[test]
fn s64_a_call_whose_server_ends_is_a_transport_error_and_is_not_sent_twice() {
    let claims = "[tools.claims]\n\"m_plain\" = { nodes = [\"tag\"] }\n\"m_die\" = { nodes = [\"=die\"] }\n";
    let mut g = G::new(&format!("{BARE}{claims}{M}"));
    g.list();
    let world = std::rc::Rc::clone(&g.world);
    let plain = g.post_call("m_plain", json!({ "tag": "p", "ms": LONG }));
    until("the call runs", || has_begun(&world, "p"));
    g.fails("m_die", json!({}), "transport");
    let reply = g.reply(&plain);
    assert_eq!(err_kind(&reply), Some("transport"), "{reply}");
    assert_eq!(facts(&reply)["executed"], "maybe");
    assert_eq!(
        (&run_of(&reply)["attempts"], &run_of(&reply)["claim"]),
        (&json!(1), &json!("exclusive nodes p"))
    );
    // The server is up again, and nothing of the old calls reaches it.
    g.done("m_ro", json!({}));
    assert_eq!((world.pids().len(), world.runs("plain"), world.runs("die")), (2, 1, 1));
}

/// A server whose tools end it when they are called the first time.
const DIES_ONCE: &str = r#"
[mcp_servers.f]
command = "sh"
args = ["-c", '''
if [ -e "$1" ]; then set -- ok "$2" "$3"; else touch "$1"; set -- 'on_call={"*":{"crash":3}}' "$2" "$3"; fi
[ "$1" = ok ] && set -- wire.bom=false "$2" "$3"
exec python3 "$2" --name f --journal "$3" --set "$1" --set 'tools=[
  {"name":"reads","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true}},
  {"name":"again","inputSchema":{"type":"object"},"annotations":{"idempotentHint":true}},
  {"name":"plain","inputSchema":{"type":"object"}}]'
''', "start", "@dir@/died", "@fixtures@/fake_upstream.py", "@dir@/journal"]
"#;

#[test]
fn s64_what_may_be_repeated_is_sent_once_more_when_its_server_dies() {
    let calls = |world: &World| {
        let journal = std::fs::read_to_string(world.path("journal")).expect("the server has started");
        let events = journal.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        events.filter(|event| event["dir"] == "in" && event.to_string().contains("tools/call")).count()
    };
    for tool in ["f_reads", "f_again"] {
        let mut g = G::new(&format!("{BARE}{DIES_ONCE}"));
        g.list();
        let reply = g.call(tool, json!({}));
        assert_eq!(err_kind(&reply), None, "{tool}: {reply}\n{}", g.stderr());
        assert_eq!(run_of(&reply)["attempts"], 2, "{tool}: {reply}");
        // The pause between the two is part of the run.
        assert!(run_of(&reply)["ran_ms"].as_f64().is_some_and(|ran| ran >= 100.0), "{reply}");
        assert_eq!(calls(&g.world), 2, "{tool}");
    }
    let mut g = G::new(&format!("{BARE}{DIES_ONCE}"));
    g.list();
    let reply = g.call("f_plain", json!({}));
    assert_eq!((err_kind(&reply), &run_of(&reply)["attempts"]), (Some("transport"), &json!(1)), "{reply}");
    assert_eq!(calls(&g.world), 1);
}

#[test]
fn s70_a_call_beyond_its_limit_is_a_timeout_that_says_how_long_it_took() {
    let mut g = G::new(&format!("{BARE}[tools.limits]\nm_hang = 300\n\"m_*\" = 20000\n{M}"));
    g.list();
    let reply = g.call("m_hang", json!({ "tag": "h" }));
    assert_eq!(err_kind(&reply), Some("timeout"), "{reply}");
    let error = facts(&reply);
    assert!(error["elapsed_ms"].as_u64().is_some_and(|elapsed| (300..20_000).contains(&elapsed)), "{error}");
    assert_eq!((&error["retryable"], &error["executed"]), (&json!(true), &json!("maybe")));
    assert_eq!(run_of(&reply)["attempts"], 1);
    // The place is free, and the server was told.
    g.done("m_plain", json!({}));
    assert_eq!(g.world.events("cancel", "hang").len(), 1);
}

#[test]
fn s49_every_result_tells_how_the_call_went() {
    let mut g = workshop();
    for (tool, arguments, claim) in [
        ("m_ro", json!({}), "shared nodes m"),
        ("ro", json!({ "tag": "ro" }), "shared"),
        ("bash", json!({ "tag": "bash" }), "exclusive"),
        ("m_plain", json!({}), "exclusive"),
        ("m_sleep", json!({ "ms": 1, "path": "./a", "dest": "b" }), "exclusive paths ./a, b"),
        ("m_sleep", json!({ "ms": 1, "node": "n" }), "exclusive nodes n"),
        ("m_sleep", json!({ "ms": 1, "session": "s" }), "exclusive sessions s"),
        ("m_sleep", json!({ "ms": 1 }), "exclusive"),
        ("m_boom", json!({}), "exclusive"),
    ] {
        let reply = g.call(tool, arguments);
        let run = run_of(&reply);
        assert_eq!((&run["claim"], &run["attempts"]), (&json!(claim), &json!(1)), "{tool}: {reply}");
        assert_eq!(run["group"], Value::Null, "{tool}: {reply}");
        for time in ["waited_ms", "ran_ms"] {
            assert!(run[time].as_f64().is_some_and(|ms| ms >= 0.0), "{tool}: {reply}");
        }
        let members: Vec<&String> = run.as_object().expect("it is an object").keys().collect();
        assert_eq!(members, ["claim", "waited_ms", "ran_ms", "attempts", "group"]);
    }
    // What never came to run has nothing to tell.
    assert_eq!(*run_of(&g.call("m_sleep", json!({ "ms": "x" }))), Value::Null);
    let mut g = G::modern(&format!("{BARE}{M}"));
    let reply = g.call("m_ro", json!({}));
    assert_eq!(run_of(&reply)["claim"], "shared nodes m", "{reply}");
}

#[test]
fn s53_mistakes_in_claims_are_start_up_errors_with_their_place() {
    for (claim, said) in [
        ("\"exclusve\"", "exclusive"),
        ("5", "shared"),
        ("{}", "`paths`, `nodes` or `sessions`"),
        ("{ path = [\"p\"] }", "path"),
        ("{ paths = \"p\" }", "paths"),
        ("{ paths = [\"\"] }", "a reference must be"),
        ("{ paths = [\"p\"], access = \"reads\" }", "reads"),
        ("{ cases = { a = \"shared\" } }", "`by`"),
        ("{ by = \"op\", paths = [\"p\"] }", "`cases`"),
        ("{ by = \"op\", cases = { a = \"nothing\" } }", "nothing"),
    ] {
        let config = format!("{BARE}{M}\n[tools.claims]\n\"m_ok\" = \"shared\"\n\"m_sleep\" = {claim}\n");
        let line = config.lines().position(|line| line.starts_with("\"m_sleep\"")).expect("it is there") + 1;
        let ended = World::new(&config).run(&["serve"]);
        let stderr = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(!ended.status.success() && ended.stdout.is_empty(), "{claim}: {stderr}");
        assert!(stderr.contains(&format!("tools.toml:{line}")), "{claim}: {stderr}");
        assert!(stderr.contains(said), "{claim}: {stderr}");
    }
}

/// Who leaves the queue lets those go who waited only for it.
#[test]
fn s61_a_waiting_call_that_is_cancelled_is_in_nobodys_way_any_more() {
    let mut g = workshop();
    let world = std::rc::Rc::clone(&g.world);
    let holding = g.post_call("m_sleep", json!({ "tag": "first", "ms": LONG, "path": "a" }));
    until("the first call runs", || has_begun(&world, "first"));
    let both = g.post_call("m_sleep", json!({ "tag": "both", "ms": 1, "path": "a", "dest": "b" }));
    let last = g.post_call("m_sleep", json!({ "tag": "last", "ms": 1, "path": "b" }));
    g.request("ping", json!({}));
    assert!(!g.has_reply(&last));
    cancel(&mut g, &both);
    assert_eq!(err_kind(&g.reply(&last)), None);
    assert_eq!(order(&world), ["first", "last"]);
    cancel(&mut g, &holding);
}

#[test]
fn s70_a_wait_for_other_calls_is_no_part_of_a_calls_time() {
    let config = format!("{BARE}[tools.limits]\nm_plain = 300\n{CLAIMS}{M}{}", steps());
    let mut g = G::new(&config);
    g.list();
    let calls = [("bash", json!({ "tag": "slow", "pause": "0.6" })), ("m_plain", json!({ "tag": "quick" }))];
    let replies = pipelined(&mut g, &calls);
    let waited = run_of(&replies[1])["waited_ms"].as_f64().expect("a time");
    assert!(waited >= 600.0, "{}", replies[1]);
}

/// A server that says of none of its tools what it does is older than the hints: its calls run beside each other, as
/// without a gateway, but not beside one that changes something.
#[test]
fn s44_calls_of_a_server_that_declares_nothing_run_beside_each_other_only() {
    let tools = r#"tools=[{"name":"hang","inputSchema":{"type":"object"}},{"name":"echo","inputSchema":{"type":"object"}}]"#;
    let old = crate::support::fake("old", &[tools, r#"on_call={"hang":{"hang":true}}"#]);
    let mut g = G::new(&format!("{BARE}{old}{}", steps()));
    g.list();
    let hanging = g.post_call("old_hang", json!({}));
    let beside = g.call("old_echo", json!({ "n": 1 }));
    assert_eq!(run_of(&beside)["claim"], "shared");
    let alone = g.post_call("bash", json!({ "tag": "alone" }));
    g.request("ping", json!({}));
    assert!(!has_begun(&g.world, "alone"), "it ran beside a call that nobody knows anything about");
    cancel(&mut g, &hanging);
    assert_eq!(run_of(&g.reply(&alone))["claim"], "exclusive");
}

/// What is declared about one tool tells that the author knows the hints: of the others the worst is assumed.
#[test]
fn s46_an_isolated_server_claims_itself_and_a_tool_without_hints_everything() {
    let named = |name: &str, more: &str| {
        format!(
            "[mcp_servers.{name}]\ncommand = \"python3\"\nargs = [\"@fixtures@/m_server.py\", \"--log\", \"@dir@/m.log\"]\n{more}"
        )
    };
    let config = format!("{BARE}{}{}", named("a", "isolated = true\n"), named("b", "isolated = true\n"));
    let mut g = G::new(&config);
    g.list();
    let held = g.post_call("a_hang", json!({ "tag": "held" }));
    let world = std::rc::Rc::clone(&g.world);
    until("it runs", || has_begun(&world, "held"));
    let behind = g.post_call("a_plain", json!({ "tag": "behind" }));
    assert_eq!(run_of(&g.call("b_plain", json!({ "tag": "other" })))["claim"], "exclusive nodes b");
    assert!(!has_begun(&world, "behind"));
    cancel(&mut g, &held);
    assert_eq!(run_of(&g.reply(&behind))["claim"], "exclusive nodes a");
    let mut g = G::new(&format!("{BARE}{M}"));
    assert_eq!(run_of(&g.call("m_plain", json!({})))["claim"], "exclusive");
    assert_eq!(run_of(&g.call("m_ro", json!({})))["claim"], "shared nodes m");
}
