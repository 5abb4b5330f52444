//! Laws of claims, of groups and of the order of calls, each over ten thousand generated cases.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures::FutureExt;
use toolcrib::executor::schedule::{Place, Schedule};
use toolcrib::tools::concurrency::{ClaimPath, ConcurrencyClaim, Scope, partition_parallel_groups};

/// Cases of one law.
const CASES: u64 = 10_000;

/// The seed of a run in which `TOOLCRIB_SEED` says nothing.
const DEFAULT_SEED: u64 = 20_260_728;

/// Which case failed: the same seed makes the same cases again.
#[derive(Debug, Clone, Copy)]
struct Case {
    seed: u64,
    number: u64,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TOOLCRIB_SEED={} case {}", self.seed, self.number)
    }
}

fn seed() -> u64 {
    match std::env::var("TOOLCRIB_SEED") {
        Ok(text) => text.trim().parse().expect("TOOLCRIB_SEED is a number"),
        Err(_) => DEFAULT_SEED,
    }
}

/// Shows a law, case by case.
fn each(mut law: impl FnMut(&mut Random, Case)) {
    let seed = seed();
    eprintln!("TOOLCRIB_SEED={seed}");
    for number in 0..CASES {
        law(&mut Random::of(seed, number), Case { seed, number });
    }
}

/// Numbers that look random: xorshift, seeded through a mixer so that neighbouring cases differ.
pub struct Random(u64);

impl Random {
    pub fn of(seed: u64, number: u64) -> Random {
        let mut mixed = seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Random((mixed ^ (mixed >> 31)) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, end: usize) -> usize {
        usize::try_from((self.next() >> 16) % u64::try_from(end).expect("it is small"))
            .expect("it is smaller")
    }

    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }
}

/// Names of folders: few, and one begins like another.
const FOLDERS: [&str; 3] = ["a", "ab", "b"];
/// Names of things; some are spelled like those of paths and sessions.
const NODES: [&str; 3] = ["a", "/a", "p/a"];
const SESSIONS: [&str; 3] = ["a", "b", "n/a"];
/// Folders above the deepest path.
const DEPTH: usize = 3;

/// What a claim says, in the words of the design and in none of the product's.
#[derive(Debug, Clone)]
struct Said {
    changes: bool,
    touches: Touches,
    /// Everything that it touches, a bit for each.
    things: u64,
}

