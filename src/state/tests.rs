//! The store as gateways use it: several at once, over files in every condition.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread;

use rusqlite::Connection;
use tempfile::TempDir;

use super::error::StateError;
use super::tickets::{AllowedScope, NewTicket, Redemption, Ticket, TicketStatus};
use super::{Platform, State, path_on};

const MINUTE: i64 = 60 * 1000;
const DAY: i64 = 24 * 60 * MINUTE;
const ALLOWED: TicketStatus = TicketStatus::Allowed { scope: AllowedScope::Once };

/// A folder with a state file that several stores open, all with one clock that moves when told.
struct World {
    folder: TempDir,
    now: Arc<AtomicI64>,
}

impl World {
    fn new() -> World {
        World { folder: TempDir::new().unwrap(), now: Arc::new(AtomicI64::new(1_700_000_000_000)) }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("state.db")
    }

    fn open(&self) -> State {
        self.open_at(&self.path())
    }

    fn open_at(&self, path: &Path) -> State {
        let now = self.now.clone();
        State::open(path).with_clock(move || now.load(Ordering::Relaxed))
    }

    fn pass(&self, milliseconds: i64) {
        self.now.fetch_add(milliseconds, Ordering::Relaxed);
    }

    /// Names in the folder, sorted, without what comes and goes beside an open database.
    fn files(&self) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| !["state.db-wal", "state.db-shm", "state.db.lock"].contains(&name.as_str()))
            .collect();
        names.sort();
        names
    }

    /// Changes the file as another program would.
    fn tamper(&self, sql: &str) {
        Connection::open(self.path()).unwrap().execute_batch(sql).unwrap();
    }
}

fn new_ticket(fingerprint: &str) -> NewTicket {
    NewTicket {
        fingerprint: fingerprint.to_owned(),
        tool: "shell_exec".to_owned(),
        reason: "deletes files".to_owned(),
        command: "rm -r build".to_owned(),
        client: "an editor".to_owned(),
    }
}

fn filed(state: &State, fingerprint: &str) -> Ticket {
    state.file_ticket(new_ticket(fingerprint)).unwrap()
}

fn statuses(state: &State) -> Vec<TicketStatus> {
    state.tickets(true).into_iter().map(|ticket| ticket.status).collect()
}

#[test]
fn the_path_is_the_one_of_the_system() {
    fn check(variables: &[(&str, &str)], platform: Platform, expected: Option<&str>) {
        let lookup = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| *value);
        assert_eq!(path_on(platform, lookup), expected.map(PathBuf::from), "{variables:?} on {platform:?}");
    }
    if cfg!(windows) {
        check(&[("LOCALAPPDATA", r"C:\l")], Platform::Windows, Some(r"C:\l\toolcrib\state.db"));
        return;
    }
    check(&[("HOME", "/h")], Platform::Unix, Some("/h/.local/state/toolcrib/state.db"));
    check(&[("HOME", "/h"), ("XDG_STATE_HOME", "/x")], Platform::Unix, Some("/x/toolcrib/state.db"));
    check(
        &[("HOME", "/h"), ("XDG_STATE_HOME", "x")],
        Platform::Unix,
        Some("/h/.local/state/toolcrib/state.db"),
    );
    check(
        &[("HOME", "/h"), ("XDG_STATE_HOME", "")],
        Platform::Unix,
        Some("/h/.local/state/toolcrib/state.db"),
    );
    check(&[("HOME", "")], Platform::Unix, None);
    check(&[], Platform::Unix, None);
    check(&[("HOME", "/h")], Platform::Mac, Some("/h/Library/Application Support/toolcrib/state.db"));
    check(&[("HOME", "/h"), ("LOCALAPPDATA", "/l")], Platform::Windows, Some("/l/toolcrib/state.db"));
    check(&[("HOME", "/h")], Platform::Windows, None);
}

#[test]
fn an_answer_from_another_gateway_lets_the_call_through_once() {
    let world = World::new();
    let (gateway, terminal) = (world.open(), world.open());
    assert_eq!(gateway.redeem("f"), Redemption::Nothing);
    let ticket = filed(&gateway, "f");
    assert_eq!(gateway.redeem("f"), Redemption::Pending(ticket.clone()));
    assert_eq!(terminal.tickets(false), std::slice::from_ref(&ticket));

    let typed = format!(" {} ", ticket.id.to_uppercase());
    assert_eq!(terminal.answer(&typed, true), Ok(Ticket { status: ALLOWED, ..ticket.clone() }));
    assert_eq!(terminal.tickets(false), []);
    assert_eq!(gateway.redeem("g"), Redemption::Nothing);
    assert_eq!(gateway.redeem("f"), Redemption::Allowed);
    assert_eq!(gateway.redeem("f"), Redemption::Nothing);
    assert_eq!(terminal.redeem("f"), Redemption::Nothing);
    assert_eq!(terminal.tickets(true), [Ticket { status: TicketStatus::Redeemed, ..ticket.clone() }]);
    assert_ne!(filed(&gateway, "f").id, ticket.id);
}

