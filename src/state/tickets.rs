//! Tickets: questions to a person that outlive the call that raised them, each good for one run at most.

use std::fmt;

use rusqlite::{Connection, OptionalExtension, Row, Transaction, TransactionBehavior, params};

use super::error::StateError;

/// A ticket waits this long for an answer, and an allowed one as long again for its call: enough to walk back to a
/// terminal, too short for a forgotten yes to surprise anybody.
const LIFE_MS: u64 = 15 * 60 * 1000;
/// Answered and expired tickets stay listed for a week.
const KEPT_MS: u64 = 7 * 24 * 60 * 60 * 1000;
/// Typed by hand: no `i`, `l`, `o`, `0`, `1`.
const ID_LETTERS: &[u8] = b"abcdefghjkmnpqrstuvwxyz23456789";
/// Some 900 million ids, so that a typing error meets no other ticket.
const ID_LENGTH: usize = 6;
/// More suggestions than this help nobody.
const SUGGESTIONS: usize = 3;

/// A question about one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ticket {
    /// Six letters and digits, to be typed.
    pub id: String,
    /// What the answer is bound to.
    pub fingerprint: String,
    /// The tool's wire name.
    pub tool: String,
    /// Why a person has to look at it.
    pub reason: String,
    /// What would run, as a person is shown it.
    pub command: String,
    /// Who asked.
    pub client: String,
    /// When it was filed, in milliseconds since 1970.
    pub created_ms: i64,
    /// Where it stands.
    pub status: TicketStatus,
}

/// What is needed to file a ticket. The texts are stored as they are: the caller has redacted and shortened them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewTicket {
    /// What the answer is to be bound to.
    pub fingerprint: String,
    /// The tool's wire name.
    pub tool: String,
    /// Why a person has to look at it.
    pub reason: String,
    /// What would run, for a person's eyes.
    pub command: String,
    /// Who asks.
    pub client: String,
}

/// Where a ticket stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TicketStatus {
    /// It waits for an answer.
    Pending,
    /// A person said yes; the call has not come back yet.
    Allowed {
        /// What the yes covers.
        scope: AllowedScope,
    },
    /// A person said no.
    Denied,
    /// The allowed call was let through.
    Redeemed,
    /// Nobody answered, or nobody came back, in time.
    Expired,
}

impl fmt::Display for TicketStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TicketStatus::Pending => "pending",
            TicketStatus::Allowed { scope: AllowedScope::Once } => "allowed once",
            TicketStatus::Denied => "denied",
            TicketStatus::Redeemed => "redeemed",
            TicketStatus::Expired => "expired",
        })
    }
}

/// How far a yes reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllowedScope {
    /// One run of the same call.
    Once,
}

/// What a call that comes back learns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Redemption {
    /// Run it. No other caller gets this answer for the same ticket.
    Allowed,
    /// A person said no.
    Denied,
    /// Nobody has answered yet.
    Pending(Ticket),
    /// There is no ticket that still counts.
    Nothing,
}

/// What the column holds. That a ticket has expired is not written: it follows from the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stored {
    Pending,
    Allowed,
    Denied,
    Redeemed,
}

/// Where a ticket stands at a time. A clock set back by more than a life ends it as well: unsure means no.
fn status_at(stored: Stored, created_ms: i64, answered_ms: Option<i64>, now: i64) -> TicketStatus {
    match stored {
        Stored::Pending if is_alive(created_ms, now) => TicketStatus::Pending,
        Stored::Allowed if answered_ms.is_some_and(|answered| is_alive(answered, now)) => {
            TicketStatus::Allowed { scope: AllowedScope::Once }
        }
        Stored::Pending | Stored::Allowed => TicketStatus::Expired,
        Stored::Denied => TicketStatus::Denied,
        Stored::Redeemed => TicketStatus::Redeemed,
    }
}

fn is_alive(since: i64, now: i64) -> bool {
    since.abs_diff(now) < LIFE_MS
}

/// A no holds for the life of its ticket, and then the question may be asked again.
fn is_denied(ticket: &Ticket, now: i64) -> bool {
    ticket.status == TicketStatus::Denied && is_alive(ticket.created_ms, now)
}

/// What the tickets of one fingerprint amount to.
enum Verdict {
    /// This ticket allows one run, if it can be used up.
    Allowed { id: String },
    /// Nothing to use up.
    Settled(Redemption),
}

/// A no goes before a yes, whichever came last.
fn verdict(tickets: Vec<Ticket>, now: i64) -> Verdict {
    if tickets.iter().any(|ticket| is_denied(ticket, now)) {
        return Verdict::Settled(Redemption::Denied);
    }
    let allowed = TicketStatus::Allowed { scope: AllowedScope::Once };
    if let Some(ticket) = tickets.iter().find(|ticket| ticket.status == allowed) {
        return Verdict::Allowed { id: ticket.id.clone() };
    }
    let pending = tickets.into_iter().find(|ticket| ticket.status == TicketStatus::Pending);
    Verdict::Settled(pending.map_or(Redemption::Nothing, Redemption::Pending))
}

pub(super) fn file(connection: &Connection, new: &NewTicket, now: i64) -> Result<Ticket, StateError> {
    // The write lock is taken before looking, so two gateways cannot both find nothing.
    let transaction = Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
    let open = of_fingerprint(&transaction, &new.fingerprint, now)?
        .into_iter()
        .find(|ticket| ticket.status == TicketStatus::Pending || is_denied(ticket, now));
    if let Some(ticket) = open {
        return Ok(ticket);
    }
    let id = free_id(&transaction)?;
    transaction.execute(
        "INSERT INTO tickets (id, fingerprint, tool, reason, command, client, created_ms, status)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 'pending')",
        params![id, new.fingerprint, new.tool, new.reason, new.command, new.client, now],
    )?;
    transaction.commit()?;
    let NewTicket { fingerprint, tool, reason, command, client } = new.clone();
    let status = TicketStatus::Pending;
    Ok(Ticket { id, fingerprint, tool, reason, command, client, created_ms: now, status })
}

