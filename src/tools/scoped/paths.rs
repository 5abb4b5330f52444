//! Finds out what a path among the arguments of a call really names.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use crate::tools::concurrency::ClaimPath;

/// Links followed for one path before it counts as going round in circles; Linux stops at the same number.
const MAX_LINKS: usize = 40;

/// Whether a link at the end of a path stands for its target or for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LastLink {
    /// For what it points to, which must be inside: reading and writing.
    Followed,
    /// For itself: deleting, moving, describing.
    Itself,
}

/// Where paths start that are relative, or below `~`.
#[derive(Debug, Clone, Default)]
pub struct Workspace {
    folder: PathBuf,
    home: Option<PathBuf>,
}

impl Workspace {
    /// A workspace at an absolute folder.
    pub fn new(folder: PathBuf, home: Option<PathBuf>) -> Workspace {
        Workspace { folder, home }
    }

    /// Everything that `text` may name for a tool that takes paths to where `locate` says, or else to the workspace.
    /// Nearly always that is one path. `None`: it cannot be told. Looks at the disk.
    ///
    /// Tools differ in what they do to a path before they use it, so each usual reading counts: with and without
    /// blanks around it, with `..` taken before or after links, with a link at its end followed or not.
    pub fn resolve(&self, text: &str, locate: impl Fn(&str) -> Option<PathBuf>) -> Option<Vec<ClaimPath>> {
        if text.trim().is_empty() || text.contains('\0') {
            return None;
        }
        let trimmed = text.trim();
        let mut readings = vec![file_of_uri(trimmed)?];
        if trimmed.len() != text.len() {
            readings.push(text.to_owned());
        }
        // A backslash is a letter to the kernel and a separator to many tools.
        if cfg!(unix) && trimmed.contains('\\') {
            readings.push(trimmed.replace('\\', "/"));
        }
        let mut found: Vec<ClaimPath> = Vec::new();
        for reading in &readings {
            let path = self.absolute(reading, &locate)?;
            for start in [Some(path.clone()), without_ups(&path)].into_iter().flatten() {
                for last in [LastLink::Followed, LastLink::Itself] {
                    let place = claimed(&walk(&start, last).ok()?, trimmed)?;
                    if !found.contains(&place) {
                        found.push(place);
                    }
                }
            }
        }
        Some(found)
    }

    fn absolute(&self, text: &str, locate: &impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
        let path = Path::new(text);
        if text.starts_with('~') {
            // `~name` is another user's folder to some tools.
            return if text == "~" || text.starts_with("~/") {
                at_home(path, self.home.as_deref())
            } else {
                None
            };
        }
        let path = self.folder.join(locate(text).unwrap_or_else(|| path.to_owned()));
        path.is_absolute().then_some(path)
    }
}

/// The path in a `file:` URI; any other text as it is, but none of other schemes.
fn file_of_uri(text: &str) -> Option<String> {
    let Some((scheme, rest)) = text.split_once("://") else { return Some(text.to_owned()) };
    if !scheme.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.')) {
        return Some(text.to_owned());
    }
    if !scheme.eq_ignore_ascii_case("file") {
        return None;
    }
    let path = rest.strip_prefix("localhost").unwrap_or(rest);
    // Encoded names would have to be decoded exactly as the tool does it.
    (path.starts_with('/') && !path.contains(['%', '?', '#'])).then(|| path.to_owned())
}

/// The same path with `..` taken by name, before any link; `None` if it has no `..`.
fn without_ups(path: &Path) -> Option<PathBuf> {
    if !path.components().any(|part| part == Component::ParentDir) {
        return None;
    }
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            part => plain.push(part),
        }
    }
    Some(plain)
}

fn claimed(path: &Path, shown: &str) -> Option<ClaimPath> {
    let mut parts: Vec<Box<str>> = Vec::new();
    for part in path.components() {
        match part {
            Component::RootDir | Component::CurDir => {}
            part => parts.push(part.as_os_str().to_str()?.into()),
        }
    }
    let path_is_folded = folds(path);
    let claimed = ClaimPath::rooted(parts, shown);
    Some(if path_is_folded { claimed.folded() } else { claimed })
}

/// Whether the disk takes upper and lower case for the same here: asked by naming what exists in the other case.
fn folds(path: &Path) -> bool {
    for existing in path.ancestors() {
        let Ok(known) = fs::symlink_metadata(existing) else { continue };
        let Some(name) = existing.file_name().and_then(|name| name.to_str()) else { break };
        let lower = name.to_lowercase();
        let other = if lower == name { name.to_uppercase() } else { lower };
        if other == name {
            continue;
        }
        return fs::symlink_metadata(existing.with_file_name(other))
            .is_ok_and(|other| is_same(&known, &other));
    }
    cfg!(any(windows, target_os = "macos"))
}

