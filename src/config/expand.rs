//! Expands references in values: `${VAR}`, `${VAR:-default}`, `${file:PATH}`.
//!
//! `$${` is a literal `${`. Everything else with a `$` stays as it is: a lone `$`, `$HOME`, and braces around what is
//! no name. Expanded values are not expanded again, but a default may hold references of its own.

use std::borrow::Cow;
use std::fs::File;
use std::io::Read;
use std::path::{Component, Path, PathBuf};

use super::environment::Environment;

/// What references are resolved against.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Expander<'a> {
    pub(crate) environment: &'a Environment,
    /// Relative paths start here: the folder of the file that the value was written in.
    pub(crate) folder: &'a Path,
    /// The folder that editors call the workspace, where their references are understood.
    pub(crate) workspace: Option<&'a Path>,
}

/// A value with its references replaced.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Expanded {
    pub(crate) text: String,
    /// What came from variables and files.
    pub(crate) inserted: Vec<String>,
}

/// A reference that cannot be resolved. Never shows a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unresolved {
    #[error(
        "the environment variable `{name}` is not set; set it for toolcrib, or write `${{{name}:-default}}`"
    )]
    Variable { name: String },
    #[error("`${{file:{path}}}` cannot be read: {cause}")]
    File { path: String, cause: String },
    #[error(
        "`${{{reference}}}` is known only to the editor; write the value, or name an environment variable"
    )]
    Editor { reference: String },
    #[error("`~` is not known, because `HOME` is not set")]
    Home,
}

impl Unresolved {
    /// The same for a model: what is missing, without a path and without advice that it cannot follow.
    pub(crate) fn for_model(&self) -> String {
        match self {
            Unresolved::Variable { name } => format!("the environment variable `{name}` is not set"),
            Unresolved::File { .. } => "a file that its configuration names cannot be read".to_owned(),
            Unresolved::Editor { .. } => {
                "its configuration holds a reference that only an editor knows".to_owned()
            }
            Unresolved::Home => "`HOME` is not set".to_owned(),
        }
    }
}

/// Longer files hold no single value.
const LONGEST_FILE: u64 = 64 * 1024;

