//! `file_ops`: listing, describing, creating, copying, moving and deleting files and folders.

use std::collections::VecDeque;
use std::fs::{self, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::atomic::{Existing, PathLocks, TEMPORARY_PREFIX, replace};
use super::blocking::{Stop, blocking};
use super::outcome::{BuiltinFailure, BuiltinOutput, count, decode};
use super::roots::{Place, Roots, open_regular};
use crate::tools::claim_rule::{Access, ClaimRule, Reference};
use crate::tools::scoped::paths::LastLink;

/// Entries in one listing; longer ones are cut and say so.
const MAX_LISTED: usize = 500;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Operation {
    List,
    Stat,
    Mkdir,
    Copy,
    Move,
    Delete,
}

/// Arguments of `file_ops`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Arguments {
    /// `copy` and `move` take a `destination`; `mkdir` makes missing folders on the way too.
    operation: Operation,
    /// File or folder. Relative paths start in the first allowed folder.
    path: String,
    /// The full new path, not the folder to put it in.
    destination: Option<String>,
    /// `delete`, `copy`: folders with what is in them. `list`: subfolders too.
    #[serde(default)]
    recursive: bool,
    /// Replaces a file at `destination`; folders never.
    #[serde(default)]
    overwrite: bool,
}

/// Entries that are looked at for one listing; a listing of a whole disk ends here.
const MAX_WALKED: usize = 100_000;

/// What is asked, with the places resolved.
enum Work {
    List { folder: Place, recursive: bool },
    Stat { place: Place },
    Mkdir { place: Place },
    Copy { from: Place, to: Place, recursive: bool, existing: Existing },
    Move { from: Place, to: Place, existing: Existing },
    Delete { place: Place, recursive: bool },
}

/// What a call touches: by operation, the paths it names. An operation nobody knows may touch anything.
pub fn claim() -> ClaimRule {
    let reads = || ClaimRule::paths(Access::Shared, &["path"]);
    let changes = || ClaimRule::paths(Access::Exclusive, &["path"]);
    let both = || ClaimRule::paths(Access::Exclusive, &["path", "destination"]);
    let cases = [
        ("list", reads()),
        ("stat", reads()),
        ("mkdir", changes()),
        ("delete", changes()),
        ("copy", both()),
        ("move", both()),
    ];
    ClaimRule::By {
        by: Reference::named("operation"),
        cases: cases.into_iter().map(|(operation, rule)| (operation.to_owned(), rule)).collect(),
        otherwise: Box::new(ClaimRule::Exclusive),
    }
}

/// Does it.
pub async fn run(roots: &Roots, locks: &PathLocks, input: Value) -> Result<BuiltinOutput, BuiltinFailure> {
    let arguments: Arguments = decode(input)?;
    let roots = roots.clone();
    let (roots, work) = blocking(move |_| work_of(&roots, arguments).map(|work| (roots, work))).await?;
    let mut paths = work.changes();
    // In one order everywhere, so that two calls never wait for each other.
    paths.sort();
    paths.dedup();
    let mut held = Vec::with_capacity(paths.len());
    for path in paths {
        held.push(locks.lock(&path).await);
    }
    blocking(move |stop| {
        let _held = held;
        stop.check()?;
        match work {
            Work::List { folder, recursive } => list(&folder, recursive, stop),
            Work::Stat { place } => stat(&place),
            Work::Mkdir { place } => mkdir(&roots, &place),
            Work::Copy { from, to, recursive, existing } => {
                copy(&roots, &from, &to, recursive, existing, stop)
            }
            Work::Move { from, to, existing } => rename(&roots, &from, &to, existing, stop),
            Work::Delete { place, recursive } => delete(&roots, &place, recursive),
        }
    })
    .await
}

fn work_of(roots: &Roots, arguments: Arguments) -> Result<Work, BuiltinFailure> {
    let Arguments { operation, path, destination, recursive, overwrite } = arguments;
    let existing = if overwrite { Existing::Replace } else { Existing::Keep };
    let path = |last| roots.resolve("/path", &path, last);
    let to = || match &destination {
        Some(destination) => roots.resolve("/destination", destination, LastLink::Followed),
        None => Err(BuiltinFailure::invalid("/destination", "`copy` and `move` need a `destination`")),
    };
    Ok(match operation {
        Operation::List => Work::List { folder: path(LastLink::Followed)?, recursive },
        Operation::Stat => Work::Stat { place: path(LastLink::Itself)? },
        Operation::Mkdir => Work::Mkdir { place: path(LastLink::Followed)? },
        Operation::Copy => Work::Copy { from: path(LastLink::Followed)?, to: to()?, recursive, existing },
        Operation::Move => Work::Move { from: path(LastLink::Itself)?, to: to()?, existing },
        Operation::Delete => Work::Delete { place: path(LastLink::Itself)?, recursive },
    })
}

