//! Keeps every path below the configured folders, whatever links and dots it goes through.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::outcome::BuiltinFailure;
use crate::tools::scoped::paths::{LastLink, at_home, walk};

/// The folders below which the built-ins may work.
#[derive(Debug, Clone, Default)]
pub struct Roots {
    roots: Vec<Root>,
    home: Option<PathBuf>,
}

#[derive(Debug, Clone)]
struct Root {
    /// As configured; the only form that is ever shown.
    name: String,
    /// The same, absolute; its links are resolved at each use, since the folder may come and go.
    folder: PathBuf,
}

/// A path that was below a root when it was resolved. It holds no links.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    path: PathBuf,
    root: PathBuf,
    shown: String,
    last: LastLink,
    asked: PathBuf,
}

impl Place {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The root it is in, without links.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// How to name it to a model: as seen from its root.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// The folder it is in; a root has none that may be used.
    pub fn parent(&self) -> Option<&Path> {
        if self.path == self.root { None } else { self.path.parent() }
    }

    /// How to name something below it to a model.
    pub fn shown_below(&self, path: &Path) -> String {
        let Ok(rest) = path.strip_prefix(&self.path) else { return self.shown.clone() };
        let rest = with_slashes(rest);
        match self.shown.as_str() {
            "." => rest,
            shown if rest.is_empty() => shown.to_owned(),
            shown => format!("{}/{rest}", shown.trim_end_matches('/')),
        }
    }
}

impl Roots {
    /// Takes folders as configured; relative ones are below `base`, `~` is `home`.
    pub fn new(folders: &[PathBuf], base: &Path, home: Option<PathBuf>) -> Roots {
        let roots = folders
            .iter()
            .map(|folder| Root {
                name: folder.display().to_string(),
                folder: base.join(at_home(folder, home.as_deref()).as_deref().unwrap_or(folder)),
            })
            .collect();
        Roots { roots, home }
    }

    /// Whether there is none, and so no file tool.
    pub fn is_empty(&self) -> bool {
        self.roots.is_empty()
    }

    /// The folders as configured.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.roots.iter().map(|root| root.name.as_str())
    }

    /// Resolves what the argument `argument` says. Blocks on the disk.
    ///
    /// Relative paths are below the first root, or below the root whose configured name they begin with when the first
    /// root holds nothing of that name.
    pub fn resolve(&self, argument: &str, text: &str, last: LastLink) -> Result<Place, BuiltinFailure> {
        if self.is_empty() {
            return Err(BuiltinFailure::failed("no folder is allowed: `[builtins] roots` is not configured"));
        }
        if text.is_empty() {
            return Err(BuiltinFailure::invalid(
                argument,
                "the path is empty; `.` is the first allowed folder",
            ));
        }
        if text.contains('\0') {
            return Err(BuiltinFailure::invalid(argument, "the path holds a NUL character"));
        }
        self.locate(&self.absolute(Path::new(text)), text, last)
    }

    /// Resolves the first root itself.
    pub fn first(&self) -> Result<Place, BuiltinFailure> {
        self.resolve("", ".", LastLink::Followed)
    }

    /// Fails unless `place` still leads where it led: called once a file is open or about to be replaced.
    pub fn check_unmoved(&self, place: &Place) -> Result<(), BuiltinFailure> {
        let now = self.locate(&place.asked, &place.shown, place.last)?;
        if now.path == place.path {
            return Ok(());
        }
        Err(BuiltinFailure::failed(format!("`{}` was moved meanwhile; try again", place.shown)))
    }

    /// Whether a folder is a root or holds one, and so is not to be deleted or moved.
    pub fn holds_a_root(&self, path: &Path) -> bool {
        self.roots
            .iter()
            .any(|root| walk(&root.folder, LastLink::Followed).map_or(true, |real| real.starts_with(path)))
    }

    /// Opens a place to be read; refuses everything but regular files.
    pub fn open(&self, place: &Place) -> Result<File, BuiltinFailure> {
        let shown = place.shown();
        let metadata =
            fs::symlink_metadata(place.path()).map_err(|error| BuiltinFailure::io("read", shown, &error))?;
        if metadata.is_dir() {
            return Err(BuiltinFailure::failed(format!(
                "`{shown}` is a folder; `file_ops` with the operation `list` shows what is in it"
            )));
        }
        if !metadata.is_file() {
            return Err(BuiltinFailure::failed(format!(
                "`{shown}` is neither a file nor a folder (a pipe, socket or device) and is not opened"
            )));
        }
        let file = open_regular(place.path()).map_err(|error| BuiltinFailure::io("read", shown, &error))?;
        self.check_unmoved(place)?;
        Ok(file)
    }

    /// Where an argument leads before dots and links are resolved, inside or not.
    pub fn absolute(&self, path: &Path) -> PathBuf {
        if let Some(at_home) = at_home(path, self.home.as_deref()) {
            return at_home;
        }
        let Some(first) = self.roots.first() else { return path.to_owned() };
        let below_first = first.folder.join(path);
        if path.is_absolute() {
            return below_first;
        }
        let named = self.roots.iter().skip(1).find(|root| path.starts_with(&root.name));
        let taken =
            path.components().next().is_none_or(|name| first.folder.join(name).symlink_metadata().is_ok());
        match named {
            Some(root) if !taken => {
                let below = path.strip_prefix(&root.name).unwrap_or(path);
                if below.as_os_str().is_empty() { root.folder.clone() } else { root.folder.join(below) }
            }
            _ => below_first,
        }
    }

    fn locate(&self, asked: &Path, text: &str, last: LastLink) -> Result<Place, BuiltinFailure> {
        // A failure on the way is answered like a path outside: what lies there is nobody's business.
        let path = walk(asked, last).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidFilename => BuiltinFailure::io("use", text, &error),
            _ => self.outside(text),
        })?;
        for (index, root) in self.roots.iter().enumerate() {
            let Ok(real) = walk(&root.folder, LastLink::Followed) else { continue };
            let Ok(below) = path.strip_prefix(&real) else { continue };
            let below = with_slashes(below);
            let shown = match (index, below.as_str()) {
                (0, "") => ".".to_owned(),
                (0, below) => below.to_owned(),
                (_, "") => root.name.clone(),
                (_, below) => format!("{}/{below}", root.name.trim_end_matches('/')),
            };
            return Ok(Place { path, root: real, shown, last, asked: asked.to_owned() });
        }
        Err(self.outside(text))
    }

    fn outside(&self, text: &str) -> BuiltinFailure {
        let names = self.names().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        BuiltinFailure::failed(format!(
            "`{text}` is outside the allowed folders, or a link on the way leads there; allowed are {names} and what is below, \
             and relative paths start in the first"
        ))
    }
}

