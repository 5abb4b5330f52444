//! `file_write`: a file's whole content, in one step.

use std::fs;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::atomic::{Existing, PathLocks, replace_with};
use super::blocking::{Stop, blocking};
use super::outcome::{BuiltinFailure, BuiltinOutput, count, decode};
use super::roots::{Place, Roots};
use crate::tools::scoped::paths::LastLink;

/// Arguments of `file_write`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Arguments {
    /// The file. Relative paths start in the first allowed folder.
    path: String,
    /// The whole new content.
    content: String,
    /// Creates missing folders on the way.
    #[serde(default)]
    create_dirs: bool,
    /// Replaces a file that exists.
    #[serde(default = "yes")]
    overwrite: bool,
}

fn yes() -> bool {
    true
}

/// Writes.
pub async fn run(roots: &Roots, locks: &PathLocks, input: Value) -> Result<BuiltinOutput, BuiltinFailure> {
    let arguments: Arguments = decode(input)?;
    if arguments.path.ends_with(['/', std::path::MAIN_SEPARATOR]) {
        return Err(BuiltinFailure::invalid("/path", "it ends like a folder; give the path of a file"));
    }
    let roots = roots.clone();
    let (roots, arguments, place) = blocking(move |_| {
        let place = roots.resolve("/path", &arguments.path, LastLink::Followed)?;
        Ok((roots, arguments, place))
    })
    .await?;
    let lock = locks.lock(place.path()).await;
    blocking(move |stop| {
        let _lock = lock;
        write(&roots, &place, &arguments, stop)
    })
    .await
}

