//! Decides which `tools.toml` is read.

use std::fs;
use std::path::{Path, PathBuf};

use super::Options;
use super::environment::Environment;
use super::expand::absolute;

/// The file's name in every place.
const NAME: &str = "tools.toml";

/// What the search found.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Found {
    /// `--config` or `TOOLCRIB_CONFIG` names it: it has to exist.
    Named(PathBuf),
    /// It lies in the user's configuration folder.
    Users(PathBuf),
    /// There is none: the defaults apply.
    Nothing,
}

/// `--config`, then `TOOLCRIB_CONFIG`, then the user's configuration folder; never the working directory.
pub(crate) fn find(options: &Options) -> Found {
    let from_variable =
        options.env.get("TOOLCRIB_CONFIG").filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(path) = options.config.clone().or(from_variable) {
        return Found::Named(given_path(&path, options));
    }
    // A file that exists but cannot be read is an error later, not a reason to go on without it.
    user_files(&options.env, Platform::HERE)
        .into_iter()
        .find(
            |path| !matches!(fs::metadata(path), Err(error) if error.kind() == std::io::ErrorKind::NotFound),
        )
        .map_or(Found::Nothing, Found::Users)
}

/// A path from the command line or a client's settings, where no shell has expanded `~`.
pub(crate) fn given_path(path: &Path, options: &Options) -> PathBuf {
    match path.to_str() {
        Some(text) => absolute(&options.directory, options.env.home().as_deref(), text)
            .map_or_else(|| options.directory.join(path), PathBuf::from),
        None => options.directory.join(path),
    }
}

/// Says that a file in the working directory was seen and not used.
pub(crate) fn warning_about_stray(options: &Options, used: &Found) -> Option<String> {
    let stray = options.directory.join(NAME);
    let is_used = match used {
        Found::Named(_) => return None,
        Found::Users(path) => same_file(path, &stray),
        Found::Nothing => false,
    };
    (stray.is_file() && !is_used).then(|| {
        format!(
            "`{NAME}` in the working directory is not used, because a configuration can start programs; \
             to use it, start with `--config {NAME}`"
        )
    })
}

fn same_file(one: &Path, other: &Path) -> bool {
    matches!((one.canonicalize(), other.canonicalize()), (Ok(one), Ok(other)) if one == other)
}

/// Where configuration folders lie differs by system.
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

/// The user's configuration files, best first.
fn user_files(environment: &Environment, platform: Platform) -> Vec<PathBuf> {
    // A relative path in XDG_CONFIG_HOME is to be ignored, says its specification.
    let folder = |name| environment.get(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let below_home = |parts: &str| environment.home().map(|home| home.join(parts));
    let folders = match platform {
        Platform::Unix => vec![folder("XDG_CONFIG_HOME").or(below_home(".config"))],
        Platform::Mac => vec![
            folder("XDG_CONFIG_HOME").or(below_home(".config")),
            below_home("Library/Application Support"),
        ],
        Platform::Windows => vec![folder("APPDATA"), folder("XDG_CONFIG_HOME").or(below_home(".config"))],
    };
    folders.into_iter().flatten().map(|folder| folder.join("toolcrib").join(NAME)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(variables: &[(&str, &str)], platform: Platform, expected: &[&str]) {
        let environment = variables.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        let expected: Vec<_> = expected.iter().map(PathBuf::from).collect();
        assert_eq!(user_files(&environment, platform), expected, "{variables:?} on {platform:?}");
    }

    #[cfg(unix)]
    #[test]
    fn c4_the_users_folder_is_the_one_of_the_system() {
        use Platform::{Mac, Unix, Windows};
        check(&[("HOME", "/h")], Unix, &["/h/.config/toolcrib/tools.toml"]);
        check(&[("HOME", "/h"), ("XDG_CONFIG_HOME", "/x")], Unix, &["/x/toolcrib/tools.toml"]);
        check(&[("HOME", "/h"), ("XDG_CONFIG_HOME", "rel")], Unix, &["/h/.config/toolcrib/tools.toml"]);
        check(&[("HOME", "/h"), ("XDG_CONFIG_HOME", "")], Unix, &["/h/.config/toolcrib/tools.toml"]);
        check(&[], Unix, &[]);
        check(
            &[("HOME", "/h")],
            Mac,
            &["/h/.config/toolcrib/tools.toml", "/h/Library/Application Support/toolcrib/tools.toml"],
        );
        check(
            &[("APPDATA", "/a"), ("USERPROFILE", "/u")],
            Windows,
            &["/a/toolcrib/tools.toml", "/u/.config/toolcrib/tools.toml"],
        );
    }
}
