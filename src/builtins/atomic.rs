//! Replaces files in one step, so that nobody ever sees half of one, and lets one change at a time at each.

use std::collections::HashMap;
use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tempfile::{Builder, NamedTempFile};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use super::blocking::Stop;
use super::outcome::BuiltinFailure;
use super::roots::{Place, Roots};

/// What to do when there is a file already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// It is replaced.
    Replace,
    /// It is kept, and the write fails.
    Keep,
}

/// How temporary files are called: hidden, and to be recognized should the machine lose its power in between.
pub const TEMPORARY_PREFIX: &str = ".toolcrib-";

/// One lock per path, for changes that read before they write.
#[derive(Debug, Clone, Default)]
pub struct PathLocks {
    held: Arc<Mutex<HashMap<PathBuf, Weak<AsyncMutex<()>>>>>,
}

impl PathLocks {
    /// Waits until no other change at `path` is under way.
    pub async fn lock(&self, path: &Path) -> OwnedMutexGuard<()> {
        self.of(path).lock_owned().await
    }

    fn of(&self, path: &Path) -> Arc<AsyncMutex<()>> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lock) = held.get(path).and_then(Weak::upgrade) {
            return lock;
        }
        held.retain(|_, lock| lock.strong_count() > 0);
        let lock = Arc::new(AsyncMutex::new(()));
        held.insert(path.to_owned(), Arc::downgrade(&lock));
        lock
    }
}

/// Gives the file at `place` a new content: written beside it, flushed to the disk, then renamed over it.
///
/// Permissions of a replaced file are kept. On any failure, and when stopped, the old file is as it was.
pub fn replace(
    roots: &Roots,
    place: &Place,
    existing: Existing,
    stop: &Stop,
    fill: impl FnOnce(&mut File) -> io::Result<()>,
) -> Result<(), BuiltinFailure> {
    let shown = place.shown();
    let failed = |error: io::Error| BuiltinFailure::io("write", shown, &error);
    let Some(folder) = place.parent() else {
        return Err(BuiltinFailure::failed(format!("`{shown}` is an allowed folder itself, not a file")));
    };
    let old = match fs::symlink_metadata(place.path()) {
        Ok(metadata) => Some(metadata),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(failed(error)),
    };
    if let Some(old) = &old {
        refuse_to_replace(shown, old, existing)?;
    }
    let mut temporary = temporary_in(folder).map_err(failed)?;
    fill(temporary.as_file_mut()).map_err(failed)?;
    if let Some(old) = old {
        temporary.as_file().set_permissions(old.permissions()).map_err(failed)?;
    }
    temporary.as_file().sync_all().map_err(failed)?;
    stop.check()?;
    roots.check_unmoved(place)?;
    let persisted = match existing {
        Existing::Replace => temporary.persist(place.path()),
        Existing::Keep => temporary.persist_noclobber(place.path()),
    };
    match persisted {
        Ok(_) => Ok(()),
        Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => Err(exists(shown)),
        Err(error) => Err(failed(error.error)),
    }
}

/// As [`replace`], with content that is in memory.
pub fn replace_with(
    roots: &Roots,
    place: &Place,
    existing: Existing,
    stop: &Stop,
    content: &[u8],
) -> Result<(), BuiltinFailure> {
    replace(roots, place, existing, stop, |file| file.write_all(content))
}

fn refuse_to_replace(shown: &str, old: &fs::Metadata, existing: Existing) -> Result<(), BuiltinFailure> {
    let reason = if old.is_dir() {
        format!("`{shown}` is a folder, not a file; give the path of a file in it")
    } else if !old.is_file() {
        format!("`{shown}` is not a regular file (a link, pipe, socket or device) and is left alone")
    } else if existing == Existing::Keep {
        return Err(exists(shown));
    } else if old.permissions().readonly() {
        format!("`{shown}` is marked read-only and is left alone")
    } else {
        return Ok(());
    };
    Err(BuiltinFailure::failed(reason))
}

fn exists(shown: &str) -> BuiltinFailure {
    BuiltinFailure::failed(format!(
        "`{shown}` exists already; set `overwrite` to true to replace it, or choose another path"
    ))
}