impl Work {
    fn changes(&self) -> Vec<PathBuf> {
        match self {
            Work::List { .. } | Work::Stat { .. } => Vec::new(),
            Work::Mkdir { place } | Work::Delete { place, .. } => vec![place.path().to_owned()],
            Work::Copy { to, .. } => vec![to.path().to_owned()],
            Work::Move { from, to, .. } => vec![from.path().to_owned(), to.path().to_owned()],
        }
    }
}

fn list(folder: &Place, recursive: bool, stop: &Stop) -> Result<BuiltinOutput, BuiltinFailure> {
    let shown = folder.shown();
    if metadata(folder, "list")?.is_file() {
        return Err(BuiltinFailure::failed(format!(
            "`{shown}` is a file, not a folder; `stat` describes it"
        )));
    }
    let mut found: Vec<(String, Metadata)> = Vec::new();
    let mut folders = VecDeque::from([folder.path().to_owned()]);
    let mut is_complete = true;
    'folders: while let Some(next) = folders.pop_front() {
        for entry in fs::read_dir(&next)
            .map_err(|error| BuiltinFailure::io("list", &folder.shown_below(&next), &error))?
        {
            stop.check()?;
            if found.len() == MAX_WALKED {
                is_complete = false;
                break 'folders;
            }
            let Ok(entry) = entry else { continue };
            // Gone in the meantime, or not for us to see.
            let Ok(metadata) = entry.metadata() else { continue };
            let path = entry.path();
            let name = path.strip_prefix(folder.path()).unwrap_or(&path).display().to_string();
            if recursive && metadata.is_dir() {
                folders.push_back(path);
            }
            found.push((name, metadata));
        }
    }
    found.sort_by(|(a, _), (b, _)| a.cmp(b));
    let total = found.len();
    found.truncate(MAX_LISTED);

    let more_than = if is_complete { "" } else { "more than " };
    let mut text = format!("`{shown}` has {more_than}{}", count(total as u64, "entry"));
    if total > found.len() {
        text.push_str(&format!(
            "; the first {MAX_LISTED} are shown, so list a subfolder or search for the rest"
        ));
    }
    text.push('\n');
    for (name, metadata) in &found {
        match kind(metadata) {
            "file" => text.push_str(&format!("file    {name}  {}\n", metadata.len())),
            "folder" => text.push_str(&format!("folder  {name}/\n")),
            kind => text.push_str(&format!("{kind:<6}  {name}\n")),
        }
    }
    let entries: Vec<Value> = found
        .iter()
        .map(|(name, metadata)| {
            let mut entry = json!({ "name": name, "kind": kind(metadata) });
            if metadata.is_file() {
                entry["size"] = metadata.len().into();
            }
            entry
        })
        .collect();
    let mut structured = json!({ "path": shown, "total": total, "shown": entries.len(), "entries": entries });
    if !is_complete {
        structured["total_is_at_least"] = true.into();
    }
    Ok(BuiltinOutput { text, structured })
}

fn stat(place: &Place) -> Result<BuiltinOutput, BuiltinFailure> {
    let shown = place.shown();
    let metadata = metadata(place, "describe")?;
    let kind = kind(&metadata);
    let mut structured = json!({ "path": shown, "kind": kind });
    let mut facts = vec![format!("`{shown}`: {kind}")];
    if metadata.is_file() {
        structured["size"] = metadata.len().into();
        facts.push(count(metadata.len(), "byte"));
    }
    if metadata.is_dir()
        && let Ok(entries) = fs::read_dir(place.path())
    {
        let entries = entries.count();
        structured["entries"] = entries.into();
        facts.push(count(entries as u64, "entry"));
    }
    if let Ok(modified) = metadata.modified() {
        let modified = utc(modified);
        facts.push(format!("modified {modified}"));
        structured["modified"] = modified.into();
    }
    if !metadata.is_symlink() {
        let read_only = metadata.permissions().readonly();
        structured["read_only"] = read_only.into();
        facts.push(if read_only { "read-only" } else { "writable" }.to_owned());
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = format!("{:04o}", metadata.permissions().mode() & 0o7777);
        facts.push(format!("mode {mode}"));
        structured["mode"] = mode.into();
    }
    Ok(BuiltinOutput { text: facts.join(", "), structured })
}