/// Opens without waiting for the other end of a pipe and without following a link that was put there a moment ago.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let mut options = fs::OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
        options.custom_flags(flags.bits().cast_signed());
    }
    let file = options.open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("not a regular file")) }
}

fn with_slashes(path: &Path) -> String {
    path.components().map(|part| part.as_os_str().to_string_lossy()).collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    fn world() -> (TempDir, Roots) {
        let world = TempDir::new().unwrap();
        for folder in ["root/sub", "root_secret", "outside/deep", "second"] {
            fs::create_dir_all(world.path().join(folder)).unwrap();
        }
        for file in
            ["root/a.txt", "root/sub/b.txt", "root_secret/s.txt", "outside/secret.txt", "second/c.txt"]
        {
            fs::write(world.path().join(file), "x").unwrap();
        }
        let roots =
            Roots::new(&["root".into(), "second".into()], world.path(), Some(world.path().join("root/sub")));
        (world, roots)
    }

    fn shown(roots: &Roots, text: &str) -> String {
        match roots.resolve("/path", text, LastLink::Followed) {
            Ok(place) => place.shown().to_owned(),
            Err(BuiltinFailure::Execution { message }) if message.contains("outside the allowed folders") => {
                "outside".to_owned()
            }
            Err(BuiltinFailure::Validation { path, .. }) => format!("invalid {path}"),
            Err(other) => format!("{other:?}"),
        }
    }

    #[test]
    fn paths_stay_below_a_root() {
        let (world, roots) = world();
        let check = |text: &str, expected: &str| assert_eq!(shown(&roots, text), expected, "{text}");
        let base = world.path().display();
        check("a.txt", "a.txt");
        check("./sub/.././a.txt", "a.txt");
        check(".", ".");
        check("new/deeper.txt", "new/deeper.txt");
        check(&format!("{base}/root/a.txt"), "a.txt");
        check(&format!("{base}/outside/../root/a.txt"), "a.txt");
        check("~/b.txt", "sub/b.txt");
        check("~", "sub");
        check("second/c.txt", "second/c.txt");
        check(&format!("{base}/second/c.txt"), "second/c.txt");
        check("second", "second");
        check("", "invalid /path");
        check("a\0.txt", "invalid /path");
        check("../outside/secret.txt", "outside");
        check("sub/../../outside/secret.txt", "outside");
        check("missing/../../outside/secret.txt", "outside");
        check("../root_secret/s.txt", "outside");
        check(&format!("{base}/root_secret/s.txt"), "outside");
        check(&format!("{base}/root/../outside/secret.txt"), "outside");
        check(&format!("{base}"), "outside");
        check("/", "outside");
        check("/../../..", "outside");
        check("..", "outside");
        check("~/../../outside", "outside");
    }

    #[test]
    fn a_root_that_is_missing_or_absent_allows_nothing() {
        let world = TempDir::new().unwrap();
        let none = Roots::new(&[], world.path(), None);
        assert!(none.is_empty());
        assert!(none.resolve("/path", "a", LastLink::Followed).is_err());
        assert!(none.resolve("/path", "/", LastLink::Followed).is_err());
    }

    #[test]
    fn a_refusal_names_the_folders_as_configured_and_no_other_path() {
        let (world, roots) = world();
        let Err(BuiltinFailure::Execution { message }) = roots.resolve("/path", "../x", LastLink::Followed)
        else {
            panic!("not refused");
        };
        assert!(message.contains("`root`, `second`"), "{message}");
        assert!(!message.contains(&world.path().display().to_string()), "{message}");
    }

    #[cfg(unix)]
    #[test]
    fn links_count_by_where_they_lead() {
        use std::os::unix::fs::symlink;
        let (world, roots) = world();
        let base = world.path();
        let link = |target: &str, name: &str| symlink(target, base.join("root").join(name)).unwrap();
        link(base.join("outside/secret.txt").to_str().unwrap(), "file");
        link(base.join("outside").to_str().unwrap(), "dir");
        link("../outside", "relative");
        link("../outside/not-there.txt", "dangling");
        link("sub/not-there.txt", "dangling-inside");
        link("sub", "inside");
        link("file", "chain");
        link("loop", "loop");
        link("../root/a.txt", "out-and-back");
        link("../root_secret", "sibling");
        let check = |text: &str, expected: &str| assert_eq!(shown(&roots, text), expected, "{text}");
        for text in [
            "file",
            "dir",
            "dir/secret.txt",
            "dir/new.txt",
            "dir/new/deeper.txt",
            "relative/secret.txt",
            "dangling",
            "chain",
            "loop",
            "sibling/s.txt",
            "inside/../../outside/secret.txt",
            "dir/deep/../secret.txt",
        ] {
            check(text, "outside");
        }
        check("inside/b.txt", "sub/b.txt");
        check("dangling-inside", "sub/not-there.txt");
        check("out-and-back", "a.txt");
        // The kernel's reading of `..`: from where the link leads, not from where it lies.
        check("dir/../root/a.txt", "a.txt");
        check("inside/../a.txt", "a.txt");

        let itself = roots.resolve("/path", "file", LastLink::Itself).unwrap();
        assert_eq!(itself.shown(), "file");
        assert!(roots.resolve("/path", "dir/secret.txt", LastLink::Itself).is_err());
        assert!(roots.resolve("/path", "dir/..", LastLink::Itself).is_err());
    }

    #[cfg(unix)]
    #[test]
    fn a_place_that_was_swapped_for_a_link_is_noticed() {
        use std::os::unix::fs::symlink;
        let (world, roots) = world();
        let place = roots.resolve("/path", "sub/b.txt", LastLink::Followed).unwrap();
        assert!(roots.check_unmoved(&place).is_ok());
        fs::rename(world.path().join("root/sub"), world.path().join("root/old")).unwrap();
        symlink(world.path().join("outside"), world.path().join("root/sub")).unwrap();
        assert!(roots.check_unmoved(&place).is_err());
        assert!(roots.open(&place).is_err());
    }

    #[cfg(unix)]
    #[test]
    fn a_root_may_itself_be_a_link() {
        let (world, _) = world();
        std::os::unix::fs::symlink("root", world.path().join("alias")).unwrap();
        let roots = Roots::new(&["alias".into()], world.path(), None);
        assert_eq!(shown(&roots, "a.txt"), "a.txt");
        assert_eq!(shown(&roots, &world.path().join("root/a.txt").display().to_string()), "a.txt");
        assert_eq!(shown(&roots, "../root_secret/s.txt"), "outside");
    }

    #[test]
    fn roots_and_what_holds_them_are_known() {
        let (world, roots) = world();
        assert!(roots.holds_a_root(&world.path().canonicalize().unwrap()));
        let root = roots.first().unwrap();
        assert!(roots.holds_a_root(root.path()));
        assert_eq!(root.parent(), None);
        assert!(!roots.holds_a_root(&root.path().join("sub")));
    }
}
