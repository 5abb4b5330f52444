//! The last catalogs of upstream servers, so that a gateway can list tools before a server has started.

use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};

use super::error::StateError;

/// A server that was not started for a month is out of use.
const KEPT_MS: i64 = 30 * 24 * 60 * 60 * 1000;
/// The same bytes are not written again within an hour: many gateways start with the same megabytes.
const FRESH_MS: u64 = 60 * 60 * 1000;

/// The bytes kept under a key.
pub(super) fn get(connection: &Connection, key: &str) -> Result<Option<Vec<u8>>, StateError> {
    let bytes = connection.query_row("SELECT bytes FROM catalogs WHERE key = ?1", [key], |row| row.get(0));
    Ok(bytes.optional()?)
}

/// Keeps bytes under a key and deletes what they supersede.
pub(super) fn keep(
    connection: &Connection,
    key: &str,
    server: &str,
    bytes: &[u8],
    now: i64,
) -> Result<(), StateError> {
    let same: Option<i64> = connection
        .query_row(
            "SELECT kept_ms FROM catalogs WHERE key = ?1 AND server = ?2 AND bytes = ?3",
            params![key, server, bytes],
            |row| row.get(0),
        )
        .optional()?;
    if same.is_some_and(|kept_ms| kept_ms.abs_diff(now) < FRESH_MS) {
        return Ok(());
    }
    let transaction = Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
    transaction.execute(
        "INSERT OR REPLACE INTO catalogs (key, server, kept_ms, bytes) VALUES (?1, ?2, ?3, ?4)",
        params![key, server, now, bytes],
    )?;
    transaction.execute(
        "DELETE FROM catalogs WHERE server = ?1 AND kept_ms < ?2",
        params![server, now.saturating_sub(KEPT_MS)],
    )?;
    // Two beside the one just kept, which stays even if the clock was set back.
    transaction.execute(
        "DELETE FROM catalogs WHERE server = ?1 AND key <> ?2 AND key NOT IN
         (SELECT key FROM catalogs WHERE server = ?1 AND key <> ?2 ORDER BY kept_ms DESC, rowid DESC LIMIT 2)",
        params![server, key],
    )?;
    transaction.commit()?;
    Ok(())
}