fn mkdir(roots: &Roots, place: &Place) -> Result<BuiltinOutput, BuiltinFailure> {
    let shown = place.shown();
    let is_new = !place.path().is_dir();
    roots.check_unmoved(place)?;
    fs::create_dir_all(place.path()).map_err(|error| BuiltinFailure::io("create", shown, &error))?;
    let done = if is_new { "created" } else { "exists already:" };
    Ok(BuiltinOutput {
        text: format!("{done} `{shown}`"),
        structured: json!({ "path": shown, "created": is_new }),
    })
}

fn copy(
    roots: &Roots,
    from: &Place,
    to: &Place,
    recursive: bool,
    existing: Existing,
    stop: &Stop,
) -> Result<BuiltinOutput, BuiltinFailure> {
    let metadata = metadata(from, "copy")?;
    refuse_same_or_below(from, to, "copied")?;
    require_folder_of(to)?;
    if metadata.is_dir() {
        if !recursive {
            return Err(BuiltinFailure::failed(format!(
                "`{}` is a folder; set `recursive` to true to copy it with what is in it",
                from.shown()
            )));
        }
        refuse_existing(to, Existing::Keep)?;
        copy_folder(roots, from, to, stop)?;
    } else {
        refuse_existing(to, existing)?;
        copy_file(roots, from, to, existing, stop)?;
    }
    Ok(moved("copied", from, to))
}

fn copy_file(
    roots: &Roots,
    from: &Place,
    to: &Place,
    existing: Existing,
    stop: &Stop,
) -> Result<(), BuiltinFailure> {
    let source = roots.open(from)?;
    let permissions =
        source.metadata().map_err(|error| BuiltinFailure::io("copy", from.shown(), &error))?.permissions();
    replace(roots, to, existing, stop, |file| {
        io::copy(&mut stop.reader(source), file)?;
        file.set_permissions(permissions)
    })
}

/// Copies beside the destination and renames at the end, so that half a copy is never there under its name.
fn copy_folder(roots: &Roots, from: &Place, to: &Place, stop: &Stop) -> Result<(), BuiltinFailure> {
    let failed = |error: io::Error| BuiltinFailure::io("copy to", to.shown(), &error);
    let Some(folder) = to.parent() else { return Err(root_itself(to)) };
    let temporary = tempfile::Builder::new().prefix(TEMPORARY_PREFIX).tempdir_in(folder).map_err(failed)?;
    let copy = temporary.path().join("copy");
    roots.check_unmoved(from)?;
    copy_tree(from, from.path(), &copy, stop)?;
    stop.check()?;
    roots.check_unmoved(to)?;
    refuse_existing(to, Existing::Keep)?;
    fs::rename(&copy, to.path()).map_err(failed)
}

fn copy_tree(top: &Place, from: &Path, to: &Path, stop: &Stop) -> Result<(), BuiltinFailure> {
    let failed = |error: io::Error| BuiltinFailure::io("copy", &top.shown_below(from), &error);
    stop.check()?;
    let metadata = fs::symlink_metadata(from).map_err(failed)?;
    if metadata.is_symlink() {
        // Copied as a link: what it leads to is judged when somebody uses it.
        return copy_link(from, to).map_err(failed);
    }
    if metadata.is_file() {
        let source = open_regular(from).map_err(failed)?;
        let mut target = fs::File::create_new(to).map_err(failed)?;
        io::copy(&mut stop.reader(source), &mut target).map_err(failed)?;
        return target.set_permissions(metadata.permissions()).map_err(failed);
    }
    if !metadata.is_dir() {
        return Err(BuiltinFailure::failed(format!(
            "`{}` is a pipe, socket or device and cannot be copied",
            top.shown_below(from)
        )));
    }
    fs::create_dir(to).map_err(failed)?;
    for entry in fs::read_dir(from).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        copy_tree(top, &entry.path(), &to.join(entry.file_name()), stop)?;
    }
    fs::set_permissions(to, metadata.permissions()).map_err(failed)
}

#[cfg(unix)]
fn copy_link(from: &Path, to: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(fs::read_link(from)?, to)
}

