//! Admits calls in order of arrival: each starts as soon as no earlier unfinished call conflicts with it.
//!
//! Claims are split over queues, as locks of several granularities are: one queue for everything, which knows only
//! kinds of claims, and one for each node, session, file and folder that an unfinished call names. Two claims conflict
//! exactly if they meet in some queue in modes that exclude each other, and a call that is clear in all its queues may
//! start. A call therefore costs what its own claim names; calls that wait for other things are never looked at, and
//! of those that wait for the same thing only the ones that are let go.

use std::collections::{BTreeSet, HashMap};
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Poll, Waker};

use foldhash::fast::FixedState;

use crate::tools::concurrency::{ClaimPath, ConcurrencyClaim, Scope};

/// Calls that run at the same time where the operator says nothing.
pub const DEFAULT_PARALLEL_CALLS: usize = 16;

/// Modes of one queue; which of them exclude each other is a row of bits for each.
type Conflicts = [u8; 8];

/// In the queue of everything a mode is a kind of claim. Kinds whose conflict depends on names meet in other queues.
const KINDS: Conflicts = {
    const SHARED: u8 = 1;
    const READ_PATHS: u8 = 1 << 1;
    const READ_NODES: u8 = 1 << 2;
    const READ_SESSIONS: u8 = 1 << 3;
    const GLOBAL: u8 = 1 << 4;
    const PATHS: u8 = 1 << 5;
    const NODES: u8 = 1 << 6;
    const SESSIONS: u8 = 1 << 7;
    [
        GLOBAL | PATHS | NODES | SESSIONS,
        GLOBAL | SESSIONS,
        GLOBAL | SESSIONS,
        GLOBAL | PATHS | NODES,
        0xff,
        SHARED | READ_SESSIONS | GLOBAL | SESSIONS,
        SHARED | READ_SESSIONS | GLOBAL | SESSIONS,
        SHARED | READ_PATHS | READ_NODES | GLOBAL | PATHS | NODES,
    ]
};

/// In every other queue a call reads or changes the thing itself, or something below it.
const THINGS: Conflicts = {
    const CHANGES_BELOW: u8 = 1 << 1;
    const READS: u8 = 1 << 2;
    const CHANGES: u8 = 1 << 3;
    [CHANGES, READS | CHANGES, CHANGES_BELOW | CHANGES, 0x0f, 0, 0, 0, 0]
};

/// Positions in [`THINGS`].
const READS_BELOW: u8 = 0;
const CHANGES_BELOW: u8 = 1;
const READS: u8 = 2;
const CHANGES: u8 = 3;

fn kind(claim: &ConcurrencyClaim) -> u8 {
    match claim {
        ConcurrencyClaim::Shared | ConcurrencyClaim::SharedIn(Scope::Global) => 0,
        ConcurrencyClaim::SharedIn(Scope::Paths(_)) => 1,
        ConcurrencyClaim::SharedIn(Scope::Nodes(_)) => 2,
        ConcurrencyClaim::SharedIn(Scope::Sessions(_)) => 3,
        ConcurrencyClaim::Exclusive(Scope::Global) => 4,
        ConcurrencyClaim::Exclusive(Scope::Paths(_)) => 5,
        ConcurrencyClaim::Exclusive(Scope::Nodes(_)) => 6,
        ConcurrencyClaim::Exclusive(Scope::Sessions(_)) => 7,
    }
}

/// The queue of a thing: a letter for its kind, then its name.
type Thing = Box<str>;

/// The queues that a claim stands in beside the one of everything, and its mode in each.
fn things(claim: &ConcurrencyClaim) -> Vec<(Thing, u8)> {
    let (scope, mode, below) = match claim {
        ConcurrencyClaim::Shared => return Vec::new(),
        ConcurrencyClaim::SharedIn(scope) => (scope, READS, READS_BELOW),
        ConcurrencyClaim::Exclusive(scope) => (scope, CHANGES, CHANGES_BELOW),
    };
    match scope {
        Scope::Global => Vec::new(),
        Scope::Nodes(names) => names.iter().map(|name| (format!("n{name}").into(), mode)).collect(),
        Scope::Sessions(names) => names.iter().map(|name| (format!("s{name}").into(), mode)).collect(),
        Scope::Paths(paths) => {
            let mut things: Vec<(Thing, u8)> = Vec::with_capacity(16);
            for path in paths {
                folders(path, |folder, is_itself| {
                    things.push((folder.into(), if is_itself { mode } else { below }));
                });
            }
            // Folders that several paths share; no path of a claim lies below another, so the modes agree.
            if paths.len() > 1 {
                things.sort_unstable();
                things.dedup();
            }
            things
        }
    }
}