#[test]
fn fifty_callers_share_one_yes() {
    let world = World::new();
    let states: Vec<State> = (0..5).map(|_| world.open()).collect();
    let ticket = filed(&states[0], "f");
    states[1].answer(&ticket.id, true).unwrap();
    let answers: Vec<Redemption> = thread::scope(|scope| {
        let callers: Vec<_> = (0..50)
            .map(|n| {
                scope.spawn({
                    let state = &states[n % 5];
                    || state.redeem("f")
                })
            })
            .collect();
        callers.into_iter().map(|caller| caller.join().unwrap()).collect()
    });
    assert_eq!(answers.iter().filter(|answer| **answer == Redemption::Allowed).count(), 1);
    assert_eq!(answers.iter().filter(|answer| **answer == Redemption::Nothing).count(), 49);
}

#[test]
fn fifty_callers_file_one_ticket() {
    let world = World::new();
    let states: Vec<State> = (0..5).map(|_| world.open()).collect();
    let ids: HashSet<String> = thread::scope(|scope| {
        let callers: Vec<_> = (0..50)
            .map(|n| {
                scope.spawn({
                    let state = &states[n % 5];
                    || filed(state, "f").id
                })
            })
            .collect();
        callers.into_iter().map(|caller| caller.join().unwrap()).collect()
    });
    assert_eq!(ids.len(), 1);
    assert_eq!(states[0].tickets(true).len(), 1);
}

#[test]
fn a_no_holds_as_long_as_its_ticket() {
    let world = World::new();
    let state = world.open();
    let ticket = filed(&state, "f");
    state.answer(&ticket.id, false).unwrap();
    world.pass(15 * MINUTE - 1);
    assert_eq!(state.redeem("f"), Redemption::Denied);
    assert_eq!(state.redeem("f"), Redemption::Denied);
    let denied = Ticket { status: TicketStatus::Denied, ..ticket };
    assert_eq!(state.file_ticket(new_ticket("f")), Ok(denied));
    world.pass(1);
    assert_eq!(state.redeem("f"), Redemption::Nothing);
    assert_eq!(filed(&state, "f").status, TicketStatus::Pending);
    assert_eq!(statuses(&state), [TicketStatus::Denied, TicketStatus::Pending]);
}

#[test]
fn a_no_goes_before_a_yes() {
    let world = World::new();
    let state = world.open();
    state.answer(&filed(&state, "f").id, true).unwrap();
    // The first was answered and not used yet, so this is a second ticket for the same call.
    state.answer(&filed(&state, "f").id, false).unwrap();
    assert_eq!(state.redeem("f"), Redemption::Denied);
}

#[test]
fn tickets_expire() {
    let world = World::new();
    let state = world.open();
    let forgotten = filed(&state, "forgotten");
    let late = filed(&state, "late");
    world.pass(15 * MINUTE - 1);
    assert_eq!(filed(&state, "forgotten").id, forgotten.id);
    state.answer(&late.id, true).unwrap();
    world.pass(1);
    assert_eq!(
        state.answer(&forgotten.id, true),
        Err(StateError::ExpiredTicket { id: forgotten.id.clone() })
    );
    assert_eq!(state.redeem("forgotten"), Redemption::Nothing);
    assert_ne!(filed(&state, "forgotten").id, forgotten.id);
    world.pass(15 * MINUTE - 1);
    assert_eq!(state.redeem("late"), Redemption::Nothing, "fifteen minutes after the answer");
    assert_eq!(statuses(&state), [TicketStatus::Expired, TicketStatus::Expired, TicketStatus::Pending]);
    assert_eq!(state.tickets(false).len(), 1);
}

#[test]
fn a_yes_counts_from_the_answer_and_not_under_another_clock() {
    let world = World::new();
    let state = world.open();
    let ticket = filed(&state, "f");
    world.pass(10 * MINUTE);
    state.answer(&ticket.id, true).unwrap();
    world.pass(-DAY);
    assert_eq!(state.redeem("f"), Redemption::Nothing);
    world.pass(DAY + 15 * MINUTE - 1);
    assert_eq!(state.redeem("f"), Redemption::Allowed);
}

