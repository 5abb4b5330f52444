//! The environment variables that configuration may name, as a value, so that tests need no process environment.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;

/// Environment variables. `Debug` shows no values.
#[derive(Clone, Default)]
pub struct Environment {
    variables: HashMap<String, String>,
}

impl Environment {
    /// The variables of this process; those that are not UTF-8 count as not set.
    pub fn of_process() -> Self {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        let mut environment: Self = std::env::vars_os().filter_map(text).collect();
        // Some hosts start us without HOME; the user database still knows it.
        if environment.home().is_none()
            && let Some(home) = std::env::home_dir().and_then(|home| home.into_os_string().into_string().ok())
        {
            environment.variables.insert(folded("HOME"), home);
        }
        environment
    }

    /// The value of a variable.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.variables.get(&folded(name)).map(String::as_str)
    }

    /// The user's folder.
    pub(crate) fn home(&self) -> Option<PathBuf> {
        ["HOME", "USERPROFILE"]
            .into_iter()
            .filter_map(|name| self.get(name))
            .find(|value| !value.is_empty())
            .map(PathBuf::from)
    }
}

/// Names differ by case only where the system says so.
fn folded(name: &str) -> String {
    if cfg!(windows) { name.to_uppercase() } else { name.to_owned() }
}

impl FromIterator<(String, String)> for Environment {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(variables: I) -> Self {
        Self { variables: variables.into_iter().map(|(name, value)| (folded(&name), value)).collect() }
    }
}

impl<const N: usize> From<[(&str, &str); N]> for Environment {
    fn from(variables: [(&str, &str); N]) -> Self {
        variables.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Environment({} variables)", self.variables.len())
    }
}
