//! The file behind the store: made, checked, migrated, and set aside when it cannot be used.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, OpenFlags, Transaction, TransactionBehavior};

/// How long an operation waits for another gateway's write; each takes about a millisecond.
const BUSY: Duration = Duration::from_secs(2);
/// "tool", in the file's header: another program's database is left alone.
const APPLICATION_ID: i64 = 0x746f_6f6c;
/// Files that SQLite keeps beside the database.
const COMPANIONS: [&str; 3] = ["-wal", "-shm", "-journal"];
/// Each entry leads from one layout to the next. They only add, because an older gateway may have the file open.
const MIGRATIONS: [&str; 1] = ["
    CREATE TABLE tickets (
        id TEXT PRIMARY KEY,
        fingerprint TEXT NOT NULL,
        tool TEXT NOT NULL,
        reason TEXT NOT NULL,
        command TEXT NOT NULL,
        client TEXT NOT NULL,
        created_ms INTEGER NOT NULL,
        status TEXT NOT NULL CHECK (status IN ('pending', 'allowed', 'denied', 'redeemed')),
        answered_ms INTEGER
    ) STRICT;
    CREATE INDEX tickets_by_fingerprint ON tickets (fingerprint);
    CREATE TABLE catalogs (
        key TEXT PRIMARY KEY,
        server TEXT NOT NULL,
        kept_ms INTEGER NOT NULL,
        bytes BLOB NOT NULL
    ) STRICT;
    CREATE INDEX catalogs_by_server ON catalogs (server, kept_ms);
"];
/// A file whose header claims our layout but that lacks one of these is damaged.
const TABLES: &str = "'tickets', 'catalogs'";

/// How closely a file is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Depth {
    /// The header and the list of tables: every start.
    Header,
    /// Every page: after an operation met damage.
    Whole,
}

/// An open database, in a file or not.
pub(super) struct Store {
    connection: Connection,
    place: Option<Place>,
}

struct Place {
    path: PathBuf,
    /// Which file the path led to; nothing where the system has no cheap way to tell.
    identity: Option<Identity>,
}

/// A file's device and inode.
type Identity = (u64, u64);

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
enum Unusable {
    #[error("it is damaged: {0}")]
    Damaged(String),
    #[error("a newer version wrote it, in layout {0}")]
    Newer(i64),
    #[error("it is the database of another program")]
    Foreign,
    #[error("another gateway has been opening it for {} s", BUSY.as_secs())]
    Locked,
    #[error("{0}")]
    Failed(String),
}

impl From<rusqlite::Error> for Unusable {
    fn from(cause: rusqlite::Error) -> Self {
        if is_damage(&cause) { Self::Damaged(cause.to_string()) } else { Self::Failed(cause.to_string()) }
    }
}

impl From<io::Error> for Unusable {
    fn from(cause: io::Error) -> Self {
        Self::Failed(cause.to_string())
    }
}

/// Whether an error tells of the file's content, not of its surroundings.
pub(super) fn is_damage(cause: &rusqlite::Error) -> bool {
    matches!(cause.sqlite_error_code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
}

impl Store {
    /// An empty one that ends with this value.
    pub(super) fn in_memory() -> Store {
        let connection = Connection::open_in_memory().expect("it needs nothing but memory");
        migrate(&connection).expect("the layout is valid and the database is empty");
        Store { connection, place: None }
    }

    /// The one in the file, or an empty one in memory and a warning that says why.
    pub(super) fn open(path: &Path) -> Store {
        // SQLite would take a relative `file:…` for a URI, and a changed working directory for another file.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        open_file(&path, Depth::Header).unwrap_or_else(|reason| {
            tracing::warn!(
                path = %path.display(), %reason,
                "the state file cannot be used; nothing is remembered after this process ends"
            );
            Store::in_memory()
        })
    }

    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Whether it is kept in a file.
    pub(super) fn is_file(&self) -> bool {
        self.place.is_some()
    }

    /// Whether the path leads to another file by now, or to none.
    pub(super) fn has_moved(&self) -> bool {
        self.place.as_ref().is_some_and(|place| {
            place.identity.is_some_and(|identity| identity_of(&place.path) != Some(identity))
        })
    }

    /// Opens the path again. Does nothing for a store in memory.
    pub(super) fn reopen(&mut self, depth: Depth) {
        // Closed first, so that a lock held by this connection cannot stand in the way.
        let Store { connection, place: Some(Place { path, .. }) } =
            std::mem::replace(self, Store::in_memory())
        else {
            return;
        };
        drop(connection);
        match open_file(&path, depth) {
            Ok(store) => *self = store,
            Err(reason) => tracing::warn!(
                path = %path.display(), %reason,
                "the state file cannot be used any more; nothing is remembered after this process ends"
            ),
        }
    }
}

fn open_file(path: &Path, depth: Depth) -> Result<Store, Unusable> {
    if let Some(folder) = path.parent() {
        make_folder(folder)?;
    }
    let turn = Turn::take(path)?;
    match connect(path, depth) {
        // Without a turn another gateway may have replaced the file already: its new one must not be taken away.
        Err(reason @ (Unusable::Damaged(_) | Unusable::Newer(_))) if turn.is_some() => {
            let aside = set_aside(path)?;
            tracing::warn!(
                path = %path.display(), aside = %aside.display(), %reason,
                "the state file was set aside; tickets and cached catalogs start empty"
            );
            connect(path, Depth::Header)
        }
        outcome => outcome,
    }
}