impl Expander<'_> {
    /// Replaces the references in a value.
    pub(crate) fn value(&self, text: &str) -> Result<Expanded, Unresolved> {
        let mut expanded = Expanded::default();
        let mut rest = text;
        while let Some(at) = rest.find("${") {
            let (before, from) = rest.split_at(at);
            if let Some(before) = before.strip_suffix('$') {
                expanded.text.push_str(before);
                expanded.text.push_str("${");
                rest = &from[2..];
                continue;
            }
            expanded.text.push_str(before);
            let Some(end) = closing_brace(from) else {
                expanded.text.push_str(from);
                return Ok(expanded);
            };
            match self.reference(&from[2..end])? {
                Some(found) => {
                    expanded.text.push_str(&found.text);
                    expanded.inserted.extend(found.inserted);
                }
                None => expanded.text.push_str(&from[..=end]),
            }
            rest = &from[end + 1..];
        }
        expanded.text.push_str(rest);
        Ok(expanded)
    }

    /// Replaces the references in a path and makes it absolute.
    pub(crate) fn path(&self, text: &str) -> Result<String, Unresolved> {
        self.path_in(self.folder, text)
    }

    /// As `path`, with another start for relative ones.
    pub(crate) fn path_in(&self, folder: &Path, text: &str) -> Result<String, Unresolved> {
        let text = self.value(text)?.text;
        absolute(folder, self.environment.home().as_deref(), &text).ok_or(Unresolved::Home)
    }

    /// What stands between the braces; `None` if that is no reference.
    fn reference(&self, inner: &str) -> Result<Option<Expanded>, Unresolved> {
        if let Some(path) = inner.strip_prefix("file:") {
            return self.file(path).map(Some);
        }
        if ["input:", "command:", "config:"].iter().any(|prefix| inner.starts_with(prefix)) {
            return Err(Unresolved::Editor { reference: inner.to_owned() });
        }
        let (name, default) = match inner.split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (inner, None),
        };
        if let Some(text) = self.editor_folder(name) {
            return Ok(Some(Expanded { text, inserted: Vec::new() }));
        }
        let name = match name.strip_prefix("env:") {
            Some(name) if !name.is_empty() => name,
            _ if is_name(name) => name,
            _ => return Ok(None),
        };
        match (self.environment.get(name), default) {
            (Some(""), Some(default)) | (None, Some(default)) => self.value(default).map(Some),
            (Some(value), _) => {
                Ok(Some(Expanded { text: value.to_owned(), inserted: vec![value.to_owned()] }))
            }
            (None, None) => Err(Unresolved::Variable { name: name.to_owned() }),
        }
    }

    fn editor_folder(&self, name: &str) -> Option<String> {
        let workspace = self.workspace?;
        match name {
            "workspaceFolder" | "workspaceRoot" | "cwd" => Some(workspace.to_string_lossy().into_owned()),
            "workspaceFolderBasename" => Some(workspace.file_name()?.to_string_lossy().into_owned()),
            "userHome" => Some(self.environment.home()?.to_string_lossy().into_owned()),
            "pathSeparator" | "/" => Some(std::path::MAIN_SEPARATOR_STR.to_owned()),
            _ => None,
        }
    }

    fn file(&self, path: &str) -> Result<Expanded, Unresolved> {
        let place = PathBuf::from(self.path(path)?);
        let failed = |cause: String| Unresolved::File { path: path.to_owned(), cause };
        // Asked first, because opening a pipe waits for its other end.
        if !place.metadata().map_err(|error| failed(error.to_string()))?.is_file() {
            return Err(failed("it is not a file".to_owned()));
        }
        let mut text = String::new();
        File::open(&place)
            .and_then(|file| file.take(LONGEST_FILE + 1).read_to_string(&mut text))
            .map_err(|error| failed(error.to_string()))?;
        if text.len() as u64 > LONGEST_FILE {
            return Err(failed("it is longer than 64 KiB".to_owned()));
        }
        let text = text.trim_start_matches('\u{feff}').trim().to_owned();
        Ok(Expanded { inserted: vec![text.clone()], text })
    }
}

/// The brace that ends the reference at the start of `text`; references nest.
fn closing_brace(text: &str) -> Option<usize> {
    let mut depth = 0;
    let mut previous = ' ';
    for (at, c) in text.char_indices() {
        match c {
            '{' if previous == '$' => depth += 1,
            '}' if depth == 1 => return Some(at),
            '}' => depth -= 1,
            _ => {}
        }
        previous = c;
    }
    None
}