#[derive(Debug, Clone)]
enum Touches {
    Anything,
    Paths(Vec<Vec<&'static str>>),
    Nodes(Vec<&'static str>),
    Sessions(Vec<&'static str>),
}

impl Said {
    fn some(random: &mut Random) -> Said {
        let many = 1 + random.below(4) / 2;
        let touches = match random.below(10) {
            0 | 1 => Touches::Anything,
            2..6 => Touches::Paths(
                (0..many)
                    .map(|_| (0..random.below(DEPTH + 1)).map(|_| random.pick(&FOLDERS)).collect())
                    .collect(),
            ),
            6 | 7 => Touches::Nodes((0..many).map(|_| random.pick(&NODES)).collect()),
            _ => Touches::Sessions((0..many).map(|_| random.pick(&SESSIONS)).collect()),
        };
        let things = touches.things();
        Said { changes: random.below(5) < 3, touches, things }
    }

    fn claim(&self) -> ConcurrencyClaim {
        let scope = match &self.touches {
            Touches::Anything => Scope::Global,
            Touches::Paths(paths) => Scope::paths(paths.iter().map(|parts| {
                let parts = parts.iter().map(|part| Box::from(*part)).collect();
                ClaimPath::rooted(parts, "as it was written")
            })),
            Touches::Nodes(names) => Scope::nodes(names.iter().copied()),
            Touches::Sessions(names) => Scope::sessions(names.iter().copied()),
        };
        if self.changes { ConcurrencyClaim::Exclusive(scope) } else { ConcurrencyClaim::shared_in(scope) }
    }

    /// Section 6 of the design by brute force: everything there is is listed, and what both touch is looked for.
    fn conflicts_with(&self, other: &Said) -> bool {
        if !self.changes && !other.changes {
            return false;
        }
        match (&self.touches, &other.touches) {
            (Touches::Sessions(a), Touches::Sessions(b)) => a.iter().any(|name| b.contains(name)),
            // An agent may touch anything.
            (Touches::Sessions(_), _) | (_, Touches::Sessions(_)) => true,
            _ => self.things & other.things != 0,
        }
    }
}

impl Touches {
    /// One bit for each path down to the deepest, then one for each node.
    fn things(&self) -> u64 {
        let paths = all_paths();
        let nodes = NODES.iter().enumerate().map(|(i, name)| (paths.len() + i, name));
        match self {
            Touches::Anything => u64::MAX,
            Touches::Paths(named) => {
                // A folder is all that lies in it.
                let lies_in = |path: &Vec<&str>| named.iter().any(|top| path.starts_with(top));
                paths
                    .iter()
                    .enumerate()
                    .filter(|(_, path)| lies_in(path))
                    .fold(0, |bits, (i, _)| bits | 1 << i)
            }
            Touches::Nodes(named) => {
                nodes.filter(|(_, name)| named.contains(name)).fold(0, |bits, (i, _)| bits | 1 << i)
            }
            // Compared by name, or not at all.
            Touches::Sessions(_) => 0,
        }
    }
}

fn all_paths() -> &'static [Vec<&'static str>] {
    static ALL: std::sync::OnceLock<Vec<Vec<&str>>> = std::sync::OnceLock::new();
    ALL.get_or_init(|| {
        let mut all: Vec<Vec<&str>> = vec![Vec::new()];
        let mut from = 0;
        for _ in 0..DEPTH {
            let to = all.len();
            for parent in from..to {
                for name in FOLDERS {
                    let path = [all[parent].as_slice(), &[name]].concat();
                    all.push(path);
                }
            }
            from = to;
        }
        assert!(all.len() + NODES.len() < 64, "a bit for each");
        all
    })
}

fn some_calls(random: &mut Random, most: usize) -> Vec<Said> {
    (0..random.below(most + 1)).map(|_| Said::some(random)).collect()
}

fn claims(said: &[Said]) -> Vec<ConcurrencyClaim> {
    said.iter().map(Said::claim).collect()
}

#[test]
fn s43_s44_s45_s46_s47_s48_conflicts_are_symmetric_and_as_designed() {
    each(|random, case| {
        let (a, b) = (Said::some(random), Said::some(random));
        let (claim, other) = (a.claim(), b.claim());
        let expected = a.conflicts_with(&b);
        assert_eq!(claim.conflicts_with(&other), expected, "{case}: {a:?} with {b:?}");
        assert_eq!(other.conflicts_with(&claim), expected, "{case}: {b:?} with {a:?}");
        assert_eq!(claim.conflicts_with(&claim), a.changes, "{case}: {a:?} with itself");
    });
}

#[test]
fn s54_groups_tile_all_calls_in_order() {
    each(|random, case| {
        let said = some_calls(random, 16);
        let mut next = 0;
        for group in partition_parallel_groups(&claims(&said)) {
            assert!(group.start == next && group.end > next, "{case}: {group:?} after {next} of {said:?}");
            next = group.end;
        }
        assert_eq!(next, said.len(), "{case}: {said:?}");
    });
}

#[test]
fn s55_groups_hold_no_conflict_and_end_only_at_one() {
    each(|random, case| {
        let said = some_calls(random, 16);
        let groups = partition_parallel_groups(&claims(&said));
        for group in &groups {
            let inside = said[group.clone()]
                .iter()
                .enumerate()
                .any(|(i, a)| said[group.start + i + 1..group.end].iter().any(|b| a.conflicts_with(b)));
            assert!(!inside, "{case}: {group:?} of {said:?}");
        }
        for (before, group) in groups.iter().zip(&groups[1.min(groups.len())..]) {
            let first = &said[group.start];
            let has_reason = said[before.clone()].iter().any(|member| member.conflicts_with(first));
            assert!(has_reason, "{case}: {group:?} could have joined {before:?} of {said:?}");
        }
    });
}

/// Every call that has arrived, compared with what the rule says about it, slowly.
///
/// The rule: a call is free as soon as it conflicts with no earlier call that has not finished, whether that one runs or
/// waits. What is aside runs as soon as it is free. Of the others, the earliest that are free run, as many as there is
/// room for; who waits for room only is still in the way of later calls that conflict with it.
struct Oracle {
    cap: usize,
    said: Vec<Said>,
    /// For each call the earlier ones that it conflicts with.
    in_the_way: Vec<Vec<usize>>,
    is_aside: Vec<bool>,
    is_running: Vec<bool>,
    /// Numbers of those that have not finished, in order of arrival.
    here: Vec<usize>,
    /// What the product says, by number.
    places: Vec<Option<Place>>,
    schedule: Arc<Schedule>,
}

impl Oracle {
    fn new(cap: usize) -> Oracle {
        Oracle {
            cap,
            said: Vec::new(),
            in_the_way: Vec::new(),
            is_aside: Vec::new(),
            is_running: Vec::new(),
            here: Vec::new(),
            places: Vec::new(),
            schedule: Schedule::new(cap),
        }
    }

    fn arrives(&mut self, said: Said, is_aside: bool) {
        let claim = said.claim();
        let place = if is_aside { self.schedule.join_aside(&claim) } else { self.schedule.join(&claim) };
        let others = self.here.iter().copied();
        self.in_the_way.push(others.filter(|&other| self.said[other].conflicts_with(&said)).collect());
        self.here.push(self.said.len());
        self.said.push(said);
        self.is_aside.push(is_aside);
        self.is_running.push(false);
        self.places.push(Some(place));
        self.settle();
    }

    /// The call at this position of `here` ends, or is given up, whichever it does.
    fn leaves(&mut self, at: usize) {
        let number = self.here.remove(at);
        self.places[number] = None;
        self.is_running[number] = false;
        self.settle();
    }

    fn settle(&mut self) {
        let mut room =
            self.cap - self.here.iter().filter(|&&n| self.is_running[n] && !self.is_aside[n]).count();
        for &number in &self.here {
            let is_free = || !self.in_the_way[number].iter().any(|other| self.here.contains(other));
            if self.is_running[number] || (!self.is_aside[number] && room == 0) || !is_free() {
                continue;
            }
            self.is_running[number] = true;
            room -= usize::from(!self.is_aside[number]);
        }
    }

    fn check(&self, case: Case) {
        let is_running = |number: &usize| self.places[*number].as_ref().is_some_and(Place::is_running);
        let running: Vec<usize> = self.here.iter().copied().filter(is_running).collect();
        let expected: Vec<usize> = self.here.iter().copied().filter(|&n| self.is_running[n]).collect();
        assert_eq!(running, expected, "{case}: cap {} of {:?}, here {:?}", self.cap, self.said, self.here);
        let load = (running.len(), self.here.len() - running.len());
        assert_eq!(self.schedule.load(), load, "{case}: {:?}", self.said);
        for (i, &a) in running.iter().enumerate() {
            let overlap = running[..i].iter().any(|b| self.in_the_way[a].contains(b));
            assert!(!overlap, "{case}: {a} runs beside what it conflicts with: {:?}", self.said);
        }
    }
}

/// Nobody is in the order any more, and nothing is left of those who were.
fn assert_idle(schedule: &Arc<Schedule>, case: Case) {
    assert_eq!(schedule.load(), (0, 0), "{case}");
    assert!(schedule.is_idle(), "{case}: something is left");
    assert!(schedule.join(&ConcurrencyClaim::GLOBAL).is_running(), "{case}: something is in the way");
}

fn some_cap(random: &mut Random) -> usize {
    match random.below(8) {
        0 | 1 => usize::MAX,
        cap => cap - 1,
    }
}

#[test]
fn s44_s45_s46_s47_s48_t26_calls_start_in_order_as_soon_as_nothing_earlier_is_in_the_way() {
    each(|random, case| {
        let mut oracle = Oracle::new(some_cap(random));
        for _ in 0..2 + random.below(10) {
            match random.below(8) {
                0..3 if !oracle.here.is_empty() => oracle.leaves(random.below(oracle.here.len())),
                3 => oracle.arrives(Said::some(random), true),
                _ => oracle.arrives(Said::some(random), false),
            }
            oracle.check(case);
        }
        while !oracle.here.is_empty() {
            oracle.leaves(random.below(oracle.here.len()));
            oracle.check(case);
        }
        assert_idle(&oracle.schedule, case);
    });
}

/// A place whose waker is known to the order, as that of a call whose task has gone on waiting.
fn polled(place: &Place) {
    let begin = std::pin::pin!(place.begin());
    let _ = begin.poll(&mut Context::from_waker(Waker::noop()));
}

#[test]
fn s61_whoever_gives_up_at_whatever_moment_leaves_nothing_behind() {
    each(|random, case| {
        let schedule = Schedule::new(some_cap(random));
        let mut places: Vec<Place> = Vec::new();
        for said in some_calls(random, 7) {
            places.push(match random.below(6) {
                0 => schedule.join_aside(&said.claim()),
                _ => schedule.join(&said.claim()),
            });
            if random.below(2) == 0 {
                polled(&places[random.below(places.len())]);
            }
            if random.below(3) == 0 {
                drop(places.swap_remove(random.below(places.len())));
            }
        }
        match random.below(3) {
            0 => drop(places),
            1 => places.into_iter().rev().for_each(drop),
            _ => {
                while !places.is_empty() {
                    drop(places.swap_remove(random.below(places.len())));
                }
            }
        }
        assert_idle(&schedule, case);
    });
}

/// When each call starts if all arrive at once and take so long.
fn starts(cap: usize, claims: &[ConcurrencyClaim], lengths: &[usize]) -> Vec<usize> {
    let schedule = Schedule::new(cap);
    let mut places: Vec<Option<Place>> = claims.iter().map(|claim| Some(schedule.join(claim))).collect();
    let mut starts: Vec<Option<usize>> = vec![None; claims.len()];
    let mut now = 0;
    while places.iter().any(Option::is_some) {
        for (start, place) in starts.iter_mut().zip(&places).filter(|(start, _)| start.is_none()) {
            if place.as_ref().is_some_and(Place::is_running) {
                *start = Some(now);
            }
        }
        let end = |i: usize| places[i].as_ref().and(starts[i]).map(|start| start + lengths[i]);
        now = (0..places.len()).filter_map(end).min().expect("somebody always runs");
        let over: Vec<usize> = (0..places.len()).filter(|&i| end(i) == Some(now)).collect();
        over.into_iter().for_each(|i| places[i] = None);
    }
    starts.into_iter().map(|start| start.expect("it ran")).collect()
}

/// The same if the groups run one after another.
fn grouped_starts(claims: &[ConcurrencyClaim], lengths: &[usize]) -> Vec<usize> {
    let mut now = 0;
    let mut starts = Vec::new();
    for group in partition_parallel_groups(claims) {
        starts.extend(group.clone().map(|_| now));
        now += lengths[group].iter().max().expect("no group is empty");
    }
    starts
}

#[test]
fn s56_s59_no_call_starts_later_than_if_groups_ran_one_after_another() {
    each(|random, case| {
        let said = some_calls(random, 7);
        let claims = claims(&said);
        let lengths: Vec<usize> = said.iter().map(|_| random.below(9)).collect();
        let starts = starts(usize::MAX, &claims, &lengths);
        let grouped = grouped_starts(&claims, &lengths);
        let is_later = starts.iter().zip(&grouped).any(|(start, latest)| start > latest);
        assert!(!is_later, "{case}: {starts:?}, by groups {grouped:?}: {said:?} of {lengths:?}");
    });
}

#[test]
fn t26_where_one_may_run_all_run_in_order_without_a_pause() {
    each(|random, case| {
        let said = some_calls(random, 7);
        let lengths: Vec<usize> = said.iter().map(|_| 1 + random.below(8)).collect();
        let in_a_row: Vec<usize> = (0..said.len()).map(|i| lengths[..i].iter().sum()).collect();
        assert_eq!(starts(1, &claims(&said), &lengths), in_a_row, "{case}: {said:?} of {lengths:?}");
    });
}

/// The law about groups is one about claims. Where there is no room, a call that is free early may take a place that
/// groups would have kept for one before it; keeping places empty would make most calls later.
#[test]
fn s56_where_room_is_short_a_call_may_start_later_than_in_its_group() {
    let node = |name: &str| Scope::nodes([name]);
    let claims = [
        ConcurrencyClaim::Exclusive(Scope::nodes(["x", "y"])),
        ConcurrencyClaim::Exclusive(node("x")),
        ConcurrencyClaim::Exclusive(node("y")),
        ConcurrencyClaim::Exclusive(node("free")),
    ];
    let lengths = [2, 10, 1, 100];
    assert_eq!(grouped_starts(&claims, &lengths), [0, 2, 2, 2]);
    assert_eq!(starts(usize::MAX, &claims, &lengths), [0, 2, 2, 0]);
    assert_eq!(starts(2, &claims, &lengths), [0, 2, 12, 0]);
}

/// What was let go together starts in order of arrival, whatever kinds of claims it holds.
#[test]
fn t26_of_those_that_are_let_go_together_the_earliest_takes_the_room() {
    let schedule = Schedule::new(1);
    let everything = schedule.join(&ConcurrencyClaim::GLOBAL);
    let node = schedule.join(&ConcurrencyClaim::Exclusive(Scope::nodes(["a"])));
    let path = ClaimPath::parse("/a").expect("a path");
    let path = schedule.join(&ConcurrencyClaim::Exclusive(Scope::paths([path])));
    drop(everything);
    assert_eq!((node.is_running(), path.is_running()), (true, false));
}

/// Ends when the call may run; a wake-up that is lost shows as a wait without an end.
async fn woken(place: Place, way: &str, release: impl FnOnce()) {
    let waiter = tokio::spawn(async move {
        let waited = place.begin().await;
        (place, waited)
    });
    tokio::task::yield_now().await;
    assert!(!waiter.is_finished(), "{way}: it runs too early");
    release();
    let (place, waited) = tokio::time::timeout(Duration::from_secs(60), waiter)
        .await
        .unwrap_or_else(|_| panic!("{way}: it was never woken"))
        .expect("it does not panic");
    assert!(place.is_running() && waited, "{way}");
    assert_eq!(place.begin().now_or_never(), Some(true), "{way}: whoever runs goes on at once");
}

#[tokio::test(start_paused = true)]
async fn s57_t26_whoever_waits_is_woken_in_every_way() {
    let node = |name: &str| ConcurrencyClaim::Exclusive(Scope::nodes([name]));
    let global = ConcurrencyClaim::GLOBAL;
    let read = ConcurrencyClaim::Shared;

    let schedule = Schedule::new(usize::MAX);
    let before = schedule.join(&node("a"));
    woken(schedule.join(&node("a")), "the one before ends", || drop(before)).await;

    let before = schedule.join(&node("a"));
    polled(&before);
    woken(schedule.join_aside(&node("a")), "aside", || drop(before)).await;

    // Two that read may run together; the one that writes, between them, holds the second back.
    let reads = schedule.join(&read);
    let writes = schedule.join(&global);
    polled(&writes);
    woken(schedule.join(&read), "one that waits before it is given up", || drop(writes)).await;
    drop(reads);

    let (first, second) = (schedule.join(&node("a")), schedule.join(&node("b")));
    let both = ConcurrencyClaim::Exclusive(Scope::nodes(["a", "b"]));
    woken(schedule.join(&both), "the last of several ends", || drop((first, second))).await;

    let narrow = Schedule::new(1);
    let before = narrow.join(&node("a"));
    woken(narrow.join(&node("b")), "there is room", || drop(before)).await;

    let before = narrow.join(&node("a"));
    let between = narrow.join(&node("b"));
    polled(&between);
    woken(narrow.join(&node("c")), "who would have taken the room has left", || drop((between, before)))
        .await;

    let before = schedule.join(&node("a"));
    let place = schedule.join(&node("a"));
    polled(&place);
    polled(&place);
    woken(place, "its first wait was dropped", || drop(before)).await;

    // The same wait goes on in another task than the one that began it.
    let before = schedule.join(&node("a"));
    let place = Arc::new(schedule.join(&node("a")));
    let mut begin = Box::pin({
        let place = Arc::clone(&place);
        async move { place.begin().await }
    });
    assert_eq!(begin.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Pending);
    let waiter = tokio::spawn(begin);
    tokio::task::yield_now().await;
    drop(before);
    let moved = tokio::time::timeout(Duration::from_secs(60), waiter).await;
    assert!(moved.expect("it was never woken").expect("it does not panic"));
    drop(place);

    assert!(schedule.is_idle() && narrow.is_idle());
}

/// A wait that is dropped after its turn has come leaves the turn with the place.
#[tokio::test]
async fn s61_a_turn_that_came_while_nobody_waited_is_not_lost() {
    let schedule = Schedule::new(1);
    let before = schedule.join(&ConcurrencyClaim::GLOBAL);
    let place = schedule.join(&ConcurrencyClaim::GLOBAL);
    let after = schedule.join(&ConcurrencyClaim::GLOBAL);
    polled(&place);
    drop(before);
    assert!(place.is_running() && !after.is_running());
    polled(&place);
    woken(after, "the one before was dropped unused", || drop(place)).await;
    assert!(schedule.is_idle());
}

/// Whoever had to wait is told so also when the turn came before anybody asked: what is known may have changed.
#[tokio::test]
async fn s45_begin_tells_that_there_was_a_wait_although_nobody_saw_it() {
    let schedule = Schedule::new(usize::MAX);
    let before = schedule.join(&ConcurrencyClaim::GLOBAL);
    let place = schedule.join(&ConcurrencyClaim::GLOBAL);
    assert!(!before.begin().await);
    drop(before);
    assert!(place.begin().await);
}