fn connect(path: &Path, depth: Depth) -> Result<Store, Unusable> {
    if !path.try_exists()? {
        make_file(path)?;
    }
    // Taken before opening: if the file is replaced in between, the next operation notices.
    let identity = identity_of(path);
    let connection = Connection::open_with_flags(
        path,
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX,
    )?;
    connection.busy_timeout(BUSY)?;
    judge(&connection)?;
    restrict(path);
    // Some network folders cannot do this; the file then works as well, with readers waiting for writers.
    let mode: String = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    if mode != "wal" {
        tracing::debug!(path = %path.display(), mode, "the state file has no write-ahead log");
    }
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    migrate(&connection)?;
    check(&connection, depth)?;
    Ok(Store { connection, place: Some(Place { path: path.to_owned(), identity }) })
}

/// Whether the file is ours to use, before anything in it is changed.
fn judge(connection: &Connection) -> Result<(), Unusable> {
    let (version, owner, parts): (i64, i64, i64) = connection.query_row(
        "SELECT user_version, application_id, (SELECT count(*) FROM sqlite_schema)
         FROM pragma_user_version, pragma_application_id",
        [],
        |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
    )?;
    match owner {
        0 | APPLICATION_ID if version > newest() => Err(Unusable::Newer(version)),
        APPLICATION_ID if version < 1 => Err(Unusable::Damaged("its header contradicts itself".to_owned())),
        APPLICATION_ID => Ok(()),
        0 if version == 0 && parts == 0 => Ok(()),
        _ => Err(Unusable::Foreign),
    }
}

fn newest() -> i64 {
    i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX)
}

fn migrate(connection: &Connection) -> Result<(), rusqlite::Error> {
    let version =
        |connection: &Connection| connection.pragma_query_value(None, "user_version", |row| row.get(0));
    let known: i64 = version(connection)?;
    if known == newest() {
        return Ok(());
    }
    let transaction = Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
    // Read again: another gateway may have done it while this one waited.
    let known: i64 = version(&transaction)?;
    for migration in MIGRATIONS.iter().skip(usize::try_from(known).unwrap_or_default()) {
        transaction.execute_batch(migration)?;
    }
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.pragma_update(None, "user_version", newest())?;
    transaction.commit()
}

fn check(connection: &Connection, depth: Depth) -> Result<(), Unusable> {
    let complete: bool = connection.query_row(
        &format!("SELECT count(*) = 2 FROM sqlite_schema WHERE type = 'table' AND name IN ({TABLES})"),
        [],
        |row| row.get(0),
    )?;
    if !complete {
        return Err(Unusable::Damaged("a table is missing".to_owned()));
    }
    match depth {
        Depth::Header => Ok(()),
        Depth::Whole => {
            let finding: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
            if finding == "ok" { Ok(()) } else { Err(Unusable::Damaged(finding)) }
        }
    }
}

/// Renames the file and its companions to the first free `….set-aside-N`.
fn set_aside(path: &Path) -> io::Result<PathBuf> {
    let mut number = 1_u32;
    let aside = loop {
        let aside = with_suffix(path, &format!(".set-aside-{number}"));
        // A dangling link counts as taken.
        if fs::symlink_metadata(&aside).is_err() {
            break aside;
        }
        number += 1;
    };
    fs::rename(path, &aside)?;
    for companion in COMPANIONS {
        match fs::rename(with_suffix(path, companion), with_suffix(&aside, companion)) {
            Err(cause) if cause.kind() != io::ErrorKind::NotFound => return Err(cause),
            _ => {}
        }
    }
    Ok(aside)
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    PathBuf::from(name)
}

/// The right to make, check and set aside the file: one gateway at a time, until dropped.
struct Turn {
    _lock: File,
}

impl Turn {
    /// Nothing if locks cannot be had here: what exists can still be opened.
    fn take(path: &Path) -> Result<Option<Turn>, Unusable> {
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).write(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        // A file of its own, because closing any handle of the database would end this process's locks on it.
        let Ok(lock) = options.open(with_suffix(path, ".lock")) else {
            return Ok(None);
        };
        let started = Instant::now();
        loop {
            match lock.try_lock() {
                Ok(()) => return Ok(Some(Turn { _lock: lock })),
                Err(TryLockError::Error(_)) => return Ok(None),
                Err(TryLockError::WouldBlock) if started.elapsed() >= BUSY => return Err(Unusable::Locked),
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }
}

/// Makes the folder and those above it for the user alone; existing ones keep their mode.
fn make_folder(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

/// Makes an empty file that at no moment others can read. SQLite gives its companions the same mode.
fn make_file(path: &Path) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let file = tempfile::NamedTempFile::new_in(folder)?.into_temp_path();
    match file.persist_noclobber(path) {
        Err(failure) if failure.error.kind() != io::ErrorKind::AlreadyExists => Err(failure.error),
        _ => Ok(()),
    }
}

/// Takes the file and its companions from everybody else's eyes, if a copy or another tool opened them up.
#[cfg(unix)]
fn restrict(path: &Path) {
    use std::os::unix::fs::PermissionsExt;

    for suffix in ["", "-wal", "-shm"] {
        let path = with_suffix(path, suffix);
        if let Ok(metadata) = fs::metadata(&path)
            && metadata.is_file()
            && metadata.permissions().mode() & 0o077 != 0
            && let Err(cause) = fs::set_permissions(&path, fs::Permissions::from_mode(0o600))
        {
            tracing::warn!(path = %path.display(), %cause, "others can read the state file");
        }
    }
}

#[cfg(not(unix))]
fn restrict(_path: &Path) {}

#[cfg(unix)]
fn identity_of(path: &Path) -> Option<Identity> {
    use std::os::unix::fs::MetadataExt;

    fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

#[cfg(not(unix))]
fn identity_of(_path: &Path) -> Option<Identity> {
    None
}