/// Each folder on the way to a path, from the top, and the path itself.
fn folders(path: &ClaimPath, mut visit: impl FnMut(&str, bool)) {
    let mut name = String::from("p");
    let parts = path.parts();
    visit(&name, parts.is_empty());
    for (i, part) in parts.iter().enumerate() {
        name.push('/');
        name.push_str(part);
        visit(&name, i + 1 == parts.len());
    }
}

/// Who stands at one thing. Numbers are places in the order of arrival.
struct Queue {
    conflicts: &'static Conflicts,
    /// How many stand here in each mode without anyone before them whom they exclude.
    clear: [usize; 8],
    /// Those behind someone whom they exclude.
    blocked: [BTreeSet<u64>; 8],
}

impl Queue {
    fn new(conflicts: &'static Conflicts) -> Queue {
        Queue { conflicts, clear: [0; 8], blocked: std::array::from_fn(|_| BTreeSet::new()) }
    }

    fn is_empty(&self) -> bool {
        self.clear == [0; 8] && self.blocked.iter().all(BTreeSet::is_empty)
    }

    fn clear_modes(&self) -> u8 {
        (0..8).filter(|&mode| self.clear[mode] > 0).fold(0, |modes, mode| modes | 1 << mode)
    }

    fn blocked_modes(&self) -> u8 {
        (0..8).filter(|&mode| !self.blocked[mode].is_empty()).fold(0, |modes, mode| modes | 1 << mode)
    }

    /// Takes the last place; true if nobody here is excluded.
    fn join(&mut self, number: u64, mode: u8) -> bool {
        let at = usize::from(mode);
        let is_clear = (self.clear_modes() | self.blocked_modes()) & self.conflicts[at] == 0;
        if is_clear {
            self.clear[at] += 1;
        } else {
            self.blocked[at].insert(number);
        }
        is_clear
    }

    /// Gives a place up, and lets those go who stood behind nobody else.
    fn leave(&mut self, number: u64, mode: u8, mut let_go: impl FnMut(u64)) {
        let at = usize::from(mode);
        if !self.blocked[at].remove(&number) {
            self.clear[at] -= 1;
            // Others in the same mode still hold back whom this one held back.
            if self.clear[at] > 0 {
                return;
            }
        }
        while let Some(mode) = (0..8).find(|&mode| self.is_next_clear(mode)) {
            if let Some(number) = self.blocked[mode].pop_first() {
                self.clear[mode] += 1;
                let_go(number);
            }
        }
    }

    /// Whether the first that is blocked in a mode is so no longer. A clear one always stands before a blocked one
    /// that it excludes, or the blocked one, being there first, would have blocked it.
    fn is_next_clear(&self, mode: usize) -> bool {
        let Some(first) = self.blocked[mode].first() else { return false };
        let excluded = self.conflicts[mode];
        self.clear_modes() & excluded == 0
            && (0..8)
                .filter(|other| excluded & 1 << other != 0)
                .all(|other| self.blocked[other].first().is_none_or(|other| other >= first))
    }
}

/// One call that is not finished.
struct Entry {
    kind: u8,
    things: Vec<(Thing, u8)>,
    /// In how many queues it is behind someone whom it excludes.
    blocked_in: usize,
    is_running: bool,
    /// Takes none of the places of running calls.
    is_aside: bool,
    waker: Option<Waker>,
}

struct State {
    cap: usize,
    running: usize,
    next: u64,
    everything: Queue,
    things: HashMap<Thing, Queue, FixedState>,
    entries: HashMap<u64, Entry, FixedState>,
    /// Clear everywhere, and waiting for one of the running calls to end.
    ready: BTreeSet<u64>,
}

/// The order in which the calls of a gateway run.
pub struct Schedule(Mutex<State>);

impl Schedule {
    /// At most `cap` calls run at the same time; one means one after another.
    pub fn new(cap: usize) -> Arc<Schedule> {
        Arc::new(Schedule(Mutex::new(State {
            cap: cap.max(1),
            running: 0,
            next: 0,
            everything: Queue::new(&KINDS),
            things: HashMap::default(),
            entries: HashMap::default(),
            ready: BTreeSet::new(),
        })))
    }

    /// Takes the last place in the order, at once. The call may start when [`Place::begin`] says so.
    pub fn join(self: &Arc<Schedule>, claim: &ConcurrencyClaim) -> Place {
        self.enter(claim, false)
    }

    /// Takes a place for something that is no call and takes no room from calls.
    pub fn join_aside(self: &Arc<Schedule>, claim: &ConcurrencyClaim) -> Place {
        self.enter(claim, true)
    }

