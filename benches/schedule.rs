//! What one call costs in the order of calls, alone and beside thousands that wait: the second must cost the same.
#![expect(clippy::print_stdout, reason = "a table for people is what this program is for")]

use std::future::Future;
use std::hint::black_box;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Instant;

use toolcrib::executor::schedule::{Place, Schedule};
use toolcrib::tools::concurrency::{ClaimPath, ConcurrencyClaim, Scope};

/// Calls that wait while one is measured.
const CROWDS: [usize; 4] = [0, 1, 100, 10_000];
/// Calls of one measurement.
const CALLS: u32 = 2_000;
/// Measurements of which the fastest counts: whatever else the machine did made the others slower.
const ROUNDS: usize = 25;

fn node(name: &str) -> ConcurrencyClaim {
    ConcurrencyClaim::Exclusive(Scope::nodes([name]))
}

fn path(text: &str) -> ConcurrencyClaim {
    ConcurrencyClaim::Exclusive(Scope::paths(ClaimPath::parse(text)))
}

/// So many that wait, each behind one that runs, for things that no measured call names.
fn elsewhere(schedule: &Arc<Schedule>, crowd: usize) -> Vec<Place> {
    let claims: Vec<ConcurrencyClaim> = (0..crowd).map(|i| node(&format!("other {i}"))).collect();
    // Those that wait come first: so they leave first, and none is let go when the crowd is dropped.
    let running: Vec<Place> = claims.iter().map(|claim| schedule.join(claim)).collect();
    let mut places: Vec<Place> = claims.iter().map(|claim| schedule.join(claim)).collect();
    places.extend(running);
    places
}

/// So many that wait behind one that runs, for the very thing that the measured call names.
fn in_the_same_queue(schedule: &Arc<Schedule>, claim: &ConcurrencyClaim, crowd: usize) -> Vec<Place> {
    if crowd == 0 {
        return Vec::new();
    }
    // Readers stand in one queue with a writer before them.
    let first = if claim.is_shared() { &ConcurrencyClaim::GLOBAL } else { claim };
    let running = schedule.join(first);
    let mut places: Vec<Place> = (0..crowd).map(|_| schedule.join(claim)).collect();
    places.push(running);
    places
}

/// Nanoseconds for joining, asking once whether it may run, and leaving.
fn cost(schedule: &Arc<Schedule>, claim: &ConcurrencyClaim) -> f64 {
    let mut context = Context::from_waker(Waker::noop());
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        for _ in 0..CALLS {
            let place = schedule.join(black_box(claim));
            let _ = black_box(pin!(place.begin()).poll(&mut context));
        }
        best = best.min(begin.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS));
    }
    best
}

fn main() {
    let claims = [
        ("shared", ConcurrencyClaim::Shared),
        ("a node", node("mine")),
        ("a path of 8 folders", path("/one/two/three/four/five/six/seven/eight")),
    ];
    println!("nanoseconds per call: join, begin, drop (and how many times the cost on an empty schedule)");
    print!("{:<22}{:<20}", "claim", "others wait for");
    CROWDS.iter().for_each(|crowd| print!("{crowd:>17}"));
    println!();
    for (name, claim) in &claims {
        // Whoever reads anything waits for each that changes something, wherever that is.
        let others = if claim.is_shared() { "what it waits for" } else { "other things" };
        for (others, is_elsewhere) in [(others, true), ("the same", false)] {
            print!("{name:<22}{others:<20}");
            let mut empty = None;
            for crowd in CROWDS {
                let schedule = Schedule::new(usize::MAX);
                let places = match is_elsewhere {
                    true => elsewhere(&schedule, crowd),
                    false => in_the_same_queue(&schedule, claim, crowd),
                };
                let cost = cost(&schedule, claim);
                let empty = *empty.get_or_insert(cost);
                print!("{cost:>9.0} ({:>4.1}x)", cost / empty);
                drop(places);
                assert!(schedule.is_idle());
            }
            println!();
        }
    }
}