pub(super) fn redeem(connection: &Connection, fingerprint: &str, now: i64) -> Result<Redemption, StateError> {
    // Most calls have no allowed ticket: they only read, and wait for no writer.
    if let Verdict::Settled(redemption) = verdict(of_fingerprint(connection, fingerprint, now)?, now) {
        return Ok(redemption);
    }
    let transaction = Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
    match verdict(of_fingerprint(&transaction, fingerprint, now)?, now) {
        Verdict::Settled(redemption) => Ok(redemption),
        Verdict::Allowed { id } => {
            let used = transaction.execute(
                "UPDATE tickets SET status = 'redeemed' WHERE id = ?1 AND status = 'allowed'",
                [&id],
            )?;
            transaction.commit()?;
            Ok(if used == 1 { Redemption::Allowed } else { Redemption::Nothing })
        }
    }
}

pub(super) fn list(
    connection: &Connection,
    include_answered: bool,
    now: i64,
) -> Result<Vec<Ticket>, StateError> {
    let mut tickets = select(connection, "", &[], now)?;
    tickets.retain(|ticket| include_answered || ticket.status == TicketStatus::Pending);
    Ok(tickets)
}

pub(super) fn answer(connection: &Connection, id: &str, allow: bool, now: i64) -> Result<Ticket, StateError> {
    let id = id.trim().to_lowercase();
    let transaction = Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
    let Some(mut ticket) = select(&transaction, "WHERE id = ?1", &[&id], now)?.pop() else {
        return Err(StateError::UnknownTicket { pending: nearest(&id, list(&transaction, false, now)?), id });
    };
    match ticket.status {
        TicketStatus::Pending => {}
        TicketStatus::Expired => return Err(StateError::ExpiredTicket { id }),
        status @ (TicketStatus::Allowed { .. } | TicketStatus::Denied | TicketStatus::Redeemed) => {
            return Err(StateError::AlreadyAnswered { id, status });
        }
    }
    let status = if allow { "allowed" } else { "denied" };
    transaction.execute(
        "UPDATE tickets SET status = ?2, answered_ms = ?3 WHERE id = ?1 AND status = 'pending'",
        params![id, status, now],
    )?;
    transaction.commit()?;
    ticket.status =
        if allow { TicketStatus::Allowed { scope: AllowedScope::Once } } else { TicketStatus::Denied };
    Ok(ticket)
}

pub(super) fn forget_old(connection: &Connection, now: i64) -> Result<usize, StateError> {
    let kept = i64::try_from(KEPT_MS).unwrap_or(i64::MAX);
    // A row from the future, written under a wrong clock, would otherwise stay for ever.
    let deleted = connection.execute(
        "DELETE FROM tickets WHERE created_ms NOT BETWEEN ?1 AND ?2",
        [now.saturating_sub(kept), now.saturating_add(kept)],
    )?;
    Ok(deleted)
}

fn of_fingerprint(
    connection: &Connection,
    fingerprint: &str,
    now: i64,
) -> Result<Vec<Ticket>, rusqlite::Error> {
    select(connection, "WHERE fingerprint = ?1", &[fingerprint], now)
}

/// Oldest first.
fn select(
    connection: &Connection,
    condition: &str,
    values: &[&str],
    now: i64,
) -> Result<Vec<Ticket>, rusqlite::Error> {
    let mut statement = connection.prepare(&format!(
        "SELECT id, fingerprint, tool, reason, command, client, created_ms, status, answered_ms
         FROM tickets {condition} ORDER BY created_ms, rowid"
    ))?;
    let rows = statement.query_map(rusqlite::params_from_iter(values), |row| from_row(row, now))?;
    rows.collect()
}

fn from_row(row: &Row<'_>, now: i64) -> Result<Ticket, rusqlite::Error> {
    let created_ms = row.get("created_ms")?;
    let stored = match row.get_ref("status")?.as_str()? {
        "pending" => Stored::Pending,
        "allowed" => Stored::Allowed,
        "denied" => Stored::Denied,
        // The table's check admits one more word. Whatever else stands there allows nothing.
        _ => Stored::Redeemed,
    };
    Ok(Ticket {
        id: row.get("id")?,
        fingerprint: row.get("fingerprint")?,
        tool: row.get("tool")?,
        reason: row.get("reason")?,
        command: row.get("command")?,
        client: row.get("client")?,
        created_ms,
        status: status_at(stored, created_ms, row.get("answered_ms")?, now),
    })
}

/// An id that no ticket has. SQLite's generator is seeded by the system.
fn free_id(transaction: &Transaction<'_>) -> Result<String, rusqlite::Error> {
    loop {
        let bytes: [u8; ID_LENGTH] =
            transaction.query_row(&format!("SELECT randomblob({ID_LENGTH})"), [], |row| row.get(0))?;
        let id: String =
            bytes.iter().map(|&byte| char::from(ID_LETTERS[usize::from(byte) % ID_LETTERS.len()])).collect();
        let taken = transaction.query_row("SELECT 1 FROM tickets WHERE id = ?1", [&id], |_| Ok(()));
        if taken.optional()?.is_none() {
            return Ok(id);
        }
    }
}

fn nearest(id: &str, pending: Vec<Ticket>) -> Vec<String> {
    let mut ids: Vec<String> = pending.into_iter().map(|ticket| ticket.id).collect();
    ids.sort_by_key(|other| strsim::osa_distance(id, other));
    ids.truncate(SUGGESTIONS);
    ids
}