    fn enter(self: &Arc<Schedule>, claim: &ConcurrencyClaim, is_aside: bool) -> Place {
        let (kind, things) = (kind(claim), things(claim));
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        let mut blocked_in = usize::from(!state.everything.join(number, kind));
        for (thing, mode) in &things {
            if !state.things.contains_key(thing) {
                state.things.insert(thing.clone(), Queue::new(&THINGS));
            }
            let queue = state.things.get_mut(thing).expect("it was just put there");
            blocked_in += usize::from(!queue.join(number, *mode));
        }
        state
            .entries
            .insert(number, Entry { kind, things, blocked_in, is_running: false, is_aside, waker: None });
        let mut woken = Vec::new();
        if blocked_in == 0 {
            state.clear(number, &mut woken);
            state.start(&mut woken);
        }
        let has_to_wait = !state.entries.get(&number).is_some_and(|entry| entry.is_running);
        drop(state);
        // Nobody polls a place that was not handed out yet.
        debug_assert!(woken.is_empty());
        Place { schedule: Arc::clone(self), number, has_to_wait }
    }

    /// How many calls run and how many wait.
    pub fn load(&self) -> (usize, usize) {
        let state = self.lock();
        let running = state.entries.values().filter(|entry| entry.is_running).count();
        (running, state.entries.len() - running)
    }

    /// Whether nobody is here, and nothing is left of those who were.
    pub fn is_idle(&self) -> bool {
        let state = self.lock();
        state.running == 0
            && state.entries.is_empty()
            && state.everything.is_empty()
            && state.things.is_empty()
            && state.ready.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no code panics while it holds the order of calls")
    }
}

impl State {
    /// A call is behind nobody any more. Whoever clears several starts them when all are there: the earliest first.
    fn clear(&mut self, number: u64, woken: &mut Vec<Waker>) {
        let Some(entry) = self.entries.get_mut(&number) else { return };
        if entry.is_aside {
            entry.is_running = true;
            woken.extend(entry.waker.take());
        } else {
            self.ready.insert(number);
        }
    }

    /// Starts calls that may, in order, as far as there is room.
    fn start(&mut self, woken: &mut Vec<Waker>) {
        while self.running < self.cap
            && let Some(number) = self.ready.pop_first()
        {
            let entry = self.entries.get_mut(&number).expect("who is ready has not left");
            entry.is_running = true;
            self.running += 1;
            woken.extend(entry.waker.take());
        }
    }

    fn leave(&mut self, number: u64, woken: &mut Vec<Waker>) {
        let Some(entry) = self.entries.remove(&number) else { return };
        match (entry.is_running, entry.is_aside) {
            (true, false) => self.running -= 1,
            (true, true) => {}
            (false, _) => drop(self.ready.remove(&number)),
        }
        let mut clear = Vec::new();
        let entries = &mut self.entries;
        let mut let_go = |number: u64| {
            let entry = entries.get_mut(&number).expect("who is blocked has not left");
            entry.blocked_in -= 1;
            if entry.blocked_in == 0 {
                clear.push(number);
            }
        };
        self.everything.leave(number, entry.kind, &mut let_go);
        for (thing, mode) in &entry.things {
            let queue = self.things.get_mut(thing).expect("a queue stays as long as someone is in it");
            queue.leave(number, *mode, &mut let_go);
            if queue.is_empty() {
                self.things.remove(thing);
            }
        }
        for number in clear {
            self.clear(number, woken);
        }
        self.start(woken);
    }
}

/// A call's place in the order. Dropping it, for whatever reason, lets those behind it go.
pub struct Place {
    schedule: Arc<Schedule>,
    number: u64,
    has_to_wait: bool,
}

impl Place {
    /// Waits until the call may run. True if it could not at once when it joined, whether anybody saw it wait or not.
    pub async fn begin(&self) -> bool {
        poll_fn(|context| {
            let mut state = self.schedule.lock();
            let entry = state.entries.get_mut(&self.number).expect("a place stays until it is dropped");
            if entry.is_running {
                return Poll::Ready(());
            }
            match &mut entry.waker {
                Some(waker) => waker.clone_from(context.waker()),
                None => entry.waker = Some(context.waker().clone()),
            }
            Poll::Pending
        })
        .await;
        self.has_to_wait
    }

    /// Whether the call may run already.
    pub fn is_running(&self) -> bool {
        self.schedule.lock().entries.get(&self.number).is_some_and(|entry| entry.is_running)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut woken = Vec::new();
        self.schedule.lock().leave(self.number, &mut woken);
        // Woken outside the lock: what they do next is not ours to know.
        woken.into_iter().for_each(Waker::wake);
    }
}