#[test]
fn a_wrong_answer_says_what_is_wrong() {
    let world = World::new();
    let state = world.open();
    let error = state.answer("abc234", true).unwrap_err();
    assert_eq!(error.to_string(), "there is no ticket `abc234`; none is pending");

    let tickets: Vec<Ticket> = (0..5).map(|n| filed(&state, &n.to_string())).collect();
    let typo = format!("{}0", &tickets[3].id[..5]);
    let StateError::UnknownTicket { id, pending } = state.answer(&typo, true).unwrap_err() else {
        panic!("it is unknown")
    };
    assert_eq!((id, pending.len(), &pending[0]), (typo, 3, &tickets[3].id));

    let id = &tickets[0].id;
    state.answer(id, true).unwrap();
    let error = state.answer(id, false).unwrap_err();
    assert_eq!(error.to_string(), format!("ticket `{id}` was answered already: it is allowed once"));
    assert_eq!(state.redeem("0"), Redemption::Allowed);
    let error = state.answer(id, true).unwrap_err();
    assert_eq!(error.to_string(), format!("ticket `{id}` was answered already: it is redeemed"));
}

#[test]
fn ids_are_short_typeable_and_different() {
    let world = World::new();
    let state = world.open();
    let ids: HashSet<String> = (0..200).map(|n| filed(&state, &n.to_string()).id).collect();
    assert_eq!(ids.len(), 200);
    for id in ids {
        assert_eq!(id.len(), 6);
        assert!(id.chars().all(|c| c.is_ascii_lowercase() || ('2'..='9').contains(&c)), "{id}");
        assert!(!id.contains(['i', 'l', 'o']), "{id}");
    }
}

#[test]
fn tickets_are_forgotten_after_a_week() {
    let world = World::new();
    let state = world.open();
    filed(&state, "old");
    world.pass(7 * DAY);
    filed(&state, "new");
    assert_eq!(state.forget_old(), Ok(0));
    world.pass(1);
    assert_eq!(state.forget_old(), Ok(1));
    assert_eq!(state.tickets(true).len(), 1);
    world.pass(-8 * DAY);
    assert_eq!(state.forget_old(), Ok(1), "filed in the future");
}

#[test]
fn catalogs_are_kept_and_replaced() {
    let world = World::new();
    let (one, other) = (world.open(), world.open());
    let kept = |keys: &[&str]| keys.iter().filter(|key| other.cached_catalog(key).is_some()).count();
    assert_eq!(one.cached_catalog("k1"), None);
    one.keep_catalog("k1", "s", b"[1]").unwrap();
    assert_eq!(other.cached_catalog("k1"), Some(b"[1]".to_vec()));
    other.keep_catalog("k1", "s", b"[2, \xff]").unwrap();
    assert_eq!(one.cached_catalog("k1"), Some(b"[2, \xff]".to_vec()));

    one.keep_catalog("other", "t", b"[]").unwrap();
    for key in ["k2", "k3"] {
        one.keep_catalog(key, "s", b"[]").unwrap();
    }
    assert_eq!(kept(&["k1", "k2", "k3"]), 3);
    one.keep_catalog("k4", "s", b"[]").unwrap();
    assert_eq!((other.cached_catalog("k1"), kept(&["k2", "k3", "k4", "other"])), (None, 4));

    // Seen again: the oldest key becomes the newest.
    world.pass(2 * 60 * MINUTE);
    one.keep_catalog("k2", "s", b"[]").unwrap();
    one.keep_catalog("k5", "s", b"[]").unwrap();
    assert_eq!((other.cached_catalog("k3"), kept(&["k2", "k4", "k5"])), (None, 3));

    world.pass(-DAY);
    one.keep_catalog("k6", "s", b"[]").unwrap();
    assert_eq!(kept(&["k6"]), 1, "the one just kept stays under a clock set back");

    world.pass(40 * DAY);
    one.keep_catalog("k7", "s", b"[]").unwrap();
    assert_eq!((kept(&["k1", "k2", "k3", "k4", "k5", "k6"]), kept(&["k7", "other"])), (0, 2));
}