/// An empty file that is deleted when dropped and has the permissions of any new file.
fn temporary_in(folder: &Path) -> io::Result<NamedTempFile> {
    let mut builder = Builder::new();
    builder.prefix(TEMPORARY_PREFIX);
    #[cfg(unix)]
    let permissions: Option<Permissions> = Some(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    #[cfg(not(unix))]
    let permissions: Option<Permissions> = None;
    if let Some(permissions) = permissions {
        // The process's own mask takes from these what new files are not to have.
        builder.permissions(permissions);
    }
    builder.tempfile_in(folder)
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;
    use crate::tools::scoped::paths::LastLink;

    fn world() -> (TempDir, Roots) {
        let world = TempDir::new().unwrap();
        let roots = Roots::new(&[".".into()], world.path(), None);
        (world, roots)
    }

    fn names(world: &TempDir) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(world.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_failed_or_stopped_write_leaves_the_old_file_and_nothing_else() {
        let (world, roots) = world();
        fs::write(world.path().join("a"), "old").unwrap();
        let place = roots.resolve("/path", "a", LastLink::Followed).unwrap();
        let broken = replace(&roots, &place, Existing::Replace, &Stop::default(), |file| {
            file.write_all(b"half")?;
            Err(io::Error::other("no more"))
        });
        assert!(broken.is_err());
        let stopped = Stop::default().or_after(std::time::Instant::now());
        assert!(replace_with(&roots, &place, Existing::Replace, &stopped, b"new").is_err());
        assert!(replace_with(&roots, &place, Existing::Keep, &Stop::default(), b"new").is_err());
        assert_eq!(fs::read_to_string(world.path().join("a")).unwrap(), "old");
        assert_eq!(names(&world), ["a"]);
    }

    #[cfg(unix)]
    #[test]
    fn permissions_are_kept_and_new_files_are_not_private() {
        use std::os::unix::fs::PermissionsExt;
        let (world, roots) = world();
        let mode = |name: &str| fs::metadata(world.path().join(name)).unwrap().permissions().mode() & 0o777;
        fs::write(world.path().join("script"), "").unwrap();
        fs::set_permissions(world.path().join("script"), Permissions::from_mode(0o750)).unwrap();
        fs::write(world.path().join("plain"), "").unwrap();
        for name in ["script", "new"] {
            let place = roots.resolve("/path", name, LastLink::Followed).unwrap();
            replace_with(&roots, &place, Existing::Replace, &Stop::default(), b"x").unwrap();
        }
        assert_eq!(mode("script"), 0o750);
        assert_eq!(mode("new"), mode("plain"));

        fs::set_permissions(world.path().join("plain"), Permissions::from_mode(0o444)).unwrap();
        let place = roots.resolve("/path", "plain", LastLink::Followed).unwrap();
        assert!(replace_with(&roots, &place, Existing::Replace, &Stop::default(), b"x").is_err());
    }

    #[cfg(unix)]
    #[test]
    fn a_folder_swapped_for_a_link_is_not_written_through() {
        let (world, _) = world();
        fs::create_dir_all(world.path().join("root/sub")).unwrap();
        fs::create_dir(world.path().join("outside")).unwrap();
        let roots = Roots::new(&["root".into()], world.path(), None);
        let place = roots.resolve("/path", "sub/new", LastLink::Followed).unwrap();
        let swapped = replace(&roots, &place, Existing::Replace, &Stop::default(), |file| {
            fs::rename(world.path().join("root/sub"), world.path().join("root/old")).unwrap();
            std::os::unix::fs::symlink(world.path().join("outside"), world.path().join("root/sub")).unwrap();
            file.write_all(b"x")
        });
        assert!(swapped.is_err());
        assert_eq!(fs::read_dir(world.path().join("outside")).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn locks_of_different_paths_are_apart_and_forgotten() {
        let locks = PathLocks::default();
        let first = locks.lock(Path::new("a")).await;
        let _second = locks.lock(Path::new("b")).await;
        assert!(locks.of(Path::new("a")).try_lock().is_err());
        drop(first);
        drop(locks.lock(Path::new("c")).await);
        assert_eq!(locks.held.lock().unwrap().len(), 2);
    }
}