#[cfg(not(unix))]
fn copy_link(_: &Path, _: &Path) -> io::Result<()> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "links are not copied here"))
}

fn rename(
    roots: &Roots,
    from: &Place,
    to: &Place,
    existing: Existing,
    stop: &Stop,
) -> Result<BuiltinOutput, BuiltinFailure> {
    let failed = |error: io::Error| BuiltinFailure::io("move", from.shown(), &error);
    let metadata = metadata(from, "move")?;
    if roots.holds_a_root(from.path()) {
        return Err(root_itself(from));
    }
    refuse_same_or_below(from, to, "moved")?;
    require_folder_of(to)?;
    refuse_existing(to, if metadata.is_dir() { Existing::Keep } else { existing })?;
    roots.check_unmoved(from)?;
    roots.check_unmoved(to)?;
    match fs::rename(from.path(), to.path()) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::CrossesDevices && !metadata.is_symlink() => {
            if metadata.is_dir() {
                copy_folder(roots, from, to, stop)?;
                fs::remove_dir_all(from.path()).map_err(failed)?;
            } else {
                copy_file(roots, from, to, existing, stop)?;
                fs::remove_file(from.path()).map_err(failed)?;
            }
        }
        Err(error) => return Err(failed(error)),
    }
    Ok(moved("moved", from, to))
}

fn delete(roots: &Roots, place: &Place, recursive: bool) -> Result<BuiltinOutput, BuiltinFailure> {
    let shown = place.shown();
    let failed = |error: io::Error| BuiltinFailure::io("delete", shown, &error);
    let metadata = metadata(place, "delete")?;
    if roots.holds_a_root(place.path()) {
        return Err(root_itself(place));
    }
    roots.check_unmoved(place)?;
    if metadata.is_symlink() {
        // Where links to folders are folders of a kind, only the second call removes them.
        fs::remove_file(place.path())
            .or_else(|error| fs::remove_dir(place.path()).map_err(|_| error))
            .map_err(failed)?;
    } else if !metadata.is_dir() {
        fs::remove_file(place.path()).map_err(failed)?;
    } else if recursive {
        fs::remove_dir_all(place.path()).map_err(failed)?;
    } else {
        fs::remove_dir(place.path()).map_err(|error| match error.kind() {
            io::ErrorKind::DirectoryNotEmpty => BuiltinFailure::failed(format!(
                "`{shown}` is not empty; set `recursive` to true to delete it with everything in it"
            )),
            _ => failed(error),
        })?;
    }
    let kind = kind(&metadata);
    Ok(BuiltinOutput {
        text: format!("deleted the {kind} `{shown}`"),
        structured: json!({ "path": shown, "kind": kind, "deleted": true }),
    })
}

fn moved(done: &str, from: &Place, to: &Place) -> BuiltinOutput {
    BuiltinOutput {
        text: format!("{done} `{}` to `{}`", from.shown(), to.shown()),
        structured: json!({ "path": from.shown(), "destination": to.shown(), "done": done }),
    }
}

fn metadata(place: &Place, doing: &str) -> Result<Metadata, BuiltinFailure> {
    fs::symlink_metadata(place.path()).map_err(|error| BuiltinFailure::io(doing, place.shown(), &error))
}

fn root_itself(place: &Place) -> BuiltinFailure {
    BuiltinFailure::failed(format!(
        "`{}` is an allowed folder itself, or holds one, and stays where it is; name what is in it instead",
        place.shown()
    ))
}

fn refuse_same_or_below(from: &Place, to: &Place, done: &str) -> Result<(), BuiltinFailure> {
    if from.path() == to.path() {
        return Err(BuiltinFailure::failed(format!("`path` and `destination` are both `{}`", from.shown())));
    }
    if to.path().starts_with(from.path()) {
        return Err(BuiltinFailure::failed(format!("`{}` cannot be {done} into itself", from.shown())));
    }
    Ok(())
}

fn require_folder_of(to: &Place) -> Result<(), BuiltinFailure> {
    if to.parent().is_none_or(Path::is_dir) {
        return Ok(());
    }
    Err(BuiltinFailure::failed(format!(
        "the folder of `{}` does not exist; create it with `mkdir` first",
        to.shown()
    )))
}