#[test]
fn the_same_catalog_is_not_written_again_within_an_hour() {
    let world = World::new();
    let state = world.open();
    let kept_ms = || -> i64 {
        let connection = Connection::open(world.path()).unwrap();
        connection.query_row("SELECT kept_ms FROM catalogs", [], |row| row.get(0)).unwrap()
    };
    state.keep_catalog("k", "s", b"[]").unwrap();
    let first = kept_ms();
    world.pass(60 * MINUTE - 1);
    state.keep_catalog("k", "s", b"[]").unwrap();
    assert_eq!(kept_ms(), first);
    world.pass(1);
    state.keep_catalog("k", "s", b"[]").unwrap();
    assert_eq!(kept_ms(), first + 60 * MINUTE);
}

#[test]
fn what_is_kept_outlives_the_gateway() {
    let world = World::new();
    let ticket = filed(&world.open(), "f");
    assert_eq!(world.open().tickets(false), [ticket]);
    assert_eq!(world.files(), ["state.db"]);
}

/// Opens a file in this condition: it is set aside, and the fresh one works.
fn check_set_aside(world: &World, number: usize) {
    let state = world.open();
    assert!(state.is_shared());
    assert_eq!(state.tickets(true), []);
    let ticket = filed(&state, "f");
    assert_eq!(world.open().tickets(false), [ticket]);
    let aside = world.files().into_iter().filter(|name| name.starts_with("state.db.set-aside-")).count();
    assert_eq!(aside, number, "{:?}", world.files());
}

#[test]
fn a_damaged_file_is_set_aside() {
    let world = World::new();
    fs::write(world.path(), "hello").unwrap();
    check_set_aside(&world, 1);
    assert_eq!(fs::read(world.folder.path().join("state.db.set-aside-1")).unwrap(), b"hello");

    fs::write(world.path(), [0x5a; 10_000]).unwrap();
    check_set_aside(&world, 2);

    // Cut in the middle, as by a full disk or a bad copy.
    let whole = fs::read(world.path()).unwrap();
    fs::write(world.path(), &whole[..whole.len() / 2 + 100]).unwrap();
    check_set_aside(&world, 3);

    world.tamper("DROP TABLE catalogs");
    check_set_aside(&world, 4);

    world.tamper("PRAGMA user_version = 0");
    check_set_aside(&world, 5);

    world.tamper("PRAGMA writable_schema = 1; UPDATE sqlite_schema SET sql = 'CREATE nonsense'");
    check_set_aside(&world, 6);
}

#[test]
fn a_newer_file_is_set_aside_whole() {
    let world = World::new();
    drop(world.open());
    let newer = Connection::open(world.path()).unwrap();
    newer
        .execute_batch("PRAGMA user_version = 1000; CREATE TABLE wonders (w); INSERT INTO wonders VALUES (7)")
        .unwrap();
    // Its newest writes are still in the log, which has to go along.
    assert!(world.folder.path().join("state.db-wal").exists());
    let state = world.open();
    assert!(state.is_shared());
    filed(&state, "f");
    drop(newer);
    assert_eq!(state.tickets(false).len(), 1, "the newer gateway's end took nothing away");
    drop(state);
    let aside = Connection::open(world.folder.path().join("state.db.set-aside-1")).unwrap();
    assert_eq!(aside.query_row("SELECT w FROM wonders", [], |row| row.get::<_, i64>(0)), Ok(7));
    assert_eq!(world.open().tickets(false).len(), 1);
}

#[test]
fn another_programs_database_is_left_alone() {
    let world = World::new();
    world.tamper("CREATE TABLE theirs (t)");
    let before = fs::read(world.path()).unwrap();
    let state = world.open();
    assert!(!state.is_shared());
    filed(&state, "f");
    drop(state);
    assert_eq!(fs::read(world.path()).unwrap(), before);
    assert_eq!(world.files(), ["state.db"]);
}

#[test]
fn damage_met_later_is_set_aside_then() {
    let world = World::new();
    drop(world.open());
    let mut bytes = fs::read(world.path()).unwrap();
    // The first page holds the header and the list of tables; all that follows is theirs.
    bytes[4096..].fill(0xff);
    fs::write(world.path(), bytes).unwrap();
    let state = world.open();
    assert_eq!(world.files(), ["state.db"]);
    let ticket = filed(&state, "f");
    assert_eq!(state.redeem("f"), Redemption::Pending(ticket));
    assert_eq!(world.files(), ["state.db", "state.db.set-aside-1"]);
}