#[cfg(unix)]
fn is_same(a: &fs::Metadata, b: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

#[cfg(not(unix))]
fn is_same(_: &fs::Metadata, _: &fs::Metadata) -> bool {
    true
}

/// Where a path below `~` leads; `None` for any other path, and where there is no home.
pub fn at_home(path: &Path, home: Option<&Path>) -> Option<PathBuf> {
    let rest = path.strip_prefix("~").ok()?;
    Some(if rest.as_os_str().is_empty() { home?.to_owned() } else { home?.join(rest) })
}

enum Step {
    Down(OsString),
    Up,
}

/// Resolves dots and links as the kernel would, and goes on by name where nothing exists any more.
pub fn walk(path: &Path, last: LastLink) -> io::Result<PathBuf> {
    let mut here = PathBuf::new();
    let mut ahead: VecDeque<Step> = VecDeque::new();
    let mut links = 0;
    go(path, &mut here, &mut ahead);
    while let Some(step) = ahead.pop_front() {
        let name = match step {
            Step::Up => {
                // `here` holds no links, so its parent is what the kernel would go to; above the top is the top.
                here.pop();
                continue;
            }
            Step::Down(name) => name,
        };
        here.push(name);
        if ahead.is_empty() && last == LastLink::Itself {
            break;
        }
        match fs::symlink_metadata(&here) {
            Ok(metadata) if metadata.is_symlink() => {
                links += 1;
                if links > MAX_LINKS {
                    return Err(io::Error::other("too many links"));
                }
                let target = fs::read_link(&here)?;
                here.pop();
                go(&target, &mut here, &mut ahead);
            }
            Ok(_) => {}
            // What may not be looked at may not be used either; whoever tries is told so by the operating system.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::PermissionDenied
                ) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(here)
}

/// Puts the steps of `path` in front of those ahead; an absolute path starts anew.
fn go(path: &Path, here: &mut PathBuf, ahead: &mut VecDeque<Step>) {
    let mut steps = Vec::new();
    for component in path.components() {
        match component {
            Component::Prefix(prefix) => *here = PathBuf::from(prefix.as_os_str()),
            Component::RootDir => {
                let top = here.components().next();
                *here = match top {
                    Some(Component::Prefix(prefix)) => PathBuf::from(prefix.as_os_str()),
                    _ => PathBuf::new(),
                };
                here.push(component.as_os_str());
            }
            Component::CurDir => {}
            Component::ParentDir => steps.push(Step::Up),
            Component::Normal(name) => steps.push(Step::Down(name.to_owned())),
        }
    }
    for step in steps.into_iter().rev() {
        ahead.push_front(step);
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    /// A workspace `w` beside a folder `home`, in a folder whose own links are resolved.
    fn world() -> (TempDir, PathBuf, Workspace) {
        let world = TempDir::new().unwrap();
        let top = world.path().canonicalize().unwrap();
        for folder in ["w/src/deep", "home/docs", "elsewhere/x"] {
            fs::create_dir_all(top.join(folder)).unwrap();
        }
        let workspace = Workspace::new(top.join("w"), Some(top.join("home")));
        (world, top, workspace)
    }

    fn told(workspace: &Workspace, top: &Path, text: &str) -> String {
        let Some(paths) = workspace.resolve(text, |_| None) else { return "unknown".to_owned() };
        let top = format!("{}/", top.display());
        let names = paths.iter().map(|path| path.to_string().replace(&top, ""));
        names.collect::<Vec<_>>().join(" + ")
    }

    #[test]
    fn s45_paths_are_resolved_against_the_workspace() {
        let (_world, top, workspace) = world();
        let check = |text: &str, expected: &str| assert_eq!(told(&workspace, &top, text), expected, "{text}");
        check("src/a.rs", "w/src/a.rs");
        check("./src//deep/../a.rs", "w/src/a.rs");
        check(".", "w");
        check("..", &top.display().to_string());
        check("../elsewhere/x", "elsewhere/x");
        check("~", "home");
        check("~/docs/a", "home/docs/a");
        check("~root/a", "unknown");
        check(&format!("{}/w/src/new/deeper.rs", top.display()), "w/src/new/deeper.rs");
        check(&format!("file://{}/w/src", top.display()), "w/src");
        check("file:///a%20b", "unknown");
        check("https://example.com/a", "unknown");
        check("", "unknown");
        check("  ", "unknown");
        check("a\0b", "unknown");
        check(" src ", "w/src + w/ src ");
        let base = top.join("elsewhere");
        let from_base = workspace.resolve("x", |path| Some(base.join(path))).unwrap();
        assert_eq!(from_base[0].to_string(), top.join("elsewhere/x").display().to_string());
        assert_eq!(from_base[0].shown(), "x");
        assert_eq!(Workspace::new(top, None).resolve("~/a", |_| None), None);
    }

    #[cfg(unix)]
    #[test]
    fn s45_links_count_by_where_they_lead_and_where_they_lie() {
        use std::os::unix::fs::symlink;
        let (_world, top, workspace) = world();
        symlink("../elsewhere", top.join("w/link")).unwrap();
        symlink("not-there", top.join("w/dangling")).unwrap();
        symlink("loop", top.join("w/loop")).unwrap();
        let check = |text: &str, expected: &str| assert_eq!(told(&workspace, &top, text), expected, "{text}");
        check("link", "elsewhere + w/link");
        check("link/x/new", "elsewhere/x/new");
        check("dangling", "w/not-there + w/dangling");
        check("loop", "unknown");
        // The kernel takes `..` from where the link leads, many tools from where it lies.
        check("link/../src", "src + w/src");
        check(r"src\deep", r"w/src\deep + w/src/deep");
        let meets = |a: &str, b: &str| {
            let (a, b) = (workspace.resolve(a, |_| None).unwrap(), workspace.resolve(b, |_| None).unwrap());
            a.iter().any(|a| b.iter().any(|b| a.overlaps(b)))
        };
        assert!(meets("link", "../elsewhere/x"));
        assert!(meets("link/x", "../elsewhere"));
        assert!(!meets("link/x", "src"));
    }

    /// This disk either folds case or it does not; the two spellings of a name that exists tell which.
    #[test]
    fn s45_case_counts_where_the_disk_tells_it_apart() {
        let (_world, top, workspace) = world();
        let folds = fs::metadata(top.join("w/SRC")).is_ok();
        let (a, b) =
            (workspace.resolve("src/A", |_| None).unwrap(), workspace.resolve("src/a", |_| None).unwrap());
        assert_eq!(a[0].overlaps(&b[0]), folds);
    }
}