fn refuse_existing(to: &Place, existing: Existing) -> Result<(), BuiltinFailure> {
    let shown = to.shown();
    let Ok(metadata) = fs::symlink_metadata(to.path()) else { return Ok(()) };
    if metadata.is_dir() {
        return Err(BuiltinFailure::failed(format!(
            "`{shown}` is a folder that exists already; give the full new path, as in `{}`",
            to.shown_below(&to.path().join("NAME"))
        )));
    }
    match existing {
        Existing::Replace => Ok(()),
        Existing::Keep => Err(BuiltinFailure::failed(format!(
            "`{shown}` exists already; a file can replace it with `overwrite` set to true, a folder only once it is deleted"
        ))),
    }
}

fn kind(metadata: &Metadata) -> &'static str {
    if metadata.is_symlink() {
        "link"
    } else if metadata.is_dir() {
        "folder"
    } else if metadata.is_file() {
        "file"
    } else {
        "other"
    }
}

/// A time as RFC 3339 writes it, in UTC and whole seconds.
fn utc(time: SystemTime) -> String {
    let seconds = match time.duration_since(UNIX_EPOCH) {
        Ok(after) => after.as_secs().cast_signed(),
        Err(before) => -before.duration().as_secs().cast_signed(),
    };
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Years that begin in March end with the leap day; 400 of them are one period of the calendar.
    let days = days + 719_468;
    let (period, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = period * 400 + year + i64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tempfile::TempDir;

    use super::*;

    struct World {
        folder: TempDir,
        roots: Roots,
    }

    impl World {
        fn new() -> World {
            let folder = TempDir::new().unwrap();
            for sub in ["root/sub/deep", "outside"] {
                fs::create_dir_all(folder.path().join(sub)).unwrap();
            }
            for (file, content) in [
                ("root/a.txt", "aa"),
                ("root/sub/b.txt", "b"),
                ("root/sub/deep/c.txt", ""),
                ("outside/s", "S"),
            ] {
                fs::write(folder.path().join(file), content).unwrap();
            }
            let roots = Roots::new(&["root".into(), "root/sub/deep".into()], folder.path(), None);
            World { folder, roots }
        }

        async fn run(&self, input: Value) -> Result<BuiltinOutput, BuiltinFailure> {
            run(&self.roots, &PathLocks::default(), input).await
        }

        async fn says(&self, input: Value, expected: &str) {
            let output = self.run(input).await.unwrap();
            assert_eq!(output.text, expected);
        }

        async fn refuses(&self, input: Value, expected: &str) {
            let failure = format!("{:?}", self.run(input.clone()).await.unwrap_err());
            assert!(failure.contains(expected), "{input}: {failure}");
            assert!(!failure.contains(&self.folder.path().display().to_string()), "{failure}");
        }

        fn content(&self, path: &str) -> Option<String> {
            fs::read_to_string(self.folder.path().join(path)).ok()
        }

        fn tree(&self) -> Vec<String> {
            let mut names = Vec::new();
            let mut folders = vec![self.folder.path().to_owned()];
            while let Some(next) = folders.pop() {
                for entry in fs::read_dir(next).unwrap() {
                    let path = entry.unwrap().path();
                    if path.is_dir() && !path.is_symlink() {
                        folders.push(path);
                    } else {
                        names.push(path.strip_prefix(self.folder.path()).unwrap().display().to_string());
                    }
                }
            }
            names.sort();
            names
        }
    }

    #[tokio::test]
    async fn listings_are_sorted_with_kinds_and_sizes() {
        let world = World::new();
        world
            .says(
                json!({ "operation": "list", "path": "." }),
                "`.` has 2 entries\nfile    a.txt  2\nfolder  sub/\n",
            )
            .await;
        let deep = world.run(json!({ "operation": "list", "path": "sub", "recursive": true })).await.unwrap();
        assert_eq!(
            deep.structured,
            json!({ "path": "sub", "total": 3, "shown": 3, "entries": [
                { "name": "b.txt", "kind": "file", "size": 1 },
                { "name": "deep", "kind": "folder" },
                { "name": "deep/c.txt", "kind": "file", "size": 0 },
            ] })
        );
        for n in 0..MAX_LISTED {
            fs::write(world.folder.path().join(format!("root/sub/f{n}")), "").unwrap();
        }
        let long = world.run(json!({ "operation": "list", "path": "sub" })).await.unwrap();
        assert_eq!((&long.structured["total"], &long.structured["shown"]), (&json!(502), &json!(500)));
        assert!(long.text.contains("502 entries; the first 500 are shown"));
        world.refuses(json!({ "operation": "list", "path": "a.txt" }), "is a file, not a folder").await;
        world
            .refuses(json!({ "operation": "list", "path": "../outside" }), "outside the allowed folders")
            .await;
    }

    #[tokio::test]
    async fn unknown_and_missing_operations_name_the_allowed_ones() {
        let world = World::new();
        let allowed = "`list`, `stat`, `mkdir`, `copy`, `move`, `delete`";
        world.refuses(json!({ "operation": "zap", "path": "." }), allowed).await;
        world.refuses(json!({ "path": "." }), "missing field `operation`").await;
        world.refuses(json!({ "operation": "copy", "path": "a.txt" }), "/destination").await;
        world.refuses(json!({ "operation": "stat", "path": "" }), "path is empty").await;
    }

    #[tokio::test]
    async fn stat_says_what_a_thing_is() {
        let world = World::new();
        let file = world.run(json!({ "operation": "stat", "path": "a.txt" })).await.unwrap();
        assert!(file.text.starts_with("`a.txt`: file, 2 bytes, modified 20"), "{}", file.text);
        assert_eq!((&file.structured["kind"], &file.structured["size"]), (&json!("file"), &json!(2)));
        let folder = world.run(json!({ "operation": "stat", "path": "sub" })).await.unwrap();
        assert_eq!(
            (&folder.structured["kind"], &folder.structured["entries"]),
            (&json!("folder"), &json!(2))
        );
        world
            .refuses(
                json!({ "operation": "stat", "path": "none" }),
                "cannot describe `none`: it does not exist",
            )
            .await;
    }

    #[tokio::test]
    async fn folders_are_created_with_those_on_the_way_and_once() {
        let world = World::new();
        world.says(json!({ "operation": "mkdir", "path": "x/y" }), "created `x/y`").await;
        world.says(json!({ "operation": "mkdir", "path": "x/y" }), "exists already: `x/y`").await;
        world.refuses(json!({ "operation": "mkdir", "path": "a.txt" }), "exists already").await;
        world.refuses(json!({ "operation": "mkdir", "path": "../outside/x" }), "outside").await;
    }

    #[tokio::test]
    async fn copies_and_moves_never_overwrite_unasked() {
        let world = World::new();
        let op = |operation: &str, path: &str, destination: &str| json!({ "operation": operation, "path": path, "destination": destination });
        let over = |operation: &str, path: &str, destination: &str| json!({ "operation": operation, "path": path, "destination": destination, "overwrite": true });
        world.says(op("copy", "a.txt", "new.txt"), "copied `a.txt` to `new.txt`").await;
        world.refuses(op("copy", "a.txt", "sub/b.txt"), "exists already").await;
        world.refuses(op("move", "a.txt", "sub/b.txt"), "exists already").await;
        world.refuses(over("copy", "a.txt", "sub"), "as in `sub/NAME`").await;
        world.refuses(over("move", "sub", "a.txt"), "an allowed folder itself, or holds one").await;
        world.refuses(op("move", "a.txt", "none/a.txt"), "`mkdir`").await;
        world.refuses(op("copy", "a.txt", "./a.txt"), "are both").await;
        world.refuses(op("copy", "a.txt", "../outside/a.txt"), "outside the allowed folders").await;
        world.refuses(op("move", "../outside/s", "s"), "outside the allowed folders").await;
        world.refuses(op("copy", "sub", "copy"), "`recursive`").await;
        assert_eq!(world.content("root/sub/b.txt").as_deref(), Some("b"));
        world.says(over("copy", "a.txt", "sub/b.txt"), "copied `a.txt` to `sub/b.txt`").await;
        assert_eq!(world.content("root/sub/b.txt").as_deref(), Some("aa"));
        world.says(op("move", "new.txt", "sub/moved.txt"), "moved `new.txt` to `sub/moved.txt`").await;
        assert_eq!(world.content("root/new.txt"), None);
        assert_eq!(world.content("root/sub/moved.txt").as_deref(), Some("aa"));
        let whole = json!({ "operation": "copy", "path": "sub", "destination": "copy", "recursive": true });
        world.says(whole.clone(), "copied `sub` to `copy`").await;
        world.refuses(whole, "exists already").await;
        world
            .refuses(
                json!({ "operation": "copy", "path": "copy", "destination": "copy/in", "recursive": true }),
                "into itself",
            )
            .await;
        world.says(op("move", "copy", "renamed"), "moved `copy` to `renamed`").await;
        assert_eq!(
            world.tree(),
            [
                "outside/s",
                "root/a.txt",
                "root/renamed/b.txt",
                "root/renamed/deep/c.txt",
                "root/renamed/moved.txt",
                "root/sub/b.txt",
                "root/sub/deep/c.txt",
                "root/sub/moved.txt",
            ]
        );
    }

    #[tokio::test]
    async fn deleting_a_full_folder_needs_to_be_asked_for_and_roots_stay() {
        let world = World::new();
        let delete = |path: &str| json!({ "operation": "delete", "path": path });
        let all = |path: &str| json!({ "operation": "delete", "path": path, "recursive": true });
        fs::create_dir_all(world.folder.path().join("root/full/empty")).unwrap();
        world.refuses(delete("full"), "is not empty; set `recursive`").await;
        world.says(delete("full/empty"), "deleted the folder `full/empty`").await;
        fs::write(world.folder.path().join("root/full/x"), "").unwrap();
        world.says(all("full"), "deleted the folder `full`").await;
        world.says(delete("a.txt"), "deleted the file `a.txt`").await;
        world.refuses(delete("a.txt"), "does not exist").await;
        for path in [".", "sub/..", "sub", "sub/deep"] {
            world.refuses(all(path), "an allowed folder itself, or holds one").await;
        }
        world.refuses(all(".."), "outside the allowed folders").await;
        world.refuses(all("../outside"), "outside the allowed folders").await;
        assert_eq!(world.tree(), ["outside/s", "root/sub/b.txt", "root/sub/deep/c.txt"]);
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn a_link_that_leads_out_is_deleted_and_moved_as_itself_and_never_followed() {
        use std::os::unix::fs::symlink;
        let world = World::new();
        let base = world.folder.path();
        symlink(base.join("outside"), base.join("root/link")).unwrap();
        world.refuses(json!({ "operation": "list", "path": "link" }), "outside").await;
        world
            .refuses(
                json!({ "operation": "copy", "path": "link", "destination": "x", "recursive": true }),
                "outside",
            )
            .await;
        world
            .refuses(json!({ "operation": "copy", "path": "a.txt", "destination": "link/a.txt" }), "outside")
            .await;
        world.refuses(json!({ "operation": "delete", "path": "link/s" }), "outside").await;
        let kind = world.run(json!({ "operation": "stat", "path": "link" })).await.unwrap();
        assert_eq!(kind.structured["kind"], "link");
        let listed = world.run(json!({ "operation": "list", "path": ".", "recursive": true })).await.unwrap();
        assert!(!listed.text.contains("link/s"), "{}", listed.text);

        fs::create_dir(base.join("root/holder")).unwrap();
        world
            .says(
                json!({ "operation": "move", "path": "link", "destination": "holder/link" }),
                "moved `link` to `holder/link`",
            )
            .await;
        let copy = json!({ "operation": "copy", "path": "holder", "destination": "copy", "recursive": true });
        world.says(copy, "copied `holder` to `copy`").await;
        assert!(fs::symlink_metadata(base.join("root/copy/link")).unwrap().is_symlink());
        world
            .says(
                json!({ "operation": "delete", "path": "copy/link", "recursive": true }),
                "deleted the link `copy/link`",
            )
            .await;
        world
            .says(
                json!({ "operation": "delete", "path": "holder", "recursive": true }),
                "deleted the folder `holder`",
            )
            .await;
        assert_eq!(world.content("outside/s").as_deref(), Some("S"));
    }

    #[test]
    fn times_are_written_as_the_calendar_has_them() {
        let check = |seconds: u64, expected: &str| {
            assert_eq!(utc(UNIX_EPOCH + Duration::from_secs(seconds)), expected)
        };
        check(0, "1970-01-01T00:00:00Z");
        check(951_782_399, "2000-02-28T23:59:59Z");
        check(951_782_400, "2000-02-29T00:00:00Z");
        check(1_709_251_199, "2024-02-29T23:59:59Z");
        check(1_735_689_599, "2024-12-31T23:59:59Z");
        check(4_107_542_400, "2100-03-01T00:00:00Z");
        assert_eq!(utc(UNIX_EPOCH - Duration::from_secs(1)), "1969-12-31T23:59:59Z");
    }
}