#[test]
fn many_gateways_set_a_damaged_file_aside_once() {
    let world = World::new();
    fs::write(world.path(), "hello").unwrap();
    thread::scope(|scope| {
        for n in 0..16 {
            let world = &world;
            scope.spawn(move || {
                let state = world.open();
                assert!(state.is_shared());
                filed(&state, &n.to_string());
            });
        }
    });
    assert_eq!(world.files(), ["state.db", "state.db.set-aside-1"]);
    assert_eq!(world.open().tickets(false).len(), 16);
}

#[cfg(unix)]
#[test]
fn a_file_deleted_under_a_gateway_is_made_again() {
    let world = World::new();
    let state = world.open();
    filed(&state, "before");
    for name in ["state.db", "state.db-wal", "state.db-shm"] {
        fs::remove_file(world.folder.path().join(name)).unwrap();
    }
    let ticket = filed(&state, "after");
    assert_eq!(world.open().tickets(true), [ticket]);
}

#[test]
fn without_a_place_for_a_file_it_lives_in_memory() {
    let world = World::new();
    fs::write(world.folder.path().join("file"), "").unwrap();
    fs::create_dir(world.folder.path().join("folder")).unwrap();
    let mut places = vec![world.folder.path().join("file/state.db"), world.folder.path().join("folder")];
    if cfg!(target_os = "linux") {
        places.push(PathBuf::from("/proc/toolcrib/state.db"));
    }
    for place in places {
        let state = world.open_at(&place);
        assert!(!state.is_shared());
        let ticket = filed(&state, "f");
        assert_eq!(state.tickets(false), [ticket]);
    }
    assert_eq!(world.files(), ["file", "folder", "folder.lock"]);
}

#[cfg(unix)]
#[test]
fn in_a_read_only_folder_it_lives_in_memory() {
    use std::os::unix::fs::PermissionsExt;

    let world = World::new();
    let folder = world.folder.path().join("locked");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("damaged.db"), "hello").unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o500)).unwrap();
    // Nothing is read-only to the superuser.
    if fs::write(folder.join("probe"), "").is_err() {
        for name in ["state.db", "damaged.db"] {
            let state = world.open_at(&folder.join(name));
            assert!(!state.is_shared());
            filed(&state, "f");
        }
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
    }
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn in_memory_makes_no_file() {
    let state = State::open(Path::new(":memory:"));
    assert!(!state.is_shared());
    filed(&state, "f");
    assert!(!Path::new(":memory:").exists());
}

#[test]
fn a_failing_write_is_an_error_and_a_failing_read_finds_nothing() {
    let world = World::new();
    let state = world.open();
    let ticket = filed(&state, "f");
    let allowed = filed(&state, "g");
    state.answer(&allowed.id, true).unwrap();
    state.keep_catalog("k", "s", b"[]").unwrap();
    let with_connection = |sql| state.store.lock().unwrap().connection().execute_batch(sql).unwrap();

    with_connection("PRAGMA query_only = 1");
    let error = state.file_ticket(new_ticket("h")).unwrap_err();
    assert_eq!(error.to_string(), "the state store failed: attempt to write a readonly database");
    state.answer(&ticket.id, true).unwrap_err();
    state.keep_catalog("k", "s", b"[1]").unwrap_err();
    assert_eq!(state.redeem("g"), Redemption::Nothing, "what cannot be used up does not count");
    assert_eq!(state.redeem("f"), Redemption::Pending(ticket.clone()));

    with_connection("PRAGMA query_only = 0; DROP TABLE tickets; DROP TABLE catalogs");
    assert_eq!(state.redeem("f"), Redemption::Nothing);
    assert_eq!(state.tickets(true), []);
    assert_eq!(state.cached_catalog("k"), None);
}

#[cfg(unix)]
#[test]
fn only_the_user_can_read_it() {
    use std::os::unix::fs::PermissionsExt;

    let world = World::new();
    let folder = world.folder.path().join("new/toolcrib");
    let path = folder.join("state.db");
    let mode = |name: &str| fs::metadata(folder.join(name)).unwrap().permissions().mode() & 0o777;
    let state = world.open_at(&path);
    filed(&state, "f");
    assert_eq!((mode(""), mode("../../new")), (0o700, 0o700));
    for name in ["state.db", "state.db-wal", "state.db-shm", "state.db.lock"] {
        assert_eq!(mode(name), 0o600, "{name}");
    }
    drop(state);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let state = world.open_at(&path);
    filed(&state, "g");
    for name in ["state.db", "state.db-wal", "state.db-shm"] {
        assert_eq!(mode(name), 0o600, "{name}");
    }
}

#[test]
fn it_may_be_shared_between_threads() {
    fn check<T: Send + Sync>() {}
    check::<State>();
}