fn is_name(text: &str) -> bool {
    !text.starts_with(|c: char| c.is_ascii_digit())
        && !text.is_empty()
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// A path with `~` expanded, relative ones below `folder`, without `.`; `None` if `~` is not known.
pub(crate) fn absolute(folder: &Path, home: Option<&Path>, text: &str) -> Option<String> {
    let below_home = match text {
        "~" => Some(""),
        _ => text.strip_prefix("~/").or(text.strip_prefix("~\\")),
    };
    let path = match below_home {
        Some(rest) => Cow::Owned(home?.join(rest)),
        None => Cow::Borrowed(Path::new(text)),
    };
    let path: PathBuf =
        folder.join(path).components().filter(|part| !matches!(part, Component::CurDir)).collect();
    path.into_os_string().into_string().ok()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn expand(text: &str) -> Result<Expanded, Unresolved> {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("token.txt"), "\u{feff}from file\r\n\n").unwrap();
        fs::write(folder.path().join("long"), "x".repeat(70_000)).unwrap();
        fs::create_dir(folder.path().join("home")).unwrap();
        fs::write(folder.path().join("home/t"), "at home\n").unwrap();
        let home = folder.path().join("home").to_string_lossy().into_owned();
        let environment =
            Environment::from([("TOKEN", "tok-123"), ("EMPTY", ""), ("NESTED", "${TOKEN}"), ("HOME", &home)]);
        Expander { environment: &environment, folder: folder.path(), workspace: None }.value(text)
    }

    fn check(text: &str, expected: &str) {
        assert_eq!(expand(text).map(|expanded| expanded.text), Ok(expected.to_owned()), "{text}");
    }

    fn check_error(text: &str, expected: &str) {
        assert_eq!(expand(text).map_err(|error| error.to_string()), Err(expected.to_owned()), "{text}");
    }

    #[test]
    fn cfg_01_references_are_replaced() {
        check("${TOKEN}", "tok-123");
        check("--tag=${TOKEN}!", "--tag=tok-123!");
        check("${TOKEN}${TOKEN}", "tok-123tok-123");
        check("${LEVEL:-info}", "info");
        check("${LEVEL:-}", "");
        check("${EMPTY:-info}", "info");
        check("[${EMPTY}]", "[]");
        check("${A:-${B:-${TOKEN}}}", "tok-123");
        check("${A:-a:-b}", "a:-b");
        check("${A:-http://h/{id}", "http://h/{id");
        check("${env:TOKEN}", "tok-123");
        check("${file:token.txt}", "from file");
        check("Bearer ${file:./token.txt}", "Bearer from file");
        check("${file:~/t}", "at home");
        check("${file:${HOME}/t}", "at home");
        // Values are never expanded a second time.
        check("${NESTED}", "${TOKEN}");
    }

    #[test]
    fn cfg_05_other_dollar_signs_stay() {
        for text in [
            "$",
            "$$",
            "a$",
            "$HOME",
            "$TOKEN",
            "%TOKEN%",
            "{TOKEN}",
            "${",
            "${}",
            "${TOKEN",
            "${1X}",
            "${A B}",
            "${X#y}",
            "${a.b}",
            "$(id)",
            "`id`",
            "price: 5$ {x}",
            "na\u{ef}ve-日本",
        ] {
            check(text, text);
        }
        check("$${TOKEN}", "${TOKEN}");
        check("$$${TOKEN}", "$${TOKEN}");
        check("$${TOKEN} ${TOKEN}", "${TOKEN} tok-123");
    }

    #[test]
    fn what_is_missing_is_named_and_no_value_is_shown() {
        check_error(
            "${TOKEN}${NOPE}",
            "the environment variable `NOPE` is not set; set it for toolcrib, or write `${NOPE:-default}`",
        );
        check_error(
            "${env:NOPE}",
            "the environment variable `NOPE` is not set; set it for toolcrib, or write `${NOPE:-default}`",
        );
        check_error(
            "${A:-${NOPE}}",
            "the environment variable `NOPE` is not set; set it for toolcrib, or write `${NOPE:-default}`",
        );
        check_error("${file:home}", "`${file:home}` cannot be read: it is not a file");
        check_error("${file:long}", "`${file:long}` cannot be read: it is longer than 64 KiB");
        check_error(
            "${input:key}",
            "`${input:key}` is known only to the editor; write the value, or name an environment variable",
        );
        assert!(matches!(expand("${file:nope}"), Err(Unresolved::File { path, .. }) if path == "nope"));
    }

    #[test]
    fn what_was_inserted_is_known() {
        let inserted = |text| expand(text).unwrap().inserted;
        assert_eq!(inserted("a ${TOKEN} ${X:-b} ${file:token.txt}"), ["tok-123", "from file"]);
        assert_eq!(inserted("plain"), [""; 0]);
    }

    #[cfg(unix)]
    #[test]
    fn paths_become_absolute() {
        let check = |text, expected: Option<&str>, home: Option<&str>| {
            let found = absolute(Path::new("/cfg"), home.map(Path::new), text);
            assert_eq!(found.as_deref(), expected, "{text}");
        };
        check("a/b", Some("/cfg/a/b"), None);
        check(".", Some("/cfg"), None);
        check("./a/./b/", Some("/cfg/a/b"), None);
        check("../a", Some("/cfg/../a"), None);
        check("/work dir", Some("/work dir"), None);
        check("~", Some("/h"), Some("/h"));
        check("~/x y", Some("/h/x y"), Some("/h"));
        check("~x/y", Some("/cfg/~x/y"), Some("/h"));
        check("~/x", None, None);
    }
}