fn write(
    roots: &Roots,
    place: &Place,
    arguments: &Arguments,
    stop: &Stop,
) -> Result<BuiltinOutput, BuiltinFailure> {
    let shown = place.shown();
    stop.check()?;
    if let Some(folder) = place.parent().filter(|folder| !folder.is_dir()) {
        if !arguments.create_dirs {
            return Err(BuiltinFailure::failed(format!(
                "the folder of `{shown}` does not exist; set `create_dirs` to true to create it"
            )));
        }
        roots.check_unmoved(place)?;
        fs::create_dir_all(folder)
            .map_err(|error| BuiltinFailure::io("create the folder of", shown, &error))?;
    }
    let existing = if arguments.overwrite { Existing::Replace } else { Existing::Keep };
    let is_new = fs::symlink_metadata(place.path()).is_err();
    let content = arguments.content.as_bytes();
    replace_with(roots, place, existing, stop, content)?;
    let lines = arguments.content.lines().count() as u64;
    let done = if is_new { "created" } else { "replaced" };
    Ok(BuiltinOutput {
        text: format!("{done} `{shown}`: {}, {}", count(lines, "line"), count(content.len() as u64, "byte")),
        structured: json!({ "path": shown, "created": is_new, "lines": lines, "size": content.len() }),
    })
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    async fn write(world: &TempDir, arguments: Value) -> Result<BuiltinOutput, BuiltinFailure> {
        let roots = Roots::new(&["root".into()], world.path(), None);
        run(&roots, &PathLocks::default(), arguments).await
    }

    fn world() -> TempDir {
        let world = TempDir::new().unwrap();
        fs::create_dir_all(world.path().join("root/sub")).unwrap();
        fs::create_dir_all(world.path().join("outside")).unwrap();
        world
    }

    #[tokio::test]
    async fn files_are_created_and_replaced() {
        let world = world();
        let created = write(&world, json!({ "path": "a.txt", "content": "one\ntwo\n" })).await.unwrap();
        assert_eq!(created.text, "created `a.txt`: 2 lines, 8 bytes");
        assert_eq!(created.structured, json!({ "path": "a.txt", "created": true, "lines": 2, "size": 8 }));
        let replaced = write(&world, json!({ "path": "a.txt", "content": "" })).await.unwrap();
        assert_eq!(replaced.text, "replaced `a.txt`: 0 lines, 0 bytes");
        assert_eq!(fs::read(world.path().join("root/a.txt")).unwrap(), b"");
    }

    #[tokio::test]
    async fn what_is_not_asked_for_is_refused() {
        let world = world();
        fs::write(world.path().join("root/a.txt"), "old").unwrap();
        let check = async |arguments: Value, expected: &str| {
            let failure = write(&world, arguments).await.unwrap_err();
            assert!(format!("{failure:?}").contains(expected), "{failure:?}");
        };
        check(json!({ "path": "a.txt", "content": "x", "overwrite": false }), "exists already").await;
        check(json!({ "path": "new/b.txt", "content": "x" }), "`create_dirs`").await;
        check(
            json!({ "path": "a.txt/b.txt", "content": "x", "create_dirs": true }),
            "cannot create the folder",
        )
        .await;
        check(json!({ "path": "sub", "content": "x" }), "is a folder").await;
        check(json!({ "path": "sub/", "content": "x" }), "ends like a folder").await;
        check(json!({ "path": ".", "content": "x" }), "an allowed folder itself").await;
        check(json!({ "path": "../outside/b.txt", "content": "x" }), "outside the allowed folders").await;
        check(json!({ "path": "b.txt" }), "missing field `content`").await;
        check(json!({ "path": "", "content": "x" }), "path is empty").await;
        assert_eq!(fs::read_to_string(world.path().join("root/a.txt")).unwrap(), "old");
        assert_eq!(fs::read_dir(world.path().join("outside")).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn folders_on_the_way_are_created_when_asked() {
        let world = world();
        write(&world, json!({ "path": "x/y/b.txt", "content": "b", "create_dirs": true })).await.unwrap();
        assert_eq!(fs::read_to_string(world.path().join("root/x/y/b.txt")).unwrap(), "b");
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn links_inside_stay_and_links_outside_are_refused() {
        use std::os::unix::fs::symlink;
        let world = world();
        let base = world.path();
        fs::write(base.join("root/sub/real.txt"), "old").unwrap();
        symlink("sub/real.txt", base.join("root/inside")).unwrap();
        symlink("../outside/new.txt", base.join("root/dangling")).unwrap();
        symlink(base.join("outside"), base.join("root/dir")).unwrap();
        write(&world, json!({ "path": "inside", "content": "new" })).await.unwrap();
        assert_eq!(fs::read_to_string(base.join("root/sub/real.txt")).unwrap(), "new");
        assert!(fs::symlink_metadata(base.join("root/inside")).unwrap().is_symlink());
        for path in ["dangling", "dir/new.txt", "dir/x/new.txt"] {
            let refused = write(&world, json!({ "path": path, "content": "x", "create_dirs": true })).await;
            assert!(refused.is_err(), "{path}");
        }
        assert_eq!(fs::read_dir(base.join("outside")).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn a_dropped_write_leaves_nothing_behind() {
        let world = world();
        let roots = Roots::new(&["root".into()], world.path(), None);
        let locks = PathLocks::default();
        let content = "x".repeat(1 << 20);
        for _ in 0..20 {
            let call = run(&roots, &locks, json!({ "path": "a.txt", "content": content }));
            let _ = tokio::time::timeout(std::time::Duration::from_micros(300), call).await;
        }
        // Whoever gets the lock next comes after every write that was dropped.
        write_last(&roots, &locks).await;
        let names: Vec<_> = fs::read_dir(world.path().join("root"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name != "sub")
            .collect();
        assert_eq!(names, ["a.txt"]);
        assert_eq!(fs::read_to_string(world.path().join("root/a.txt")).unwrap(), "last");
    }

    async fn write_last(roots: &Roots, locks: &PathLocks) {
        run(roots, locks, json!({ "path": "a.txt", "content": "last" })).await.unwrap();
    }

    #[tokio::test]
    async fn readers_never_see_half_a_file() {
        let world = world();
        let path = world.path().join("root/a.txt");
        let roots = Roots::new(&["root".into()], world.path(), None);
        let locks = PathLocks::default();
        let contents = ["a".repeat(300_000), "b".repeat(500_000)];
        fs::write(&path, &contents[0]).unwrap();
        let reader = std::thread::spawn(move || {
            (0..200).all(|_| {
                let seen = fs::read(&path).unwrap();
                let whole = seen.len() == 300_000 || seen.len() == 500_000;
                whole && seen.iter().all(|byte| *byte == seen[0])
            })
        });
        let mut round = 0;
        while !reader.is_finished() {
            round += 1;
            run(&roots, &locks, json!({ "path": "a.txt", "content": contents[round % 2] })).await.unwrap();
        }
        assert!(reader.join().unwrap());
    }
}
