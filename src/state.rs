//! What outlives a gateway: tickets and cached catalogs, in one SQLite file that several gateways share.
//!
//! Opening never fails: a damaged or newer file is set aside, and where no file is possible the store lives in memory.
//! Then nothing is remembered, which only asks more. A gateway killed in the middle of a write leaves no half of it: the
//! write is one transaction, and SQLite takes it back when the file is opened next.
//!
//! Every call may wait up to two seconds for another gateway that is writing.

mod catalogs;
pub mod error;
mod store;
pub mod tickets;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use rusqlite::Connection;

use self::error::StateError;
use self::store::{Depth, Store};
use self::tickets::{NewTicket, Redemption, Ticket};

/// The path that means: keep nothing.
const IN_MEMORY: &str = ":memory:";

/// A store that is opened when it is first needed: the way to a client's first answer does not lead through a disk.
pub struct LazyState {
    path: PathBuf,
    state: OnceLock<State>,
}

impl LazyState {
    /// The store at a path, or where the user's state lies; `:memory:` means none.
    pub fn at(path: Option<PathBuf>) -> LazyState {
        let path = path.or_else(|| {
            default_path(|name| {
                let home = || std::env::home_dir().map(PathBuf::into_os_string);
                std::env::var_os(name).or_else(|| if name == "HOME" { home() } else { None })
            })
        });
        LazyState { path: path.unwrap_or_else(|| IN_MEMORY.into()), state: OnceLock::new() }
    }

    /// The store itself.
    pub fn get(&self) -> &State {
        self.state.get_or_init(|| State::open(&self.path))
    }
}

/// The store, for any number of threads. Gateways that open the same path share what is in it.
pub struct State {
    store: Mutex<Store>,
    clock: Box<dyn Fn() -> i64 + Send + Sync>,
}

impl State {
    /// Opens or makes the file; `:memory:` means none. Whatever stands in the way becomes a warning and an empty store.
    pub fn open(path: &Path) -> State {
        let store = if path.as_os_str() == IN_MEMORY { Store::in_memory() } else { Store::open(path) };
        State { store: Mutex::new(store), clock: Box::new(milliseconds_since_1970) }
    }

    /// The same store with another idea of the time, in milliseconds since 1970.
    pub fn with_clock(self, clock: impl Fn() -> i64 + Send + Sync + 'static) -> State {
        State { clock: Box::new(clock), ..self }
    }

    /// Whether other processes see what is kept here. If not, nobody can answer a ticket from another terminal.
    pub fn is_shared(&self) -> bool {
        self.store.lock().unwrap_or_else(PoisonError::into_inner).is_file()
    }

    /// Asks a person about a call. While the same call is pending, or denied and not yet forgotten, its ticket is
    /// returned and no second one is made: look at the status.
    pub fn file_ticket(&self, new: NewTicket) -> Result<Ticket, StateError> {
        self.run("file a ticket", |connection, now| tickets::file(connection, &new, now))
    }

    /// What was said about a call. An allowed ticket is used up by the one caller that gets `Allowed`; a store that
    /// cannot be read or written gives `Nothing`.
    pub fn redeem(&self, fingerprint: &str) -> Redemption {
        self.run("redeem a ticket", |connection, now| tickets::redeem(connection, fingerprint, now))
            .unwrap_or(Redemption::Nothing)
    }

    /// The tickets that wait for an answer, oldest first; with `include_answered` also those that no longer do.
    pub fn tickets(&self, include_answered: bool) -> Vec<Ticket> {
        self.run("list tickets", |connection, now| tickets::list(connection, include_answered, now))
            .unwrap_or_default()
    }

    /// Allows or denies a pending ticket; the first answer counts.
    pub fn answer(&self, id: &str, allow: bool) -> Result<Ticket, StateError> {
        self.run("answer a ticket", |connection, now| tickets::answer(connection, id, allow, now))
    }

    /// Deletes tickets older than seven days and says how many.
    pub fn forget_old(&self) -> Result<usize, StateError> {
        self.run("delete old tickets", tickets::forget_old)
    }

    /// The bytes kept under `key`; nothing if the store cannot be read.
    pub fn cached_catalog(&self, key: &str) -> Option<Vec<u8>> {
        self.run("read a cached catalog", |connection, _| catalogs::get(connection, key)).unwrap_or_default()
    }

    /// Keeps an upstream's catalog. Of each server the newest three keys stay, none for more than 30 days past the
    /// next write.
    pub fn keep_catalog(&self, key: &str, server: &str, bytes: &[u8]) -> Result<(), StateError> {
        self.run("keep a catalog", |connection, now| catalogs::keep(connection, key, server, bytes, now))
    }

    /// One operation, once more on a fresh file if this one turns out to be damaged.
    fn run<T>(
        &self,
        doing: &str,
        operation: impl Fn(&Connection, i64) -> Result<T, StateError>,
    ) -> Result<T, StateError> {
        let now = (self.clock)();
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        // What is written to a file that was set aside or deleted reaches nobody.
        if store.has_moved() {
            store.reopen(Depth::Header);
        }
        let mut result = operation(store.connection(), now);
        if let Err(StateError::Store(cause)) = &result
            && store.is_file()
            && store::is_damage(cause)
        {
            tracing::warn!(%cause, "the state file is damaged; could not {doing}");
            store.reopen(Depth::Whole);
            result = operation(store.connection(), now);
        }
        if let Err(StateError::Store(cause)) = &result {
            tracing::warn!(%cause, "the state store could not {doing}");
        }
        result
    }
}

fn milliseconds_since_1970() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// Where folders of state lie differs by system.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Platform {
    Unix,
    Mac,
    Windows,
}

impl Platform {
    const HERE: Self = if cfg!(windows) {
        Self::Windows
    } else if cfg!(target_os = "macos") {
        Self::Mac
    } else {
        Self::Unix
    };
}

/// `toolcrib/state.db` in the user's folder for state; nothing if the variables name no such folder.
pub fn default_path<V: Into<PathBuf>>(variable: impl Fn(&str) -> Option<V>) -> Option<PathBuf> {
    path_on(Platform::HERE, variable)
}

fn path_on<V: Into<PathBuf>>(platform: Platform, variable: impl Fn(&str) -> Option<V>) -> Option<PathBuf> {
    // A relative path in XDG_STATE_HOME is to be ignored, says its specification.
    let folder = |name| variable(name).map(Into::into).filter(|path: &PathBuf| path.is_absolute());
    let below_home = |parts| folder("HOME").map(|home| home.join(parts));
    let folder = match platform {
        Platform::Unix => folder("XDG_STATE_HOME").or_else(|| below_home(".local/state")),
        Platform::Mac => folder("XDG_STATE_HOME").or_else(|| below_home("Library/Application Support")),
        Platform::Windows => folder("LOCALAPPDATA"),
    }?;
    Some(folder.join("toolcrib").join("state.db"))
}

#[cfg(test)]
mod tests;
